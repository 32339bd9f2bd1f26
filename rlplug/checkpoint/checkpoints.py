"""Checkpoints of a run: written atomically and in the background, the oldest deleted."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import attrs

from rlplug.checkpoint.manifest import (
    CONFIG,
    MANIFEST,
    POLICY,
    REPLAY,
    TRAINING,
    Manifest,
    best_in,
    checkpoints_in,
    read_manifest,
    step_name,
)
from rlplug.checkpoint.replay_files import ReplayCopy, ReplayFiles
from rlplug.durable import sync_all, sync_folder, write_content
from rlplug.errors import RequestError
from rlplug.trees import write_tree

if TYPE_CHECKING:
    from torch import nn

    from rlplug.feeds import OpenFeed

__all__ = ["Checkpoints", "Committed", "Snapshot", "save_module"]

_UNFINISHED = ".unfinished-*"


@attrs.frozen(kw_only=True, eq=False)
class Snapshot:
    """All that one checkpoint will hold, in memory of its own."""

    manifest: Manifest
    config: str
    policy: Mapping[str, Any]
    training: Mapping[str, Any]
    replay: ReplayCopy | None = None


@attrs.frozen(kw_only=True, eq=False)
class Committed:
    """What became of a checkpoint."""

    step: int
    path: Path | None = None
    """Its folder; None if it could not be written."""
    error: BaseException | None = None
    replay: tuple[Path, ...] = ()
    """New files of the replay buffer."""
    deleted: tuple[str, ...] = ()
    """The names of checkpoints that are not kept any more."""
    deleted_replay: tuple[str, ...] = ()


class Checkpoints:
    """Writes checkpoints into one folder; a crash at any time leaves earlier ones intact.

    The latest `keep` are kept, the `keep_best` with the best evaluations, and for ever the first
    one after every multiple of `keep_every` steps; replay buffers only of the latest.
    `before_commit` is called before a checkpoint counts: what a resumed run will not report again
    has to be on the disk by then; `before_deletion` with the name of one that is to be deleted.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        *,
        keep_best: int = 1,
        keep_every: int = 0,
        before_commit: Callable[[], None] = lambda: None,
        before_deletion: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.folder = folder
        self._before_commit = before_commit
        self._before_deletion = before_deletion
        self._keep = keep
        self._keep_best = keep_best
        self._keep_every = keep_every
        self._replay = ReplayFiles(folder.parent / REPLAY)
        self._thread: threading.Thread | None = None
        self._done: SimpleQueue[Committed] = SimpleQueue()
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(_UNFINISHED):
            shutil.rmtree(leftover, ignore_errors=True)

    # -- in the background ---------------------------------------------------------------------

    def copy_replay(self, feed: OpenFeed) -> ReplayCopy | None:
        """A copy of the feed's rows that no checkpoint has yet; None if it has no rows."""
        self._join()
        return self._replay.copy(feed)

    def start(self, snapshot: Snapshot) -> None:
        """Write a checkpoint in the background, after the one before, which is waited for.

        So there is never more than one snapshot in memory.
        """
        self._join()
        self._thread = threading.Thread(
            target=self._commit, args=[snapshot], name="rlplug-checkpoint", daemon=True
        )
        self._thread.start()

    @property
    def is_writing(self) -> bool:
        """Whether there is one whose end `finished` has not told."""
        return self._thread is not None

    def finished(self, *, wait: bool = False, seconds: float | None = None) -> list[Committed]:
        """What became of checkpoints since the last call; with `wait`, of all, if in time."""
        if self._thread is not None:
            if wait:
                self._thread.join(seconds)
            if not self._thread.is_alive():
                self._thread = None
        found = []
        while True:
            try:
                found.append(self._done.get_nowait())
            except Empty:
                return found

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _commit(self, snapshot: Snapshot) -> None:
        """Write, prune, and say so; whatever is raised is told to the run, too."""
        step, path = snapshot.manifest.step, None
        new: tuple[Path, ...] = ()
        try:
            path, new = self._write(snapshot)
            deleted, rows = self._prune()
        except BaseException as error:
            self._done.put(Committed(step=step, path=path, error=error, replay=new))
        else:
            self._done.put(
                Committed(
                    step=step,
                    path=path,
                    replay=new,
                    deleted=tuple(deleted),
                    deleted_replay=tuple(rows),
                )
            )

    # -- at once -------------------------------------------------------------------------------

    def write(self, snapshot: Snapshot) -> Path:
        """Write a checkpoint, the manifest last, then rename it into place."""
        self._join()
        return self._write(snapshot)[0]

    def prune(self) -> list[str]:
        """Delete checkpoints that are not kept, and return their names."""
        self._join()
        return self._prune()[0]

    def resume_from(self, checkpoint: Path, *, replay: bool = True) -> list[str]:
        """Go on from a checkpoint; rows are not saved anew if its `replay` buffer was restored.

        Later ones, which are damaged or of a course that the run does not take, are set aside
        under other names, which are returned.
        """
        self._join()
        files = read_manifest(checkpoint).replay
        if files and replay:
            self._replay.resume_from(files)
        aside = []
        for later in self.folder.glob("step-*"):
            if later.name > checkpoint.name:
                name = f"set-aside-{later.name}"
                shutil.rmtree(self.folder / name, ignore_errors=True)
                later.rename(self.folder / name)
                aside.append(name)
        sync_folder(self.folder)
        return sorted(aside)

    def _write(self, snapshot: Snapshot) -> tuple[Path, tuple[Path, ...]]:
        """The checkpoint's folder, and new files of the replay buffer."""
        step = snapshot.manifest.step
        path = self.folder / step_name(step)
        partial = self.folder / f".unfinished-{path.name}-{os.getpid()}"
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir()
            written = None if snapshot.replay is None else self._replay.write(snapshot.replay)
            files: dict[str, str] = {}
            state = hashlib.sha256(b"" if written is None else written.content)
            for part, tree in ((POLICY, snapshot.policy), (TRAINING, snapshot.training)):
                found = write_tree(partial / part, tree)
                files.update({f"{part}/{name}": digest for name, digest in found.files.items()})
                state.update(found.content)
            files[CONFIG] = write_content(partial / CONFIG, snapshot.config.encode())
            manifest = attrs.evolve(
                snapshot.manifest,
                files=files,
                replay={} if written is None else written.files,
                state_digest=state.hexdigest(),
            )
            write_content(partial / MANIFEST, manifest.content())
            sync_all([partial / name for name in (*files, MANIFEST, POLICY, TRAINING, ".")])
            self._before_commit()
            self._replace(partial, path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            with contextlib.suppress(OSError):
                # The disk may be full of them.
                self._delete_rows()
            raise
        if written is None:
            return path, ()
        self._replay.committed(written)
        return path, tuple(self._replay.folder / name for name in written.new)

    def _replace(self, partial: Path, path: Path) -> None:
        if path.exists():
            # A run that goes on from an earlier checkpoint comes to this step again.
            old = self.folder / f".unfinished-{path.name}-old"
            shutil.rmtree(old, ignore_errors=True)
            path.rename(old)
            partial.rename(path)
            shutil.rmtree(old, ignore_errors=True)
        else:
            partial.rename(path)
        sync_folder(self.folder)

    def _prune(self) -> tuple[list[str], list[str]]:
        """The names of deleted checkpoints, and of deleted files of the replay buffer."""
        found = self._readable()
        paths = list(found)
        kept = {*best_in(paths, self._keep_best), *paths[-self._keep :]}
        if self._keep_every:
            # The first one after each multiple.
            reached = 0
            for one, manifest in found.items():
                if manifest.step // self._keep_every > reached:
                    reached = manifest.step // self._keep_every
                    kept.add(one)
        gone = [one for one in paths if one not in kept]
        for one in gone:
            # Renamed first, so that a half-deleted one is not taken for a checkpoint.
            aside = one.with_name(f".unfinished-{one.name}-old")
            self._before_deletion(one.name)
            with contextlib.suppress(OSError):
                one.rename(aside)
                shutil.rmtree(aside, ignore_errors=True)
        return [one.name for one in gone], self._delete_rows()

    def _delete_rows(self) -> list[str]:
        """Delete the files of the replay buffer that none of the latest checkpoints refers to.

        A run goes on from one of those; each older one would take as much space as a whole buffer.
        """
        latest = list(self._readable().values())[-self._keep :]
        needed = {name for manifest in latest for name in manifest.replay}
        return self._replay.delete_all_but(needed)

    def _readable(self) -> dict[Path, Manifest]:
        """The checkpoints; one that cannot be read is not counted, and left to the person."""
        found = {}
        for one in checkpoints_in(self.folder):
            with contextlib.suppress(RequestError):
                found[one] = read_manifest(one)
        return found


def save_module(module: nn.Module, folder: Path) -> Path:
    """Write the module's parameters and buffers to `module.safetensors`, atomically."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path = folder / "module.safetensors"
    partial = path.with_suffix(".tmp")
    tensors = {}
    first: dict[tuple[Any, ...], str] = {}
    shared = {}
    for name, tensor in module.state_dict().items():
        place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and first.setdefault(place, name) != name:
            # As in files of safetensors.torch.save_model.
            shared[name] = first[place]
        else:
            # On a GPU the weights of an LSTM are parts of one storage, which would be refused.
            tensors[name] = tensor.cpu().clone().contiguous()
    try:
        save_file(tensors, str(partial), metadata={"format": "pt", **shared})
    except SafetensorError as error:
        # What safetensors raises for a full disk.
        raise OSError(str(error)) from error
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)
    return path
