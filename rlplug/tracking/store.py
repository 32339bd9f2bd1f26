"""A run in an MLflow store, through MLflow's client; mlflow is imported on first use."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from rlplug.durable import sync_folder
from rlplug.errors import RequestError, RlplugError
from rlplug.tracking.journal import Row
from rlplug.tracking.location import (
    AWAY,
    check_reachable,
    is_http,
    is_missing,
    local_folder,
    sqlite_file,
    without_secrets,
)
from rlplug.tracking.record import LOCAL_ID, Record, slug
from rlplug.tracking.server import VIEW_TAG, view_of
from rlplug.tracking.status import STALE_SECONDS, is_alive

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run
    from mlflow.store.artifact.artifact_repo import ArtifactRepository

CHECKPOINTS = "checkpoints"
"""The folder of a run, and of its artifacts, with a folder for each checkpoint."""
PENDING_TAG = "rlplug.pending_upload"
"""The tag of an ended run of which not everything is in MLflow yet."""
TAGS_OF_THE_END = {
    "rlplug.stop_reason",
    "rlplug.stopped_at_step",
    "rlplug.error",
    PENDING_TAG,
}
LOCK_SECONDS = 120.0
_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_DISABLE_AGENT_HINT": "true",
    # A sync retries itself; MLflow's seven retries would block it for four minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_SKIP_PIP_REQUIREMENTS_CHECK": "true",
}
_PERMANENT = (
    "INVALID_PARAMETER_VALUE",
    "BAD_REQUEST",
    "RESOURCE_DOES_NOT_EXIST",
    "PERMISSION_DENIED",
    "ENDPOINT_NOT_FOUND",
)
_LONGEST = 300


class StoreError(Exception):
    """What MLflow did not do, in one line without passwords.

    `refused` if it never will: an invalid value, a deleted run, no permission. Otherwise asking
    again may help: no connection, a server error, a locked or full database.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


@contextlib.contextmanager
def asking(uri: str, failed: str, hint: str = "") -> Iterator[MlflowClient]:
    """A client of a store that answers; raises a `RequestError`: what failed, why, what to do.

    Of a database that may be missing the caller asks `location.is_missing`: a client creates it.
    """
    check_reachable(uri)
    with explained(uri, failed, hint):
        yield client_of(uri)


