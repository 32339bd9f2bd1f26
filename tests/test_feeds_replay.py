"""Replay: whatever is drawn is what happened, for arrays and tensors and all kinds of resets."""

from __future__ import annotations

from typing import Any

import attrs
import numpy
import pytest
import torch
from gymnasium import spaces

from rlplug.batch.nested import leaves
from rlplug.config import Schedule
from rlplug.config.sections import EnvSection
from rlplug.envs import Normalization
from rlplug.errors import PluginError, RequestError, UnsupportedSpaceError
from rlplug.feeds import Experience, FeedSetting, OpenFeed, Replay
from tests.feed_worlds import ROW, World, length, mask, reward, transitions

WORLDS = {
    "one": World(),
    "one, next step": World(mode="next_step"),
    "several": World(3),
    "several, next step": World(3, "next_step"),
    "uneven": World(3, "uneven"),
    "tensors": World(3, tensors=True, masked=False),
    "tensors, masked": World(2, tensors=True),
    "tensors, next step": World(3, "next_step", tensors=True),
}


def world(name: str) -> World:
    known = WORLDS[name]
    return World(known.num_envs, known.mode, known.tensors, known.masked)


def check(batch: Any, now: World, gamma: float, n_step: int) -> set[ROW]:
    """Each transition of a batch is what happened; returns where they begin."""
    drawn = set()
    newest = [rows[-1] for rows in now.kept]
    for before, after, row in transitions(batch):
        env, episode, step = before
        path = [before]
        while len(path) < n_step and path[-1] != newest[env]:
            following = (env, episode, path[-1][2] + 1)
            if following[2] == length(env, episode) or path[-1] in now.resets:
                break
            path.append(following)
        assert after == (env, episode, step + len(path))
        assert row["discounts"] == pytest.approx(gamma ** len(path))
        returned = sum(gamma**index * reward(each) for index, each in enumerate(path))
        assert row["rewards"] == pytest.approx(returned)
        ended = after[2] == length(env, episode)
        assert row["terminated"] == (ended and episode % 2 == 0)
        assert row["truncated"] == (ended and episode % 2 == 1)
        assert row["actions"] == sum(before) % 3
        assert row["twice"] == {"step": 2 * step}
        if now.masked:
            assert row["action_mask"] == mask([before])[0].tolist()
            # Of tensors, final states have no mask: every action is allowed.
            every = ended and now.tensors and now.mode == "same_step"
            allowed = [True] * 3 if every else mask([after])[0].tolist()
            assert row["next_action_mask"] == allowed
        drawn.add(before)
    return drawn


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("name", WORLDS)
def test_transitions_are_what_happened(name: str, n_step: int, prioritized: bool) -> None:
    now = world(name)
    described = Replay(
        buffer_size=20 * now.num_envs,
        batch_size=20,
        learning_starts=0,
        gradient_steps=25,
        train_freq=4,
        gamma=0.5,
        n_step=n_step,
        prioritized=prioritized,
    )
    feed, other = described.open(now.setting()), described.open(now.setting())
    for number in range(24):
        if number in (9, 10):
            now.reset()
        experience = now.collect([4, 1, 3][number % 3])
        drawn: set[ROW] = set()
        twin = iter(other.take(experience, 1_000 + number) if number > 17 else ())
        for work in feed.take(experience, 1_000 + number):
            drawn |= check(work.batch, now, 0.5, n_step)
            given = {"priority": torch.ones(20)}
            if prioritized:
                given["indices"] = work.batch["indices"]
            feed.learned(work, given)
            if number > 17:
                same = next(twin)
                for column in work.batch:
                    pairs = zip(leaves(work.batch[column]), leaves(same.batch[column]), strict=True)
                    assert all(torch.equal(one, two) for one, two in pairs)
                other.learned(same, given)
        # What is drawn is the newest: the rows of a buffer, of which some only end an episode.
        for rows in now.kept:
            assert set(rows[-8:]) <= drawn
            assert not drawn & set(rows[:-20])
        if number == 17:
            other.set_state(feed.get_state())
    with pytest.raises(RequestError, match="the saved replay buffer has"):
        attrs.evolve(described, buffer_size=999).open(now.setting()).set_state(feed.get_state())


