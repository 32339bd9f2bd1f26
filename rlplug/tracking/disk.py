"""How much disk runs take, and removing them: folder, MLflow run and artifacts."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs

from rlplug.errors import RequestError
from rlplug.review.record import RunRecord
from rlplug.tracking.location import RUN, RunFolder, is_missing, tracking_uri, without_secrets
from rlplug.tracking.models import delete_model, models_of, versions_of
from rlplug.tracking.status import RUNNING, RunLock, is_elsewhere, known_models
from rlplug.tracking.store import asking, delete_files

PARTS = ("checkpoints", "replay", "videos", "artifacts", "other")
"""What takes disk; `artifacts` are MLflow's copies."""


@attrs.frozen(kw_only=True)
class Usage:
    """The bytes that a run takes on this disk, by its parts."""

    run: RunRecord
    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())


def usage_of(run: RunRecord, root: Path) -> Usage:
    """The sizes of a run's files; one that has several links counts once."""
    seen: set[tuple[int, int]] = set()
    parts = dict.fromkeys(PARTS, 0)
    for folder in _folders(run, root):
        for parent, _, names in os.walk(folder):
            for path in (Path(parent, name) for name in names):
                # A run that goes on deletes old checkpoints meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    status = path.lstat()
                    first = path.relative_to(folder).parts[0]
                    part = first if first in PARTS else "other"
                    if (status.st_dev, status.st_ino) not in seen:
                        seen.add((status.st_dev, status.st_ino))
                        parts[part if folder == run.folder else "artifacts"] += status.st_size
    return Usage(run=run, parts=parts)


def remove_run(run: RunRecord, root: Path) -> int:
    """Delete a run in MLflow with its artifacts, then its folder; returns the bytes freed.

    MLflow keeps metrics and tags of a deleted run until `mlflow gc`. If MLflow does not answer,
    nothing is removed.
    """
    before = usage_of(run, root).total
    with _not_in_progress(run):
        if run.experiment_id:
            known = None if run.folder is None else RunFolder.read(run.folder)
            uri = tracking_uri("", root) if known is None else known.tracking_uri("")
            if not is_missing(uri):
                _delete_tracked(uri, run.id_in_mlflow, run.experiment_id)
        if run.folder is not None:
            # Without it, what is left after a kill is no run, and is removed by `runs sync`.
            (run.folder / RUN).unlink(missing_ok=True)
    for folder in _folders(run, root):
        shutil.rmtree(folder, ignore_errors=True)
    return before - usage_of(run, root).total


def _delete_tracked(uri: str, run_id: str, experiment_id: str) -> None:
    """Delete a run and its artifacts in MLflow; one that was deleted there is no error."""
    failed = f"run {run_id} cannot be deleted in MLflow at {without_secrets(uri)}"
    with asking(uri, failed, "try: again later, or with the permission to delete it") as client:
        from mlflow.exceptions import MlflowException

        try:
            run = client.get_run(run_id)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return
            raise
        models = list(models_of(client, experiment_id, run_id))
        versions = [version for model in models for version in versions_of(client, model)]
        if versions:
            names = ", ".join(f"{version.name} version {version.version}" for version in versions)
            raise RequestError(
                f"run {run_id} has a model that is registered: {names}.",
                "try: delete the version in MLflow first, if nobody needs it",
            )
        delete_files(client, run.info.artifact_uri or "")
        for model in models:
            delete_model(client, model)
        if run.info.lifecycle_stage == "active":
            client.delete_run(run_id)


@contextlib.contextmanager
def _not_in_progress(run: RunRecord) -> Iterator[None]:
    """Refuse a run in progress; of other hosts, and of MLflow alone, the status is believed."""
    if run.folder is not None and not is_elsewhere(run.folder):
        with RunLock.take(run.folder):
            yield
        return
    if run.status in (RUNNING, "stale"):
        raise RequestError(
            f"run {run.run_id} ({run.name}) is in progress on another host, or died there.",
            "try: rlplug runs sync --force in its runs folder, if it has died",
        )
    yield


def _folders(run: RunRecord, root: Path) -> Sequence[Path]:
    """The folders with files of a run on this machine."""
    models = [] if run.folder is None else known_models(run.folder).values()
    folders = [
        *([] if run.folder is None else [run.folder]),
        *root.glob(f"artifacts/*/{run.run_id}"),
        root / "fetched" / run.run_id,
        *(place for name in models for place in root.glob(f"artifacts/*/models/{name}")),
    ]
    return [folder for folder in folders if folder.is_dir()]
