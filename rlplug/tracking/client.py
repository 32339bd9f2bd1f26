"""Clients of an MLflow store, and its errors: retryable or permanent, in MLflow's own first line.

mlflow is imported on first use.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlplug.errors import RequestError, RlplugError
from rlplug.tracking.location import AWAY, check_reachable, sqlite_file, without_secrets

if TYPE_CHECKING:
    from mlflow import MlflowClient

_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_DISABLE_AGENT_HINT": "true",
    # The writer retries itself; MLflow's seven retries would block it for four minutes and log
    # a line each.
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


class StoreUnreachableError(Exception):
    """Retryable: no connection, a server error, a locked or full database."""


class StoreRefusedError(Exception):
    """Permanent: an invalid value, a deleted run, no permission."""


@contextlib.contextmanager
def asking(uri: str, failed: str, hint: str = "") -> Iterator[MlflowClient]:
    """A client of a store that was seen to be reachable, with errors as in `explained`.

    Of a database that may be missing the caller asks `location.is_missing`: a client creates it.
    """
    check_reachable(uri)
    with explained(uri, failed, hint):
        yield client_of(uri)


@contextlib.contextmanager
def explained(uri: str, failed: str, hint: str = "") -> Iterator[None]:
    """Raise errors of MLflow as a `RequestError`: what failed, the reason, and what to do."""
    try:
        with _quiet_mlflow(), translated():
            yield
    except (StoreRefusedError, StoreUnreachableError) as error:
        is_away = isinstance(error, StoreUnreachableError) and sqlite_file(uri) is None
        another = AWAY if is_away else "try: another tracking.uri, or --set tracking.enabled=false"
        raise RequestError(f"{failed}: {error}.", hint or another) from error


def client_of(uri: str) -> MlflowClient:
    """A client of the store, to be made and used within `explained`."""
    from mlflow import MlflowClient

    # Without registry_uri, the registry would use MLflow's own settings.
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise any error of MLflow as one of the two, in one line and without passwords."""
    # It logs the traceback of database errors before it raises them; other threads still log.
    logger, thread = logging.getLogger("mlflow.store.db.utils"), threading.get_ident()

    def is_of_another(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(is_of_another)
    try:
        yield
    except (RlplugError, StoreRefusedError, StoreUnreachableError):
        raise
    except Exception as error:
        # Drivers, proxies and file systems raise anything; none of it may end the run.
        is_permanent = getattr(error, "error_code", "") in _PERMANENT
        kind = StoreRefusedError if is_permanent else StoreUnreachableError
        raise kind(_first_line(error)) from error
    finally:
        logger.removeFilter(is_of_another)


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


@contextlib.contextmanager
def _quiet_mlflow() -> Iterator[None]:
    """Import mlflow with our defaults, and silence the log of the first database migration."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    import mlflow  # noqa: F401 # sets the levels of its loggers on import

    levels = {name: logging.getLogger(name).level for name in ("mlflow", "alembic")}
    for name in levels:
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
