"""Seeds derived from the seed of a run; the global generators, and scopes that leave them be."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy

if TYPE_CHECKING:
    import torch


def derive(seed: int, *path: str | int) -> int:
    """A seed for this path of names under `seed`, the same on every machine."""
    words = [
        int.from_bytes(str(part).encode(), "little") if isinstance(part, str) else part
        for part in path
    ]
    entropy = [seed, *(word for part in words for word in _split(part))]
    return int(numpy.random.SeedSequence(entropy).generate_state(1, numpy.uint64)[0] >> 1)


@contextmanager
def forked(seed: int) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python inside, and restore them after."""
    import torch

    python_state = random.getstate()
    numpy_state = numpy.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call] # untyped in torch
    with torch.random.fork_rng(devices=devices):
        try:
            # A build without devices would keep the seed for one that never comes. Whether there
            # is a device is not asked: processes forked after that could not use it.
            no_device = torch.accelerator.current_accelerator() is None
            (torch.default_generator if no_device else torch).manual_seed(seed)
            numpy.random.seed(seed % 2**32)
            random.seed(seed)
            yield
        finally:
            random.setstate(python_state)
            numpy.random.set_state(numpy_state)


def random_state(device: torch.device | None = None) -> dict[str, Any]:
    """The global generators of torch, NumPy and Python; with a GPU, that of this `device` too."""
    import torch

    state: Any = numpy.random.get_state()
    name, keys, position, has_gauss, gauss = state
    gpu = device if device is not None and device.type == "cuda" else None
    return {
        "torch": torch.get_rng_state(),
        "cuda": None if gpu is None else torch.cuda.get_rng_state(gpu),
        "numpy": [name, torch.from_numpy(keys.astype(numpy.int64)), position, has_gauss, gauss],
        "python": random.getstate(),
    }


def set_random_state(saved: Mapping[str, Any], device: torch.device | None = None) -> None:
    """Put the global generators back; on a GPU that of `device`, which need not be the first."""
    import torch

    torch.set_rng_state(saved["torch"])
    if saved["cuda"] is not None and device is not None and device.type == "cuda":
        torch.cuda.set_rng_state(saved["cuda"], device)
    name, keys, *rest = saved["numpy"]
    numpy.random.set_state((name, keys.numpy().astype(numpy.uint32), *rest))
    random.setstate(saved["python"])


def _split(word: int) -> list[int]:
    """The count of an integer's 32-bit words, then the words, lowest first."""
    parts = []
    while word:
        parts.append(word & 0xFFFFFFFF)
        word >>= 32
    return [len(parts), *parts]
