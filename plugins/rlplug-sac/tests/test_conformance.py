"""SAC and TD3 do what rlplug asks of every algorithm."""

from __future__ import annotations

import pytest

from rlplug.testing import AlgorithmConformance
from rlplug.testing.checks import CHECKS

# For each change, other tests of this package or of TD3 show as much in less time.
LONG = (
    *("solves_stay_under_a_time_limit", "entropy_keeps_policies_random"),
    *("finds_the_best_arm_that_is_present", "solves_known_best_arm", "solves_masked_best_action"),
    "solves_delayed_reward",
)


class TestSAC(AlgorithmConformance):
    name = "sac"
    options = {"tau": 0.05}
    variants = ({"ent_coef": 0.1},)
    marks = dict.fromkeys(LONG, pytest.mark.long)


# SAC shows the rest for each change.
QUICKLY = {
    *("is_found_once", "builds_for_the_spaces_it_supports", "every_parameter_learns"),
    *("loss_is_a_mean", "targets_follow", "targets_are_used"),
    *("terminated_steps_do_not_bootstrap", "truncated_steps_bootstrap", "fragments_do_not_leak"),
    *("updates_depend_on_every_column", "errors_pull_values", "priorities_grow_with_errors"),
    *("errors_pull_values", "state_is_complete", "every_option_has_an_effect"),
    *("policy_is_delayed", "same_seed_same_numbers", "solves_box_target"),
}
FOR_SAC = {check.name: pytest.mark.long for check in CHECKS if check.name not in QUICKLY}


class TestTD3(AlgorithmConformance):
    name = "td3"
    options = {"tau": 0.05}
    marks = FOR_SAC
