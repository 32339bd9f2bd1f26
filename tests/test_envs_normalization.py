"""Observations and rewards are normalised by running statistics."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from gymnasium import spaces

from rlplug.config.sections import EnvSection
from rlplug.envs import Normalization
from rlplug.errors import RequestError
from tests.envs import Counts

BANDIT = spaces.Dict(arms=spaces.Box(-9, 9, (3, 2)), action_mask=spaces.MultiBinary(3))


def rows_of_arms(count: int, absent: float) -> dict[str, Any]:
    """Features of three arms, of which the last never comes and the second now and then."""
    random = numpy.random.default_rng(count)
    arms = random.normal(3.0, 2.0, (count, 3, 2)).astype(numpy.float32)
    mask = numpy.ones((count, 3), numpy.int8)
    mask[::3, 1] = mask[:, 2] = 0
    arms[mask == 0] = absent
    return {"arms": arms, "action_mask": mask}


@pytest.mark.parametrize("absent", [0.0, 99.0, numpy.nan, numpy.inf])
def test_statistics_are_of_the_arms_that_are_present(absent: float) -> None:
    made, restored = (normalization(BANDIT, normalize_observation=True) for _ in range(2))
    parts = [rows_of_arms(count, absent) for count in (4, 1, 7)]
    # All that there are in the first rows of another bandit.
    parts[1]["action_mask"][:] = [[1, 0, 0]]
    for number, seen in enumerate(parts):
        count = len(seen["arms"])
        made.absorb(seen, numpy.zeros((count, 1)), numpy.ones((count, 1), bool))
        if number == 1:
            restored.set_state(made.get_state())
    restored.absorb(seen, numpy.zeros((count, 1)), numpy.ones((count, 1), bool))
    scaled = made.observations(parts[2])["arms"]
    arms = numpy.concatenate([one["arms"] for one in parts]).astype(float)
    present = numpy.concatenate([one["action_mask"] for one in parts]) == 1
    for arm in (0, 1):
        rows = arms[present[:, arm], arm]
        expected = (parts[2]["arms"][:, arm] - rows.mean(0)) / numpy.sqrt(rows.var(0) + 1e-8)
        here = parts[2]["action_mask"][:, arm] == 1
        numpy.testing.assert_allclose(scaled[here, arm], expected[here].clip(-10, 10), atol=1e-4)
    # Of an arm that never came nothing is known.
    (mean, factor) = made.scales[("arms",)]
    assert mean[2].tolist() == [0.0, 0.0]
    assert factor[2].tolist() == [1.0, 1.0]
    numpy.testing.assert_array_equal(restored.observations(parts[2])["arms"], scaled)


def normalization(space: spaces.Space[Any] = Counts.observation_space, **options: Any) -> Any:
    return Normalization(EnvSection(**options), space, 2)


def test_observations_come_to_mean_zero_and_spread_one() -> None:
    made = normalization(normalize_observation=True)
    rows = numpy.array([[1.0, 10.0], [3.0, 30.0]])
    assert made.observations(rows).tolist() == [[1.0, 10.0], [3.0, 10.0]]
    made.absorb(rows[:1], numpy.zeros((1, 1)), numpy.zeros((1, 1), bool))
    made.absorb(rows[1:], numpy.zeros((1, 1)), numpy.zeros((1, 1), bool))
    # Means 2 and 20, spreads 1 and 10, however they were absorbed.
    numpy.testing.assert_allclose(made.observations(rows), [[-1, -1], [1, 1]], atol=1e-6)
    assert made.observations(rows).dtype == numpy.float32
    assert made.observations(numpy.array([[1e9, -1e9]])).tolist() == [[10.0, -10.0]]
    assert made.space(Counts.observation_space) == spaces.Box(-10, 10, (2,), numpy.float32)


def test_pictures_masks_and_choices_are_left_as_they_are() -> None:
    space = spaces.Dict(
        {
            "numbers": spaces.Box(-9, 9, (1,), numpy.float64),
            "picture": spaces.Box(0, 255, (8, 8), numpy.uint8),
            "choice": spaces.Discrete(3),
            "action_mask": spaces.Box(0, 1, (2,), numpy.float32),
        }
    )
    made = normalization(space, normalize_observation=True)
    seen = {
        "numbers": numpy.array([[4.0], [6.0]]),
        "picture": numpy.ones((2, 8, 8), numpy.uint8),
        "choice": numpy.array([1, 2]),
        "action_mask": numpy.ones((2, 2), numpy.float32),
    }
    made.absorb(seen, numpy.zeros((1, 2)), numpy.zeros((1, 2), bool))
    scaled = made.observations(seen)
    numpy.testing.assert_allclose(scaled["numbers"], [[-1], [1]], atol=1e-6)
    for name in ("picture", "choice", "action_mask"):
        assert scaled[name] is seen[name]
    with pytest.raises(RequestError, match="there are no numbers in Discrete"):
        normalization(spaces.Discrete(2), normalize_observation=True)


def test_rewards_are_divided_by_the_spread_of_returns() -> None:
    made = normalization(normalize_reward=True, normalize_gamma=0.5, normalize_clip=3.0)
    rewards = numpy.array([[2.0, 0.0], [4.0, 0.0], [8.0, 0.0]])
    ended = numpy.array([[False, False], [True, False], [False, False]])
    made.absorb(numpy.zeros((6, 2)), rewards, ended)
    # Returns 2, 5 and, after an end, 8; three of 0: mean 2.5, mean of squares 15.5.
    spread = (15.5 - 2.5**2) ** 0.5
    assert made.rewards(numpy.array([1.0, 100.0])).tolist() == pytest.approx([1 / spread, 3.0])


def test_steps_that_only_reset_are_not_absorbed() -> None:
    made = normalization(normalize_reward=True, normalize_gamma=0.5)
    stepped_here = numpy.array([[True, True], [False, True]])
    made.absorb(
        numpy.zeros((3, 2)), numpy.array([[2.0, 2.0], [0.0, 2.0]]), ~stepped_here, stepped_here
    )
    # Returns 2, 2 and 3: variance 2 / 9.
    assert made.rewards(numpy.array([1.0])).tolist() == pytest.approx([(9 / 2) ** 0.5])


def test_statistics_that_were_saved_are_gone_on_with() -> None:
    options: dict[str, Any] = {"normalize_observation": True, "normalize_reward": True}
    one, other = normalization(**options), normalization(**options)
    rows = numpy.array([[1.0, 10.0], [3.0, 30.0]])
    one.absorb(rows, numpy.ones((1, 2)), numpy.zeros((1, 2), bool))
    other.set_state(one.get_state())
    for made in (one, other):
        made.absorb(rows + 1, numpy.ones((1, 2)), numpy.zeros((1, 2), bool))
    assert one.observations(rows).tolist() == other.observations(rows).tolist()
    assert one.rewards(numpy.ones(1)) == other.rewards(numpy.ones(1))
    wider = normalization(spaces.Box(-1, 1, (3,)), **options)
    with pytest.raises(RequestError, match="statistics of observations have shapes"):
        wider.set_state(one.get_state())
