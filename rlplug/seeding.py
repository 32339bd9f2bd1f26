"""Seeds derived from the seed of a run; a scope that leaves global generators as they were."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy

__all__ = ["derive", "forked"]


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


def _split(word: int) -> list[int]:
    """The count of an integer's 32-bit words, then the words, lowest first."""
    parts = []
    while word:
        parts.append(word & 0xFFFFFFFF)
        word >>= 32
    return [len(parts), *parts]
