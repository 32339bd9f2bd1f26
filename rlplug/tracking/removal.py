"""Delete a run in MLflow: its artifacts, its models, and the run itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlplug.errors import RequestError
from rlplug.tracking.artifacts import delete_files
from rlplug.tracking.client import asking
from rlplug.tracking.known_models import delete_model, models_of, versions_of
from rlplug.tracking.location import without_secrets

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["delete_tracked"]


def delete_tracked(uri: str, run_id: str, experiment_id: str) -> None:
    """Delete a run and its artifacts; one that is not there, or was deleted, is no error."""
    failed = f"run {run_id} cannot be deleted in MLflow at {without_secrets(uri)}"
    with asking(uri, failed, "try: again later, or with the permission to delete it") as client:
        _delete(client, run_id, experiment_id)


def _delete(client: MlflowClient, run_id: str, experiment_id: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return
        raise
    models = list(models_of(client, experiment_id, run_id))
    versions = [version for model in models for version in versions_of(client, model)]
    registered = [f"{version.name} version {version.version}" for version in versions]
    if registered:
        raise RequestError(
            f"run {run_id} has a model that is registered: {', '.join(registered)}.",
            "try: delete the version in MLflow first, if nobody needs it",
        )
    delete_files(client, run.info.artifact_uri or "")
    for model in models:
        delete_model(client, model)
    if run.info.lifecycle_stage == "active":
        client.delete_run(run_id)
