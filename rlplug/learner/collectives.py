"""Collectives of objects, and how they and others are waited for: no dead learner is waited for."""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["all_gather", "broadcast", "gather", "scatter", "wait_for"]

_POLL = datetime.timedelta(seconds=1)
"""How often others are looked after while a message of theirs is waited for."""

_Check = Callable[[], None] | None
"""Raises if one of the others is gone."""


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
    data = _bytes(value, _device(group))
    sizes = _sizes(data, group, check)
    found = [data.new_empty(max(sizes)) for _ in sizes]
    padded = _padded(data, max(sizes))
    wait_for(dist.all_gather(found, padded, group=group, async_op=True), check)
    return [_object(one[:size]) for one, size in zip(found, sizes, strict=True)]


def gather(value: Any, *, group: Any = None, check: _Check = None) -> list[Any]:
    """What each learner gives, in their order, for learner 0; nothing for the others."""
    data = _bytes(value, _device(group))
    sizes = _sizes(data, group, check)
    is_first = dist.get_rank(group) == 0
    found = [data.new_empty(max(sizes)) for _ in sizes] if is_first else None
    padded = _padded(data, max(sizes))
    wait_for(dist.gather(padded, found, 0, group=group, async_op=True), check)
    return [_object(one[:size]) for one, size in zip(found or (), sizes, strict=False)]


def scatter(values: Sequence[Any], *, group: Any = None, check: _Check = None) -> Any:
    """The value that learner 0 has for this one."""
    rank, device = dist.get_rank(group), _device(group)
    parts = [_bytes(one, device) for one in values] if rank == 0 else []
    sizes = broadcast([len(one) for one in parts], group=group, check=check)
    mine = torch.empty(max(sizes), dtype=torch.uint8, device=device)
    padded = [_padded(one, max(sizes)) for one in parts]
    wait_for(dist.scatter(mine, padded or None, 0, group=group, async_op=True), check)
    return values[0] if rank == 0 else _object(mine[: sizes[rank]])


def _sizes(data: Tensor, group: Any, check: _Check) -> list[int]:
    size = torch.tensor([len(data)], device=data.device)
    sizes = [torch.empty_like(size) for _ in range(dist.get_world_size(group))]
    wait_for(dist.all_gather(sizes, size, group=group, async_op=True), check)
    return [int(one) for one in sizes]


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
