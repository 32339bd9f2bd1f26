"""The checks: the name of each, its description, whether it is for algorithms or add-ons."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Literal

import attrs

from rlplug.errors import PluginError, did_you_mean
from rlplug.registry import ALGORITHM, Kind
from rlplug.seeding import forked
from rlplug.testing.checks import (
    acting,
    addon_effects,
    addons,
    advantages,
    bootstrapping,
    closed_forms,
    columns,
    declaration,
    devices,
    distributions,
    effects,
    entropy,
    learners,
    learning,
    limits,
    masks,
    off_policy,
    options,
    probes,
    reproducibility,
    spaces,
    targets,
    teams,
    values,
)
from rlplug.testing.limit import SECONDS, TookTooLong, time_limit
from rlplug.testing.probes import PROBES
from rlplug.testing.report import CheckFailed, DoesNotApply, Outcome, as_failure, own_line
from rlplug.testing.subject import Subject

__all__ = ["CHECKS", "Check", "check_named", "checks_for"]

For = Literal["both", "algorithm", "addon"]


@attrs.frozen(kw_only=True)
class Check:
    """A check of one property of a plugin."""

    name: str
    description: str
    function: Callable[[Subject], None]
    whom: For = "both"
    quick: bool = True

    def applies_to(self, kind: Kind) -> bool:
        """Whether it is for this kind of plugin."""
        return self.whom in ("both", "algorithm" if kind == ALGORITHM else "addon")

    def __call__(self, subject: Subject) -> None:
        """Raises `CheckFailed`, or `DoesNotApply` if the check has nothing to look at."""
        limit = SECONDS if self.quick else 3 * SECONDS
        with forked(0), warnings.catch_warnings(), time_limit(limit) as where:
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                self.function(subject)
            except (CheckFailed, DoesNotApply):
                raise
            except TookTooLong:
                raise CheckFailed(
                    f"an answer within {limit:.0f} seconds of CPU time: {self.description}",
                    "none",
                    f"{own_line(where, subject.kind)}: if it is slow for large observations, such "
                    "as images, refuse them in `supports`",
                ) from None
            except Exception as error:
                raise as_failure(error, self.description, subject.kind) from error

    def outcome(self, subject: Subject) -> Outcome:
        """Run it; returns the result and the time it took."""
        started = time.perf_counter()
        status: Literal["passed", "failed", "does not apply"] = "passed"
        text = ""
        try:
            self(subject)
        except CheckFailed as failure:
            status, text = "failed", str(failure)
        except DoesNotApply as reason:
            status, text = "does not apply", str(reason)
        return Outcome(
            check=self.name,
            description=self.description,
            status=status,
            text=text,
            seconds=time.perf_counter() - started,
        )


def _check(function: Callable[[Subject], None], whom: For = "both", *, quick: bool = True) -> Check:
    name = function.__name__.removeprefix("check_")
    description = (function.__doc__ or "").strip().partition("\n")[0]
    return Check(name=name, description=description, function=function, whom=whom, quick=quick)


CHECKS: tuple[Check, ...] = (
    _check(declaration.check_is_found_once),
    _check(declaration.check_importing_is_quiet),
    _check(options.check_options_are_typed_and_documented),
    _check(declaration.check_hooks_are_well_formed),
    _check(spaces.check_builds_for_the_spaces_it_supports, "algorithm"),
    _check(acting.check_actions_are_in_the_action_space, "algorithm"),
    _check(acting.check_acting_is_repeatable, "algorithm"),
    _check(acting.check_inference_is_not_random, "algorithm"),
    _check(acting.check_export_acts_like_inference, "algorithm"),
    _check(acting.check_acting_changes_nothing, "algorithm"),
    _check(distributions.check_log_probs_are_those_of_actions, "algorithm"),
    _check(distributions.check_acting_and_training_agree_on_log_probs, "algorithm"),
    _check(acting.check_masks_are_respected, "algorithm"),
    _check(addon_effects.check_evaluated_module_follows_the_trained_one, "addon"),
    _check(learning.check_metrics_are_finite_numbers),
    _check(learning.check_every_parameter_learns),
    _check(learning.check_hooks_move_no_parameter),
    _check(learning.check_batches_stay_as_they_are),
    _check(learning.check_loss_is_a_mean),
    _check(targets.check_targets_follow),
    _check(targets.check_targets_are_used, "algorithm"),
    _check(targets.check_policy_is_delayed, "algorithm"),
    _check(bootstrapping.check_terminated_steps_do_not_bootstrap, "algorithm"),
    _check(bootstrapping.check_truncated_steps_bootstrap, "algorithm"),
    _check(bootstrapping.check_fragments_do_not_leak, "algorithm"),
    _check(columns.check_updates_depend_on_every_column, "algorithm"),
    _check(columns.check_rows_are_learned_one_by_one, "algorithm"),
    _check(columns.check_importance_weights_scale_the_loss, "algorithm"),
    _check(columns.check_priorities_grow_with_errors, "algorithm"),
    _check(masks.check_masks_of_next_actions_are_used, "algorithm"),
    _check(masks.check_masked_actions_are_not_learned, "algorithm"),
    _check(advantages.check_advantages_are_sums_of_td_errors, "algorithm"),
    _check(advantages.check_advantages_are_normalized, "algorithm"),
    _check(off_policy.check_actions_that_policies_avoid_teach_nothing, "algorithm"),
    _check(values.check_quantiles_follow_their_fractions, "algorithm"),
    _check(values.check_larger_errors_pull_more, "algorithm"),
    _check(values.check_conservative_penalty_lowers_other_actions, "algorithm"),
    _check(values.check_loss_is_the_one_that_is_named, "algorithm"),
    _check(limits.check_limits_keep_policies_near, "algorithm"),
    _check(limits.check_kl_coefficient_aims_at_its_target, "algorithm"),
    _check(closed_forms.check_rows_may_be_split_into_batches, "algorithm"),
    _check(closed_forms.check_weights_count_rows, "algorithm"),
    _check(closed_forms.check_discounts_are_powers, "algorithm"),
    _check(closed_forms.check_metrics_are_means_over_rows, "algorithm"),
    _check(closed_forms.check_equals_its_reference, "algorithm"),
    _check(learners.check_two_learners_stay_the_same),
    _check(reproducibility.check_state_is_complete),
    _check(reproducibility.check_state_survives_a_file),
    _check(reproducibility.check_same_seed_same_numbers),
    _check(reproducibility.check_seed_is_used),
    _check(reproducibility.check_instances_do_not_meet),
    _check(reproducibility.check_generators_of_others_stay),
    _check(reproducibility.check_another_process_gives_the_same_numbers),
    _check(options.check_every_option_is_read),
    _check(options.check_feed_has_the_options, "algorithm"),
    _check(effects.check_every_option_has_an_effect),
    _check(effects.check_networks_follow_their_options, "algorithm"),
    _check(effects.check_schedules_are_followed),
    _check(spaces.check_modules_of_several_spaces),
    _check(teams.check_teams_are_learned, "algorithm"),
    _check(devices.check_tensors_are_parameters_or_buffers),
    _check(devices.check_learns_with_float64),
    _check(devices.check_learns_on_a_gpu),
    _check(devices.check_compiled_equals_uncompiled, quick=False),
    _check(addons.check_works_with_an_addon_that_changes_nothing, "algorithm"),
    _check(addons.check_another_addon_may_take_part, "addon"),
    _check(addons.check_neutral_options_change_nothing, "addon"),
    _check(addons.check_order_makes_no_difference_when_neutral, "addon"),
    _check(addons.check_works_or_refuses_with_every_algorithm, "addon"),
    _check(addon_effects.check_bonus_is_larger_for_what_is_new, "addon"),
    _check(addon_effects.check_losses_have_a_lower_bound, "addon"),
    _check(addon_effects.check_the_algorithm_still_learns, "addon"),
    *(
        Check(
            name=f"solves_{probe.name}",
            description=f"It learns the known actions and values of the probe {probe.name!r}.",
            function=probes.solves(probe),
            whom="algorithm",
            quick=probe.quick,
        )
        for probe in PROBES
    ),
    _check(probes.check_finds_the_best_arm_that_is_present, "algorithm"),
    _check(probes.check_remembers_the_sign, "algorithm"),
    _check(entropy.check_entropy_bonus_keeps_policies_random, "algorithm"),
    _check(entropy.check_entropy_bonus_keeps_imitation_random, "algorithm"),
    _check(entropy.check_values_include_entropy, "algorithm"),
    _check(
        entropy.check_values_include_entropy_of_squashed_actions,
        "algorithm",
        quick=False,
    ),
    _check(entropy.check_learned_temperature_keeps_choices_open, "algorithm", quick=False),
    *(
        Check(
            name=f"variants_solve_{probe.name}",
            description=f"Each variant learns the answers of the probe {probe.name!r}.",
            function=probes.solves_with_variants(probe),
            whom="algorithm",
            quick=False,
        )
        for probe in PROBES
        if probe.for_variants
    ),
)
"""Every check, basic ones first: their failures explain those of later ones."""


def checks_for(kind: Kind, *, slow: bool = False) -> tuple[Check, ...]:
    """The checks for algorithms or add-ons, with `slow` all of them."""
    return tuple(one for one in CHECKS if one.applies_to(kind) and (slow or one.quick))


def check_named(name: str) -> Check:
    """The check of this name."""
    for one in CHECKS:
        if one.name == name:
            return one
    known = [one.name for one in CHECKS]
    near = did_you_mean(name, known, sentence=True)
    raise PluginError(
        f"there is no check {name!r}. {near}".rstrip(),
        *(() if near else (f"there are: {', '.join(known)}",)),
    )
