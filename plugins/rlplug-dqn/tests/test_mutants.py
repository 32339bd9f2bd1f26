"""Single bugs planted in DQN, each caught by the check meant for it."""

from __future__ import annotations

from typing import Any, ClassVar
from unittest import mock

import attrs
import numpy
import pytest
import torch
from rlplug_dqn import DQN, DQNConfig, DQNModule, losses

from rlplug import Acted, Loss
from rlplug.testing.conformance import mutant_test


class WithModule(DQN):
    """Builds a module of another class."""

    Planted: ClassVar[type[Any]] = DQNModule

    def build(self, observation_space, action_space, config, seed):
        made = super().build(observation_space, action_space, config, seed)
        made.__class__ = self.Planted
        return made


class TruncationEnds(DQN):
    def prepare_batch(self, module, config, batch):
        ended = batch["terminated"] | batch["truncated"]
        return super().prepare_batch(module, config, batch.with_columns({"terminated": ended}))


class NothingEnds(DQN):
    def prepare_batch(self, module, config, batch):
        never = torch.zeros_like(batch["terminated"])
        return super().prepare_batch(module, config, batch.with_columns({"terminated": never}))


class NextRow(DQN):
    def prepare_batch(self, module, config, batch):
        after = batch["observations"].roll(-1, 0)
        return super().prepare_batch(
            module, config, batch.with_columns({"next_observations": after})
        )


class ValueOfThisState(DQN):
    def prepare_batch(self, module, config, batch):
        here = batch["observations"]
        return super().prepare_batch(
            module, config, batch.with_columns({"next_observations": here})
        )


class WritesIntoTheBatch(DQN):
    def prepare_batch(self, module, config, batch):
        batch["rewards"].sub_(batch["rewards"].mean())
        return super().prepare_batch(module, config, batch)


class RewardsForgotten(DQN):
    def prepare_batch(self, module, config, batch):
        nothing = torch.zeros_like(batch["rewards"])
        return super().prepare_batch(module, config, batch.with_columns({"rewards": nothing}))


class CreditsTheNextAction(WithModule):
    class Planted(DQNModule):
        def indices(self, actions):
            return (super().indices(actions) + 1) % self.n_actions


class SumsInsteadOfTheMean(DQN):
    def compute_loss_for_module(self, module, config, batch, fwd_out):
        loss = super().compute_loss_for_module(module, config, batch, fwd_out)
        return Loss(loss.value * batch.rows, loss.metrics)


class ErrorsAreNotANumber(DQN):
    def compute_loss_for_module(self, module, config, batch, fwd_out):
        loss = super().compute_loss_for_module(module, config, batch, fwd_out)
        return Loss(loss.value, {**loss.metrics, "root": float("nan")})


class TargetNeverCopied(DQN):
    def build(self, observation_space, action_space, config, seed):
        made = super().build(observation_space, action_space, config, seed)
        made.target.update = lambda timestep: False
        return made


class MaskForgotten(WithModule):
    class Planted(DQNModule):
        def _greedy(self, observations, mask):
            return super()._greedy(observations, None)


class ExploresInInference(WithModule):
    class Planted(DQNModule):
        def forward_inference(self, act):
            count = len(super().forward_inference(act).actions)
            return Acted(numpy.random.default_rng().integers(2, size=count))


class NeverExplores(WithModule):
    class Planted(DQNModule):
        def forward_exploration(self, act):
            return self.forward_inference(act)


class ExploresGlobally(WithModule):
    class Planted(DQNModule):
        def forward_exploration(self, act):
            numpy.random.random()
            return super().forward_exploration(act)


class ActionsFromOne(WithModule):
    class Planted(DQNModule):
        def forward_inference(self, act):
            return Acted(super().forward_inference(act).actions + 1)


class TargetNotSaved(WithModule):
    class Planted(DQNModule):
        def state_dict(self, *args, **kwargs):
            whole = super().state_dict(*args, **kwargs)
            for name in [name for name in whole if name.startswith("target.model")]:
                whole[name] = torch.zeros_like(whole[name])
            return whole


class KeepsAPlainTensor(WithModule):
    class Planted(DQNModule):
        """Has an attribute that is neither a parameter nor a buffer."""

    def prepare_batch(self, module, config, batch):
        columns = super().prepare_batch(module, config, batch)
        module.last = columns["targets"]
        return columns


class LearningRateUnused(DQN):
    def configure_optimizers_for_module(self, module, config):
        others = DQNConfig(adam_eps=config.adam_eps)
        return super().configure_optimizers_for_module(module, others)


class AcceptsEverything(DQN):
    def supports(self, observation_space, action_space):
        return None


class WeightsForgotten(DQN):
    def compute_loss_for_module(self, module, config, batch, fwd_out):
        ones = {"weights": torch.ones_like(batch["rewards"])}
        return super().compute_loss_for_module(module, config, batch.with_columns(ones), fwd_out)


class PrioritiesInverted(DQN):
    def compute_loss_for_module(self, module, config, batch, fwd_out):
        loss = super().compute_loss_for_module(module, config, batch, fwd_out)
        return Loss(loss.value, rows={"priority": 1 / (loss.rows["priority"] + 1e-2)})


class DiscountsForgotten(DQN):
    def prepare_batch(self, module, config, batch):
        fixed = {"discounts": torch.full_like(batch["rewards"], config.gamma)}
        return super().prepare_batch(module, config, batch.with_columns(fixed))


