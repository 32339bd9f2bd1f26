"""Single bugs planted in a small policy gradient, each caught by the check meant for it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import numpy
import pytest
import torch
from torch import nn

from rlplug import Acted, Batch, Loss, hookimpl, option
from rlplug.feeds import Rollout, Stream
from rlplug.testing import Subject
from rlplug.testing.algorithms import PolicyGradient, PolicyGradientModule
from rlplug.testing.checks import check_named
from rlplug.testing.conformance import mutant_test


def targets(module: Any, config: Any, batch: Any, future: Any) -> Mapping[str, Any]:
    """What the unmutated algorithm prepares, given the values of what comes next."""
    aims = batch["rewards"] + config.gamma * future
    return {"targets": aims, "advantages": aims - module.values(batch["observations"])}


class TruncationEnds(PolicyGradient):
    def prepare_batch(self, module, config, batch):
        ended = batch["terminated"] | batch["truncated"]
        return targets(module, config, batch, module.values(batch["next_observations"]) * ~ended)


class NothingEnds(PolicyGradient):
    def prepare_batch(self, module, config, batch):
        return targets(module, config, batch, module.values(batch["next_observations"]))


class NextRow(PolicyGradient):
    def prepare_batch(self, module, config, batch):
        values = module.values(batch["observations"]).roll(-1)
        return targets(module, config, batch, values * ~batch["terminated"])


class NextStateAsBaseline(PolicyGradient):
    def prepare_batch(self, module, config, batch):
        after = module.values(batch["next_observations"])
        prepared = targets(module, config, batch, after * ~batch["terminated"])
        return {**prepared, "advantages": prepared["targets"] - after}


class TwiceDiscounted(PolicyGradient):
    def prepare_batch(self, module, config, batch):
        after = module.values(batch["next_observations"]) * ~batch["terminated"]
        return targets(module, config, batch, config.gamma * after)


class WritesIntoTheBatch(PolicyGradient):
    def prepare_batch(self, module, config, batch):
        batch["rewards"].clamp_(-0.5, 0.5)
        return super().prepare_batch(module, config, batch)


class WrongAction(PolicyGradient):
    def compute_loss_for_module(self, config, batch, fwd_out):
        flipped = fwd_out["log_probs"].shape[1] - 1 - batch["actions"]
        return super().compute_loss_for_module(
            config, batch.with_columns({"actions": flipped}), fwd_out
        )


class ValueDetached(PolicyGradient):
    def compute_loss_for_module(self, config, batch, fwd_out):
        values = fwd_out["values"].detach()
        return super().compute_loss_for_module(config, batch, {**fwd_out, "values": values})


class Summed(PolicyGradient):
    def compute_loss_for_module(self, config, batch, fwd_out):
        loss = super().compute_loss_for_module(config, batch, fwd_out)
        return Loss(loss.value * batch.rows)


class ClampsWeightsInTheLoss(PolicyGradient):
    def compute_loss_for_module(self, module, config, batch, fwd_out):
        for param in module.parameters():
            param.data.mul_(0.999)
        return super().compute_loss_for_module(config, batch, fwd_out)


class CriticForgotten(PolicyGradient):
    def configure_optimizers_for_module(self, module, config):
        return torch.optim.Adam(module.actor.parameters(), lr=config.learning_rate)


class GammaUnused(PolicyGradient):
    def prepare_batch(self, module, batch):
        return super().prepare_batch(module, PolicyGradient.Config(), batch)


class OwnSeed(PolicyGradient):
    def build(self, observation_space, action_space, config):
        torch.manual_seed(0)
        return super().build(observation_space, action_space, config)


class SeedsInTheUpdate(PolicyGradient):
    def additional_update(self, timestep):
        torch.manual_seed(timestep)


class NotANumber(PolicyGradient):
    def additional_update(self, timestep):
        return {"explained_variance": float("nan") if timestep > 300 else 0.0}


class TakesTheTime(PolicyGradient):
    def compute_loss_for_module(self, config, batch, fwd_out):
        loss = super().compute_loss_for_module(config, batch, fwd_out)
        return Loss(loss.value * (1.0 + time.perf_counter() % 1e-3))


class SupportsEverything(PolicyGradient):
    def supports(self, observation_space, action_space):
        return None


class SilentAboutSpaces(PolicyGradient):
    def supports(self, observation_space, action_space):
        return super().supports(observation_space, action_space) and "this does not work"


class Misspelt(PolicyGradient):
    @hookimpl
    def aditional_update(self):
        """A hook that nobody calls."""


@attrs.frozen(kw_only=True)
class Undocumented(PolicyGradient.Config):
    clip_range: float = option(0.2, "")


class WithoutHelp(PolicyGradient):
    Config: ClassVar[type[Any]] = Undocumented


class OneBaselineForAll(PolicyGradient):
    """A mean reward on `self`, which two modules, but not two instances, share."""

    def __init__(self, config=None):
        super().__init__(config)
        self.mean = 0.0

    def prepare_batch(self, module, config, batch):
        self.mean += 0.1 * (float(batch["rewards"].mean()) - self.mean)
        return super().prepare_batch(
            module, config, batch.with_columns({"rewards": batch["rewards"] - self.mean})
        )

    def save_state(self):
        return {"mean": self.mean}

    def load_state(self, state):
        self.mean = state["mean"]


class OneBaselineForAllInstances(PolicyGradient):
    seen: ClassVar[list[float]] = []

    def prepare_batch(self, module, config, batch):
        self.seen.append(float(batch["rewards"].mean()))
        mean = sum(self.seen[-5:]) / 5
        return super().prepare_batch(
            module, config, batch.with_columns({"rewards": batch["rewards"] - mean})
        )


class WithModule(PolicyGradient):
    """Builds a module of another class."""

    Planted: ClassVar[type[Any]] = PolicyGradientModule

    def build(self, observation_space, action_space, config):
        made = super().build(observation_space, action_space, config)
        made.__class__ = self.Planted
        if hasattr(made, "prepare"):
            made.prepare()
        return made


class MaskForgottenExploring(WithModule):
    class Planted(PolicyGradientModule):
        def forward_exploration(self, act):
            act.action_mask = None
            return super().forward_exploration(act)


class MaskForgottenInInference(WithModule):
    class Planted(PolicyGradientModule):
        @torch.no_grad()
        def forward_inference(self, act):
            return Acted(self.logits(act.observations).argmax(1).numpy())


class GlobalDraws(WithModule):
    class Planted(PolicyGradientModule):
        def forward_exploration(self, act):
            act.random = numpy.random.mtrand._rand
            return super().forward_exploration(act)


class OwnGenerator(WithModule):
    class Planted(PolicyGradientModule):
        def forward_exploration(self, act):
            act.random = numpy.random.default_rng()
            return super().forward_exploration(act)


class RandomInference(WithModule):
    class Planted(PolicyGradientModule):
        def forward_inference(self, act):
            act.random = numpy.random.default_rng()
            return super().forward_exploration(act)


class GradientsInActing(WithModule):
    class Planted(PolicyGradientModule):
        def forward_exploration(self, act):
            acted = super().forward_exploration(act)
            return Acted(acted.actions, extras={"logit": self.logits(act.observations)[:, 0]})


class CountsFromOne(WithModule):
    class Planted(PolicyGradientModule):
        def forward_inference(self, act):
            return Acted(super().forward_inference(act).actions + 1)


class ChangesObservations(WithModule):
    class Planted(PolicyGradientModule):
        def forward_exploration(self, act):
            act.observations -= act.observations.mean()
            return super().forward_exploration(act)


class NormaliserMovesInEvaluation(WithModule):
    class Planted(PolicyGradientModule):
        def prepare(self):
            self.register_buffer("mean", torch.zeros(()))

        def floats(self, observations):
            return super().floats(observations) - self.mean

        def forward_inference(self, act):
            self.mean += 0.01 * (float(act.observations.mean()) - self.mean)
            return super().forward_inference(act)


class PlainTensor(WithModule):
    class Planted(PolicyGradientModule):
        def prepare(self):
            self.scale = torch.ones(3)


class AlwaysFloat32(WithModule):
    class Planted(PolicyGradientModule):
        def floats(self, observations):
            return torch.as_tensor(observations, dtype=torch.float32)


class CounterNotSaved(WithModule):
    class Planted(PolicyGradientModule):
        def prepare(self):
            self.calls = 0

        def forward_train(self, batch):
            self.calls += 1
            fwd_out = super().forward_train(batch)
            return {**fwd_out, "values": fwd_out["values"] * (1.0 + 0.01 * self.calls)}


class BufferNotPersistent(WithModule):
    class Planted(PolicyGradientModule):
        def prepare(self):
            self.register_buffer("mean", torch.zeros(()), persistent=False)

        def forward_train(self, batch):
            self.mean += 0.1 * (batch["rewards"].mean() - self.mean)
            fwd_out = super().forward_train(batch)
            return {**fwd_out, "values": fwd_out["values"] + self.mean}


class UntrainedPart(WithModule):
    class Planted(PolicyGradientModule):
        def prepare(self):
            self.unused = nn.Linear(2, 2)


class MaskForgottenInTraining(WithModule):
    class Planted(PolicyGradientModule):
        def forward_train(self, batch):
            return super().forward_train(Batch({"observations": batch["observations"]}))


class RateReadOnce(PolicyGradient):
    def configure_optimizers_for_module(self, module, config):
        return torch.optim.Adam(module.parameters(), lr=float(config.learning_rate))


class CoefficientOfTheStart(PolicyGradient):
    def compute_loss_for_module(self, batch, fwd_out):
        return super().compute_loss_for_module(self.config, batch, fwd_out)


@attrs.frozen(kw_only=True)
class GaeConfig(PolicyGradient.Config):
    gae_lambda: float = option(0.9, "Lambda of the advantages.")
    normalize_advantage: bool = option(True, "Normalize the advantages of a rollout.")
    n_steps: int = option(16, "Steps of each environment per rollout.")


class Gae(PolicyGradient):
    """Generalised advantage estimation, row by row, normalized where it is prepared."""

    Config: ClassVar[type[Any]] = GaeConfig

    def feed(self):
        return Rollout(n_steps=self.config.n_steps, batch_size=0)

    def prepare_batch(self, module, config, batch):
        extended = batch.extended()
        values, following = extended.split(module.values(extended["observations"]))
        advantages = self.sums(
            batch["rewards"] + config.gamma * following * ~batch["terminated"] - values,
            batch["fragments"],
            config,
        )
        prepared = {"targets": advantages + values, "advantages": advantages}
        if config.normalize_advantage:
            prepared["advantages"] = self.normalized(advantages)
        return prepared

    def sums(self, errors, fragments, config):
        sums, ends = errors.clone(), (fragments[:, 1] - 1).tolist()
        for row in range(len(sums) - 2, -1, -1):
            if row not in ends:
                sums[row] += config.gamma * config.gae_lambda * sums[row + 1]
        return sums

    def normalized(self, advantages):
        return (advantages - advantages.mean()) / advantages.std()


class DecaysByLambdaAlone(Gae):
    def sums(self, errors, fragments, config):
        return super().sums(errors, fragments, attrs.evolve(config, gamma=1.0))


class StopsOneStepEarly(Gae):
    def sums(self, errors, fragments, config):
        return super().sums(errors, torch.cat([fragments, fragments - 1]), config)


class NormalizedWithoutAMean(Gae):
    def normalized(self, advantages):
        return advantages / advantages.std()


class OneStepMore(PolicyGradient):
    def feed(self):
        return Stream(steps_per_update=self.config.steps_per_update + 1)


class MaskForgottenInExport(WithModule):
    class Planted(PolicyGradientModule):
        def forward_export(self, act):
            return Acted(self.logits(act.observations).argmax(1))


@attrs.frozen(kw_only=True)
class LimitedConfig(PolicyGradient.Config):
    target_kl: float = option(0.0, "Stop where the KL is above; 0 disables.")
    kl_coef: float = option(0.0, "Coefficient of the KL penalty.")
    kl_target: float = option(0.01, "KL that the coefficient aims at.")


class StopsWhereTheKlIsSmall(PolicyGradient):
    Config: ClassVar[type[Any]] = LimitedConfig

    def compute_loss_for_module(self, config, batch, fwd_out):
        loss = super().compute_loss_for_module(config, batch, fwd_out)
        stop = torch.tensor(bool(config.target_kl) and config.target_kl > 0.001)
        return Loss(loss.value, stop=stop)


class CoefficientFallsWhereItShouldRise(PolicyGradient):
    Config: ClassVar[type[Any]] = LimitedConfig

    def build(self, observation_space, action_space, config):
        module = super().build(observation_space, action_space, config)
        module.register_buffer("kl_coef", torch.tensor(config.kl_coef))
        return module

    def additional_update(self, module, config):
        module.kl_coef *= 1.5 if config.kl_target > 0.01 else 0.5
        return {"kl_coef": module.kl_coef.clone()}


MUTANTS = [
    (OneStepMore, "feed_has_the_options"),
    (MaskForgottenInExport, "export_acts_like_inference"),
    (StopsWhereTheKlIsSmall, "limits_keep_policies_near"),
    (CoefficientFallsWhereItShouldRise, "kl_coefficient_aims_at_its_target"),
    (MaskForgottenInTraining, "masked_actions_are_not_learned"),
    (RateReadOnce, "schedules_are_followed"),
    (CoefficientOfTheStart, "schedules_are_followed"),
    (DecaysByLambdaAlone, "advantages_are_sums_of_td_errors"),
    (StopsOneStepEarly, "advantages_are_sums_of_td_errors"),
    (NormalizedWithoutAMean, "advantages_are_normalized"),
    (TruncationEnds, "truncated_steps_bootstrap"),
    (TruncationEnds, "solves_time_limit"),
    (TruncationEnds, "solves_stay_under_a_time_limit"),
    (NothingEnds, "terminated_steps_do_not_bootstrap"),
    (NothingEnds, "solves_ending"),
    (NextRow, "fragments_do_not_leak"),
    (NextStateAsBaseline, "solves_delayed_reward"),
    (TwiceDiscounted, "solves_discounted_two_steps"),
    (WritesIntoTheBatch, "batches_stay_as_they_are"),
    (WrongAction, "solves_reward_by_observation_and_action"),
    (ValueDetached, "every_parameter_learns"),
    (Summed, "loss_is_a_mean"),
    (ClampsWeightsInTheLoss, "hooks_move_no_parameter"),
    (CriticForgotten, "every_parameter_learns"),
    (UntrainedPart, "every_parameter_learns"),
    (GammaUnused, "every_option_has_an_effect"),
    (OwnSeed, "seed_is_used"),
    (SeedsInTheUpdate, "generators_of_others_stay"),
    (NotANumber, "metrics_are_finite_numbers"),
    (TakesTheTime, "same_seed_same_numbers"),
    (SupportsEverything, "builds_for_the_spaces_it_supports"),
    (SilentAboutSpaces, "builds_for_the_spaces_it_supports"),
    (Misspelt, "hooks_are_well_formed"),
    (WithoutHelp, "options_are_typed_and_documented"),
    (OneBaselineForAll, "modules_of_several_spaces"),
    (OneBaselineForAllInstances, "same_seed_same_numbers"),
    (MaskForgottenExploring, "masks_are_respected"),
    (MaskForgottenInInference, "masks_are_respected"),
    (GlobalDraws, "acting_changes_nothing"),
    (OwnGenerator, "acting_is_repeatable"),
    (RandomInference, "acting_is_repeatable"),
    (GradientsInActing, "actions_are_in_the_action_space"),
    (CountsFromOne, "actions_are_in_the_action_space"),
    (ChangesObservations, "acting_changes_nothing"),
    (NormaliserMovesInEvaluation, "acting_changes_nothing"),
    (PlainTensor, "tensors_are_parameters_or_buffers"),
    (AlwaysFloat32, "learns_with_float64"),
    (CounterNotSaved, "state_is_complete"),
    (BufferNotPersistent, "state_is_complete"),
]


TRAINED = [mutant for mutant in MUTANTS if mutant[1].startswith("solves_")]
"""For each change, those of Q-learning show that trainings find them."""

test_a_planted_bug_is_caught_by_the_check_meant_for_it = mutant_test(
    [mutant for mutant in MUTANTS if mutant not in TRAINED]
)
test_a_planted_bug_is_caught_by_training = pytest.mark.long(mutant_test(TRAINED, trainings=None))


def test_advantages_may_be_normalized_where_they_are_prepared() -> None:
    for name in ("advantages_are_sums_of_td_errors", "advantages_are_normalized"):
        check_named(name)(Subject.of(Gae))
