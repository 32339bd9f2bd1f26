"""The learners of one run as a torch.distributed process group: sums, means, averaged gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlplug.errors import PluginError, RequestError
from rlplug.learner.collectives import all_gather, wait_for
from rlplug.learner.gradients import Terms, like_parameter
from rlplug.learner.module_update import ModuleUpdate

__all__ = ["ProcessGroup"]

_OPS = ("sum", "mean", "max")


class ProcessGroup:
    """The learners of a torch.distributed process group; world size 1 without one."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        joined = group is not None or (dist.is_available() and dist.is_initialized())
        self.size = dist.get_world_size(group) if joined else 1
        self.check: Callable[[], None] | None = None
        """Raises if another learner is gone."""

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
            kind = dist.ReduceOp.MAX if op == "max" else dist.ReduceOp.SUM
            work = dist.all_reduce(flat, kind, group=self.group, async_op=True)
            wait_for(work, self.check if flat.device.type == "cpu" else None)
            if op == "mean":
                flat = flat / self.size
            parts = torch.split(flat, [tensors[index].numel() for index in indices])
            for index, part in zip(indices, parts, strict=True):
                results[index] = part.reshape(tensors[index].shape)
        return [one for one in results if one is not None]

    def most(self, count: int) -> int:
        """The largest count of any learner."""
        if self.size == 1:
            return count
        return int(self.all_reduce([torch.tensor(count)], "max")[0])

    def average(self, updates: Sequence[ModuleUpdate], shared: ModuleUpdate | None) -> None:
        """Average losses and gradients; learners without a gradient join with zeros.

        A module stops everywhere if any learner wants it to. What modules share moves where any
        module does.
        """
        if self.size == 1:
            return
        present = [update for update in updates if update.weight]
        for update in updates:
            self._average(update, present=bool(update.weight))
        if shared is not None:
            # Those that had a loss here, and that nobody stopped.
            self._average(shared, present=any(update.weight for update in present))

    def _average(self, update: ModuleUpdate, *, present: bool) -> None:
        optimizers = update.member.optimizers
        params = [param for one in optimizers for param in one.params]
        acting = {one.name for one in update.acting} if present else set()
        flags = torch.tensor(
            [present, update.stopped]
            + [one.name in acting for one in optimizers]
            + [present and param.grad is not None for param in params],
            dtype=torch.int64,
        )
        learners, stops, *counts = self.all_reduce([flags])[0].tolist()
        update.flat_gradients = None
        if stops or not learners:
            update.stopped = bool(stops)
            update.weight = 0.0
            return
        update.acting = [one for one, n in zip(optimizers, counts, strict=False) if n]
        held = [p for p, n in zip(params, counts[len(optimizers) :], strict=True) if n]
        self._refuse_sparse(update)
        gradients = [
            param.grad if present and param.grad is not None else torch.zeros_like(param)
            for param in held
        ]
        loss = sum((loss * weight for loss, weight in update.losses), torch.zeros(()))
        sums = self.all_reduce([torch.as_tensor(loss).to(torch.float32), *gradients])
        # In place: they are parts of what was received, and large.
        torch._foreach_div_(sums, learners)
        total, *averages = sums
        for param, gradient in zip(held, averages, strict=True):
            param.grad = like_parameter(gradient, param)
        update.losses = [(total, 1.0)]
        if not present:
            update.metrics = {}
        update.weight = update.weight or 1.0

    def _refuse_sparse(self, update: ModuleUpdate) -> None:
        for name, param in update.member.named.items():
            if param.grad is not None and param.grad.is_sparse:
                raise PluginError(
                    f"the gradient of {name!r} of module {update.member.module_id!r} is sparse, "
                    f"which {self.size} learners cannot average.",
                    "try: nn.Embedding(…, sparse=False), or one learner",
                )

    def average_terms(self, terms: Terms, params: Mapping[str, Tensor]) -> Terms:
        """Gradients by term and parameter, averaged over the learners that have some."""
        if self.size == 1:
            return terms
        everyone = self.gather({term: list(found) for term, found in terms.items()})
        learners = sum(map(bool, everyone))
        # In the order of the first learner that has them: the same for all.
        pairs = dict.fromkeys(
            (term, name) for one in everyone for term, names in one.items() for name in names
        )
        sums = self.all_reduce(
            [
                terms[term][name] if name in terms.get(term, {}) else torch.zeros_like(params[name])
                for term, name in pairs
            ]
        )
        averages: Terms = {}
        for (term, name), total in zip(pairs, sums, strict=True):
            averages.setdefault(term, {})[name] = total / learners
        return averages

    def average_metrics(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """The mean of every metric over the learners that have it."""
        if self.size == 1:
            return dict(metrics)
        everyone = self.gather({name: float(value) for name, value in metrics.items()})
        names = dict.fromkeys(name for one in everyone for name in one)
        return {
            name: sum(found) / len(found)
            for name in names
            if (found := [one[name] for one in everyone if name in one])
        }

    def gather(self, value: Any) -> list[Any]:
        """What each learner gives, in their order."""
        return all_gather(value, group=self.group, check=self.check)
