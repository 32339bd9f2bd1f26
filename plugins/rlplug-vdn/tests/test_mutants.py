"""Single bugs planted in VDN, each caught by the check meant for it."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from rlplug_vdn import VDN
from rlplug_vdn.module import TeamModule

from rlplug.testing.conformance import mutant_test


class WithModule(VDN):
    """Builds a module of another class."""

    Planted: ClassVar[type[Any]] = TeamModule

    def build(self, observation_space, action_space, config, seed, training_space):
        made = super().build(observation_space, action_space, config, seed, training_space)
        made.__class__ = self.Planted
        return made


class AbsentAgentsCount(WithModule):
    class Planted(TeamModule):
        def total(self, chosen, observations, *, target=False):
            if self.is_team:
                there = torch.ones_like(observations["present"])
                observations = {**observations, "present": there}
            return super().total(chosen, observations, target=target)


class OnlyTheFirstAgentLearns(WithModule):
    class Planted(TeamModule):
        def total(self, chosen, observations, *, target=False):
            first = torch.zeros_like(chosen)
            first[:, 0] = 1
            return super().total(chosen * first, observations, target=target)


class StateForgotten(WithModule):
    class Planted(TeamModule):
        def total(self, chosen, observations, *, target=False):
            if self.is_team and "state" in observations:
                blank = torch.zeros_like(observations["state"])
                observations = {**observations, "state": blank}
            return super().total(chosen, observations, target=target)


MUTANTS = [
    (AbsentAgentsCount, "teams_are_learned"),
    (OnlyTheFirstAgentLearns, "teams_are_learned"),
    (StateForgotten, "teams_are_learned"),
]


test_a_planted_bug_is_caught_by_the_check_meant_for_it = mutant_test(MUTANTS)
