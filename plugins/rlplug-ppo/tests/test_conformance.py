"""PPO and A2C do what rlplug asks of every algorithm."""

from __future__ import annotations

import pytest

from rlplug.testing import AlgorithmConformance, Subject
from rlplug.testing.checks import CHECKS, check_named

SMALL = {"n_steps": 16, "batch_size": 64, "n_epochs": 10, "learning_rate": 0.003}


PROBES = (
    *("solves_constant_reward", "solves_reward_by_observation"),
    *("solves_time_limit", "solves_known_best_arm"),
)


class TestPPO(AlgorithmConformance):
    name = "ppo"
    # Each of the probes that stay holds what one of these does.
    marks = dict.fromkeys(PROBES, pytest.mark.long)
    options = SMALL
    variants = (
        {"kl_coef": 0.2, "target_kl": 0.5, "clip_range_vf": 0.2},
        {"memory": "gru", "memory_size": 8, "truncated_bptt": 4, "squash": True},
        {"state_dependent_std": True, "shared_encoder": True},
    )


# PPO shows the rest for each change: A2C's module is PPO's.
QUICKLY = {
    *("is_found_once", "builds_for_the_spaces_it_supports", "every_parameter_learns"),
    *("loss_is_a_mean", "terminated_steps_do_not_bootstrap", "truncated_steps_bootstrap"),
    *("fragments_do_not_leak", "updates_depend_on_every_column"),
    *("advantages_are_sums_of_td_errors", "advantages_are_normalized"),
    *("acting_and_training_agree_on_log_probs", "state_is_complete", "every_option_has_an_effect"),
    *("solves_box_target",),
}
FOR_PPO = {check.name: pytest.mark.long for check in CHECKS if check.name not in QUICKLY}


class TestA2C(AlgorithmConformance):
    name = "a2c"
    options = {"n_steps": 1, "learning_rate": 0.003}
    marks = FOR_PPO


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
