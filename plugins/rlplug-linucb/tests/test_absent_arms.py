"""Runs where the features of absent arms are not numbers."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy
import pytest

from rlplug import run
from rlplug.errors import EnvironmentFailedError

QUIET = {"tracking.enabled": False, "evaluation.episodes": 0}

pytestmark = pytest.mark.usefixtures("home")


class Offers(gymnasium.Env[Any, Any]):
    """Three arms of which the last is always absent, or only masked by its features."""

    observation_space = gymnasium.spaces.Dict(
        context=gymnasium.spaces.Box(-1, 1, (1,)),
        arms=gymnasium.spaces.Box(-1, 1, (3, 2)),
        action_mask=gymnasium.spaces.MultiBinary(3),
    )
    action_space = gymnasium.spaces.Discrete(3)
    present = 2

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        arms = numpy.eye(3, 2, dtype=numpy.float32)
        arms[2] = numpy.nan
        mask = numpy.arange(3) < self.present
        return {"context": numpy.ones(1, numpy.float32), "arms": arms, "action_mask": mask}, {}

    def step(self, action: Any) -> Any:
        return self.reset()[0], float(action == 1), True, False, {}


class Broken(Offers):
    """The arm without features may be chosen."""

    present = 3


@pytest.mark.parametrize("num_envs", [1, 4])
def test_features_of_absent_arms_need_not_be_numbers(num_envs: int) -> None:
    result = run("linucb", Offers, steps=200, options={**QUIET, "sampling.num_envs": num_envs})
    assert result.metrics["rollout/reward_mean"] > 0.9


def test_features_of_present_arms_must_be_numbers() -> None:
    with pytest.raises(EnvironmentFailedError, match="an observation that is not a finite number"):
        run("linucb", Broken, steps=200, options=QUIET)
