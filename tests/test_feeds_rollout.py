"""Rollouts: rows, pieces of episodes, what ends them, and memory at their starts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlplug import Acted, ActInput, Batch, Module
from rlplug.config.sections import EnvSection
from rlplug.envs import Environments, Normalization
from rlplug.errors import RequestError
from rlplug.feeds import FeedSetting, OpenFeed, Rollout, Work
from rlplug.sampling import Collector
from tests.collecting import collector


class Counts(gymnasium.Env[Any, Any]):
    """Observes 10 × episode + step; ends after `length` steps; pays the step's number."""

    observation_space = gymnasium.spaces.Box(0, 999, (1,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int, truncates: bool = False) -> None:
        self.length, self.truncates, self.count, self.episode = length, truncates, 0, -1

    def _seen(self) -> Any:
        return numpy.array([10.0 * self.episode + self.count], numpy.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count, self.episode = 0, self.episode + 1
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        ended = self.count == self.length
        cut = ended and self.truncates
        return self._seen(), float(self.count), ended and not cut, cut, {}


class Zero(Module):
    def forward_exploration(self, act: ActInput) -> Acted:
        return Acted(numpy.zeros(len(act.observations), dtype=numpy.int64))


class Remembers(Module):
    """Its memory is how many steps the episode has had."""

    def initial_state(self, n: int) -> dict[str, torch.Tensor]:
        return {"steps": torch.zeros(n, 1)}

    def forward_exploration(self, act: ActInput) -> Acted:
        actions = numpy.zeros(len(act.observations), dtype=numpy.int64)
        return Acted(actions, state={"steps": numpy.asarray(act.state["steps"]) + 1})


def counting(mode: AutoresetMode, normalization: Normalization | None = None) -> Environments:
    """One environment that terminates after 2 steps, one that is cut after 3."""
    vector = SyncVectorEnv([lambda: Counts(2), lambda: Counts(3, True)], autoreset_mode=mode)
    return Environments(vector, "Counts", mode, normalization)


def opened(rollout: Rollout, environments: Environments, *, memory: bool = False) -> OpenFeed:
    return rollout.open(
        FeedSetting(
            observation_space=environments.vector.single_observation_space,
            action_space=environments.action_space,
            num_envs=environments.num_envs,
            steps=100,
            seed=0,
            has_memory=memory,
            normalization=environments.normalization,
        )
    )


def sampler(feed: OpenFeed, environments: Environments, module: Module) -> Collector:
    made = collector(
        environments,
        module,
        seed=0,
        steps=feed.steps_per_collect,
        by_environment=feed.by_environment,
        state_interval=feed.state_interval,
    )
    made.start()
    return made


def collected(
    rollout: Rollout,
    mode: AutoresetMode,
    module: Module | None = None,
    rounds: int = 1,
) -> list[Work]:
    environments = counting(mode)
    module = module or Zero()
    feed = opened(rollout, environments, memory=module.initial_state(1) is not None)
    made = sampler(feed, environments, module)
    works = []
    for _ in range(rounds):
        for work in feed.take(made.collect(0), 0):
            columns = {
                name: torch.as_tensor(work.batch[name]) for name in work.batch if name != "state"
            }
            kept = {name: column.clone() for name, column in columns.items()}
            if "state" in work.batch:
                kept["state"] = {"steps": work.batch["state"]["steps"].clone()}  # type: ignore[assignment] # a table
            works.append(Work(Batch(kept), work.num_iters, work.minibatch_size))
    return works


FOUR = Rollout(n_steps=4, batch_size=3, n_epochs=5)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_rows_of_one_environment_follow_each_other_in_pieces_of_episodes(
    mode: AutoresetMode,
) -> None:
    (work,) = collected(FOUR, mode)
    batch = work.batch
    assert (work.num_iters, work.minibatch_size) == (5, 3)
    assert batch["observations"][:, 0].tolist() == [0, 1, 10, 11, 0, 1, 2, 10]
    assert batch["rewards"].tolist() == [1, 2, 1, 2, 1, 2, 3, 1]
    assert batch["fragments"].tolist() == [[0, 2], [2, 4], [4, 7], [7, 8]]
    # Terminated after 2 and 12; cut short after 3; going on after 11.
    assert batch["final_observations"][:, 0].tolist() == [2, 12, 3, 11]
    assert batch["terminated"].nonzero()[:, 0].tolist() == [1, 3]
    assert batch["truncated"].nonzero()[:, 0].tolist() == [6]
    batch.check()


def test_a_vector_that_resets_on_the_next_step_gives_fewer_rows_and_no_other() -> None:
    (work,) = collected(Rollout(n_steps=5, batch_size=3), AutoresetMode.NEXT_STEP)
    batch = work.batch
    # The third step of the first environment and the fourth of the second only reset.
    assert batch["observations"][:, 0].tolist() == [0, 1, 10, 11, 0, 1, 2, 10]
    assert batch["fragments"].tolist() == [[0, 2], [2, 4], [4, 7], [7, 8]]
    assert batch["final_observations"][:, 0].tolist() == [2, 12, 3, 11]
    batch.check()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_every_row_leads_to_the_next_of_its_episode(mode: AutoresetMode) -> None:
    for work in collected(Rollout(n_steps=7, batch_size=0), mode, rounds=3):
        extended = work.batch.extended()
        before, after = extended.split(extended["observations"][:, 0])
        assert (after - before).tolist() == [1.0] * work.batch.rows


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("longest", [0, 2])
def test_memory_begins_afresh_with_episodes_and_goes_on_inside_them(
    mode: AutoresetMode, longest: int
) -> None:
    rollout = Rollout(n_steps=5, batch_size=2, truncated_bptt=longest)
    pieces = 0
    for work in collected(rollout, mode, Remembers(), rounds=3):
        batch = work.batch
        starts = batch["observations"][batch["fragments"][:, 0], 0] % 10
        assert batch["state"]["steps"][:, 0].tolist() == starts.tolist()
        lengths = batch["fragments"][:, 1] - batch["fragments"][:, 0]
        assert longest == 0 or int(lengths.max()) <= longest
        pieces += len(starts)
        batch.check()
    assert pieces > 6


def test_a_fragment_says_whether_the_next_continues_its_episode() -> None:
    rollout = Rollout(n_steps=5, batch_size=2, truncated_bptt=2)
    (work,) = collected(rollout, AutoresetMode.SAME_STEP, Remembers())
    # 0 1 | 10 11 | 20 of the first; 0 1 | 2 | 10 | 11 of the second.
    starts = work.batch["observations"][work.batch["fragments"][:, 0], 0]
    assert starts.tolist() == [0, 10, 20, 0, 2, 10, 11]
    assert work.batch["continued"].tolist() == [False] * 3 + [True, False, True, False]


def test_steps_of_short_pieces_are_left_out_and_counted_once() -> None:
    made = collector(counting(AutoresetMode.SAME_STEP), Zero(), seed=0, steps=5, min_trajectory_length=2)
    made.start()
    experience = made.collect(0)
    assert experience.stepped is not None
    # 0 1 | 10 11 | 20 of the first; 0 1 2 | 10 11 of the second.
    assert experience.grid(experience.stepped).sum(0).tolist() == [4, 5]
    assert made.take_metrics()["sampling/discarded_steps"] == 1.0
    assert made.take_metrics()["sampling/discarded_steps"] == 0.0


def test_the_last_fragment_of_an_environment_with_few_steps_continues_in_none() -> None:
    environments = counting(AutoresetMode.SAME_STEP)
    feed = opened(Rollout(n_steps=5, batch_size=2, truncated_bptt=2), environments, memory=True)
    experience = sampler(feed, environments, Remembers()).collect(0)
    # Of the second environment two steps, in the midst of an episode.
    stepped = numpy.ones((2, 5), bool)
    stepped[1, 2:] = False
    experience.stepped = stepped.reshape(-1)
    (work,) = feed.take(experience, 0)
    assert work.batch["fragments"].tolist() == [[0, 2], [2, 4], [4, 5], [5, 7]]
    assert work.batch["continued"].tolist() == [False] * 4


def test_a_minibatch_larger_than_the_rollout_is_refused() -> None:
    with pytest.raises(RequestError, match="n_steps = 4 of 2 environments are 8 rows") as raised:
        opened(Rollout(n_steps=4, batch_size=9), counting(AutoresetMode.SAME_STEP))
    assert raised.value.hints == ("try: --set batch_size=8",)


def test_normalisers_stand_still_during_a_rollout_and_its_update() -> None:
    plain = counting(AutoresetMode.SAME_STEP)
    section = EnvSection(normalize_observation=True, normalize_reward=True)
    normalization = Normalization(section, plain.vector.single_observation_space, 2)
    environments = counting(AutoresetMode.SAME_STEP, normalization)
    acted_on: list[Any] = []

    class Watches(Zero):
        def forward_exploration(self, act: ActInput) -> Acted:
            acted_on.append(act.observations.copy())
            return super().forward_exploration(act)

    feed = opened(FOUR, environments)
    made = sampler(feed, environments, Watches())
    for _ in range(3):
        acted_on.clear()
        (work,) = feed.take(made.collect(0), 0)
        learned_from = work.batch["observations"].numpy().reshape(2, 4, 1).swapaxes(0, 1)
        assert numpy.array_equal(numpy.stack(acted_on), learned_from)
        made.absorb()
    # 24 observations were absorbed, of mean 31.33 or so: what comes next is seen around 0.
    assert abs(float(normalization.observations(numpy.array([[20.0]]))[0, 0])) < 1
    assert normalization.get_state()["moments"][0][0] == 24


def test_a_feed_takes_the_options_that_have_the_names_of_its_fields() -> None:
    options = SimpleNamespace(n_steps=5, n_epochs=3, learning_rate=0.1)
    assert Rollout.of(options, batch_size=0) == Rollout(n_steps=5, n_epochs=3, batch_size=0)
    # What is said wins over an option.
    assert Rollout.of(options, n_epochs=1).n_epochs == 1
