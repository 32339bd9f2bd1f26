"""Single bugs planted in SAC and TD3, each caught by the check meant for it."""

from __future__ import annotations

from typing import Any, ClassVar
from unittest import mock

import numpy
import pytest
import torch
from rlplug_sac import SAC, TD3, SACConfig, SACModule, TD3Module

from rlplug import Acted, Loss
from rlplug.testing.conformance import mutant_test


class WithModule(SAC):
    """Builds a module of another class."""

    Planted: ClassVar[type[Any]] = SACModule

    def build(self, observation_space, action_space, config):
        made = super().build(observation_space, action_space, config)
        made.__class__ = self.Planted
        return made


class WithColumns(SAC):
    """Computes its targets from other columns."""

    def columns(self, batch):
        raise NotImplementedError

    def prepare_batch(self, module_id, module, config, batch, learner):
        changed = batch.with_columns(self.columns(batch))
        return super().prepare_batch(module_id, module, config, changed, learner)


class TruncationEnds(WithColumns):
    def columns(self, batch):
        return {"terminated": batch["terminated"] | batch["truncated"]}


class NothingEnds(WithColumns):
    def columns(self, batch):
        return {"terminated": torch.zeros_like(batch["terminated"])}


class NextRow(WithColumns):
    def columns(self, batch):
        return {"next_observations": batch["observations"].roll(-1, 0)}


class Unsquashed:
    """Densities of normal numbers for what tanh made of them."""

    def __init__(self, unit):
        self.unit = unit

    def rsample(self, parameters, **more):
        actions, log_prob = self.unit.rsample(parameters, **more)
        return actions, log_prob + (1 - actions**2 + 1e-6).log().sum(1)


class TargetsWithoutTheSlopeOfTanh(SAC):
    def prepare_batch(self, module_id, module, config, batch, learner):
        unit = getattr(module, "unit", None)
        if unit is not None:
            module.unit = Unsquashed(unit)
        columns = super().prepare_batch(module_id, module, config, batch, learner)
        if unit is not None:
            module.unit = unit
        return columns


class WritesIntoTheBatch(SAC):
    def prepare_batch(self, module_id, module, config, batch, learner):
        batch["rewards"].sub_(batch["rewards"].mean())
        return super().prepare_batch(module_id, module, config, batch, learner)


class WithLoss(SAC):
    """Changes the losses of its optimizers."""

    def changed(self, losses):
        raise NotImplementedError

    def compute_loss_for_module(self, module, batch, fwd_out, optimizers):
        loss = super().compute_loss_for_module(module, batch, fwd_out, optimizers)
        return Loss(self.changed(dict(loss.value)), loss.metrics)


class ActorGoesTheWrongWay(WithLoss):
    def changed(self, losses):
        return {**losses, "actor": -losses["actor"]}


class CriticsForgotten(WithLoss):
    def changed(self, losses):
        return {name: loss for name, loss in losses.items() if name != "critic"}


class TemperatureForgotten(WithLoss):
    def changed(self, losses):
        return {name: loss for name, loss in losses.items() if name != "temperature"}


class SumsInsteadOfTheMean(SAC):
    def compute_loss_for_module(self, module, batch, fwd_out, optimizers):
        loss = super().compute_loss_for_module(module, batch, fwd_out, optimizers)
        summed = {name: part * batch.rows for name, part in loss.value.items()}
        return Loss(summed, loss.metrics)


class TargetNeverFollows(SAC):
    def build(self, observation_space, action_space, config):
        made = super().build(observation_space, action_space, config)
        made.target.update = lambda timestep: False
        return made


class MaskForgotten(WithModule):
    class Planted(SACModule):
        def forward_inference(self, act):
            act.action_mask = None
            return super().forward_inference(act)


class InfersAtRandom(WithModule):
    class Planted(SACModule):
        def forward_inference(self, act):
            count = len(super().forward_inference(act).actions)
            return Acted(numpy.random.default_rng().integers(2, size=count))


class ExploresGlobally(WithModule):
    class Planted(SACModule):
        def forward_exploration(self, act):
            numpy.random.random()
            return super().forward_exploration(act)


