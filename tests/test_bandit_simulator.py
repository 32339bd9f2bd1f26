"""Regret and rewards, by hand: a problem of two contexts whose numbers can be read off."""

from __future__ import annotations

import attrs
import numpy
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from rlplug.bandits import Problem, Rounds
from rlplug.bandits.environments import BanditSimulator
from rlplug.errors import RequestError


@attrs.frozen(kw_only=True)
class TwoContexts:
    """In context 0 arm 2 is best (0.75); in context 1 arm 2 is absent and the others lose."""

    num_arms: int = 3
    problem_seed: int | None = None

    @property
    def observation_space(self) -> spaces.Box:
        return spaces.Box(0.0, 1.0, (1,), numpy.float64)

    def start(self, seed: int) -> TwoContextsSource:
        return TwoContextsSource()


class TwoContextsSource:
    def draw(self, random: numpy.random.Generator, steps: int, n: int) -> Rounds:
        assert n == 2
        expected = numpy.array([[0.5, 0.25, 0.75], [-1.0, -0.5, 0.0]])
        rewards = numpy.array([[0.625, 0.375, 0.875], [-1.25, -0.75, 0.0]])
        present = numpy.array([[True, True, True], [True, True, False]])
        return Rounds(
            observations=numpy.tile(numpy.array([[0.0], [1.0]]), (steps, 1, 1)),
            rewards=numpy.tile(rewards, (steps, 1, 1)),
            expected=numpy.tile(expected, (steps, 1, 1)),
            best=numpy.tile(numpy.array([0.75, -0.5]), (steps, 1)),
            present=numpy.tile(present, (steps, 1, 1)),
        )


def two_contexts() -> BanditSimulator:
    problem: Problem = TwoContexts()
    simulator = BanditSimulator(problem, "TwoContexts", 2)
    simulator.reset(numpy.random.default_rng(0), 0)
    assert simulator.next_contexts().tolist() == [[0.0], [1.0]]
    return simulator


def test_regret_is_the_best_expected_reward_less_that_of_the_chosen_arm() -> None:
    rewards, infos = two_contexts().pull(numpy.array([1, 0]))
    assert rewards.tolist() == [0.375, -1.25]
    assert infos["best_reward"].tolist() == [0.75, -0.5]
    assert infos["expected_reward"].tolist() == [0.25, -1.0]
    assert infos["regret"].tolist() == [0.5, 0.5]
    assert infos["absent_arm"].tolist() == [False, False]


def test_the_best_arm_has_no_regret() -> None:
    _, infos = two_contexts().pull(numpy.array([2, 1]))
    assert infos["regret"].tolist() == [0.0, 0.0]


def test_an_absent_arm_earns_nothing_is_flagged_and_never_beats_the_best() -> None:
    rewards, infos = two_contexts().pull(numpy.array([2, 2]))
    assert rewards[1] == 0.0
    assert infos["absent_arm"].tolist() == [False, True]
    assert infos["regret"].tolist() == [0.0, 0.0]


def test_pulling_an_arm_changes_no_context() -> None:
    simulator = two_contexts()
    first = simulator.pull(numpy.array([2, 2]))[1]["regret"].tolist()
    assert simulator.pull(numpy.array([2, 2]))[1]["regret"].tolist() == first


@pytest.mark.parametrize("arm", [-1, 3])
def test_an_action_that_is_no_arm_is_refused_with_its_row(arm: int) -> None:
    with pytest.raises(RequestError, match=rf"action {arm} in row 1 is no arm: there are 3"):
        two_contexts().pull(numpy.array([0, arm]))


@pytest.mark.parametrize("kind", [numpy.int32, numpy.uint8, numpy.int64])
def test_actions_of_any_whole_number_type_are_arms(kind: type) -> None:
    rewards, _ = two_contexts().pull(numpy.array([1, 0], dtype=kind))
    assert rewards.tolist() == [0.375, -1.25]


def test_actions_of_another_shape_or_kind_are_refused() -> None:
    with pytest.raises(RequestError, match=r"shape \(2,\), found int64 of shape \(3,\)"):
        two_contexts().pull(numpy.array([0, 1, 2]))
    with pytest.raises(RequestError, match=r"whole numbers of shape \(2,\), found float64"):
        two_contexts().pull(numpy.array([0.0, 1.0]))


def test_nothing_is_drawn_before_the_first_reset() -> None:
    simulator = BanditSimulator(TwoContexts(), "TwoContexts", 2)
    with pytest.raises(ResetNeeded, match="TwoContexts: call reset before step"):
        simulator.pull(numpy.array([0, 0]))
    with pytest.raises(ResetNeeded, match="TwoContexts: call reset before step"):
        simulator.next_contexts()
