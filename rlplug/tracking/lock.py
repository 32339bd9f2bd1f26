"""The lock of a run: one process at a time carries it out, and a dead process holds none.

Whether a run has died is read from its lock, which is free then, not from what it wrote. A lock of
another host may not be seen here: of its runs, the heartbeat is looked at.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self

import attrs

from rlplug.errors import RequestError
from rlplug.tracking.journal import JOURNAL, read_journal
from rlplug.tracking.location import read_object, runs_folder
from rlplug.tracking.status import HEARTBEAT, RUNNING, RunStatus, end_heartbeat, now

if TYPE_CHECKING:
    from filelock import BaseFileLock

    from rlplug.tracking.store import Store

LOCK = "run.lock"
HOLDER = "run.lock.json"
DIED = "process died"
STALE_SECONDS = 15 * 60
"""Age of a heartbeat at which a run of another host is shown as stale."""
_HALF_WRITTEN = (
    "checkpoints/.unfinished-*",
    "checkpoints/*.new-*",
    "plots/*.new-*",
    "videos/.new-*",
    "profile/.writing-*",
    "replay/.unfinished-*",
    ".unfinished-*",
    "*.new-*",
    "*.tmp",
    "*.acked.new",
)


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
    facts = read_object(folder / HOLDER)
    return Holder(str(facts.get("host", "")), facts.get("pid"))


def status_now(folder: Path) -> RunStatus | None:
    """The status of a run; of one that says RUNNING and whose lock is free, that it has died."""
    status = RunStatus.read(folder)
    if status is None or status.status != RUNNING or holder(folder).is_elsewhere:
        return status
    # Of a folder that cannot be written, the status is believed.
    with contextlib.suppress(OSError):
        lock = RunLock.try_take(folder)
        if lock is not None:
            lock.release()
            return _died(status, folder)
    return status


def end_dead(folder: Path) -> tuple[RunStatus, bool]:
    """The status of a run whose lock the caller holds, and whether its process has died.

    It is written, and what the process left half-written is removed.
    """
    status = RunStatus.read(folder) or RunStatus()
    remove_half_written(folder)
    died = status.status == RUNNING
    if died:
        with contextlib.suppress(OSError):
            steps = (report.step for report in read_journal(folder / JOURNAL))
            status = attrs.evolve(status, step=max(steps, default=0))
        status = _died(status, folder)
        status.write(folder)
    end_heartbeat(folder)
    return status, died


def is_stale(folder: Path) -> bool:
    """Whether a run of another host has not been heard of for a quarter of an hour."""
    try:
        age = time.time() - (folder / HEARTBEAT).stat().st_mtime
    except OSError:
        return False
    return holder(folder).is_elsewhere and age > STALE_SECONDS


def is_in_progress(store: Store) -> bool:
    """Whether the process of a run that MLflow calls RUNNING may be at work.

    On this machine, its process is looked for; of another one, the last metric is looked at.
    """
    if store.tags.get("rlplug.host") == socket.gethostname():
        pid = store.tags.get("rlplug.pid", "")
        return pid.isdigit() and is_alive(int(pid))
    return time.time() - store.last_change < STALE_SECONDS


def is_alive(pid: int) -> bool:
    """Whether a process of this id exists; always said where that cannot be asked."""
    try:
        if os.name == "posix":
            os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        """It is of another user."""
    return True


def remove_half_written(folder: Path) -> None:
    """Remove what a killed process left half-written in the folder of a run; it is locked."""
    for pattern in _HALF_WRITTEN:
        for leftover in folder.glob(pattern):
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    leftover.unlink()


def _died(status: RunStatus, folder: Path) -> RunStatus:
    signs = [one for one in (folder / HEARTBEAT, folder / JOURNAL) if one.exists()]
    last = max((one.stat().st_mtime for one in signs), default=time.time())
    return attrs.evolve(status, status="FAILED", stop_reason=DIED, ended=now(last), pending=True)


def _acquired(file: Path, seconds: float) -> BaseFileLock | None:
    # 0.1 s to import, and often nothing is to be locked.
    from filelock import FileLock, Timeout

    lock = FileLock(file, timeout=seconds, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        return None
    return lock
