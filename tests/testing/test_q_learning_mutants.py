"""Single bugs planted in a small Q-learning, each caught by the check meant for it."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy
import pytest
import torch

from rlplug import Acted, Loss
from rlplug.testing.algorithms import QLearning, QLearningModule
from rlplug.testing.conformance import mutant_test


class TruncationEnds(QLearning):
    def prepare_batch(self, module, config, batch):
        ended = batch["terminated"] | batch["truncated"]
        return super().prepare_batch(module, config, batch.with_columns({"terminated": ended}))


class NothingEnds(QLearning):
    def prepare_batch(self, module, config, batch):
        never = torch.zeros_like(batch["terminated"])
        return super().prepare_batch(module, config, batch.with_columns({"terminated": never}))


class NextRow(QLearning):
    def prepare_batch(self, module, config, batch):
        after = batch["observations"].roll(-1, 0)
        return super().prepare_batch(
            module, config, batch.with_columns({"next_observations": after})
        )


class ValueOfThisState(QLearning):
    def prepare_batch(self, module, config, batch):
        here = batch["observations"]
        return super().prepare_batch(
            module, config, batch.with_columns({"next_observations": here})
        )


class WritesIntoTheBatch(QLearning):
    def prepare_batch(self, module, config, batch):
        batch["rewards"].sub_(batch["rewards"].mean())
        return super().prepare_batch(module, config, batch)


class TargetNeverCopied(QLearning):
    def additional_update(self, module, config):
        module.epsilon.fill_(config.epsilon)


class TargetTrains(QLearning):
    def build(self, observation_space, action_space, config):
        module = super().build(observation_space, action_space, config)
        module.target.requires_grad_(True)
        return module


class WrongSign(QLearning):
    def compute_loss_for_module(self, batch, fwd_out):
        chosen = fwd_out["q_values"].gather(1, batch["actions"].long()[:, None])[:, 0]
        return ((chosen + batch["targets"]) ** 2).mean()


class WrongAction(QLearning):
    def compute_loss_for_module(self, batch, fwd_out):
        flipped = fwd_out["q_values"].shape[1] - 1 - batch["actions"]
        return super().compute_loss_for_module(batch.with_columns({"actions": flipped}), fwd_out)


class Broadcast(QLearning):
    """(n, 1) minus (n,) is (n, n): every value is drawn to every target."""

    def compute_loss_for_module(self, batch, fwd_out):
        chosen = fwd_out["q_values"].gather(1, batch["actions"].long()[:, None])
        return ((chosen - batch["targets"]) ** 2).mean()


class Summed(QLearning):
    def compute_loss_for_module(self, batch, fwd_out):
        loss = super().compute_loss_for_module(batch, fwd_out)
        return Loss(loss.value * batch.rows)


class OutputDetached(QLearning):
    def compute_loss_for_module(self, module, batch, fwd_out):
        hidden = module.q[:-1](module.floats(batch["observations"])).detach()
        return super().compute_loss_for_module(batch, {"q_values": module.q[-1](hidden)})


class DoubleUnused(QLearning):
    def prepare_batch(self, module, config, batch):
        values = module.target(module.floats(batch["next_observations"])).max(1).values
        return {"targets": batch["rewards"] + config.gamma * values * ~batch["terminated"]}


class OptimizerOfTheTarget(QLearning):
    def configure_optimizers_for_module(self, module, config):
        return torch.optim.Adam(module.target.parameters(), lr=config.learning_rate)


class CounterOnTheAlgorithm(QLearning):
    """Saved, but by the wrong module: all modules count together."""

    def __init__(self, config=None):
        super().__init__(config)
        self.updates = 0

    def additional_update(self, module, config):
        self.updates += 1
        if self.updates % config.target_update_interval == 0:
            module.target.load_state_dict(module.q.state_dict())

    def save_state(self):
        return {"updates": self.updates}

    def load_state(self, state):
        self.updates = state["updates"]


class CounterNotLoaded(CounterOnTheAlgorithm):
    def load_state(self, state):
        """Forgets."""


class CounterSharedByAll(QLearning):
    counts: ClassVar[dict[str, int]] = {}

    def additional_update(self, module_id, module, config):
        self.counts[module_id] = self.counts.get(module_id, 0) + 1
        if self.counts[module_id] % config.target_update_interval == 0:
            module.target.load_state_dict(module.q.state_dict())


class WithModule(QLearning):
    """Builds a module of another class."""

    Planted: ClassVar[type[Any]] = QLearningModule

    def build(self, observation_space, action_space, config):
        made = super().build(observation_space, action_space, config)
        made.__class__ = self.Planted
        return made


class MaskForgotten(WithModule):
    class Planted(QLearningModule):
        def greedy(self, observations, mask=None):
            return super().greedy(observations)


class WorstAction(WithModule):
    class Planted(QLearningModule):
        def greedy(self, observations, mask=None):
            return (-self.q(self.floats(observations))).argmax(1).numpy()


class TargetNotSaved(WithModule):
    class Planted(QLearningModule):
        def state_dict(self, *args, **kwargs):
            whole = super().state_dict(*args, **kwargs)
            for name in [name for name in whole if name.startswith("target")]:
                del whole[name]
            return whole


class EpsilonDecaysInEvaluation(WithModule):
    class Planted(QLearningModule):
        def forward_inference(self, act):
            self.epsilon *= 0.99
            return super().forward_inference(act)


class NumpyDraws(WithModule):
    class Planted(QLearningModule):
        def forward_exploration(self, act):
            act.random = numpy.random.mtrand._rand
            return super().forward_exploration(act)


class OneActionForAll(WithModule):
    class Planted(QLearningModule):
        def forward_inference(self, act):
            return Acted(super().forward_inference(act).actions[:1])


MUTANTS = [
    (TruncationEnds, "truncated_steps_bootstrap"),
    (TruncationEnds, "solves_time_limit"),
    (TruncationEnds, "solves_stay_under_a_time_limit"),
    (NothingEnds, "terminated_steps_do_not_bootstrap"),
    (NothingEnds, "solves_ending"),
    (NextRow, "fragments_do_not_leak"),
    (ValueOfThisState, "solves_discounted_two_steps"),
    (WritesIntoTheBatch, "batches_stay_as_they_are"),
    (TargetNeverCopied, "targets_follow"),
    (TargetNeverCopied, "solves_discounted_two_steps"),
    (TargetTrains, "every_parameter_learns"),
    (WrongSign, "solves_constant_reward"),
    (Broadcast, "solves_reward_by_observation"),
    (Summed, "loss_is_a_mean"),
    (OutputDetached, "every_parameter_learns"),
    (DoubleUnused, "every_option_has_an_effect"),
    (OptimizerOfTheTarget, "every_parameter_learns"),
    (CounterOnTheAlgorithm, "modules_of_several_spaces"),
    (CounterNotLoaded, "state_is_complete"),
    (CounterSharedByAll, "same_seed_same_numbers"),
    (MaskForgotten, "masks_are_respected"),
    (MaskForgotten, "solves_masked_best_action"),
    (WorstAction, "solves_known_best_arm"),
    (TargetNotSaved, "state_is_complete"),
    (EpsilonDecaysInEvaluation, "acting_changes_nothing"),
    (NumpyDraws, "acting_changes_nothing"),
    (OneActionForAll, "actions_are_in_the_action_space"),
]


test_a_planted_bug_is_caught_by_the_check_meant_for_it = mutant_test(MUTANTS)
test_more_trainings_make_no_difference_to_a_planted_bug = pytest.mark.long(
    mutant_test([one for one in MUTANTS if one[1].startswith("solves_")], trainings=None)
)
