"""Checks of what is learned: entropy, answers of probes, limits of policies, bonuses of add-ons.

Where they train, algorithms that learn nothing take part, whose actions are known beforehand.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import attrs
import numpy
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rlplug import Acted, ActInput, AddOn, Batch, Loss, Module, option
from rlplug.feeds import Feed, Replay, Stream
from rlplug.testing.algorithms import PolicyGradient, PolicyGradientConfig, QLearning
from rlplug.testing.probes import PROBES
from tests.faulty import failure, passed_by, passes

# -- entropy ---------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class FixedConfig(PolicyGradientConfig):
    """A coefficient that may be learned."""

    ent_coef: float | Literal["auto"] = option(0.2, "Entropy coefficient, or auto.")


class FixedModule(Module):
    """Acts by chance, whatever it learns."""

    def __init__(self, plugin: Any, config: Any, box: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.plugin, self.box, self.learned = plugin, box, config.ent_coef == "auto"

    def forward_exploration(self, act: ActInput) -> Acted:
        n = len(act.observations)
        if not self.box:
            return Acted((act.random.random(n) < self.plugin.share).astype(numpy.int64))
        spread = self.plugin.learned if self.learned else self.plugin.given
        return Acted(self.plugin.draw(act.random, n, spread).astype(numpy.float32)[:, None])

    def forward_inference(self, act: ActInput) -> Acted:
        n = len(act.observations)
        return Acted(numpy.zeros((n, 1), numpy.float32) if self.box else numpy.zeros(n, int))

    def forward_train(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"weight": self.weight}


class Fixed(PolicyGradient):
    """Acts by chance, whatever it learns."""

    Config: ClassVar[type[Any]] = FixedConfig
    share: ClassVar[float] = 0.66
    given: ClassVar[float] = 1.0
    learned: ClassVar[float] = 0.18
    middle: ClassVar[float] = 1.0

    def feed(self) -> Feed:
        return Stream(steps_per_update=100)

    def supports(self, observation_space: Any, action_space: Any) -> str | None:
        box = isinstance(action_space, spaces.Box) and action_space.shape == (1,)
        flat = isinstance(observation_space, spaces.Box) and len(observation_space.shape) == 1
        two = getattr(action_space, "n", 0) == 2 and isinstance(action_space, spaces.Discrete)
        return None if flat and (box or two) else "one number or two actions"

    def build(self, observation_space: Any, action_space: Any, config: Any) -> Any:
        return FixedModule(type(self), config, isinstance(action_space, spaces.Box))

    @classmethod
    def draw(cls, random: Any, n: int, spread: float) -> Any:
        """Actions with this deviation, within their bounds."""
        return numpy.clip(cls.middle + spread * random.standard_normal(n), -0.99, 2.99)

    def prepare_batch(self, batch: Batch) -> Mapping[str, Tensor]:  # type: ignore[override]
        return {}

    def compute_loss_for_module(self, fwd_out: Any) -> Loss:  # type: ignore[override]
        return Loss((fwd_out["weight"] ** 2).mean())


def fixed(base: type[Any] = Fixed, **given: Any) -> type[Any]:
    """The same with other chances."""
    return type("Mine", (base,), {**given, "__doc__": "Acts by chance."})


class AtBounds(Fixed):
    """Acts at one of the bounds."""

    @classmethod
    def draw(cls, random: Any, n: int, spread: float) -> Any:
        if spread == cls.learned:
            return super().draw(random, n, spread)
        return numpy.where(random.random(n) < 0.5, -1.0, 3.0)


@pytest.mark.parametrize(
    "plugin",
    [
        fixed(share=0.37),
        fixed(share=0.97),
        fixed(given=0.35),
        fixed(AtBounds),
        fixed(learned=0.8),
        fixed(learned=0.01),
    ],
)
def test_policies_that_are_not_as_random_as_they_should_be_are_told(plugin: type[Any]) -> None:
    told = failure("entropy_keeps_policies_random", plugin)
    assert "compute_loss_for_module" in told.look_at


def test_policies_that_are_as_random_as_they_should_be_pass() -> None:
    passes("entropy_keeps_policies_random", Fixed)
    # Without bounds, draws beyond them are none at them.
    passes("learned_temperature_keeps_choices_open", Fixed)


@pytest.mark.parametrize("share", [0.48, 0.995])
def test_learned_temperatures_that_close_a_choice_are_told(share: float) -> None:
    failure("learned_temperature_keeps_choices_open", fixed(share=share))


class OffPolicy(Fixed):
    """The same with a replay buffer."""

    def feed(self) -> Feed:
        return Replay(buffer_size=8000, batch_size=8, learning_starts=7000, train_freq=100)


def test_first_actions_show_whether_values_include_entropy() -> None:
    # A mean of 1.8, seven tenths of the way from -1 to 3.
    passes("values_include_entropy", fixed(OffPolicy, share=0.7, middle=1.8, given=0.3))
    for plugin in (
        fixed(OffPolicy, share=0.7, middle=1.0, given=0.3),
        fixed(OffPolicy, share=0.5, middle=1.8, given=0.3),
    ):
        failure("values_include_entropy", plugin)


def test_first_actions_show_whose_entropy_values_include() -> None:
    name = "values_include_entropy_of_squashed_actions"
    passes(name, fixed(OffPolicy, middle=-0.4, given=0.1))
    failure(name, fixed(OffPolicy, middle=0.4, given=0.1))


@pytest.mark.parametrize(
    ("check", "plugin"),
    [
        ("entropy_keeps_policies_random", QLearning),
        ("learned_temperature_keeps_choices_open", QLearning),
        ("learned_temperature_keeps_choices_open", PolicyGradient),
        ("values_include_entropy_of_squashed_actions", QLearning),
        ("entropy_keeps_imitation_random", PolicyGradient),
    ],
)
def test_checks_of_entropy_pass_by_where_there_is_none(check: str, plugin: type[Any]) -> None:
    assert passed_by(check, plugin)


class BeyondBounds(Fixed):
    """Draws beyond the bounds, which the sampler clips."""

    @classmethod
    def draw(cls, random: Any, n: int, spread: float) -> Any:
        return numpy.full(n, 4.0)


class BestBeyondBounds(Fixed):
    """Takes an action beyond the bounds for the best one."""

    def build(self, observation_space: Any, action_space: Any, config: Any) -> Any:
        class Beyond(FixedModule):
            def forward_inference(self, act: ActInput) -> Acted:
                acted = super().forward_inference(act)
                return Acted(acted.actions + 4) if self.box else acted

        return Beyond(type(self), config, isinstance(action_space, spaces.Box))


def test_draws_may_lie_beyond_bounds_but_best_actions_may_not() -> None:
    passes("actions_are_in_the_action_space", Fixed)
    passes("actions_are_in_the_action_space", BeyondBounds)
    failure("actions_are_in_the_action_space", BestBeyondBounds)


# -- answers of probes -----------------------------------------------------------------------------

BY_NAME = {one.name: one for one in PROBES}


LOOKED_FOR = "the answer of probe 'time_limit' at [1.0, 0.0] with width = 8"


class OfThreeActions(QLearning):
    """Supports three actions alone."""

    def supports(self, observation_space: Any, action_space: Any) -> str | None:
        return None if getattr(action_space, "n", 0) == 3 else "three actions"


@pytest.mark.parametrize(
    "check",
    ["solves_reward_by_observation_and_action", "variants_solve_reward_by_observation_and_action"],
)
def test_probes_of_other_spaces_are_passed_by(check: str) -> None:
    assert passed_by(check, OfThreeActions)


# -- limits ----------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class LimitedConfig(PolicyGradientConfig):
    """Limits of policies and values."""

    kl_coef: float = option(0.2, "Coefficient of the KL penalty.")
    kl_target: float = option(0.01, "KL that the coefficient aims at.")
    clip_range_vf: float = option(0.0, "Limit of values.")


class Limited(PolicyGradient):
    """Moves less where it is limited, and adapts its coefficient."""

    Config: ClassVar[type[Any]] = LimitedConfig
    rise: ClassVar[float] = 1.5

    def build(self, observation_space: Any, action_space: Any, config: Any) -> Any:
        module = super().build(observation_space, action_space, config)
        module.register_buffer("kl_coef", torch.tensor(config.kl_coef))
        return module

    def of_policy(self, config: Any) -> float:
        """By how much the policy's loss is smaller."""
        return float(1 / (1 + 1e3 * config.kl_coef))

    def of_values(self, config: Any) -> float:
        """By how much that of values is."""
        return 1e-3 if 0 < config.clip_range_vf < 1 else 1.0

    def configure_optimizers_for_module(self, module: Any, config: Any) -> Any:
        return torch.optim.SGD(module.parameters(), lr=0.1)

    def compute_loss_for_module(self, config: Any, batch: Batch, fwd_out: Any) -> Loss:
        chosen = fwd_out["log_probs"].gather(1, batch["actions"].long()[:, None])[:, 0]
        policy = -(chosen * batch["advantages"]).mean()
        value = ((fwd_out["values"] - batch["targets"]) ** 2).mean()
        return Loss(self.of_policy(config) * policy + self.of_values(config) * value)

    def additional_update(self, module: Any, config: Any) -> Mapping[str, Any]:
        module.kl_coef *= self.rise if config.kl_target < 0.01 else 1 / self.rise
        return {"kl_coef": module.kl_coef.clone()}


