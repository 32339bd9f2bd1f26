"""DQN in a run: it learns, and says what it cannot do before the first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest
from rlplug_dqn import DQNModule

from rlplug import RequestError, UnsupportedSpaceError, run
from rlplug.errors import PluginError

SMALL = {
    "tracking.enabled": False,
    "evaluation.episodes": 0,
    "net_arch": [32],
    "learning_starts": 100,
    "buffer_size": 1_000,
    "batch_size": 16,
}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLPLUG_HOME", str(tmp_path))


def started(env: Any = "CartPole-v1", steps: int = 400, seed: int = 0, **options: Any) -> Any:
    return run("dqn", env, steps=steps, seed=seed, options={**SMALL, **options})


@pytest.mark.parametrize(
    ("env", "options", "error", "named"),
    [
        ("Pendulum-v1", {}, UnsupportedSpaceError, "needs Discrete actions, found Box"),
        ("CartPole-v1", {"buffer_size": 10}, RequestError, r"buffer_size = 10 .*batch_size = 16"),
        ("CartPole-v1", {"learning_starts": 400}, RequestError, "learning_starts"),
        ("CartPole-v1", {"run.preset": "cartpol"}, PluginError, "cartpole"),
    ],
)
def test_requests_that_cannot_work_are_refused_before_the_first_step(
    env: str, options: Any, error: Any, named: str
) -> None:
    with pytest.raises(error, match=named):
        started(env, **options)


def test_the_first_update_comes_after_learning_starts() -> None:
    # 400 steps, 100 of them before; then one update every four steps.
    result = started()
    assert result.step == 400
    assert result.metrics["time/updates"] == 75
    assert started(learning_starts=300).metrics["time/updates"] == 25


def test_with_several_environments_updates_come_per_steps_of_the_vector() -> None:
    # 400 steps are 100 of four environments; the first 100 steps are 25 of them, then 75 are left.
    several = {"sampling.num_envs": 4, "train_freq": 5}
    assert started(**several).metrics["time/updates"] == 15
    # As many updates as environment steps: 20 each time.
    all_of_them = started(**several, gradient_steps=-1)
    assert all_of_them.metrics["time/updates"] == 15 * 20


def test_gradients_are_clipped_at_ten_unless_told_otherwise() -> None:
    # Errors of 1,000 by the squared loss have gradients of that size.
    def env() -> Any:
        return gymnasium.wrappers.TransformReward(
            gymnasium.make("CartPole-v1"), lambda reward: 1_000 * float(reward)
        )

    metrics = started(env, loss="mse").metrics
    assert metrics["train/grad_norm"] > 10
    assert metrics["train/grad_norm_clipped"] == pytest.approx(10, rel=1e-3)
    assert "train/grad_norm_clipped" not in started(env, **{"learner.max_grad_norm": 0.0}).metrics


@pytest.mark.parametrize("earned", [195.0, pytest.param(450.0, marks=pytest.mark.long)])
def test_cart_pole_is_learned_with_the_preset(earned: float) -> None:
    """The seed and the threshold were fixed beforehand; all seeds: benchmarks/learn.py dqn."""
    result = run(
        "dqn",
        seed=1,
        options={
            "tracking.enabled": False,
            "run.preset": "cartpole",
            "evaluation.stop_at_return": earned,
        },
    )
    assert isinstance(result.module, DQNModule)
    assert result.metrics["eval/return_mean"] >= earned
