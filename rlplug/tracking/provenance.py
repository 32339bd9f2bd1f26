"""Record what a run was made from, and how it differs from one that it is to be like."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from rlplug.durable import write_durably
from rlplug.hooks.events import RunInfo
from rlplug.review.provenance import PROVENANCE, Provenance, differences
from rlplug.tracking.machine import machine, versions
from rlplug.tracking.source_code import LONGEST_DIFF, git_state, with_commit, working_diff
from rlplug.tracking.status import add_tags

DIFF = "working_tree.diff"
LIKE = "like.txt"
"""What differs from the run that a run is to be like."""
_SHOWN = 30
"""How many differences from another run are shown; all of them are recorded."""


@attrs.frozen(kw_only=True)
class Likeness:
    """The run that a run is to be like."""

    run_id: str
    provenance: Provenance


@attrs.frozen
class ProvenanceRecorder:
    """Completes what is known of a run's origin, and keeps it in its folder."""

    known: Provenance
    folder: Path
    warn: Callable[[str], None]
    diff: bool = attrs.field(default=True, kw_only=True)
    like: Likeness | None = attrs.field(default=None, kw_only=True)

    def start(self, run: RunInfo) -> None:
        """Record it now: git, in a thread, could hand pipes to processes that are forked then."""
        changes = working_diff(Path.cwd()) if self.diff else b""
        complete, tags = self._completed(run, changes)
        content = {PROVENANCE: complete.to_json().encode()}
        if 0 < len(changes) <= LONGEST_DIFF:
            content[DIFF] = changes
        if self.like is not None:
            lines = [one.shown for one in differences(self.like.provenance, complete)]
            self._tell(lines)
            text = "\n".join([f"like run {self.like.run_id}", *lines])
            content[LIKE] = f"{text}\n".encode()
            tags["rlplug.like"] = self.like.run_id
            tags["rlplug.like_differences"] = str(len(lines))
        with contextlib.suppress(OSError):
            add_tags(self.folder, tags)
        try:
            for name, text_of in content.items():
                self._keep(self.folder / name, text_of)
        except OSError as error:
            self.warn(f"{self.folder / PROVENANCE} cannot be written: {error.strerror or error}.")

    def _completed(self, run: RunInfo, changes: bytes) -> tuple[Provenance, dict[str, str]]:
        """The whole record, and tags."""
        git, here = git_state(Path.cwd()), machine(run.device)
        by_name = {one.name: one.found for one in run.participants}
        code: dict[str, str] = {}
        if git is not None:
            code = {"commit": git.commit, "branch": git.branch, "changed": str(git.changed).lower()}
            code |= {"diff": hashlib.sha256(changes).hexdigest()} if changes else {}
        complete = attrs.evolve(
            self.known,
            plugins=tuple(
                with_commit(plugin, by_name[plugin.name]) if plugin.name in by_name else plugin
                for plugin in self.known.plugins
            ),
            versions=versions(),
            code=code,
            machine=here,
            rerunnable=run.rerunnable,
        )
        tags = {} if git is None else git.tags()
        return complete, tags | ({"rlplug.gpu": here["gpu"]} if here["gpu"] else {})

    def _tell(self, lines: Sequence[str]) -> None:
        """Say what is not as in the run that this one is to be like."""
        if self.like is not None:
            for line in lines[:_SHOWN]:
                self.warn(f"not as in run {self.like.run_id[:8]}: {line}")
            if len(lines) > _SHOWN:
                self.warn(f"and {len(lines) - _SHOWN} more differences: {self.folder / LIKE}")

    def _keep(self, file: Path, content: bytes) -> None:
        """Write a file; that of an earlier start of the run is kept beside it."""
        if file.exists() and file.read_bytes() != content:
            number = 1
            while (kept := file.with_name(f"{file.stem}-{number}{file.suffix}")).exists():
                number += 1
            file.rename(kept)
        write_durably(file, content)
