"""Steps of optimizers: the numbers of torch's own, whatever is loaded, watched or not finite."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop

from rlplug.optim.steps import FusedAdam, OptimizerStep, guarded_step, step_alone


def pair(kind: Any, **options: Any) -> tuple[list[nn.Parameter], Any]:
    parameters = [nn.Parameter(torch.tensor([1.0, 2.0])), nn.Parameter(torch.tensor([[3.0]]))]
    return parameters, kind(parameters, lr=0.1, **options)


def gradients(parameters: list[nn.Parameter], value: float = 1.0) -> list[Tensor]:
    """All numbers are the value; the parameters hold them, too."""
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, value)
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def stepped(fused: FusedAdam | None, given: list[Tensor]) -> bool:
    """Whether the kernel did it."""
    assert fused is not None
    with OptimizerStep():
        return fused.step(given)


@pytest.mark.parametrize("kind", [Adam, AdamW])
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"maximize": True}], ids=str)
def test_fused_steps_are_those_of_the_optimizer_also_after_a_state_was_loaded(
    kind: Any, options: Any
) -> None:
    (ours, optimizer), (theirs, reference) = (pair(kind, fused=True, **options) for _ in range(2))
    # Older versions of torch make groups without this key.
    (group,) = optimizer.param_groups
    decoupled = group.pop("decoupled_weight_decay", kind is AdamW)
    fused = FusedAdam.of(optimizer)
    group["decoupled_weight_decay"] = decoupled
    saved: Any = None
    for step in range(6):
        given = gradients(ours, 1.0 + step)
        # The first step, which makes its state, is the optimizer's.
        assert stepped(fused, given) == (step > 0)
        if not step:
            optimizer.step()
        gradients(theirs, 1.0 + step)
        reference.step()
        if step == 1:
            saved = copy.deepcopy(reference.state_dict())
        if step == 3:
            # Back to the averages and counts of the second step.
            optimizer.load_state_dict(copy.deepcopy(saved))
            reference.load_state_dict(copy.deepcopy(saved))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)
    assert [int(state["step"]) for state in optimizer.state.values()] == [4, 4]


@pytest.mark.parametrize(
    ("kind", "options"),
    [(RMSprop, {}), (SGD, {"momentum": 0.9}), (Adagrad, {}), (Adam, {"amsgrad": True})],
)
def test_a_step_alone_is_the_step_of_the_optimizer(kind: Any, options: Any) -> None:
    (ours, alone), (theirs, usual) = (pair(kind, **options) for _ in range(2))
    for step in range(4):
        gradients(ours, 1.0 + step)
        gradients(theirs, 1.0 + step)
        with OptimizerStep():
            step_alone(alone)
        usual.step()
    assert all(map(torch.equal, ours, theirs))
    assert ours[0].requires_grad


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Adam, {"fused": True}),
        (Adam, {"foreach": False}),
        (AdamW, {}),
        (SGD, {"momentum": 0.9}),
        (RMSprop, {}),
    ],
)
def test_a_bad_step_changes_nothing_that_later_steps_depend_on(
    kind: Any, options: Any, first: bool
) -> None:
    made = []
    for bad in (True, False):
        parameters, optimizer = pair(kind, **options)
        for step in range(3):
            if bad and step == (not first):
                gradients(parameters, float("nan"))
                before = copy.deepcopy(parameters)
                guarded_step(optimizer, torch.tensor(True))
                assert all(map(torch.equal, parameters, before))
            gradients(parameters, 1.0 - step)
            guarded_step(optimizer, torch.tensor(False))
        made.append(parameters)
    for mine, other in zip(*made, strict=True):
        torch.testing.assert_close(mine, other)
    assert made[0][0].tolist() != [1.0, 2.0]
