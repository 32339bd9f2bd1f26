"""SAC and TD3 in a run: what they support, when they learn, and what comes out."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy
import pytest
from gymnasium import spaces
from rlplug_sac import SAC, TD3

import rlplug
from rlplug import UnsupportedSpaceError, run
from rlplug.runs.evaluate import evaluate

SMALL = {
    "tracking.enabled": False,
    "evaluation.episodes": 0,
    "net_arch": [16],
    "buffer_size": 1_000,
    "batch_size": 16,
}

pytestmark = pytest.mark.usefixtures("home")


def started(algorithm: str, env: Any = "Pendulum-v1", steps: int = 300, **options: Any) -> Any:
    return run(algorithm, env, steps=steps, seed=0, options={**SMALL, **options})


SEEN = spaces.Box(-1, 1, (3,), numpy.float32)


@pytest.mark.parametrize(
    ("kind", "space", "words"),
    [
        (SAC, spaces.MultiDiscrete([2, 3]), "it needs Box or Discrete actions, found MultiDis"),
        (TD3, spaces.Discrete(2), "it needs Box actions, found Discrete with 2 values"),
        (SAC, spaces.Box(-numpy.inf, 1, (2,)), "it needs actions with bounds on both sides"),
        (TD3, spaces.Box(-numpy.inf, numpy.inf, (2,)), "gymnasium.wrappers.RescaleAction"),
        (SAC, spaces.Box(0, 9, (2,), numpy.int64), "no distribution over a Box of whole numbers"),
        (TD3, spaces.Box(0, 9, (2,), numpy.int64), "no distribution over a Box of whole numbers"),
    ],
    ids=str,
)
def test_actions_without_a_policy_are_refused(kind: Any, space: Any, words: str) -> None:
    assert words in str(kind(kind.Config()).supports(SEEN, space))


def test_discrete_actions_are_refused_by_td3_before_the_first_step() -> None:
    with pytest.raises(UnsupportedSpaceError, match="needs Box actions, found Discrete"):
        started("td3", "CartPole-v1")


@pytest.mark.parametrize("algorithm", ["sac", "td3"])
def test_several_environments_and_n_step_returns_work(algorithm: str) -> None:
    options = {"sampling.num_envs": 4, "train_freq": 5, "gradient_steps": -1, "n_step": 3}
    # Each 5 steps of 4 environments bring 20 updates, from the sixth time on.
    assert started(algorithm, **options).metrics["time/updates"] == 200


@pytest.mark.parametrize(
    ("algorithm", "env"), [("sac", "Pendulum-v1"), ("sac", "CartPole-v1"), ("td3", "Pendulum-v1")]
)
def test_a_run_can_be_loaded_and_evaluated(algorithm: str, env: str) -> None:
    result = started(algorithm, env)
    played = evaluate(str(result.folder), checkpoint="last", episodes=2, seed=1)
    assert numpy.isfinite(played.metrics["eval/return_mean"])
    policy = rlplug.load(result.run_id)
    space = gymnasium.make(env).action_space
    observation, _ = gymnasium.make(env).reset(seed=0)
    assert policy.predict(observation) in space
