"""The probes: environments with known optimal actions and values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import gymnasium
import numpy

from rlplug.testing.probes.masked_steps import MaskedNext, NoisyChoice
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
from rlplug.testing.probes.other_actions import (
    BothBits,
    BoxByObservation,
    BoxTarget,
    BoxThenReward,
    TwoChoices,
)

__all__ = ["PROBES", "Answer", "Probe"]


@attrs.frozen(kw_only=True)
class Answer:
    """The optimal action or value of one observation."""

    observation: tuple[float, ...]
    mask: tuple[int, ...] | None = None
    action: Any = None
    """The optimal action; None if it makes no difference."""
    within: float = 0.0
    """How far from it a continuous action may be."""
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
    column: str = ""
    """A column of batches without which there is no answer; empty: there is one without."""
    steps: int = 3_000
    for_variants: bool = False
    """Whether it is solved with each variant of options as well."""
    quick: bool = True
    """Whether it is part of the quick checks."""
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
        likely_cause="the value loss: its sign, its target or its learning rate",
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
        for_variants=True,
        make=RewardByBoth,
        answers=lambda gamma: [
            Answer(observation=(-1.0,), action=0),
            Answer(observation=(1.0,), action=1),
        ],
        likely_cause="observations and actions that do not belong to the same row",
    ),
    Probe(
        name="delayed_reward",
        for_variants=True,
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
        for_variants=True,
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
        for_variants=True,
        make=MaskedBest,
        answers=lambda gamma: [
            Answer(observation=(1.0,), mask=(1, 1, 1), action=2),
            Answer(observation=(1.0,), mask=(1, 1, 0), action=1),
        ],
        likely_cause="masks in acting, or log-probabilities of masked policies in the loss",
    ),
    Probe(
        name="known_best_arm",
        for_variants=True,
        make=KnownBestArm,
        answers=lambda gamma: [Answer(observation=(1.0,), action=2)],
        likely_cause="exploration, or what an arm is credited with",
        steps=5_000,
    ),
    Probe(
        name="masked_next_action",
        make=MaskedNext,
        answers=_first_action(0, 2),
        likely_cause="values of next actions that next_action_mask forbids",
        one_step=False,
        column="next_action_mask",
        steps=5_000,
    ),
    Probe(
        name="noisy_choice",
        make=NoisyChoice,
        answers=_first_action(0, 3),
        likely_cause="which step a reward is credited to: lambda, baselines, off-by-ones",
        one_step=False,
        gamma=0.99,
        steps=6_000,
        quick=False,
    ),
    Probe(
        name="box_target",
        make=BoxTarget,
        answers=lambda gamma: [Answer(observation=(1.0,), action=(2.0,), within=0.4)],
        likely_cause="the sign of the actor's loss, or the scale of actions",
        steps=4_000,
    ),
    Probe(
        name="box_target_by_observation",
        make=BoxByObservation,
        answers=lambda gamma: [
            Answer(observation=(-1.0,), action=(0.0,), within=0.5),
            Answer(observation=(1.0,), action=(2.0,), within=0.5),
        ],
        likely_cause="observations and actions that do not belong to the same row",
        steps=6_000,
        quick=False,
    ),
    Probe(
        name="box_target_one_step_later",
        for_variants=True,
        make=BoxThenReward,
        answers=lambda gamma: [Answer(observation=(1.0, 0.0), action=(2.0,), within=0.6)],
        likely_cause="values of next states, targets, or the actor's gradient through the critic",
        one_step=False,
        steps=8_000,
        quick=False,
    ),
    Probe(
        name="multi_discrete_choices",
        make=TwoChoices,
        answers=lambda gamma: [Answer(observation=(1.0,), action=(1, 2))],
        likely_cause="log-probabilities summed over the parts of an action",
    ),
    Probe(
        name="multi_binary_bits",
        make=BothBits,
        answers=lambda gamma: [Answer(observation=(1.0,), action=(1, 0))],
        likely_cause="log-probabilities summed over the parts of an action",
    ),
)
"""The probes for every algorithm; absent arms and recurrent modules have checks of their own."""
