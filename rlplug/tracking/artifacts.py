"""Upload and download of artifact folders, safe against incomplete ones."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rlplug.tracking.client import StoreUnreachableError, asking
from rlplug.tracking.location import is_missing, without_secrets

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.store.artifact.artifact_repo import ArtifactRepository

CHECKPOINTS = "checkpoints"
PROFILES = "profile"
RANKING = "README.md"
"""In that folder, says which of them is the best and which the last one."""

_UPLOADING = ".artifact.uploading."
"""MLflow's prefix of half-written artifacts, which it does not list."""


def upload_file(log_file: Callable[[Path, str], None], file: Path, into: str) -> None:
    """Upload a file, unless it was deleted in the meantime."""
    try:
        log_file(file, into)
    except StoreUnreachableError:
        if file.exists():
            raise


def link_into(folder: Path, file: Path) -> bool:
    """Link a file into a folder of artifacts, so that it takes no space twice; whether it worked.

    Either of the two can be deleted without the other. Not every file system has hard links, and
    none links to another disk.
    """
    there, partial = folder / file.name, folder / f"{_UPLOADING}{file.name}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if there.exists() and there.samefile(file):
            return True
        partial.unlink(missing_ok=True)
        os.link(file, partial)
        partial.replace(there)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        return False
    return True


def artifact_repository(client: MlflowClient, uri: str) -> ArtifactRepository:
    """What reads and writes artifacts at a URI."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(uri, tracking_uri=client.tracking_uri)


def delete_files(client: MlflowClient, uri: str, folder: str | None = None) -> None:
    """Delete artifacts at a URI, or a folder of them, where their store supports that."""
    repository = artifact_repository(client, uri)
    with contextlib.suppress(NotImplementedError):
        repository.delete_artifacts(folder)  # type: ignore[no-untyped-call] # in mlflow


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed upload left half-written in a folder of artifacts."""
    for partial in folder.rglob(f"{_UPLOADING}*"):
        partial.unlink(missing_ok=True)


def files_in(folder: Path) -> list[Path]:
    """All files in a folder and in those inside; what is deleted meanwhile may be missing."""
    return [Path(inside, name) for inside, _, names in os.walk(folder) for name in names]


def fetch_run(run_id: str, uri: str, root: Path) -> Path | None:
    """Download a run's complete checkpoints into a folder; None if its database is gone.

    Checkpoints without a manifest are incomplete; those already downloaded are skipped.
    """
    if is_missing(uri):
        return None
    folder, failed = root / "fetched" / run_id, f"run {run_id!r} cannot be downloaded"
    with asking(uri, f"{failed} from {without_secrets(uri)}", "try: again later") as client:
        client.get_run(run_id)
        (folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        for artifact in client.list_artifacts(run_id, CHECKPOINTS):
            here, partial = folder / artifact.path, folder / ".coming"
            if not artifact.is_dir or here.exists():
                continue
            inside = {one.path for one in client.list_artifacts(run_id, artifact.path)}
            if f"{artifact.path}/manifest.json" in inside:
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
                downloaded = client.download_artifacts(run_id, artifact.path, str(partial))
                Path(downloaded).rename(here)
                shutil.rmtree(partial, ignore_errors=True)
    return folder


def fetch_file(run_id: str, uri: str, path: str, root: Path) -> Path | None:
    """Download one of a run's artifacts again; None if it is not there."""
    if is_missing(uri):
        return None
    folder = root / "fetched" / run_id
    failed = f"{path} of run {run_id} cannot be downloaded from {without_secrets(uri)}"
    with asking(uri, failed, "try: again later") as client:
        beside = client.list_artifacts(run_id, path.rpartition("/")[0])
        if path not in {one.path for one in beside}:
            return None
        folder.mkdir(parents=True, exist_ok=True)
        return Path(client.download_artifacts(run_id, path, str(folder)))
