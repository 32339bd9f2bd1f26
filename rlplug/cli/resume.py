"""`rlplug resume`: go on with a run that was interrupted or killed."""

from __future__ import annotations

import click

from rlplug.cli.command import Command
from rlplug.cli.parameters import debug_option

__all__ = ["resume"]


@click.command(cls=Command)
@click.argument("run", metavar="RUN")
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
@click.option("--quiet", is_flag=True, help="Print errors only.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one line of JSON.")
@debug_option
def resume(
    run: str,
    steps: int | None,
    settings: tuple[str, ...],
    allow_drift: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Go on with a run from its last checkpoint, under the same MLflow run.

    RUN is the id of a run or its first characters, its name, or last.

    \b
    rlplug resume last
    rlplug resume last --steps 200000                        train on
    rlplug resume last --set learning_rate=1e-4 --allow-drift
    """
    from rlplug.checkpoint.lookup import find_run

    # Before the import of torch, so that a wrong name is answered at once.
    folder = find_run(run, best_of_group=False)
    from rlplug.cli.outcome import finish
    from rlplug.config.sources import parse_setting
    from rlplug.runs.resume import resumable
    from rlplug.runs.run import carry_out

    resumed = resumable(
        folder,
        steps=steps or 0,
        settings=tuple(parse_setting(text) for text in settings),
        allow_drift=allow_drift,
    )
    return finish(
        lambda: carry_out(resumed.prepared, show=not quiet, resumed=resumed),
        quiet=quiet,
        as_json=as_json,
    )
