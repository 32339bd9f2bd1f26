"""All that is recorded of one run: its metrics over time, its plugins, its checkpoints."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from rlplug.review.history import NO_VALUES, History, RunDetails, history_of
from rlplug.review.provenance import PROVENANCE, Provenance, read_provenance
from rlplug.review.record import CheckpointRecord, RunRecord
from rlplug.tracking.artifacts import fetch_file
from rlplug.tracking.journal import read_journal
from rlplug.tracking.location import read_object, runs_folder, tracking_uri
from rlplug.tracking.search import tracked_files, tracked_tags, tracked_values
from rlplug.tracking.status import kept_tags

Manifest: TypeAlias = "dict[str, Any]"

CHECKPOINTS = "checkpoints"


def read_history(run: RunRecord, names: Sequence[str] = ()) -> History:
    """All values of the metrics of a run, or of those named: from its folder, else from MLflow."""
    if run.folder is None:
        return history_of(tracked_values(_uri(), run.run_id, names))
    with contextlib.suppress(OSError):
        reports = read_journal(run.folder / "metrics.jsonl")
        history = history_of((one.step, one.metrics) for one in reports)
        return {name: one for name, one in history.items() if not names or name in names}
    return {}


def read_details(run: RunRecord) -> RunDetails:
    """From the folder of a run, else from MLflow."""
    history = read_history(run)
    manifests: dict[int, Manifest]
    if run.folder is None:
        uri = _uri()
        tags = tracked_tags(uri, run.run_id)
        command = tags.get("mlflow.source.name", "")
        names = tracked_files(uri, run.run_id, CHECKPOINTS)
        manifests = {int(name[5:]): {} for name in names if re.fullmatch(r"step-\d+", name)}
    else:
        tags = kept_tags(run.folder)
        command = str(read_object(run.folder / "run.json").get("command", ""))
        # They are only listed, not verified.
        found = map(read_object, run.folder.glob(f"{CHECKPOINTS}/step-*/manifest.json"))
        manifests = {one["step"]: one for one in found if isinstance(one.get("step"), int)}
    plugins = [one.strip() for one in tags.get("rlplug.plugins", "").split(",") if one.strip()]
    if manifests and not plugins:
        # Not yet recorded for MLflow, but with the last checkpoint.
        last = manifests[max(manifests)].get("plugins", {})
        plugins = [f"{name} ({package})" for name, package in last.items()]
    checkpoints = _checkpoints(run, manifests, history)
    return RunDetails(history=history, plugins=plugins, command=command, checkpoints=checkpoints)


def read_provenance_of(run: RunRecord) -> Provenance | None:
    """What the run was made from: from its folder, else from MLflow; None if it has no record."""
    if run.folder is not None:
        return read_provenance(run.folder)
    file = fetch_file(run.run_id, _uri(), f"config/{PROVENANCE}", runs_folder())
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


def _uri() -> str:
    """Where to ask; the record is without passwords."""
    return tracking_uri("", runs_folder())