class CreditsTheNextAction(SAC):
    def compute_loss_for_module(self, module, batch, fwd_out, optimizers):
        after = (batch["actions"] + 1) % module.distribution.size
        changed = batch.with_columns({"actions": after})
        return super().compute_loss_for_module(module, changed, fwd_out, optimizers)


class LearningRateUnused(SAC):
    def configure_optimizers_for_module(self, module, config):
        return super().configure_optimizers_for_module(module, SACConfig(ent_coef=config.ent_coef))


class AcceptsEverything(SAC):
    def supports(self, observation_space, action_space):
        return None


class UnscaledActions(TD3):
    def build(self, observation_space, action_space, config):
        made = super().build(observation_space, action_space, config)
        made.__class__ = self.Planted
        return made

    class Planted(TD3Module):
        def forward_inference(self, act):
            scaled, _ = self.actor.act(act.observations)
            return Acted(scaled + 3)


class DelayIsAnAttribute(TD3):
    """Counts updates where no checkpoint sees it."""

    def build(self, observation_space, action_space, config):
        made = super().build(observation_space, action_space, config)
        made.__class__ = self.Planted
        made.turn = 0
        return made

    class Planted(TD3Module):
        def is_actor_due(self):
            self.turn += 1
            return self.turn % 3 == 0


class OnlyTargetsAreDelayed(TD3):
    def compute_loss_for_module(self, module, batch, fwd_out, optimizers):
        with mock.patch.object(type(module), "is_actor_due", return_value=True):
            return super().compute_loss_for_module(module, batch, fwd_out, optimizers)


class HigherOfBothTargets(SAC):
    def prepare_batch(self, module_id, module, config, batch, learner):
        with mock.patch.object(torch, "minimum", torch.maximum):
            return super().prepare_batch(module_id, module, config, batch, learner)


class NextActionsValuedByTheCritics(SAC):
    """Only those of a Box: Discrete ones by the target network."""

    def prepare_batch(self, module_id, module, config, batch, learner):
        kept = module.target
        if module.box is not None:
            module.target = module.critics
        columns = super().prepare_batch(module_id, module, config, batch, learner)
        module.target = kept
        return columns


class EntropyOfABoxForDiscreteActions(WithModule):
    class Planted(SACModule):
        def excess_entropy(self, entropy, mask):
            return entropy + self.distribution.size


MUTANTS = [
    (TruncationEnds, "truncated_steps_bootstrap"),
    (NothingEnds, "terminated_steps_do_not_bootstrap"),
    (NextRow, "fragments_do_not_leak"),
    (WritesIntoTheBatch, "batches_stay_as_they_are"),
    (CriticsForgotten, "every_parameter_learns"),
    (TemperatureForgotten, "every_parameter_learns"),
    (SumsInsteadOfTheMean, "loss_is_a_mean"),
    (TargetNeverFollows, "targets_follow"),
    (MaskForgotten, "masks_are_respected"),
    (InfersAtRandom, "acting_is_repeatable"),
    (ExploresGlobally, "acting_changes_nothing"),
    (AcceptsEverything, "builds_for_the_spaces_it_supports"),
    (UnscaledActions, "actions_are_in_the_action_space"),
    (DelayIsAnAttribute, "state_is_complete"),
    (OnlyTargetsAreDelayed, "policy_is_delayed"),
    (HigherOfBothTargets, "targets_are_used"),
    (NextActionsValuedByTheCritics, "targets_are_used"),
    (
        EntropyOfABoxForDiscreteActions,
        "learned_temperature_keeps_choices_open",
    ),
]


LONG = [
    (
        TargetsWithoutTheSlopeOfTanh,
        "values_include_entropy_of_squashed_actions",
    ),
    (LearningRateUnused, "every_option_has_an_effect"),
]
"""Mutants that a training, or a search for who reads an option, finds."""


test_a_planted_bug_is_caught_by_the_check_meant_for_it = mutant_test(MUTANTS)
test_a_planted_bug_is_caught_by_training = pytest.mark.long(mutant_test(LONG))
