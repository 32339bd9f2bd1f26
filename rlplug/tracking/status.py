"""The status of a run in its folder, `status.json`: known without asking MLflow."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import Self

import attrs

from rlplug.durable import write_durably

__all__ = [
    "HEARTBEAT",
    "RUNNING",
    "STATUS",
    "TAGS",
    "RunStatus",
    "add_tags",
    "beat",
    "end_heartbeat",
    "forget_tags",
    "kept_tags",
    "milliseconds",
    "now",
]

STATUS = "status.json"
TAGS = "tags.json"
HEARTBEAT = "heartbeat"
RUNNING = "RUNNING"


@attrs.frozen(kw_only=True)
class RunStatus:
    """How far a run is, or how it ended."""

    status: str = RUNNING
    step: int = 0
    stop_reason: str = ""
    started: str = ""
    ended: str = ""
    attempt: int = 1
    """How often the run was started: 1, and one more for every resume."""
    pending: bool = False
    """Of a run that has ended: whether something of it is not in MLflow."""

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The status of the run in a folder; None if there is no valid one."""
        try:
            facts = json.loads((folder / STATUS).read_text())
            values = {name: facts[name] for name in attrs.asdict(cls())}
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        types = {name: type(default) for name, default in attrs.asdict(cls()).items()}
        return cls(**values) if {name: type(x) for name, x in values.items()} == types else None

    def write(self, folder: Path) -> None:
        """Replace `status.json`, and start the heartbeat of a run in progress."""
        content = (json.dumps(attrs.asdict(self), indent=2) + "\n").encode()
        path = folder / STATUS
        try:
            write_durably(path, content)
        except OSError:
            # A full disk has no room for a second file, but the first one keeps its block.
            with path.open("r+b") as file:
                file.write(content)
                file.truncate()
        if self.status == RUNNING:
            (folder / HEARTBEAT).touch()


def add_tags(folder: Path, tags: Mapping[str, str]) -> None:
    """Keep tags that the run has in MLflow, so that they can be set later."""
    content = json.dumps({**kept_tags(folder), **tags}, indent=2) + "\n"
    write_durably(folder / TAGS, content.encode())


def forget_tags(folder: Path, names: Collection[str]) -> None:
    """Keep these tags no longer."""
    tags = kept_tags(folder)
    left = {name: value for name, value in tags.items() if name not in names}
    if left != tags:
        write_durably(folder / TAGS, (json.dumps(left, indent=2) + "\n").encode())


def kept_tags(folder: Path) -> dict[str, str]:
    """The tags that `add_tags` kept."""
    try:
        tags = json.loads((folder / TAGS).read_text())
        return {str(name): str(value) for name, value in tags.items()}
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}


def beat(folder: Path) -> None:
    """Say that the run is still in progress: other hosts look at the time of the file."""
    os.utime(folder / HEARTBEAT)


def end_heartbeat(folder: Path) -> None:
    """Say that nothing is left to be done for the run by its process."""
    with contextlib.suppress(OSError):
        (folder / HEARTBEAT).unlink(missing_ok=True)


def now(seconds: float | None = None) -> str:
    """The time, or that of these seconds since the epoch, as `started` and `ended` are written."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(seconds))


def milliseconds(moment: str) -> int | None:
    """The milliseconds since the epoch of a time as `status.json` has it."""
    try:
        return int(datetime.strptime(moment, "%Y-%m-%dT%H:%M:%S%z").timestamp() * 1000)
    except ValueError:
        return None
