"""The state of a run in its folder: status, tags, and the lock by which its death is known.

One process at a time carries a run out, and holds its lock; a dead process holds none. Whether a
run has died is read from that. A lock of another host may not be visible here: of its runs, the
time of the holder's file is looked at, which a run in progress renews.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import attrs

from rlplug.durable import write_durably
from rlplug.errors import RequestError
from rlplug.tracking.journal import JOURNAL, read_journal
from rlplug.tracking.location import read_object, runs_folder

if TYPE_CHECKING:
    from filelock import BaseFileLock

STATUS, TAGS, MODELS = "status.json", "tags.json", "models.json"
LOCK, HOLDER = "run.lock", "run.lock.json"
RUNNING = "RUNNING"
DIED = "process died"
STALE_SECONDS = 15 * 60
"""How long nothing is heard of a run of another host until it is shown as stale."""
_TIME = "%Y-%m-%dT%H:%M:%S%z"
_HALF_WRITTEN = (".unfinished-*", ".new-*", ".writing-*", "*.new-*", "*.tmp")


@attrs.frozen(kw_only=True)
class RunStatus:
    """How far a run is, or how it ended."""

    status: str = RUNNING
    step: int = 0
    stop_reason: str = ""
    started: str = ""
    ended: str = ""
    attempt: int = 1
    """How often the run was started: 1, and one more for every resume."""
    pending: bool = False
    """Of a run that has ended: whether something of it is not in MLflow."""

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The status of the run in a folder; None if there is no valid one."""
        facts, known = read_object(folder / STATUS), attrs.asdict(cls())
        values: dict[str, Any] = {name: facts.get(name) for name in known}
        valid = all(type(values[name]) is type(default) for name, default in known.items())
        return cls(**values) if valid else None

    def write(self, folder: Path) -> None:
        """Replace `status.json`."""
        content = (json.dumps(attrs.asdict(self), indent=2) + "\n").encode()
        try:
            write_durably(folder / STATUS, content)
        except OSError:
            # A full disk has no room for a second file, but the first one keeps its block.
            with (folder / STATUS).open("r+b") as file:
                file.write(content)
                file.truncate()


def add_tags(folder: Path, tags: Mapping[str, str], *, without: Collection[str] = ()) -> None:
    """Keep tags for MLflow with the run, and forget others."""
    before = kept_tags(folder)
    kept = {name: value for name, value in before.items() if name not in without} | dict(tags)
    if kept != before:
        write_durably(folder / TAGS, (json.dumps(kept, indent=2) + "\n").encode())


def kept_tags(folder: Path) -> dict[str, str]:
    """The tags that `add_tags` kept."""
    return {name: str(value) for name, value in read_object(folder / TAGS).items()}


def known_models(folder: Path) -> dict[str, str]:
    """Checkpoint → id of its model in MLflow, as the folder of a run has them."""
    return {name: str(model_id) for name, model_id in read_object(folder / MODELS).items()}


def now(seconds: float | None = None) -> str:
    """The time, or that of these seconds since the epoch, as `started` and `ended` are written."""
    return time.strftime(_TIME, time.localtime(seconds))


def milliseconds(moment: str) -> int | None:
    """The milliseconds since the epoch of a time as `status.json` has it."""
    try:
        return int(datetime.strptime(moment, _TIME).timestamp() * 1000)
    except ValueError:
        return None


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
        # Who looks whether the run is dead holds it for a moment.
        taken = cls.try_take(folder, seconds=1.0)
        if taken is None:
            facts = read_object(folder / HOLDER)
            raise RequestError(
                f"run {folder.name} is in progress (pid {facts.get('pid')} on "
                f"{facts.get('host')}).",
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


def beat(folder: Path) -> None:
    """Show other hosts that the run is still in progress."""
    with contextlib.suppress(OSError):
        os.utime(folder / HOLDER)


def is_elsewhere(folder: Path) -> bool:
    """Whether the lock of a run was last taken on another host."""
    host = read_object(folder / HOLDER).get("host")
    return bool(host) and host != socket.gethostname()


def is_stale(folder: Path) -> bool:
    """Whether a run of another host has not been heard of for a quarter of an hour."""
    return is_elsewhere(folder) and time.time() - _heard_of(folder) > STALE_SECONDS


def status_now(folder: Path) -> RunStatus | None:
    """The status of a run; of one that says RUNNING and whose lock is free, that it has died."""
    status = RunStatus.read(folder)
    if status is None or status.status != RUNNING or is_elsewhere(folder):
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
    return status, died


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
    for leftover in [path for pattern in _HALF_WRITTEN for path in folder.rglob(pattern)]:
        with contextlib.suppress(OSError):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def _died(status: RunStatus, folder: Path) -> RunStatus:
    ended = now(_heard_of(folder))
    return attrs.evolve(status, status="FAILED", stop_reason=DIED, ended=ended, pending=True)


def _heard_of(folder: Path) -> float:
    """When a process last renewed the holder's file or the journal."""
    signs = [file for file in (folder / HOLDER, folder / JOURNAL) if file.exists()]
    return max((file.stat().st_mtime for file in signs), default=time.time())


def _acquired(file: Path, seconds: float) -> BaseFileLock | None:
    # 0.1 s to import, and often nothing is to be locked.
    from filelock import FileLock, Timeout

    lock = FileLock(file, timeout=seconds, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        return None
    return lock
