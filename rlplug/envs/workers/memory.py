"""Memory that processes share, and that is freed however they end."""

from __future__ import annotations

import contextlib
import mmap
import os
from multiprocessing import reduction
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from rlplug.errors import RequestError
from rlplug.quantities import format_bytes

__all__ = ["Memory"]


class Memory:
    """Shared with a process that gets it as an argument when it is started.

    Where the system passes files to processes, the memory has no name: it is freed with the last
    process that has it, also if all of them are killed.
    """

    def __init__(self, size: int) -> None:
        """Allocate so many bytes."""
        needed = format_bytes(size)
        try:
            memory = SharedMemory(create=True, size=size)
        except OSError as error:
            raise _none_left(needed, error) from error
        self._file = getattr(memory, "_fd", -1)
        if self._file >= 0:
            memory.unlink()
            try:
                # Otherwise the first write into memory that is not there would kill the process.
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(self._file, 0, size)
            except OSError as error:
                memory.close()
                raise _none_left(needed, error) from error
        self._memory: SharedMemory | mmap.mmap = memory

    @property
    def content(self) -> Any:
        """The bytes, to be written and read."""
        return self._memory.buf if isinstance(self._memory, SharedMemory) else self._memory

    def close(self) -> None:
        """Detach from it."""
        # Somebody keeps a view of it: it is freed with the last one.
        with contextlib.suppress(BufferError):
            self._memory.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._file >= 0:
            return _of_file, (reduction.DupFd(self._file),)
        assert isinstance(self._memory, SharedMemory)
        return _of_name, (self._memory.name,)


def _of_file(passed: Any) -> Memory:
    file = passed.detach()
    try:
        return _attached(mmap.mmap(file, 0))
    finally:
        os.close(file)


def _of_name(name: str) -> Memory:
    return _attached(SharedMemory(name))


def _attached(memory: SharedMemory | mmap.mmap) -> Memory:
    one = Memory.__new__(Memory)
    one._file, one._memory = -1, memory
    return one


def _none_left(needed: str, error: OSError) -> RequestError:
    return RequestError(
        f"worker processes need {needed} of shared memory, which cannot be had: "
        f"{error.strerror or error}.",
        "try: fewer environments, or more shared memory (docker run --shm-size)",
    )
