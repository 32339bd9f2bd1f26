"""Record the provenance of a run, completed in the background: asking git takes time."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import attrs

from rlplug.durable import write_durably
from rlplug.hooks.events import RunInfo
from rlplug.review.provenance import PROVENANCE, Provenance, differences
from rlplug.tracking.machine import gpu_name, machine, threads_of_torch, versions
from rlplug.tracking.source_code import LONGEST_DIFF, git_state, with_commit, working_diff
from rlplug.tracking.status import add_tags

__all__ = ["DIFF", "LIKE", "Likeness", "ProvenanceRecorder"]

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


class ProvenanceRecorder:
    """Completes what is known of a run's origin, and keeps it in its folder."""

    def __init__(
        self,
        known: Provenance,
        folder: Path,
        warn: Callable[[str], None],
        *,
        diff: bool = True,
        like: Likeness | None = None,
    ) -> None:
        self._known = known
        self._folder = folder
        self._warn = warn
        self._diff = diff
        self._like = like
        self._thread: threading.Thread | None = None
        self._where = Path.cwd()

    def start(self, run: RunInfo) -> None:
        """Start the thread; of a run that is to be like another, wait and say what differs."""
        facts = partial(machine, threads=threads_of_torch(), gpu=gpu_name(run.device))
        self._thread = threading.Thread(
            target=self._record, args=(run, facts), name="rlplug-provenance", daemon=True
        )
        self._thread.start()
        if self._like is not None:
            self.finish()

    def finish(self) -> None:
        """Return when the record is complete: git is given two seconds for each answer."""
        if self._thread is not None:
            self._thread.join()

    def _record(self, run: RunInfo, facts: Callable[[], Mapping[str, str]]) -> None:
        try:
            self._keep(self._completed(run, facts))
        except OSError as error:
            self._warn(f"{self._folder / PROVENANCE} cannot be written: {error.strerror or error}.")

    def _completed(
        self, run: RunInfo, facts: Callable[[], Mapping[str, str]]
    ) -> tuple[Provenance, bytes, dict[str, str]]:
        """The whole record, the diff of the working folder, and tags."""
        known = self._known
        by_name = {one.name: one.found for one in run.participants}
        with ThreadPoolExecutor() as pool:
            state = pool.submit(git_state, self._where)
            diff = pool.submit(working_diff, self._where) if self._diff else None
            plugins = [
                pool.submit(with_commit, one, by_name[one.name])
                for one in known.plugins
                if one.name in by_name
            ]
            packages, here = versions(), facts()
            git, changes = state.result(), b"" if diff is None else diff.result()
            records = tuple(one.result() for one in plugins)
        code: dict[str, str] = {}
        if git is not None:
            code = {"commit": git.commit, "branch": git.branch, "changed": str(git.changed).lower()}
            if changes:
                code["diff"] = hashlib.sha256(changes).hexdigest()
        tags = {} if git is None else git.tags()
        if here["gpu"]:
            tags["rlplug.gpu"] = here["gpu"]
        complete = attrs.evolve(
            known,
            plugins=records or known.plugins,
            versions=packages,
            code=code,
            machine=here,
            rerunnable=run.rerunnable,
        )
        return complete, changes, tags

    def _keep(self, found: tuple[Provenance, bytes, dict[str, str]]) -> None:
        complete, changes, tags = found
        lines = self._different(complete)
        if self._like is not None:
            tags["rlplug.like"] = self._like.run_id
            tags["rlplug.like_differences"] = str(len(lines))
        self._write(complete, changes, lines)
        with contextlib.suppress(OSError):
            add_tags(self._folder, tags)

    def _write(self, complete: Provenance, changes: bytes, different: Sequence[str]) -> None:
        """Write the files; those of an earlier start of the run are kept beside them."""
        content = {PROVENANCE: complete.to_json().encode()}
        if self._like is not None:
            lines = (f"like run {self._like.run_id}", *different)
            content[LIKE] = "".join(f"{line}\n" for line in lines).encode()
        if changes and len(changes) <= LONGEST_DIFF:
            content[DIFF] = changes
        for name, text in content.items():
            file = self._folder / name
            if file.exists() and file.read_bytes() != text:
                file.rename(_free(file))
            write_durably(file, text)

    def _different(self, complete: Provenance) -> list[str]:
        """Say what is not as in the run that this one is to be like."""
        if self._like is None:
            return []
        lines = [one.shown for one in differences(self._like.provenance, complete)]
        for line in lines[:_SHOWN]:
            self._warn(f"not as in run {self._like.run_id[:8]}: {line}")
        if len(lines) > _SHOWN:
            self._warn(f"and {len(lines) - _SHOWN} more differences: {self._folder / LIKE}")
        return lines


def _free(file: Path) -> Path:
    """`provenance-1.json`, or the next number that is free."""
    number = 1
    while (kept := file.with_name(f"{file.stem}-{number}{file.suffix}")).exists():
        number += 1
    return kept
