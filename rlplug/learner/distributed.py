"""The learners of one run over torch.distributed: averages, sums, and objects that they exchange.

No dead learner is waited for.
"""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, zeros_like

from rlplug.errors import PluginError, RequestError
from rlplug.learner.member import Member
from rlplug.learner.step import Evaluation, Terms, average, like_parameter

_POLL = datetime.timedelta(seconds=1)
"""How often others are looked after while a message of theirs is waited for."""

_Check = Callable[[], None] | None
"""Raises if one of the others is gone."""


class ProcessGroup:
    """The learners of a torch.distributed process group; world size 1 without one."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        joined = group is not None or (dist.is_available() and dist.is_initialized())
        self.size = dist.get_world_size(group) if joined else 1
        self.check: _Check = None
        """Raises if another learner is gone."""

    def all_reduce(self, tensors: Sequence[Tensor], op: str = "sum") -> list[Tensor]:
        """The tensors combined over all learners; those given stay as they are."""
        if op not in ("sum", "mean", "max"):
            raise RequestError(f"all_reduce cannot {op!r}.", "it can: sum, mean, max")
        if self.size == 1 or not tensors:
            return list(tensors)
        kind = dist.ReduceOp.MAX if op == "max" else dist.ReduceOp.SUM
        results = list(tensors)
        # One message for all that have a type in common.
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            alike = [tensor.detach() for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.reshape(-1) for tensor in alike])
            work = dist.all_reduce(flat, kind, group=self.group, async_op=True)
            wait_for(work, self.check if flat.device.type == "cpu" else None)
            if op == "mean":
                flat = flat / self.size
            parts = iter(torch.split(flat, [tensor.numel() for tensor in alike]))
            for index, tensor in enumerate(tensors):
                if tensor.dtype == dtype:
                    results[index] = next(parts).reshape(tensor.shape)
        return results

    def most(self, count: int) -> int:
        """The largest count of any learner."""
        if self.size == 1:
            return count
        return int(self.all_reduce([torch.tensor(count)], "max")[0])

    def average(self, member: Member, result: Evaluation) -> Evaluation:
        """Average loss and gradients of a module; learners without a gradient join with zeros.

        A module stops everywhere if any learner wants it to. What modules share moves where any
        module does.
        """
        for name, param in member.named.items():
            if param.grad is not None and param.grad.is_sparse:
                raise PluginError(
                    f"the gradient of {name!r} of module {member.module_id!r} is sparse, "
                    f"which {self.size} learners cannot average.",
                    "try: nn.Embedding(…, sparse=False), or one learner",
                )
        names = tuple(optimizer.name for optimizer in member.optimizers)
        params = [param for optimizer in member.optimizers for param in optimizer.params]
        present = bool(result.weight)
        flags = [present, result.stop]
        flags += [present and name in result.acting for name in names]
        flags += [present and param.grad is not None for param in params]
        counts = self.all_reduce([torch.tensor(flags, dtype=torch.int64)])[0].tolist()
        learners, stops, *counts = counts
        if stops or not learners:
            return result._replace(weight=0.0, stop=bool(stops), flat=None)
        sums = [torch.as_tensor(result.loss if present else 0.0).to(torch.float32)]
        held = [param for param, count in zip(params, counts[len(names) :], strict=True) if count]
        for param in held:
            sums.append(param.grad if present and param.grad is not None else zeros_like(param))
        loss, *gradients = self.all_reduce(sums)
        # In place: they are parts of what was received, and large.
        torch._foreach_div_([loss, *gradients], learners)
        for param, gradient in zip(held, gradients, strict=True):
            param.grad = like_parameter(gradient, param)
        acting = {name: 1.0 for name, count in zip(names, counts, strict=False) if count}
        weight = result.weight or 1.0
        return result._replace(weight=weight, loss=loss, acting=acting, flat=None)

    def average_terms(self, terms: Terms, params: Mapping[str, Tensor]) -> Terms:
        """Gradients by term and parameter, averaged over the learners that have some."""
        if self.size == 1:
            return terms
        everyone = self.gather({term: list(gradients) for term, gradients in terms.items()})
        learners = sum(map(bool, everyone))
        averages: Terms = {}
        # In the order of the first learner that has them: the same for all.
        for own in everyone:
            for term, names in own.items():
                averages.setdefault(term, {}).update({name: params[name] for name in names})
        gradients = [
            terms.get(term, {}).get(name, zeros_like(param))
            for term, named in averages.items()
            for name, param in named.items()
        ]
        totals = iter(self.all_reduce(gradients))
        for named in averages.values():
            named.update({name: next(totals) / learners for name in named})
        return averages

    def average_metrics(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """The mean of every metric over the learners that have it."""
        if self.size == 1:
            return dict(metrics)
        return average(self.gather({name: float(value) for name, value in metrics.items()}))

    def gather(self, value: Any) -> list[Any]:
        """What each learner gives, in their order."""
        return all_gather(value, group=self.group, check=self.check)


def wait_for(work: Any, check: _Check) -> None:
    """Wait for a message on the CPU; `check` raises if one of the others is gone.

    gloo does not always notice that a connection was closed, and would wait for ever.
    """
    if check is None:
        work.wait()
        return
    gone: BaseException | None = None
    while True:
        try:
            work.wait(_POLL)
            return
        except RuntimeError as error:
            if work.is_completed() or "timed out" not in str(error):
                raise
        if gone is not None:
            raise gone
        try:
            check()
        except dist.DistError as error:
            # What was sent before the end may still arrive.
            gone = error


def broadcast(value: Any, *, group: Any = None, check: _Check = None) -> Any:
    """What learner 0 gives."""
    is_first, device = dist.get_rank(group) == 0, _device(group)
    data = _bytes(value, device) if is_first else torch.empty(0, dtype=torch.uint8, device=device)
    size = torch.tensor([len(data)], device=device)
    wait_for(dist.broadcast(size, 0, group=group, async_op=True), check)
    if not is_first:
        data = data.new_empty(int(size))
    wait_for(dist.broadcast(data, 0, group=group, async_op=True), check)
    return value if is_first else _object(data)


def all_gather(value: Any, *, group: Any = None, check: _Check = None) -> list[Any]:
    """What each learner gives, in their order."""
    return _gathered(value, group, check, everywhere=True)


def gather(value: Any, *, group: Any = None, check: _Check = None) -> list[Any]:
    """What each learner gives, in their order, for learner 0; nothing for the others."""
    return _gathered(value, group, check, everywhere=False)


def _gathered(value: Any, group: Any, check: _Check, *, everywhere: bool) -> list[Any]:
    data = _bytes(value, _device(group))
    size = torch.tensor([len(data)], device=data.device)
    sizes = [torch.empty_like(size) for _ in range(dist.get_world_size(group))]
    wait_for(dist.all_gather(sizes, size, group=group, async_op=True), check)
    counts = [int(count) for count in sizes]
    padded = _padded(data, max(counts))
    if everywhere:
        received = [torch.empty_like(padded) for _ in counts]
        work = dist.all_gather(received, padded, group=group, async_op=True)
    else:
        is_first = dist.get_rank(group) == 0
        received = [torch.empty_like(padded) for _ in counts] if is_first else []
        work = dist.gather(padded, received or None, 0, group=group, async_op=True)
    wait_for(work, check)
    return [_object(part[:count]) for part, count in zip(received, counts, strict=False)]


def scatter(values: Sequence[Any], *, group: Any = None, check: _Check = None) -> Any:
    """The value that learner 0 has for this one."""
    rank, device = dist.get_rank(group), _device(group)
    parts = [_bytes(value, device) for value in values] if rank == 0 else []
    sizes = broadcast([len(part) for part in parts], group=group, check=check)
    own = torch.empty(max(sizes), dtype=torch.uint8, device=device)
    padded = [_padded(part, max(sizes)) for part in parts]
    wait_for(dist.scatter(own, padded or None, 0, group=group, async_op=True), check)
    return values[0] if rank == 0 else _object(own[: sizes[rank]])


def _padded(data: Tensor, size: int) -> Tensor:
    return torch.cat([data, data.new_zeros(size - len(data))]) if len(data) < size else data


def _bytes(value: Any, device: torch.device) -> Tensor:
    # A copy: the bytes of Python cannot be written.
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8).to(device)


def _object(data: Tensor) -> Any:
    # From a process of the same run.
    return pickle.loads(data.cpu().numpy().tobytes())


def _device(group: Any) -> torch.device:
    nccl = dist.get_backend(group) == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
