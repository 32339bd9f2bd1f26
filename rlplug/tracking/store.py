"""A run in an MLflow store; mlflow is imported on first use."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rlplug.durable import sync_folder
from rlplug.errors import RequestError
from rlplug.tracking.artifacts import artifact_repository, delete_files, link_into, remove_leftovers
from rlplug.tracking.client import StoreRefusedError, asking, client_of, explained, translated
from rlplug.tracking.journal import Row
from rlplug.tracking.location import is_http, is_missing, local_folder, sqlite_file, without_secrets
from rlplug.tracking.record import HEARTBEAT_TAG, LOCAL_ID, Record, slug
from rlplug.tracking.status import now
from rlplug.tracking.views import VIEW_TAG, view_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Experiment, Run

PENDING_TAG = "rlplug.pending_upload"
"""Says that not everything is in MLflow yet."""

TAGS_OF_THE_END = {
    "rlplug.stop_reason",
    "rlplug.stopped_at_step",
    "rlplug.error",
    PENDING_TAG,
}
LOCK_SECONDS = 120.0
_THIS_HOST = r"//([^/@]*@)?(localhost|127\.|\[::1\])"
_EVALUATED = ("mlflow.data.context", "eval")
"""Key and value of the tag of a dataset that stands for the environment of evaluations."""


class Store:
    """A run in an MLflow store.

    All methods raise `StoreRefusedError` or `StoreUnreachableError` for errors of MLflow.
    """

    def __init__(self, client: MlflowClient, experiment: Experiment, run: Run) -> None:
        self.client = client
        """Its errors are to be `translated`."""
        self.run_id: str = run.info.run_id
        self.run_name: str = run.info.run_name or self.run_id
        self.experiment: str = experiment.name
        self.experiment_id: str = experiment.experiment_id
        self.status: str = run.info.status
        self.tags: dict[str, str] = dict(run.data.tags)
        metrics = run.data.to_proto().metrics
        self.marks = {metric.key: metric.step for metric in metrics}
        """Metric → its highest step when the run was opened."""
        times = [run.info.start_time, *(metric.timestamp for metric in metrics)]
        self.last_change: float = max(times) / 1000
        """When a metric was last recorded, or the run created, in seconds since the epoch."""
        self._artifact_uri: str = run.info.artifact_uri or ""
        inputs = run.inputs.dataset_inputs if run.inputs else ()
        self.evaluated_on = next(
            (
                (one.dataset.name, one.dataset.digest)
                for one in inputs
                if any((tag.key, tag.value) == _EVALUATED for tag in one.tags)
            ),
            None,
        )
        """Name and digest of the dataset that stands for the environment of evaluations."""

    @classmethod
    def create_run(
        cls, uri: str, record: Record, root: Path, before: Callable[[], None] = lambda: None
    ) -> Store:
        """Open or create the store, and create the run after a call of `before`."""
        with explained(uri, f"MLflow cannot record the run at {without_secrets(uri)}"):
            client, experiment, run = _create(uri, record, root, before)
            try:
                _describe(client, run.info.run_id, record)
                # Its datasets are known now.
                return cls(client, experiment, client.get_run(run.info.run_id))
            except BaseException:
                # The run is in MLflow, and nothing else would end it.
                with contextlib.suppress(Exception):
                    client.set_terminated(run.info.run_id, "FAILED")
                raise

    @classmethod
    def open_run(cls, uri: str, run_id: str) -> Store:
        """Open a run that exists, or raise what became of it."""
        shown = without_secrets(uri)
        if is_missing(uri):
            # Opening it would create an empty one.
            raise RequestError(
                f"the database {sqlite_file(uri)}, in which run {run_id} is recorded, does not "
                "exist.",
                "try: put it back, or set tracking.uri or MLFLOW_TRACKING_URI to where it is",
            )
        with asking(
            uri,
            f"run {run_id} cannot be read from MLflow at {shown}",
            "try: again later, or tracking.uri or MLFLOW_TRACKING_URI of the store that has it",
        ) as client:
            run = client.get_run(run_id)
            experiment = client.get_experiment(run.info.experiment_id)
        if run.info.lifecycle_stage != "active":
            raise _deleted(f"run {run_id} ({run.info.run_name})", f"runs restore --run-id {run_id}")
        _check_active(experiment)
        return cls(client, experiment, run)

    def continue_run(self, tags: Mapping[str, str]) -> None:
        """Mark the run as running again, with tags that say so."""
        for name in TAGS_OF_THE_END & set(self.tags):
            self.delete_tag(name)
        self.set_tags(tags)
        with translated():
            self.client.update_run(self.run_id, status="RUNNING")

    @property
    def attempt(self) -> int:
        """How often the run was started when it was opened."""
        attempt = self.tags.get("rlplug.attempt", "")
        return int(attempt) if attempt.isdecimal() else 1

    def log_rows(
        self, rows: Sequence[Row], model_id: str = "", dataset: tuple[str, str] | None = None
    ) -> None:
        """Log at most 1000 metrics, also as those of a model, with name and digest of a dataset."""
        from mlflow.entities import Metric

        name, digest = dataset or (None, None)
        metrics = [
            Metric(*row, model_id=model_id or None, dataset_name=name, dataset_digest=digest)
            for row in rows
        ]
        with translated():
            self.client.log_batch(self.run_id, metrics=metrics)

    def is_active(self) -> bool:
        """Whether the run still exists and accepts metrics."""
        try:
            with translated():
                return str(self.client.get_run(self.run_id).info.lifecycle_stage) == "active"
        except StoreRefusedError:
            return False

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run."""
        from mlflow.entities import RunTag

        with translated():
            self.client.log_batch(self.run_id, tags=[RunTag(*tag) for tag in tags.items()])

    def beat(self) -> None:
        """Say that the run is still in progress."""
        self.set_tags({HEARTBEAT_TAG: now()})

    def delete_tag(self, name: str) -> None:
        """Delete a tag of the run, if it has it."""
        with contextlib.suppress(StoreRefusedError), translated():
            self.client.delete_tag(self.run_id, name)

    def log_file(self, file: Path, folder: str) -> None:
        """Upload a file to a folder of the run's artifacts, or link it if they are on its disk."""
        self.log_file_at(self._artifact_uri, file, folder)

    def log_file_at(self, uri: str, file: Path, folder: str) -> None:
        """The same for artifacts that are not the run's own, at their URI."""
        local = local_folder(uri)
        if local is not None and link_into(local / folder, file):
            return
        with translated():
            repository = artifact_repository(self.client, uri)
            repository.log_artifact(str(file), folder or None)  # type: ignore[no-untyped-call] # in mlflow

    def delete_folder(self, folder: str) -> None:
        """Delete a folder of the run's artifacts, if the store supports it."""
        with translated():
            delete_files(self.client, self._artifact_uri, folder)

    def download(self, artifacts: str, into: Path) -> Path | None:
        """Download a file or a folder of the run's artifacts; None if there is none."""
        with translated():
            beside = self.client.list_artifacts(self.run_id, artifacts.rpartition("/")[0])
            if artifacts not in {one.path for one in beside}:
                return None
            return Path(self.client.download_artifacts(self.run_id, artifacts, str(into)))

    def history(self) -> Iterator[Row]:
        """All values of all metrics."""
        with translated():
            for name in self.marks:
                for point in self.client.get_metric_history(self.run_id, name):
                    yield name, point.value, point.timestamp, point.step

    def remove_leftovers(self) -> None:
        """Remove what a killed upload left half-written, if artifacts are in a local folder."""
        folder = local_folder(self._artifact_uri)
        if folder is not None:
            with translated():
                remove_leftovers(folder)

    def terminate(self, status: str, ended: int | None = None) -> None:
        """End the run as FINISHED, FAILED or KILLED; `ended` in milliseconds since the epoch."""
        with translated():
            self.client.set_terminated(self.run_id, status, ended)


