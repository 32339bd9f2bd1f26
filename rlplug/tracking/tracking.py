"""Tracking of one run: opened before its first step, closed however it ends."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from rlplug.config.sections import RunConfig
from rlplug.config.toml import to_toml
from rlplug.errors import RequestError
from rlplug.tracking.artifacts import upload_folder
from rlplug.tracking.failures import StoreRefusedError, StoreUnreachableError
from rlplug.tracking.journal import Journal
from rlplug.tracking.listener import Status, TrackingListener
from rlplug.tracking.location import (
    check_reachable,
    check_writable,
    default_folder,
    is_http,
    runs_folder,
    tracking_uri,
    without_secrets,
)
from rlplug.tracking.record import Record, command_line, record_of
from rlplug.tracking.review import Review
from rlplug.tracking.server import FIRST_PORT, serves_one_of
from rlplug.tracking.store import Store
from rlplug.tracking.views import run_link
from rlplug.tracking.writer import Writer

__all__ = ["Status", "Tracking", "open_tracking"]

CLOSING_SECONDS = 30.0


def open_tracking(
    config: RunConfig,
    *,
    environment: str,
    root: Path | None = None,
    warn: Callable[[str], None] | None = None,
) -> Tracking:
    """Create the MLflow run and its folder, or raise what is wrong."""
    folder = runs_folder(root)
    check_writable(folder)
    record = record_of(config, environment)
    uri, store = "", None
    if config.tracking.enabled:
        uri = tracking_uri(config.tracking.uri, folder)
        check_reachable(uri)
        store = Store.create_run(uri, record, folder)
    try:
        return Tracking(config, record, uri, store, folder, _log_warning if warn is None else warn)
    except OSError as error:
        if store is not None:
            with contextlib.suppress(StoreRefusedError, StoreUnreachableError):
                store.terminate("FAILED")
        raise RequestError(
            f"the runs folder {folder} is not writable: {error.strerror or error}.",
            "try: free disk space, or RLPLUG_HOME=/another/folder rlplug run",
        ) from error


class Tracking:
    """One tracked run: its folder with the journal and, unless disabled, an MLflow run."""

    def __init__(
        self,
        config: RunConfig,
        record: Record,
        uri: str,
        store: Store | None,
        root: Path,
        warn: Callable[[str], None],
    ) -> None:
        self.run_id = uuid.uuid4().hex if store is None else store.run_id
        self.run_name = record.run_name if store is None else store.run_name
        self.experiment = record.experiment if store is None else store.experiment
        self.uri = uri
        self.root = root
        self.folder = root / "work" / self.run_id
        self._store = store
        self._warn = warn
        self._closed = False
        self.folder.mkdir(parents=True, exist_ok=True)
        journal = Journal(self.folder)
        options = without_secrets(to_toml(config))
        (self.folder / "config.toml").write_text(options)
        (self.folder / "run.json").write_text(json.dumps(self._facts(), indent=2) + "\n")
        self._writer = Writer(journal, store, warn)
        self.listener = TrackingListener(self._writer, store, options)
        self._journal = journal
        self._writer.start()

    def describe(self) -> tuple[str, str]:
        """Where the run is, and how to look at it."""
        where = f"run {self.run_id} ({self.run_name}) in {self.folder}"
        if self._store is None:
            return where, f"look at it: {self.folder / 'plots' / 'learning_curve.png'}"
        server = f"http://127.0.0.1:{FIRST_PORT}"
        if is_http(self.uri):
            server = without_secrets(self.uri).replace("***@", "")
        elif not serves_one_of(server, [self.run_id]):
            return where, f"look at it: {self._ui_command()}"
        link = run_link(server, self._store.experiment_id, self.run_id)
        return where, f"look at it: {link}"

    def artifact(self, file: Path, folder: str = "") -> None:
        """Upload a file to a folder of the run's artifacts, in the background."""
        if self._store is not None:
            self._writer.do(partial(self._store.log_file, file, folder))

    def artifacts(self, folder: Path, into: str, *, last: str) -> None:
        """Upload a folder recursively, the file named `last` at the end."""
        if self._store is not None:
            self._writer.do(partial(upload_folder, self._store.log_file, folder, into, last))

    def forget_artifacts(self, folder: str) -> None:
        """Delete a folder of the run's artifacts, in order and in the background."""
        if self._store is not None:
            self._writer.do(partial(self._store.delete_folder, folder))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not self._closed and self.listener.error is None:
            self.listener.run_failed(self.listener.step, error)
        self.close()

    def close(self, status: Status | None = None) -> None:
        """Upload the rest and end the run, with the status from its events or the given one."""
        if self._closed:
            return
        self._closed = True
        review = Review(self.run_name, self.folder, self._store, self._writer, self._warn)
        ended = status or self.listener.status
        self._writer.close(lambda: review.conclude(self.listener, ended), CLOSING_SECONDS)
        self._warn_of_missing()
        try:
            self._journal.close()
        except OSError as error:
            self._warn(f"{self._journal.path} is incomplete: {error.strerror or error}.")

    def _warn_of_missing(self) -> None:
        points, jobs = self._writer.points_left, self._writer.jobs_left
        lost = self._writer.points_lost
        if lost:
            self._warn(
                f"{lost:,} metric values are lost: {self._journal.path} could not be written, and "
                "they are not in MLflow. Free disk space and run it again."
            )
        elif points or jobs:
            self._warn(
                f"{points:,} metric values were not uploaded in time; MLflow may show the run as "
                f"still running. Nothing is lost: all of them are in {self._journal.path}."
            )

    def _ui_command(self) -> str:
        """The command that opens the UI on this store."""
        settings = []
        if self.uri != f"sqlite:///{self.root / 'mlflow.db'}":
            if os.environ.get("MLFLOW_TRACKING_URI") != self.uri:
                uri = shlex.quote(without_secrets(self.uri))
                settings.append(f"MLFLOW_TRACKING_URI={uri} ")
        elif self.root != default_folder():
            settings.append(f"RLPLUG_HOME={shlex.quote(str(self.root))} ")
        return "".join([*settings, "rlplug ui"])

    def _facts(self) -> dict[str, str]:
        return {
            "run_id": self.run_id,
            "run_name": self.run_name,
            "experiment": self.experiment,
            "experiment_id": "" if self._store is None else self._store.experiment_id,
            "uri": without_secrets(self.uri),
            "command": command_line(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }


def _log_warning(message: str) -> None:
    # Python prints warnings of unconfigured loggers to stderr.
    logging.getLogger("rlplug").warning("rlplug: %s", message)
