"""How an MLflow store can fail, as far as it must be told apart."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rlplug.errors import RlplugError
from rlplug.tracking.location import without_secrets

__all__ = ["StoreRefusedError", "StoreUnreachableError", "translated"]

_FINAL = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "PERMISSION_DENIED")
_LONGEST = 300


class StoreUnreachableError(Exception):
    """It may work later: no connection, a server that fails, a database that is locked."""


class StoreRefusedError(Exception):
    """It will never work: a bad value, a deleted run, no permission."""


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Whatever MLflow raises inside, as one of the two, in one line and without passwords."""
    try:
        yield
    except (RlplugError, StoreRefusedError, StoreUnreachableError):
        raise
    except Exception as error:
        # Drivers, proxies and file systems raise what they like; no run may end by it.
        final = getattr(error, "error_code", "") in _FINAL
        raise (StoreRefusedError if final else StoreUnreachableError)(_brief(error)) from error


def _brief(error: BaseException) -> str:
    reason: BaseException | None = error
    while reason is not None:
        # Below three layers of wrapping, the operating system says it in two words.
        if isinstance(reason, OSError) and reason.strerror:
            return reason.strerror.lower()
        reason = reason.__cause__ or reason.__context__
    said = str(getattr(error, "message", "") or error).strip() or type(error).__name__
    first = without_secrets(said.splitlines()[0]).rstrip(".")
    return first if len(first) <= _LONGEST else f"{first[: _LONGEST - 1]}…"
