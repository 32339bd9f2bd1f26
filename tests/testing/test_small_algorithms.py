"""The unmutated small algorithms pass every quick check, and few checks pass them by."""

from __future__ import annotations

from typing import Any

import pytest

from rlplug.registry import ALGORITHM
from rlplug.testing import CheckFailed, Subject, checks_for
from rlplug.testing.algorithms import ArmMeans, PolicyGradient, QLearning
from rlplug.testing.checks import check_named

NEVER = {
    *("is_found_once", "learns_on_a_gpu"),
    *("finds_the_best_arm_that_is_present", "remembers_the_sign"),
    "teams_are_learned",
    *("solves_box_target", "solves_multi_discrete_choices"),
    *("importance_weights_scale_the_loss", "priorities_grow_with_errors"),
    *("masks_of_next_actions_are_used", "solves_masked_next_action"),
    *("acting_and_training_agree_on_log_probs", "advantages_are_normalized"),
    *("weights_count_rows", "weights_count_rows"),
    *("discounts_are_powers", "equals_its_reference", "values_include_entropy"),
    *("metrics_are_means_over_rows", "policy_is_delayed"),
    *("advantages_are_sums_of_td_errors", "limits_keep_policies_near"),
    *("kl_coefficient_aims_at_its_target", "export_acts_like_inference"),
    *("errors_pull_values", "conservative_penalty_lowers_other_actions"),
    *("loss_is_the_one_that_is_named", "actions_that_policies_avoid_teach_nothing"),
    *("entropy_keeps_imitation_random", "networks_follow_their_options"),
}
"""They are not installed, tests need no GPU, and they read no features of arms. They have no
memory, no replay, no logs, no advantages, no delays, no forward pass to export, Discrete actions
only, one kind of loss, no choice of layers, and learn by gradients."""


def failures_and_passed_by(kind: type[Any]) -> tuple[dict[str, str], set[str]]:
    # What its mutants are given, too: with a second training, their failures would prove less.
    subject = Subject.of(kind, trainings=1)
    outcomes = [check.outcome(subject) for check in checks_for(ALGORITHM)]
    failed = {one.check: one.text for one in outcomes if one.status == "failed"}
    return failed, {one.check for one in outcomes if one.status == "does not apply"}


# What is shipped, and what `rlplug plugins new` writes, passes it for each change.
@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "passed_by"),
    [
        (PolicyGradient, {"targets_follow", "targets_are_used", "errors_pull_values"}),
        (QLearning, {"log_probs_are_those_of_actions", "entropy_keeps_policies_random"}),
    ],
)
def test_a_small_algorithm_passes_all_that_applies(kind: type[Any], passed_by: set[str]) -> None:
    failed, unchecked = failures_and_passed_by(kind)
    assert failed == {}
    assert unchecked - {"learns_on_a_gpu"} == (NEVER | passed_by) - {"learns_on_a_gpu"}


def test_an_algorithm_that_ignores_observations_fails_where_they_matter() -> None:
    subject = Subject.of(ArmMeans, trainings=1)
    check_named("solves_reward_by_observation_and_action")(subject)
    with pytest.raises(CheckFailed, match="observations and actions that do not belong"):
        check_named("solves_reward_by_observation_and_action")(subject)