class PolicyUnlimited(Limited):
    """Moves its policy alike."""

    def of_policy(self, config: Any) -> float:
        return 1.0


class ValuesUnlimited(Limited):
    """Moves its values alike."""

    def of_values(self, config: Any) -> float:
        return 1.0


class FallsInstead(Limited):
    """Adapts its coefficient the other way."""

    rise: ClassVar[float] = 0.5


def test_policies_and_values_that_are_not_limited_are_told() -> None:
    passes("limits_keep_policies_near", Limited)
    failure("limits_keep_policies_near", PolicyUnlimited)
    failure("limits_keep_policies_near", ValuesUnlimited)
    assert passed_by("limits_keep_policies_near", PolicyGradient)


def test_coefficients_that_aim_elsewhere_are_told() -> None:
    passes("kl_coefficient_aims_at_its_target", Limited)
    failure("kl_coefficient_aims_at_its_target", FallsInstead)
    assert passed_by("kl_coefficient_aims_at_its_target", PolicyGradient)


# -- add-ons ---------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class NoveltyConfig:
    """Options of Novelty."""

    scale: float = option(0.1, "Weight of the bonus.")


class Novelty(AddOn):
    """Adds to the reward how badly a small network foretells what is observed."""

    Config: ClassVar[type[Any]] = NoveltyConfig

    def build_extra(self, observation_space: Any) -> Any:
        width = observation_space.shape[0]
        return nn.Linear(width, width)

    def configure_optimizers_for_module(self, extra: Any) -> Any:
        return torch.optim.SGD(extra.parameters(), lr=0.01)

    def error(self, extra: Any, batch: Batch) -> Tensor:
        """Of each row."""
        here = batch["observations"].to(extra.weight)
        return ((extra(here) - here) ** 2).mean(1)

    def prepare_batch(self, extra: Any, config: Any, batch: Batch) -> Any:
        bonus = config.scale * self.error(extra, batch)
        return {"rewards": batch["rewards"] + bonus.to(batch["rewards"].dtype)}

    def compute_loss_for_module(self, extra: Any, batch: Batch) -> Any:
        return self.error(extra, batch).mean()


