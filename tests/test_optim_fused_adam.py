"""Fused Adam stepped at once: the same numbers as its own step, whatever state it is given."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import StepLR

from rlplug.optim.fused_adam import FusedAdam, FusedSteps, step_alone


def pair(kind: Any, **options: Any) -> tuple[list[nn.Parameter], Any]:
    parameters = [nn.Parameter(torch.tensor([1.0, 2.0])), nn.Parameter(torch.tensor([[3.0]]))]
    return parameters, kind(parameters, 0.1, fused=True, **options)


def stepped(fused: FusedAdam, gradients: list[torch.Tensor]) -> bool:
    """Whether the kernel did it."""
    steps = FusedSteps()
    added = steps.add(fused, gradients)
    steps.run()
    return added


@pytest.mark.parametrize("kind", [Adam, AdamW])
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"maximize": True}], ids=str)
def test_steps_are_those_of_the_optimizer_also_after_a_state_was_loaded(
    kind: Any, options: Any
) -> None:
    ours, optimizer = pair(kind, **options)
    theirs, reference = pair(kind, **options)
    fused = FusedAdam.of(optimizer)
    assert fused is not None
    saved: Any = None
    for step in range(6):
        gradients = [torch.full_like(one, 1.0 + step) for one in ours]
        for parameters in (ours, theirs):
            for one, gradient in zip(parameters, gradients, strict=True):
                one.grad = gradient.clone()
        assert stepped(fused, gradients)
        reference.step()
        if step == 1:
            saved = copy.deepcopy(reference.state_dict())
        if step == 3:
            # Back to the averages and counts of the second step.
            optimizer.load_state_dict(copy.deepcopy(saved))
            reference.load_state_dict(copy.deepcopy(saved))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
    assert [int(state["step"]) for state in optimizer.state.values()] == [4, 4]


@pytest.mark.parametrize("kind", [Adam, AdamW])
def test_the_kind_says_how_weights_decay_where_its_group_does_not(kind: Any) -> None:
    # Older versions of torch make groups without this key.
    moved = []
    for drop in (False, True):
        parameters, optimizer = pair(kind, weight_decay=0.5)
        gradients = [torch.ones_like(one) for one in parameters]
        for one, gradient in zip(parameters, gradients, strict=True):
            one.grad = gradient
        optimizer.step()
        if drop:
            optimizer.param_groups[0].pop("decoupled_weight_decay", None)
        fused = FusedAdam.of(optimizer)
        assert fused is not None
        assert stepped(fused, [10 * one for one in gradients])
        moved.append([one.tolist() for one in parameters])
    assert moved[0] == moved[1]


def test_steps_together_are_those_of_each_optimizer_with_its_own_settings() -> None:
    settings: list[Any] = [
        (Adam, {"lr": 0.1}),
        (Adam, {"lr": 0.1}),
        (Adam, {"lr": 0.2}),
        (Adam, {"lr": 0.1, "eps": 1.0}),
        (Adam, {"lr": 0.1, "betas": (0.5, 0.999)}),
        (Adam, {"lr": 0.1, "betas": (0.9, 0.5)}),
        (Adam, {"lr": 0.1, "weight_decay": 0.5}),
        (AdamW, {"lr": 0.1, "weight_decay": 0.5}),
        (Adam, {"lr": 0.1, "maximize": True}),
    ]
    cases = [(dtype, *one) for dtype in (torch.float32, torch.float64) for one in settings]
    ours, theirs = (
        [nn.Parameter(torch.tensor([1.0, 2.0], dtype=dtype)) for dtype, *_ in cases] for _ in "12"
    )
    optimizers, references = (
        [
            kind([one], fused=True, **options)
            for one, (_, kind, options) in zip(own, cases, strict=True)
        ]
        for own in (ours, theirs)
    )
    fused = [FusedAdam.of(one) for one in optimizers]
    steps = FusedSteps()
    # An optimizer that rests has a count of its own.
    for resting in (None, 1, None):
        for number, one in enumerate(fused):
            if number == resting or one is None:
                continue
            gradient = torch.tensor([1.0, float(number)], dtype=cases[number][0])
            theirs[number].grad = gradient.clone()
            assert steps.add(one, [gradient])
            references[number].step()
        steps.run()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=0)
    counts = [int(one.state[param]["step"]) for one, param in zip(optimizers, ours, strict=True)]
    assert counts == [3, 2, *[3] * (len(cases) - 2)]


def test_a_step_is_by_the_settings_of_when_it_was_added_and_only_once() -> None:
    parameters, optimizer = pair(Adam)
    fused = FusedAdam.of(optimizer)
    assert fused is not None
    steps = FusedSteps()
    assert steps.add(fused, [torch.ones_like(one) for one in parameters])
    optimizer.param_groups[0]["lr"] = 5.0
    assert parameters[0].tolist() == [1.0, 2.0]
    steps.run()
    steps.run()
    # The first step of Adam is the learning rate.
    assert parameters[0].tolist() == pytest.approx([0.9, 1.9])


def test_sparse_gradients_and_those_of_some_parameters_are_for_the_optimizer() -> None:
    parameters, optimizer = pair(Adam)
    fused = FusedAdam.of(optimizer)
    assert fused is not None
    gradients = [torch.ones_like(one) for one in parameters]
    assert not stepped(fused, [one.to_sparse() for one in gradients])
    assert not stepped(fused, gradients[:1])
    assert stepped(fused, gradients)


def test_an_optimizer_that_somebody_watches_steps_by_itself() -> None:
    watches: list[Any] = [
        lambda one: one.register_step_pre_hook(lambda *_: None),
        lambda one: one.register_step_post_hook(lambda *_: None),
        lambda one: StepLR(one, 1),
    ]
    for watch in watches:
        parameters, optimizer = pair(Adam)
        gradients = [torch.ones_like(one) for one in parameters]
        for one, gradient in zip(parameters, gradients, strict=True):
            one.grad = gradient
        optimizer.step()
        fused = FusedAdam.of(optimizer)
        assert fused is not None
        assert stepped(fused, gradients)
        watch(optimizer)
        assert not stepped(fused, gradients)


def test_other_optimizers_step_by_themselves() -> None:
    parameters, watched = pair(Adam)
    watched.register_step_pre_hook(lambda *_: None)
    others: list[Any] = [
        SGD(parameters, 0.1),
        Adam(parameters, 0.1),
        Adam(parameters, torch.tensor(0.1), fused=True),
        Adam(parameters, 0.1, fused=True, amsgrad=True),
        Adam([{"params": [one]} for one in parameters], 0.1, fused=True),
        watched,
    ]
    assert [FusedAdam.of(one) for one in others] == [None] * len(others)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (RMSprop, {"alpha": 0.99}),
        (SGD, {"momentum": 0.9}),
        (Adagrad, {}),
        (Adam, {"amsgrad": True}),
    ],
)
def test_a_step_alone_is_the_step_of_the_optimizer(kind: Any, options: Any) -> None:
    ours, theirs = ([nn.Parameter(torch.tensor([1.0, 2.0]))] for _ in range(2))
    alone, usual = kind(ours, 0.1, **options), kind(theirs, 0.1, **options)
    for step in range(4):
        for (parameter,) in (ours, theirs):
            parameter.grad = torch.full_like(parameter, 1.0 + step)
        with torch.no_grad():
            step_alone(alone)
        usual.step()
        assert torch.equal(ours[0], theirs[0])
    assert ours[0].requires_grad


def test_hooks_and_schedulers_of_torch_are_called_and_own_optimizers_step_as_they_are() -> None:
    called = []

    class Own(SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            called.append("own")

    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.ones(1)
    hooked = SGD([parameter], 0.1)
    hooked.register_step_post_hook(lambda *_: called.append("hook"))
    scheduled = SGD([parameter], 0.1)
    scheduler = StepLR(scheduled, 1)
    with torch.no_grad():
        for one in (hooked, scheduled, Own([parameter], 0.1)):
            step_alone(one)
    scheduler.step()
    assert called == ["hook", "own"]
    assert parameter.item() == pytest.approx(-0.2)
