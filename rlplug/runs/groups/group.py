"""The folder of a group, `groups/GROUP` in the runs folder: its runs, and what they come to."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import attrs

from rlplug.checkpoint.trust import sign_options
from rlplug.config.sections import ScaleSection
from rlplug.config.strict import structure
from rlplug.durable import write_durably
from rlplug.errors import RequestError
from rlplug.review.record import RunRecord
from rlplug.runs.groups.member import Member, all_refused
from rlplug.tracking.location import RunFolder, read_object, runs_in
from rlplug.tracking.record import LONGEST_TAG, Record, basic_tags, place_tags
from rlplug.tracking.status import RunLock, RunStatus, milliseconds
from rlplug.tracking.store import Store, StoreError

__all__ = ["CONFIG", "STUDY", "SUMMARY", "Group", "Outcome", "SummaryRecord", "find_group"]

CONFIG = "config.toml"
FACTS = "seeds.json"
STUDY = "study.json"
SUMMARY = "summary"
"""What `rlplug.kind` says of the summary run in MLflow; of a run it says `run`."""

_KEPT = "summary_run_id"
_LOG = logging.getLogger("rlplug")

Summary = TypeVar("Summary")


@attrs.frozen
class Group:
    """The runs of a group, by its name."""

    root: Path
    """The runs folder."""
    name: str

    @property
    def folder(self) -> Path:
        """Where its files are; it may not exist."""
        return self.root / "groups" / self.name

    @property
    def is_study(self) -> bool:
        """Whether it is a study of `rlplug tune`, whose runs differ in more than their seeds."""
        return (self.folder / STUDY).is_file()

    @property
    def config(self) -> Path:
        """The options of its runs; of a group whose folder was removed, those of a run."""
        file = self.folder / CONFIG
        runs = [] if file.exists() else list(self.runs.values())
        return runs[0].path / CONFIG if runs else file

    @property
    def runs(self) -> dict[int, RunFolder]:
        """The newest run of each seed, in the order of the seeds."""
        found = {run.about.seed: run for run in self.all_runs if not run.about.trial}
        return dict(sorted(found.items()))

    @property
    def all_runs(self) -> list[RunFolder]:
        """All its runs, the oldest first."""
        runs = sorted(runs_in(self.root), key=lambda run: run.started)
        return [run for run in runs if run.about.group == self.name]

    @property
    def facts(self) -> Mapping[str, Any]:
        """What is kept of it: the seeds that were asked for, and how they were placed."""
        return read_object(self.folder / FACTS)

    @property
    def asked(self) -> tuple[int, ...]:
        """The seeds that were asked for together, and those that have runs."""
        return tuple(sorted({*self.facts.get("seeds", []), *self.runs}))

    @property
    def placed_by(self) -> ScaleSection | None:
        """How its runs were placed on a cluster; None: they were not."""
        kept = self.facts.get("scale")
        return structure(ScaleSection, kept, "scale")[0] if kept else None

    def keep(self, **facts: Any) -> None:
        """Add to what is kept of it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        content = json.dumps({**self.facts, **facts}, indent=2) + "\n"
        write_durably(self.folder / FACTS, content.encode())

    def ask(self, seeds: Iterable[int], run: Path, placed_by: ScaleSection | None = None) -> None:
        """Keep which seeds were asked for, with the options of the first run that has begun."""
        scale = None if placed_by is None else attrs.asdict(placed_by)
        self.keep(seeds=sorted({*self.asked, *seeds}), scale=scale)
        if not (self.folder / CONFIG).exists():
            shutil.copyfile(run / CONFIG, self.folder / CONFIG)
            sign_options(self.folder)

    def unfinished(self) -> list[int]:
        """The seeds that were asked for and have not finished."""
        statuses = {seed: RunStatus.read(run.path) for seed, run in self.runs.items()}
        finished = {seed for seed, one in statuses.items() if one and one.status == "FINISHED"}
        return [seed for seed in self.asked if seed not in finished]

    def refuse_in_progress(self) -> None:
        """Raise if a run of it is in progress."""
        for run in self.runs.values():
            lock = RunLock.try_take(run.path)
            if lock is None:
                message = f"run {run.run_id} (seed {run.about.seed}) of {self.name} is in progress."
                raise RequestError(message, "try: again after it has ended")
            lock.release()