class Unlearns(Novelty):
    """Drives its loss down for ever."""

    def configure_optimizers_for_module(self, extra: Any) -> Any:
        return torch.optim.SGD(extra.parameters(), lr=0.5)

    def compute_loss_for_module(self, extra: Any, batch: Batch) -> Any:
        return -self.error(extra, batch).mean()


class Penalty(Novelty):
    """Takes it off."""

    def prepare_batch(self, extra: Any, config: Any, batch: Batch) -> Any:
        bonus = config.scale * self.error(extra, batch)
        return {"rewards": batch["rewards"] - bonus.to(batch["rewards"].dtype)}


class Factor(Novelty):
    """Multiplies rewards by it."""

    def prepare_batch(self, extra: Any, config: Any, batch: Batch) -> Any:
        bonus = config.scale * self.error(extra, batch)
        return {"rewards": batch["rewards"] * (1 + bonus.to(batch["rewards"].dtype))}


class NoBonus(Novelty):
    """Adds nothing."""

    def prepare_batch(self, batch: Batch) -> Any:  # type: ignore[override]
        return {"rewards": batch["rewards"]}


class Wide(AddOn):
    """Turns the gradients of others."""

    def postprocess_gradients(self, gradients: Any) -> None:
        for gradient in gradients.values():
            gradient.neg_()


