"""`rlplug resume`: go on with a run that was interrupted or killed."""

from __future__ import annotations

from typing import Any

import click

from rlplug.cli.command import Command
from rlplug.cli.options import (
    JOBS,
    JSON,
    PROFILE,
    QUIET,
    RUN,
    SET,
    STEPS,
    TRUST,
    option,
    with_options,
)
from rlplug.cli.process import Start
from rlplug.errors import RequestError
from rlplug.scale.launcher import place_of_torchrun

__all__ = ["resume"]


@click.command(cls=Command)
@with_options(RUN, STEPS, SET)
@option("--allow-drift", "Allow other options or plugin versions than before.")
@with_options(PROFILE, JOBS, TRUST, QUIET, JSON)
def resume(
    *,
    run: str,
    run__steps: int | None,
    settings: tuple[str, ...],
    allow_drift: bool,
    profile: bool,
    jobs: int | None,
    trust: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Go on with a run, a group of seeds or a study from its last checkpoint.

    RUN is an id or its first characters, a name, last, or the name of a group or study. A run
    that is not in the runs folder is downloaded from MLflow.

    \b
    rlplug resume last
    rlplug resume last --steps 200000                           train on
    rlplug resume last --set learning_rate=1e-4 --allow-drift
    """
    place = place_of_torchrun()
    if place is not None and place.index > 0:
        from rlplug.runs.learners import follow

        return follow(place)
    from rlplug.cli.groups import finish_group
    from rlplug.config.sources import PROFILE as PROFILE_SETTING
    from rlplug.config.sources import parse_setting
    from rlplug.runs.groups.group import find_group
    from rlplug.tracking.location import runs_folder

    chosen = (*map(parse_setting, settings), *([PROFILE_SETTING] if profile else []))
    shown: dict[str, Any] = {"quiet": quiet, "as_json": as_json}
    root = runs_folder()
    group = find_group(root, run)
    if group is not None:
        from rlplug.runs.groups.life import resume_group

        how: dict[str, Any] = {"steps": run__steps or 0, "settings": chosen}
        how |= {"allow_drift": allow_drift, "trust": trust}
        return finish_group(lambda display: resume_group(group, jobs or 0, display, **how), **shown)
    if jobs is not None:
        raise RequestError(f"--jobs needs a group, and {run!r} is not one.", "try: without --jobs")
    from rlplug.checkpoint.lookup import run_to_resume
    from rlplug.tracking.console import console_for

    # Before the import of torch, so that a wrong name is answered at once.
    folder = run_to_resume(run)
    console = None if quiet else console_for()
    if console is not None:
        console.say(f"preparing to go on with run {folder.name[:8]} …")
    from rlplug.cli.outcome import finish
    from rlplug.runs.life import Run
    from rlplug.runs.resume import resumable

    resumed = resumable(
        folder, steps=run__steps or 0, settings=chosen, allow_drift=allow_drift, trust=trust
    )
    going_on = Run(
        prepared=resumed.prepared, resumed=resumed, console=console, listeners=(Start(),)
    )
    return finish(going_on.carry_out, **shown)
