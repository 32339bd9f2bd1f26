"""Evaluations and off-policy estimates made after training, kept with the run of a checkpoint."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs

from rlplug.durable import write_durably
from rlplug.errors import RequestError
from rlplug.tracking.journal import Report, Row
from rlplug.tracking.location import RUN, RunFolder, read_object, runs_folder, tracking_uri
from rlplug.tracking.status import RUNNING, RunLock, RunStatus, known_models
from rlplug.tracking.store import Store, StoreError

EVALUATIONS, ESTIMATES = "evaluations", "ope"
"""The folders of a run, and of its artifacts, with a file per evaluation, or several."""

_NO_FILES: Mapping[str, Callable[[Path], object]] = MappingProxyType({})


def keep_result(
    folder: Path,
    kind: str,
    name: str,
    facts: Mapping[str, Any],
    files: Mapping[str, Callable[[Path], object]] = _NO_FILES,
) -> tuple[Path | None, str]:
    """Write a result into the folder of its run, and log it in MLflow if the run is there.

    `facts` have `run_id`, `checkpoint`, `step` and `metrics`; `files` are suffixes with what writes
    such a file. Returns the file of the facts, and what kept it from being in MLflow, or nothing.
    The status of the run stays as it is. Nothing is written into a folder that is not a run's.
    """
    if not ((folder / RUN).is_file() or is_fetched(folder)):
        return None, f"{folder} is not the folder of a run"
    names = (folder / kind / f"{name}{f'-{n}' if n > 1 else ''}.json" for n in itertools.count(1))
    file = next(free for free in names if not free.exists())
    content = json.dumps({**facts, "time": time.time()}, indent=1) + "\n"
    try:
        file.parent.mkdir(exist_ok=True)
        for suffix, write in files.items():
            write(file.with_suffix(suffix))
        write_durably(file, content.encode())
    except OSError as error:
        raise RequestError(
            f"{file} cannot be written: {error.strerror or error}.", "try: --no-record"
        ) from error
    try:
        where = where_tracked(folder, str(facts["run_id"]))
        if where is None:
            return file, "its run is not in MLflow" if kind == ESTIMATES else ""
        store = Store.open_run(*where)
        for suffix in (".json", *files):
            log_evaluation(store, file.with_suffix(suffix), kind)
    except (RequestError, StoreError) as error:
        _mark_pending(folder)
        reason = getattr(error, "message", str(error)).rstrip(".")
        later = f"; to upload it: rlplug runs sync {folder.name}"
        return file, reason if is_fetched(folder) else f"{reason}{later}"
    return file, ""


def log_evaluation(store: Store, file: Path, kind: str) -> None:
    """Log a file of a result, before it the metrics that it has: what has the file has these."""
    checkpoint, rows = rows_of(file)
    if rows:
        folder = file.absolute().parent.parent
        model = known_models(folder).get(checkpoint, "")
        if folder.parent.name == "models":
            model = folder.name
        store.log_rows(rows, model if kind == EVALUATIONS else "")
    store.log_file(file, kind)


def rows_of(file: Path) -> tuple[str, list[Row]]:
    """Checkpoint and metrics of a file; none if it was edited by hand and is not valid any more.

    Evaluations during training are `eval/…`, and keep their curves.
    """
    facts = read_object(file)
    prefix = "later_eval/opponents/" if facts.get("opponents") else "later_eval/"
    try:
        metrics = {re.sub("^eval/", prefix, name): one for name, one in facts["metrics"].items()}
        # The same time whenever they are sent: sending them again has no effect.
        report = Report.of(facts["step"], facts["time"], metrics)
    except (ValueError, TypeError, KeyError, AttributeError):
        return "", []
    return str(facts.get("checkpoint", "")), report.rows()


def where_tracked(folder: Path, run_id: str = "") -> tuple[str, str] | None:
    """Tracking URI and id of the run in MLflow; None if it is not there."""
    run = RunFolder.read(folder)
    if run is not None:
        return (run.tracking_uri(""), run.id_in_mlflow) if run.experiment_id else None
    server = tracking_uri("", runs_folder())
    return (server, run_id or folder.name) if is_fetched(folder) else None


def is_fetched(folder: Path) -> bool:
    """Whether it is a run, or the model of a checkpoint, that was downloaded from MLflow."""
    fetched = runs_folder() / "fetched"
    kinds = {fetched: "[0-9a-f]{32}", fetched / "models": "m-[0-9a-f]{32}"}
    return re.fullmatch(kinds.get(folder.parent, ""), folder.name) is not None


def _mark_pending(folder: Path) -> None:
    """Have `rlplug runs sync` find the run, unless it is in progress."""
    lock = RunLock.try_take(folder) if (folder / RUN).is_file() else None
    if lock is None:
        return
    with lock:
        status = RunStatus.read(folder)
        if status is not None and status.status != RUNNING:
            with contextlib.suppress(OSError):
                attrs.evolve(status, pending=True).write(folder)
