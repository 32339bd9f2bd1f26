"""Off-policy estimates of a run's checkpoint, kept with the run as files and in MLflow."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlplug.durable import write_durably
from rlplug.errors import RequestError
from rlplug.tracking.evaluations import is_fetched, mark_pending, where_tracked
from rlplug.tracking.failures import StoreRefusedError, StoreUnreachableError
from rlplug.tracking.journal import Report, Row
from rlplug.tracking.store import Store

__all__ = ["ESTIMATES", "keep_estimates", "log_estimates"]

ESTIMATES = "ope"
"""The folder of a run, and of its artifacts, with metrics, a table and a plot per log."""


def keep_estimates(
    folder: Path,
    name: str,
    step: int,
    metrics: Mapping[str, float],
    table: str,
    draw: Callable[[Path], None],
) -> tuple[Path | None, str]:
    """Write metrics (JSON), a table (CSV) and a plot into the folder of a run, and log them.

    Returns the table's file, and what kept it from being in MLflow, or nothing.
    """
    if not (folder / "run.json").is_file() and not is_fetched(folder):
        return None, f"{folder} is not the folder of a run"
    names = (f"{name}{f'-{n}' if n > 1 else ''}" for n in itertools.count(1))
    place = folder / ESTIMATES
    free = next(one for one in names if not (place / f"{one}.csv").exists())
    file, plot, numbers = (place / f"{free}{suffix}" for suffix in (".csv", ".png", ".json"))
    facts = {"step": step, "time": time.time(), "metrics": dict(metrics)}
    try:
        place.mkdir(exist_ok=True)
        write_durably(file, table.encode())
        draw(plot)
        write_durably(numbers, (json.dumps(facts, indent=1) + "\n").encode())
    except OSError as error:
        raise RequestError(
            f"the estimates cannot be written to {file}: {error.strerror or error}.",
            "try: --no-record",
        ) from error
    try:
        where = where_tracked(folder)
        if where is None:
            return file, "its run is not in MLflow"
        store = Store.open_run(*where)
        for one in (file, plot, numbers):
            log_estimates(store, one)
    except (RequestError, StoreRefusedError, StoreUnreachableError) as error:
        mark_pending(folder)
        reason = error.message if isinstance(error, RequestError) else str(error)
        return file, f"{reason.rstrip('.')}; to upload it: rlplug runs sync {folder.name}"
    return file, ""


def log_estimates(store: Store, file: Path) -> None:
    """Log a file of estimates, before it the metrics that it has."""
    if file.suffix == ".json":
        rows = _rows(file)
        if rows:
            store.log_rows(rows)
    store.log_file(file, ESTIMATES)


def _rows(file: Path) -> list[Row]:
    """The metrics as MLflow gets them; none if the file was edited by hand and is not valid."""
    try:
        facts: dict[str, Any] = json.loads(file.read_text())
        # The same time whenever they are sent: sending them again has no effect.
        return Report.of(facts["step"], facts["time"], facts["metrics"]).rows()
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []
