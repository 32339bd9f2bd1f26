"""What a probe asks: actions and values at some observations, with exact answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import gymnasium
import numpy

from rlplug.testing.probes.bandits import KnownBestArm
from rlplug.testing.probes.long import (
    DelayedReward,
    DiscountedTwoSteps,
    Ending,
    StayOrLeave,
    TimeLimit,
)
from rlplug.testing.probes.one_step import (
    ConstantReward,
    MaskedBest,
    RewardByAction,
    RewardByBoth,
    RewardByObservation,
)

__all__ = ["PROBES", "Answer", "Probe"]


@attrs.frozen(kw_only=True)
class Answer:
    """What is right at one observation."""

    observation: tuple[float, ...]
    mask: tuple[int, ...] | None = None
    action: int | None = None
    """The best action; None if all are the same."""
    value: float | None = None
    """The best return from there."""
    start: bool = True
    """Whether episodes start there: what has a memory is asked nothing else."""


@attrs.frozen(kw_only=True)
class Probe:
    """An environment with exact answers, and what it tells if they are missed."""

    name: str
    make: Callable[[], gymnasium.Env[Any, Any]]
    answers: Callable[[float], list[Answer]]
    """Given gamma."""
    meaning: str
    """What is likely to be wrong."""
    one_step: bool = True
    gamma: float = 0.9
    """What the option `gamma` is set to."""
    for_memory: bool = True
    """False if what a memory holds at a time limit is never seen again: then it has no answer."""
    steps: int = 3_000
    tolerance: float = 0.15
    """How far values may be off, relative to the largest."""


def _states(*values: float) -> list[Answer]:
    rows = numpy.eye(len(values)).tolist()
    return [
        Answer(observation=tuple(row), value=value, start=index == 0)
        for index, (row, value) in enumerate(zip(rows, values, strict=True))
    ]


def _chosen(action: int, states: int) -> Callable[[float], list[Answer]]:
    first = tuple(numpy.eye(states)[0].tolist())
    return lambda gamma: [Answer(observation=first, action=action)]


PROBES: tuple[Probe, ...] = (
    Probe(
        name="constant_reward",
        make=ConstantReward,
        answers=lambda gamma: [Answer(observation=(1.0,), value=1.0)],
        meaning="the value loss, its sign or its step size",
    ),
    Probe(
        name="reward_by_observation",
        make=RewardByObservation,
        answers=lambda gamma: [
            Answer(observation=(-1.0,), value=-1.0),
            Answer(observation=(1.0,), value=1.0),
        ],
        meaning="observations on their way to the value: order of rows, encoder, batching",
    ),
    Probe(
        name="discounted_two_steps",
        make=DiscountedTwoSteps,
        answers=lambda gamma: _states(gamma, 1.0),
        meaning="discounting, or targets that never follow",
        one_step=False,
        gamma=0.5,
        steps=5_000,
    ),
    Probe(
        name="reward_by_action",
        make=RewardByAction,
        answers=lambda gamma: [Answer(observation=(1.0,), action=1)],
        meaning="the sign of the policy's loss, or which action a reward is credited to",
    ),
    Probe(
        name="reward_by_observation_and_action",
        make=RewardByBoth,
        answers=lambda gamma: [
            Answer(observation=(-1.0,), action=0),
            Answer(observation=(1.0,), action=1),
        ],
        meaning="observations and actions that do not belong to the same row",
    ),
    Probe(
        name="delayed_reward",
        make=DelayedReward,
        answers=_chosen(1, 3),
        meaning="values of the next state: an off-by-one, or a baseline of the wrong row",
        one_step=False,
        steps=5_000,
    ),
    Probe(
        name="time_limit",
        make=TimeLimit,
        answers=lambda gamma: [Answer(observation=(1.0,), value=1.0 / (1.0 - gamma))],
        meaning="truncation treated as termination",
        one_step=False,
        for_memory=False,
        steps=8_000,
    ),
    Probe(
        name="ending",
        make=Ending,
        answers=lambda gamma: _states(1 + gamma + gamma**2, 1 + gamma, 1.0),
        meaning="bootstrapping through termination",
        one_step=False,
        steps=5_000,
    ),
    Probe(
        name="stay_under_a_time_limit",
        make=partial(StayOrLeave, truncated=True),
        answers=_chosen(0, 2),
        meaning="truncation treated as termination",
        one_step=False,
        for_memory=False,
        steps=8_000,
    ),
    Probe(
        name="leave_before_an_end",
        make=partial(StayOrLeave, truncated=False),
        answers=_chosen(1, 2),
        meaning="bootstrapping through termination",
        one_step=False,
        steps=5_000,
    ),
    Probe(
        name="masked_best_action",
        make=MaskedBest,
        answers=lambda gamma: [
            Answer(observation=(1.0,), mask=(1, 1, 1), action=2),
            Answer(observation=(1.0,), mask=(1, 1, 0), action=1),
        ],
        meaning="masks in acting, or log-probabilities of masked policies in the loss",
    ),
    Probe(
        name="known_best_arm",
        make=KnownBestArm,
        answers=lambda gamma: [Answer(observation=(1.0,), action=2)],
        meaning="exploration, or what an arm is credited with",
        steps=5_000,
    ),
)
"""The probes that every algorithm is tried on; absent arms and memory have checks of their own."""
