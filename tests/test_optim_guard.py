"""Steps that depend on a number on the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from rlplug.optim.guard import guarded_step

MAKERS = [
    lambda p: Adam([p], 0.1, fused=True),
    lambda p: Adam([p], 0.1, foreach=False),
    lambda p: AdamW([p], 0.1),
    lambda p: SGD([p], 0.1, momentum=0.9),
    lambda p: RMSprop([p], 0.1),
]


def states(optimizer: Optimizer) -> list[Any]:
    return [
        value.clone()
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]


@pytest.mark.parametrize("make", MAKERS)
def test_a_bad_step_changes_neither_parameters_nor_state(make: Any) -> None:
    param = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = make(param)
    param.grad = torch.tensor([1.0, -1.0])
    guarded_step(optimizer, torch.tensor(False))
    moved, state = param.detach().clone(), states(optimizer)
    assert not torch.equal(moved, torch.tensor([1.0, 2.0]))
    param.grad = torch.tensor([float("nan"), 1.0])
    guarded_step(optimizer, torch.tensor(True))
    assert torch.equal(param, moved)
    for before, after in zip(state, states(optimizer), strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize("make", MAKERS)
def test_after_a_bad_first_step_all_goes_on_as_if_it_had_not_been(make: Any) -> None:
    results = []
    for first in (True, False):
        param = nn.Parameter(torch.tensor([1.0, 2.0]))
        optimizer = make(param)
        if first:
            param.grad = torch.tensor([float("inf"), 1.0])
            guarded_step(optimizer, torch.tensor(True))
        param.grad = torch.tensor([1.0, -1.0])
        guarded_step(optimizer, torch.tensor(False))
        results.append(param.detach().clone())
    torch.testing.assert_close(results[0], results[1])
