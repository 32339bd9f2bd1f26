"""The summary of a group as a run of its own in MLflow."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs

from rlplug.errors import RequestError
from rlplug.review.record import RunRecord
from rlplug.runs.seeds.group import Group
from rlplug.runs.seeds.summary import Summary
from rlplug.tracking.client import StoreRefusedError, StoreUnreachableError
from rlplug.tracking.location import RunFolder
from rlplug.tracking.record import LONGEST_TAG, Record, command_line, place_tags, user_name
from rlplug.tracking.status import milliseconds
from rlplug.tracking.store import Store

__all__ = ["SUMMARY", "SummaryRun", "record_summary", "summary_of_seeds"]

SUMMARY = "summary"
"""What `rlplug.kind` says of it; of a run it says `run`."""

_KEPT = "summary_run_id"
_LOG = logging.getLogger("rlplug")


@attrs.frozen(kw_only=True)
class SummaryRun:
    """What is recorded in MLflow of several runs together."""

    runs: tuple[RunRecord, ...]
    metrics: Mapping[str, float]
    markdown: str
    params: Mapping[str, str]
    tags: Mapping[str, str]
    series: Mapping[str, Mapping[int, float]] = attrs.field(factory=dict)
    """Metrics that have a value at each of several steps."""

    @property
    def first(self) -> RunFolder | None:
        """A run that is in MLflow; None: none is."""
        return next((_folder(one) for one in self.runs if one.experiment_id), None)


def summary_of_seeds(summary: Summary) -> SummaryRun:
    """Of runs that differ only in their seeds."""
    about = next(one.about for one in summary.runs if one.run_id)
    return SummaryRun(
        runs=summary.runs,
        metrics=summary.metrics,
        markdown=summary.markdown(),
        params=about.options,
        tags={"rlplug.seeds": summary.seeds, "rlplug.options": about.shown_options},
    )


def record_summary(summary: SummaryRun, group: Group, files: Iterable[Path]) -> str:
    """Record it beside the runs, in place of an earlier one; its id, or empty without MLflow."""
    run = summary.first
    if run is None:
        return ""
    try:
        store = _open(summary, group, run)
        now, last = int(time.time() * 1000), max(one.step for one in summary.runs)
        # Always the same, with which a point that is recorded again is still one point.
        began = milliseconds(run.started) or now
        store.log_rows(
            [
                *((name, value, now, last) for name, value in summary.metrics.items()),
                *(
                    (name, value, began, step)
                    for name, values in summary.series.items()
                    for step, value in values.items()
                ),
            ]
        )
        store.set_tags(_tags(summary, group))
        for file in files:
            store.log_file(file, "")
        store.terminate("FINISHED")
    except (RequestError, StoreRefusedError, StoreUnreachableError) as error:
        message = str(error).splitlines()[0]
        _LOG.warning("rlplug: the summary of %s is not in MLflow: %s", group.name, message)
        return ""
    group.keep(**{_KEPT: store.run_id})
    return store.run_id


def _open(summary: SummaryRun, group: Group, run: RunFolder) -> Store:
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
        datasets=(),
        about=about,
    )
    return Store.create_run(uri, record, group.root)


def _tags(summary: SummaryRun, group: Group) -> dict[str, str]:
    about = next(one.about for one in summary.runs if one.run_id)
    tags = {
        "mlflow.source.name": command_line(),
        "mlflow.source.type": "LOCAL",
        "mlflow.note.content": _spaced(summary.markdown),
        "mlflow.user": user_name(),
        "rlplug.kind": SUMMARY,
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


def _folder(run: RunRecord) -> RunFolder | None:
    return None if run.folder is None else RunFolder.read(run.folder)
