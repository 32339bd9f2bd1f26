"""Several seeds in this process, one after another: with parts that no other could import."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from rlplug.errors import FAILURES, RlplugError
from rlplug.runs.result import RunInterrupted, RunResult
from rlplug.runs.seeds.group import Group
from rlplug.runs.seeds.several import SeedsOutcome, concluded
from rlplug.runs.seeds.state import SeedState
from rlplug.tracking.location import RunFolder, runs_folder

__all__ = ["run_in_order"]

_LOG = logging.getLogger("rlplug")


def run_in_order(seeds: Sequence[int], run: Callable[[int], RunResult], what: str) -> SeedsOutcome:
    """Run the seeds; `what` keeps them from having processes of their own.

    A request that is wrong is raised as for one seed.
    """
    _LOG.warning("rlplug: the seeds run one after another in this process, because of %s.", what)
    states = [SeedState(seed=seed) for seed in seeds]
    ended_by, first_error = 0, None
    for state in states:
        try:
            result = run(state.seed)
        except RunInterrupted as interrupted:
            state.folder, state.status = interrupted.result.folder, "interrupted"
            ended_by = interrupted.number
            break
        except FAILURES as error:
            if getattr(error, "exit_code", 1) == 2 and not any(one.folder for one in states):
                raise
            first_error = first_error or error
            state.status = "failed"
            state.error = _lines(error)
        else:
            state.folder, state.status = result.folder, "finished"
    group = _group(states)
    if group is None and first_error is not None:
        raise first_error
    if group is not None:
        group.ask(seeds, next(one.folder for one in states if one.folder is not None))
    return concluded(states, ended_by, group)


def _lines(error: BaseException) -> list[str]:
    """As the command line prints it."""
    kind = "" if isinstance(error, RlplugError) else f"{type(error).__name__}: "
    return f"{kind}{error}".splitlines()


def _group(states: Sequence[SeedState]) -> Group | None:
    for state in states:
        run = None if state.folder is None else RunFolder.read(state.folder)
        if run is not None:
            return Group(runs_folder(), run.about.group)
    return None
