"""DQN and Rainbow do what rlplug asks of every algorithm."""

from __future__ import annotations

import pytest

from rlplug.testing import AlgorithmConformance
from rlplug.testing.checks import CHECKS

PROBES = (
    *("solves_constant_reward", "solves_reward_by_observation"),
    *("solves_time_limit", "solves_known_best_arm"),
)


class TestDQN(AlgorithmConformance):
    name = "dqn"
    # Each of the probes that stay holds what one of these does.
    marks = dict.fromkeys(PROBES, pytest.mark.long)


# DQN shows the rest for each change: Rainbow acts by the same module and has the same options.
QUICKLY = {
    *("is_found_once", "builds_for_the_spaces_it_supports", "every_parameter_learns"),
    *("loss_is_a_mean", "targets_follow", "targets_are_used"),
    *("terminated_steps_do_not_bootstrap", "truncated_steps_bootstrap", "fragments_do_not_leak"),
    *("updates_depend_on_every_column", "errors_pull_values", "priorities_grow_with_errors"),
    *("errors_pull_values", "state_is_complete", "every_option_has_an_effect"),
    *("masks_of_next_actions_are_used", "solves_reward_by_observation_and_action"),
}
FOR_DQN = {check.name: pytest.mark.long for check in CHECKS if check.name not in QUICKLY}


class TestRainbow(AlgorithmConformance):
    name = "rainbow"
    options = {"v_min": -2.0, "v_max": 12.0, "adam_eps": 1e-6, "gradient_steps": 2}
    variants = ({"distributional": False, "quantile": True},)
    marks = FOR_DQN
