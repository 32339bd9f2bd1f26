"""The probes: environments with known optimal actions and values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import gymnasium
import numpy

from rlplug.testing.probes.multi_step import (
    DelayedReward,
    DiscountedTwoSteps,
    Ending,
    StayOrLeave,
    TimeLimit,
)
from rlplug.testing.probes.one_step import (
    ConstantReward,
    KnownBestArm,
    MaskedBest,
    RewardByAction,
    RewardByBoth,
    RewardByObservation,
)

__all__ = ["PROBES", "Answer", "Probe"]


@attrs.frozen(kw_only=True)
class Answer:
    """The optimal action or value of one observation."""

    observation: tuple[float, ...]
    mask: tuple[int, ...] | None = None
    action: int | None = None
    """The optimal action; None if it makes no difference."""
    value: float | None = None
    """The optimal value."""
    start: bool = True
    """Whether episodes start there; recurrent modules are tested at no other observation."""


@attrs.frozen(kw_only=True)
class Probe:
    """An environment with known answers, and the likely cause if an algorithm misses them."""

    name: str
    make: Callable[[], gymnasium.Env[Any, Any]]
    answers: Callable[[float], list[Answer]]
    """The answers for a value of gamma."""
    likely_cause: str
    one_step: bool = True
    gamma: float = 0.9
    """The option `gamma` of the run."""
    for_memory: bool = True
    """Whether recurrent modules have an answer; not if it depends on states after a time limit."""
    steps: int = 3_000
    tolerance: float = 0.15
    """Tolerance of values, relative to the largest."""


def _values(*values: float) -> list[Answer]:
    rows = numpy.eye(len(values)).tolist()
    return [
        Answer(observation=tuple(row), value=value, start=index == 0)
        for index, (row, value) in enumerate(zip(rows, values, strict=True))
    ]


def _first_action(action: int, states: int) -> Callable[[float], list[Answer]]:
    first = tuple(numpy.eye(states)[0].tolist())
    return lambda gamma: [Answer(observation=first, action=action)]


PROBES: tuple[Probe, ...] = (
    Probe(
        name="constant_reward",
        make=ConstantReward,
        answers=lambda gamma: [Answer(observation=(1.0,), value=1.0)],
        likely_cause="the value loss, its sign or its learning rate",
    ),
    Probe(
        name="reward_by_observation",
        make=RewardByObservation,
        answers=lambda gamma: [
            Answer(observation=(-1.0,), value=-1.0),
            Answer(observation=(1.0,), value=1.0),
        ],
        likely_cause="observations that do not reach the value: order of rows, encoder, batching",
    ),
    Probe(
        name="discounted_two_steps",
        make=DiscountedTwoSteps,
        answers=lambda gamma: _values(gamma, 1.0),
        likely_cause="discounting, or targets that never follow",
        one_step=False,
        gamma=0.5,
        steps=5_000,
    ),
    Probe(
        name="reward_by_action",
        make=RewardByAction,
        answers=lambda gamma: [Answer(observation=(1.0,), action=1)],
        likely_cause="the sign of the policy's loss, or which action a reward is credited to",
    ),
    Probe(
        name="reward_by_observation_and_action",
        make=RewardByBoth,
        answers=lambda gamma: [
            Answer(observation=(-1.0,), action=0),
            Answer(observation=(1.0,), action=1),
        ],
        likely_cause="observations and actions that do not belong to the same row",
    ),
    Probe(
        name="delayed_reward",
        make=DelayedReward,
        answers=_first_action(1, 3),
        likely_cause="values of the next state: an off-by-one, or a baseline of the wrong row",
        one_step=False,
        steps=5_000,
    ),
    Probe(
        name="time_limit",
        make=TimeLimit,
        answers=lambda gamma: [Answer(observation=(1.0,), value=1.0 / (1.0 - gamma))],
        likely_cause="truncation treated as termination",
        one_step=False,
        for_memory=False,
        steps=8_000,
    ),
    Probe(
        name="ending",
        make=Ending,
        answers=lambda gamma: _values(1 + gamma + gamma**2, 1 + gamma, 1.0),
        likely_cause="bootstrapping through termination",
        one_step=False,
        steps=5_000,
    ),
    Probe(
        name="stay_under_a_time_limit",
        make=partial(StayOrLeave, truncated=True),
        answers=_first_action(0, 2),
        likely_cause="truncation treated as termination",
        one_step=False,
        for_memory=False,
        steps=8_000,
    ),
    Probe(
        name="leave_before_an_end",
        make=partial(StayOrLeave, truncated=False),
        answers=_first_action(1, 2),
        likely_cause="bootstrapping through termination",
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
        likely_cause="masks in acting, or log-probabilities of masked policies in the loss",
    ),
    Probe(
        name="known_best_arm",
        make=KnownBestArm,
        answers=lambda gamma: [Answer(observation=(1.0,), action=2)],
        likely_cause="exploration, or what an arm is credited with",
        steps=5_000,
    ),
)
"""The probes for every algorithm; absent arms and recurrent modules have checks of their own."""
