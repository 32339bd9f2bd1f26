"""Models of a run: as its folder knows them, and as MLflow has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlplug.tracking.artifacts import delete_files

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel
    from mlflow.entities.model_registry import ModelVersion

__all__ = [
    "CHECKPOINT_TAG",
    "MODELS",
    "VERSIONS_TAG",
    "delete_model",
    "known_models",
    "models_of",
    "read_object",
    "versions_of",
]

MODELS = "models.json"
"""The file in the folder of a run with the id of the model of each checkpoint."""
CHECKPOINT_TAG = "rlplug.checkpoint"
VERSIONS_TAG = "mlflow.modelVersions"
"""Servers set it when a model is registered; by it the UI links a model to the registry."""


def known_models(folder: Path) -> dict[str, str]:
    """Checkpoint → id of its model in MLflow, as the folder of a run has them."""
    return {name: str(model_id) for name, model_id in read_object(folder / MODELS).items()}


def models_of(client: MlflowClient, experiment_id: str, run_id: str) -> Iterator[LoggedModel]:
    """All models of a run; MLflow gives a hundred at a time."""
    token: str | None = ""
    while token is not None:
        page = client.search_logged_models(
            [experiment_id], f"source_run_id = '{run_id}'", page_token=token or None
        )
        yield from page
        token = page.token or None


def versions_of(client: MlflowClient, model: LoggedModel) -> list[ModelVersion]:
    """The versions under which a model is registered; a tag tells whether there may be some."""
    if VERSIONS_TAG not in model.tags:
        return []
    sources = (model.artifact_location, f"models:/{model.model_id}")
    return [
        version
        for source in sources
        for version in client.search_model_versions(f"source_path = '{source}'")
    ]


def delete_model(client: MlflowClient, model: LoggedModel) -> None:
    """Delete a model, and its files, which MLflow would keep."""
    delete_files(client, model.artifact_location)
    client.delete_logged_model(model.model_id)


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is none."""
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
