"""What feeds keep of nested and discrete spaces, masks and extras, and the memory that takes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import attrs
import numpy
import pytest
import torch
from gymnasium import spaces

from rlplug.errors import RequestError, UnsupportedSpaceError
from rlplug.feeds import (
    Experience,
    Feed,
    FeedSetting,
    FinalObservations,
    OpenFeed,
    Replay,
    Rollout,
    Stream,
)
from rlplug.feeds.allocation import (
    allocate,
    available_memory,
    row_bytes,
    to_indices,
)
from rlplug.feeds.ring import RingBuffer
from rlplug.quantities import format_bytes

NESTED = spaces.Dict(
    {
        "near": spaces.Box(-9, 9, (3,), numpy.float64),
        "pair": spaces.Tuple((spaces.Discrete(300), spaces.MultiBinary(2))),
    }
)


def setting(num_envs: int = 1, **changes: Any) -> FeedSetting:
    known = {"observation_space": spaces.Box(0, 9, (1,)), "action_space": spaces.Discrete(2)}
    return FeedSetting(num_envs=num_envs, **{**known, "steps": 10_000, "seed": 0, **changes})


# -- arrays for spaces --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (spaces.Discrete(2), numpy.uint8),
        (spaces.Discrete(256), numpy.uint8),
        (spaces.Discrete(257), numpy.uint16),
        (spaces.Discrete(256, start=1), numpy.uint16),
        (spaces.Discrete(2, start=-2), numpy.int8),
        (spaces.Discrete(2, start=-129), numpy.int16),
        # What begins below zero and goes on above is kept in twice as many bytes as would do.
        (spaces.Discrete(2, start=-1), numpy.int16),
        (spaces.MultiDiscrete([2, 257]), numpy.uint16),
        (spaces.MultiDiscrete([2, 2], start=[-1, 254]), numpy.int16),
        (spaces.MultiBinary(3), numpy.int8),
        (spaces.Box(0, 255, (2,), numpy.uint8), numpy.uint8),
        (spaces.Box(0, 1, (2,), numpy.float32), numpy.float32),
        (spaces.Box(0, 1, (2,), numpy.float64), numpy.float32),
    ],
    ids=str,
)
def test_values_are_kept_in_small_numbers_that_hold_them(space: Any, kind: Any) -> None:
    arrays = allocate(space, 5)
    assert (arrays.dtype, arrays.shape) == (kind, (5, *space.shape))
    assert row_bytes(space) == arrays.nbytes // 5
    if space.dtype == numpy.float64:
        assert allocate(space, 5, double=True).dtype == numpy.float64


def test_nested_spaces_get_arrays_nested_like_them() -> None:
    arrays = allocate(NESTED, 4, double=True)
    assert arrays["near"].shape == (4, 3)
    assert [leaf.shape for leaf in arrays["pair"]] == [(4,), (4, 2)]
    # Three numbers of 8 bytes, one of 2, and two of 1.
    assert row_bytes(NESTED, double=True) == 28
    assert row_bytes(NESTED) == 16
    stacked = spaces.Tuple((spaces.Box(0, 255, (4, 5, 6), numpy.uint8),))
    assert allocate(stacked, 2, frame_stack=4)[0].shape == (2, 5, 6)
    with pytest.raises(UnsupportedSpaceError, match="keeps values of a fixed size, found Sequence"):
        allocate(spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))}), 1)


def test_only_discrete_values_become_indices() -> None:
    column = {
        "near": numpy.ones((2, 3), numpy.float32),
        "pair": (numpy.array([1, 2], numpy.uint16), numpy.ones((2, 2), numpy.int8)),
    }
    made = to_indices(NESTED)(column)
    assert made["near"] is column["near"]
    assert (made["pair"][0].dtype, made["pair"][1].dtype) == (numpy.int64, numpy.int8)
    many = to_indices(spaces.MultiDiscrete([2, 2]))(numpy.ones((2, 2), numpy.uint8))
    assert many.dtype == numpy.int64


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1_000, "1.0 kB"),
        (9_949, "9.9 kB"),
        (10_000, "10 kB"),
        (999_000, "999 kB"),
        (1_500_000, "1.5 MB"),
        (22e9, "22 GB"),
        (3e12, "3.0 TB"),
        (5e15, "5,000 TB"),
    ],
)
def test_sizes_are_said_with_their_unit(size: float, said: str) -> None:
    assert format_bytes(size) == said


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how much is available")
def test_available_memory_is_no_more_than_the_system_has() -> None:
    (total,) = [
        int(line.split()[1]) * 1024
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemTotal:")
    ]
    found = available_memory()
    assert found is not None
    assert total / 1000 < found < total


# -- what replay keeps of them ------------------------------------------------------------------


def nested(numbers: Any) -> dict[str, Any]:
    """Observations that say a number in each of their parts."""
    numbers = numpy.asarray(numbers)
    binary = numpy.stack((numbers % 2, numbers // 2 % 2), 1).astype(numpy.int8)
    return {
        "near": numpy.repeat(numbers[:, None], 3, 1).astype(numpy.float64),
        "pair": (numbers, binary),
    }


@pytest.mark.parametrize("num_envs", [1, 2])
def test_nested_observations_and_extras_come_back_with_their_transition(num_envs: int) -> None:
    described = Replay(buffer_size=400, batch_size=200, n_step=1)
    feed = described.open(setting(num_envs, observation_space=NESTED))
    rows = 4 * num_envs
    numbers = numpy.arange(rows) + 256
    ends = numpy.zeros(rows, bool)
    ends[rows - 1 - num_envs] = True
    experience = Experience(
        {
            "observations": nested(numbers),
            "actions": numbers % 2,
            "rewards": numbers * 1.0,
            "terminated": ends,
            "truncated": numpy.zeros(rows, bool),
            "log_prob": -numbers.astype(numpy.float32),
            "seen": {"twice": numbers * 2},
        },
        steps=4,
        num_envs=num_envs,
        following={"observations": nested(numbers[:num_envs] + rows)},
        finals=FinalObservations(ends.nonzero()[0], {"observations": nested([299])}),
    )
    (work,) = feed.take(experience, 10_000)
    batch = work.batch
    told = batch["observations"]["pair"][0]
    assert set(told.tolist()) == set(numbers.tolist())
    assert told.dtype == torch.int64
    following = batch["next_observations"]["pair"][0]
    last = int(numbers[rows - 1 - num_envs])
    expected = torch.where(told == last, torch.tensor(299), told + num_envs)
    assert torch.equal(following, expected)
    for side, column in ((told, "observations"), (following, "next_observations")):
        assert torch.equal(batch[column]["near"], side[:, None].repeat(1, 3).float())
        both = torch.stack((side % 2, side // 2 % 2), 1)
        assert torch.equal(batch[column]["pair"][1].long(), both)
    assert torch.equal(batch["actions"], told % 2)
    assert torch.equal(batch["rewards"], told.float())
    assert torch.equal(batch["log_prob"], -told.float())
    assert torch.equal(batch["seen"]["twice"], 2 * told)
    assert torch.equal(batch["terminated"], told == last)


def test_a_mask_that_is_a_part_of_the_observation_is_also_one_of_its_own() -> None:
    space = spaces.Dict(
        {"x": spaces.Box(0, 9, (1,), numpy.float32), "action_mask": spaces.MultiBinary(2)}
    )
    feed = Replay(batch_size=50).open(setting(observation_space=space))

    def seen(*numbers: int) -> dict[str, Any]:
        column = numpy.array(numbers, numpy.float32)[:, None]
        # The mask of n allows action n.
        return {"x": column, "action_mask": numpy.eye(2, dtype=numpy.int8)[list(numbers)]}

    experience = Experience(
        {
            "observations": seen(0, 1),
            "actions": numpy.array([0, 1]),
            "rewards": numpy.zeros(2),
            "terminated": numpy.zeros(2, bool),
            "truncated": numpy.zeros(2, bool),
        },
        steps=2,
        num_envs=1,
        following={"observations": seen(0)},
    )
    (work,) = feed.take(experience, 10_000)
    first = work.batch["observations"]["x"][:, 0] == 0
    for rows, mask, later in ((first, [1, 0], [0, 1]), (~first, [0, 1], [1, 0])):
        assert torch.unique(work.batch["action_mask"][rows], dim=0).tolist() == [mask]
        assert torch.unique(work.batch["next_action_mask"][rows], dim=0).tolist() == [later]


# -- descriptions -------------------------------------------------------------------------------


def test_a_feed_must_say_how_it_is_opened_and_what_it_takes() -> None:
    with pytest.raises(TypeError, match="Feed must define open"):
        Feed().open(setting())
    feed = OpenFeed()
    with pytest.raises(TypeError, match="OpenFeed must define take"):
        feed.take(Experience({}, steps=1, num_envs=1), 1)
    assert (feed.describe(), feed.get_state()) == ("", {})
    assert (feed.steps_per_collect, feed.wants_next) == (1, True)
    assert (feed.by_environment, feed.state_interval) == (False, 0)


def test_a_feed_without_options_is_that_of_the_papers() -> None:
    agents = {"global_state": False, "team": False}
    assert attrs.asdict(Replay()) == {
        "buffer_size": 1_000_000,
        "batch_size": 32,
        "learning_starts": 100,
        "train_freq": 1,
        "gradient_steps": 1,
        "gamma": 0.99,
        "n_step": 1,
        "prioritized": False,
        "priority_alpha": 0.6,
        "priority_beta": 0.4,
        "priority_eps": 1e-6,
        **agents,
    }
    assert attrs.asdict(Rollout()) == {
        "n_steps": 2048,
        "batch_size": 64,
        "n_epochs": 1,
        "truncated_bptt": 0,
        **agents,
    }
    stream = {"steps_per_update": 1, "one_step_episodes": False, **agents}
    assert attrs.asdict(Stream()) == stream


@pytest.mark.parametrize(
    ("kind", "name", "lowest"),
    [
        *((Replay, name, 1) for name in ("buffer_size", "batch_size", "train_freq", "n_step")),
        (Replay, "learning_starts", 0),
        (Replay, "gradient_steps", -1),
        *((Rollout, name, 1) for name in ("n_steps", "n_epochs")),
        *((Rollout, name, 0) for name in ("batch_size", "truncated_bptt")),
        (Stream, "steps_per_update", 1),
    ],
)
def test_numbers_below_their_range_are_refused(kind: Any, name: str, lowest: int) -> None:
    assert getattr(kind(**{name: lowest}), name) == lowest
    with pytest.raises(ValueError, match=f"'{name}' must be >= {lowest}"):
        kind(**{name: lowest - 1})


def test_the_memory_of_a_buffer_is_that_of_its_arrays() -> None:
    for double, stack in ((False, 1), (True, 1), (False, 2)):
        frames = spaces.Box(0, 255, (2, 7), numpy.uint8)
        space = frames if stack > 1 else spaces.Box(0, 1, (5,), numpy.float64)
        known = setting(3, observation_space=space, double=double, frame_stack=stack)
        ring = RingBuffer(known, 10)
        # A third of the rows for each environment, and one more or a stack.
        assert (ring.live, ring.rows) == (3, 3 + stack)
        arrays = [*ring.observed.values(), *ring.acted.values(), ring.flags]
        assert RingBuffer.bytes_needed(known, 10) == sum(array.nbytes for array in arrays)


def test_a_buffer_of_another_size_is_no_state_for_this_one() -> None:
    known = RingBuffer(setting(2), 10)
    state = known.get_state()
    for other, size in ((setting(1), 10), (setting(2), 12), (setting(5), 25)):
        with pytest.raises(RequestError, match="the saved replay buffer has 2 environments with 6"):
            RingBuffer(other, size).set_state(state)
    RingBuffer(setting(2), 10).set_state(state)
