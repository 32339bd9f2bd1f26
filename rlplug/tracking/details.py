"""All that is recorded of one run: its metrics over time, its plugins, its checkpoints."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from rlplug.review.history import History, history_of
from rlplug.review.record import RunRecord
from rlplug.tracking.journal import read_journal
from rlplug.tracking.location import runs_folder, tracking_uri
from rlplug.tracking.search import tracked_files, tracked_tags, tracked_values
from rlplug.tracking.status import kept_tags

__all__ = ["RunDetails", "read_details", "read_history"]

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
    checkpoints: Sequence[int] = ()
    """The steps of those in MLflow, of a run that has no folder here."""


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
    history, steps = read_history(run), list[int]()
    if run.folder is None:
        tags = tracked_tags(_uri(run), run.run_id)
        command = tags.get("mlflow.source.name", "")
        names = tracked_files(_uri(run), run.run_id, CHECKPOINTS)
        steps = sorted(int(name[5:]) for name in names if re.fullmatch(r"step-\d+", name))
    else:
        tags = kept_tags(run.folder)
        command = str(_facts(run.folder).get("command", ""))
    plugins = _plugins(tags.get(PLUGINS_TAG, ""))
    return RunDetails(history=history, plugins=plugins, command=command, checkpoints=steps)


def _uri(run: RunRecord) -> str:
    """Where to ask; the record is without passwords."""
    return tracking_uri("", runs_folder())


def _facts(folder: Path) -> Mapping[str, Any]:
    try:
        facts = json.loads((folder / "run.json").read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, Mapping) else {}


def _plugins(tag: str) -> list[str]:
    """Plugins in plain text, or as the JSON that earlier versions recorded."""
    try:
        return [f"{one['name']} ({one['package']})" for one in json.loads(tag)]
    except (ValueError, TypeError, KeyError):
        return [one.strip() for one in tag.split(",") if one.strip()]
