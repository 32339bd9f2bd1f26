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

__all__ = [
    "CHECKPOINT_TAG",
    "MODELS",
    "VERSIONS_TAG",
    "delete_model",
    "is_ready",
    "known_models",
    "models_of",
    "read_object",
    "versions_of",
]

MODELS = "models.json"
"""The file in the folder of a run with the id of the model of each checkpoint."""

CHECKPOINT_TAG = "rlplug.checkpoint"
VERSIONS_TAG = "mlflow.modelVersions"


def known_models(folder: Path) -> dict[str, str]:
    """Checkpoint → id of its model in MLflow, as the folder of a run has them."""
    return {name: str(model_id) for name, model_id in read_object(folder / MODELS).items()}


def models_of(client: MlflowClient, experiment_id: str, run_id: str) -> Iterator[LoggedModel]:
    """All models of a run; MLflow gives a hundred at a time."""
    token: str | None = None
    while True:
        found = client.search_logged_models(
            [experiment_id], f"source_run_id = '{run_id}'", page_token=token
        )
        yield from found
        token = found.token
        if not token:
            return


def is_ready(model: LoggedModel) -> bool:
    """Whether all of a model is in MLflow."""
    return str(model.status) == "READY"


def versions_of(client: MlflowClient, model: LoggedModel) -> list[str]:
    """Where a model is registered: `NAME version 1`; a tag has it, also of deleted versions."""
    from mlflow.exceptions import MlflowException

    found = []
    try:
        told = [(one["name"], one["version"]) for one in json.loads(model.tags[VERSIONS_TAG])]
    except (KeyError, ValueError, TypeError):
        return []
    for name, version in told:
        try:
            client.get_model_version(name, version)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
        else:
            found.append(f"{name} version {version}")
    return found


def delete_model(client: MlflowClient, model: LoggedModel) -> None:
    """Delete a model, and its files, which MLflow would keep."""
    delete_files(client, model.artifact_location)
    client.delete_logged_model(model.model_id)


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is none."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
