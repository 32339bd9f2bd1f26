"""PPO and A2C do what rlplug asks of every algorithm."""

from __future__ import annotations

import pytest

from rlplug.testing import AlgorithmConformance, Subject
from rlplug.testing.checks import check_named

SMALL = {"n_steps": 16, "batch_size": 64, "n_epochs": 10, "learning_rate": 0.003}


class TestPPO(AlgorithmConformance):
    name = "ppo"
    options = SMALL
    variants = (
        {"kl_coef": 0.2, "target_kl": 0.5, "clip_range_vf": 0.2},
        {"memory": "gru", "memory_size": 8, "truncated_bptt": 4, "squash": True},
        {"state_dependent_std": True, "shared_encoder": True},
    )


# PPO shows them for each change, and A2C that it learns in Boxes: its module is PPO's.
FOR_PPO = (
    *("solves_constant_reward", "solves_reward_by_observation", "solves_reward_by_action"),
    *("solves_time_limit", "solves_stay_under_a_time_limit", "solves_leave_before_an_end"),
    *("solves_ending", "solves_masked_best_action", "solves_known_best_arm"),
    *("solves_multi_discrete_choices", "solves_multi_binary_bits", "solves_discounted_two_steps"),
    *("finds_the_best_arm_that_is_present", "solves_delayed_reward"),
    *("entropy_bonus_keeps_policies_random", "solves_reward_by_observation_and_action"),
    *("inference_is_not_random", "log_probs_are_those_of_actions", "masks_are_respected"),
    *("acting_changes_nothing", "export_acts_like_inference", "two_learners_stay_the_same"),
)


class TestA2C(AlgorithmConformance):
    name = "a2c"
    options = {"n_steps": 1, "learning_rate": 0.003}
    marks = dict.fromkeys(FOR_PPO, pytest.mark.long)


MEMORY = {**SMALL, "memory_size": 16, "truncated_bptt": 8}


@pytest.mark.parametrize("memory", ["lstm", pytest.param("gru", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "check",
    [
        "builds_for_the_spaces_it_supports",
        "every_parameter_learns",
        "truncated_steps_bootstrap",
        "fragments_do_not_leak",
        "state_is_complete",
        "same_seed_same_numbers",
        "modules_of_several_spaces",
    ],
)
def test_with_memory_it_does_so_too(check: str, memory: str) -> None:
    check_named(check)(Subject.of("ppo", options={**MEMORY, "memory": memory}))


@pytest.mark.long
def test_a_gru_remembers_the_sign() -> None:
    # test_learning.py has the same maze for an LSTM.
    check_named("remembers_the_sign")(Subject.of("ppo", options={**MEMORY, "memory": "gru"}))
