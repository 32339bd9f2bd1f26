"""The way back from a loss to the gradients of the trained parameters, and batches on it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlplug.batch import Batch
from rlplug.nn.arrays.array import (
    NUMPY_DTYPES,
    TORCH_DTYPES,
    Array,
    Back,
    UnsupportedError,
    Value,
    accumulate,
    as_tensor,
    recorded,
    unwrap,
)
from rlplug.nn.arrays.views import Views, run_sequential
from rlplug.optim.steps import NoGrad

__all__ = ["LARGEST_MINIBATCH", "ArrayBatch", "Tape"]

LARGEST_MINIBATCH = 150_000_000
"""Rows times parameters up to which arrays are ahead of torch, by benchmarks/arrays.py.

Beyond, arithmetic takes the time, and torch's memory is reused where NumPy's is fresh.
"""


class Tape:
    """What was computed from the trained parameters, and the backward pass to their gradients."""

    def __init__(self, params: Sequence[nn.Parameter], modules: Iterable[nn.Module] = ()) -> None:
        """`modules` have the networks whose layers may run in one operation."""
        self.nodes: list[tuple[Array, Back]] = []
        """The results of operations, and how their gradients go back."""
        self.views = Views()
        """The weights of networks that run in one operation."""
        self.networks: dict[Any, Any] = {}
        """How they run, by the ids of what they belong to."""
        self._leaves: dict[int, Array] = {}
        """The parameters met so far, by their ids."""
        self._tensors: list[Tensor] = []
        self._addresses: list[tuple[int, bool]] = []
        self._sequentials = [
            (vars(part), partial(run_sequential, part))
            for part in {part: None for module in modules for part in module.modules()}
            if isinstance(part, nn.Sequential)
            and type(part).forward is nn.Sequential.forward
            and "forward" not in vars(part)
        ]
        if len(set(map(id, params))) < len(params):
            raise UnsupportedError("optimizers that hold the same parameters")
        if any(not (param.is_cpu and param.is_contiguous()) for param in params) or (
            len({param.dtype for param in params}) > 1
        ):
            raise UnsupportedError("parameters of several dtypes, or not plainly on the CPU")
        self._params = params
        self.trained = [self._add_leaf(param) for param in params]
        """The trained parameters, in order."""
        dtype = self.trained[0].value.dtype if params else numpy.dtype(numpy.float32)
        if dtype.kind != "f":
            raise UnsupportedError(f"parameters of dtype {dtype}")
        self.flat: NDArray[Any] = numpy.zeros(sum(param.numel() for param in params), dtype)
        """All gradients side by side, in order."""
        start = 0
        for leaf in self.trained:
            stop = start + leaf.value.size
            leaf.grad_view = self.flat[start:stop].reshape(leaf.value.shape)
            leaf.requires_grad = True
            start = stop
        self.gradients: list[Tensor] = [torch.from_numpy(leaf.grad_view) for leaf in self.trained]
        """The gradients as tensors, shaped like the parameters; they share memory with `flat`."""

    def __enter__(self) -> Tape:
        """One pass: what overflows does so in silence, as in torch."""
        self.nodes.clear()
        # For this pass alone: dispatch layer by layer would take longer than most layers.
        for attributes, run in self._sequentials:
            attributes["forward"] = run
        self._silence = numpy.errstate(all="ignore")
        self._silence.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._silence.__exit__(*error)
        for attributes, _ in self._sequentials:
            attributes.pop("forward", None)
        # Large batches would take their room until the next pass.
        self.nodes.clear()

    def clear(self) -> None:
        """Forget what was computed."""
        self.nodes.clear()

    def current(self) -> bool:
        """Whether every parameter met so far still lies where it lay, and is trained if it was."""
        seen = [(tensor.data_ptr(), tensor.requires_grad) for tensor in self._tensors]
        return seen == self._addresses and self.views.current()

    def backward(
        self, loss: Any, *, weight: float = 1.0, wanted: Collection[int] | None = None
    ) -> list[int]:
        """Write the gradients of `weight * loss`; the positions of the parameters it reached.

        Only the spans of parameters at the positions `wanted` are written (None: all), with zeros
        where the loss does not reach them. Nothing is consumed: there may be several losses.
        """
        loss = self.array(loss)
        if loss.value.size != 1:
            raise UnsupportedError("a loss of more than one number")
        if wanted is not None:
            for index, leaf in enumerate(self.trained):
                leaf.requires_grad = index in wanted
        reached: list[int] = []
        try:
            if loss.requires_grad:
                shape = loss.value.shape
                factor = loss.value.dtype.type(weight)
                loss.grad = numpy.full(shape, factor) if shape else factor
                for out, back in reversed(self.nodes):
                    gradient = out.grad
                    if gradient is not None:
                        out.grad = None
                        back(gradient)
            for index, leaf in enumerate(self.trained):
                if not leaf.requires_grad:
                    continue
                gradient = leaf.grad
                if gradient is None:
                    leaf.grad_view.fill(0)
                    continue
                reached.append(index)
                if gradient is not leaf.grad_view:
                    leaf.grad_view[...] = gradient
        finally:
            for leaf in self.trained:
                leaf.grad = None
                leaf.requires_grad = True
        return reached

    # -- what tensors are on the tape ------------------------------------------------------------

    def leaf(self, tensor: Tensor) -> Array:
        """A parameter, buffer or other tensor, in the same memory."""
        known = self._leaves.get(id(tensor))
        if known is not None:
            return known
        # Asking torch for a Parameter is slow.
        if type(tensor) is not Tensor and isinstance(tensor, nn.Parameter):
            return self._add_leaf(tensor)
        if tensor.requires_grad:
            return self.from_torch(tensor)
        return Array(_numbers(tensor), self)

    def array(self, column: Any) -> Any:
        """Arrays or tensors, maybe nested, as arrays."""
        # Nearly every column is one array or tensor, and other kinds are slower to ask for.
        if type(column) is numpy.ndarray:
            return Array(_checked(column), self)
        if isinstance(column, Tensor):
            return self.leaf(column)
        if isinstance(column, Mapping):
            return {name: self.array(part) for name, part in column.items()}
        if isinstance(column, tuple):
            return tuple(self.array(part) for part in column)
        return column

    def batch(self, batch: Batch) -> ArrayBatch:
        """The columns of a batch as arrays."""
        return ArrayBatch.of(batch, self)

    def _add_leaf(self, tensor: Tensor) -> Array:
        """A parameter, which `current` watches from now on."""
        leaf = self._leaves[id(tensor)] = Array(_numbers(tensor.detach()), self)
        self._tensors.append(tensor)
        self._addresses.append((tensor.data_ptr(), tensor.requires_grad))
        return leaf

    def from_torch(
        self, tensor: Tensor, ends: Sequence[tuple[Array, Tensor]] | None = None
    ) -> Array:
        """What torch made of tensors: autograd knows the way back to the arrays that they show.

        Without them, it was made of trained parameters.
        """
        value = _numbers(tensor.detach())
        if not (tensor.requires_grad and torch.is_grad_enabled()):
            return Array(value, self)

        pairs = ends or list(zip(self.trained, self._params, strict=True))
        arrays = {id(shown): array for array, shown in pairs}

        def back(gradient: Value) -> None:
            given = as_tensor(gradient)
            parts = _parts_of_chain(tensor, given, may_go_on=bool(ends))
            if parts is None:
                shown = [tensor for _, tensor in pairs]
                found = torch.autograd.grad(
                    tensor, shown, given, retain_graph=True, allow_unused=True
                )
                parts = list(zip(shown, found, strict=True))
            for leaf, part in parts:
                array = arrays.get(id(leaf))
                if array is not None and part is not None:
                    accumulate(array, part.numpy())

        return recorded(value, self, back)


class ArrayBatch(Batch):
    """The columns of a batch, as arrays of a tape; nothing is copied."""

    __slots__ = ("_read", "tape")

    def __init__(self, columns: Mapping[str, Any], tape: Tape) -> None:
        super().__init__(columns)
        self.tape = tape
        self._read: dict[str, Any] = {}

    @classmethod
    def of(cls, batch: Batch, tape: Tape) -> ArrayBatch:
        """The same columns."""
        made = cls(batch._columns, tape)
        made._checked = batch._checked
        return made

    def __getitem__(self, name: str) -> Any:
        read = self._read
        if name in read:
            return read[name]
        column = read[name] = self.tape.array(self._columns[name])
        return column

    def with_columns(self, columns: Mapping[str, Any]) -> ArrayBatch:
        """A batch with these columns replaced or added; this one stays as it is."""
        made = {name: _stored(column) for name, column in columns.items()}
        return ArrayBatch.of(super().with_columns(made), self.tape)

    def plain(self) -> Batch:
        """The batch that this is a view of."""
        made = Batch(self._columns)
        made._checked = self._checked
        return made

    def without(self, names: frozenset[str]) -> ArrayBatch:
        """A batch without these columns."""
        return ArrayBatch.of(super().without(names), self.tape)

    def select(self, rows: Any) -> ArrayBatch:
        """These rows of every column; tables of fragments are left out."""
        return ArrayBatch.of(Batch(self._columns).select(unwrap(rows)), self.tape)

    def extended(self) -> Any:
        """Each fragment with its final observation appended; `split` takes and gives arrays."""
        return _Extended(Batch(self._columns).extended(), self.tape)


class _Extended(ArrayBatch):
    """What `Batch.extended` gives, as arrays."""

    __slots__ = ("_extended",)

    def __init__(self, extended: Any, tape: Tape) -> None:
        super().__init__(extended._columns, tape)
        self._extended = extended

    def split(self, values: Array) -> tuple[Array, Array]:
        """Of one value per extended row: those at each row, and those one row later."""
        at, after = self._extended.split(values)
        return at, after


def _parts_of_chain(
    tensor: Tensor, gradient: Tensor, *, may_go_on: bool
) -> list[tuple[Tensor, Tensor | None]] | None:
    """Leaves of a graph without branches and their gradients, in a tenth of autograd's time.

    None where autograd has to find them: beyond the last function too, unless it `may_go_on`, as
    only autograd sums over what was broadcast on the way.
    """
    node: Any = tensor.grad_fn
    if node is None or tensor.output_nr:
        return None
    found: list[tuple[Tensor, Tensor | None]] = []
    with NoGrad():
        while node is not None:
            try:
                parts = node(gradient)
            except TypeError:
                # It waits for the gradients of several results.
                return None
            reached = zip(
                node.next_functions, parts if type(parts) is tuple else (parts,), strict=True
            )
            node = None
            for (function, place), part in reached:
                if hasattr(function, "variable"):
                    found.append((function.variable, part))
                elif function is not None and part is not None:
                    if node is not None or place or not may_go_on:
                        return None
                    node, gradient = function, part
    return found


def _stored(column: Any) -> Any:
    """An array as NumPy where that can be stored as it is, else as a tensor."""
    if type(column) is Array:
        value = column.value
        if type(value) is numpy.ndarray and value.flags.c_contiguous and value.flags.writeable:
            return value
    return unwrap(column)


def _numbers(tensor: Tensor) -> NDArray[Any]:
    try:
        return _checked(tensor.numpy())
    except (RuntimeError, TypeError) as error:
        # On another device, or of a format that NumPy lacks.
        raise UnsupportedError(f"a tensor that NumPy cannot show: {error}") from error


def _checked(value: NDArray[Any]) -> NDArray[Any]:
    dtype = value.dtype
    known = _BUILTIN.get(dtype.char)
    # Functions compare dtypes by identity, the fastest way.
    if dtype is known:
        return value
    if known is None or dtype != known:
        raise UnsupportedError(f"numbers of dtype {dtype}")
    return value.view(known)


_BUILTIN = {char: NUMPY_DTYPES[dtype] for char, dtype in TORCH_DTYPES.items()}
