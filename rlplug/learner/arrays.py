"""Small networks on NumPy: the same hooks on arrays, tried once against torch and kept if equal."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from rlplug.batch import Batch
from rlplug.batch.nested import first_leaf, leaves
from rlplug.learner.gradients import TorchEngine
from rlplug.learner.losses import LossHooks, MinibatchLoss
from rlplug.learner.module_update import ModuleUpdate, Prepare
from rlplug.learner.state import random_state, set_random_state, update_digest
from rlplug.nn.arrays import (
    LARGEST_MINIBATCH,
    Array,
    ArrayBatch,
    FrozenWeights,
    Tape,
    UnsupportedError,
    unwrap,
)

__all__ = ["ArraysEngine", "ArraysTrial", "GeneratorStates", "Snapshot"]

_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}


_TABLES = ("_parameters", "_buffers", "_modules")


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

    def prepare(self, prepare: Prepare, batch: Batch) -> Batch:
        """Run `prepare_batch` on arrays."""
        with self._current_tape() as tape:
            prepared = prepare(tape.batch(batch))
        return prepared.plain() if isinstance(prepared, ArrayBatch) else prepared

    def gradients(self, group: Sequence[ModuleUpdate]) -> None:
        """Leave the gradients of the module's minibatches in its parameters."""
        (update,) = group
        names = tuple([one.name for one in update.ready])
        total: Any = None
        reached: set[int] = set()
        with self._current_tape() as tape:
            for batch, weight in update.weighted():
                tape.clear()
                loss = self._losses(update.member, tape.batch(batch), names)
                value = None if loss is None else _detached(loss)
                if update.note(loss, value, batch, weight):
                    assert loss is not None
                    reached.update(self._backward(update, loss, weight))
                    if len(update.minibatches) > 1:
                        total = tape.flat.copy() if total is None else total + tape.flat
                if update.stopped:
                    return
        if total is not None:
            self._tape.flat[:] = total
        self._deliver(update, reached)

    def _current_tape(self) -> Tape:
        scope = FrozenWeights.scope
        if scope is not None and scope is self._checked_in:
            return self._tape
        if any(self._hooks) or _has_any_global_hook():  # type: ignore[no-untyped-call] # untyped in torch
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
        if not loss.named and len(update.ready) == len(self._optimizers):
            return tape.backward(loss.total, weight=weight)
        tape.flat.fill(0)
        reached: list[int] = []
        start = 0
        for one in self._optimizers:
            span = range(start, start + len(one.params))
            start += len(one.params)
            own = loss.for_optimizer(one.name) if one in update.acting else None
            if own is not None and own.requires_grad:
                reached += tape.backward(own, weight=weight, wanted=span)
        return reached

    def _deliver(self, update: ModuleUpdate, reached: set[int]) -> None:
        gradients = self._tape.gradients
        if len(reached) == len(gradients) and not self._copies:
            for param, gradient in zip(self._params, gradients, strict=True):
                if param.grad is not gradient:
                    param.grad = gradient
            update.flat_gradients = self._tape.flat
            return
        for index, (param, gradient) in enumerate(zip(self._params, gradients, strict=True)):
            # Copies: hooks may keep what they see, and the buffer is written again.
            param.grad = gradient.clone() if index in reached else None


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
            self._reason = str(error)

    def prepare(self, prepare: Prepare, batch: Batch) -> Batch:
        """Run `prepare_batch` both ways; what torch computes is used."""
        arrays = self._arrays
        tried: Batch | None = None
        if arrays is not None and not self._is_large(batch.rows):
            tried = self._try(lambda: arrays.prepare(prepare, batch))
        prepared = prepare(batch)
        if tried is not None:
            found, expected = _new_columns(tried, batch), _new_columns(prepared, batch)
            self._reason = _difference(found, expected, self._tolerance)
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
            self._reason = _difference(found, update.evaluation(), self._tolerance)
        if large:
            self._reason = self._reason or "the network is large"
        if arrays is None or self._reason:
            update.engine, update.engine_reason = self._torch, self._reason
        else:
            update.engine, update.engine_reason = arrays, "equal to torch on the first minibatch"

    def _is_large(self, rows: int) -> bool:
        params = self._update.member.named.values()
        return rows * sum(param.numel() for param in params) > LARGEST_MINIBATCH

    @property
    def _tolerance(self) -> float:
        params = self._update.member.named.values()
        return max((_TOLERANCE.get(param.dtype, 0.0) for param in params), default=0.0)

    def _evaluated(self, arrays: ArraysEngine) -> Mapping[str, Any]:
        arrays.gradients([self._update])
        return self._update.evaluation()

    def _try(self, run: Callable[[], Any]) -> Any:
        """What it gives on arrays, without a trace; None if arrays will not do."""
        try:
            snapshot = self._snapshot()
        except Exception as error:
            self._reason = f"its state cannot be copied: {error}"
            return None
        try:
            return run()
        except UnsupportedError as error:
            self._reason = str(error)
        except Exception as error:
            # If the plugin itself is wrong, torch raises what it raises.
            self._reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        finally:
            snapshot.restore()
        return None


