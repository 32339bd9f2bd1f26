"""The runs that a folder knows of, newest first, without asking MLflow."""

from __future__ import annotations

import json
from pathlib import Path

import attrs

from rlplug.tracking.location import without_secrets

__all__ = ["RecentRun", "recent_runs"]


@attrs.frozen(kw_only=True)
class RecentRun:
    """What `run.json` tells of a run."""

    run_id: str
    run_name: str
    experiment_id: str
    folder: Path


def recent_runs(root: Path, uri: str) -> list[RecentRun]:
    """The runs in the folder that are recorded at this tracking URI."""
    shown = without_secrets(uri)
    files = list(root.glob("work/*/run.json"))
    runs = []
    for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True):
        try:
            facts = json.loads(file.read_text())
        except (OSError, ValueError):
            continue
        if facts.get("uri") == shown and facts.get("experiment_id"):
            names = ("run_id", "run_name", "experiment_id")
            known = {name: str(facts.get(name, "")) for name in names}
            runs.append(RecentRun(folder=file.parent, **known))
    return runs
