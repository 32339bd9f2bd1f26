"""Runs whose process died: found by their free lock, marked, and uploaded."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from rlplug.errors import RequestError, RlplugError
from rlplug.tracking.journal import Report, read_journal
from rlplug.tracking.location import RunFolder, tracking_uri
from rlplug.tracking.lock import RunLock, holder, is_alive
from rlplug.tracking.status import HEARTBEAT, RUNNING, Pending, RunStatus, end_heartbeat, now
from rlplug.tracking.upload import Uploaded, upload_run

if TYPE_CHECKING:
    from rlplug.tracking.store import Store

__all__ = [
    "DIED",
    "Reaped",
    "is_in_progress",
    "is_stale",
    "mark_dead",
    "reap",
    "reap_quietly",
    "reap_recorded",
    "remove_half_written",
    "remove_leftovers",
]

DIED = "process died"
STALE_SECONDS = 15 * 60
"""Age of a heartbeat at which a run of another host is shown as stale."""
LEFTOVER_SECONDS = 3600
"""Age at which a temporary file belongs to nobody who is still at work."""
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
QUIET_BYTES = 20_000_000
"""How much is uploaded without being asked for."""


@attrs.frozen(kw_only=True)
class Reaped:
    """A run whose process had died."""

    run_id: str
    run_name: str
    status: str
    step: int
    uploaded: Uploaded | None
    """None: it is not in MLflow, or that could not be asked."""
    problem: str = ""
    """Why nothing was uploaded."""


def reap_quietly(root: Path) -> None:
    """Mark dead runs and upload what is small; says nothing and never fails.

    Costs as good as nothing where no run is in progress.
    """
    with contextlib.suppress(RlplugError, OSError):
        list(reap(root, most=QUIET_BYTES))


def reap(root: Path, *, most: float = float("inf"), force: bool = False) -> Iterator[Reaped]:
    """Mark the dead runs of a runs folder as FAILED, and upload what they have.

    With `force`, also stale ones of other hosts, whose locks may not be seen here.
    """
    for folder in _in_progress(root):
        reaped = _reap(folder, most=most, force=force)
        if reaped is not None:
            yield reaped


def reap_recorded(root: Path) -> Iterator[Reaped]:
    """The same for runs of this host that are in progress according to MLflow alone."""
    from rlplug.tracking.store import Store, running_runs

    for found in running_runs(tracking_uri("", root), socket.gethostname()):
        folder = Path(found.root or root) / "work" / found.folder
        if folder.is_dir():
            if holder(folder).is_elsewhere:
                continue
            lock = RunLock.try_take(folder)
            if lock is None:
                continue
            with lock:
                status = RunStatus.read(folder)
                if status is not None and RunFolder.read(folder) is not None:
                    yield _upload(folder, status, most=float("inf"))
                    continue
        elif is_alive(found.pid):
            continue
        store = Store.open_run(tracking_uri("", root), found.run_id)
        store.set_tags({"rlplug.stop_reason": DIED})
        store.terminate("FAILED")
        yield Reaped(
            run_id=found.run_id,
            run_name=store.run_name,
            status="FAILED",
            step=0,
            uploaded=Uploaded(points=0, files=0, left=Pending()),
        )


def remove_leftovers(root: Path) -> None:
    """Remove what processes that were killed left half-made in a runs folder."""
    for pattern in ("work/.probe-*", "work/.coming-*", "fetched/*/.coming"):
        for path in root.glob(pattern):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > LEFTOVER_SECONDS:
                    _remove(path)
    for folder in (root / "work").glob("*/"):
        if (folder / "run.json").exists() or not folder.is_dir():
            continue
        with contextlib.suppress(OSError):
            lock = RunLock.try_take(folder)
            if lock is not None:
                with lock:
                    if time.time() - folder.stat().st_ctime > LEFTOVER_SECONDS:
                        _remove(folder)


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


def _in_progress(root: Path) -> list[Path]:
    """The folders of runs that have not ended; most often none."""
    work = root / "work"
    try:
        names = os.listdir(work)
    except OSError:
        return []
    return [work / name for name in names if os.path.exists(work / name / HEARTBEAT)]


def _reap(folder: Path, *, most: float, force: bool) -> Reaped | None:
    elsewhere = holder(folder).is_elsewhere
    if elsewhere and not (force and is_stale(folder)):
        return None
    lock = RunLock.try_take(folder)
    if lock is None:
        return None
    with lock:
        status = mark_dead(folder)
        return None if status is None else _upload(folder, status, most=most)


def mark_dead(folder: Path) -> RunStatus | None:
    """Mark a run that is in progress as FAILED; None if nothing was left to be done for it.

    The caller holds its lock: so its process is dead. One that died while the run was closing had
    set the status.
    """
    status = RunStatus.read(folder) or RunStatus()
    if not (folder / HEARTBEAT).exists() or RunFolder.read(folder) is None:
        return None
    remove_half_written(folder)
    if status.status != RUNNING:
        end_heartbeat(folder)
        return status if status.pending else None
    status = attrs.evolve(
        status,
        status="FAILED",
        step=max((one.step for one in _reports(folder)), default=status.step),
        stop_reason=DIED,
        ended=now(_last_sign_of_life(folder)),
        pending=Pending(tags=1),
    )
    status.write(folder)
    end_heartbeat(folder)
    return status


def remove_half_written(folder: Path) -> None:
    """Remove what a killed process left half-written in the folder of a run; it is locked."""
    for pattern in _HALF_WRITTEN:
        for leftover in folder.glob(pattern):
            _remove(leftover)


def _upload(folder: Path, status: RunStatus, *, most: float) -> Reaped:
    run = RunFolder.read(folder)
    assert run is not None
    uploaded, problem = None, ""
    if run.is_tracked:
        try:
            uploaded = upload_run(folder, lambda warning: None, most=most)
        except RequestError as error:
            problem = error.message
    else:
        attrs.evolve(status, pending=Pending()).write(folder)
    return Reaped(
        run_id=run.run_id,
        run_name=run.run_name,
        status=status.status,
        step=status.step,
        uploaded=uploaded,
        problem=problem,
    )


def _last_sign_of_life(folder: Path) -> float:
    files = [one for one in (folder / HEARTBEAT, folder / "metrics.jsonl") if one.exists()]
    return max((one.stat().st_mtime for one in files), default=time.time())


def _reports(folder: Path) -> Iterator[Report]:
    with contextlib.suppress(OSError):
        yield from read_journal(folder / "metrics.jsonl")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
