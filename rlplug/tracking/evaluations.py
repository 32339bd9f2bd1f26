"""Evaluations of a run's checkpoints made after training, kept with the run."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from rlplug.durable import write_durably
from rlplug.errors import RequestError
from rlplug.tracking.failures import StoreRefusedError, StoreUnreachableError
from rlplug.tracking.journal import Report, Row
from rlplug.tracking.known_models import known_models
from rlplug.tracking.location import RunFolder, runs_folder, tracking_uri
from rlplug.tracking.lock import RunLock
from rlplug.tracking.status import RUNNING, RunStatus
from rlplug.tracking.store import Store

__all__ = [
    "EVALUATIONS",
    "LaterEvaluation",
    "is_fetched",
    "keep_evaluation",
    "log_evaluation",
    "mark_pending",
    "where_tracked",
]

EVALUATIONS = "evaluations"
"""The folder of a run, and of its artifacts, with a file per evaluation."""

PREFIX = "later_eval/"
"""Of the metrics: those of evaluations during training are `eval/…`, and keep their curves."""
AGAINST = f"{PREFIX}opponents/"
"""Of those where others acted for some agents."""


@attrs.frozen(kw_only=True)
class LaterEvaluation:
    """An evaluation of one checkpoint."""

    run_id: str
    checkpoint: str
    """The name of its folder."""
    step: int
    """Environment steps the checkpoint was trained for."""
    environment: str
    seed: int
    episodes: int
    metrics: Mapping[str, float]
    """`eval/return_mean` and the others."""
    returns: Sequence[float]
    lengths: Sequence[int]
    opponents: Mapping[str, str] = attrs.field(factory=dict)
    """Of several agents, those that others acted for, and who."""
    time: float = attrs.field(factory=time.time)
    """Seconds since the epoch."""

    def rows(self) -> list[Row]:
        """The metrics as MLflow gets them, at the step of the checkpoint."""
        prefix = AGAINST if self.opponents else PREFIX
        named = {
            prefix + name.removeprefix("eval/"): value
            for name, value in self.metrics.items()
            if name.startswith("eval/")
        }
        # The same time whenever they are sent: sending them again has no effect.
        return Report.of(self.step, self.time, named).rows()


def keep_evaluation(evaluation: LaterEvaluation, folder: Path) -> tuple[Path | None, str]:
    """Write it into the folder of its run, and log it in MLflow if the run is there.

    Returns the file, and what kept it from being in MLflow, or nothing. The status of the run
    stays as it is. Nothing is written into a folder that is not a run's.
    """
    model = _fetched_model(folder)
    if not (folder / "run.json").is_file() and not is_fetched(folder) and not model:
        return None, f"{folder} is not the folder of a run"
    file = _new_file(folder / EVALUATIONS, evaluation)
    content = json.dumps(attrs.asdict(evaluation), indent=1) + "\n"
    try:
        file.parent.mkdir(exist_ok=True)
        write_durably(file, content.encode())
    except OSError as error:
        raise RequestError(
            f"the evaluation cannot be written to {file}: {error.strerror or error}.",
            "try: --no-record",
        ) from error
    try:
        # A model of the registry comes from a run that need not be here.
        server = tracking_uri("", runs_folder())
        where = (server, evaluation.run_id) if model else where_tracked(folder)
        if where is not None:
            log_evaluation(Store.open_run(*where), file)
    except (RequestError, StoreRefusedError, StoreUnreachableError) as error:
        mark_pending(folder)
        reason = (error.message if isinstance(error, RequestError) else str(error)).rstrip(".")
        return file, reason if model else f"{reason}; to upload it: rlplug runs sync {folder.name}"
    return file, ""


def log_evaluation(store: Store, file: Path) -> None:
    """Log the metrics of an evaluation, then its file: what has the file has the metrics."""
    checkpoint, rows = _rows(file)
    if rows:
        store.log_rows(rows, _model_of(file.absolute().parent.parent, checkpoint))
    store.log_file(file, EVALUATIONS)


def _rows(file: Path) -> tuple[str, list[Row]]:
    """Checkpoint and rows of a file; none if it was edited by hand and is not valid any more."""
    try:
        facts: dict[str, Any] = json.loads(file.read_text())
        evaluation = LaterEvaluation(**facts)
        return evaluation.checkpoint, evaluation.rows()
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return "", []


def _model_of(folder: Path, checkpoint: str) -> str:
    """The id of the checkpoint's model, which has the scores, too; empty if it has none."""
    return _fetched_model(folder) or known_models(folder).get(checkpoint, "")


def _new_file(folder: Path, evaluation: LaterEvaluation) -> Path:
    name = f"{evaluation.checkpoint}-seed{evaluation.seed}"
    names = (f"{name}{f'-{n}' if n > 1 else ''}.json" for n in itertools.count(1))
    return next(folder / one for one in names if not (folder / one).exists())


def where_tracked(folder: Path) -> tuple[str, str] | None:
    """Tracking URI and id of the run in MLflow; None if it is not there."""
    run = RunFolder.read(folder)
    if run is not None:
        return (run.tracking_uri(""), run.id_in_mlflow) if run.experiment_id else None
    return (tracking_uri("", runs_folder()), folder.name) if is_fetched(folder) else None


def is_fetched(folder: Path) -> bool:
    """Whether it was downloaded from MLflow."""
    fetched = runs_folder() / "fetched"
    return folder.parent == fetched and re.fullmatch(r"[0-9a-f]{32}", folder.name) is not None


def _fetched_model(folder: Path) -> str:
    """The id of the model that was downloaded into the folder; empty if it is no such folder."""
    fetched = runs_folder() / "fetched" / "models"
    return folder.name if folder.parent == fetched and folder.name.startswith("m-") else ""


def mark_pending(folder: Path) -> None:
    """Have `rlplug runs sync` find the run, unless it is in progress."""
    lock = RunLock.try_take(folder) if (folder / "run.json").is_file() else None
    if lock is None:
        return
    with lock:
        status = RunStatus.read(folder)
        if status is not None and status.status != RUNNING:
            with contextlib.suppress(OSError):
                attrs.evolve(status, pending=True).write(folder)
