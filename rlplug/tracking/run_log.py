"""`logs/run.log`: what a run said, kept with its other files."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from rlplug.tracking.location import without_secrets
from rlplug.tracking.status import now

_LOGGER = "rlplug"


class RunLog(logging.Handler):
    """Appends the warnings of rlplug to a file; a full disk costs lines, and nothing else."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._path = folder / "logs" / "run.log"
        self._logger = logging.getLogger(_LOGGER)
        self._logger.addHandler(self)

    def write(self, level: str, message: str) -> None:
        """Append a line."""
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(exist_ok=True)
            with self._path.open("a") as file:
                file.write(f"{now()} {level} {without_secrets(message)}\n")

    def emit(self, record: logging.LogRecord) -> None:
        self.write(record.levelname, record.getMessage())
        last = logging.lastResort
        if last is not None and self._is_alone() and record.levelno >= last.level:
            # Python prints warnings to stderr only where a logger has no handler at all.
            last.handle(record)

    def close(self) -> None:
        """Stop listening."""
        self._logger.removeHandler(self)
        super().close()

    def _is_alone(self) -> bool:
        """Whether no other handler shows the warnings; of several runs, the first shows them."""
        found: list[logging.Handler] = []
        logger: logging.Logger | None = self._logger
        while logger is not None:
            found += logger.handlers
            logger = logger.parent if logger.propagate else None
        return found[:1] == [self] and all(isinstance(one, RunLog) for one in found)
