"""Errors of the MLflow store: retryable or permanent."""

from __future__ import annotations

import contextlib
import errno
import logging
import re
import sqlite3
import threading
from collections.abc import Iterator

from rlplug.config.secrets import without_secrets
from rlplug.errors import RlplugError

__all__ = ["StoreRefusedError", "StoreUnreachableError", "advice_for", "translated"]

_PERMANENT = (
    "INVALID_PARAMETER_VALUE",
    "BAD_REQUEST",
    "RESOURCE_DOES_NOT_EXIST",
    "PERMISSION_DENIED",
)
_LONGEST = 300
_OF_DISKS = {
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EROFS", "EACCES", "EPERM", "EIO", "ENOTDIR")
}
_ADVICE = {
    "Can't locate revision|out-of-date database schema": "try: copy the database, then: mlflow db "
    "upgrade URI; if it is from a newer MLflow: pip install --upgrade mlflow",
    "already exists|duplicate column": "try: move the database away; its creation or its upgrade "
    "was interrupted",
    "UNAUTHENTICATED|401|PERMISSION_DENIED": "try: MLFLOW_TRACKING_USERNAME and "
    "MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN",
}


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
        if getattr(error, "error_code", "") in _PERMANENT:
            raise StoreRefusedError(_brief(error)) from error
        unreachable = StoreUnreachableError(_brief(error))
        reasons = [*_reasons(error)]
        # A database and folders of this machine are not reached, but written.
        if any(isinstance(reason, sqlite3.Error) for reason in reasons):
            unreachable.what = "MLflow's database cannot be written"
        elif any(getattr(reason, "errno", None) in _OF_DISKS for reason in reasons):
            unreachable.what = "MLflow's store cannot be written"
        names = [getattr(reason, "sqlite_errorname", "") for reason in reasons]
        unreachable.lasts = "SQLITE_READONLY_DBMOVED" in names
        raise unreachable from error
    finally:
        logger.removeFilter(is_of_another)


def advice_for(error: Exception) -> str:
    """What to do about an error of the store; empty if nothing is known of it."""
    known = (hint for pattern, hint in _ADVICE.items() if re.search(pattern, str(error)))
    return next(known, "")


def _brief(error: BaseException) -> str:
    for reason in _reasons(error):
        # The innermost error, of the operating system or SQLite, is the shortest.
        if isinstance(reason, OSError) and reason.strerror:
            return reason.strerror.lower()
        if isinstance(reason, sqlite3.Error):
            return str(reason)
    text = str(getattr(error, "message", "") or error).strip() or type(error).__name__
    first = without_secrets(text.splitlines()[0]).rstrip(".")
    return first if len(first) <= _LONGEST else f"{first[: _LONGEST - 1]}…"


def _reasons(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from, and so on."""
    reason: BaseException | None = error
    while reason is not None:
        yield reason
        reason = reason.__cause__ or reason.__context__
