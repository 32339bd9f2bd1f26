"""What environments return, checked: numbers, final observations, masks and absent arms."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import gymnasium
import numpy
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from rlplug import Acted, ActInput, Module
from rlplug.envs import Environments
from rlplug.envs.sync import SyncVector
from rlplug.errors import EnvironmentFailedError
from rlplug.sampling.checks import EnvironmentChecks, first_fully_masked
from tests.collecting import collector


class Zero(Module):
    def forward_exploration(self, act: ActInput) -> Acted:
        return Acted(numpy.zeros(len(act.observations), dtype=numpy.int64))


class Plain(gymnasium.Env[Any, Any]):
    """Shows the second of two numbers in double precision."""

    observation_space = gymnasium.spaces.Box(-numpy.inf, numpy.inf, (2,), numpy.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return numpy.zeros(2), {}


def checks(num_envs: int = 2) -> EnvironmentChecks:
    return EnvironmentChecks("Plain", num_envs, Plain.action_space)


def said(check: Any, *arguments: Any) -> str:
    with pytest.raises(EnvironmentFailedError) as raised:
        check(*arguments)
    return raised.value.message


def test_numbers_beyond_single_precision_are_refused_also_where_only_their_squares_are() -> None:
    check = partial(checks(3).check, "an observation")
    limit = "gave an observation that is too large for 32 bits after 6 steps."
    check(numpy.array([[9e37, 0.0], [0.0, 1.0], [0.0, -1.0]]), 6)
    # Each is below 1e38; of 8e37, 9e37 and 7e37 the second is the largest.
    close = numpy.array([[8e37, 0.0], [0.0, -9e37], [7e37, 0.0]])
    assert said(check, close, 6) == f"environment 'Plain' (2 of 3) {limit}"
    beyond = numpy.array([[9e37, 0.0], [0.0, 0.0], [0.0, -2e38]])
    assert said(check, beyond, 6) == f"environment 'Plain' (3 of 3) {limit}"


@pytest.mark.parametrize("kind", [numpy.float16, numpy.float32, numpy.float64])
@pytest.mark.parametrize("bad", [numpy.nan, numpy.inf, -numpy.inf])
def test_numbers_that_are_not_finite_are_refused_in_every_precision(kind: Any, bad: float) -> None:
    check = partial(checks().check, "an observation")
    # Arrays of different sizes and precisions share a checker.
    for shape in ((2, 2), (2, 3)):
        for other in (numpy.float16, numpy.float32, numpy.float64):
            check(numpy.ones(shape, other), 0)
    seen = numpy.ones((2, 2), kind)
    seen[1, 0] = bad
    assert said(check, seen, 8) == (
        "environment 'Plain' (2 of 2) gave an observation that is not a finite number after 8 "
        "steps."
    )
    check(numpy.full((2, 2), 3), 0)


def test_arms_that_are_absent_may_hold_anything() -> None:
    check = partial(checks().check, "an observation")
    arms = numpy.ones((2, 3, 4), numpy.float32)
    arms[1, 2] = numpy.nan
    context = numpy.ones((2, 5), numpy.float32)
    present = numpy.array([[1, 1, 1], [1, 1, 0]], bool)
    check({"arms": arms, "action_mask": present, "context": context}, 0)
    bad = "gave an observation that is not a finite number after 4 steps."
    there = {"arms": arms, "action_mask": numpy.ones((2, 3), bool), "context": context}
    assert said(check, there, 4) == f"environment 'Plain' (2 of 2) {bad}"
    # Without a mask, or with one of another size, no arm is known to be absent.
    assert bad in said(check, {"arms": arms, "context": context}, 4)
    assert bad in said(check, {"arms": arms, "action_mask": present[:, :2]}, 4)
    # What is no arm is never absent.
    context[0, 1] = numpy.inf
    assert said(check, {"arms": arms, "action_mask": present, "context": context}, 4) == (
        f"environment 'Plain' (1 of 2) {bad}"
    )


def test_the_first_row_without_a_choice_is_found() -> None:
    assert first_fully_masked(numpy.array([[1, 0], [0, 1]])) is None
    assert first_fully_masked(numpy.array([[1, 0], [0, 0], [0, 0]])) == 1


def test_masks_are_opened_only_where_an_environment_resets() -> None:
    check = checks(3).check_mask
    mask = numpy.array([[0, 0], [0, 1], [0, 1]], numpy.int8)
    opened = check(mask, numpy.array([True, True, False]), 0)
    assert opened.tolist() == [[1, 1], [0, 1], [0, 1]]
    # The environment's own array stays as it is.
    assert mask.tolist() == [[0, 0], [0, 1], [0, 1]]
    assert check(mask[1:], None, 0) is not opened
    closed = "(1 of 3) gave an action mask that forbids every action after 1,234 steps."
    assert closed in said(check, mask, numpy.array([False, True, True]), 1234)
    assert closed in said(check, mask, None, 1234)


@pytest.mark.parametrize(
    ("mask", "found"),
    [
        (numpy.array([["a", "b"]] * 2), "of <U1, expected booleans,"),
        (numpy.array([[1.0, numpy.nan]] * 2), "with numbers that are neither true nor false"),
        (numpy.ones((2, 3), bool), "of shape (3,), expected (2,),"),
        (numpy.ones((2, 1, 2), bool), "of shape (1, 2), expected (2,),"),
    ],
)
def test_a_mask_of_another_kind_is_refused(mask: Any, found: str) -> None:
    message = f"environment 'Plain' gave an action mask {found} after 3 steps."
    assert said(checks().check_mask, mask, None, 3) == message


@pytest.mark.parametrize("kind", [bool, numpy.int64, numpy.uint8, numpy.float32])
def test_a_mask_may_be_of_numbers(kind: Any) -> None:
    mask = numpy.array([[1, 0], [0, 1]]).astype(kind)
    assert checks().check_mask(mask, None, 0) is mask


class Breaks(Plain):
    """Gives one bad number in the step that it is told, and ends episodes after three."""

    def __init__(self, what: str, at: int) -> None:
        self.what, self.at, self.taken = what, at, 0

    def step(self, action: Any) -> Any:
        self.taken += 1
        here = self.taken == self.at
        seen = numpy.full(2, numpy.nan if here and self.what == "observation" else 0.0)
        reward = numpy.nan if here and self.what == "reward" else 0.0
        return seen, reward, False, self.taken % 3 == 0, {}


@pytest.mark.parametrize("by_environment", [False, True])
@pytest.mark.parametrize(
    ("what", "at", "found"),
    [
        ("reward", 2, "a reward that is not a finite number after 104 steps."),
        ("reward", 4, "a reward that is not a finite number after 108 steps."),
        ("observation", 2, "an observation that is not a finite number after 104 steps."),
        ("observation", 3, "a final observation that is not a finite number after 106 steps."),
        ("observation", 5, "an observation that is not a finite number after 110 steps."),
    ],
)
def test_a_bad_number_of_a_rollout_is_that_of_the_earliest_step(
    what: str, at: int, found: str, by_environment: bool
) -> None:
    # In both environments, in the first one step later.
    vector = SyncVector([lambda: Breaks(what, at + 3), lambda: Breaks(what, at)])
    environments = Environments(vector, "Breaks", AutoresetMode.SAME_STEP)
    made = collector(environments, Zero(), seed=0, steps=6, by_environment=by_environment)
    made.start()
    assert said(made.collect, 100) == f"environment 'Breaks' (2 of 2) gave {found}"


class Odd(VectorEnv[Any, Any, Any]):
    """A vector of one's own that returns ends of another kind."""

    num_envs = 2
    single_observation_space = Plain.observation_space
    single_action_space = Plain.action_space
    observation_space = batch_space(single_observation_space, 2)
    action_space = batch_space(single_action_space, 2)
    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return numpy.zeros((2, 2)), {}

    def step(self, actions: Any) -> Any:
        return numpy.zeros((2, 2)), numpy.zeros(2), numpy.full(2, 0.5), numpy.zeros(2, bool), {}


def test_ends_that_are_no_booleans_are_refused_by_vectors_as_well() -> None:
    environments = Environments(Odd(), "Odd", AutoresetMode.SAME_STEP)
    made = collector(environments, Zero(), seed=0)
    made.start()
    with pytest.raises(EnvironmentFailedError, match=re.escape("failed in step after 7 steps")):
        made.collect(7)


def test_a_vector_of_gymnasium_is_checked_like_ours() -> None:
    vector = SyncVectorEnv([lambda: Breaks("reward", 2)], autoreset_mode=AutoresetMode.SAME_STEP)
    made = collector(Environments(vector, "B", AutoresetMode.SAME_STEP), Zero(), seed=0)
    made.start()
    made.collect(0)
    assert said(made.collect, 1) == (
        "environment 'B' gave a reward that is not a finite number after 2 steps."
    )
