"""Small networks on NumPy: the same hooks on arrays, tried once against torch and kept if equal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook

from rlplug.batch import Batch
from rlplug.batch.nested import first_leaf, leaves
from rlplug.learner.gradients import TorchEngine
from rlplug.learner.losses import LossHooks, MinibatchLoss, acting_on
from rlplug.learner.member import Member
from rlplug.learner.module_update import ModuleUpdate, Prepare
from rlplug.learner.snapshot import Snapshot
from rlplug.nn.arrays import (
    LARGEST_MINIBATCH,
    Array,
    ArrayBatch,
    FrozenWeights,
    Tape,
    UnsupportedError,
    unwrap,
)

__all__ = ["ArraysEngine", "ArraysTrial", "difference"]

_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}


class ArraysEngine:
    """Losses on arrays, gradients by their tape."""

    name = "arrays"

    def __init__(self, update: ModuleUpdate, losses: LossHooks, *, copies: bool) -> None:
        self._losses = losses
        self._copies = copies
        """Whether hooks see the gradients, and may keep them."""
        self._optimizers = update.cycle.optimizers
        self._params = [param for one in self._optimizers for param in one.params]
        self._hooks = _hooks_of(update.member.parts())
        if update.member.shared:
            raise UnsupportedError("parameters are shared with other modules")
        self._tape = self._new_tape()
        self._checked_in: object | None = None
        """The scope in which the tape was found to be current."""
        self._current_tape()

    def prepare(self, prepare: Prepare, batch: Batch) -> Batch:
        """Run `prepare_batch` on arrays."""
        with self._current_tape() as tape:
            prepared = prepare(tape.batch(batch))
        return prepared.plain() if isinstance(prepared, ArrayBatch) else prepared

    def gradients(self, group: Sequence[ModuleUpdate]) -> None:
        """Leave the gradients of the module's minibatches in its parameters."""
        (update,) = group
        names = update.ready_names
        total: Any = None
        reached: set[int] = set()
        with self._current_tape() as tape:
            for batch, weight in zip(update.minibatches, update.weights, strict=True):
                loss = self._losses(update.member, tape.batch(batch), names)
                value = None if loss is None else _detached(loss, "indices" in batch)
                if update.note(loss, value, batch, weight):
                    assert loss is not None
                    reached.update(self._backward(update, loss, weight))
                    if len(update.minibatches) > 1:
                        total = tape.flat.copy() if total is None else total + tape.flat
                        tape.clear()
                if update.stopped:
                    return
        if total is not None:
            self._tape.flat[:] = total
        gradients = self._tape.gradients
        if len(reached) == len(gradients) and not self._copies:
            for param, gradient in zip(self._params, gradients, strict=True):
                if param.grad is not gradient:
                    param.grad = gradient
            update.flat_gradients = self._tape.flat
            return
        update.flat_gradients = None
        for index, (param, gradient) in enumerate(zip(self._params, gradients, strict=True)):
            # Copies: hooks may keep what they see, and the buffer is written again.
            param.grad = gradient.clone() if index in reached else None

    def _current_tape(self) -> Tape:
        scope = FrozenWeights.scope.now
        if scope is not None and scope is self._checked_in:
            return self._tape
        hooked = any(self._hooks) or _has_any_global_hook()  # type: ignore[no-untyped-call] # untyped in torch
        for param in self._params:
            hooked = hooked or param._backward_hooks or param._post_accumulate_grad_hooks
        if hooked:
            raise UnsupportedError("hooks on modules or tensors")
        if torch._C._is_any_autocast_enabled():
            raise UnsupportedError("autocast is on")
        if not self._tape.current():
            self._tape = self._new_tape()
        self._checked_in = scope
        return self._tape

    def _new_tape(self) -> Tape:
        if not all(param.requires_grad for param in self._params):
            raise UnsupportedError("a parameter of an optimizer is frozen")
        return Tape(self._params)

    def _backward(self, update: ModuleUpdate, loss: MinibatchLoss, weight: float) -> list[int]:
        """Gradients into the tape's buffer; the positions of the parameters they reach."""
        tape = self._tape
        if not loss.mapped and len(update.ready) == len(self._optimizers):
            return tape.backward(loss.total, weight=weight)
        tape.flat.fill(0)
        reached: list[int] = []
        start = 0
        acting = acting_on(update.ready, loss)
        for one in self._optimizers:
            span = range(start, start + len(one.params))
            start += len(one.params)
            own = loss.for_optimizer(one.name) if one in acting else None
            if own is not None and own.requires_grad:
                reached += tape.backward(own, weight=weight, wanted=span)
        return reached


