"""Small plugins that tests share: what they leave out or do otherwise is a test's own."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import attrs
import numpy
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rlplug import Acted, ActInput, AddOn, Batch, Loss, Module, option
from rlplug.config import at_least
from rlplug.feeds import Feed, Replay, Rollout, Stream
from rlplug.testing.algorithms import (
    PolicyGradient,
    PolicyGradientConfig,
    PolicyGradientModule,
    QLearning,
)


def acting(**methods: Any) -> type[PolicyGradient]:
    """A policy gradient whose module has these methods; `prepare` is called on a new one."""

    class Mine(PolicyGradient):
        """Builds a module of another class."""

        Planted = type("Planted", (PolicyGradientModule,), methods)

        def build(self, observation_space: Any, action_space: Any, config: Any) -> Any:
            module = super().build(observation_space, action_space, config)
            module.__class__ = self.Planted
            if "prepare" in methods:
                module.prepare()
            return module

    return Mine


# -- of gradients ----------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class GaeConfig(PolicyGradientConfig):
    """Options of advantages."""

    gae_lambda: float = option(0.9, "Lambda of the advantages.")
    normalize_advantage: bool = option(True, "Normalize the advantages of a rollout.")
    n_steps: int = option(16, "Steps of each environment per rollout.")


class Gae(PolicyGradient):
    """Generalised advantage estimation, normalized where it is prepared."""

    checks: ClassVar[tuple[str, ...]] = ("rlplug_ppo.checks:CHECKS",)
    Config: ClassVar[type[Any]] = GaeConfig

    def feed(self) -> Feed:
        return Rollout(n_steps=self.config.n_steps, batch_size=0)

    def prepare_batch(self, module: Any, config: Any, batch: Batch) -> Mapping[str, Tensor]:
        extended = batch.extended()
        values, following = extended.split(module.values(extended["observations"]))
        sums = batch["rewards"] + config.gamma * following * ~batch["terminated"] - values
        ends = (batch["fragments"][:, 1] - 1).tolist()
        for row in range(len(sums) - 2, -1, -1):
            if row not in ends:
                sums[row] += self.decay(config) * sums[row + 1]
        prepared = {"targets": sums + values, "advantages": sums}
        if config.normalize_advantage:
            prepared["advantages"] = self.normalized(sums)
        return prepared

    def decay(self, config: Any) -> float:
        """Of a TD error from step to step."""
        return float(config.gamma * config.gae_lambda)

    def normalized(self, advantages: Tensor) -> Tensor:
        return (advantages - advantages.mean()) / advantages.std()


@attrs.frozen(kw_only=True)
class LimitedConfig(PolicyGradientConfig):
    """Limits of policies and values."""

    kl_coef: float = option(0.2, "Coefficient of the KL penalty.")
    clip_range_vf: float = option(0.0, "Limit of values.")


class Limited(PolicyGradient):
    """Moves less where it is limited."""

    checks: ClassVar[tuple[str, ...]] = ("rlplug_ppo.checks:limits_keep_policies_near",)
    Config: ClassVar[type[Any]] = LimitedConfig

    def of_policy(self, config: Any) -> float:
        """By how much the policy's loss is smaller."""
        return float(1 / (1 + 1e3 * config.kl_coef))

    def of_values(self, config: Any) -> float:
        """By how much that of values is."""
        return 1e-3 if 0 < config.clip_range_vf < 1 else 1.0

    def configure_optimizers_for_module(self, module: Any) -> Any:
        return torch.optim.SGD(module.parameters(), lr=0.1)

    def compute_loss_for_module(self, config: Any, batch: Batch, fwd_out: Any) -> Loss:
        chosen = fwd_out["log_probs"].gather(1, batch["actions"].long()[:, None])[:, 0]
        policy = -(chosen * batch["advantages"]).mean()
        value = ((fwd_out["values"] - batch["targets"]) ** 2).mean()
        return Loss(self.of_policy(config) * policy + self.of_values(config) * value)


class Prioritized(QLearning):
    """Draws rows of large errors more often."""

    def feed(self) -> Feed:
        return Replay(buffer_size=200, batch_size=16, learning_starts=16, prioritized=True)

    def weigh(self, losses: Tensor, batch: Batch) -> Tensor:
        """The loss of each row with its weight."""
        return losses * batch["weights"]

    def priority(self, errors: Tensor) -> Tensor:
        """Of each row."""
        return errors.abs()

    def compute_loss_for_module(self, batch: Batch, fwd_out: Mapping[str, Tensor]) -> Loss:
        chosen = fwd_out["q_values"].gather(1, batch["actions"].long()[:, None])[:, 0]
        errors = chosen - batch["targets"]
        rows = {"priority": self.priority(errors.detach())}
        return Loss(self.weigh(errors**2, batch).mean(), rows=rows)


