"""Rollouts and streams: rows, fragments of episodes, memory at their starts, and descriptions."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy
import pytest
from gymnasium import spaces

from rlplug import Batch
from rlplug.config.sections import EnvSection
from rlplug.envs import Normalization
from rlplug.errors import RequestError
from rlplug.feeds import Experience, Feed, Rollout, Stream
from tests.feed_worlds import World, length, rows_in, transitions

WORLDS = {
    "same step": World(3),
    "next step": World(3, "next_step"),
    "uneven": World(3, "uneven"),
    "tensors": World(3, tensors=True),
    "tensors, next step": World(3, "next_step", tensors=True),
}


def world(name: str) -> World:
    known = WORLDS[name]
    return World(known.num_envs, known.mode, known.tensors)


@pytest.mark.parametrize("longest", [0, 2])
@pytest.mark.parametrize("name", WORLDS)
def test_fragments_are_pieces_of_episodes_with_the_memory_at_their_starts(
    name: str, longest: int
) -> None:
    now = world(name)
    described = Rollout(n_steps=7, batch_size=5, n_epochs=3, truncated_bptt=longest)
    feed = described.open(now.setting(has_memory=True))
    assert feed.state_interval == longest
    for _ in range(4):
        before = [len(rows) for rows in now.kept]
        experience = now.collect(7, by_environment=True)
        # A memory says how many steps the episode has had.
        ages = experience.grid(experience.columns["observations"]["at"])[..., 2:]
        experience.states = [{"age": age} for age in ages[:: longest or 7]]
        experience.initial_state = {"age": ages[0, :1] * 0}
        (work,) = feed.take(experience, 0)
        assert (work.num_iters, work.minibatch_size) == (3, 5)
        batch = work.batch
        batch.check()
        rows = rows_in(batch["observations"])
        new = [row for kept, first in zip(now.kept, before, strict=True) for row in kept[first:]]
        assert rows == new
        finals, stop = rows_in(batch["final_observations"]), 0
        for index, (start, end) in enumerate(batch["fragments"].tolist()):
            assert start == stop < end
            stop = end
            env, episode, first = rows[start]
            piece = [(env, episode, first + offset) for offset in range(end - start)]
            assert rows[start:end] == piece
            assert finals[index] == (env, episode, first + end - start)
            assert batch["state"]["age"][index].tolist() == [first]
            if longest:
                assert len(piece) <= longest
                goes_on = end < len(rows) and rows[end] == finals[index]
                assert batch["continued"][index] == goes_on
        assert stop == len(rows)


@pytest.mark.parametrize("name", [name for name in WORLDS if name != "uneven"])
def test_a_stream_hands_each_transition_on_once(name: str) -> None:
    now = world(name)
    feed = Stream(steps_per_update=2).open(now.setting())
    batches = [work.batch for _ in range(6) for work in feed.take(now.collect(2), 0)]
    # A batch stays as it is while more is collected.
    found = [(before, after) for batch in batches for before, after, _ in transitions(batch)]
    assert sorted(before for before, _ in found) == sorted(itertools.chain(*now.kept))
    assert all(after == (*before[:2], before[2] + 1) for before, after in found)
    assert any(after[2] == length(*after[:2]) for _, after in found)


@pytest.mark.parametrize("described", [Stream(), Rollout(n_steps=2, batch_size=0)])
def test_batches_are_normalised_and_experience_is_not(described: Feed) -> None:
    box = spaces.Box(0, 9, (1,))
    section = EnvSection(normalize_observation=True, reward_clip=1.0)
    normalization = Normalization(section, box, 1)
    seen = numpy.array([[1.0], [3.0]])
    normalization.absorb(seen, numpy.zeros((2, 1)), numpy.zeros((2, 1), bool))
    setting = World().setting(observation_space=box, normalization=normalization)
    ends = numpy.zeros(2, bool)
    columns = {"observations": seen, "rewards": seen[:, 0] * 3}
    columns |= {"terminated": ends, "truncated": ends, "actions": ends}
    following = {"observations": numpy.array([[5.0]])}
    experience = Experience(columns, steps=2, num_envs=1, following=following)
    (work,) = described.open(setting).take(experience, 0)
    batch: Batch = work.batch
    # Mean 2 and spread 1.
    assert batch["observations"].flatten().tolist() == pytest.approx([-1.0, 1.0])
    last = "next_observations" if "next_observations" in batch else "final_observations"
    assert batch[last][-1].item() == pytest.approx(3.0)
    assert batch["rewards"].tolist() == [1.0, 1.0]
    assert experience.columns["observations"].tolist() == [[1.0], [3.0]]


def test_a_minibatch_larger_than_the_rollout_is_refused() -> None:
    rollout = Rollout(n_steps=4, batch_size=13)
    with pytest.raises(RequestError, match="rollout of 12 rows: n_steps = 4, 3 env") as raised:
        rollout.open(World(3).setting())
    assert raised.value.hints == ("try: --set batch_size=12",)
    with pytest.raises(RequestError, match="num_epoch_samples = 10"):
        rollout.open(World(3).setting(num_epoch_samples=10))


def test_a_feed_takes_the_options_that_have_the_names_of_its_fields() -> None:
    options = SimpleNamespace(n_steps=5, n_epochs=3, learning_rate=0.1)
    assert Rollout.of(options, batch_size=0) == Rollout(n_steps=5, n_epochs=3, batch_size=0)
    # What is said wins over an option.
    assert Rollout.of(options, n_epochs=1).n_epochs == 1
