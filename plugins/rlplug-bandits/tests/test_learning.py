"""Through a run: each rule loses less than a random choice, and follows its schedule."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
from gymnasium import spaces
from rlplug_bandits import UCB1, UCB1Config
from rlplug_bandits.config import BanditOptions

import rlplug
import rlplug.bandits

STEPS = 2_000


def regret(algorithm: str, **options: Any) -> float:
    """The mean regret per step of a seeded run, over all steps."""
    made: list[Any] = []

    class Regret(gymnasium.Wrapper[Any, Any, Any, Any]):
        total = 0.0

        def step(self, action: Any) -> Any:
            outcome = self.env.step(action)
            self.total += outcome[-1]["regret"]
            return outcome

    def make() -> Any:
        made.append(Regret(gymnasium.make("MultiArmedBandit-v0", problem_seed=3)))
        return made[-1]

    given = {"tracking.enabled": False, **options}
    rlplug.run(algorithm, make, steps=STEPS, seed=0, options=given)
    return max(one.total for one in made) / STEPS


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("algorithm", "options", "most"),
    [
        ("ucb1", {}, 0.5),
        ("metric-ucb", {}, 0.6),
        ("thompson", {}, 0.2),
        ("thompson", {"distribution": "gaussian", "reward_std": 0.5}, 0.2),
        ("epsilon-greedy", {}, 0.4),
        ("softmax", {}, 0.4),
    ],
)
def test_it_loses_less_than_a_random_choice(
    algorithm: str, options: dict[str, Any], most: float
) -> None:
    means = rlplug.bandits.MultiArmedBandit(problem_seed=3).start(3).means
    at_random = float(means.max() - means.mean())
    assert regret(algorithm, **options) < most * at_random


@pytest.mark.parametrize(
    ("observations", "actions", "reason"),
    [
        (spaces.Discrete(1), spaces.Box(-1, 1, (2,)), "needs Discrete actions"),
        (spaces.Discrete(1), spaces.Discrete(3, start=1), "counts arms from 0"),
        (spaces.Discrete(1), spaces.Discrete(1), "needs two arms"),
        (spaces.Box(-1, 1, (2,)), spaces.Discrete(3), "in a bandit, ignore_context = true"),
        (spaces.Discrete(2), spaces.Discrete(3), "observations are Discrete with 2 values"),
    ],
)
def test_what_cannot_be_handled_is_refused_with_the_reason(
    observations: Any, actions: Any, reason: str
) -> None:
    said = UCB1(UCB1Config()).supports(observations, actions)
    assert said is not None
    assert reason in said


def test_observations_without_features_are_supported_and_others_where_it_is_asked_for() -> None:
    mask = spaces.Dict(action_mask=spaces.MultiBinary(3))
    for space in (spaces.Discrete(1), spaces.Box(-1, 1, (0,)), mask):
        assert UCB1(UCB1Config()).supports(space, spaces.Discrete(3)) is None
    ignoring = UCB1(UCB1Config(ignore_context=True))
    assert ignoring.supports(spaces.Box(-1, 1, (2,)), spaces.Discrete(3)) is None
    assert BanditOptions().ignore_context is False
