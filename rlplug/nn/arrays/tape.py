"""The way back from a loss to the gradients of the trained parameters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlplug.batch import Batch
from rlplug.nn.arrays.array import Array, Graph, UnsupportedError
from rlplug.nn.arrays.batch import ArrayBatch

__all__ = ["LARGEST_MINIBATCH", "Tape"]

LARGEST_MINIBATCH = 150_000_000
"""Rows times parameters up to which arrays are ahead of torch, by benchmarks/arrays.py.

Beyond, arithmetic takes the time, and torch's memory is reused where NumPy's is fresh.
"""


class Tape(Graph):
    """What was computed from the trained parameters, and the backward pass to their gradients."""

    def __init__(self, params: Sequence[nn.Parameter]) -> None:
        super().__init__()
        if len(set(map(id, params))) < len(params):
            raise UnsupportedError("optimizers that hold the same parameters")
        if any(not (param.is_cpu and param.is_contiguous()) for param in params) or (
            len({param.dtype for param in params}) > 1
        ):
            raise UnsupportedError("parameters of several dtypes, or not plainly on the CPU")
        self.trained = [self.add_leaf(param) for param in params]
        """The trained parameters, in order."""
        dtype = self.trained[0].value.dtype if params else numpy.dtype(numpy.float32)
        if dtype.kind != "f":
            raise UnsupportedError(f"parameters of dtype {dtype}")
        self.flat: NDArray[Any] = numpy.zeros(sum(param.numel() for param in params), dtype)
        """All gradients side by side, in order."""
        self.spans: list[slice] = []
        """Where the numbers of each parameter lie in it."""
        start = 0
        for leaf in self.trained:
            stop = start + leaf.value.size
            self.spans.append(slice(start, stop))
            leaf.grad_view = self.flat[start:stop].reshape(leaf.value.shape)
            leaf.requires_grad = True
            start = stop
        self.gradients: list[Tensor] = [torch.from_numpy(leaf.grad_view) for leaf in self.trained]
        """The gradients as tensors, shaped like the parameters; they share memory with `flat`."""

    def batch(self, batch: Batch) -> ArrayBatch:
        """The columns of a batch as arrays."""
        return ArrayBatch.of(batch, self)

    def backward(
        self, loss: Array, *, weight: float = 1.0, wanted: Collection[int] | None = None
    ) -> list[int]:
        """Write the gradients of `weight * loss`; the positions of the parameters it reached.

        Only the spans of parameters at the positions `wanted` are written (None: all), with zeros
        where the loss does not reach them. Nothing is consumed: there may be several losses.
        """
        if loss.value.size != 1:
            raise UnsupportedError("a loss of more than one number")
        if wanted is not None:
            for index, leaf in enumerate(self.trained):
                leaf.requires_grad = index in wanted
        reached: list[int] = []
        try:
            if loss.requires_grad:
                shape = loss.value.shape
                one = loss.value.dtype.type(weight)
                loss.grad = numpy.full(shape, one) if shape else one
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

    def __enter__(self) -> Tape:
        """One pass: what overflows does so in silence, as in torch."""
        self.clear()
        self._silence = numpy.errstate(all="ignore")
        self._silence.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._silence.__exit__(*error)
        # Large batches would take their room until the next pass.
        self.clear()
