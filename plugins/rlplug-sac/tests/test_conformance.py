"""SAC and TD3 do what rlplug asks of every algorithm."""

from __future__ import annotations

import pytest

from rlplug.testing import AlgorithmConformance

# For each change, other tests of this package or of TD3 show as much in less time.
LONG = (
    *("solves_stay_under_a_time_limit", "entropy_bonus_keeps_policies_random"),
    *("finds_the_best_arm_that_is_present", "solves_known_best_arm", "solves_masked_best_action"),
    *("solves_leave_before_an_end", "solves_delayed_reward", "solves_reward_by_action"),
)


class TestSAC(AlgorithmConformance):
    name = "sac"
    options = {"tau": 0.05}
    variants = ({"ent_coef": 0.1},)
    marks = dict.fromkeys(LONG, pytest.mark.long)


class TestTD3(AlgorithmConformance):
    name = "td3"
    options = {"tau": 0.05}
