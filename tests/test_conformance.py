"""What is shipped does what rlplug asks of every plugin."""

from __future__ import annotations

from typing import Any

import pytest

from rlplug.testing import AddOnConformance, AlgorithmConformance, Subject
from rlplug.testing.checks import CHECKS, check_named

LONG = pytest.mark.long
PROBES = dict.fromkeys(
    (*("solves_reward_by_observation", "solves_time_limit", "solves_known_best_arm"),),
    LONG,
)
"""Each of the probes that stay holds what one of these does."""


def quickly(*names: str) -> dict[str, Any]:
    """Marks for a plugin whose other checks a sibling passes for each change."""
    return {check.name: LONG for check in CHECKS if check.name not in names}


EVERY = (
    *("is_found_once", "builds_for_the_spaces_it_supports", "every_parameter_learns"),
    *("state_is_complete", "every_option_has_an_effect"),
)
STEPS = (
    *("loss_is_a_mean", "terminated_steps_do_not_bootstrap", "truncated_steps_bootstrap"),
    *("fragments_do_not_leak", "updates_depend_on_every_column"),
)
VALUES = ("targets_follow", "targets_are_used", "errors_pull_values", "priorities_grow_with_errors")
CLOSED_FORMS = quickly(
    *(*EVERY, "acting_draws_from_its_generator", "weights_count_rows", "equals_its_reference"),
    *("two_learners_stay_the_same", "masks_are_respected", "solves_known_best_arm"),
)
OF_VALUES = (*EVERY, *STEPS, *VALUES)


class TestDQN(AlgorithmConformance):
    name = "dqn"
    marks = PROBES


class TestRainbow(AlgorithmConformance):
    name = "rainbow"
    options = {"v_min": -2.0, "v_max": 12.0, "adam_eps": 1e-6, "gradient_steps": 2}
    variants = ({"distributional": False, "quantile": True},)
    marks = quickly(
        *(*OF_VALUES, "masks_of_next_actions_are_used", "solves_reward_by_observation_and_action")
    )


class TestVDN(AlgorithmConformance):
    name = "vdn"
    marks = quickly(
        *(*OF_VALUES, "another_process_gives_the_same_numbers", "modules_of_several_spaces")
    )


class TestSAC(AlgorithmConformance):
    name = "sac"
    options = {"tau": 0.05}
    variants = ({"ent_coef": 0.1},)
    # For each change, other tests of this package or of TD3 show as much in less time.
    marks = dict.fromkeys(
        (
            *("entropy_keeps_policies_random", "finds_the_best_arm_that_is_present"),
            *("solves_known_best_arm",),
            *("solves_masked_best_action", "solves_delayed_reward"),
        ),
        LONG,
    )


class TestTD3(AlgorithmConformance):
    name = "td3"
    options = {"tau": 0.05}
    marks = quickly(*(*OF_VALUES, "same_seed_same_numbers", "solves_box_target"))


SMALL = {"n_steps": 16, "batch_size": 64, "n_epochs": 10, "learning_rate": 0.003}


class TestPPO(AlgorithmConformance):
    name = "ppo"
    marks = PROBES
    options = SMALL
    variants = (
        {"kl_coef": 0.2, "target_kl": 0.5, "clip_range_vf": 0.2},
        {"memory": "gru", "memory_size": 8, "truncated_bptt": 4, "squash": True},
        {"state_dependent_std": True, "shared_encoder": True},
    )


class TestA2C(AlgorithmConformance):
    name = "a2c"
    options = {"n_steps": 1, "learning_rate": 0.003}
    marks = quickly(
        *(*EVERY, *STEPS, "advantages_are_sums_of_td_errors", "advantages_are_normalized"),
        *("acting_and_training_agree_on_log_probs", "solves_box_target"),
    )


MEMORY = {**SMALL, "memory_size": 16, "truncated_bptt": 8}


@pytest.mark.parametrize("memory", ["lstm", pytest.param("gru", marks=LONG)])
@pytest.mark.parametrize(
    "check",
    [
        *("builds_for_the_spaces_it_supports", "every_parameter_learns"),
        *("truncated_steps_bootstrap", "fragments_do_not_leak", "state_is_complete"),
        *("same_seed_same_numbers", "modules_of_several_spaces"),
        pytest.param("remembers_the_sign", marks=LONG),
    ],
)
def test_ppo_with_memory_conforms(check: str, memory: str) -> None:
    check_named(check)(Subject.of("ppo", options={**MEMORY, "memory": memory}))


class TestLinUCB(AlgorithmConformance):
    name = "linucb"


class TestHybridLinUCB(AlgorithmConformance):
    name = "linucb"
    options = {"model": "hybrid", "update_every": 3, "refresh_every": 8}
    marks = CLOSED_FORMS


class TestLinTS(AlgorithmConformance):
    name = "lints"
    marks = CLOSED_FORMS


class TestNeuralLinUCB(AlgorithmConformance):
    name = "neural-linucb"
    marks = CLOSED_FORMS


@pytest.mark.long
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_probabilities_that_are_estimated_are_not_held_to_be_exact(seed: int) -> None:
    variants = [{"model": "hybrid"}]
    subject = Subject.of("lints", seed=seed, options={"model": "joint"}, variants=variants)
    check_named("log_probs_are_those_of_actions")(subject)


class TestUCB1(AlgorithmConformance):
    name = "ucb1"


class TestMetricUCB(AlgorithmConformance):
    name = "metric-ucb"
    marks = CLOSED_FORMS


class TestBetaThompson(AlgorithmConformance):
    name = "thompson"
    marks = CLOSED_FORMS


class TestGaussianThompson(AlgorithmConformance):
    name = "thompson"
    marks = CLOSED_FORMS
    options = {"distribution": "gaussian", "update_every": 3}


class TestEpsilonGreedy(AlgorithmConformance):
    name = "epsilon-greedy"
    marks = CLOSED_FORMS


class TestSoftmax(AlgorithmConformance):
    name = "softmax"
    marks = CLOSED_FORMS


class TestBC(AlgorithmConformance):
    name = "bc"


class TestEMA(AddOnConformance):
    name = "ema"


class TestPCGrad(AddOnConformance):
    name = "pcgrad"


class TestRND(AddOnConformance):
    name = "rnd"


class TestTensorBoard(AddOnConformance):
    name = "tensorboard"
