"""A run in an MLflow store; mlflow is imported on first use."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rlplug.errors import RequestError
from rlplug.tracking.artifacts import (
    artifact_repository,
    delete_files,
    link_into,
    remove_leftovers,
)
from rlplug.tracking.client import asking, explained
from rlplug.tracking.creation import create
from rlplug.tracking.failures import StoreRefusedError, StoreUnreachableError, translated
from rlplug.tracking.journal import Row
from rlplug.tracking.location import check_exists, is_missing, local_folder, without_secrets
from rlplug.tracking.record import HEARTBEAT_TAG, LOCAL_ID, Record
from rlplug.tracking.status import now

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Experiment, Run

__all__ = ["PENDING_TAG", "TAGS_OF_THE_END", "RunningRun", "Store", "running_runs"]

PENDING_TAG = "rlplug.pending_upload"
"""Says that not everything is in MLflow yet."""

TAGS_OF_THE_END = {
    "rlplug.stop_reason",
    "rlplug.stopped_at_step",
    "rlplug.error",
    PENDING_TAG,
}


class Store:
    """A run in an MLflow store.

    All methods raise `StoreRefusedError` or `StoreUnreachableError` for errors of MLflow.
    """

    def __init__(self, client: MlflowClient, experiment: Experiment, run: Run) -> None:
        self._client = client
        self.run_id: str = run.info.run_id
        self.run_name: str = run.info.run_name or self.run_id
        self.experiment: str = experiment.name
        self.experiment_id: str = experiment.experiment_id
        self.status: str = run.info.status
        self.tags: dict[str, str] = dict(run.data.tags)
        self.marks = {one.key: one.step for one in run.data.to_proto().metrics}
        """Metric → its highest step when the run was opened."""
        times = [run.info.start_time, *(one.timestamp for one in run.data.to_proto().metrics)]
        self.last_change: float = max(times) / 1000
        """When a metric was last recorded, or the run created, in seconds since the epoch."""
        self._artifact_uri: str = run.info.artifact_uri or ""
        self._artifacts = local_folder(self._artifact_uri)
        """None: they are not in a folder of this machine."""
        self.evaluated_on = _evaluated_on(run)
        """Name and digest of the dataset that stands for the environment of evaluations."""

    @property
    def client(self) -> MlflowClient:
        """The client, whose errors are to be `translated`."""
        return self._client

    @classmethod
    def create_run(
        cls, uri: str, record: Record, root: Path, before: Callable[[], None] = lambda: None
    ) -> Store:
        """Open or create the store, and create the run after a call of `before`."""
        with explained(uri, f"MLflow cannot record the run at {without_secrets(uri)}"):
            store = cls(*create(uri, record, root, before))
            try:
                store._describe(record)
            except BaseException:
                # The run is in MLflow, and nothing else would end it.
                with contextlib.suppress(StoreRefusedError, StoreUnreachableError):
                    store.terminate("FAILED")
                raise
        return store

    @classmethod
    def open_run(cls, uri: str, run_id: str) -> Store:
        """Open a run that exists, or raise what became of it."""
        check_exists(uri, run_id)
        shown = without_secrets(uri)
        with asking(uri, f"MLflow at {shown} cannot be asked about run {run_id}") as client:
            try:
                with translated():
                    run = client.get_run(run_id)
                    experiment = client.get_experiment(run.info.experiment_id)
            except StoreRefusedError as error:
                raise RequestError(
                    f"run {run_id} is not in MLflow at {shown}: {error}.",
                    "try: tracking.uri or MLFLOW_TRACKING_URI of the store that has it",
                ) from error
        store, named = cls(client, experiment, run), f"run {run_id} ({run.info.run_name})"
        for what, stage, restore in (
            (
                f"the experiment {experiment.name!r} of run {run_id}",
                experiment.lifecycle_stage,
                f"experiments restore --experiment-id {experiment.experiment_id}",
            ),
            (named, run.info.lifecycle_stage, f"runs restore --run-id {run_id}"),
        ):
            if stage != "active":
                raise RequestError(
                    f"{what} was deleted in MLflow.",
                    f"try: MLFLOW_TRACKING_URI={shown} mlflow {restore}",
                )
        return store

    def continue_run(self, tags: Mapping[str, str]) -> None:
        """Mark the run as running again, with tags that say so."""
        for name in TAGS_OF_THE_END & set(self.tags):
            self.delete_tag(name)
        with translated():
            self.set_tags(tags)
            self._client.update_run(self.run_id, status="RUNNING")

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
            self._client.log_batch(self.run_id, metrics=metrics)

    def is_active(self) -> bool:
        """Whether the run still exists and accepts metrics."""
        try:
            with translated():
                stage: str = self._client.get_run(self.run_id).info.lifecycle_stage
        except StoreRefusedError:
            return False
        return stage == "active"

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags of the run."""
        from mlflow.entities import RunTag

        with translated():
            self._client.log_batch(self.run_id, tags=[RunTag(*tag) for tag in tags.items()])

    def beat(self) -> None:
        """Say that the run is still in progress."""
        self.set_tags({HEARTBEAT_TAG: now()})

    def delete_tag(self, name: str) -> None:
        """Delete a tag of the run, if it has it."""
        with contextlib.suppress(StoreRefusedError), translated():
            self._client.delete_tag(self.run_id, name)

    def log_file(self, file: Path, folder: str) -> None:
        """Upload a file to a folder of the run's artifacts, or link it if they are on its disk."""
        self.log_file_at(self._artifact_uri, file, folder)

    def log_file_at(self, uri: str, file: Path, folder: str) -> None:
        """The same for artifacts that are not the run's own, at their URI."""
        local = local_folder(uri)
        if local is not None and link_into(local / folder, file):
            return
        with translated():
            repository = artifact_repository(self._client, uri)
            repository.log_artifact(str(file), folder or None)  # type: ignore[no-untyped-call] # in mlflow

    def delete_folder(self, folder: str) -> None:
        """Delete a folder of the run's artifacts, if the store supports it."""
        with translated():
            delete_files(self._client, self._artifact_uri, folder)

    def files(self, folder: str) -> dict[str, int]:
        """Path → size of all files in a folder of the run's artifacts."""
        sizes: dict[str, int] = {}
        with translated():
            for entry in self._client.list_artifacts(self.run_id, folder):
                sizes |= (
                    self.files(entry.path) if entry.is_dir else {entry.path: entry.file_size or 0}
                )
        return sizes

    def download(self, artifacts: str, into: Path) -> Path | None:
        """Download a file or a folder of the run's artifacts; None if there is none."""
        with translated():
            beside = self._client.list_artifacts(self.run_id, artifacts.rpartition("/")[0])
            if artifacts not in {one.path for one in beside}:
                return None
            return Path(self._client.download_artifacts(self.run_id, artifacts, str(into)))

    def history(self) -> Iterator[Row]:
        """All values of all metrics."""
        with translated():
            for name in self.marks:
                for one in self._client.get_metric_history(self.run_id, name):
                    yield name, one.value, one.timestamp, one.step

    def remove_leftovers(self) -> None:
        """Remove what a killed upload left half-written, if artifacts are in a local folder."""
        if self._artifacts is not None:
            with translated():
                remove_leftovers(self._artifacts)

    def terminate(self, status: str, ended: int | None = None) -> None:
        """End the run as FINISHED, FAILED or KILLED; `ended` in milliseconds since the epoch."""
        with translated():
            self._client.set_terminated(self.run_id, status, ended)

    def _describe(self, record: Record) -> None:
        """Log params and, as datasets, environments."""
        from mlflow.entities import Dataset, DatasetInput, InputTag, Param

        params = [Param(name, value) for name, value in record.params.items()]
        inputs = [
            DatasetInput(
                Dataset(one.name, one.digest, source_type="gymnasium", source=one.source),
                [InputTag("mlflow.data.context", one.context)],
            )
            for one in record.datasets
        ]
        with translated():
            # MLflow's client splits them into requests.
            self._client.log_batch(self.run_id, params=params)
            if inputs:
                self._log_inputs(inputs)
        evaluated_on = (one for one in record.datasets if one.context == "eval")
        self.evaluated_on = next(((one.name, one.digest) for one in evaluated_on), None)

    def _log_inputs(self, inputs: list[DatasetInput]) -> None:
        """Log datasets; one that another host logs at the same moment is there when asked again."""
        from mlflow.exceptions import MlflowException

        for is_last in (False, False, True):
            try:
                return self._client.log_inputs(self.run_id, inputs)
            except MlflowException as error:
                # What databases say of a row that is there; MLflow has no code for it.
                if is_last or not re.search("unique|duplicate", str(error), re.IGNORECASE):
                    raise
        return None


def _evaluated_on(run: Run) -> tuple[str, str] | None:
    for one in run.inputs.dataset_inputs if run.inputs else ():
        if any(tag.key == "mlflow.data.context" and tag.value == "eval" for tag in one.tags):
            return one.dataset.name, one.dataset.digest
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
        running = client.search_runs(experiments, condition, max_results=1000)
        tags_of = {run.info.run_id: run.data.tags for run in running}
    return [
        RunningRun(
            run_id,
            tags.get(LOCAL_ID, run_id),
            tags.get("rlplug.root", ""),
            int(tags.get("rlplug.pid", "") or 0),
        )
        for run_id, tags in tags_of.items()
    ]
