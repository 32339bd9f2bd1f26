"""The other learners of the same run, with which sums are shared."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from rlplug.errors import RequestError

__all__ = ["Peers"]

_OPS = ("sum", "mean", "max")


class Peers:
    """All learners of a torch.distributed group; one alone where there is no group."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        joined = group is not None or (dist.is_available() and dist.is_initialized())
        self.size = dist.get_world_size(group) if joined else 1

    def all_reduce(self, tensors: Sequence[Tensor], op: str = "sum") -> list[Tensor]:
        """The tensors combined over all learners; those given stay as they are."""
        if op not in _OPS:
            raise RequestError(f"all_reduce cannot {op!r}.", f"it can: {', '.join(_OPS)}")
        if self.size == 1 or not tensors:
            return list(tensors)
        # One message for all that have a type in common.
        results: list[Tensor | None] = [None] * len(tensors)
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            indices = [index for index, one in enumerate(tensors) if one.dtype == dtype]
            flat = torch.cat([tensors[index].detach().reshape(-1) for index in indices])
            dist.all_reduce(
                flat, dist.ReduceOp.MAX if op == "max" else dist.ReduceOp.SUM, group=self.group
            )
            if op == "mean":
                flat = flat / self.size
            parts = torch.split(flat, [tensors[index].numel() for index in indices])
            for index, part in zip(indices, parts, strict=True):
                results[index] = part.reshape(tensors[index].shape)
        return [one for one in results if one is not None]
