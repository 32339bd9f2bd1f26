"""Runs whose process died: read from their lock, which is free then, and not from what they wrote.

A lock of another host may not be seen here: of its runs, the heartbeat is looked at.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from rlplug.tracking.journal import JOURNAL, read_journal
from rlplug.tracking.lock import RunLock, holder, is_alive
from rlplug.tracking.status import HEARTBEAT, RUNNING, RunStatus, end_heartbeat, now

if TYPE_CHECKING:
    from rlplug.tracking.store import Store

__all__ = [
    "DIED",
    "STALE_SECONDS",
    "end_dead",
    "is_in_progress",
    "is_stale",
    "remove_half_written",
    "status_now",
]

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
            reports = read_journal(folder / JOURNAL)
            status = attrs.evolve(status, step=max((one.step for one in reports), default=0))
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
