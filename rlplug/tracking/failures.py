"""How an MLflow store can fail, as far as it must be told apart."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Iterator

from rlplug.errors import RlplugError
from rlplug.tracking.location import without_secrets

__all__ = ["StoreRefusedError", "StoreUnreachableError", "translated"]

_FINAL = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "PERMISSION_DENIED")
_LONGEST = 300
_LOUD = "mlflow.store.db.utils"
"""Logs the trace of an error of the database, and then raises the error."""


class StoreUnreachableError(Exception):
    """It may work later: no connection, a server that fails, a database that is locked."""


class StoreRefusedError(Exception):
    """It will never work: a bad value, a deleted run, no permission."""


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Whatever MLflow raises inside, as one of the two, in one line and without passwords."""
    logger = logging.getLogger(_LOUD)
    # Trouble is told once, in one line, by whoever catches it here; other threads log on.
    mute = _Elsewhere(threading.get_ident())
    logger.addFilter(mute)
    try:
        yield
    except (RlplugError, StoreRefusedError, StoreUnreachableError):
        raise
    except Exception as error:
        # Drivers, proxies and file systems raise what they like; no run may end by it.
        final = getattr(error, "error_code", "") in _FINAL
        raise (StoreRefusedError if final else StoreUnreachableError)(_brief(error)) from error
    finally:
        logger.removeFilter(mute)


class _Elsewhere(logging.Filter):
    """Lets pass what other threads log."""

    def __init__(self, thread: int) -> None:
        super().__init__()
        self._thread = thread

    def filter(self, record: logging.LogRecord) -> bool:
        return record.thread != self._thread


def _brief(error: BaseException) -> str:
    reason: BaseException | None = error
    while reason is not None:
        # Below three layers of wrapping, the operating system or SQLite says it in two words.
        if isinstance(reason, OSError) and reason.strerror:
            return reason.strerror.lower()
        if isinstance(reason, sqlite3.OperationalError):
            return str(reason)
        reason = reason.__cause__ or reason.__context__
    said = str(getattr(error, "message", "") or error).strip() or type(error).__name__
    first = without_secrets(said.splitlines()[0]).rstrip(".")
    return first if len(first) <= _LONGEST else f"{first[: _LONGEST - 1]}…"
