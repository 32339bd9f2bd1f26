"""The folder of a group, `groups/GROUP` in the runs folder: its runs, and what was asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from rlplug.checkpoint.trust import sign_options
from rlplug.config.sections import ScaleSection
from rlplug.config.strict import structure
from rlplug.durable import write_durably
from rlplug.tracking.location import RunFolder, read_object, runs_in
from rlplug.tracking.status import RunStatus

__all__ = ["CONFIG", "FACTS", "NO_TRIAL", "Group", "find_group"]

CONFIG = "config.toml"
FACTS = "group.json"
NO_TRIAL = -1
"""The number of the trial that all seeds of a group without a search belong to."""


@attrs.frozen
class Group:
    """Runs that belong together, by their name: several seeds, or the trials of a study."""

    root: Path
    """The runs folder."""
    name: str

    @property
    def folder(self) -> Path:
        """Where its files are; it may not exist."""
        return self.root / "groups" / self.name

    @property
    def facts(self) -> Mapping[str, Any]:
        """What was asked for: seeds, the search of a study, and how runs are placed."""
        return read_object(self.folder / FACTS)

    @property
    def is_study(self) -> bool:
        """Whether its runs differ in more than their seeds."""
        return "tune" in self.facts

    @property
    def exists(self) -> bool:
        """Whether there is anything of it."""
        return bool(self.facts or self.runs)

    @property
    def config(self) -> Path:
        """The options of its runs; of a group whose folder was removed, those of a run."""
        file = self.folder / CONFIG
        runs = [] if file.exists() else list(self.runs.values())
        return runs[0].path / CONFIG if runs else file

    @property
    def runs(self) -> dict[tuple[int, int], RunFolder]:
        """Trial and seed → the newest run, in this order."""
        found = {}
        for run in sorted(runs_in(self.root), key=lambda run: run.started):
            if run.about.group == self.name:
                found[int(run.about.trial or NO_TRIAL), run.about.seed] = run
        return dict(sorted(found.items()))

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that were asked for together, and those that have runs."""
        begun = {seed for trial, seed in self.runs if trial == NO_TRIAL}
        return tuple(sorted({*self.facts.get("seeds", []), *begun}))

    @property
    def unfinished(self) -> list[int]:
        """The seeds without a finished run."""
        runs = self.runs
        statuses = {seed: RunStatus.read(run.path) for (_, seed), run in runs.items()}
        finished = {seed for seed, last in statuses.items() if last and last.status == "FINISHED"}
        return [seed for seed in self.seeds if seed not in finished]

    @property
    def placed_by(self) -> ScaleSection | None:
        """How its runs were placed on a cluster; None: they were not."""
        kept = self.facts.get("scale")
        return structure(ScaleSection, kept, "scale")[0] if kept else None

    def keep(self, **facts: Any) -> None:
        """Add to the facts."""
        self.folder.mkdir(parents=True, exist_ok=True)
        content = json.dumps({**self.facts, **facts}, indent=2) + "\n"
        write_durably(self.folder / FACTS, content.encode())

    def keep_options(self, toml: bytes) -> None:
        """Keep the options of its runs, signed as this user's, unless it has some."""
        if not (self.folder / CONFIG).exists():
            write_durably(self.folder / CONFIG, toml)
            sign_options(self.folder)


def find_group(root: Path, name: str) -> Group | None:
    """The group or study of this name; None if there is none."""
    group = Group(root, name)
    return group if name and "/" not in name and group.exists else None
