"""What `rlplug runs sync` does: end runs that died, and bring what they lack to MLflow."""

from __future__ import annotations

import contextlib
import shutil
import socket
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs

from rlplug.errors import RequestError, RlplugError, RunFailedError
from rlplug.tracking.client import StoreRefusedError, StoreUnreachableError
from rlplug.tracking.location import RunFolder, runs_in, tracking_uri
from rlplug.tracking.lock import DIED, RunLock, end_dead, holder, is_alive, is_stale, status_now
from rlplug.tracking.opening import open_or_create
from rlplug.tracking.status import RUNNING, RunStatus, add_tags
from rlplug.tracking.store import Store, running_runs
from rlplug.tracking.sync import Sync

PATIENCE = 30.0
"""How many seconds nothing may come to MLflow until a run is given up."""
LEFTOVER_SECONDS = 3600
"""Age at which a temporary file belongs to nobody who is still at work."""


@attrs.frozen(kw_only=True)
class Synced:
    """What was done for one run."""

    run_id: str
    run_name: str
    status: str = "FAILED"
    step: int = 0
    died: bool = False
    """Whether its process had died, which nothing said yet."""
    points: int = 0
    files: int = 0
    created: str = ""
    """Its id in MLflow, if it was created there now."""
    missing: str = ""
    """What is not in MLflow, in words."""
    problem: RlplugError | None = None
    """Why."""


def sync_all(root: Path, warn: Callable[[str], None], *, force: bool = False) -> Iterator[Synced]:
    """Sync the runs of a runs folder that have died or lack something in MLflow.

    Then those of this host that only MLflow calls in progress. With `force`, also stale ones of
    other hosts, whose locks may not be seen here.
    """
    for run in runs_in(root):
        status = status_now(run.path)
        dead = force and is_stale(run.path)
        if dead or (status is not None and status.status != RUNNING and status.pending):
            yield sync_run(run, warn)
    yield from end_recorded(root, warn)


def sync_run(run: RunFolder, warn: Callable[[str], None]) -> Synced:
    """End a run if it has died, and bring what is missing to MLflow."""
    with RunLock.take(run.path):
        status, died = end_dead(run.path)
        done = Synced(
            run_id=run.run_id,
            run_name=run.run_name,
            status=status.status,
            step=status.step,
            died=died,
        )
        if not run.is_tracked:
            attrs.evolve(status, pending=False).write(run.path)
            return done
        tags = {
            "rlplug.stop_reason": status.stop_reason,
            "rlplug.stopped_at_step": str(status.step),
        }
        add_tags(run.path, tags)
        try:
            return _bring(run, status, done, warn)
        except RequestError as error:
            attrs.evolve(status, pending=True).write(run.path)
            return attrs.evolve(done, problem=RunFailedError(error.message, *error.hints))


def end_recorded(root: Path, warn: Callable[[str], None]) -> Iterator[Synced]:
    """End the runs of this host that MLflow calls in progress, and whose process is gone.

    Those whose folder is in another runs folder are left to a sync there.
    """
    uri = tracking_uri("", root)
    for found in running_runs(uri, socket.gethostname()):
        folder = Path(found.root or root) / "work" / found.folder
        run = RunFolder.read(folder)
        if run is not None:
            status = RunStatus.read(folder)
            ended = status != status_now(folder) or (status and status.status != RUNNING)
            if ended and folder.is_relative_to(root):
                yield sync_run(run, warn)
        elif not (holder(folder).is_elsewhere or is_alive(found.pid)):
            store = Store.open_run(uri, found.run_id)
            store.set_tags({"rlplug.stop_reason": DIED})
            store.terminate("FAILED")
            yield Synced(run_id=found.run_id, run_name=store.run_name, died=True)


def remove_leftovers(root: Path) -> None:
    """Remove what processes that were killed left half-made in a runs folder."""
    for pattern in ("work/.probe-*", "work/.coming-*", "fetched/*/.coming"):
        for path in root.glob(pattern):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > LEFTOVER_SECONDS:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
    for folder in (root / "work").glob("*/"):
        if (folder / "run.json").exists():
            continue
        with contextlib.suppress(OSError):
            lock = RunLock.try_take(folder)
            if lock is not None:
                with lock:
                    if time.time() - folder.stat().st_ctime > LEFTOVER_SECONDS:
                        shutil.rmtree(folder)


def _bring(run: RunFolder, status: RunStatus, done: Synced, warn: Callable[[str], None]) -> Synced:
    options, is_new = _options(run.path), not run.experiment_id
    run, store = open_or_create(run, run.tracking_uri(str(options.get("uri", ""))))
    sync = Sync(run.path, store, warn, with_replay=options.get("upload_replay") is True)
    problem = None
    try:
        store.remove_leftovers()
        _patiently(sync)
    except (StoreRefusedError, StoreUnreachableError) as error:
        problem = RunFailedError(f"MLflow did not take all of run {run.run_id}: {error}.")
    missing = sync.missing()
    attrs.evolve(status, pending=bool(missing)).write(run.path)
    return attrs.evolve(
        done,
        points=sync.points,
        files=sync.files,
        created=store.run_id if is_new else "",
        missing=missing,
        problem=problem if missing else None,
    )


def _patiently(sync: Sync) -> None:
    """Bring everything, again and again until nothing more has come for long."""
    before, wait, until = -1, 1.0, 0.0
    while True:
        try:
            return sync.bring()
        except StoreUnreachableError:
            if sync.progress > before:
                before, wait, until = sync.progress, 1.0, time.monotonic() + PATIENCE
            if time.monotonic() + wait > until:
                raise
            time.sleep(wait)
            wait *= 2


def _options(folder: Path) -> dict[str, Any]:
    """`uri`, unless its password was left out, and `upload_replay` among the options of a run."""
    try:
        config = tomllib.loads((folder / "config.toml").read_text())
        options = {**config.get("checkpoint", {}), **config.get("tracking", {})}
    except (OSError, ValueError, TypeError):
        return {}
    return {name: value for name, value in options.items() if "***" not in str(value)}
