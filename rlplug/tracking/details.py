"""All that is recorded of one run: its metrics over time, its plugins, its checkpoints."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from rlplug.review.history import NO_VALUES, History, RunDetails, history_of
from rlplug.review.provenance import PROVENANCE, Provenance, read_provenance
from rlplug.review.record import CheckpointRecord, RunRecord
from rlplug.tracking.journal import JOURNAL, read_journal
from rlplug.tracking.location import RUN, read_object, runs_folder, tracking_uri
from rlplug.tracking.status import kept_tags
from rlplug.tracking.store import CHECKPOINTS, asking, fetch_file

Manifest: TypeAlias = "dict[str, Any]"


def read_history(run: RunRecord, names: Sequence[str] = ()) -> History:
    """All values of the metrics of a run, or of those named: from its folder, else from MLflow."""
    if run.folder is None:
        uri, failed = tracking_uri("", runs_folder()), f"run {run.run_id} cannot be read"
        with asking(uri, failed) as client:
            known = sorted(client.get_run(run.run_id).data.metrics)
            return history_of(
                (point.step, {name: point.value})
                for name in known
                if not names or name in names
                for point in client.get_metric_history(run.run_id, name)
            )
    with contextlib.suppress(OSError):
        reports = read_journal(run.folder / JOURNAL)
        history = history_of((report.step, report.metrics) for report in reports)
        return {name: one for name, one in history.items() if not names or name in names}
    return {}


def read_details(run: RunRecord) -> RunDetails:
    """From the folder of a run, else from MLflow."""
    history = read_history(run)
    manifests: dict[int, Manifest]
    if run.folder is None:
        with asking(tracking_uri("", runs_folder()), f"run {run.run_id} cannot be read") as client:
            tags = client.get_run(run.run_id).data.tags
            paths = [file.path for file in client.list_artifacts(run.run_id, CHECKPOINTS)]
        command = tags.get("mlflow.source.name", "")
        names = (re.fullmatch(rf"{CHECKPOINTS}/step-(\d+)", path) for path in paths)
        manifests = {int(name[1]): {} for name in names if name}
    else:
        tags = kept_tags(run.folder)
        command = str(read_object(run.folder / RUN).get("command", ""))
        # They are only listed, not verified.
        found = map(read_object, run.folder.glob(f"{CHECKPOINTS}/step-*/manifest.json"))
        manifests = {one["step"]: one for one in found if isinstance(one.get("step"), int)}
    plugins = [one.strip() for one in tags.get("rlplug.plugins", "").split(",") if one.strip()]
    checkpoints = _checkpoints(run, manifests, history)
    return RunDetails(history=history, plugins=plugins, command=command, checkpoints=checkpoints)


def read_provenance_of(run: RunRecord) -> Provenance | None:
    """What the run was made from: from its folder, else from MLflow; None if it has no record."""
    if run.folder is not None:
        return read_provenance(run.folder)
    root = runs_folder()
    file = fetch_file(run.run_id, tracking_uri("", root), f"config/{PROVENANCE}", root)
    return None if file is None else read_provenance(file.parent)


def _checkpoints(
    run: RunRecord, manifests: Mapping[int, Manifest], history: History
) -> list[CheckpointRecord]:
    scores = dict(zip(*history.get("eval/return_mean", NO_VALUES), strict=True))
    best = None if run.best is None else run.best[0]
    checkpoints = []
    for step in sorted(manifests):
        marks = {
            "best": step == best,
            "last": step == max(manifests),
            "not finite": manifests[step].get("finite") is False,
        }
        score = None if step not in scores else float(scores[step])
        shown = [mark for mark, holds in marks.items() if holds]
        checkpoints.append(CheckpointRecord(step=step, score=score, marks=shown))
    return checkpoints