@contextlib.contextmanager
def explained(uri: str, failed: str, hint: str = "") -> Iterator[None]:
    """Raise errors of a store as a `RequestError`."""
    try:
        with translated():
            _import_mlflow()
            yield
    except StoreError as error:
        is_away = not error.refused and sqlite_file(uri) is None
        another = AWAY if is_away else "try: another tracking.uri, or --set tracking.enabled=false"
        raise RequestError(f"{failed}: {error}.", hint or another) from error


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise any error of MLflow as a `StoreError`."""
    try:
        yield
    except (RlplugError, StoreError):
        raise
    except Exception as error:
        # Drivers, proxies and file systems raise anything; none of it may end the run.
        refused = getattr(error, "error_code", "") in _PERMANENT
        raise StoreError(_first_line(error), refused=refused) from error


def client_of(uri: str) -> MlflowClient:
    """A client of the store, to be made and used within `explained`."""
    from mlflow import MlflowClient

    # Without registry_uri, the registry would use MLflow's own settings.
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


class Store:
    """A run in an MLflow store. All methods raise `StoreError`."""

    def __init__(self, client: MlflowClient, experiment: Experiment, run: Run) -> None:
        self.client = client
        self.run_id: str = run.info.run_id
        self.run_name: str = run.info.run_name or self.run_id
        self.experiment: str = experiment.name
        self.experiment_id: str = experiment.experiment_id
        self.status: str = run.info.status
        self.tags: dict[str, str] = dict(run.data.tags)
        metrics = run.data.to_proto().metrics
        times = [run.info.start_time, *(metric.timestamp for metric in metrics)]
        self.last_change: float = max(times) / 1000
        """When a metric was last recorded, or the run created, in seconds since the epoch."""
        self._metrics = [metric.key for metric in metrics]
        self._artifact_uri: str = run.info.artifact_uri or ""

    @classmethod
    def create_run(
        cls, uri: str, record: Record, root: Path, before: Callable[[], None] = lambda: None
    ) -> Store:
        """Open or create the store, and create the run after a call of `before`."""
        database = sqlite_file(uri)
        folder = root if database is None else database.parent
        with explained(uri, f"MLflow cannot record the run at {without_secrets(uri)}"):
            from mlflow.entities import Param

            with _alone(folder):
                if database is not None:
                    _create_database(database)
                client = client_of(uri)
                experiment = _experiment(client, uri, record, folder)
                run = _created_before(client, experiment, record)
                if run is None:
                    name = _free_name(client, experiment.experiment_id, record)
                    before()
                    run = client.create_run(
                        experiment.experiment_id, record.started, dict(record.tags), name
                    )
            try:
                # MLflow's client splits them into requests.
                params = [Param(name, value) for name, value in record.params.items()]
                client.log_batch(run.info.run_id, params=params)
            except BaseException:
                # The run is in MLflow, and nothing else would end it.
                with contextlib.suppress(Exception):
                    client.set_terminated(run.info.run_id, "FAILED")
                raise
            return cls(client, experiment, run)

    @classmethod
    def open_run(cls, uri: str, run_id: str) -> Store:
        """Open a run that exists, or raise what became of it."""
        if is_missing(uri):
            # Opening it would create an empty one.
            raise RequestError(
                f"the database {sqlite_file(uri)}, in which run {run_id} is recorded, does not "
                "exist.",
                "try: put it back, or set tracking.uri or MLFLOW_TRACKING_URI to where it is",
            )
        failed = f"run {run_id} cannot be read from MLflow at {without_secrets(uri)}"
        hint = "try: again later, or tracking.uri or MLFLOW_TRACKING_URI of the store that has it"
        with asking(uri, failed, hint) as client:
            run = client.get_run(run_id)
            experiment = client.get_experiment(run.info.experiment_id)
        if run.info.lifecycle_stage != "active":
            raise _deleted(f"run {run_id} ({run.info.run_name})", f"runs restore --run-id {run_id}")
        _check_active(experiment)
        return cls(client, experiment, run)

    @property
    def is_in_progress(self) -> bool:
        """Whether a process may be at work for a run that MLflow calls RUNNING.

        On this machine, its process is looked for; of another one, the last metric is looked at.
        """
        if self.tags.get("rlplug.host") == socket.gethostname():
            pid = self.tags.get("rlplug.pid", "")
            return pid.isdigit() and is_alive(int(pid))
        return time.time() - self.last_change < STALE_SECONDS

    @property
    def attempt(self) -> int:
        """How often the run was started when it was opened."""
        attempt = self.tags.get("rlplug.attempt", "")
        return int(attempt) if attempt.isdecimal() else 1

    def continue_run(self, tags: Mapping[str, str]) -> None:
        """Mark the run as running again, with tags that say so."""
        for name in TAGS_OF_THE_END & set(self.tags):
            self.delete_tag(name)
        self.set_tags(tags)
        with translated():
            self.client.update_run(self.run_id, status="RUNNING")

    def log_rows(self, rows: Sequence[Row], model_id: str = "") -> None:
        """Log at most 1000 metrics, also as those of a model."""
        from mlflow.entities import Metric

        metrics = [Metric(*row, model_id=model_id or None) for row in rows]
        with translated():
            self.client.log_batch(self.run_id, metrics=metrics)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run."""
        from mlflow.entities import RunTag

        with translated():
            self.client.log_batch(self.run_id, tags=[RunTag(*tag) for tag in tags.items()])

    def delete_tag(self, name: str) -> None:
        """Delete a tag of the run, if it has it."""
        try:
            with translated():
                self.client.delete_tag(self.run_id, name)
        except StoreError as error:
            if not error.refused:
                raise

    def log_file(self, file: Path, folder: str, uri: str = "") -> None:
        """Bring a file to a folder of the run's artifacts, or of those at a URI.

        Where they are on the same disk, it is linked: it takes no space twice, and either of the
        two can be deleted without the other.
        """
        uri = uri or self._artifact_uri
        there = local_folder(uri)
        with translated():
            if there is None or not _linked(file, there / folder / file.name):
                repository = artifact_repository(self.client, uri)
                repository.log_artifact(str(file), folder or None)  # type: ignore[no-untyped-call] # in mlflow

    def delete_folder(self, folder: str) -> None:
        """Delete a folder of the run's artifacts, if the store supports it."""
        with translated():
            delete_files(self.client, self._artifact_uri, folder)

    def download(self, artifacts: str, into: Path) -> Path | None:
        """Download a file or a folder of the run's artifacts; None if there is none."""
        with translated():
            return _downloaded(self.client, self.run_id, artifacts, into)

    def history(self) -> Iterator[Row]:
        """All values of all metrics."""
        with translated():
            for name in self._metrics:
                for point in self.client.get_metric_history(self.run_id, name):
                    yield name, point.value, point.timestamp, point.step

    def terminate(self, status: str, ended: int | None = None) -> None:
        """End the run as FINISHED, FAILED or KILLED; `ended` in milliseconds since the epoch."""
        with translated():
            self.client.set_terminated(self.run_id, status, ended)


