"""Single bugs planted in PPO, each caught by the check meant for it."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import numpy
import torch
from rlplug_ppo import PPO, ActorCriticModule
from rlplug_ppo.advantages import evaluate_rollout
from torch.optim import RMSprop

from rlplug import Acted
from rlplug.nn import log_prob_of
from rlplug.testing.conformance import mutant_test

OPTIONS = {"n_steps": 16, "batch_size": 64, "n_epochs": 10, "learning_rate": 0.003}


class WithModule(PPO):
    """Builds a module of another class."""

    Planted: ClassVar[type[Any]] = ActorCriticModule

    def build(self, observation_space, action_space, config, training_space):
        made = super().build(observation_space, action_space, config, training_space)
        made.__class__ = self.Planted
        return made


class BootstrapsThroughTermination(PPO):
    def prepare_batch(self, module, config, batch):
        going_on = {"terminated": torch.zeros_like(batch["terminated"])}
        return super().prepare_batch(module, config, batch.with_columns(going_on))


class TakesTimeLimitsForFailures(PPO):
    def prepare_batch(self, module, config, batch):
        ended = {"terminated": batch["terminated"] | batch["truncated"]}
        return super().prepare_batch(module, config, batch.with_columns(ended))


class LeaksAcrossFragments(PPO):
    def prepare_batch(self, module, config, batch):
        joined = torch.ones(len(batch["fragments"]), dtype=torch.bool)
        joined[-1] = False
        return super().prepare_batch(module, config, batch.with_columns({"continued": joined}))


class TakesTheNextRowForTheEnd(PPO):
    def prepare_batch(self, module, config, batch):
        after = batch["fragments"][:, 1] % batch.rows
        finals = {"final_observations": batch["observations"][after]}
        return super().prepare_batch(module, config, batch.with_columns(finals))


class WrongSign(PPO):
    def compute_loss_for_module(self, module, config, batch, fwd_out):
        turned = {"advantages": -batch["advantages"]}
        return super().compute_loss_for_module(module, config, batch.with_columns(turned), fwd_out)


class SumsTheLoss(PPO):
    def compute_loss_for_module(self, module, config, batch, fwd_out):
        loss = super().compute_loss_for_module(module, config, batch, fwd_out)
        return loss.value * batch.rows


class ForgetsTheCritic(PPO):
    def compute_loss_for_module(self, module, config, batch, fwd_out):
        out = {**fwd_out, "values": fwd_out["values"].detach()}
        return super().compute_loss_for_module(module, config, batch, out)


class ScalesRewardsInPlace(PPO):
    def prepare_batch(self, module, config, batch):
        batch["rewards"].mul_(0.1)
        return super().prepare_batch(module, config, batch)


class UndiscountedFuture(PPO):
    def prepare_batch(self, module, config, batch):
        columns = evaluate_rollout(
            module,
            batch,
            gamma=1.0,
            gae_lambda=config.gae_lambda,
            bootstrap_truncated=config.bootstrap_truncated,
        )
        del columns["parameters"]
        return columns


class MaskForgotten(WithModule):
    class Planted(ActorCriticModule):
        def forward_exploration(self, act):
            act.action_mask = None
            return super().forward_exploration(act)


class DrawsInInference(WithModule):
    class Planted(ActorCriticModule):
        def forward_inference(self, act):
            parameters, state = self.network.act(act.observations, act.state)
            random = numpy.random.default_rng()
            return Acted(self.distribution.sample(parameters, random, act.action_mask), state)


class KeepsTheCoefficientToItself(PPO):
    def additional_update(self, module, config, batch, metrics, learner):
        self.kl_coef = getattr(self, "kl_coef", 0.2) * 1.5
        return super().additional_update(module, config, batch, metrics, learner)


class NotDividedByTheDeviation(PPO):
    def compute_loss_for_module(self, module, config, batch, fwd_out):
        centred = {"advantages": batch["advantages"] - batch["advantages"].mean()}
        others = attrs.evolve(config, normalize_advantage=False)
        return super().compute_loss_for_module(module, others, batch.with_columns(centred), fwd_out)


class MaskForgottenInLogProbs(WithModule):
    class Planted(ActorCriticModule):
        def forward_exploration(self, act):
            acted = super().forward_exploration(act)
            if "log_prob" in acted.extras and act.action_mask is not None:
                parameters, _ = self.network.act(act.observations, act.state, explore=True)
                acted.extras["log_prob"] = log_prob_of(self.distribution, parameters, acted.actions)
            return acted


class RatioUpsideDown(PPO):
    def prepare_batch(self, module, config, batch):
        if "log_prob" not in batch:
            return super().prepare_batch(module, config, batch)
        parameters = module.forward_train(batch)["parameters"]
        mask = batch.get("action_mask")
        current = module.distribution.log_prob(parameters, batch["actions"], mask)
        mirrored = 2 * current - batch["log_prob"]
        return super().prepare_batch(
            module, config, batch.with_columns({"log_prob": mirrored.detach()})
        )


class ValuesAreNotClipped(PPO):
    def compute_loss_for_module(self, module, config, batch, fwd_out):
        others = attrs.evolve(config, clip_range_vf=0.0)
        return super().compute_loss_for_module(module, others, batch, fwd_out)


class SquaresBelowZero(PPO):
    def configure_optimizers_for_module(self, module, config):
        # Means of squares are negative from the second step on.
        return RMSprop(module.parameters(), lr=config.learning_rate, alpha=1.98)


MUTANTS = [
    (NotDividedByTheDeviation, "advantages_are_normalized"),
    (MaskForgottenInLogProbs, "log_probs_are_those_of_actions"),
    (BootstrapsThroughTermination, "terminated_steps_do_not_bootstrap"),
    (TakesTimeLimitsForFailures, "truncated_steps_bootstrap"),
    (LeaksAcrossFragments, "fragments_do_not_leak"),
    (TakesTheNextRowForTheEnd, "fragments_do_not_leak"),
    (SumsTheLoss, "loss_is_a_mean"),
    (ForgetsTheCritic, "every_parameter_learns"),
    (ScalesRewardsInPlace, "batches_stay_as_they_are"),
    (UndiscountedFuture, "solves_discounted_two_steps"),
    (MaskForgotten, "masks_are_respected"),
    (DrawsInInference, "acting_is_repeatable"),
    (KeepsTheCoefficientToItself, "state_is_complete"),
    (
        ValuesAreNotClipped,
        "limits_keep_policies_near",
    ),
]


test_a_planted_bug_is_caught_by_the_check_meant_for_it = mutant_test(MUTANTS, options=OPTIONS)
test_a_planted_bug_in_vtrace_is_caught = mutant_test(
    [(RatioUpsideDown, "actions_that_policies_avoid_teach_nothing")],
    variants=({"advantages": "vtrace"},),
)