def test_bonuses_for_what_is_known_are_told() -> None:
    passes("bonus_is_larger_for_what_is_new", Novelty)
    failure("bonus_is_larger_for_what_is_new", Penalty)
    failure("bonus_is_larger_for_what_is_new", Factor)
    assert passed_by("bonus_is_larger_for_what_is_new", NoBonus)


def test_losses_without_a_lower_bound_are_told() -> None:
    passes("losses_have_a_lower_bound", Novelty)
    failure("losses_have_a_lower_bound", Unlearns)
    assert passed_by("losses_have_a_lower_bound", Wide)


def test_add_ons_that_let_nothing_be_learned_are_told() -> None:
    passes("the_algorithm_still_learns", Novelty)
    failure("the_algorithm_still_learns", Wide)
    assert passed_by("evaluated_module_follows_the_trained_one", Wide)


class Averaging(AddOn):
    """Evaluates an average of the weights."""

    share: ClassVar[float] = 0.5

    def build_extra(self, module: Any) -> Any:
        return copy.deepcopy(module).requires_grad_(False)

    def additional_update(self, module: Any, extra: Any) -> None:
        with torch.no_grad():
            for own, trained in zip(extra.parameters(), module.parameters(), strict=True):
                own.lerp_(trained, self.share)

    def inference_module(self, module: Any, extra: Any) -> Any:
        return extra


class Overshoots(Averaging):
    """Goes as far again beyond what is trained."""

    share: ClassVar[float] = 2.0


class Stays(Averaging):
    """Evaluates the first weights."""

    share: ClassVar[float] = 0.0


class Shares(Averaging):
    """Evaluates a module with the tensors of the trained one."""

    def inference_module(self, module: Any, extra: Any) -> Any:
        for own, trained in zip(extra.parameters(), module.parameters(), strict=True):
            own.data = trained.data
        return extra


class Moves(Averaging):
    """Changes what is trained where it evaluates."""

    def inference_module(self, module: Any, extra: Any) -> Any:
        def forward_inference(act: ActInput) -> Any:
            with torch.no_grad():
                next(module.parameters()).add_(1.0)
            return type(extra).forward_inference(extra, act)

        extra.forward_inference = forward_inference
        return extra


class Itself(Averaging):
    """Evaluates what is trained."""

    def inference_module(self, module: Any, extra: Any) -> Any:
        return module


@pytest.mark.parametrize("plugin", [Overshoots, Stays, Shares, Moves])
def test_modules_that_are_evaluated_must_follow_and_nothing_else(
    plugin: type[Any],
) -> None:
    check = "evaluated_module_follows_the_trained_one"
    passes(check, Averaging)
    assert passed_by(check, Itself)
    failure(check, plugin)