class ArraysTrial:
    """Decides on a module's first minibatch whether it runs on arrays or in torch.

    Arrays go first, and leave no trace; torch then does the work. Where both agree, the module
    runs on arrays from the second minibatch on.
    """

    name = "trial"

    def __init__(
        self,
        update: ModuleUpdate,
        torch_engine: TorchEngine,
        losses: LossHooks,
        snapshot: Callable[[], Snapshot],
        *,
        copies: bool,
    ) -> None:
        self._update = update
        self._torch = torch_engine
        self._snapshot = snapshot
        self._arrays: ArraysEngine | None = None
        self._reason = ""
        """Why arrays will not do."""
        try:
            self._arrays = ArraysEngine(update, losses, copies=copies)
        except UnsupportedError as error:
            self._reason = error.reason

    def prepare(self, prepare: Prepare, batch: Batch) -> Batch:
        """Run `prepare_batch` both ways; what torch computes is used."""
        arrays = self._arrays
        tried: Batch | None = None
        if self._is_large(batch.rows):
            self._reason = self._reason or "the batch is large"
        elif arrays is not None:
            tried = self._try(lambda: arrays.prepare(prepare, batch))
        prepared = prepare(batch)
        if tried is not None:
            found, expected = _new_columns(tried, batch), _new_columns(prepared, batch)
            self._reason = difference(found, expected, self._update.member)
        return prepared

    def gradients(self, group: Sequence[ModuleUpdate]) -> None:
        """Leave torch's gradients in the parameters; settle the engine."""
        update, arrays = self._update, self._arrays
        if not update.minibatches:
            return
        large = self._is_large(max(batch.rows for batch in update.minibatches))
        found: Mapping[str, Any] | None = None
        if arrays is not None and not large and not self._reason:
            found = self._try(lambda: self._evaluated(arrays))
            update.discard()
        self._torch.gradients(group)
        if found is not None and not self._reason:
            self._reason = difference(found, update.evaluation(), update.member)
        if large:
            self._reason = self._reason or "the network is large"
        if arrays is None or self._reason:
            update.engine, update.engine_reason = self._torch, self._reason
        else:
            update.engine, update.engine_reason = arrays, "equal to torch on the first minibatch"

    def _is_large(self, rows: int) -> bool:
        params = self._update.member.named.values()
        return rows * sum(param.numel() for param in params) > LARGEST_MINIBATCH

    def _evaluated(self, arrays: ArraysEngine) -> Mapping[str, Any]:
        arrays.gradients([self._update])
        return self._update.evaluation()

    def _try(self, run: Callable[[], Any]) -> Any:
        """What it gives on arrays, without a trace; None if arrays will not do."""
        try:
            snapshot = self._snapshot()
        except UnsupportedError as error:
            self._reason = f"its plugins hold {error}"
            return None
        try:
            found = run()
            if not snapshot.keeps_arrays():
                return found
            self._reason = "its hooks keep what they compute"
        except UnsupportedError as error:
            self._reason = error.reason
        except Exception as error:
            # If the plugin itself is wrong, torch raises what it raises.
            self._reason = f"its hooks need tensors: {error}".partition("\n")[0]
        finally:
            snapshot.restore()
        return None


def _detached(loss: MinibatchLoss, wants_rows: bool) -> Any:
    """The value of the loss; metrics become numbers and rows tensors, in place."""
    metrics = loss.metrics
    for name, value in metrics.items():
        if isinstance(value, Array):
            metrics[name] = value.value if value.dim() == 0 else unwrap(value).clone()
    if wants_rows:
        for name, rows in loss.rows.items():
            loss.rows[name] = unwrap(rows)
    return loss.total.value


def _new_columns(prepared: Batch, batch: Batch) -> dict[str, Any]:
    """The columns that `prepare_batch` added or replaced, as NumPy."""
    columns = {name: prepared.array(name) for name in prepared}
    return {
        name: column
        for name, column in columns.items()
        if name not in batch or _address(column) != _address(batch.array(name))
    }


def _address(column: Any) -> int:
    return first_leaf(column).ctypes.data  # type: ignore[no-any-return] # of any column


def difference(found: Mapping[str, Any], expected: Mapping[str, Any], member: Member) -> str:
    """What differs from torch beyond the tolerance, as a reason; empty if nothing does."""
    dtypes = [param.dtype for param in member.named.values()]
    tolerance = max((_TOLERANCE.get(dtype, 0.0) for dtype in dtypes), default=0.0)
    if found.keys() != expected.keys():
        names = sorted(found.keys() ^ expected.keys())
        return f"arrays and torch differ in {names[0]!r}"
    gradients = [value for name, value in expected.items() if name.startswith("gradient of ")]
    largest = max((float(value.abs().max()) for value in gradients if value.numel()), default=0.0)
    for name, value in expected.items():
        mine = list(leaves(found[name]))
        torchs = list(leaves(value))
        for one, other in zip(mine, torchs, strict=True):
            a = numpy.asarray(one, dtype=numpy.float64)
            b = numpy.asarray(other, dtype=numpy.float64)
            scale = largest if name.startswith("gradient of ") else _size(b)
            if not math.isfinite(scale):
                # No tolerance is known; NumPy would warn of this one.
                scale = 0.0
            if a.shape != b.shape or not numpy.allclose(
                a, b, rtol=0.0, atol=tolerance * scale, equal_nan=True
            ):
                return f"arrays and torch differ in {name!r}"
    return ""


def _size(values: Any) -> float:
    finite = values[numpy.isfinite(values)]
    return max(1.0, float(numpy.abs(finite).max())) if finite.size else 1.0


def _hooks_of(parts: Iterable[nn.Module]) -> list[Any]:
    """The tables of hooks that need autograd, of all modules."""
    tables: list[Any] = []
    for part in parts:
        for module in part.modules():
            tables += (module._backward_hooks, module._backward_pre_hooks)
    return tables
