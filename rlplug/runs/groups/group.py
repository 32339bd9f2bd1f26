"""The folder of a group, `groups/GROUP` in the runs folder: its runs, and what they come to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import attrs

from rlplug.checkpoint.trust import sign_options
from rlplug.config.sections import ScaleSection
from rlplug.config.strict import structure
from rlplug.durable import write_durably
from rlplug.errors import RequestError
from rlplug.runs.groups.carry_out import all_refused
from rlplug.runs.groups.member import Member
from rlplug.tracking.location import RunFolder, runs_in
from rlplug.tracking.status import RunLock, RunStatus

__all__ = ["CONFIG", "STUDY", "Group", "Outcome", "find_group", "is_study"]

CONFIG = "config.toml"
FACTS = "seeds.json"
STUDY = "study.json"

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
        return file if file.exists() else next(iter(self.runs.values())).path / CONFIG

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
    def asked(self) -> tuple[int, ...]:
        """The seeds that were asked for together, and those that have runs."""
        seeds = self.facts.get("seeds", [])
        known = [seed for seed in seeds if type(seed) is int] if isinstance(seeds, list) else []
        return tuple(sorted({*known, *self.runs}))

    @property
    def facts(self) -> Mapping[str, Any]:
        """What is kept of it."""
        try:
            facts = json.loads((self.folder / FACTS).read_text())
        except (OSError, ValueError, RecursionError):
            return {}
        return facts if isinstance(facts, dict) else {}

    def keep(self, **facts: Any) -> None:
        """Add to what is kept of it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        content = json.dumps({**self.facts, **facts}, indent=2) + "\n"
        write_durably(self.folder / FACTS, content.encode())

    @property
    def placed_by(self) -> ScaleSection | None:
        """How its runs were placed on a cluster; None: they were not."""
        kept = self.facts.get("scale")
        return structure(ScaleSection, kept, "scale")[0] if isinstance(kept, Mapping) else None

    def ask(self, seeds: Iterable[int], run: Path, placed_by: ScaleSection | None = None) -> None:
        """Keep which seeds were asked for, with the options of the first run that has begun."""
        scale = None if placed_by is None else attrs.asdict(placed_by)
        self.keep(seeds=sorted({*self.asked, *seeds}), scale=scale)
        if not (self.folder / CONFIG).exists():
            shutil.copyfile(run / CONFIG, self.folder / CONFIG)
            sign_options(self.folder)

    def unfinished(self) -> list[int]:
        """The seeds that were asked for and have not finished."""
        runs = self.runs
        statuses = {seed: RunStatus.read(run.path) for seed, run in runs.items()}
        return [
            seed
            for seed in self.asked
            if (status := statuses.get(seed)) is None or status.status != "FINISHED"
        ]

    def refuse_in_progress(self) -> None:
        """Raise if a run of it is in progress."""
        for run in self.runs.values():
            lock = RunLock.try_take(run.path)
            if lock is None:
                raise RequestError(
                    f"group {self.name} is in progress: run {run.run_id} (seed {run.about.seed}).",
                    "try: again after it has ended",
                )
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
    """The group of this name; None if no run belongs to it."""
    group = Group(root, name)
    return group if name and group.runs else None


def is_study(root: Path, name: str) -> bool:
    """Whether a study of `rlplug tune` has this name."""
    return bool(name) and "/" not in name and Group(root, name).is_study
