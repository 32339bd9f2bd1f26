"""What plugins keep in their attributes: changes that no state would bring back are found."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from torch import nn

from rlplug.errors import PluginError
from tests.learner.small import SAVES, Weight, make, update


class Holds:
    def __init__(self, value: Any) -> None:
        self.value = value


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cyclic(value: int) -> Holds:
    holder = Holds([value])
    holder.value.append(holder)
    return holder


@pytest.mark.parametrize(
    ("before", "after"),
    [
        *((1, 1.0), (1, True), (0.0, -0.0), ("1", b"1"), (None, "None")),
        *((torch.zeros(2), torch.ones(2)), (torch.zeros(2), torch.zeros(2, 1))),
        *((torch.zeros(2), torch.zeros(2).int()), (torch.zeros(1), nn.Parameter(torch.zeros(1)))),
        *((numpy.zeros(2), numpy.zeros((2, 1))), (numpy.zeros(2), numpy.zeros(2, int))),
        (numpy.arange(4).reshape(2, 2), numpy.arange(4).reshape(2, 2).T),
        *((generator(0), generator(1)), (nn.Linear(1, 1), nn.Linear(1, 1))),
        (numpy.random.default_rng(0), numpy.random.default_rng(1)),
        *(({"a": 1}, {"b": 1}), ({("a", ("b",)): 1}, {("a", ("c",)): 1})),
        *(([1, 2], [2, 1]), ([[1], 2], [[1, 2]]), ({1, 2}, frozenset((1, 2)))),
        (Holds([Holds({"a": 1})]), Holds([Holds({"a": 2})])),
        (cyclic(1), cyclic(2)),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("inside", [False, True])
def test_an_attribute_that_changes_without_save_state_is_found(
    before: Any, after: Any, inside: bool
) -> None:
    settings = changing([before] if inside else before, [after] if inside else after)
    with pytest.raises(PluginError, match="changed its attribute 'kept' during an update"):
        update(make(**settings), 1.0)
    # Whoever saves and loads a state may change what it likes.
    update(make(**settings, **SAVES), 1.0)


def changing(before: Any, after: Any) -> dict[str, Any]:
    """The hooks of a plugin that has another value in an attribute after each update."""

    def build(self: Any) -> Any:
        self.kept = list(before) if isinstance(before, list) else before
        return Weight()

    def change(self: Any) -> None:
        if isinstance(before, list) and isinstance(after, list):
            # The list itself stays.
            self.kept[:] = after
        else:
            self.kept = after

    return {"build": build, "finish": change}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        *((torch.ones(2, 2).T, torch.ones(2, 2)), (torch.arange(4)[::2], torch.tensor([0, 2]))),
        *((numpy.arange(4)[::2], numpy.array([0, 2])), ({3, 1, 2}, {1, 2, 3})),
        *((generator(3), generator(3)), (cyclic(1), cyclic(1))),
        (numpy.random.default_rng(3), numpy.random.default_rng(3)),
        # What is a matter of code, not of state.
        *((Holds(print), Holds(len)), (Holds(int), Holds(float))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_attribute_that_is_only_made_anew_needs_no_state(before: Any, after: Any) -> None:
    update(make(**changing(before, after)), 1.0)
