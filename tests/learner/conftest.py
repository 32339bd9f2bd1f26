"""A learner with plugins of a few lines, whose numbers can be checked by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import gymnasium
import pytest
import torch
from torch import nn

from rlplug import AddOn, Algorithm, Batch, Module, option
from rlplug.config.sections import ComputeSection, LearnerSection
from rlplug.hooks.calls import HookCalls
from rlplug.learner import Learner
from rlplug.registry import Participant, describe


class Weight(Module):
    """Multiplies its input by one weight; `other` is a second one, for a second optimizer."""

    def __init__(self, start: float = 2.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([start]))
        self.other = nn.Parameter(torch.tensor([start]))

    def forward_train(self, batch: Batch) -> Mapping[str, torch.Tensor]:
        return {"out": batch["x"] * self.weight, "second": batch["x"] * self.other}


@attrs.frozen(kw_only=True)
class Rate:
    """The option that the core reads for algorithms without optimizers of their own."""

    learning_rate: float = option(0.1, "Step size.", schedulable=True)
    scale: float = option(1.0, "Factor of the loss.", schedulable=True)


class Calls:
    """Counts where no trial looks: in a class of another file than the hooks."""

    count = 0


@pytest.fixture
def calls() -> type[Calls]:
    """How often something was called."""
    Calls.count = 0
    return Calls


def sgd(self: Any, module: Any, config: Any) -> Any:
    """One optimizer over everything, so that a step is rate times gradient."""
    return torch.optim.SGD(module.parameters(), lr=config.learning_rate)


def mean_loss(self: Any, fwd_out: Any) -> Any:
    """The mean of weight times x: its gradient is the mean of x."""
    return fwd_out["out"].mean()


def plugin(kind: type[Any], name: str, hooks: Mapping[str, Any], config: Any) -> Participant:
    """A plugin of this name made of these hooks."""
    made = type(name.title().replace("-", ""), (kind,), {"__doc__": "For a test.", **hooks})
    made.Config = type(config)
    return Participant(describe(name, made), made(config), config)


@pytest.fixture
def make() -> Callable[..., Learner]:
    """`make(hook=function, …)`: a learner whose algorithm has these hooks beside `build`."""

    def learner(
        *,
        ids: Sequence[str] = ("default",),
        addons: Mapping[str, Mapping[str, Any]] | None = None,
        learning: Mapping[str, Any] | None = None,
        compute: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        seed: int = 0,
        built: bool = True,
        modules: Mapping[str, Any] | None = None,
        process_group: Any = None,
        **hooks: Any,
    ) -> Learner:
        known = {
            "build": lambda self: Weight(),
            "configure_optimizers_for_module": sgd,
            "compute_loss_for_module": mean_loss,
            **hooks,
        }
        algorithm = plugin(
            Algorithm,
            "alg",
            {name: hook for name, hook in known.items() if hook is not None},
            Rate(**(options or {})),
        )
        others = [plugin(AddOn, name, its, Rate()) for name, its in (addons or {}).items()]
        space = gymnasium.spaces.Box(-1, 1, (1,))
        made = Learner(
            HookCalls(algorithm, others),
            dict.fromkeys(ids, (space, space)),
            seed=seed,
            learning=LearnerSection(**(learning or {})),
            compute=ComputeSection(**{"device": "cpu", "arrays": "off", **(compute or {})}),
            modules=modules,
            process_group=process_group,
        )
        if built:
            made.build()
        return made

    return learner


@pytest.fixture
def batch() -> Callable[..., Batch]:
    """`batch(1.0, 3.0)`: a batch with these numbers in column x."""

    def of(*values: float, **columns: Any) -> Batch:
        return Batch({"x": torch.tensor(values), **columns})

    return of
