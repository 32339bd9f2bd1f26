"""Learners of plugins of a few lines, whose numbers can be checked by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import gymnasium
import pytest
import torch
from torch import nn
from torch.optim import SGD

from rlplug import ALL_MODULES, AddOn, Algorithm, Batch, Module, option
from rlplug.config.sections import ComputeSection, LearnerSection
from rlplug.hooks.calls import HookCalls
from rlplug.learner import Learner
from rlplug.registry import Participant, describe

BOX = gymnasium.spaces.Box(-1, 1, (1,))
SPACES = BOX, BOX

ARRAYS = pytest.mark.parametrize("arrays", ["off", "auto"])
MODES = pytest.mark.parametrize("mode", ["together", "in_turn"])

SAVES = {"save_state": lambda self: {}, "load_state": lambda self, state: None}
"""For plugins that keep what a resumed run does not need."""


class Weight(Module):
    """Two weights, each times x: one for each of two optimizers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0]))
        self.other = nn.Parameter(torch.tensor([2.0]))

    def forward_train(self, batch: Batch) -> Mapping[str, torch.Tensor]:
        return {"out": batch["x"] * self.weight, "second": batch["x"] * self.other}


class Head(Module):
    """A weight of its own behind an encoder that other modules may hold as well."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.weight = nn.Parameter(torch.ones(1))

    def forward_train(self, batch: Batch) -> Mapping[str, torch.Tensor]:
        return {"out": self.encoder(batch["x"][:, None])[:, 0] * self.weight}


class Pair(Module):
    """Two numbers whose product one player lowers, and then the other."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1.0))
        self.other = nn.Parameter(torch.tensor(3.0))

    def forward_train(self, batch: Batch) -> Mapping[str, torch.Tensor]:
        product = self.weight * self.other * batch["x"].mean()
        return {"product": product, "rows": self.weight * batch["x"]}


@attrs.frozen(kw_only=True)
class Rate:
    """The option that the core reads for algorithms without optimizers of their own."""

    learning_rate: float = option(0.1, "Step size.", schedulable=True)
    scale: float = option(1.0, "Factor of the loss.", schedulable=True)


def line(weight: float = 1.0) -> nn.Linear:
    """A layer with one weight and no bias."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, weight)
    return layer


def sgd(self: Any, module: Any, config: Any) -> Any:
    """One optimizer over everything, so that a step is rate times gradient."""
    return SGD(module.parameters(), lr=config.learning_rate)


def unit(self: Any, module: Any) -> Any:
    """One optimizer whose step is the gradient."""
    return SGD(module.parameters(), lr=1.0)


def pair(self: Any, module: Any) -> Any:
    """An optimizer for each of both weights."""
    return {"one": SGD([module.weight], lr=1.0), "two": SGD([module.other], lr=1.0)}


def mean_loss(self: Any, fwd_out: Any) -> Any:
    """The mean of weight times x: its gradient is the mean of x."""
    return fwd_out["out"].mean()


def both_means(self: Any, fwd_out: Any) -> Any:
    """The means of both weights times x."""
    return fwd_out["out"].mean() + fwd_out["second"].mean()


def sharing(*ids: str, rate: float = 1.0, momentum: float = 0.0) -> dict[str, Any]:
    """Settings of modules with heads of their own behind one encoder, all of weight 1."""
    encoder = line()

    def optimizers(self: Any, module_id: str, module: Any) -> Any:
        params = module.parameters() if module_id == ALL_MODULES else [module.weight]
        return SGD(params, lr=rate, momentum=momentum)

    return {
        "ids": ids or ("a", "b"),
        "build": lambda self: Head(encoder),
        "optimizers": optimizers,
        "loss": lambda self, fwd_out: fwd_out["out"].sum(),
    }


HOOKS = {
    "optimizers": "configure_optimizers_for_module",
    "loss": "compute_loss_for_module",
    "gradients": "postprocess_gradients",
    "prepare": "prepare_batch",
    "finish": "additional_update",
}
"""Short names of hooks, as settings have them."""


def _plugin(kind: type[Any], name: str, hooks: Mapping[str, Any], config: Any) -> Participant:
    named = {HOOKS.get(key, key): hook for key, hook in hooks.items() if hook is not None}
    made = type(name.title().replace("-", ""), (kind,), {"__doc__": "For a test.", **named})
    made.Config = type(config)
    return Participant(describe(name, made), made(config), config)


def make(
    *,
    ids: Sequence[str] = ("default",),
    addons: Mapping[str, Mapping[str, Any]] | None = None,
    learning: Mapping[str, Any] | None = None,
    compute: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    built: bool = True,
    modules: Mapping[str, Any] | None = None,
    **hooks: Any,
) -> Learner:
    """A learner whose algorithm has these hooks; `sgd` and `mean_loss` unless told otherwise."""
    known = {"build": lambda self: Weight(), "optimizers": sgd, "loss": mean_loss, **hooks}
    algorithm = _plugin(Algorithm, "alg", known, Rate(**(options or {})))
    others = [_plugin(AddOn, name, its, Rate()) for name, its in (addons or {}).items()]
    learner = Learner(
        HookCalls(algorithm, others),
        dict.fromkeys(ids, SPACES),
        seed=seed,
        learning=LearnerSection(**(learning or {})),
        compute=ComputeSection(**{"device": "cpu", "arrays": "off", **(compute or {})}),
        modules=modules,
    )
    if built:
        learner.build()
    return learner


def batch(*values: float, **columns: Any) -> Batch:
    """A batch with these numbers in column x."""
    return Batch({"x": torch.tensor(values), **columns})


def update(learner: Learner, *values: float, step: int = 1, **how: Any) -> Any:
    """Update all modules with these numbers in column x: the results of the first module."""
    results = learner.update(dict.fromkeys(learner.modules, batch(*values)), timestep=step, **how)
    return results.get(next(iter(learner.modules)))


def weights(learner: Learner, module_id: str = "default") -> tuple[float, float]:
    """Both weights of a module, rounded."""
    module: Any = learner.modules[module_id]
    return round(module.weight.item(), 5), round(module.other.item(), 5)


def numbers(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The metrics whose names begin so, as numbers."""
    return {name: float(value) for name, value in metrics.items() if name.startswith(prefix)}
