"""Arrays for the values of a space, in the smallest dtype that holds them; free memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from gymnasium import spaces

from rlplug.batch.nested import leaves
from rlplug.errors import UnsupportedSpaceError

__all__ = ["allocate", "available_memory", "row_bytes", "to_indices"]


def allocate(
    space: spaces.Space[Any], rows: int, *, double: bool = False, frame_stack: int = 1
) -> Any:
    """Empty arrays of `rows` rows, nested like the space; of a frame stack only one frame.

    The system allocates their memory only where they are written.
    """
    part: Any = partial(allocate, rows=rows, double=double, frame_stack=frame_stack)
    if isinstance(space, spaces.Dict):
        return {name: part(one) for name, one in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(part, space.spaces))
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        shape = (space.shape or ())[1 if frame_stack > 1 else 0 :]
        return numpy.empty((rows, *shape), _smallest_dtype(space, double))
    raise UnsupportedSpaceError(
        f"a replay buffer keeps values of a fixed size, found {space}.",
        "try: a wrapper that gives Box, Discrete, MultiDiscrete or MultiBinary",
    )


def row_bytes(space: spaces.Space[Any], *, double: bool = False, frame_stack: int = 1) -> int:
    """Bytes of one row."""
    arrays = allocate(space, 1, double=double, frame_stack=frame_stack)
    return sum(leaf.nbytes for leaf in leaves(arrays))


def to_indices(space: spaces.Space[Any]) -> Callable[[Any], Any]:
    """Returns a function that converts discrete values to int64; all others stay as they are."""
    if isinstance(space, spaces.Dict):
        parts = {name: to_indices(part) for name, part in space.spaces.items()}
        return lambda column: {name: convert(column[name]) for name, convert in parts.items()}
    if isinstance(space, spaces.Tuple):
        each = tuple(map(to_indices, space.spaces))
        return lambda column: tuple(convert(one) for convert, one in zip(each, column, strict=True))
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return lambda column: column.astype(numpy.int64)
    return lambda column: column


def available_memory(device: torch.device | None = None) -> int | None:
    """Bytes that this process can still allocate, of a device's own memory if it is not the CPU.

    None if the system does not say.
    """
    if device is not None and device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free
    if device is not None and device.type != "cpu":
        return None
    known = [found for found in (_system_memory(), _cgroup_memory()) if found is not None]
    return min(known) if known else None


def _smallest_dtype(space: spaces.Space[Any], double: bool) -> Any:
    if isinstance(space, spaces.Discrete):
        lowest, highest = int(space.start), int(space.start + space.n - 1)
    elif isinstance(space, spaces.MultiDiscrete):
        lowest, highest = int(space.start.min()), int((space.start + space.nvec - 1).max())
    elif space.dtype == numpy.float64 and not double:
        return numpy.float32
    else:
        return space.dtype
    return numpy.result_type(numpy.min_scalar_type(lowest), numpy.min_scalar_type(highest))


def _system_memory() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        # Not Linux.
        pass
    names = getattr(os, "sysconf_names", {})
    if "SC_PHYS_PAGES" in names and "SC_PAGE_SIZE" in names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _cgroup_memory() -> int | None:
    """What the container's limit leaves."""
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(int(limit) - used, 0)
