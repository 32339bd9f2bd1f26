"""Create a run in an MLflow store, and what has to be there before: database and experiment."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rlplug.durable import sync_folder
from rlplug.errors import RequestError
from rlplug.tracking.client import client_of
from rlplug.tracking.location import is_http, sqlite_file
from rlplug.tracking.record import LOCAL_ID, Record, slug
from rlplug.tracking.views import VIEW_TAG, view_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

__all__ = ["create"]

LOCK_SECONDS = 120.0
_THIS_HOST = r"//([^/@]*@)?(localhost|127\.|\[::1\])"


def create(
    uri: str, record: Record, root: Path, before: Callable[[], None]
) -> tuple[MlflowClient, Experiment, Run]:
    """Create the run under a lock: of several runs that start, only one creates the database."""
    from filelock import FileLock, Timeout

    database = sqlite_file(uri)
    folder = root if database is None else database.parent
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / ".init.lock"
    try:
        with FileLock(lock, timeout=LOCK_SECONDS):
            if database is not None:
                _create_database(database)
            client = client_of(uri)
            artifacts = None if is_http(uri) or uri.startswith("databricks") else folder
            experiment = _experiment(client, record, artifacts)
            _check_artifacts(uri, experiment)
            run = _created_before(client, experiment, record)
            if run is None:
                name = _free_name(client, experiment.experiment_id, record)
                before()
                run = client.create_run(
                    experiment.experiment_id, record.started, dict(record.tags), name
                )
    except Timeout as error:
        raise RequestError(
            f"another process has held {lock} for {LOCK_SECONDS:.0f} s.",
            "try: again after that process has exited",
        ) from error
    return client, experiment, run


def _create_database(file: Path) -> None:
    """Create the database beside its place: a kill amid MLflow's migrations breaks it for good."""
    for leftover in file.parent.glob(f"{file.name}.creating-*"):
        leftover.unlink(missing_ok=True)
    if file.exists() and file.stat().st_size:
        return
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    partial = file.with_name(f"{file.name}.creating-{os.getpid()}")
    try:
        artifacts = (file.parent / "artifacts").as_uri()
        SqlAlchemyStore(f"sqlite:///{partial}", artifacts).engine.dispose()  # type: ignore[no-untyped-call] # in mlflow
        with partial.open("rb") as content:
            os.fsync(content.fileno())
        partial.replace(file)
        sync_folder(file.parent)
    finally:
        partial.unlink(missing_ok=True)


def _created_before(client: MlflowClient, experiment: Experiment, record: Record) -> Run | None:
    """The run, if an earlier attempt to create it late was cut short after that."""
    local_id = record.tags.get(LOCAL_ID)
    condition = f"tags.`{LOCAL_ID}` = '{local_id}'"
    runs = client.search_runs([experiment.experiment_id], condition) if local_id else ()
    return next(iter(runs), None)


def _experiment(client: MlflowClient, record: Record, artifacts: Path | None) -> Experiment:
    from mlflow.exceptions import MlflowException

    experiment = (
        client.get_experiment(record.experiment_id)
        if record.experiment_id
        else client.get_experiment_by_name(record.experiment)
    )
    if experiment is None:
        own = None if artifacts is None else artifacts / "artifacts" / slug(record.experiment)
        place = None if own is None else own.as_uri()
        try:
            experiment = client.get_experiment(client.create_experiment(record.experiment, place))
        except MlflowException as error:
            # Another machine may have created it on a shared server.
            experiment = client.get_experiment_by_name(record.experiment)
            if error.error_code != "RESOURCE_ALREADY_EXISTS" or experiment is None:
                raise
    if experiment.lifecycle_stage != "active":
        raise RequestError(
            f"the experiment {experiment.name!r} was deleted in MLflow.",
            f"try: mlflow experiments restore --experiment-id {experiment.experiment_id}, "
            "or --set tracking.experiment=NAME",
        )
    # The summary of several seeds has no environments, and leaves the view as it is. One run
    # without evaluations does not take the best returns of the others out of sight.
    evaluated = any(one.context == "eval" for one in record.datasets)
    known, view = experiment.tags.get(VIEW_TAG, ""), view_of(evaluated=evaluated)
    if record.datasets and view != known and (evaluated or not known):
        client.set_experiment_tag(experiment.experiment_id, VIEW_TAG, view)
    return experiment


def _check_artifacts(uri: str, experiment: Experiment) -> None:
    """Refuse an experiment of a remote server whose artifact location is a local folder."""
    location = experiment.artifact_location or ""
    if location.startswith(("file:", "/")) and is_http(uri) and not re.search(_THIS_HOST, uri):
        raise RequestError(
            f"the experiment {experiment.name!r} stores artifacts in {location}, a folder of the "
            "machine that created it; this run would write them to its own disk.",
            "try: --set tracking.experiment=NAME to let the server create an experiment",
        )


def _free_name(client: MlflowClient, experiment_id: str, record: Record) -> str:
    """The run name, with -2, -3, … if it is taken in the experiment."""

    def names(condition: str, most: int) -> set[str | None]:
        runs = client.search_runs([experiment_id], condition, max_results=most)
        return {run.info.run_name for run in runs}

    name = record.run_name
    if not record.number_names or not names(f"attributes.run_name = '{name}'", 1):
        return name
    taken = names(f"attributes.run_name LIKE '{name}-%'", 1000)
    number = 2
    while f"{name}-{number}" in taken:
        number += 1
    return f"{name}-{number}"
