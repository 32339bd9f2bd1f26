"""Status, tags and models of a run in its folder: known without asking MLflow."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import attrs

from rlplug.durable import write_durably
from rlplug.tracking.location import read_object

STATUS = "status.json"
TAGS = "tags.json"
MODELS = "models.json"
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
        facts, known = read_object(folder / STATUS), attrs.asdict(cls())
        values: dict[str, Any] = {name: facts.get(name) for name in known}
        valid = all(type(values[name]) is type(default) for name, default in known.items())
        return cls(**values) if valid else None

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


def add_tags(folder: Path, tags: Mapping[str, str], *, without: Collection[str] = ()) -> None:
    """Keep tags that the run has in MLflow, so that they can be set later, and forget others."""
    before = kept_tags(folder)
    kept = {name: value for name, value in before.items() if name not in without} | dict(tags)
    if kept != before:
        write_durably(folder / TAGS, (json.dumps(kept, indent=2) + "\n").encode())


def kept_tags(folder: Path) -> dict[str, str]:
    """The tags that `add_tags` kept."""
    return {name: str(value) for name, value in read_object(folder / TAGS).items()}


def known_models(folder: Path) -> dict[str, str]:
    """Checkpoint → id of its model in MLflow, as the folder of a run has them."""
    return {name: str(model_id) for name, model_id in read_object(folder / MODELS).items()}


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
