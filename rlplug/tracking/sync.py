"""Bring what is in the folder of a run to MLflow: doing it again has no effect.

`metrics.acked` is the byte up to which the journal is there, `synced.json` has the size and time of
each file that is. What a killed process or an outage kept from MLflow is what these do not name.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from rlplug.durable import is_unfinished, write_durably
from rlplug.tracking.artifacts import CHECKPOINTS, PROFILES, RANKING, files_in, upload_file
from rlplug.tracking.client import StoreRefusedError, StoreUnreachableError
from rlplug.tracking.evaluations import ESTIMATES, EVALUATIONS, log_evaluation
from rlplug.tracking.journal import Report, Row, acknowledge, acknowledged, points_in, unsent
from rlplug.tracking.location import read_object
from rlplug.tracking.models import LoggedModels
from rlplug.tracking.provenance import LIKE
from rlplug.tracking.status import RUNNING, RunStatus, kept_tags, milliseconds
from rlplug.tracking.store import PENDING_TAG, TAGS_OF_THE_END, Store

SYNCED = "synced.json"
_END = ""
"""Stands in that file for the end of a run, whose status and tags are in MLflow."""

_CONFIG = ("config.toml", "config-*.toml", "provenance*.json", "working_tree*.diff", LIKE)
"""Files whose artifacts are in the folder `config`."""
_FOLDERS = (CHECKPOINTS, "replay", "videos", "plots", "logs", PROFILES, EVALUATIONS, ESTIMATES)
"""Checkpoints first: all blocks of `replay` that one of them names are listed after it."""
_PRUNED = (CHECKPOINTS, "replay", "videos")
"""Folders in which a run deletes what is old: nothing else is ever deleted in MLflow."""
_MANIFEST = "manifest.json"


@attrs.frozen
class _File:
    path: Path
    into: str
    """Its folder among the artifacts."""
    stamp: list[int]
    """Size and time: where they are the same, the file is."""

    @property
    def artifact(self) -> str:
        return f"{self.into}/{self.path.name}" if self.into else self.path.name


class Sync:
    """Brings a run to MLflow, as far as it has come.

    Of `store`, None says that MLflow does not answer: only `missing` can be asked. `resumed_at` is
    the step from which a run goes on: models of a course that it does not take are deleted.
    """

    def __init__(
        self,
        folder: Path,
        store: Store | None,
        warn: Callable[[str], None],
        *,
        with_replay: bool = False,
        resumed_at: int | None = None,
    ) -> None:
        self.folder = folder
        self._store = store
        self._warn = warn
        self._with_replay = with_replay
        self._resumed_at = resumed_at
        self._models = None if store is None else LoggedModels(store, folder)
        self._models_due = True
        self._files: dict[str, Any] = read_object(folder / SYNCED)
        """Artifact → stamp; None: it was being uploaded. `_END` → when the run ended."""
        self._refused: dict[str, list[int]] = {}
        self._tags: Mapping[str, str] = {}
        self._end = acknowledged(folder)
        """The byte up to which the journal is in MLflow."""
        self.is_gone = False
        """Whether the run was deleted in MLflow."""
        self.files_left = 0
        self.points = self.files = 0
        """What this process has brought."""
        self._logged: set[str] = set()
        """The checkpoints whose models are in MLflow."""
        self.answered = time.monotonic()
        """When a request was last answered."""
        self.given_up = threading.Event()
        """Set by a thread that does not wait any longer."""

    @property
    def progress(self) -> int:
        """Grows with what is in MLflow for good, not with what is asked for anew each time."""
        return self.points + self.files + len(self._logged)

    def bring(self, unwritten: Sequence[Report] = ()) -> None:
        """Bring what is missing, or raise `StoreUnreachableError`.

        `unwritten` are reports that are not in the journal, as the disk is full.
        """
        if self._store is None or self.is_gone:
            return
        for rows, end in unsent(self.folder, self._end):
            if not self._sent(rows):
                return
            self._end = end
            # Without it, the same points would be sent again, which has no effect.
            with contextlib.suppress(OSError):
                acknowledge(self.folder, end)
        if not self._sent([row for report in unwritten for row in report.rows()]):
            return
        status = RunStatus.read(self.folder)
        is_ended = status is not None and status.status != RUNNING
        files = self._missing_files()
        self._bring_tags(self._store, {PENDING_TAG: "true"} if is_ended else {})
        if status is not None and is_ended:
            self._record(self._store.terminate, status.status, milliseconds(status.ended))
            self._know_end(status)
        self._bring_files(self._store, files)
        self._bring_models()
        if is_ended:
            # What was said meanwhile is in the log of the run.
            self._bring_files(self._store, self._missing_files())
            if not self._missing_files():
                self._record(self._store.delete_tag, PENDING_TAG)

    def missing(self, unwritten: int = 0) -> str:
        """What is not in MLflow, in words; empty if everything is."""
        points = points_in(self.folder, self._end) + unwritten
        files = len(self._missing_files(again=True))
        if points or files:
            return counted(points, files)
        status = RunStatus.read(self.folder)
        if status is not None and self._files.get(_END) != status.ended:
            return "the final status and tags"
        return "models of its checkpoints" if self._models_due else ""

    def end(self, tags: Mapping[str, str]) -> None:
        """Bring the final status, and nothing else."""
        status = RunStatus.read(self.folder) or RunStatus()
        if self._store is not None:
            self._store.terminate(status.status)
            self._store.set_tags({**tags, PENDING_TAG: "true"})
            self._know_end(status)

    def _know_end(self, status: RunStatus) -> None:
        if self._files.get(_END) != status.ended:
            self._files[_END] = status.ended
            self._keep()

    def _sent(self, rows: Sequence[Row]) -> bool:
        """Send rows, those that MLflow refuses aside; whether the run takes more."""
        if not rows or self._store is None:
            return True
        try:
            self._ask(self._store.log_rows, rows)
        except StoreRefusedError as error:
            if not self._store.is_active():
                self.is_gone = True
                self._warn(
                    f"MLflow accepts no more metrics of this run ({error}); they are kept in "
                    f"{self.folder}."
                )
            elif len(rows) == 1:
                name, value, _, step = rows[0]
                self._warn(f"MLflow refused {name}={value} at step {step}: {error}")
            else:
                return all(self._sent([row]) for row in rows)
        else:
            self.points += len(rows)
        return not self.is_gone

    def _bring_tags(self, store: Store, more: Mapping[str, str]) -> None:
        tags = {**kept_tags(self.folder), **more}
        if tags == self._tags:
            return
        self._record(store.set_tags, tags)
        if more:
            for name in sorted((TAGS_OF_THE_END & {*store.tags}) - {*tags}):
                self._record(store.delete_tag, name)
        self._tags = tags

    def _record(self, request: Callable[..., object], *arguments: object) -> None:
        """Ask for something that is not asked for again if it is refused, which is said."""
        try:
            self._ask(request, *arguments)
        except StoreRefusedError as error:
            self._warn(f"MLflow refused a part of this run's record: {error}.")

    def _missing_files(self, *, again: bool = False) -> list[_File]:
        """What is not in MLflow, manifests last; `again` with what it has refused."""
        files = [
            file
            for file in files_of_run(self.folder, with_replay=self._with_replay)
            if self._files.get(file.artifact) != file.stamp
            and (again or self._refused.get(file.artifact) != file.stamp)
        ]
        return sorted(files, key=lambda file: file.path.name == _MANIFEST)

    def _bring_files(self, store: Store, files: Sequence[_File]) -> None:
        # First of all: what a killed process has uploaded has to be known when it is deleted.
        self._files |= dict.fromkeys((file.artifact for file in files), None)
        gone = self._gone()
        if not files and not gone:
            return
        self._keep()
        self.files_left = len(files)
        try:
            for file in files:
                self._upload(store, file)
                self.files_left -= 1
            for artifact in gone:
                self._delete(store, artifact)
        finally:
            self._keep()

    def _upload(self, store: Store, file: _File) -> None:
        self._models_due |= file.into.startswith(CHECKPOINTS)
        try:
            if file.into in (EVALUATIONS, ESTIMATES):
                self._ask(log_evaluation, store, file.path)
            else:
                self._ask(upload_file, store.log_file, file.path, file.into)
            self._files[file.artifact] = file.stamp
            self.files += 1
        except StoreRefusedError as error:
            self._refused[file.artifact] = file.stamp
            self._warn(f"MLflow refused {file.artifact}: {error}.")

    def _gone(self) -> list[str]:
        """What was uploaded and has been deleted in the folder since.

        Only where something of its kind is left: a folder that is gone or was emptied by hand is
        no reason to delete its copy.
        """
        known = {tuple(name.split("/")[:2]) for name in self._files if name.startswith(_PRUNED)}
        known = {parts for parts in known if len(parts) == 2 and parts[1] != RANKING}
        kept = {parts for parts in known if self.folder.joinpath(*parts).exists()}
        kept |= {
            (area, name)
            for area, name in known
            if (self.folder / area / f"set-aside-{name}").exists()
        }
        areas = {area for area, _ in kept}
        return sorted("/".join(parts) for parts in known - kept if parts[0] in areas)

    def _delete(self, store: Store, artifact: str) -> None:
        area, _, name = artifact.partition("/")
        self._record(store.delete_folder, artifact)
        if area == CHECKPOINTS and self._models is not None:
            self._record(self._models.delete, name)
            self._models_due = True
        for known in [one for one in self._files if f"{one}/".startswith(f"{artifact}/")]:
            del self._files[known]

    def _bring_models(self) -> None:
        if self._models is None:
            self._models_due = False
        if self._models is None or not self._models_due:
            return
        try:
            if self._resumed_at is not None:
                self._ask(self._models.delete_after, self._resumed_at)
                self._resumed_at = None
            # Not of a checkpoint that is newer: it would not be known when it is deleted.
            for artifact in sorted(self._files):
                area, _, name = artifact.removesuffix(f"/{_MANIFEST}").partition("/")
                if area == CHECKPOINTS and artifact.endswith(f"{name}/{_MANIFEST}"):
                    self._ask(self._models.log, name)
                    self._logged.add(name)
            self._ask(self._models.mark)
        except StoreRefusedError as error:
            self._warn(f"MLflow refused models of this run: {error}.")
            # Said once.
            self._models = None
        self._models_due = False

    def _ask(self, request: Callable[..., object], *arguments: object) -> None:
        if self.given_up.is_set():
            raise StoreUnreachableError("it did not answer in time")
        request(*arguments)
        self.answered = time.monotonic()

    def _keep(self) -> None:
        # Without it, files are uploaded again.
        with contextlib.suppress(OSError):
            write_durably(self.folder / SYNCED, (json.dumps(self._files) + "\n").encode())


def counted(points: int, files: int) -> str:
    """`7 metric values and 1 file`, without what there is none of."""
    counts = ((points, "metric value"), (files, "file"))
    parts = [f"{n:,} {word}{'' if n == 1 else 's'}" for n, word in counts if n]
    return " and ".join(parts)


def files_of_run(folder: Path, *, with_replay: bool = False) -> Iterator[_File]:
    """The complete files of a run that belong into MLflow."""
    for pattern in _CONFIG:
        yield from _files(sorted(folder.glob(pattern)), "config")
    yield from _files([folder / "module.safetensors"], "module")
    yield from _files([folder / "report.html"], "")
    for name in _FOLDERS:
        if name != "replay" or with_replay:
            for file in sorted(files_in(folder / name)):
                first = file.relative_to(folder / name).parts[0]
                if not (is_unfinished(file) or first.startswith((".", "set-aside-"))):
                    yield from _files([file], file.parent.relative_to(folder).as_posix())


def _files(paths: Sequence[Path], into: str) -> Iterator[_File]:
    for path in paths:
        # It may be deleted meanwhile.
        with contextlib.suppress(OSError):
            status = path.stat()
            yield _File(path, into, [status.st_size, status.st_mtime_ns])
