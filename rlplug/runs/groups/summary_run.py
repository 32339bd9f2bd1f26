"""What the runs of a group come to: files in its folder, and a run of its own in MLflow."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from rlplug.durable import write_durably
from rlplug.errors import RequestError
from rlplug.review.record import RunRecord
from rlplug.runs.groups.group import CONFIG, STUDY, Group
from rlplug.tracking.location import RunFolder
from rlplug.tracking.record import LONGEST_TAG, Record, basic_tags, place_tags
from rlplug.tracking.status import milliseconds
from rlplug.tracking.store import Store, StoreError

__all__ = ["SUMMARY", "SummaryRecord"]

SUMMARY = "summary"
"""What `rlplug.kind` says of it; of a run it says `run`."""

_KEPT = "summary_run_id"
_LOG = logging.getLogger("rlplug")


@attrs.frozen(kw_only=True)
class SummaryRecord:
    """What is recorded of the runs of a group together."""

    runs: tuple[RunRecord, ...]
    as_json: Mapping[str, Any]
    markdown: str
    metrics: Mapping[str, float]
    params: Mapping[str, str]
    tags: Mapping[str, str]
    series: Mapping[str, Mapping[int, float]] = attrs.field(factory=dict)
    """Metrics that have a value at each of several steps."""
    files: Mapping[str, Callable[[Path], object]] = attrs.field(factory=dict)
    """Name → what writes the file, besides those with the tables."""

    def write(self, group: Group) -> str:
        """Write the files, and record all in MLflow; its id there, or empty without it."""
        return self._record(group, self._write_files(group.folder))

    def _write_files(self, folder: Path) -> list[Path]:
        """Write the files; what fails is warned of. Those that are there then."""
        folder.mkdir(parents=True, exist_ok=True)
        content = json.dumps(self.as_json, indent=2) + "\n"
        writers: dict[str, Callable[[Path], object]] = {
            "summary.json": lambda file: write_durably(file, content.encode()),
            "summary.md": lambda file: write_durably(file, self.markdown.encode()),
            **self.files,
        }
        for name, write in writers.items():
            try:
                write(folder / name)
            except Exception as error:
                # A full disk or a broken font takes nothing else with it.
                _LOG.warning("rlplug: %s cannot be written: %s.", folder / name, error)
        names = (*writers, CONFIG, STUDY)
        return [folder / name for name in names if (folder / name).exists()]

    def _record(self, group: Group, files: list[Path]) -> str:
        """Record it beside the runs, in place of an earlier one."""
        recorded = (run.folder for run in self.runs if run.experiment_id and run.folder)
        run = next((RunFolder.read(folder) for folder in recorded), None)
        if run is None:
            return ""
        try:
            store = _open(self, group, run)
            now, last = int(time.time() * 1000), max(run.step for run in self.runs)
            # Always the same, with which a point that is recorded again is still one point.
            began = milliseconds(run.started) or now
            rows = [(name, value, now, last) for name, value in self.metrics.items()]
            for name, values in self.series.items():
                rows += [(name, value, began, step) for step, value in values.items()]
            store.log_rows(rows)
            store.set_tags(_tags(self, group))
            for file in files:
                store.log_file(file, "")
            store.terminate("FINISHED")
        except (RequestError, StoreError) as error:
            message = str(error).splitlines()[0]
            _LOG.warning("rlplug: the summary of %s is not in MLflow: %s", group.name, message)
            return ""
        group.keep(**{_KEPT: store.run_id})
        return store.run_id


def _open(summary: SummaryRecord, group: Group, run: RunFolder) -> Store:
    """That of the group, if it is still there; else a new one."""
    uri = run.tracking_uri("")
    kept = group.facts.get(_KEPT, "")
    if isinstance(kept, str) and kept:
        try:
            return Store.open_run(uri, kept)
        except RequestError:
            # It was deleted.
            pass
    about = run.about
    record = Record(
        experiment=run.experiment,
        experiment_id=run.experiment_id,
        run_name=f"{group.name}-summary",
        number_names=False,
        params={
            "run.algorithm": about.algorithm,
            "run.env": about.env,
            "run.steps": str(about.steps),
            **summary.params,
        },
        tags={**_tags(summary, group), **place_tags(group.root)},
        about=about,
    )
    return Store.create_run(uri, record, group.root)


def _tags(summary: SummaryRecord, group: Group) -> dict[str, str]:
    about = next(one.about for one in summary.runs if one.run_id)
    tags = {
        **basic_tags(SUMMARY),
        "mlflow.note.content": _spaced(summary.markdown),
        "rlplug.group": group.name,
        "rlplug.algo": about.algorithm,
        "rlplug.env": about.env,
        **summary.tags,
    }
    return {name: value[:LONGEST_TAG] for name, value in tags.items() if value}


def _spaced(markdown: str) -> str:
    """With space between the columns of tables, which MLflow draws without."""
    lines = (
        line if "---" in line else line.replace(" |", "&emsp;|") for line in markdown.splitlines()
    )
    return "\n".join(lines)
