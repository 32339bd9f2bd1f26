"""Artifacts of a run that are to be deleted, remembered until MLflow has deleted them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from urllib.parse import quote, unquote

from rlplug.tracking.artifacts import CHECKPOINTS
from rlplug.tracking.models import LoggedModels
from rlplug.tracking.store import Store

__all__ = ["delete_again", "delete_artifacts", "mark_for_deletion"]

DELETIONS = "deletions"
"""The folder with an empty file for each of them."""


def mark_for_deletion(folder: Path, artifacts: str) -> None:
    """Remember that a folder of artifacts is to be deleted."""
    # A full disk costs the retry only.
    with contextlib.suppress(OSError):
        marker = _marker(folder, artifacts)
        marker.parent.mkdir(exist_ok=True)
        marker.touch()


def delete_artifacts(store: Store, models: LoggedModels, folder: Path, artifacts: str) -> None:
    """Delete a folder of artifacts, of a checkpoint its model, too, and forget about it."""
    store.delete_folder(artifacts)
    parent, _, name = artifacts.rpartition("/")
    if parent == CHECKPOINTS:
        models.delete(name)
    with contextlib.suppress(OSError):
        _marker(folder, artifacts).unlink()


def delete_again(store: Store, models: LoggedModels, folder: Path) -> None:
    """Delete what a killed process or an outage left; what is on the disk again is kept."""
    try:
        names = os.listdir(folder / DELETIONS)
    except OSError:
        return
    for name in names:
        artifacts = unquote(name)
        if (folder / artifacts).exists():
            with contextlib.suppress(OSError):
                _marker(folder, artifacts).unlink()
        else:
            delete_artifacts(store, models, folder, artifacts)


def _marker(folder: Path, artifacts: str) -> Path:
    return folder / DELETIONS / quote(artifacts, safe="")
