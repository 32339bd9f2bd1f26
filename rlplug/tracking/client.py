"""Clients of an MLflow store, and what its errors become; mlflow is imported on first use."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlplug.errors import RequestError
from rlplug.tracking.failures import (
    StoreRefusedError,
    StoreUnreachableError,
    advice_for,
    translated,
)
from rlplug.tracking.location import AWAY, check_reachable, sqlite_file

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["asking", "client_of", "explained"]

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
    """Raise errors of MLflow as a `RequestError`: what failed, the reason, and what to do.

    `hint` is what to do about errors of which nothing better is known.
    """
    try:
        with _quiet_mlflow(), translated():
            yield
    except (StoreRefusedError, StoreUnreachableError) as error:
        is_away = isinstance(error, StoreUnreachableError) and sqlite_file(uri) is None
        another = AWAY if is_away else "try: another tracking.uri, or --set tracking.enabled=false"
        raise RequestError(f"{failed}: {error}.", advice_for(error) or hint or another) from error


def client_of(uri: str) -> MlflowClient:
    """A client of the store, to be made and used within `explained`."""
    from mlflow import MlflowClient

    # Without registry_uri, the registry would use MLflow's own settings.
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


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
