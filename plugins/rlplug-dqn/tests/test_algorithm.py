"""DQN in a run: it learns, and says what it cannot do before the first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy
import pytest
from gymnasium import spaces
from rlplug_dqn import DQN, DQNConfig, DQNModule

from rlplug import RequestError, RunFailedError, UnsupportedSpaceError, run
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
    ("space", "words"),
    [
        (spaces.Box(-1, 1, (2,), numpy.float32), "found Box of shape (2,)"),
        (spaces.MultiDiscrete([2, 3]), "found MultiDiscrete"),
        (spaces.Dict({"a": spaces.Discrete(2)}), "found Dict of a"),
    ],
    ids=str,
)
def test_only_discrete_actions_are_supported(space: Any, words: str) -> None:
    reason = DQN(DQNConfig()).supports(spaces.Box(-1, 1, (3,)), space)
    assert reason is not None
    assert reason.startswith("it needs Discrete actions")
    assert words in reason


def test_continuous_actions_are_refused_before_the_first_step() -> None:
    with pytest.raises(UnsupportedSpaceError, match="needs Discrete actions, found Box"):
        started("Pendulum-v1")


def test_a_buffer_smaller_than_a_batch_is_refused() -> None:
    with pytest.raises(RequestError, match=r"buffer_size = 10 .*batch_size = 16"):
        started(buffer_size=10)


def test_a_run_that_would_never_learn_is_refused() -> None:
    with pytest.raises(RequestError, match="learning_starts"):
        started(learning_starts=400)


def test_an_unknown_preset_is_refused_with_those_there_are() -> None:
    with pytest.raises(PluginError, match="cartpole"):
        started(**{"run.preset": "cartpol"})


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


@pytest.mark.parametrize(
    "options",
    [
        {"prioritized": True, "dueling": True, "double": True, "n_step": 3},
        {"distributional": True, "v_min": 0.0, "v_max": 100.0, "tau": 0.01},
        {"quantile": True, "n_quantiles": 20, "noisy": True, "exploration_initial_eps": 0.0},
    ],
    ids=str,
)
def test_every_variant_runs_and_the_same_seed_gives_the_same_numbers(
    options: dict[str, Any],
) -> None:
    first, second = started(**options), started(**options)
    assert first.metrics["train/loss"] == second.metrics["train/loss"]
    one, other = first.module.state_dict(), second.module.state_dict()
    assert all(numpy.array_equal(one[name].numpy(), other[name].numpy()) for name in one)


def test_an_environment_that_breaks_off_ends_the_run() -> None:
    class Breaks(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            if self.np_random.random() < 0.01:
                raise OSError("the simulator is gone")
            return super().step(action)

    with pytest.raises(RunFailedError, match="the simulator is gone"):
        started(lambda: Breaks(gymnasium.make("CartPole-v1")), steps=5_000)


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
