"""Whether actions are drawn as often as their log-probabilities say."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from gymnasium import spaces

from rlplug.testing.checks.distributions import DRAWS, _mismatch

HALF = numpy.repeat([0, 1], DRAWS // 2)


def found(first: Any, second: Any, actions: Any = HALF) -> str:
    """What is wrong with these probabilities of two actions, each of which was half of the draws.

    Two numbers are estimates of an action, one for every second row.
    """
    told = [numpy.resize(one, DRAWS // 2) for one in (first, second)]
    log_probs = numpy.log(numpy.concatenate(told))[:, None]
    return _mismatch(spaces.Discrete(2), actions, log_probs)


def test_shares_of_draws_may_be_off_by_five_standard_errors_and_a_little() -> None:
    # 5 · sqrt(0.5 · 0.5 / 4000) + 0.002 is 0.0415.
    assert found(0.5, 0.5) == found(0.54, 0.46) == ""
    assert found(0.545, 0.455) == (
        "action [0] in 50.0% of 4,000 draws, by its log-probability 54.5%"
    )
    assert found(0.5, 0.455).startswith("action [1] in 50.0%")


def test_estimates_may_be_off_by_as_much_as_they_differ() -> None:
    assert found([0.52, 0.62], [0.38, 0.48]) == ""
    assert found(0.57, 0.43).startswith("action [0] in 50.0%")
    assert found([0.56, 0.58], [0.42, 0.44]).startswith("action [0] in 50.0%")


def test_probabilities_add_up_to_one_are_finite_and_one_per_row() -> None:
    assert found(0.52, 0.52) == "probabilities that add up to 1.04"
    with numpy.errstate(divide="ignore"):
        assert found(0.0, 1.0) == "log-probabilities that are not finite"
    two = _mismatch(spaces.Discrete(2), HALF, numpy.zeros((DRAWS, 2)))
    assert two == f"log-probabilities of shape {(DRAWS, 2)}: one number per row is needed"


@pytest.mark.parametrize(
    ("power", "said"), [(1, ""), (2, "off by 0.25 from what 4,000 draws are distributed like")]
)
def test_draws_of_one_number_follow_the_integral_of_the_density(power: int, said: str) -> None:
    # Draws whose distribution function is x to this power; the density is told as that of x.
    draws = (numpy.arange(DRAWS) / (DRAWS - 1)) ** (1 / power)
    box = spaces.Box(0, 1, (1,))
    mismatch = _mismatch(box, draws[::-1, None], numpy.zeros((DRAWS, 1)))
    assert mismatch.endswith(said)
    assert bool(mismatch) == bool(said)
    assert _mismatch(box, draws[:, None], numpy.full((DRAWS, 1), -1e9)) == "a density of 0"
