"""DQN and Rainbow do what rlplug asks of every algorithm."""

from __future__ import annotations

import pytest

from rlplug.testing import AlgorithmConformance


class TestDQN(AlgorithmConformance):
    name = "dqn"


# DQN shows them for each change: Rainbow acts by the same module and has the same options.
FOR_DQN = (
    *("solves_constant_reward", "solves_reward_by_observation", "solves_reward_by_action"),
    *("solves_delayed_reward", "solves_time_limit", "solves_stay_under_a_time_limit"),
    *("solves_ending", "solves_masked_best_action", "solves_leave_before_an_end"),
    *("solves_known_best_arm", "finds_the_best_arm_that_is_present", "solves_masked_next_action"),
    *("solves_discounted_two_steps", "every_option_has_an_effect", "inference_is_not_random"),
    *("masks_are_respected", "log_probs_are_those_of_actions", "two_learners_stay_the_same"),
    *("state_survives_a_file", "same_seed_same_numbers", "rows_are_learned_one_by_one"),
)


class TestRainbow(AlgorithmConformance):
    name = "rainbow"
    options = {"v_min": -2.0, "v_max": 12.0, "adam_eps": 1e-6, "gradient_steps": 2}
    variants = ({"distributional": False, "quantile": True},)
    marks = dict.fromkeys(FOR_DQN, pytest.mark.long)