class NextMaskForgotten(DQN):
    def prepare_batch(self, module, config, batch):
        if "next_action_mask" in batch:
            free = {"next_action_mask": torch.ones_like(batch["next_action_mask"])}
            batch = batch.with_columns(free)
        return super().prepare_batch(module, config, batch)


class TargetUnused(DQN):
    def prepare_batch(self, module, config, batch):
        target, module.target = module.target, module.network
        try:
            return super().prepare_batch(module, config, batch)
        finally:
            module.target = target


class DoubleTheWrongWay(DQN):
    def prepare_batch(self, module, config, batch):
        after = batch["next_observations"]
        best = module.head.values(module.target(after)).argmax(1, keepdim=True)
        values = module.q_values(after).gather(1, best)[:, 0]
        future = batch["discounts"] * values * ~batch["terminated"]
        return {"targets": batch["rewards"] + future}


class TwoStepsAtOnce(DQN):
    def compute_loss_for_module(self, module, config, batch, fwd_out):
        rolled = {"targets": batch["targets"].roll(1)}
        return super().compute_loss_for_module(module, config, batch.with_columns(rolled), fwd_out)


class QuantilesUpsideDown(DQN):
    def compute_loss_for_module(self, module, config, batch, fwd_out):
        fractions = getattr(module.head, "fractions", torch.zeros(0))
        fractions.copy_(fractions.flip(0))
        try:
            return super().compute_loss_for_module(module, config, batch, fwd_out)
        finally:
            fractions.copy_(fractions.flip(0))


class PenaltyRaisesOtherActions(DQN):
    def compute_loss_for_module(self, module, config, batch, fwd_out):
        loss = super().compute_loss_for_module(module, config, batch, fwd_out)
        terms = loss.terms or {"td": loss.value, "cql": 0.0}
        return Loss(terms["td"] - terms["cql"], loss.metrics, rows=loss.rows)


class SquaredWhateverIsSaid(DQN):
    def compute_loss_for_module(self, module, config, batch, fwd_out):
        squared = attrs.evolve(config, loss="mse")
        return super().compute_loss_for_module(module, squared, batch, fwd_out)


class WorstOnTensors(WithModule):
    class Planted(DQNModule):
        def _greedy_in_torch(self, observations, mask):
            return 1 - super()._greedy_in_torch(observations, mask)


class TellsThatItIsUniform(WithModule):
    class Planted(DQNModule):
        def action_probabilities(self, act):
            return numpy.ones((len(act.observations), self.n_actions)) / self.n_actions


def huber_with_a_jump(q_values, targets, kind):
    """Squared errors up to 2, as if the other part began at 1."""
    errors = q_values - targets
    return torch.where(errors.abs() <= 2, 0.5 * errors**2, errors.abs() - 0.5)


class HuberWithAJump(DQN):
    def compute_loss_for_module(self, module, config, batch, fwd_out):
        with mock.patch.object(losses, "td_loss", huber_with_a_jump):
            return super().compute_loss_for_module(module, config, batch, fwd_out)


MUTANTS = [
    (HuberWithAJump, "errors_pull_values"),
    (WeightsForgotten, "importance_weights_scale_the_loss"),
    (PrioritiesInverted, "priorities_grow_with_errors"),
    (DiscountsForgotten, "updates_depend_on_every_column"),
    (NextMaskForgotten, "masks_of_next_actions_are_used"),
    (TargetUnused, "targets_are_used"),
    (TwoStepsAtOnce, "rows_are_learned_one_by_one"),
    (TruncationEnds, "truncated_steps_bootstrap"),
    (NothingEnds, "terminated_steps_do_not_bootstrap"),
    (NextRow, "fragments_do_not_leak"),
    (WritesIntoTheBatch, "batches_stay_as_they_are"),
    (SumsInsteadOfTheMean, "loss_is_a_mean"),
    (ErrorsAreNotANumber, "metrics_are_finite_numbers"),
    (TargetNeverCopied, "targets_follow"),
    (MaskForgotten, "masks_are_respected"),
    (ExploresInInference, "acting_is_repeatable"),
    (ExploresGlobally, "acting_changes_nothing"),
    (ActionsFromOne, "actions_are_in_the_action_space"),
    (TargetNotSaved, "state_is_complete"),
    (KeepsAPlainTensor, "tensors_are_parameters_or_buffers"),
    (AcceptsEverything, "builds_for_the_spaces_it_supports"),
    (PenaltyRaisesOtherActions, "conservative_penalty_lowers_other_actions"),
    (SquaredWhateverIsSaid, "loss_is_the_one_that_is_named"),
    (WorstOnTensors, "log_probs_are_those_of_actions"),
    (TellsThatItIsUniform, "log_probs_are_those_of_actions"),
]


LONG = [
    (LearningRateUnused, "every_option_has_an_effect"),
    (NeverExplores, "solves_known_best_arm"),
    (ValueOfThisState, "solves_discounted_two_steps"),
    (RewardsForgotten, "solves_constant_reward"),
]
"""Mutants that a training, or a search for who reads an option, finds."""


test_a_planted_bug_is_caught_by_the_check_meant_for_it = mutant_test(MUTANTS)
test_a_planted_bug_is_caught_by_training = pytest.mark.long(mutant_test(LONG))
test_a_planted_bug_in_double_q_learning_is_caught = mutant_test(
    [(DoubleTheWrongWay, "targets_are_used")],
    variants=({"double": True},),
)
test_a_planted_bug_in_quantile_regression_is_caught = mutant_test(
    [(QuantilesUpsideDown, "errors_pull_values")],
    variants=({"quantile": True, "n_quantiles": 20},),
)
