"""One environment writes stretches of rows, several write them scattered: to the same place."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy
import pytest
import torch
from gymnasium import spaces

from rlplug.feeds import Experience, FeedSetting, FinalObservations
from rlplug.feeds.ring import RingBuffer
from rlplug.feeds.tensor_ring import TensorRing

SEEN = spaces.Dict({"place": spaces.Box(0, 9999, (2,)), "kind": spaces.Discrete(9)})


def ring(size: int) -> RingBuffer:
    return RingBuffer(
        FeedSetting(
            observation_space=SEEN,
            action_space=spaces.Discrete(3),
            num_envs=1,
            steps=1_000,
            seed=0,
        ),
        size,
    )


def seen(random: numpy.random.Generator, n: int) -> dict[str, Any]:
    return {"place": random.integers(9999, size=(n, 2)), "kind": random.integers(9, size=n)}


def happened(random: numpy.random.Generator, steps: int, anew: bool) -> Experience:
    """Some steps, of which some end their episodes one way or the other."""
    ends = random.random(steps)
    places = numpy.flatnonzero(ends < 0.3)
    return Experience(
        {
            "observations": seen(random, steps),
            "actions": random.integers(3, size=steps),
            "rewards": random.random(steps),
            "terminated": ends < 0.2,
            "truncated": (ends >= 0.2) & (ends < 0.3),
            "drawn": random.random((steps, 1)),
        },
        steps=steps,
        num_envs=1,
        following={"observations": seen(random, 1)},
        finals=FinalObservations(places, {"observations": seen(random, len(places))})
        if len(places)
        else None,
        after_reset=anew,
    )


@pytest.mark.parametrize("size", [12, 13, 50], ids=str)
def test_stretches_lie_where_scattered_rows_would(size: int) -> None:
    random = numpy.random.default_rng(size)
    one, other = ring(size), ring(size)
    other._add_slices = other._add_scattered  # type: ignore[method-assign]
    for number in range(40):
        experience = happened(random, int(random.integers(1, 6)), number % 7 == 3)
        before = one.add(experience)
        assert before.tolist() == other.add(experience).tolist()
        assert one.heads.tolist() == other.heads.tolist()
        fresh, _ = one.changed(before)
        assert len(set(fresh.tolist())) == experience.steps
        live = (one.heads[0] - 1 - numpy.arange(min(one.heads[0], one.live))) % one.rows
        assert (one.flags[live] == other.flags[live]).all()
        for name in ("actions", "rewards", "drawn"):
            kept = live[(one.flags[live] & 4) == 0]
            assert (one.acted[name][kept] == other.acted[name][kept]).all()
        for name in ("place", "kind"):
            shown = [*live, one.heads[0] % one.rows]
            mine, others = one.observed["observations"][name], other.observed["observations"][name]
            assert (mine[shown] == others[shown]).all()


def test_rows_from_before_a_number_was_told_say_that_it_is_unknown() -> None:
    random = numpy.random.default_rng(0)
    kept = ring(50)
    first, second = (happened(random, 4, False) for _ in range(2))
    columns = {name: one for name, one in first.columns.items() if name != "drawn"}
    kept.add(dataclasses.replace(first, columns=columns))
    kept.add(second)
    copied = kept.copy_rows(0, 0, int(kept.heads[0]))["acted"]["drawn"]
    assert numpy.isnan(copied).any()
    assert sorted(set(second.columns["drawn"].ravel()) - set(copied.ravel())) == []
    assert not (copied == 1).any()


@pytest.mark.parametrize(
    ("width", "size", "block"),
    [
        # At least 16 rows; a sixteenth of all; as many as 4 MiB hold, of rows of 200,019 bytes or,
        # on a device, where next observations are kept beside, of about as many.
        (1, 100, 16),
        (1, 1_000, 62),
        (25_000, 1_000, 20),
    ],
)
@pytest.mark.parametrize("device", [None, "cpu"])
def test_rows_are_saved_in_blocks_neither_small_nor_larger_than_need_be(
    width: int, size: int, block: int, device: str | None
) -> None:
    setting = FeedSetting(
        observation_space=spaces.Box(0, 1, (width if device else 2 * width,)),
        action_space=spaces.Discrete(3),
        num_envs=1,
        steps=10_000,
        seed=0,
        device=None if device is None else torch.device(device),
    )
    made = RingBuffer(setting, size) if device is None else TensorRing(setting, size, 0.9, 1)
    assert made.block == block
    assert isinstance(made.block, int)
