"""Upload what is in the folder of an ended run and not in MLflow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from pathlib import Path

import attrs

from rlplug.durable import is_unfinished
from rlplug.errors import RequestError
from rlplug.tracking.artifacts import CHECKPOINTS, PROFILES, RANKING, files_in, upload_file
from rlplug.tracking.deletions import delete_again
from rlplug.tracking.evaluations import ESTIMATES, EVALUATIONS, log_evaluation
from rlplug.tracking.failures import StoreRefusedError, StoreUnreachableError
from rlplug.tracking.journal import Journal, recorded_in
from rlplug.tracking.location import RunFolder
from rlplug.tracking.models import LoggedModels
from rlplug.tracking.outage import open_or_create
from rlplug.tracking.provenance import LIKE
from rlplug.tracking.status import RUNNING, Pending, RunStatus, kept_tags, milliseconds
from rlplug.tracking.store import PENDING_TAG, TAGS_OF_THE_END, Store
from rlplug.tracking.writer import Writer

__all__ = ["Uploaded", "files_to_upload", "upload_missing", "upload_run"]

PATIENCE = 24 * 3600.0
"""Seconds: a large upload may take long, and ends early if nothing is answered."""

_CHANGING = ("plots", "logs")
_FIXED = ("videos", PROFILES, EVALUATIONS, ESTIMATES, CHECKPOINTS)
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
    created: str = ""
    """Its id in MLflow, if it was created there now."""


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
    if not run.is_tracked:
        raise RequestError(
            f"run {run.run_id} ({run.run_name}) was started without MLflow.",
            f"look at it: {folder / 'plots' / 'learning_curve.png'}",
        )
    is_new = not run.experiment_id
    run, store = open_or_create(run, run.tracking_uri(_option(folder)))
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
    models = LoggedModels(store, folder)
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
        writer.do(partial(delete_again, store, models, folder))
        for name in (TAGS_OF_THE_END & {*store.tags}) - {*tags}:
            writer.do(partial(store.delete_tag, name))
        writer.do(partial(store.set_tags, tags))
        writer.do(partial(store.terminate, status.status, milliseconds(status.ended)))
        for file, into in chosen:
            writer.do(partial(_log, store, file, into), files=[file])
        if len(chosen) == len(missing):
            writer.do(models.log_all)
            writer.do(partial(_complete, writer, store))
        writer.start()
        writer.close(lambda: None, PATIENCE)
        left = writer.pending
        uploaded = Uploaded(
            points=points - left.points,
            files=len(chosen) - left.artifacts,
            left=attrs.evolve(left, artifacts=left.artifacts + len(missing) - len(chosen)),
            created=store.run_id if is_new else "",
        )
    finally:
        with contextlib.suppress(OSError):
            journal.close()
    attrs.evolve(status, pending=uploaded.left).write(folder)
    return uploaded


def files_to_upload(folder: Path) -> Iterator[tuple[Path, str]]:
    """The files that belong into MLflow, each with its folder there, manifests last."""
    for pattern in _OF_CONFIG:
        for file in sorted(folder.glob(pattern)):
            yield file, "config"
    if (folder / "module.safetensors").is_file():
        yield folder / "module.safetensors", "module"
    if (folder / "report.html").is_file():
        yield folder / "report.html", ""
    for name in _CHANGING:
        for file in sorted(one for one in files_in(folder / name) if not is_unfinished(one)):
            yield file, name
    for name in _FIXED:
        parts = [one for one in files_in(folder / name) if not _is_aside(one, folder / name)]
        for file in sorted(parts, key=lambda one: (one.name == _MANIFEST, str(one))):
            yield file, file.parent.relative_to(folder).as_posix()


def upload_missing(store: Store, models: LoggedModels, folder: Path) -> None:
    """Upload checkpoints, models and videos that an earlier process of the run did not upload."""
    for file, into in _missing(folder, store):
        if into.partition("/")[0] in _FIXED:
            _log(store, file, into)
    models.log_all()


def _missing(folder: Path, store: Store) -> Iterator[tuple[Path, str]]:
    """The files that are not in MLflow, or may be others there."""
    there: dict[str, int] = {}
    for name in _FIXED:
        if (folder / name).is_dir():
            there |= store.files(name)
    for file, into in files_to_upload(folder):
        fixed = into.partition("/")[0] in _FIXED and file.name != RANKING
        if not fixed or there.get(f"{into}/{file.name}") != _size(file):
            yield file, into


def _size(file: Path) -> int:
    """0 if it was deleted meanwhile."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _is_aside(file: Path, folder: Path) -> bool:
    """Whether it is unfinished or of an unfinished checkpoint, or was set aside."""
    return is_unfinished(file) or file.relative_to(folder).parts[0].startswith((".", "set-aside-"))


def _log(store: Store, file: Path, into: str) -> None:
    if into in (EVALUATIONS, ESTIMATES):
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
