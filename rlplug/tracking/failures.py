"""Errors of the MLflow store: retryable or permanent."""

from __future__ import annotations

import contextlib
import errno
import logging
import re
import sqlite3
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from rlplug.errors import RlplugError
from rlplug.tracking.location import without_secrets

__all__ = ["StoreRefusedError", "StoreUnreachableError", "advice_for", "translated"]

_PERMANENT = (
    "INVALID_PARAMETER_VALUE",
    "BAD_REQUEST",
    "RESOURCE_DOES_NOT_EXIST",
    "PERMISSION_DENIED",
)
_LONGEST = 300
_OF_DISKS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.ENOTDIR,
)
_NOISY_LOGGER = "mlflow.store.db.utils"
"""Logs the traceback of database errors before it raises them."""


class StoreUnreachableError(Exception):
    """Retryable: no connection, a server error, a locked or full database."""

    what = "MLflow is unreachable"
    """What has failed, for messages."""
    lasts = False
    """Whether the database was moved or deleted: it does not come back in seconds."""


class StoreRefusedError(Exception):
    """Permanent: an invalid value, a deleted run, no permission."""


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise any error of MLflow as one of the two, in one line and without passwords."""
    logger = logging.getLogger(_NOISY_LOGGER)
    # The error is reported once by the caller; other threads still log.
    mute = _OtherThreads(threading.get_ident())
    logger.addFilter(mute)
    try:
        yield
    except (RlplugError, StoreRefusedError, StoreUnreachableError):
        raise
    except Exception as error:
        # Drivers, proxies and file systems raise anything; none of it may end the run.
        final = getattr(error, "error_code", "") in _PERMANENT
        if final:
            raise StoreRefusedError(_brief(error)) from error
        unreachable = StoreUnreachableError(_brief(error))
        unreachable.what = _what(error)
        unreachable.lasts = _is_deleted(error)
        raise unreachable from error
    finally:
        logger.removeFilter(mute)


def advice_for(error: Exception) -> str:
    """What to do about an error of the store; empty if nothing is known of it."""
    message = str(error)
    found = re.search(r"out-of-date database schema(?: \(found version (\w+))?", message)
    if "Can't locate revision" in message or (found and not _knows_schema(found[1])):
        return "try: pip install --upgrade mlflow     (the database is from a newer MLflow)"
    if found:
        return "try: copy the database, then: mlflow db upgrade <tracking URI>"
    if "already exists" in message or "duplicate column" in message:
        return "try: move the database away; its creation or its upgrade was interrupted"
    if "UNAUTHENTICATED" in message or "401" in message or "PERMISSION_DENIED" in message:
        return (
            "try: MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
        )
    return ""


def _knows_schema(revision: str | None) -> bool:
    """Whether the installed MLflow has this revision of the database among its migrations."""
    mlflow = find_spec("mlflow")
    folders = [] if mlflow is None else list(mlflow.submodule_search_locations or ())
    migrations = Path("store", "db_migrations", "versions")
    known = (list(Path(one, migrations).glob(f"{revision}_*.py")) for one in folders)
    return revision is None or any(known)


class _OtherThreads(logging.Filter):
    """Passes records of other threads only."""

    def __init__(self, thread: int) -> None:
        super().__init__()
        self._thread = thread

    def filter(self, record: logging.LogRecord) -> bool:
        return record.thread != self._thread


def _brief(error: BaseException) -> str:
    for reason in _reasons(error):
        # The innermost error, of the operating system or SQLite, is the shortest.
        if isinstance(reason, OSError) and reason.strerror:
            return reason.strerror.lower()
        if isinstance(reason, sqlite3.OperationalError):
            return str(reason)
    text = str(getattr(error, "message", "") or error).strip() or type(error).__name__
    first = without_secrets(text.splitlines()[0]).rstrip(".")
    return first if len(first) <= _LONGEST else f"{first[: _LONGEST - 1]}…"


def _what(error: BaseException) -> str:
    """What has failed: a database and folders of this machine are not reached, but written."""
    for reason in _reasons(error):
        if isinstance(reason, sqlite3.Error):
            return "MLflow's database cannot be written"
        if isinstance(reason, OSError) and reason.errno in _OF_DISKS:
            return "MLflow's store cannot be written"
    return StoreUnreachableError.what


def _is_deleted(error: BaseException) -> bool:
    """Whether SQLite finds the database that it has open no longer where it was."""
    moved = "SQLITE_READONLY_DBMOVED"
    return any(getattr(reason, "sqlite_errorname", "") == moved for reason in _reasons(error))


def _reasons(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from, and so on."""
    reason: BaseException | None = error
    while reason is not None:
        yield reason
        reason = reason.__cause__ or reason.__context__
