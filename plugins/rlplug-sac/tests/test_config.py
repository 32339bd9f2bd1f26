"""Options are typed, bounded, and refused where they would do nothing."""

from __future__ import annotations

from typing import Any

import pytest
from rlplug_sac import SACConfig, TD3Config

from rlplug.config.strict import structure


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"learning_rate": -1.0}, "must be at least 0"),
        ({"gamma": 1.1}, "must be between 0 and 1"),
        ({"gradient_steps": 0}, "at least 1, or -1 for one per environment step"),
        ({"tau": 0.0}, "must be greater than 0"),
        ({"tau": 1.1}, "must be at most 1"),
        ({"net_arch": []}, "must not be empty"),
        ({"net_arch": [0]}, "widths of at least 1"),
        ({"ent_coef": -0.1}, "must be at least 0"),
        ({"ent_coef": "auto_0.1"}, "expected float or 'auto'"),
        ({"ent_coef_init": 0.0}, "must be greater than 0"),
        ({"ent_coef": 0.2, "target_entropy": -1.0}, "target_entropy has no effect"),
        ({"ent_coef": 0.2, "ent_coef_init": 0.5}, "ent_coef_init has no effect"),
        (
            {"ent_coef": 0.2, "ent_coef_init": 0.5, "target_entropy": -1.0},
            "target_entropy has no effect with ent_coef = 0.2: leave one out ent_coef_init has",
        ),
        ({"target_update_interval": 0}, "must be at least 1"),
        ({"policy_delay": 2}, "unknown option"),
    ],
)
def test_what_is_wrong_for_sac_is_said(values: dict[str, Any], complaint: str) -> None:
    assert complaint in problems_of(SACConfig, values)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"policy_delay": 0}, "must be at least 1"),
        ({"policy_delay": 1.5}, "expected int"),
        ({"action_noise": -0.1}, "must be at least 0"),
        ({"target_policy_noise": -0.1}, "must be at least 0"),
        ({"target_noise_clip": -0.1}, "must be at least 0"),
        ({"ent_coef": 0.1}, "unknown option"),
    ],
)
def test_what_is_wrong_for_td3_is_said(values: dict[str, Any], complaint: str) -> None:
    assert complaint in problems_of(TD3Config, values)


def problems_of(config: type[Any], values: dict[str, Any]) -> str:
    made, problems = structure(config, values, "algorithm")
    assert made is None
    return " ".join(problem.message for problem in problems)


def test_defaults_are_those_of_stable_baselines3() -> None:
    sac, td3 = SACConfig(), TD3Config()
    for config, rate, widths in ((sac, 3e-4, (256, 256)), (td3, 1e-3, (400, 300))):
        assert (config.learning_rate, config.net_arch) == (rate, widths)
        assert (config.buffer_size, config.batch_size, config.learning_starts) == (10**6, 256, 100)
        assert (config.tau, config.gamma) == (0.005, 0.99)
        assert (config.train_freq, config.gradient_steps, config.n_step) == (1, 1, 1)
    assert (sac.ent_coef, sac.ent_coef_init, sac.target_entropy) == ("auto", 1.0, "auto")
    assert sac.target_update_interval == 1
    assert (td3.policy_delay, td3.target_policy_noise, td3.target_noise_clip) == (2, 0.2, 0.5)