def _create(
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
            experiment = _experiment(client, uri, record, folder)
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
        except MlflowException as error:
            # Another machine may have created it on a shared server.
            experiment = known()
            if error.error_code != "RESOURCE_ALREADY_EXISTS" or experiment is None:
                raise
    _check_active(experiment)
    location = experiment.artifact_location or ""
    if location.startswith(("file:", "/")) and is_http(uri) and not re.search(_THIS_HOST, uri):
        raise RequestError(
            f"the experiment {experiment.name!r} stores artifacts in {location}, a folder of the "
            "machine that created it; this run would write them to its own disk.",
            "try: --set tracking.experiment=NAME to let the server create an experiment",
        )
    # The summary of several seeds has no environments, and leaves the view as it is. One run
    # without evaluations does not take the best returns of the others out of sight.
    evaluated = any(dataset.context == "eval" for dataset in record.datasets)
    view, before = view_of(evaluated=evaluated), experiment.tags.get(VIEW_TAG, "")
    if record.datasets and view != before and (evaluated or not before):
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


def _describe(client: MlflowClient, run_id: str, record: Record) -> None:
    """Log params and, as datasets, environments."""
    from mlflow.entities import Dataset, DatasetInput, InputTag, Param

    # MLflow's client splits them into requests.
    params = [Param(name, value) for name, value in record.params.items()]
    client.log_batch(run_id, params=params)
    inputs = [
        DatasetInput(
            Dataset(one.name, one.digest, source_type="gymnasium", source=one.source),
            [InputTag("mlflow.data.context", one.context)],
        )
        for one in record.datasets
    ]
    if inputs:
        _log_inputs(client, run_id, inputs)


def _log_inputs(client: MlflowClient, run_id: str, inputs: list[DatasetInput]) -> None:
    """Log datasets; one that another host logs at the same moment is there when asked again."""
    from mlflow.exceptions import MlflowException

    for is_last in (False, False, True):
        try:
            return client.log_inputs(run_id, inputs)
        except MlflowException as error:
            # What databases say of a row that is there; MLflow has no code for it.
            if is_last or not re.search("unique|duplicate", str(error), re.IGNORECASE):
                raise
    return None


class RunningRun(NamedTuple):
    """A run that is in progress according to MLflow."""

    run_id: str
    folder: str
    """The name of its folder: its id, unless it was created late."""
    root: str
    """The runs folder that it was started in."""
    pid: int


def running_runs(uri: str, host: str) -> list[RunningRun]:
    """The runs of a host that are in progress according to MLflow."""
    if is_missing(uri):
        return []
    with asking(uri, f"MLflow at {without_secrets(uri)} cannot be asked for runs") as client:
        experiments = [one.experiment_id for one in client.search_experiments()]
        condition = f"attributes.status = 'RUNNING' and tags.`rlplug.host` = '{host}'"
        runs = client.search_runs(experiments, condition, max_results=1000)
        found = [(run.info.run_id, run.data.tags) for run in runs]
    return [
        RunningRun(
            run_id,
            tags.get(LOCAL_ID, run_id),
            tags.get("rlplug.root", ""),
            int(tags.get("rlplug.pid", "") or 0),
        )
        for run_id, tags in found
    ]
