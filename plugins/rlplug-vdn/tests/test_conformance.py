"""VDN does what rlplug asks of every algorithm."""

from __future__ import annotations

import pytest

from rlplug.testing import AlgorithmConformance

# DQN solves them for each change: of a single agent, VDN's modules are DQN's.
FOR_DQN = (
    *("solves_constant_reward", "solves_reward_by_observation", "solves_reward_by_action"),
    *("solves_delayed_reward", "solves_time_limit", "solves_stay_under_a_time_limit"),
    *("solves_ending", "solves_masked_best_action", "solves_leave_before_an_end"),
    *("solves_known_best_arm", "finds_the_best_arm_that_is_present", "solves_masked_next_action"),
    *("solves_discounted_two_steps", "inference_is_not_random", "masks_are_respected"),
    *("log_probs_are_those_of_actions", "loss_is_the_one_that_is_named"),
    *("solves_reward_by_observation_and_action", "acting_changes_nothing"),
)


class TestVDN(AlgorithmConformance):
    name = "vdn"
    marks = dict.fromkeys(FOR_DQN, pytest.mark.long)
