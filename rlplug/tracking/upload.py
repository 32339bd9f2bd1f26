"""Upload what is in the folder of an ended run and not in MLflow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from itertools import accumulate
from pathlib import Path

import attrs

from rlplug.errors import RequestError
from rlplug.tracking.artifacts import CHECKPOINTS, files_in, upload_file
from rlplug.tracking.evaluations import EVALUATIONS, log_evaluation
from rlplug.tracking.failures import StoreRefusedError, StoreUnreachableError
from rlplug.tracking.journal import Journal, recorded_in
from rlplug.tracking.location import RunFolder
from rlplug.tracking.provenance import LIKE
from rlplug.tracking.status import RUNNING, Pending, RunStatus, kept_tags
from rlplug.tracking.store import PENDING_TAG, Store
from rlplug.tracking.writer import Writer

__all__ = ["Uploaded", "upload_run"]

PATIENCE = 24 * 3600.0
"""Seconds: a large upload may take long, and ends early if nothing is answered."""

_CHANGING = ("plots", "logs")
_FIXED = ("videos", EVALUATIONS, CHECKPOINTS)
"""Folders whose files never change once they are complete."""

_OF_CONFIG = (
    "config.toml",
    "config-*.toml",
    "provenance*.json",
    "working_tree*.diff",
    LIKE,
)
"""Files whose artifacts are in the folder `config`."""

_MANIFEST = "manifest.json"


@attrs.frozen(kw_only=True)
class Uploaded:
    """What was uploaded, and what is still missing."""

    points: int
    files: int
    left: Pending


def upload_run(
    folder: Path, warn: Callable[[str], None], *, most: float = float("inf")
) -> Uploaded:
    """Upload metrics, files, tags and the status; the caller holds the lock of the folder.

    No files are uploaded beyond `most` bytes. Raises if MLflow cannot be asked.
    """
    run, status = RunFolder.read(folder), RunStatus.read(folder)
    if run is None or status is None or status.status == RUNNING:
        raise RequestError(
            f"{folder} is not the folder of an ended run.", "try: rlplug runs, which lists runs"
        )
    if not run.experiment_id:
        raise RequestError(
            f"run {run.run_id} ({run.run_name}) was started without MLflow.",
            f"look at it: {folder / 'plots' / 'learning_curve.png'}",
        )
    store = Store.open_run(run.tracking_uri(_option(folder)), run.run_id)
    try:
        missing = list(_missing(folder, store))
        room = accumulate(file.stat().st_size for file, _ in missing)
        chosen = [one for one, size in zip(missing, room, strict=True) if size <= most]
    except (StoreRefusedError, StoreUnreachableError, OSError) as error:
        raise RequestError(
            f"MLflow cannot be asked for the files of run {run.run_id}: {error}.",
            "try: again later",
        ) from error
    journal = Journal(folder)
    try:
        recorded = recorded_in(journal.path, journal.acknowledged, {})
        writer = Writer(journal, store, warn, recorded)
        points = writer.pending.points
        tags = {
            **kept_tags(folder),
            "rlplug.stop_reason": status.stop_reason,
            "rlplug.stopped_at_step": str(status.step),
            PENDING_TAG: "true",
        }
        writer.do(store.remove_leftovers)
        writer.do(partial(store.set_tags, tags))
        writer.do(partial(store.terminate, status.status, milliseconds(status.ended)))
        for file, into in chosen:
            writer.do(partial(_log, store, file, into), files=[file])
        if len(chosen) == len(missing):
            writer.do(partial(_complete, writer, store))
        writer.start()
        writer.close(lambda: None, PATIENCE)
        left = writer.pending
        uploaded = Uploaded(
            points=points - left.points,
            files=len(chosen) - left.artifacts,
            left=attrs.evolve(left, artifacts=left.artifacts + len(missing) - len(chosen)),
        )
    finally:
        with contextlib.suppress(OSError):
            journal.close()
    attrs.evolve(status, pending=uploaded.left).write(folder)
    return uploaded


def milliseconds(moment: str) -> int | None:
    """The milliseconds since the epoch of a time as `status.json` has it."""
    try:
        return int(datetime.strptime(moment, "%Y-%m-%dT%H:%M:%S%z").timestamp() * 1000)
    except ValueError:
        return None


def _missing(folder: Path, store: Store) -> Iterator[tuple[Path, str]]:
    """The files that are to be uploaded, each with its folder there, manifests last."""
    for pattern in _OF_CONFIG:
        for file in sorted(folder.glob(pattern)):
            yield file, "config"
    if (folder / "module.safetensors").is_file():
        yield folder / "module.safetensors", "module"
    for name in _CHANGING:
        for file in sorted(files_in(folder / name)):
            yield file, name
    for name in _FIXED:
        there = store.files(name) if (folder / name).is_dir() else {}
        parts = [one for one in files_in(folder / name) if not _is_unfinished(one, folder / name)]
        for file in sorted(parts, key=lambda one: (one.name == _MANIFEST, str(one))):
            path = file.relative_to(folder)
            if there.get(path.as_posix()) != file.stat().st_size:
                yield file, path.parent.as_posix()


def _is_unfinished(file: Path, folder: Path) -> bool:
    return file.relative_to(folder).parts[0].startswith(".")


def _log(store: Store, file: Path, into: str) -> None:
    if into == "config" and file.name == "config.toml":
        store.log_text(file.read_text(), "config/resolved.toml")
    elif into == EVALUATIONS:
        log_evaluation(store, file)
    else:
        upload_file(store.log_file, file, into)


def _complete(writer: Writer, store: Store) -> None:
    if not writer.pending.artifacts:
        store.delete_tag(PENDING_TAG)


def _option(folder: Path) -> str:
    """The tracking URI among the options of a run, unless its password was left out."""
    import tomllib

    try:
        uri = tomllib.loads((folder / "config.toml").read_text())["tracking"]["uri"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return uri if isinstance(uri, str) and "***" not in uri else ""
