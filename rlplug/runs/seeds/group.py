"""The folder of a group, `groups/GROUP` in the runs folder: its seeds, and what they come to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from rlplug.config.scale_section import ScaleSection
from rlplug.config.strict import structure
from rlplug.durable import write_durably
from rlplug.errors import RequestError
from rlplug.tracking.location import RunFolder, runs_in
from rlplug.tracking.lock import RunLock
from rlplug.tracking.status import RunStatus

__all__ = ["CONFIG", "STUDY", "Group", "find_group", "is_study"]

CONFIG = "config.toml"
SEEDS = "seeds.json"
STUDY = "study.json"
"""Makes it the folder of a study, whose runs differ in more than their seeds."""


@attrs.frozen
class Group:
    """The runs that differ only in their seeds."""

    root: Path
    """The runs folder."""
    name: str

    @property
    def folder(self) -> Path:
        """Where its files are; it may not exist."""
        return self.root / "groups" / self.name

    @property
    def config(self) -> Path:
        """The options of its runs, for seeds that were never started."""
        return self.folder / CONFIG

    @property
    def runs(self) -> dict[int, RunFolder]:
        """The newest run of each seed, in the order of the seeds."""
        found: dict[int, RunFolder] = {}
        for run in sorted(runs_in(self.root), key=lambda run: run.started):
            if run.about.group == self.name and not run.about.trial:
                found[run.about.seed] = run
        return dict(sorted(found.items()))

    @property
    def asked(self) -> tuple[int, ...]:
        """The seeds that were asked for together, and those that have runs."""
        seeds = self.facts.get("seeds", [])
        known = [seed for seed in seeds if type(seed) is int] if isinstance(seeds, list) else []
        return tuple(sorted({*known, *self.runs}))

    @property
    def facts(self) -> Mapping[str, Any]:
        """What `seeds.json` says."""
        try:
            facts = json.loads((self.folder / SEEDS).read_text())
        except (OSError, ValueError, RecursionError):
            return {}
        return facts if isinstance(facts, dict) else {}

    def keep(self, **facts: Any) -> None:
        """Add to what `seeds.json` says."""
        self.folder.mkdir(parents=True, exist_ok=True)
        content = json.dumps({**self.facts, **facts}, indent=2) + "\n"
        write_durably(self.folder / SEEDS, content.encode())

    @property
    def section(self) -> ScaleSection | None:
        """How its runs were spread over a cluster; None: they were not."""
        kept = self.facts.get("scale")
        return structure(ScaleSection, kept, "scale")[0] if isinstance(kept, Mapping) else None

    def ask(self, seeds: Iterable[int], run: Path, section: ScaleSection | None = None) -> None:
        """Keep which seeds were asked for, with the options of the first run that has begun."""
        scale = None if section is None else attrs.asdict(section)
        self.keep(seeds=sorted({*self.asked, *seeds}), scale=scale)
        if not self.config.exists():
            shutil.copyfile(run / CONFIG, self.config)

    def unfinished(self) -> dict[int, RunFolder | None]:
        """The seeds that have not finished, and their runs; None: never started."""
        runs = self.runs
        found: dict[int, RunFolder | None] = {}
        for seed in self.asked:
            status = RunStatus.read(runs[seed].path) if seed in runs else None
            if status is None or status.status != "FINISHED":
                found[seed] = runs.get(seed)
        return found

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


def find_group(root: Path, name: str) -> Group | None:
    """The group of this name; None if no run belongs to it."""
    group = Group(root, name)
    return group if name and group.runs else None


def is_study(root: Path, name: str) -> bool:
    """Whether a study of `rlplug tune` has this name."""
    return bool(name) and "/" not in name and (Group(root, name).folder / STUDY).is_file()