def artifact_repository(client: MlflowClient, uri: str) -> ArtifactRepository:
    """What reads and writes artifacts at a URI."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(uri, tracking_uri=client.tracking_uri)


def delete_files(client: MlflowClient, uri: str, folder: str | None = None) -> None:
    """Delete artifacts at a URI, or a folder of them, where their store supports that."""
    repository = artifact_repository(client, uri)
    with contextlib.suppress(NotImplementedError):
        repository.delete_artifacts(folder)  # type: ignore[no-untyped-call] # in mlflow


def fetch_run(run_id: str, uri: str, root: Path) -> Path | None:
    """Download a run's complete checkpoints into a folder; None if its database is gone.

    Checkpoints without a manifest are incomplete; those already downloaded are skipped.
    """
    if is_missing(uri):
        return None
    folder, partial = root / "fetched" / run_id, root / "fetched" / run_id / ".coming"
    failed = f"run {run_id!r} cannot be downloaded from {without_secrets(uri)}"
    with asking(uri, failed, "try: again later") as client:
        client.get_run(run_id)
        (folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        for artifact in client.list_artifacts(run_id, CHECKPOINTS):
            if not artifact.is_dir or (folder / artifact.path).exists():
                continue
            inside = {file.path for file in client.list_artifacts(run_id, artifact.path)}
            if f"{artifact.path}/manifest.json" in inside:
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
                downloaded = client.download_artifacts(run_id, artifact.path, str(partial))
                Path(downloaded).rename(folder / artifact.path)
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def fetch_file(run_id: str, uri: str, path: str, root: Path) -> Path | None:
    """Download one of a run's artifacts again; None if it is not there."""
    if is_missing(uri):
        return None
    folder = root / "fetched" / run_id
    failed = f"{path} of run {run_id} cannot be downloaded from {without_secrets(uri)}"
    with asking(uri, failed, "try: again later") as client:
        return _downloaded(client, run_id, path, folder)


def _downloaded(client: MlflowClient, run_id: str, path: str, into: Path) -> Path | None:
    beside = client.list_artifacts(run_id, path.rpartition("/")[0])
    if path not in {artifact.path for artifact in beside}:
        return None
    into.mkdir(parents=True, exist_ok=True)
    return Path(client.download_artifacts(run_id, path, str(into)))


