"""What is given by hand and cannot be meant is refused with a reason, and changes nothing."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from rlplug_bandits import (
    BetaThompsonModule,
    GaussianThompsonModule,
    MetricUCBModule,
    SoftmaxModule,
    UCB1Module,
)

from rlplug.errors import RequestError, RunFailedError

RANDOM = numpy.random.default_rng(0)


@pytest.mark.parametrize(
    ("rule", "rewards", "said"),
    [
        (BetaThompsonModule, [-3.0, 2.0], r"arm 0 sum up to -3\.0 over 1 rows, Beta.* from 0 to 1"),
        (BetaThompsonModule, [1.0, 2.0], r"arm 1 sum up to 2\.0 over 1 rows"),
        (MetricUCBModule, [1.0, -2.0], r"arm 1 sum up to -2\.0 over 1 rows, .* from 0 to inf"),
    ],
)
def test_counts_of_rewards_that_a_rule_does_not_take_are_not_loaded(
    rule: Any, rewards: list[float], said: str
) -> None:
    one, other = rule(2), GaussianThompsonModule(2)
    other.update([0, 1], rewards)
    with pytest.raises(RequestError, match=said):
        one.load_state_dict(other.state_dict())
    assert one.counts().tolist() == [0, 0]


def test_counts_that_only_rounding_leaves_outside_are_loaded() -> None:
    one, two = BetaThompsonModule(2), BetaThompsonModule(2)
    for weight in [0.1, 0.2, 0.7] * 50:
        one.update([0], [1.0], [weight])
    one.total[0] += 1e-13
    two.load_state_dict(one.state_dict())
    assert two.counts().tolist() == one.counts().tolist()


def test_rows_whose_sums_are_not_finite_are_refused() -> None:
    one = SoftmaxModule(2)
    one.update([1], [2.0])
    for rows in (([0, 0], [1e308, 1e308]), ([0], [1e200], [1e200])):
        with pytest.raises(RunFailedError, match="too large to be summed"):
            one.update(*rows)  # type: ignore[arg-type] # columns
    assert one.counts().tolist() == [0, 1]
    assert one.means().tolist() == [0, 2]


@pytest.mark.parametrize("rewards", [[1 + 2j], ["much"]])
def test_rewards_that_are_no_real_numbers_are_refused(rewards: Any) -> None:
    one = UCB1Module(2)
    with pytest.raises(RunFailedError, match="rewards must be real numbers, found an array of"):
        one.update([0], rewards)
    with pytest.raises(RunFailedError, match="weights must be real numbers, found an array of"):
        one.update([0], [1.0], rewards)
    assert one.counts().tolist() == [0, 0]


@pytest.mark.parametrize("count", [0, -1, 2.5, "3", True])
def test_a_number_of_arms_that_is_none_is_refused(count: Any) -> None:
    with pytest.raises(RequestError, match="num_arms must be a whole number from 1 on, found "):
        UCB1Module(count)


@pytest.mark.parametrize("rule", [UCB1Module, GaussianThompsonModule])
def test_options_that_are_no_config_are_refused(rule: Any) -> None:
    with pytest.raises(RequestError, match="an instance of a config class, found a dict"):
        rule(3, {"alpha": 1})


def test_choices_take_their_number() -> None:
    one = UCB1Module(3)
    for rows, found in ((2.0, "2.0"), (-1, "-1"), (numpy.ones((2, 3)), "a ndarray")):
        with pytest.raises(RequestError, match=f"the number of choices, found {found}"):
            one.choose(rows, RANDOM)  # type: ignore[arg-type] # what is refused
    assert one.choose(0, RANDOM).shape == (0,)
    assert one.choose(numpy.int64(2), RANDOM).shape == (2,)
