"""The lock of a run: one process at a time carries it out, and a dead process holds none."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self

import attrs

from rlplug.errors import RequestError
from rlplug.tracking.location import runs_folder
from rlplug.tracking.status import now

if TYPE_CHECKING:
    from filelock import BaseFileLock

__all__ = ["RunLock", "holder", "is_alive", "name_lock"]

LOCK = "run.lock"
HOLDER = "run.lock.json"


class RunLock:
    """Held from `take` to `release`, or until the process ends, in whatever way."""

    def __init__(self, lock: BaseFileLock) -> None:
        self._lock = lock

    @classmethod
    def try_take(cls, folder: Path, seconds: float = 0.0) -> RunLock | None:
        """The lock of a run's folder, or None if it is held for these seconds."""
        lock = _acquired(folder / LOCK, seconds)
        return None if lock is None else cls(lock)

    @classmethod
    def take(cls, folder: Path) -> RunLock:
        """The lock of a run's folder, with this process as its holder, or raise who has it."""
        # Whoever looks whether the run is dead holds it for a moment.
        taken = cls.try_take(folder, seconds=1.0)
        if taken is None:
            raise RequestError(
                f"run {folder.name} is in progress ({holder(folder).shown}).",
                "try: again after that process has exited",
            )
        facts = {"host": socket.gethostname(), "pid": os.getpid(), "started": now()}
        try:
            (folder / HOLDER).write_text(json.dumps(facts) + "\n")
        except BaseException:
            taken.release()
            raise
        return taken

    def release(self) -> None:
        """Let others take it."""
        with contextlib.suppress(OSError):
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


@contextlib.contextmanager
def name_lock(name: str) -> Iterator[None]:
    """Held by the one process that starts or resumes the run of this name."""
    work = runs_folder() / "work"
    work.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    lock = _acquired(work / f".name-{digest}.lock", 0.0)
    if lock is None:
        raise RequestError(
            f"a run named {name!r} is in progress in another process.",
            "try: again after that process has exited, or another name",
        )
    try:
        yield
    finally:
        lock.release()


def _acquired(file: Path, seconds: float) -> BaseFileLock | None:
    # 0.1 s to import, and often nothing is to be locked.
    from filelock import FileLock, Timeout

    lock = FileLock(file, timeout=seconds, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        return None
    return lock


@attrs.frozen
class Holder:
    """The process that took the lock last."""

    host: str = ""
    pid: object = None

    @property
    def shown(self) -> str:
        """For messages."""
        return f"pid {self.pid} on {self.host}" if self.host else "by an unknown process"

    @property
    def is_elsewhere(self) -> bool:
        """Whether it runs on another host, whose locks may not be seen here."""
        return bool(self.host) and self.host != socket.gethostname()


def holder(folder: Path) -> Holder:
    """Who took the lock of a run's folder last."""
    try:
        facts = json.loads((folder / HOLDER).read_text())
        return Holder(str(facts["host"]), facts.get("pid"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Holder()


def is_alive(pid: int) -> bool:
    """Whether a process of this id exists; always said where that cannot be asked."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
