"""`rlplug resume`: go on with a run that was interrupted or killed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from rlplug.cli.command import Command
from rlplug.cli.completion import complete_runs
from rlplug.cli.parameters import debug_option
from rlplug.cli.process import starting
from rlplug.errors import RequestError
from rlplug.scale.launcher import is_follower

__all__ = ["resume"]


@click.command(cls=Command)
@click.argument("run", shell_complete=complete_runs, metavar="RUN")
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="Make the run this long.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change an option from here on; needs --allow-drift.",
)
@click.option(
    "--allow-drift",
    is_flag=True,
    help="Allow other options or plugin versions than the run was started with; recorded.",
)
@click.option(
    "--profile",
    is_flag=True,
    help="Trace some updates with torch's profiler, and print where the time went.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many seeds of a group run at a time; default: by cores and compute.num_threads.",
)
@click.option(
    "--trust",
    is_flag=True,
    help="Of a run that somebody else or another machine wrote, also run the code that it names, "
    "and read its pickled environments; remembered.",
)
@click.option("--quiet", is_flag=True, help="Print errors only.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one line of JSON.")
@debug_option
def resume(
    *,
    run: str,
    steps: int | None,
    settings: tuple[str, ...],
    allow_drift: bool,
    profile: bool,
    jobs: int | None,
    trust: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Go on with a run from its last checkpoint, under the same MLflow run.

    A run that is not in the runs folder is downloaded from MLflow, and goes on here.

    RUN is the id of a run or its first characters, its name, or last; or the group of several
    seeds, of which all that have not finished go on together; or a study of rlplug tune.

    \b
    rlplug resume last
    rlplug resume last --steps 200000                        train on
    rlplug resume last --set learning_rate=1e-4 --allow-drift
    rlplug resume a2c-CartPole-v1-1b2c3d4e                   all its seeds
    """
    if is_follower():
        from rlplug.cli.learner_process import follow_torchrun

        return follow_torchrun()
    from rlplug.checkpoint.lookup import run_to_resume
    from rlplug.config.sources import PROFILE, parse_setting
    from rlplug.runs.groups.group import find_group, is_study
    from rlplug.tracking.console import console_for
    from rlplug.tracking.location import runs_folder

    chosen = (*map(parse_setting, settings), *([PROFILE] if profile else []))
    if is_study(runs_folder(), run):
        refused = {"--steps": steps, "--set": settings, "--profile": profile}
        return _resume_study(run, refused, jobs or 0, trust=trust, quiet=quiet, as_json=as_json)
    group = find_group(runs_folder(), run)
    if group is not None:
        from rlplug.cli.groups import finish_group
        from rlplug.runs.groups.seeds import resume_seeds

        go_on = partial(resume_seeds, group, chosen, jobs or 0)
        return finish_group(
            partial(go_on, steps=steps or 0, allow_drift=allow_drift, trust=trust),
            quiet=quiet,
            as_json=as_json,
        )
    if jobs is not None:
        raise RequestError(f"--jobs is of several seeds, and {run!r} is no group.", "try: without")

    # Before the import of torch, so that a wrong name is answered at once.
    folder = run_to_resume(run)
    with starting() as start:
        console = None if quiet else console_for()
        if console is not None:
            console.say(f"preparing to go on with run {folder.name[:8]} …")
        from rlplug.cli.outcome import finish
        from rlplug.runs.life import Run
        from rlplug.runs.resume import resumable

        resumed = resumable(
            folder,
            steps=steps or 0,
            settings=chosen,
            allow_drift=allow_drift,
            trust=trust,
        )
        return finish(
            Run(
                prepared=resumed.prepared, resumed=resumed, console=console, listeners=(start,)
            ).carry_out,
            quiet=quiet,
            as_json=as_json,
        )


def _resume_study(
    name: str, refused: Mapping[str, Any], jobs: int, *, trust: bool, quiet: bool, as_json: bool
) -> int:
    """The trials of a study that it does not have yet."""
    given = [flag for flag, value in refused.items() if value]
    if given:
        raise RequestError(
            f"{name} is a study of rlplug tune, which goes on as it is; {given[0]} does not fit.",
            f"try: rlplug resume {name}",
        )
    from rlplug.cli.groups import finish_group
    from rlplug.registry import Registry
    from rlplug.runs.groups.tune import carry_out_study, kept_study
    from rlplug.tracking.location import runs_folder

    asked = kept_study(runs_folder(), name, Registry.installed(), trust=trust)
    return finish_group(
        lambda display: carry_out_study(asked, jobs, display, name), quiet=quiet, as_json=as_json
    )
