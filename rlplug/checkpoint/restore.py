"""Make the folder of a run again that only MLflow has: it is gone, or on another machine."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import attrs

from rlplug.checkpoint.manifest import CONFIG
from rlplug.errors import RequestError
from rlplug.review.record import ABOUT, RunRecord
from rlplug.tracking.journal import Report, Row
from rlplug.tracking.location import check_writable, tracking_uri, without_secrets
from rlplug.tracking.record import LOCAL_ID
from rlplug.tracking.status import DIED, RUNNING, RunStatus
from rlplug.tracking.store import Store, StoreError, fetch_run


def restore_run(record: RunRecord, root: Path) -> Path:
    """Download a run into a folder of the runs folder, where it goes on.

    It appears there whole or not at all.
    """
    uri = tracking_uri("", root)
    store = Store.open_run(uri, record.run_id)
    if store.status == RUNNING and store.is_in_progress:
        tags = store.tags
        raise RequestError(
            f"run {record.run_id} ({record.name}) is in progress according to MLflow (pid "
            f"{tags.get('rlplug.pid')} on {tags.get('rlplug.host')}).",
            "try: on that machine, or 15 minutes after its last metric",
        )
    check_writable(root)
    folder = root / "work" / store.tags.get(LOCAL_ID, record.run_id)
    partial = root / "work" / f".coming-{folder.name}-{os.getpid()}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        fetched = fetch_run(record.run_id, uri, root)
        if fetched is not None:
            (fetched / "checkpoints").rename(partial / "checkpoints")
            shutil.rmtree(fetched)
        _download(store, partial)
        _write_journal(partial, list(store.history()))
        _status(record, store).write(partial)
        facts = _facts(record, store, folder.name)
        (partial / "run.json").write_text(json.dumps(facts, indent=2) + "\n")
        partial.rename(folder)
    except (StoreError, OSError) as error:
        raise RequestError(
            f"run {record.run_id} cannot be downloaded from {without_secrets(uri)} into {root}: "
            f"{getattr(error, 'strerror', None) or error}.",
            "try: again later, or with more free disk space",
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _download(store: Store, partial: Path) -> None:
    """The options that held last, and the folders besides checkpoints."""
    config = store.download("config/config.toml", partial)
    if config is None:
        raise RequestError(
            f"run {store.run_id} has no config/config.toml in MLflow: it ended too early.",
            "try: a new run",
        )
    config.rename(partial / CONFIG)
    for name in ("logs", "replay"):
        store.download(name, partial)


def _write_journal(folder: Path, rows: list[Row]) -> None:
    """All that MLflow has, as uploaded."""
    reports: dict[tuple[int, int], dict[str, float]] = {}
    for name, value, milliseconds, step in rows:
        reports.setdefault((step, milliseconds), {})[name] = value
    lines = b"".join(Report(*moment, reports[moment]).line() for moment in sorted(reports))
    (folder / "metrics.jsonl").write_bytes(lines)
    (folder / "metrics.acked").write_text(str(len(lines)))


def _status(record: RunRecord, store: Store) -> RunStatus:
    died = store.status == RUNNING
    return RunStatus(
        status="FAILED" if died else store.status,
        step=record.step,
        stop_reason=DIED if died else record.reason,
        started=record.started,
        ended=record.ended or time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        attempt=store.attempt,
    )


def _facts(record: RunRecord, store: Store, run_id: str) -> dict[str, Any]:
    """What `run.json` says."""
    return {
        "run_id": run_id,
        "run_name": store.run_name,
        "experiment": store.experiment,
        "experiment_id": store.experiment_id,
        "tracked_id": "" if run_id == store.run_id else store.run_id,
        "uri": record.uri,
        "command": store.tags.get("mlflow.source.name", ""),
        "started": record.started,
        ABOUT: attrs.asdict(record.about),
    }