@cache
def _import_mlflow() -> None:
    """Import mlflow with our defaults; it logs migrations, and tracebacks of what it raises."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    import mlflow  # noqa: F401 # sets the levels of its loggers on import

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)


def _linked(file: Path, there: Path) -> bool:
    """Link a file; whether it worked: not every file system has links, none to another disk."""
    there.parent.mkdir(parents=True, exist_ok=True)
    try:
        if not there.exists() or not there.samefile(file):
            there.unlink(missing_ok=True)
            os.link(file, there)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a lock: of several runs that start, only one creates the database."""
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".init.lock", timeout=LOCK_SECONDS)
    try:
        lock.acquire()
    except Timeout as error:
        raise RequestError(
            f"another process has held {lock.lock_file} for {LOCK_SECONDS:.0f} s.",
            "try: again after that process has exited",
        ) from error
    try:
        yield
    finally:
        lock.release()


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
    """The run, if an earlier attempt to create it was cut short after that."""
    local_id = record.tags.get(LOCAL_ID)
    condition = f"tags.`{LOCAL_ID}` = '{local_id}'"
    runs = client.search_runs([experiment.experiment_id], condition) if local_id else ()
    return next(iter(runs), None)


def _experiment(client: MlflowClient, uri: str, record: Record, folder: Path) -> Experiment:
    """The experiment, created if there is none; runs of a database have artifacts beside it."""
    from mlflow.exceptions import MlflowException

    def known() -> Experiment | None:
        if record.experiment_id:
            return client.get_experiment(record.experiment_id)
        return client.get_experiment_by_name(record.experiment)

    experiment, is_server = known(), is_http(uri) or uri.startswith("databricks")
    if experiment is None:
        place = None if is_server else (folder / "artifacts" / slug(record.experiment)).as_uri()
        try:
            experiment = client.get_experiment(client.create_experiment(record.experiment, place))
        except MlflowException:
            # Another host may have created it at the same moment.
            experiment = known()
            if experiment is None:
                raise
    _check_active(experiment)
    # One run without evaluations does not take the best returns of the others out of sight.
    view, before = view_of(evaluated=bool(record.evaluated)), experiment.tags.get(VIEW_TAG, "")
    if record.evaluated is not None and view != before and (record.evaluated or not before):
        client.set_experiment_tag(experiment.experiment_id, VIEW_TAG, view)
    return experiment


def _check_active(experiment: Experiment) -> None:
    if experiment.lifecycle_stage != "active":
        restore = f"experiments restore --experiment-id {experiment.experiment_id}"
        raise _deleted(f"the experiment {experiment.name!r}", restore)


def _deleted(what: str, restore: str) -> RequestError:
    return RequestError(
        f"{what} was deleted in MLflow.", f"try: mlflow {restore}, with its MLFLOW_TRACKING_URI"
    )


def _free_name(client: MlflowClient, experiment_id: str, record: Record) -> str:
    """The run name, with -2, -3, … if it is taken in the experiment."""
    name, number = record.run_name, 2
    if not record.number_names:
        return name
    runs = client.search_runs([experiment_id], f"attributes.run_name LIKE '{name}%'")
    taken = {run.info.run_name for run in runs}
    while name in taken:
        name, number = f"{record.run_name}-{number}", number + 1
    return name


def _first_line(error: BaseException) -> str:
    """The first line of an error, of the operating system or SQLite where one of them is behind."""
    reason: BaseException | None = error
    while reason is not None:
        if isinstance(reason, OSError) and reason.strerror:
            return reason.strerror.lower()
        if isinstance(reason, sqlite3.Error):
            return str(reason)
        reason = reason.__cause__ or reason.__context__
    text = str(getattr(error, "message", "") or error).strip() or type(error).__name__
    return without_secrets(text.splitlines()[0]).rstrip(".")[:_LONGEST]
