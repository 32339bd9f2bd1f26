"""Replay: what is kept, what is drawn, and what a row that spans several steps says."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from gymnasium import spaces

from rlplug import Batch
from rlplug.config import Schedule
from rlplug.config.sections import EnvSection
from rlplug.envs import Normalization
from rlplug.errors import PluginError, RequestError, UnsupportedSpaceError
from rlplug.feeds import Experience, FeedSetting, FinalObservations, Logged, OpenFeed, Replay

BOX = spaces.Box(0, 999, (1,), numpy.float32)
TWO = spaces.Discrete(2)


def setting(num_envs: int = 1, **changes: Any) -> FeedSetting:
    known = {"observation_space": BOX, "action_space": TWO, "steps": 10_000, "seed": 0}
    return FeedSetting(num_envs=num_envs, **{**known, **changes})


def story(
    seen: list[float],
    rewards: list[float],
    ends: dict[int, tuple[str, float]] | None = None,
    *,
    following: float,
    anew: bool = False,
) -> Experience:
    """One environment: what was seen and earned; steps that ended an episode, how, and where."""
    ends = ends or {}
    n = len(seen)
    column = numpy.array(seen, numpy.float32)[:, None]
    places = numpy.array(sorted(ends))
    last = numpy.array([[ends[place][1]] for place in sorted(ends)], numpy.float32)
    return Experience(
        {
            "observations": column,
            "actions": numpy.arange(n) % 2,
            "rewards": numpy.array(rewards),
            "terminated": numpy.array([ends.get(i, ("", 0))[0] == "terminated" for i in range(n)]),
            "truncated": numpy.array([ends.get(i, ("", 0))[0] == "truncated" for i in range(n)]),
        },
        steps=n,
        num_envs=1,
        following={"observations": numpy.array([[following]], numpy.float32)},
        finals=FinalObservations(places, {"observations": last}) if ends else None,
        after_reset=anew,
    )


EPISODES = story(
    [1, 2, 3, 10, 11, 12, 20],
    [1, 2, 4, 8, 16, 32, 64],
    {2: ("terminated", 4), 5: ("truncated", 13)},
    following=21,
)
"""1 2 3 → 4 terminated; 10 11 12 → 13 truncated; 20 → 21 goes on."""


def drawn(feed: OpenFeed, experience: Experience, step: int = 1_000) -> dict[float, dict[str, Any]]:
    """One batch, its rows by what was observed first."""
    (work,) = feed.take(experience, step)
    return rows_of(work.batch)


def rows_of(batch: Batch) -> dict[float, dict[str, Any]]:
    names = [name for name in batch if name not in ("indices", "weights")]
    columns = {name: batch[name].reshape(batch.rows, -1).tolist() for name in names}
    return {
        columns["observations"][row][0]: {name: columns[name][row][0] for name in names}
        for row in range(batch.rows)
    }


def test_single_steps_lead_where_they_led() -> None:
    rows = drawn(Replay(batch_size=200, gamma=0.5).open(setting()), EPISODES)
    assert sorted(rows) == [1, 2, 3, 10, 11, 12, 20]
    led_to = {seen: row["next_observations"] for seen, row in rows.items()}
    assert led_to == {1: 2, 2: 3, 3: 4, 10: 11, 11: 12, 12: 13, 20: 21}
    assert [seen for seen, row in rows.items() if row["terminated"]] == [3]
    assert [seen for seen, row in rows.items() if row["truncated"]] == [12]
    assert {row["discounts"] for row in rows.values()} == {0.5}
    assert rows[11]["rewards"] == 16


def test_three_steps_stop_at_the_end_of_the_episode_and_at_the_newest_step() -> None:
    rows = drawn(Replay(batch_size=200, gamma=0.5, n_step=3).open(setting()), EPISODES)
    told = {
        seen: (row["rewards"], row["next_observations"], row["discounts"])
        for seen, row in rows.items()
    }
    assert told == {
        1: (1 + 0.5 * 2 + 0.25 * 4, 4, 0.125),
        2: (2 + 0.5 * 4, 4, 0.25),
        3: (4, 4, 0.5),
        10: (8 + 0.5 * 16 + 0.25 * 32, 13, 0.125),
        11: (16 + 0.5 * 32, 13, 0.25),
        12: (32, 13, 0.5),
        # Nothing is known beyond 21: it is valued there.
        20: (64, 21, 0.5),
    }
    ended = {seen: (row["terminated"], row["truncated"]) for seen, row in rows.items()}
    assert {ended[seen] for seen in (1, 2, 3)} == {(True, False)}
    assert {ended[seen] for seen in (10, 11, 12)} == {(False, True)}
    assert ended[20] == (False, False)


def test_what_comes_later_lengthens_rows_that_were_short() -> None:
    feed = Replay(batch_size=200, gamma=0.5, n_step=3).open(setting())
    drawn(feed, EPISODES)
    rows = drawn(feed, story([21, 22], [128, 256], following=23))
    assert rows[20]["rewards"] == 64 + 0.5 * 128 + 0.25 * 256
    assert (rows[20]["next_observations"], rows[20]["discounts"]) == (23, 0.125)
    # 22 is the newest that was acted on: rows before it stop there.
    assert rows[21]["rewards"] == 128 + 0.5 * 256
    assert (rows[21]["next_observations"], rows[21]["discounts"]) == (23, 0.25)


def test_the_oldest_rows_make_room_for_the_newest() -> None:
    described = Replay(buffer_size=4, batch_size=4, gradient_steps=20, gamma=0.5)
    feed = described.open(setting())
    for start in range(0, 100, 2):
        rows: dict[float, dict[str, Any]] = {}
        for work in feed.take(
            story([start, start + 1], [1, 1], following=start + 2), 1_000 + start
        ):
            rows.update(rows_of(work.batch))
        assert sorted(rows) == [seen for seen in range(start - 2, start + 2) if seen >= 0]
        assert all(row["next_observations"] == seen + 1 for seen, row in rows.items())


def test_episodes_that_began_anew_do_not_join_those_before() -> None:
    feed = Replay(batch_size=200, gamma=0.5, n_step=3).open(setting())
    drawn(feed, EPISODES)
    rows = drawn(feed, story([50, 51], [1, 1], following=52, anew=True))
    # 21 was seen, but nothing was done there.
    assert sorted(rows) == [1, 2, 3, 10, 11, 12, 20, 50, 51]
    assert (rows[20]["next_observations"], rows[20]["rewards"]) == (21, 64)
    assert (rows[20]["terminated"], rows[20]["truncated"]) == (False, False)


def test_every_transition_is_drawn_equally_often() -> None:
    feed = Replay(batch_size=7_000).open(setting())
    (work,) = feed.take(EPISODES, 1_000)
    counts = torch.unique(work.batch["observations"], return_counts=True)[1]
    # Seven rows, 1,000 expected each, standard deviation 29.
    assert counts.min() > 1_000 - 5 * 29
    assert counts.max() < 1_000 + 5 * 29


def test_transitions_of_all_environments_are_drawn_equally_often() -> None:
    feed = Replay(buffer_size=8_000, batch_size=8_000).open(setting(num_envs=2))
    ended = numpy.array([False, False, True, False, True, False, False, False])
    columns = {
        "observations": numpy.arange(8, dtype=numpy.float32)[:, None],
        "actions": numpy.zeros(8, numpy.int64),
        "rewards": numpy.zeros(8),
        "terminated": ended,
        "truncated": numpy.zeros(8, bool),
    }
    following = {"observations": numpy.array([[8], [9]], numpy.float32)}
    (work,) = feed.take(Experience(columns, steps=4, num_envs=2, following=following), 1_000)
    seen, counts = torch.unique(work.batch["observations"], return_counts=True)
    assert seen.tolist() == list(range(8))
    # 1,000 expected each, standard deviation 30.
    assert counts.min() > 1_000 - 5 * 30
    assert counts.max() < 1_000 + 5 * 30


@pytest.mark.parametrize(
    "space", [spaces.Discrete(200, start=100), spaces.MultiDiscrete([200], start=[100])], ids=str
)
def test_actions_that_do_not_start_at_zero_are_kept_as_they_are(space: Any) -> None:
    experience = story([1, 2], [0, 0], following=3)
    # The highest does not fit into a byte, how many there are does.
    experience.columns["actions"] = numpy.array([100, 299]).reshape(2, *space.shape)
    rows = drawn(Replay(batch_size=50).open(setting(action_space=space)), experience)
    assert {seen: row["actions"] for seen, row in rows.items()} == {1: 100, 2: 299}


def test_environments_share_the_buffer_and_keep_apart() -> None:
    described = Replay(buffer_size=8, batch_size=8, gradient_steps=20, n_step=2, gamma=0.5)
    feed = described.open(setting(num_envs=2))
    for start in range(0, 40, 2):
        columns = {
            # In the order of time: environment 0 counts from 0, environment 1 from 500.
            "observations": numpy.array(
                [[start], [500 + start], [start + 1], [501 + start]], numpy.float32
            ),
            "actions": numpy.zeros(4, numpy.int64),
            "rewards": numpy.array([1.0, 10.0, 1.0, 10.0]),
            "terminated": numpy.zeros(4, bool),
            "truncated": numpy.zeros(4, bool),
        }
        following = {"observations": numpy.array([[start + 2], [502 + start]], numpy.float32)}
        experience = Experience(columns, steps=2, num_envs=2, following=following)
        rows: dict[float, dict[str, Any]] = {}
        for work in feed.take(experience, 1_000 + start):
            rows.update(rows_of(work.batch))
        # Four live rows each, of which the newest leads one step ahead.
        newest = [start + 1, start + 501]
        assert len(rows) == (8 if start else 4)
        for seen, row in rows.items():
            spanned = row["next_observations"] - seen
            assert spanned == (1 if seen in newest else 2)
            assert row["rewards"] == (1 if seen < 500 else 10) * (1.5 if spanned == 2 else 1)


def test_stacks_of_frames_are_rebuilt_and_hold_no_frame_of_another_episode() -> None:
    space = spaces.Box(0, 255, (3, 1), numpy.uint8)
    feed = Replay(buffer_size=8, batch_size=8, gradient_steps=9).open(
        setting(observation_space=space, frame_stack=3)
    )

    def stacks(*frames: int) -> Any:
        return numpy.array([[frames[0]], [frames[1]], [frames[2]]], numpy.uint8)

    seen: dict[int, list[int]] = {}
    last = 0
    for episode in range(12):
        first = 10 * episode
        now = stacks(first, first, first)
        for step in range(4):
            frame = first + step + 1
            then = numpy.concatenate((now[1:], stacks(frame, frame, frame)[:1]))
            ends = step == 3
            fresh = stacks(first + 10, first + 10, first + 10)
            experience = Experience(
                {
                    "observations": now[None],
                    "actions": numpy.zeros(1, numpy.int64),
                    "rewards": numpy.zeros(1),
                    "terminated": numpy.array([ends]),
                    "truncated": numpy.zeros(1, bool),
                },
                steps=1,
                num_envs=1,
                following={"observations": (fresh if ends else then)[None]},
                finals=FinalObservations(numpy.array([0]), {"observations": then[None]})
                if ends
                else None,
            )
            seen[first + step] = now[:, 0].tolist()
            seen[frame] = then[:, 0].tolist()
            for work in feed.take(experience, 1_000):
                assert work.batch["observations"].dtype == torch.uint8
                for name in ("observations", "next_observations"):
                    for stack in work.batch[name][:, :, 0].tolist():
                        assert stack == seen[stack[-1]]
                        last = max(last, stack[-1])
            now = then
    assert last == 114


def test_updates_begin_after_learning_starts_and_come_as_often_as_asked() -> None:
    described = Replay(batch_size=4, learning_starts=10, gradient_steps=3)
    feed = described.open(setting())
    assert list(feed.take(EPISODES, 10)) == []
    assert [work.batch.rows for work in feed.take(EPISODES, 11)] == [4, 4, 4]
    as_collected = Replay(batch_size=4, learning_starts=0, gradient_steps=-1).open(setting())
    assert len(list(as_collected.take(EPISODES, 7))) == 7


def test_one_update_per_step_counts_the_steps_of_all_environments() -> None:
    described = Replay(batch_size=4, learning_starts=0, gradient_steps=-1)
    column = numpy.arange(6, dtype=numpy.float32)[:, None]
    three_of_two = Experience(
        {
            "observations": column,
            "actions": numpy.zeros(6, numpy.int64),
            "rewards": numpy.zeros(6),
            "terminated": numpy.zeros(6, bool),
            "truncated": numpy.zeros(6, bool),
        },
        steps=3,
        num_envs=2,
        following={"observations": column[:2] + 6},
    )
    assert len(list(described.open(setting(2)).take(three_of_two, 6))) == 6


def test_rewards_of_all_steps_and_both_observations_are_normalised_where_they_are_drawn() -> None:
    section = EnvSection(normalize_observation=True, reward_clip=1.0)
    normalization = Normalization(section, BOX, 1)
    normalization.absorb(
        numpy.array([[1.0], [3.0]]), numpy.zeros((2, 1)), numpy.zeros((2, 1), bool)
    )
    feed = Replay(batch_size=50, gamma=0.5, n_step=2).open(setting(normalization=normalization))
    rows = drawn(feed, story([1, 3], [5, 6], following=5))
    # Mean 2 and spread 1; both rewards are clipped to 1.
    assert sorted(rows) == pytest.approx([-1, 1])
    assert [row["next_observations"] for row in rows.values()] == pytest.approx([3, 3])
    assert sorted(row["rewards"] for row in rows.values()) == [1, 1.5]


def test_masks_from_infos_are_kept_for_the_next_observation_too() -> None:
    experience = Experience(
        {
            "observations": numpy.array([[1.0], [2.0]], numpy.float32),
            "actions": numpy.zeros(2, numpy.int64),
            "rewards": numpy.zeros(2),
            "terminated": numpy.zeros(2, bool),
            "truncated": numpy.zeros(2, bool),
            "action_mask": numpy.array([[True, False], [False, True]]),
        },
        steps=2,
        num_envs=1,
        following={
            "observations": numpy.array([[3.0]], numpy.float32),
            "action_mask": numpy.array([[True, True]]),
        },
    )
    (work,) = Replay(batch_size=50).open(setting()).take(experience, 1_000)
    batch = work.batch
    first = batch["observations"][:, 0] == 1.0
    assert torch.unique(batch["action_mask"][first], dim=0).tolist() == [[True, False]]
    assert torch.unique(batch["next_action_mask"][first], dim=0).tolist() == [[False, True]]
    assert torch.unique(batch["next_action_mask"][~first], dim=0).tolist() == [[True, True]]


def test_a_buffer_that_was_saved_goes_on_with_the_same_draws() -> None:
    described = Replay(buffer_size=10, batch_size=6, n_step=2, prioritized=True)
    feeds = [described.open(setting()) for _ in range(2)]
    for work in feeds[0].take(EPISODES, 1_000):
        feeds[0].learned(work, {"indices": work.batch["indices"], "priority": torch.arange(6.0)})
    feeds[1].set_state(feeds[0].get_state())
    later = story([21, 22], [1, 2], following=23)
    one, other = (next(iter(feed.take(later, 2_000))).batch for feed in feeds)
    for name in one:
        assert torch.equal(one[name], other[name])
    with pytest.raises(RequestError, match="has 1 environments with 11 rows each"):
        Replay(buffer_size=20, batch_size=6).open(setting()).set_state(feeds[0].get_state())


def test_a_buffer_is_saved_with_the_step_up_to_which_it_has_learned() -> None:
    described = Replay(buffer_size=10, batch_size=6)
    feed = described.open(setting())
    assert feed.get_state()["step"] == 0
    drawn(feed, EPISODES)
    other = described.open(setting())
    other.set_state(feed.get_state())
    assert other.get_state()["step"] == feed.get_state()["step"] > 0


def test_the_newest_observation_is_saved_for_the_row_that_leads_there() -> None:
    described = Replay(buffer_size=200, batch_size=200)
    saved, restored = described.open(setting()), described.open(setting())
    drawn(saved, EPISODES)
    drawn(restored, story([900] * 250, [0] * 250, following=900))
    restored.set_state(saved.get_state())
    # A resumed run resets its environments: nothing is written over what 20 led to.
    rows = drawn(restored, story([50], [1], following=51, anew=True))
    assert sorted(rows) == [1, 2, 3, 10, 11, 12, 20, 50]
    assert rows[20]["next_observations"] == 21


def test_priorities_need_a_loss_that_gives_them() -> None:
    feed = Replay(batch_size=4, prioritized=True).open(setting())
    (work,) = feed.take(EPISODES, 1_000)
    with pytest.raises(PluginError, match="draws by priority, but the loss gave none"):
        feed.learned(work, {})


@pytest.mark.parametrize(
    ("options", "said", "hint"),
    [
        ({"buffer_size": 10}, "buffer_size = 10 is smaller than one batch", "buffer_size=320"),
        ({"learning_starts": 10_000}, "lies beyond the run, which takes 10,000", "starts=1000"),
        (
            {"buffer_size": 40, "train_freq": 32},
            "does not hold what 1 environments bring",
            "buffer_size=64",
        ),
        ({"buffer_size": 10**12}, r"takes 10 TB, but only .* of memory are left", "buffer_size="),
    ],
)
def test_what_cannot_work_is_refused_with_the_way_out(
    options: dict[str, Any], said: str, hint: str
) -> None:
    with pytest.raises(RequestError, match=said) as raised:
        Replay(**options).open(setting())
    assert hint in raised.value.hints[0]


def test_all_numbers_that_cannot_work_are_refused_at_once() -> None:
    with pytest.raises(RequestError) as raised:
        Replay(buffer_size=10, learning_starts=10_000).open(setting())
    lines = str(raised.value).splitlines()
    assert [line.split(" = ")[0] for line in lines[::2]] == ["buffer_size", "learning_starts"]
    assert [line.split(" --set ")[0] for line in lines[1::2]] == ["  try:", "  try:"]


def test_memory_and_spaces_without_a_fixed_size_are_refused() -> None:
    with pytest.raises(RequestError, match="the module has memory"):
        Replay().open(setting(has_memory=True))
    with pytest.raises(UnsupportedSpaceError, match="keeps values of a fixed size, found Text"):
        Replay().open(setting(observation_space=spaces.Text(5)))


def test_memory_is_stated_up_front() -> None:
    cartpole = spaces.Box(-9, 9, (4,), numpy.float32)
    feed = Replay(buffer_size=1_000_000).open(setting(observation_space=cartpole))
    # 16 bytes of observation, 4 of reward, 1 of action, 1 of flags.
    assert feed.describe() == "replay buffer of 1,000,000 rows, 22 MB"
    frames = spaces.Box(0, 255, (4, 84, 84), numpy.uint8)
    stacked = Replay(buffer_size=100_000).open(setting(observation_space=frames, frame_stack=4))
    assert stacked.describe() == "replay buffer of 100,000 rows, 706 MB"


def test_beta_grows_to_one_over_the_run_or_follows_its_schedule() -> None:
    def weights(beta: float | Schedule, step: int) -> list[float]:
        feed = Replay(
            batch_size=2,
            prioritized=True,
            priority_alpha=1.0,
            priority_beta=beta,
            priority_eps=0.0,
            learning_starts=0,
            gradient_steps=50,
        ).open(setting())
        work = next(feed.take(story([1, 2], [0, 0], following=3), 1))
        given = {"indices": torch.tensor([0, 1]), "priority": torch.tensor([1.0, 4.0])}
        feed.learned(work, given)
        for work in feed.take(story([3], [0], following=4), step):
            if 1.0 in work.batch["observations"][:, 0].tolist():
                return sorted(work.batch["weights"].tolist())
        raise AssertionError("a ninth of all draws was never drawn")

    # The new row has the highest priority so far, 4, as row 2 has: row 1 is 4 times as rare.
    assert weights(0.5, 1) == pytest.approx([0.5, 1.0], abs=1e-3)
    assert weights(0.5, 10_000) == pytest.approx([0.25, 1.0])
    assert weights(Schedule(((0, 0.0), (100, 1.0))), 50) == pytest.approx([0.5, 1.0])


@pytest.mark.parametrize(("double", "dtype"), [(False, torch.float32), (True, torch.float64)])
def test_rows_of_a_log_are_as_precise_as_the_learner(double: bool, dtype: torch.dtype) -> None:
    feed = Logged(wants_next=True, gamma=0.9).open(setting(double=double))
    (work,) = feed.take(story([1.0, 2.0], [0.1, 0.2], following=3.0), 0)
    assert work.batch["rewards"].dtype == work.batch["discounts"].dtype == dtype
    assert torch.equal(work.batch["discounts"], torch.tensor([0.9, 0.9], dtype=dtype))
    assert work.batch["actions"].dtype == torch.int64
