"""Modules that share parameters and are added later, and optimizers of what nobody shares."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium.spaces import Box
from torch import nn
from torch.optim import SGD

from rlplug import ALL_MODULES, Batch, Module
from rlplug.errors import PluginError

SPACES = Box(-1, 1, (1,)), Box(-1, 1, (1,))


class Head(Module):
    """A head of its own behind a body that modules of the same first letter share."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Parameter(torch.ones(1))

    def forward_train(self, batch: Batch) -> Any:
        return {"out": self.body(batch["x"][:, None]) * self.head}


def optimize(self: Any, module_id: str, module: Any) -> Any:
    return SGD(module.parameters() if module_id == ALL_MODULES else [module.head], lr=0.1)


def sharing(
    make: Any, hook: Any, ids: tuple[str, ...] = ("x1", "x2"), *, frozen: bool = False
) -> Any:
    bodies = {name: nn.Linear(1, 1) for name in "xy"}
    bodies["y"].requires_grad_(not frozen)
    return make(
        ids=ids,
        build=lambda self, module_id: Head(bodies[module_id[0]]),
        configure_optimizers_for_module=hook,
        compute_loss_for_module=lambda self, fwd_out: fwd_out["out"].sum(),
    )


def test_a_body_that_would_never_train_is_refused(make: Any, batch: Any) -> None:
    learner = sharing(make, optimize)
    learner.add_module("x3", SPACES)
    learner.add_module("y1", SPACES)
    with pytest.raises(PluginError, match=r"module 'y1' shares 'body\.weight' with a module that"):
        learner.add_module("y2", SPACES)
    assert list(learner.modules) == ["x1", "x2", "x3", "y1"]
    learner.update({name: batch(1.0) for name in learner.modules}, timestep=1)


def test_bodies_of_the_same_name_train_beside_each_other(make: Any, batch: Any) -> None:
    learner = sharing(make, optimize, ("x1", "x2", "y1", "y2"))
    before = {name: learner.modules[name].body.weight.item() for name in ("x1", "y1")}
    learner.update({name: batch(1.0) for name in learner.modules}, timestep=1)
    for name, weight in before.items():
        assert learner.modules[name].body.weight.item() == pytest.approx(weight - 0.1 * 2)


def test_a_body_that_is_not_to_train_may_be_shared_later(make: Any) -> None:
    learner = sharing(make, optimize, frozen=True)
    learner.add_module("y1", SPACES)
    learner.add_module("y2", SPACES)
    assert list(learner.modules) == ["x1", "x2", "y1", "y2"]
    opponents = sharing(make, optimize)
    for name in ("y1", "y2"):
        opponents.add_module(name, SPACES, trainable=False)
    assert list(opponents.modules) == ["x1", "x2", "y1", "y2"]


def test_the_hook_is_asked_again_while_it_gave_no_optimizer(make: Any, batch: Any) -> None:
    asked = []

    def hook(self: Any, module_id: str, module: Any) -> Any:
        if module_id == ALL_MODULES:
            asked.append(len(list(module.parameters())))
            return None if len(asked) == 1 else SGD(module.parameters(), lr=0.1)
        return SGD([module.head], lr=0.1)

    learner = sharing(make, hook)
    for name in ("x3", "y1", "y2"):
        learner.add_module(name, SPACES)
    assert asked == [2, 4]
    before = learner.modules["y1"].body.weight.item()
    learner.update({name: batch(1.0) for name in learner.modules}, timestep=1)
    assert learner.modules["y1"].body.weight.item() != before


def test_an_optimizer_of_what_nobody_shares_is_refused_for_that_reason_in_the_hook(
    make: Any,
) -> None:
    def hook(self: Any, module: Any, learner: Any) -> None:
        learner.register_optimizer(ALL_MODULES, "both", SGD(module.parameters(), lr=0.1))

    with pytest.raises(PluginError, match=r"'both' .* no two modules share a parameter"):
        make(ids=("a", "b"), configure_optimizers_for_module=hook)
