"""All that is recorded of one run: its metrics over time, its plugins, its checkpoints."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from rlplug.review.history import History, history_of
from rlplug.review.provenance import PROVENANCE, Provenance, read_provenance
from rlplug.review.record import CheckpointRecord, RunRecord
from rlplug.tracking.artifacts import fetch_file
from rlplug.tracking.journal import read_journal
from rlplug.tracking.location import runs_folder, tracking_uri
from rlplug.tracking.search import tracked_files, tracked_tags, tracked_values
from rlplug.tracking.status import kept_tags

__all__ = ["RunDetails", "read_details", "read_history", "read_provenance_of"]

Manifest: TypeAlias = "dict[str, Any]"

CHECKPOINTS = "checkpoints"
PLUGINS_TAG = "rlplug.plugins"


@attrs.frozen(kw_only=True)
class RunDetails:
    """What `RunRecord` leaves out, as it takes longer to read."""

    history: History
    plugins: Sequence[str] = ()
    """Each plugin that took part, with distribution and version."""
    command: str = ""
    """The command line that started it."""
    checkpoints: Sequence[CheckpointRecord] = ()
    """In the order of steps."""


def read_history(run: RunRecord, names: Sequence[str] = ()) -> History:
    """All values of the metrics of a run, or of those named: from its folder, else from MLflow."""
    if run.folder is None:
        return history_of(tracked_values(_uri(run), run.run_id, names))
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
        tags = tracked_tags(_uri(run), run.run_id)
        command = tags.get("mlflow.source.name", "")
        names = tracked_files(_uri(run), run.run_id, CHECKPOINTS)
        steps = sorted(int(name[5:]) for name in names if re.fullmatch(r"step-\d+", name))
        manifests = {step: {} for step in steps}
    else:
        tags = kept_tags(run.folder)
        command = str(_object(run.folder / "run.json").get("command", ""))
        manifests = _manifests(run.folder)
    return RunDetails(
        history=history,
        plugins=_known_plugins(tags, manifests),
        command=command,
        checkpoints=_checkpoints(run, manifests, history),
    )


def _known_plugins(tags: Mapping[str, str], manifests: Mapping[int, Manifest]) -> Sequence[str]:
    """As recorded for MLflow, else as the last checkpoint has them."""
    plugins = _plugins(tags.get(PLUGINS_TAG, ""))
    if plugins or not manifests:
        return plugins
    last = manifests[max(manifests)].get("plugins", {})
    return [f"{name} ({package})" for name, package in last.items()]


def read_provenance_of(run: RunRecord) -> Provenance | None:
    """What the run was made from: from its folder, else from MLflow; None if it has no record."""
    if run.folder is not None:
        return read_provenance(run.folder)
    file = fetch_file(run.run_id, _uri(run), f"config/{PROVENANCE}", runs_folder())
    return None if file is None else read_provenance(file.parent)


def _manifests(folder: Path) -> dict[int, Manifest]:
    """Step → manifest of the complete checkpoints; they are only listed, not verified."""
    found = {}
    for file in sorted(folder.glob(f"{CHECKPOINTS}/step-*/manifest.json")):
        manifest = _object(file)
        if isinstance(manifest.get("step"), int):
            found[manifest["step"]] = manifest
    return found


def _checkpoints(
    run: RunRecord, manifests: Mapping[int, Manifest], history: History
) -> list[CheckpointRecord]:
    evaluated = history.get("eval/return_mean", ((), ()))
    scores = {int(step): float(value) for step, value in zip(*evaluated, strict=True)}
    best = None if run.best is None else run.best[0]
    last = max(manifests, default=None)
    found = []
    for step in sorted(manifests):
        marks = ["best"] if step == best else []
        marks += ["last"] if step == last else []
        marks += ["not finite"] if manifests[step].get("finite") is False else []
        found.append(CheckpointRecord(step=step, score=scores.get(step), marks=marks))
    return found


def _uri(run: RunRecord) -> str:
    """Where to ask; the record is without passwords."""
    return tracking_uri("", runs_folder())


def _object(file: Path) -> Manifest:
    """The JSON object in a file; empty if there is none."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _plugins(tag: str) -> list[str]:
    """Plugins in plain text, or as the JSON that earlier versions recorded."""
    try:
        return [f"{one['name']} ({one['package']})" for one in json.loads(tag)]
    except (ValueError, TypeError, KeyError):
        return [one.strip() for one in tag.split(",") if one.strip()]
