"""Single bugs planted in LinUCB, each caught by the check meant for it."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy
import torch
from rlplug_linucb import LinUCB, LinUCBModule

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
        def read(self, observations, action_mask=None, rows=1):
            return super().read(observations, action_mask, rows)._replace(mask=None)


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
        def columns(self, observations, actions, rewards, weights):
            arms = (numpy.asarray(actions) + 1) % self.layout.num_arms
            return super().columns(observations, arms, rewards, weights)


class NegatesContexts(WithModule):
    class Planted(LinUCBModule):
        def columns(self, observations, actions, rewards, weights):
            return super().columns(-observations, actions, rewards, weights)


class LearnsNothing(LinUCB):
    def additional_update(self, module, config, batch, learner):
        return {}


class SumsNotSaved(WithModule):
    class Planted(LinUCBModule):
        def state_dict(self, *args, **kwargs):
            whole = super().state_dict(*args, **kwargs)
            for name in [name for name in whole if name.endswith(".A")]:
                whole[name] = torch.zeros_like(whole[name])
            return whole


class WeightsSquared(WithModule):
    class Planted(LinUCBModule):
        def columns(self, observations, actions, rewards, weights):
            squared = None if weights is None else numpy.asarray(weights) ** 2
            return super().columns(observations, actions, rewards, squared)


class LearnsTheFirstRowOnly(WithModule):
    class Planted(LinUCBModule):
        def columns(self, observations, actions, rewards, weights):
            weights = None if weights is None else weights[:1]
            return super().columns(observations[:1], actions[:1], rewards[:1], weights)


class EachLearnerAlone(LinUCB):
    def additional_update(self, module, config, batch, learner):
        module.update(batch.array("observations"), batch.array("actions"), batch.array("rewards"))
        return {}


class BoundsBelowTheMean(LinUCB):
    def additional_update(self, module, config, batch, learner):
        metrics = super().additional_update(module, config, batch, learner)
        module.alpha.fill(-config.alpha)
        return metrics


class SingleRowsForgotten(LinUCB):
    def additional_update(self, module, config, batch, learner):
        if batch.rows == 1:
            return {}
        return super().additional_update(module, config, batch, learner)


MUTANTS = [
    (WeightsSquared, "weights_count_rows"),
    (WeightsSquared, "equals_its_reference"),
    (LearnsTheFirstRowOnly, "weights_count_rows"),
    (EachLearnerAlone, "two_learners_stay_the_same"),
    (MaskForgotten, "masks_are_respected"),
    (MaskForgotten, "finds_the_best_arm_that_is_present"),
    (NeverExplores, "solves_known_best_arm"),
    (CreditsTheNextArm, "solves_known_best_arm"),
    (NegatesContexts, "solves_reward_by_observation_and_action"),
    (LearnsNothing, "every_parameter_learns"),
    (SumsNotSaved, "state_is_complete"),
    (BoundsBelowTheMean, "equals_its_reference"),
    (SingleRowsForgotten, "weights_count_rows"),
]


test_a_planted_bug_is_caught_by_the_check_meant_for_it = mutant_test(MUTANTS)
