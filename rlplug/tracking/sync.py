"""Bring what is in the folder of a run to MLflow: doing it again has no effect.

`metrics.acked` is the byte up to which the journal is there, `synced.json` has the size and time of
each file that is. What a killed process or an outage kept from MLflow is what these do not name.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from rlplug.durable import is_unfinished, write_durably
from rlplug.errors import RequestError, RlplugError, RunFailedError
from rlplug.tracking.evaluations import ESTIMATES, EVALUATIONS, log_evaluation
from rlplug.tracking.journal import (
    JOURNAL,
    ROWS_PER_REQUEST,
    Row,
    acknowledge,
    acknowledged,
    read_journal,
    unsent,
)
from rlplug.tracking.location import RunFolder, read_object, runs_in
from rlplug.tracking.models import LoggedModels
from rlplug.tracking.opening import open_or_create
from rlplug.tracking.status import (
    RUNNING,
    RunLock,
    RunStatus,
    add_tags,
    end_dead,
    is_stale,
    kept_tags,
    milliseconds,
    status_now,
)
from rlplug.tracking.store import (
    CHECKPOINTS,
    PENDING_TAG,
    TAGS_OF_THE_END,
    Store,
    StoreError,
    translated,
)

SYNCED = "synced.json"
_END = ""
"""Stands in that file for the end of a run, whose status and tags are in MLflow."""
PROFILES = "profile"
RANKING = "README.md"
"""Among the checkpoints, says which of them is the best and which the last one."""
LIKE = "like.txt"
"""What differs from the run that a run is to be like."""
LEFTOVER_SECONDS = 3600
"""Age at which a temporary file belongs to nobody who is still at work."""

_CONFIG = ("config.toml", "config-*.toml", "provenance*.json", "working_tree*.diff", LIKE)
"""Files whose artifacts are in the folder `config`."""
_FOLDERS = (CHECKPOINTS, "replay", "videos", "plots", "logs", PROFILES, EVALUATIONS, ESTIMATES)
"""Checkpoints first: all blocks of `replay` that one of them names are listed after it."""
_PRUNED = (CHECKPOINTS, "replay", "videos")
"""Folders in which a run deletes what is old: nothing else is ever deleted in MLflow."""
_LONGEST_WAIT = 16.0
"""Seconds after which `rlplug runs sync` gives a store up that takes nothing more."""


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

    Without a `store`, as MLflow does not answer, only `missing` can be asked.
    """

    def __init__(
        self,
        folder: Path,
        store: Store | None,
        warn: Callable[[str], None],
        *,
        with_replay: bool = False,
    ) -> None:
        self.folder = folder
        self._store = store
        self._warn = warn
        self._with_replay = with_replay
        self._models = None if store is None else LoggedModels(store, folder)
        self._models_due = True
        self._files: dict[str, Any] = read_object(folder / SYNCED)
        """Artifact → stamp; None: it was being uploaded. `_END` → when the run ended."""
        self._tags: dict[str, str] = {}
        self._end = acknowledged(folder)
        """The byte up to which the journal is in MLflow."""
        self._ended = False
        """Whether MLflow has all of a run that has ended."""
        self.files_left = 0
        self.points = self.files = 0
        """What this process has brought."""
        self.rescued = 0
        """Metric values that are in MLflow, and not in the journal."""
        self.answered = time.monotonic()
        """When a request was last answered."""
        self.given_up = threading.Event()
        """Set by a thread that does not wait any longer."""

    @translated()
    def bring(self, unwritten: list[Row]) -> None:
        """Bring what is missing, with rows that are not in the journal, or raise `StoreError`."""
        store = self._store
        if store is None:
            return
        status = RunStatus.read(self.folder) or RunStatus()
        is_over = status.status != RUNNING
        tags = {**kept_tags(self.folder), **({PENDING_TAG: "true"} if is_over else {})}
        if tags != self._tags:
            self._ask(store.set_tags, tags)
            if is_over:
                for name in (TAGS_OF_THE_END & {*store.tags}) - {*tags}:
                    self._ask(store.delete_tag, name)
                self._ask(store.terminate, status.status, milliseconds(status.ended))
                self._files[_END] = status.ended
                self._keep()
            self._tags = tags
        for rows, end in unsent(self.folder, self._end):
            self._ask(store.log_rows, rows)
            self.points += len(rows)
            self._end = end
            # Without it, the same points would be sent again, which has no effect.
            with contextlib.suppress(OSError):
                acknowledge(self.folder, end)
        while self.rescued < len(unwritten):
            rows = unwritten[self.rescued : self.rescued + ROWS_PER_REQUEST]
            self._ask(store.log_rows, rows)
            self.rescued += len(rows)
        self._bring_files(store)
        self._bring_models()
        if is_over and not self._ended:
            # The log of the run has what was said meanwhile.
            self._bring_files(store)
            self._ask(store.delete_tag, PENDING_TAG)
            self._ended = True

    def end(self) -> None:
        """Bring how the run has ended, and nothing else."""
        status = RunStatus.read(self.folder) or RunStatus()
        if self._store is not None:
            self._store.terminate(status.status, milliseconds(status.ended))
            self._store.set_tags({**kept_tags(self.folder), PENDING_TAG: "true"})

    @property
    def progress(self) -> int:
        """Grows with what is in MLflow for good."""
        return self.points + self.files + (0 if self._models is None else self._models.logged)

    def missing(self) -> str:
        """What is not in MLflow, in words; empty if everything is."""
        points = 0
        with contextlib.suppress(OSError):
            reports = read_journal(self.folder / JOURNAL, self._end)
            points = sum(len(report.metrics) for report in reports)
        files = len(self._missing_files())
        if points or files or self._ended:
            return counted(points, files)
        status = RunStatus.read(self.folder) or RunStatus()
        knows_end = self._files.get(_END) == status.ended
        return "models of its checkpoints" if knows_end else "the final status and tags"

    def _missing_files(self) -> list[_File]:
        """What is not in MLflow, manifests last."""
        files = [
            file
            for file in files_of_run(self.folder, with_replay=self._with_replay)
            if self._files.get(file.artifact) != file.stamp
        ]
        return sorted(files, key=lambda file: file.path.name == "manifest.json")

    def _bring_files(self, store: Store) -> None:
        files, gone = self._missing_files(), self._gone()
        if not files and not gone:
            return
        # First of all: what a killed process has uploaded has to be known when it is deleted.
        self._files |= dict.fromkeys((file.artifact for file in files), None)
        self._keep()
        self.files_left = len(files)
        try:
            for file in files:
                self._upload(store, file)
                self.files_left -= 1
            for artifact in gone:
                self._ask(store.delete_folder, artifact)
                self._models_due |= artifact.startswith(CHECKPOINTS)
                self._files = {
                    name: stamp
                    for name, stamp in self._files.items()
                    if not f"{name}/".startswith(f"{artifact}/")
                }
        finally:
            self._keep()

    def _upload(self, store: Store, file: _File) -> None:
        bring = log_evaluation if file.into in (EVALUATIONS, ESTIMATES) else Store.log_file
        try:
            self._ask(bring, store, file.path, file.into)
        except StoreError:
            # It may have been deleted in the meantime.
            if file.path.exists():
                raise
        self._models_due |= file.path.name == "manifest.json"
        self._files[file.artifact] = file.stamp
        self.files += 1

    def _gone(self) -> list[str]:
        """What was uploaded and has been deleted in the folder since.

        Only where something of its kind is left: a folder that is gone or was emptied by hand is
        no reason to delete its copy.
        """
        known = {tuple(name.split("/")[:2]) for name in self._files if name.startswith(_PRUNED)}
        known = {parts for parts in known if len(parts) == 2 and parts[1] != RANKING}
        kept = {
            (area, name)
            for area, name in known
            if (self.folder / area / name).exists()
            or (self.folder / area / f"set-aside-{name}").exists()
        }
        areas = {area for area, _ in kept}
        return sorted("/".join(parts) for parts in known - kept if parts[0] in areas)

    def _bring_models(self) -> None:
        if self._models is not None and self._models_due:
            try:
                self._ask(self._models.bring)
            except StoreError as error:
                if not error.refused:
                    raise
                # MLflow 2 has none.
                self._warn(f"MLflow refused models of this run: {error}.")
                self._models = None
        self._models_due = False

    def _ask(self, request: Callable[..., Any], *arguments: object) -> Any:
        if self.given_up.is_set():
            raise StoreError("it did not answer in time")
        answer = request(*arguments)
        self.answered = time.monotonic()
        return answer

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
    for name in _FOLDERS if with_replay else [name for name in _FOLDERS if name != "replay"]:
        inside = (Path(place, one) for place, _, names in os.walk(folder / name) for one in names)
        for file in sorted(inside):
            first = file.relative_to(folder / name).parts[0]
            if not (is_unfinished(file) or first.startswith((".", "set-aside-"))):
                yield from _files([file], file.parent.relative_to(folder).as_posix())