class Snapshot:
    """Tensors and attributes of modules and plugins, and generators, to be put back."""

    def __init__(
        self,
        modules: Iterable[nn.Module],
        plugins: Iterable[object],
        generators: dict[str, torch.Generator],
        metrics: dict[str, dict[str, Any]],
    ) -> None:
        parts = list({id(p): p for module in modules for p in module.modules()}.values())
        self._tables = [(table, dict(table)) for p in parts for table in _tables(p)]
        tensors = [one for _, table in self._tables for one in table.values()]
        self._tensors = [
            (tensor, tensor.detach().clone()) for tensor in tensors if isinstance(tensor, Tensor)
        ]
        holders = [*parts, *(one for one in plugins if hasattr(one, "__dict__"))]
        self._attributes = [(vars(one), _plain(vars(one))) for one in holders]
        known = [*holders, *(tensor for tensor, _ in self._tensors)]
        memo: dict[int, Any] = {id(one): one for one in known}
        self._copies = copy.deepcopy([before for _, before in self._attributes], memo)
        self._digests = [{k: _digest(v) for k, v in held.items()} for _, held in self._attributes]
        self._generators = GeneratorStates(generators)
        self._metrics = metrics, copy.deepcopy(metrics)
        self._random = random_state(torch.device("cpu"))

    def restore(self) -> None:
        """Put everything back."""
        for table, before in self._tables:
            table.clear()
            table.update(before)
        with torch.no_grad():
            for tensor, values in self._tensors:
                tensor.copy_(values)
        for (attributes, before), copies, digests in zip(
            self._attributes, self._copies, self._digests, strict=True
        ):
            for name in _plain(attributes).keys() - before.keys():
                del attributes[name]
            for name, value in before.items():
                # An object that was not written to stays the very object that it was.
                written = _digest(value) != digests[name]
                attributes[name] = copies[name] if written else value
        self._generators.restore()
        metrics, before_metrics = self._metrics
        metrics.clear()
        metrics.update(before_metrics)
        set_random_state(self._random)


class GeneratorStates:
    """The states of generators by module id, to be put back; one made since then is forgotten."""

    def __init__(self, generators: dict[str, torch.Generator]) -> None:
        self._generators = generators
        self._states = {name: one.get_state() for name, one in generators.items()}

    def restore(self) -> None:
        """Put everything back."""
        for name in list(self._generators):
            if name in self._states:
                self._generators[name].set_state(self._states[name])
            else:
                del self._generators[name]


def _detached(loss: MinibatchLoss) -> Any:
    """The value of the loss; metrics become numbers and rows tensors, in place."""
    metrics = loss.metrics
    for name, value in metrics.items():
        if isinstance(value, Array):
            metrics[name] = value.value if value.dim() == 0 else unwrap(value).clone()
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


def _difference(found: Mapping[str, Any], expected: Mapping[str, Any], tolerance: float) -> str:
    """What differs beyond the tolerance, as a reason; empty if nothing does."""
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
            if a.shape != b.shape or not numpy.allclose(
                a, b, rtol=0.0, atol=tolerance * scale, equal_nan=True
            ):
                return f"arrays and torch differ in {name!r}"
    return ""


def _size(values: Any) -> float:
    finite = values[numpy.isfinite(values)]
    return max(1.0, float(numpy.abs(finite).max())) if finite.size else 1.0


def _hooks_of(parts: Iterable[nn.Module]) -> list[Any]:
    """The tables of hooks that need autograd, of all modules and parameters."""
    tables: list[Any] = []
    for part in parts:
        for module in part.modules():
            tables += (module._backward_hooks, module._backward_pre_hooks)
    return tables


def _tables(part: nn.Module) -> list[dict[str, Any]]:
    return [getattr(part, name) for name in _TABLES]


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if name not in _TABLES}


def _digest(value: Any) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    update_digest(found, value, 8)
    return found.digest()
