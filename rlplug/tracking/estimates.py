"""Off-policy estimates of a run's checkpoint, kept with the run as files and in MLflow."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from rlplug.durable import write_durably
from rlplug.errors import RequestError
from rlplug.tracking.evaluations import where_tracked
from rlplug.tracking.failures import StoreRefusedError, StoreUnreachableError
from rlplug.tracking.journal import Report
from rlplug.tracking.store import Store

__all__ = ["ESTIMATES", "keep_estimates"]

ESTIMATES = "ope"
"""The folder of a run, and of its artifacts, with a table and a plot per log."""


def keep_estimates(
    folder: Path,
    name: str,
    step: int,
    metrics: Mapping[str, float],
    table: str,
    draw: Callable[[Path], None],
) -> tuple[Path | None, str]:
    """Write a table (CSV) and a plot into the folder of a run, and log them with the metrics.

    Returns the table's file, and what kept it from being in MLflow, or nothing.
    """
    if not (folder / "run.json").is_file():
        return None, f"{folder} is not the folder of a run"
    names = (f"{name}{f'-{n}' if n > 1 else ''}" for n in itertools.count(1))
    place = folder / ESTIMATES
    free = next(one for one in names if not (place / f"{one}.csv").exists())
    file, plot = place / f"{free}.csv", place / f"{free}.png"
    try:
        place.mkdir(exist_ok=True)
        write_durably(file, table.encode())
        draw(plot)
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
        store.log_rows(Report.of(step, time.time(), dict(metrics)).rows())
        for one in (file, plot):
            store.log_file(one, ESTIMATES)
    except (RequestError, StoreRefusedError, StoreUnreachableError) as error:
        reason = error.message if isinstance(error, RequestError) else str(error)
        return file, reason.rstrip(".")
    return file, ""