# -- of known behaviour ----------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class TrainedConfig(PolicyGradientConfig):
    """A coefficient that may be learned."""

    ent_coef: float | Literal["auto"] = option(0.2, "Entropy coefficient, or auto.")


class TrainedModule(Module):
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
        drawn = self.plugin.middle + spread * act.random.standard_normal(n)
        return Acted(numpy.clip(drawn, -0.99, 2.99).astype(numpy.float32)[:, None])

    def forward_inference(self, act: ActInput) -> Acted:
        n = len(act.observations)
        return Acted(numpy.zeros((n, 1), numpy.float32) if self.box else numpy.zeros(n, int))

    def forward_train(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"weight": self.weight}


class Trained(PolicyGradient):
    """Acts as if it had learned what its attributes say."""

    checks: ClassVar[tuple[str, ...]] = ("rlplug_sac.checks:CHECKS",)
    Config: ClassVar[type[Any]] = TrainedConfig
    off_policy: ClassVar[bool] = False
    share: ClassVar[float] = 0.66
    given: ClassVar[float] = 1.0
    learned: ClassVar[float] = 0.18
    middle: ClassVar[float] = 1.0

    def feed(self) -> Feed:
        if self.off_policy:
            return Replay(buffer_size=8000, batch_size=8, learning_starts=7000, train_freq=100)
        return Stream(steps_per_update=100)

    def supports(self, observation_space: Any, action_space: Any) -> str | None:
        box = isinstance(action_space, spaces.Box) and action_space.shape == (1,)
        flat = isinstance(observation_space, spaces.Box) and len(observation_space.shape) == 1
        two = isinstance(action_space, spaces.Discrete) and action_space.n == 2
        return None if flat and (box or two) else "one number or two actions"

    def build(self, observation_space: Any, action_space: Any, config: Any) -> Any:
        return TrainedModule(type(self), config, isinstance(action_space, spaces.Box))

    def prepare_batch(self, batch: Batch) -> Mapping[str, Tensor]:
        return {}

    def compute_loss_for_module(self, fwd_out: Any) -> Loss:
        return Loss((fwd_out["weight"] ** 2).mean())


def trained(**given: Any) -> type[Trained]:
    """`Trained` with other attributes."""
    return type("Mine", (Trained,), {**given, "__doc__": "Acts by chance."})


# -- add-ons ---------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class ShrinkConfig:
    """Options of Shrink."""

    scale: float = option(0.5, "Factor of every gradient; 1 changes nothing.", at_least(0))


class Shrink(AddOn):
    """Multiplies every gradient by a factor."""

    Config: ClassVar[type[Any]] = ShrinkConfig
    neutral: ClassVar[dict[str, Any] | None] = {"scale": 1.0}

    def factor(self, config: Any) -> float:
        """Of gradients."""
        return float(config.scale)

    def postprocess_gradients(self, gradients: Any, config: Any) -> None:
        factor = self.factor(config)
        for gradient in gradients.values():
            gradient.mul_(factor)


@attrs.frozen(kw_only=True)
class CuriosityConfig:
    """Options of Curiosity."""

    learning_rate: float = option(0.01, "Step size of the predictor.", at_least(0))
    scale: float = option(0.1, "Weight of the bonus; 0 adds none.")


class Curiosity(AddOn):
    """Adds to the reward how badly a small network foretells what is observed."""

    Config: ClassVar[type[Any]] = CuriosityConfig
    neutral: ClassVar[dict[str, Any]] = {"scale": 0.0}

    def build_extra(self, observation_space: Any) -> Any:
        width = observation_space.shape[0]
        return nn.Linear(width, width)

    def configure_optimizers_for_module(self, extra: Any, config: Any) -> Any:
        return torch.optim.SGD(extra.parameters(), lr=config.learning_rate)

    def error(self, extra: Any, batch: Batch) -> Tensor:
        """Of each row."""
        here = batch["observations"].to(extra.weight)
        return ((extra(here) - here) ** 2).mean(1)

    def prepare_batch(self, extra: Any, config: Any, batch: Batch) -> Any:
        bonus = config.scale * self.error(extra, batch)
        return {"rewards": batch["rewards"] + bonus.to(batch["rewards"].dtype)}

    def compute_loss_for_module(self, extra: Any, batch: Batch) -> Any:
        return self.error(extra, batch).mean()


class Averaging(AddOn):
    """Evaluates an average of the weights."""

    share: ClassVar[float] = 0.5

    def build_extra(self, module: Any) -> Any:
        return copy.deepcopy(module).requires_grad_(False)

    @torch.no_grad()
    def additional_update(self, module: Any, extra: Any) -> None:
        for own, trained_one in zip(extra.parameters(), module.parameters(), strict=True):
            own.lerp_(trained_one, self.share)

    def inference_module(self, module: Any, extra: Any) -> Any:
        return extra