def _files(paths: Sequence[Path], into: str) -> Iterator[_File]:
    for path in paths:
        # It may be deleted meanwhile.
        with contextlib.suppress(OSError):
            status = path.stat()
            yield _File(path, into, [status.st_size, status.st_mtime_ns])


# -- `rlplug runs sync`: end runs that died, and bring what they lack to MLflow --------------------


@attrs.frozen(kw_only=True)
class Synced:
    """What was done for one run."""

    run_id: str
    run_name: str
    status: str
    step: int
    died: bool
    """Whether its process had died, which nothing said yet."""
    points: int = 0
    files: int = 0
    created: str = ""
    """Its id in MLflow, if it was created there now."""
    missing: str = ""
    """What is not in MLflow, in words."""
    problem: RlplugError | None = None
    """Why."""


def sync_all(root: Path, warn: Callable[[str], None], *, force: bool = False) -> Iterator[Synced]:
    """Sync the runs of a runs folder that have died or lack something in MLflow.

    With `force`, also stale ones of other hosts, whose locks may not be visible here.
    """
    for run in runs_in(root):
        status = status_now(run.path)
        is_over = status is not None and status.status != RUNNING and status.pending
        if is_over or (force and is_stale(run.path)):
            yield sync_run(run, warn)


def sync_run(run: RunFolder, warn: Callable[[str], None]) -> Synced:
    """End a run if it has died, and bring what is missing to MLflow."""
    with RunLock.take(run.path):
        status, died = end_dead(run.path)
        done = Synced(
            run_id=run.run_id,
            run_name=run.run_name,
            status=status.status,
            step=status.step,
            died=died,
        )
        if run.is_tracked:
            stopped = {"rlplug.stop_reason": status.stop_reason}
            add_tags(run.path, {**stopped, "rlplug.stopped_at_step": str(status.step)})
            done = _brought(run, done, warn)
        attrs.evolve(status, pending=bool(done.missing)).write(run.path)
        return done