@attrs.frozen(kw_only=True)
class Outcome(Generic[Summary]):
    """How the runs of a group ended, and what they come to."""

    members: Sequence[Member]
    """The runs that were carried out now."""
    ended_by: int
    """The signal that ended them; 0: none."""
    group: Group | None
    """None: no run has begun."""
    summary: Summary | None = None
    """None: no run has begun."""
    is_complete: bool = False
    """Whether the group came to what it was for."""
    run_id: str = ""
    """The summary run in MLflow; empty: there is none."""

    @property
    def code(self) -> int:
        """The exit code of all together."""
        if self.ended_by:
            return 128 + self.ended_by
        if self.is_complete:
            return 0
        return 2 if all_refused(self.members) else 1


def find_group(root: Path, name: str) -> Group | None:
    """The group or study of this name; None if there is none."""
    if not name or "/" in name:
        return None
    group = Group(root, name)
    return group if group.is_study or group.runs else None


@attrs.frozen(kw_only=True)
class SummaryRecord:
    """What is recorded of the runs of a group together: files, and a run of its own in MLflow."""

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
        group.folder.mkdir(parents=True, exist_ok=True)
        content = json.dumps(self.as_json, indent=2) + "\n"
        writers: dict[str, Callable[[Path], object]] = {
            "summary.json": lambda file: write_durably(file, content.encode()),
            "summary.md": lambda file: write_durably(file, self.markdown.encode()),
            **self.files,
        }
        for name, write in writers.items():
            try:
                write(group.folder / name)
            except Exception as error:
                # A full disk or a broken font does not stop the rest.
                _LOG.warning("rlplug: %s cannot be written: %s.", group.folder / name, error)
        tracked = (run.folder for run in self.runs if run.experiment_id and run.folder)
        run = next((RunFolder.read(folder) for folder in tracked), None)
        if run is None:
            return ""
        try:
            store = self._open(group, run)
            now, last = int(time.time() * 1000), max(one.step for one in self.runs)
            # Always the same, with which a point that is recorded again is still one point.
            began = milliseconds(run.started) or now
            rows = [(name, value, now, last) for name, value in self.metrics.items()]
            for name, values in self.series.items():
                rows += [(name, value, began, step) for step, value in values.items()]
            store.log_rows(rows)
            store.set_tags(self._tags(group))
            for name in (*writers, CONFIG, STUDY):
                if (group.folder / name).exists():
                    store.log_file(group.folder / name, "")
            store.terminate("FINISHED")
        except (RequestError, StoreError) as error:
            message = str(error).splitlines()[0]
            _LOG.warning("rlplug: the summary of %s is not in MLflow: %s", group.name, message)
            return ""
        group.keep(**{_KEPT: store.run_id})
        return store.run_id

    def _open(self, group: Group, run: RunFolder) -> Store:
        """The summary run of the group, if it is still there; else a new one."""
        uri, kept = run.tracking_uri(""), group.facts.get(_KEPT, "")
        if kept:
            try:
                return Store.open_run(uri, kept)
            except RequestError:
                # It was deleted.
                pass
        about = run.about
        names = {"algorithm": about.algorithm, "env": about.env, "steps": str(about.steps)}
        record = Record(
            experiment=run.experiment,
            experiment_id=run.experiment_id,
            run_name=f"{group.name}-summary",
            number_names=False,
            params={**{f"run.{name}": value for name, value in names.items()}, **self.params},
            tags={**self._tags(group), **place_tags(group.root)},
            about=about,
        )
        return Store.create_run(uri, record, group.root)

    def _tags(self, group: Group) -> dict[str, str]:
        about = next(one.about for one in self.runs if one.run_id)
        # With space between the columns of tables, which MLflow draws without.
        lines = (
            line if "---" in line else line.replace(" |", "&emsp;|")
            for line in self.markdown.splitlines()
        )
        tags = {
            **basic_tags(SUMMARY),
            "mlflow.note.content": "\n".join(lines),
            "rlplug.group": group.name,
            "rlplug.algo": about.algorithm,
            "rlplug.env": about.env,
            **self.tags,
        }
        return {name: value[:LONGEST_TAG] for name, value in tags.items() if value}
