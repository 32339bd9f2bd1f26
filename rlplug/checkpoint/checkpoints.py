"""Checkpoints of a run: written atomically and in the background, the oldest deleted."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from rlplug.checkpoint.manifest import (
    CONFIG,
    MANIFEST,
    POLICY,
    REPLAY,
    STEPS,
    TRAINING,
    Manifest,
    best_of,
    manifests_in,
    read_manifest,
    step_name,
)
from rlplug.checkpoint.replay_files import ReplayCopy, ReplayFiles
from rlplug.checkpoint.trust import signed
from rlplug.durable import sync_all, sync_folder, write_content
from rlplug.feeds import OpenFeed
from rlplug.trees import write_tree

_UNFINISHED = ".unfinished-"


@attrs.frozen(kw_only=True, eq=False)
class Snapshot:
    """All that one checkpoint will hold, in memory of its own."""

    manifest: Manifest
    config: str
    policy: Mapping[str, Any]
    training: Mapping[str, Any]
    replay: ReplayCopy | None = None


@attrs.frozen(eq=False)
class Committed:
    """What became of a checkpoint."""

    step: int
    path: Path | None
    """Its folder; None if it could not be written."""
    error: BaseException | None


@attrs.define(eq=False)
class Checkpoints:
    """Writes checkpoints into one folder; a crash at any time leaves earlier ones intact.

    The latest `keep` are kept, the `keep_best` with the best evaluations, and for ever the first
    one after every multiple of `keep_every` steps; replay buffers only of the latest.
    `before_commit` is called before a checkpoint counts: what a resumed run will not report again
    has to be on the disk by then.
    """

    folder: Path
    keep: int
    keep_best: int = 1
    keep_every: int = 0
    before_commit: Callable[[], None] = lambda: None
    _replay: ReplayFiles = attrs.field(init=False)
    _thread: threading.Thread | None = attrs.field(init=False, default=None)
    _committed: list[Committed] = attrs.field(init=False, factory=list)

    def __attrs_post_init__(self) -> None:
        self._replay = ReplayFiles(self.folder.parent / REPLAY)
        self.folder.mkdir(parents=True, exist_ok=True)
        for leftover in self.folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def copy_replay(self, feed: OpenFeed) -> ReplayCopy | None:
        """A copy of the feed's rows that no checkpoint has yet; None if it has no rows."""
        self._wait()
        return self._replay.copy(feed)

    def start(self, snapshot: Snapshot) -> None:
        """Write a checkpoint in the background, after the one before, which is waited for.

        So there is never more than one snapshot in memory.
        """
        self._wait()
        self._thread = threading.Thread(
            target=self._commit, args=[snapshot], name="rlplug-checkpoint", daemon=True
        )
        self._thread.start()

    def finished(self, *, wait: bool = False, seconds: float | None = None) -> list[Committed]:
        """What became of checkpoints since the last call; with `wait`, of all, if in time."""
        if wait:
            self._wait(seconds)
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
        committed, self._committed = self._committed, []
        return committed

    def resume_from(self, checkpoint: Path, *, replay: bool = True) -> list[str]:
        """Go on from a checkpoint; rows are not saved anew if its `replay` buffer was restored.

        Later ones, which are damaged or of a course that the run does not take, are set aside
        under other names, which are returned.
        """
        self._wait()
        files = read_manifest(checkpoint).replay
        if files and replay:
            self._replay.resume_from(files)
        aside = []
        for later in sorted(self.folder.glob(STEPS)):
            if later.name > checkpoint.name:
                aside.append(f"set-aside-{later.name}")
                shutil.rmtree(self.folder / aside[-1], ignore_errors=True)
                later.rename(self.folder / aside[-1])
        sync_folder(self.folder)
        return aside

    def _wait(self, seconds: float | None = None) -> None:
        if self._thread is not None:
            self._thread.join(seconds)

    def _commit(self, snapshot: Snapshot) -> None:
        """Write and prune; whatever is raised is told to the run."""
        path = raised = None
        try:
            path = self._write(snapshot)
            self._prune()
        except BaseException as error:
            raised = error
        self._committed.append(Committed(snapshot.manifest.step, path, raised))

    def _write(self, snapshot: Snapshot) -> Path:
        """Write a checkpoint, the manifest last, then rename it into place."""
        path = self.folder / step_name(snapshot.manifest.step)
        partial = self.folder / f"{_UNFINISHED}{path.name}-{os.getpid()}"
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir()
            rows = None if snapshot.replay is None else self._replay.write(snapshot.replay)
            files: dict[str, str] = {}
            state = hashlib.sha256()
            for part, tree in ((POLICY, snapshot.policy), (TRAINING, snapshot.training)):
                written = write_tree(partial / part, tree)
                files.update({f"{part}/{name}": digest for name, digest in written.files.items()})
                state.update(written.content)
            files[CONFIG] = write_content(partial / CONFIG, snapshot.config.encode())
            manifest = attrs.evolve(
                snapshot.manifest,
                files=files,
                replay={} if rows is None else rows.files,
                state_digest=state.hexdigest(),
            )
            write_content(partial / MANIFEST, signed(manifest).content())
            sync_all([partial / name for name in (*files, MANIFEST, POLICY, TRAINING, ".")])
            self.before_commit()
            # A run that goes on from an earlier checkpoint comes to this step again.
            old = path.rename(_aside(path)) if path.exists() else None
            partial.rename(path)
            if old is not None:
                shutil.rmtree(old, ignore_errors=True)
            sync_folder(self.folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            with contextlib.suppress(OSError):
                # The disk may be full of them.
                self._delete_rows(manifests_in(self.folder)[0])
            raise
        if rows is not None:
            self._replay.known = rows
        return path

    def _prune(self) -> None:
        """Delete what is not kept; what cannot be read is not counted, and left to the person."""
        manifests, _ = manifests_in(self.folder)
        kept = {*best_of(manifests, self.keep_best), *list(manifests)[-self.keep :]}
        if self.keep_every:
            # The first one after each multiple: those before it are overwritten by it.
            backwards = reversed(manifests.items())
            first = {manifest.step // self.keep_every: path for path, manifest in backwards}
            kept |= {path for reached, path in first.items() if reached}
        for path in manifests:
            if path not in kept:
                # Renamed first, so that a half-deleted one is not taken for a checkpoint.
                with contextlib.suppress(OSError):
                    shutil.rmtree(path.rename(_aside(path)), ignore_errors=True)
        self._delete_rows(manifests)

    def _delete_rows(self, manifests: Mapping[Path, Manifest]) -> None:
        """Delete the files of the replay buffer that none of the latest checkpoints refers to.

        A run goes on from one of those; each older one would take as much space as a whole buffer.
        """
        latest = list(manifests.values())[-self.keep :]
        needed = {name for manifest in latest for name in manifest.replay}
        self._replay.delete_all_but(needed)


def _aside(path: Path) -> Path:
    """Where a checkpoint is put until it is deleted; nothing is there."""
    aside = path.with_name(f"{_UNFINISHED}{path.name}-old")
    shutil.rmtree(aside, ignore_errors=True)
    return aside