def _brought(run: RunFolder, done: Synced, warn: Callable[[str], None]) -> Synced:
    """Bring everything, again and again until nothing more comes."""
    options: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        options = tomllib.loads((run.path / "config.toml").read_text())
    uri = str(options.get("tracking", {}).get("uri", ""))
    with_replay = options.get("checkpoint", {}).get("upload_replay") is True
    sync = Sync(run.path, None, warn, with_replay=with_replay)
    created, problem = "", None
    try:
        now, store = open_or_create(run, run.tracking_uri("" if "***" in uri else uri))
        created = "" if run.experiment_id else store.run_id
        sync, wait = Sync(now.path, store, warn, with_replay=with_replay), 1.0
        while True:
            before = sync.progress
            try:
                sync.bring([])
                break
            except StoreError as error:
                wait = 1.0 if sync.progress > before else 2 * wait
                if error.refused or wait > _LONGEST_WAIT:
                    raise
                time.sleep(wait)
    except (RequestError, StoreError) as error:
        reason = getattr(error, "message", str(error)).rstrip(".")
        problem = RunFailedError(f"MLflow did not take all of run {run.run_id}: {reason}.")
    return attrs.evolve(
        done,
        points=sync.points,
        files=sync.files,
        created=created,
        missing=sync.missing(),
        problem=problem,
    )


def remove_leftovers(root: Path) -> None:
    """Remove what processes that were killed left half-made in a runs folder."""
    made = (folder for folder in root.glob("work/*/") if not (folder / "run.json").exists())
    for path in [*root.glob("work/.coming-*"), *made]:
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > LEFTOVER_SECONDS:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
