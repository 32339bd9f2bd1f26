"""Which engine a module ends on, and that a trial of one leaves nothing behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from rlplug import Batch, Loss, Module
from rlplug.learner.state import digest
from rlplug.nn.arrays import LARGEST_MINIBATCH

ARRAYS = {"arrays": "auto"}


def squares(self: Any, fwd_out: Any) -> Any:
    return fwd_out["out"].pow(2).mean()


class Empty:
    """Holds nothing at first."""


class Worded:
    """Has one slot, named by a text."""

    __slots__ = "n"


class Reduced:
    """Says itself how it is pickled."""

    def __init__(self) -> None:
        self.n = 0

    def __reduce__(self) -> Any:
        return Reduced, ()


@pytest.mark.parametrize("kind", [Empty, Worded, Reduced])
def test_what_an_object_gets_in_a_trial_is_taken_back(make: Any, batch: Any, kind: Any) -> None:
    def counting(self: Any, fwd_out: Any) -> Any:
        self.kept.n = getattr(self.kept, "n", 0) + 1
        return squares(self, fwd_out)

    learner = make(
        compute_loss_for_module=counting,
        save_state=lambda self: {},
        load_state=lambda self, state: None,
        compute=ARRAYS,
    )
    kept = learner.calls.algorithm.plugin.kept = kind()
    for step in range(3):
        learner.update({"default": batch(1.0)}, timestep=step)
    assert learner.engines["default"] == ("arrays", "equal to torch on the first minibatch")
    assert kept.n == 3


@pytest.mark.parametrize("kept", [object(), print, len, int, [1], (1, 2), 1.5, "text"])
def test_objects_that_cannot_change_are_no_reason_for_torch(
    make: Any, batch: Any, kept: Any
) -> None:
    learner = make(compute_loss_for_module=squares, compute=ARRAYS)
    learner.calls.algorithm.plugin.kept = kept
    learner.update({"default": batch(1.0)}, timestep=1)
    assert learner.engines["default"][0] == "arrays"


def test_a_batch_that_is_too_large_to_be_prepared_on_arrays_means_torch(
    make: Any, calls: Any
) -> None:
    class Wide(Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))
            self.rest = nn.Parameter(torch.ones(999_999))

        def forward_train(self, batch: Any) -> Any:
            return {"out": batch["x"] * self.weight}

    def counting(self: Any, fwd_out: Any) -> Any:
        calls.count += 1
        return fwd_out["out"].mean()

    rows = LARGEST_MINIBATCH // 1_000_000
    hooks = {
        "build": lambda self: Wide(),
        "configure_optimizers_for_module": None,
        "compute_loss_for_module": counting,
    }
    learner = make(**hooks, prepare_batch=lambda self, batch: {"y": batch["x"]}, compute=ARRAYS)
    learner.update({"default": Batch({"x": torch.ones(rows + 1)})}, timestep=1, minibatch_size=100)
    assert learner.engines["default"] == ("torch", "the batch is large")
    # No minibatch was tried on arrays: there are two of them.
    assert calls.count == 2
    large, fits = make(**hooks, compute=ARRAYS), make(**hooks, compute=ARRAYS)
    large.update({"default": Batch({"x": torch.ones(rows + 1)})}, timestep=1)
    assert large.engines["default"] == ("torch", "the network is large")
    assert calls.count == 3
    fits.update({"default": Batch({"x": torch.ones(rows)})}, timestep=1)
    assert fits.engines["default"][0] == "arrays"
    assert calls.count == 5


def test_a_prepared_batch_that_differs_on_arrays_means_torch(make: Any, batch: Any) -> None:
    def prepare(self: Any, batch: Any) -> Any:
        return {"y": batch["x"] * (1.0 if isinstance(batch["x"], torch.Tensor) else 1.1)}

    learner = make(compute_loss_for_module=squares, prepare_batch=prepare, compute=ARRAYS)
    learner.update({"default": batch(1.0)}, timestep=1)
    assert learner.engines["default"] == ("torch", "arrays and torch differ in 'y'")


def test_a_stop_on_arrays_alone_means_torch_which_goes_on(make: Any, batch: Any) -> None:
    def stopping(self: Any, fwd_out: Any) -> Any:
        out = fwd_out["out"]
        return Loss(out.mean(), stop=not isinstance(out, torch.Tensor))

    learner = make(compute_loss_for_module=stopping, compute=ARRAYS)
    for step in (1, 2):
        learner.update({"default": batch(1.0)}, timestep=step, num_iters=2)
    name, reason = learner.engines["default"]
    assert (name, "differ in" in reason) == ("torch", True)
    assert learner.modules["default"].weight.item() == pytest.approx(2 - 4 * 0.1)


def test_what_cannot_be_prepared_on_arrays_later_is_prepared_in_torch(make: Any) -> None:
    def prepare(self: Any, batch: Any, learner: Any) -> Any:
        self.calls += 1
        self.drawn = torch.rand(1, generator=learner.generator()).item()
        return {"y": torch.special.i0(batch["x"]) if learner.timestep > 1 else batch["x"] + 1}

    def loss(self: Any, fwd_out: Any, batch: Any) -> Any:
        return (fwd_out["out"] * batch["y"]).mean()

    settings = {
        "compute_loss_for_module": loss,
        "prepare_batch": prepare,
        "save_state": lambda self: {},
        "load_state": lambda self, state: None,
        "calls": 0,
    }
    learner, other = make(**settings, compute=ARRAYS), make(**settings)
    for one in (learner, other):
        for step in (1, 2, 3):
            one.update({"default": Batch({"x": torch.ones(2)})}, timestep=step)
    name, reason = learner.engines["default"]
    assert (name, "i0" in reason) == ("torch", True)
    # Each update called the hook once on the plugin, and drew once.
    mine, others = (one.calls.algorithm.plugin for one in (learner, other))
    assert (mine.calls, mine.drawn) == (others.calls, others.drawn)
    weights = [one.modules["default"].weight for one in (learner, other)]
    torch.testing.assert_close(*weights)


def test_after_a_fallback_each_row_is_reported_once(make: Any) -> None:
    def later(self: Any, fwd_out: Any, learner: Any) -> Any:
        out = fwd_out["out"]
        value = torch.special.i0(out) if learner.timestep > 1 else out.pow(2)
        return Loss(value.mean(), rows={"priority": out})

    learner = make(compute_loss_for_module=later, compute=ARRAYS)
    rows = Batch({"x": torch.ones(4), "indices": torch.arange(4)})
    for step in (1, 2):
        learner.update({"default": rows}, timestep=step, minibatch_size=2)
        found = learner.rows["default"]
        assert sorted(found["indices"].tolist()) == [0, 1, 2, 3]
        assert found["priority"].shape == (4,)
    assert learner.engines["default"][0] == "torch"


def test_digests_look_as_deep_into_keys_as_into_values() -> None:
    one, other = {("a", ("b",)): 1}, {("a", ("c",)): 1}
    assert digest(one) != digest(other)
    for deep in range(5):
        assert digest(one) != digest(other)
        one, other = {deep: one}, {deep: other}  # type: ignore[dict-item]
    nested = [{("key", n): 0} for n in (1, 2)]
    assert digest([[[[[[nested[0]]]]]]]) != digest([[[[[[nested[1]]]]]]])


def test_losses_that_come_later_are_computed_in_torch_until_they_were_compared(
    make: Any, batch: Any
) -> None:
    def delayed(self: Any, fwd_out: Any, batch: Any) -> Any:
        self.calls += 1
        if self.calls < 3:
            return None
        second = {"two": fwd_out["second"].pow(2).mean()} if self.calls % 2 else {}
        return Loss({"one": fwd_out["out"].pow(2).mean(), **second})

    def two(self: Any, module: Any) -> Any:
        return {"one": SGD([module.weight], lr=0.01), "two": SGD([module.other], lr=0.01)}

    learner = make(
        configure_optimizers_for_module=two,
        compute_loss_for_module=delayed,
        save_state=lambda self: {"calls": self.calls},
        load_state=lambda self, state: setattr(self, "calls", state["calls"]),
        compute=ARRAYS,
        calls=0,
    )
    engines = []
    for step in range(8):
        learner.update({"default": batch(1.0, 2.0)}, timestep=step)
        engines.append(learner.engines["default"][0])
    # The first two minibatches have no loss, so the third one is not tried; the fourth is compared
    # in the first loss, and the fifth in the second one.
    assert engines == ["undecided"] * 4 + ["arrays"] * 4
    assert learner.calls.algorithm.plugin.calls == 8


def test_a_later_fallback_changes_what_a_hook_keeps_once(make: Any, batch: Any) -> None:
    def later(self: Any, fwd_out: Any) -> Any:
        self.calls += 1
        values = fwd_out["out"].pow(2)
        return (torch.special.i0(values) if self.calls > 2 else values).mean()

    settings = {
        "compute_loss_for_module": later,
        "save_state": lambda self: {"calls": self.calls},
        "load_state": lambda self, state: setattr(self, "calls", state["calls"]),
        "calls": 0,
    }
    learner, other = make(**settings, compute=ARRAYS), make(**settings)
    for step in range(5):
        for one in (learner, other):
            one.update({"default": batch(0.1, 0.2)}, timestep=step)
        assert learner.calls.algorithm.plugin.calls == step + 1
    assert learner.engines["default"][0] == "torch"
    weights = [one.modules["default"].weight.item() for one in (learner, other)]
    assert weights[0] == pytest.approx(weights[1], abs=1e-5)
