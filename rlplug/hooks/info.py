"""What those who watch a run are told about it at its start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import attrs

from rlplug.config.sections import RunConfig
from rlplug.hooks.resolved import Participant

__all__ = ["RunInfo"]


@attrs.frozen(kw_only=True)
class RunInfo:
    """One run as its listeners see it."""

    run_id: str
    folder: Path
    """Where the run keeps its files."""
    config: RunConfig
    participants: tuple[Participant, ...]
    """The algorithm, then the add-ons in order."""
    hook_order: Mapping[str, list[str]]
    environment: str
    """The environment's id, or a description of the callable that made it."""
    feed: str = ""
    """What the feed keeps and what that costs, in one line; empty if it keeps nothing."""
    steps: int
    """Environment steps the run will have taken at its end."""
    progress: Callable[[], int]
    """Environment steps taken so far, for displays that look by themselves."""
    step: int = 0
    """Environment steps already taken, if the run was resumed."""
    resumed: bool = False
    rerunnable: bool = True
    """False if it was started from Python with classes or instances that have no installed name."""
