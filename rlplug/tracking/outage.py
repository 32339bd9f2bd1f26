"""Runs that start or go on while MLflow does not answer, and are created there later."""

from __future__ import annotations

import json
from pathlib import Path

import attrs

from rlplug.config.sections import RunConfig
from rlplug.durable import write_durably
from rlplug.errors import RequestError
from rlplug.tracking.location import RunFolder, UnreachableError, check_reachable, sqlite_file
from rlplug.tracking.record import LOCAL_ID, Record
from rlplug.tracking.status import milliseconds
from rlplug.tracking.store import Store

__all__ = ["keep_record", "open_or_create", "outage_of"]

RECORD = "record.json"
RUN = "run.json"


def outage_of(config: RunConfig, uri: str) -> str:
    """Why the server does not answer, if the run may do without it; empty if it answers."""
    if not config.tracking.offline_ok or sqlite_file(uri) is not None:
        return ""
    try:
        check_reachable(uri)
    except UnreachableError as error:
        return error.message
    return ""


def keep_record(folder: Path, record: Record, started: str) -> None:
    """Keep what MLflow is to record of the run in this folder.

    MLflow chooses the id of a run itself: a tag has the one that it was started under.
    """
    tags = {**record.tags, LOCAL_ID: folder.name}
    late = attrs.evolve(record, tags=tags, started=milliseconds(started))
    write_durably(folder / RECORD, late.content())


def open_or_create(run: RunFolder, uri: str) -> tuple[RunFolder, Store]:
    """Open a run in MLflow, after creating it if it was started during an outage.

    The caller holds the lock of its folder.
    """
    if run.experiment_id:
        return run, Store.open_run(uri, run.id_in_mlflow)
    file = run.path / RECORD
    try:
        record = Record.read(file.read_bytes())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(
            f"run {run.run_id} ({run.run_name}) is not in MLflow, and cannot be created there: "
            f"{file} is missing or damaged.",
            "try: a copy of the file, or tracking.enabled=false",
        ) from error
    check_reachable(uri)
    store = Store.create_run(uri, record, run.path.parent.parent)
    facts = json.loads((run.path / RUN).read_text())
    facts |= {
        "run_name": store.run_name,
        "experiment": store.experiment,
        "experiment_id": store.experiment_id,
        "tracked_id": store.run_id,
    }
    write_durably(run.path / RUN, (json.dumps(facts, indent=2) + "\n").encode())
    file.unlink()
    created = RunFolder.read(run.path)
    assert created is not None
    return created, store
