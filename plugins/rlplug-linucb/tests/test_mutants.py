"""Single bugs planted in LinUCB, each caught by the check meant for it."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import numpy
import torch
from rlplug_linucb import LinUCB, LinUCBConfig, LinUCBModule

from rlplug import Acted, option
from rlplug.testing.conformance import mutant_test


class WithModule(LinUCB):
    """Builds a module of another class."""

    Planted: ClassVar[type[Any]] = LinUCBModule

    def build(self, observation_space, action_space, config):
        made = super().build(observation_space, action_space, config)
        made.__class__ = self.Planted
        return made


class MaskForgotten(WithModule):
    class Planted(LinUCBModule):
        def pick(self, parsed, scores, random, by="ucb"):
            return super().pick(parsed._replace(mask=None), scores, random, by)


class NeverExplores(WithModule):
    class Planted(LinUCBModule):
        def forward_exploration(self, act):
            return self.forward_inference(act)


class WrongSign(LinUCB):
    def additional_update(self, module, config, batch, learner):
        rewards = {"rewards": -batch["rewards"]}
        return super().additional_update(module, config, batch.with_columns(rewards), learner)


class CreditsTheNextArm(WithModule):
    class Planted(LinUCBModule):
        def update(self, observations, actions, rewards, weights=None):
            arms = (numpy.asarray(actions) + 1) % self.layout.num_arms
            super().update(observations, arms, rewards, weights)


class NegatesContexts(WithModule):
    class Planted(LinUCBModule):
        def update(self, observations, actions, rewards, weights=None):
            super().update(-observations, actions, rewards, weights)


class LearnsNothing(LinUCB):
    def additional_update(self, module, config, batch, learner):
        return {}


class WritesIntoTheBatch(LinUCB):
    def additional_update(self, module, config, batch, learner):
        batch.array("rewards")[:] *= 0.5
        return super().additional_update(module, config, batch, learner)


class CentresContexts(WithModule):
    class Planted(LinUCBModule):
        def forward_exploration(self, act):
            act.observations -= act.observations.mean(0)
            return super().forward_exploration(act)


class BreaksTiesGlobally(WithModule):
    class Planted(LinUCBModule):
        def pick(self, parsed, scores, random, by="ucb"):
            numpy.random.shuffle(numpy.arange(3))
            return super().pick(parsed, scores, random, by)


class BreaksTiesInInference(WithModule):
    class Planted(LinUCBModule):
        def pick(self, parsed, scores, random, by="ucb"):
            return super().pick(parsed, scores, numpy.random.default_rng(), by)


@attrs.frozen(kw_only=True)
class WithIdleOption(LinUCBConfig):
    """One option more than anybody reads."""

    decay: float = option(0.5, "Does nothing.")


class IdleOption(LinUCB):
    Config: ClassVar[type[Any]] = WithIdleOption


class AlphaUnused(LinUCB):
    def build(self, observation_space, action_space, config):
        names = [one.name for one in attrs.fields(LinUCBConfig) if one.name != "alpha"]
        others = LinUCBConfig(**{name: getattr(config, name) for name in names})
        return super().build(observation_space, action_space, others)

    def additional_update(self, module, batch, learner):
        return super().additional_update(module, LinUCBConfig(), batch, learner)


class SumsNotSaved(WithModule):
    class Planted(LinUCBModule):
        def state_dict(self, *args, **kwargs):
            whole = super().state_dict(*args, **kwargs)
            for name in [name for name in whole if name.endswith("sums")]:
                whole[name] = torch.zeros_like(whole[name])
            return whole


class SumsForAllInstances(LinUCB):
    """Every instance learns what any of them saw."""

    seen: ClassVar[list[Any]] = []

    def additional_update(self, module, config, batch, learner):
        self.seen.append(batch)
        for other in self.seen[-3:]:
            super().additional_update(module, config, other, learner)
        return {}


class ErrorsAreNotANumber(LinUCB):
    def additional_update(self, module, config, batch, learner):
        metrics = super().additional_update(module, config, batch, learner)
        return {**metrics, "root_error": metrics["progressive_error"] * float("nan")}


class RefusesInBuild(LinUCB):
    def supports(self, observation_space, action_space):
        return None


class SaysNothingOfTheSpace(LinUCB):
    def supports(self, observation_space, action_space):
        return super().supports(observation_space, action_space) and "unsupported"


class ArmsFromOne(WithModule):
    class Planted(LinUCBModule):
        def forward_inference(self, act):
            return Acted(super().forward_inference(act).actions + 1)


class KeepsAPlainTensor(WithModule):
    class Planted(LinUCBModule):
        def update(self, observations, actions, rewards, weights=None):
            self.last = torch.as_tensor(rewards).clone()
            super().update(observations, actions, rewards, weights)


class WeightsSquared(WithModule):
    class Planted(LinUCBModule):
        def update(self, observations, actions, rewards, weights=None):
            squared = None if weights is None else numpy.asarray(weights) ** 2
            super().update(observations, actions, rewards, squared)


class LearnsTheFirstRowOnly(WithModule):
    class Planted(LinUCBModule):
        def update(self, observations, actions, rewards, weights=None):
            weights = None if weights is None else weights[:1]
            super().update(observations[:1], actions[:1], rewards[:1], weights)


class EachLearnerAlone(LinUCB):
    def additional_update(self, module, config, batch, learner):
        module.update(batch.array("observations"), batch.array("actions"), batch.array("rewards"))
        return {}


class BoundsBelowTheMean(LinUCB):
    def additional_update(self, module, config, batch, learner):
        metrics = super().additional_update(module, config, batch, learner)
        module.alpha.fill_(-config.alpha)
        return metrics


class SingleRowsForgotten(LinUCB):
    def additional_update(self, module, config, batch, learner):
        if batch.rows == 1:
            return {}
        return super().additional_update(module, config, batch, learner)


class ArmsKnownByTheirPlace(WithModule):
    class Planted(LinUCBModule):
        def forward_inference(self, act):
            ids = numpy.sort(act.observations["arm_ids"], axis=1)
            act.observations = {**act.observations, "arm_ids": ids}
            return super().forward_inference(act)


class ErrorsOfSingleRowsAreNotSquared(LinUCB):
    def additional_update(self, module, config, batch, learner):
        metrics = super().additional_update(module, config, batch, learner)
        if batch.rows == 1:
            return {**metrics, "progressive_error": metrics["progressive_error"] ** 0.5}
        return metrics


MUTANTS = [
    (WeightsSquared, "weights_count_rows", "a row of weight 2 and two such rows"),
    (WeightsSquared, "equals_its_reference", "pred_label as rlplug_linucb.algorithm:plain_ridge"),
    (LearnsTheFirstRowOnly, "rows_may_be_split_into_batches", "from a batch and from its halves"),
    (EachLearnerAlone, "two_learners_stay_the_same", "learner.all_reduce"),
    (MaskForgotten, "masks_are_respected", "under the mask"),
    (MaskForgotten, "finds_the_best_arm_that_is_present", "is absent"),
    (NeverExplores, "solves_known_best_arm", "exploration"),
    (WrongSign, "solves_reward_by_action", "action 0 after"),
    (CreditsTheNextArm, "solves_known_best_arm", "what an arm is credited with"),
    (NegatesContexts, "solves_reward_by_observation_and_action", "the same row"),
    (LearnsNothing, "every_parameter_learns", "ten updates changed nothing"),
    (WritesIntoTheBatch, "batches_stay_as_they_are", "column rewards"),
    (CentresContexts, "acting_changes_nothing", "observations left as they were"),
    (BreaksTiesGlobally, "acting_changes_nothing", "numpy.random"),
    (BreaksTiesInInference, "acting_is_repeatable", "the same best actions"),
    (AlphaUnused, "every_option_is_read", "nobody read 'alpha'"),
    (IdleOption, "every_option_is_read", "nobody read 'decay'"),
    (SumsNotSaved, "state_is_complete", "updates later: modules.default.regressions"),
    (SumsForAllInstances, "instances_do_not_meet", "class attributes"),
    (ErrorsAreNotANumber, "metrics_are_finite_numbers", "root_error is nan"),
    (RefusesInBuild, "builds_for_the_spaces_it_supports", "which `supports` accepts"),
    (SaysNothingOfTheSpace, "builds_for_the_spaces_it_supports", "'unsupported'"),
    (ArmsFromOne, "actions_are_in_the_action_space", "actions in Discrete"),
    (KeepsAPlainTensor, "tensors_are_parameters_or_buffers", "Planted.last"),
    (BoundsBelowTheMean, "equals_its_reference", "ucb as rlplug_linucb.algorithm:plain_ridge"),
    (SingleRowsForgotten, "rows_may_be_split_into_batches", "its rows, one by one"),
    (ArmsKnownByTheirPlace, "arms_are_known_by_their_ids", "by its id"),
    (ErrorsOfSingleRowsAreNotSquared, "metrics_are_means_over_rows", "'progressive_error'"),
]


test_a_planted_bug_is_caught_by_the_check_meant_for_it = mutant_test(MUTANTS)
