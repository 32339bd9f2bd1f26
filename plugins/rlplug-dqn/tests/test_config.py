"""Options are typed, bounded, and refused where they would do nothing."""

from __future__ import annotations

from typing import Any

import pytest
from rlplug_dqn import DQNConfig, RainbowConfig

from rlplug.config.strict import structure


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"learning_rate": -1.0}, "must be at least 0"),
        ({"gamma": 1.1}, "must be between 0 and 1"),
        ({"gradient_steps": 0}, "at least 1, or -1 for one per environment step"),
        ({"gradient_steps": -2}, "at least 1, or -1"),
        ({"tau": 0.0}, "must be greater than 0"),
        ({"net_arch": []}, "must not be empty"),
        ({"net_arch": [0]}, "widths of at least 1"),
        ({"loss": "l1"}, "'huber', 'mse'"),
        ({"double": "yes"}, "expected bool"),
        ({"distributional": True, "quantile": True}, "choose one"),
        ({"v_min": 1.0, "v_max": 1.0}, "v_min must be less than v_max, got 1.0 and 1.0"),
        ({"distributional": True, "loss": "mse"}, "no effect with distributional"),
        ({"quantile": True, "loss": "mse"}, "no effect with quantile"),
        ({"quantile": True, "loss": "mse", "v_min": 10.0}, "got 10.0 and 10.0 loss has no effect"),
        ({"epsilon": 0.1}, "unknown option"),
    ],
)
def test_what_is_wrong_is_said(values: dict[str, Any], complaint: str) -> None:
    config, problems = structure(DQNConfig, values, "algorithm")
    assert config is None
    assert complaint in " ".join(problem.message for problem in problems)


def test_rainbow_has_the_settings_of_the_paper() -> None:
    config = RainbowConfig()
    assert (config.learning_rate, config.adam_eps, config.batch_size) == (6.25e-5, 1.5e-4, 32)
    # 80,000 and 32,000 frames, four to a step.
    assert (config.learning_starts, config.target_update_interval) == (20_000, 8_000)
    assert (config.n_step, config.priority_alpha, config.priority_beta) == (3, 0.5, 0.4)
    assert (config.n_atoms, config.v_min, config.v_max, config.noisy_sigma) == (51, -10, 10, 0.5)
    improvements = ("double", "dueling", "prioritized", "distributional", "noisy")
    assert all(getattr(config, name) for name in improvements)
    assert (config.exploration_initial_eps, config.exploration_final_eps) == (0.0, 0.0)