def test_frame_stacks_are_rebuilt_and_hold_no_frame_of_another_episode() -> None:
    space = spaces.Box(0, 255, (3, 1), numpy.uint8)
    now = World(2, masked=False)
    feed = Replay(buffer_size=24, batch_size=16, gradient_steps=9).open(
        now.setting(observation_space=space, frame_stack=3)
    )

    def stacks(at: Any) -> Any:
        """Frames that say environment, episode and step; before an episode, its first."""
        first = at[:, 0] * 100 + at[:, 1] % 8 * 10
        frames = [first + (at[:, 2] - back).clip(0) for back in (2, 1, 0)]
        return numpy.stack(frames, 1)[..., None].astype(numpy.uint8)

    for number in range(30):
        experience = now.collect(1 + number % 3)
        experience.columns["observations"] = stacks(experience.columns["observations"]["at"])
        after = stacks(experience.following["observations"]["at"])
        experience.following = {"observations": after}
        if experience.finals is not None:
            last = stacks(experience.finals.columns["observations"]["at"])
            experience.finals.columns = {"observations": last}
        for work in feed.take(experience, 1_000):
            for name in ("observations", "next_observations"):
                drawn = work.batch.array(name)
                newest = drawn[:, -1, 0].astype(int)
                at = numpy.stack((newest // 100, newest // 10 % 10, newest % 10), 1)
                assert (drawn == stacks(at)).all()


def test_a_mask_in_the_observation_is_that_of_the_final_one_too() -> None:
    space = spaces.Dict(at=spaces.Box(0, 99, (3,)), action_mask=spaces.MultiBinary(3))
    now = World(2)
    feed = Replay(batch_size=64, learning_starts=0).open(now.setting(observation_space=space))
    for step in range(1, 9):
        experience = now.collect(1)
        parts: list[Any] = [experience.columns, experience.following]
        parts += [] if experience.finals is None else [experience.finals.columns]
        for part in parts:
            binary = part.pop("action_mask").astype(numpy.int8)
            part["observations"] = {"at": part["observations"]["at"], "action_mask": binary}
        (work,) = feed.take(experience, step)
        for name, own in (("action_mask", ""), ("next_action_mask", "next_")):
            at = work.batch.array(f"{own}observations")["at"]
            rows: Any = [tuple(map(int, row)) for row in at.tolist()]
            assert (work.batch.array(name) == mask(rows)).all()


def test_updates_begin_after_learning_starts_and_come_as_often_as_asked() -> None:
    feed = Replay(batch_size=4, learning_starts=10, gradient_steps=3).open(World(2).setting())
    now = World(2)
    assert list(feed.take(now.collect(5), 10)) == []
    assert [work.batch.rows for work in feed.take(now.collect(1), 12)] == [4, 4, 4]
    for mode, updates in (("same_step", 6), ("next_step", 5)):
        as_collected = Replay(batch_size=4, learning_starts=0, gradient_steps=-1)
        now = World(2, mode)
        # One of the six steps only resets.
        assert len(list(as_collected.open(now.setting()).take(now.collect(3), 6))) == updates


def test_rewards_and_observations_are_normalised_where_they_are_drawn() -> None:
    box = spaces.Box(0, 9, (1,))
    section = EnvSection(normalize_observation=True, reward_clip=1.0)
    normalization = Normalization(section, box, 1)
    seen = numpy.array([[1.0], [3.0]])
    normalization.absorb(seen, numpy.zeros((2, 1)), numpy.zeros((2, 1), bool))
    feed = Replay(batch_size=50, gamma=0.5, n_step=2).open(
        World().setting(observation_space=box, normalization=normalization)
    )
    (work,) = feed.take(plain(numpy.array([1.0, 3.0]), numpy.array([5.0, 6.0])), 1_000)
    # Mean 2 and spread 1; both rewards are clipped to 1, and the second is added to the first.
    columns = [work.batch[name].flatten().tolist() for name in ("observations", "rewards")]
    assert set(zip(*columns, strict=True)) == {(-1.0, 1.5), (1.0, 1.0)}


def plain(seen: Any, rewards: Any) -> Experience:
    """Steps of one environment without an end."""
    column = seen.astype(numpy.float32)[:, None]
    ends = numpy.zeros(len(seen), bool)
    columns = {"observations": column, "actions": numpy.zeros(len(seen), int), "rewards": rewards}
    columns |= {"terminated": ends, "truncated": ends}
    return Experience(
        columns, steps=len(seen), num_envs=1, following={"observations": column[-1:] + 1}
    )


# -- priorities ---------------------------------------------------------------------------------


def opened(device: Any = None, least: Any = None, **options: Any) -> OpenFeed:
    setting = World().setting(observation_space=spaces.Box(0, 9, (1,)), device=device, least=least)
    known = {"batch_size": 4, "buffer_size": 20, "learning_starts": 0, "gradient_steps": 40}
    exact = {"prioritized": True, "priority_alpha": 1.0, "priority_eps": 0.0}
    return Replay(**{**known, **exact, **options}).open(setting)


def weighted(feed: OpenFeed, priorities: list[float], step: int = 1) -> dict[float, list[float]]:
    """The weights of all drawn rows, by what was observed, after rows got these priorities."""
    device = feed.rows.columns["rewards"]
    experience = plain(numpy.arange(len(priorities)), numpy.zeros(len(priorities)))
    if isinstance(device, torch.Tensor):
        experience.columns = {
            name: torch.from_numpy(column) for name, column in experience.columns.items()
        }
        experience.following = {"observations": torch.ones(1, 1)}
        experience.ends = experience.columns["observations"]
    works = iter(feed.take(experience, step))
    work = next(works)
    errors = torch.tensor(priorities, dtype=torch.float64)
    feed.learned(work, {"indices": torch.arange(len(priorities)), "priority": errors})
    found: dict[float, list[float]] = {}
    for work in works:
        for row, weight in zip(work.batch["observations"], work.batch["weights"], strict=True):
            found.setdefault(row.item(), []).append(weight.item())
    return found


DEVICES = pytest.mark.parametrize("device", [None, torch.device("cpu")], ids=["arrays", "tensors"])


@DEVICES
def test_rows_are_drawn_in_proportion_and_weights_take_back_the_bias(device: Any) -> None:
    found = weighted(opened(device, priority_beta=Schedule(((0, 1.0),))), [0.0, 1.0, -3.0, 4.0])
    # 39 batches of four rows, each of a fourth of the sum.
    drawn = {row: len(weights) for row, weights in found.items()}
    assert drawn[3.0] == 78
    assert drawn[2.0] + drawn[1.0] == 78
    assert 0.0 not in drawn
    # Those of the rarest row of the batch are 1.
    for row, possible in ((1.0, [1.0]), (2.0, [1.0, 1 / 3]), (3.0, [3 / 4, 1 / 4])):
        assert sorted(set(found[row]), reverse=True) == pytest.approx(possible)


@DEVICES
def test_beta_grows_to_one_over_the_run_or_follows_its_schedule(device: Any) -> None:
    for beta, step, expected in (
        (0.5, 1, 0.5),
        (0.5, 10_000, 0.25),
        (Schedule(((0, 0.0), (100, 1.0))), 50, 0.5),
    ):
        found = weighted(opened(device, priority_beta=beta), [1.0, 4.0], step)
        # The rarest row of a batch has 1, the other one a fourth to the power of beta.
        assert set(found[0.0]) == {1.0}
        assert min(found[1.0]) == pytest.approx(expected, abs=1e-3)


def test_weights_are_at_most_1_over_the_rows_of_all_learners() -> None:
    feed = opened(least=lambda own: min(own, 1 / 8), priority_beta=Schedule(((0, 1.0),)))
    found = weighted(feed, [1.0, 3.0])
    # Drawn with 1/4 and 3/4, here; another learner has a row that is drawn with 1/8.
    assert set(found[0.0]) == {0.5}
    assert list(set(found[1.0])) == pytest.approx([1 / 6])


def test_priorities_need_a_loss_that_gives_them() -> None:
    feed = opened()
    work = next(iter(feed.take(plain(numpy.arange(2), numpy.zeros(2)), 1)))
    with pytest.raises(PluginError, match="draws by priority, but the loss gave none"):
        feed.learned(work, {})


# -- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "messages", "hint"),
    [
        ({"buffer_size": 10}, ["buffer_size = 10 is smaller than one batch"], "buffer_size=320"),
        ({"learning_starts": 10_000}, ["learning_starts = 10,000 lies beyond"], "starts=1000"),
        (
            {"buffer_size": 40, "train_freq": 32},
            ["buffer_size = 40 does not hold what 1 environments bring"],
            "buffer_size=64",
        ),
        (
            {"buffer_size": 10, "learning_starts": 10_000},
            ["buffer_size = 10", "--set buffer_size", "learning_starts = 10,000 lies beyond"],
            "starts=1000",
        ),
        ({"buffer_size": 10**12}, ["takes 35 TB, but only", "of memory are left"], "buffer_size="),
    ],
)
def test_what_cannot_work_is_refused_with_the_way_out(
    options: dict[str, Any], messages: list[str], hint: str
) -> None:
    with pytest.raises(RequestError) as raised:
        Replay(**options).open(World().setting())
    assert all(message in str(raised.value) for message in messages)
    assert hint in raised.value.hints[0]


def test_memory_and_spaces_without_a_fixed_size_are_refused() -> None:
    with pytest.raises(RequestError, match="the module has memory"):
        Replay().open(World().setting(has_memory=True))
    for part in (spaces.Text(5), spaces.Sequence(spaces.Discrete(2))):
        with pytest.raises(UnsupportedSpaceError, match="keeps values of a fixed size, found"):
            Replay().open(World().setting(observation_space=spaces.Dict(part=part)))


def test_memory_is_stated_up_front() -> None:
    cartpole = World().setting(observation_space=spaces.Box(-9, 9, (4,)))
    # 16 bytes of observation, 4 of reward, 8 of action, 1 of flags.
    assert Replay().open(cartpole).describe() == "replay buffer of 1,000,000 rows, 29 MB"
    # And 8 of priority, with sums.
    prioritized = Replay(prioritized=True).open(cartpole)
    assert prioritized.describe() == "replay buffer of 1,000,000 rows, 37 MB"
    space = spaces.Box(0, 255, (4, 84, 84), numpy.uint8)
    frames: FeedSetting = World().setting(observation_space=space, frame_stack=4)
    stacked = Replay(buffer_size=100_000).open(frames)
    assert stacked.describe() == "replay buffer of 100,000 rows, 707 MB"
