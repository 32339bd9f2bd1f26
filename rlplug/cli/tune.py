"""`rlplug tune`: search for the options of a run."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from rlplug.cli.command import RunCommand
from rlplug.cli.completion import complete_settings, complete_spaces
from rlplug.cli.parameters import debug_option
from rlplug.cli.run import make_request
from rlplug.cli.run_options import (
    addons_option,
    algo_option,
    config_option,
    env_option,
    preset_option,
    steps_option,
)
from rlplug.cli.terminal import console
from rlplug.quantities import format_number, format_path
from rlplug.registry import Registry

if TYPE_CHECKING:
    from rlplug.runs.seeds.several import MakeDisplay, ShownSeeds
    from rlplug.runs.tuning.tune import TuneOutcome

__all__ = ["finish_study", "tune"]


@click.command(cls=RunCommand, context_settings={"allow_extra_args": True})
@algo_option
@env_option
@steps_option
@click.option(
    "--space",
    "spaces",
    multiple=True,
    metavar="KEY=RANGE",
    shell_complete=complete_spaces,
    help="An option to search: 'learning_rate={low=1e-5,high=1e-2,log=true}', or "
    "'net_arch={choices=[[64],[256,256]]}'; repeatable, or [tune.space] of the file.",
)
@click.option("--trials", type=int, metavar="N", help="Number of trials; default: 20.")
@click.option(
    "--scale",
    "engine",
    type=click.Choice(["local", "ray"]),
    help="Where the trials run: in processes of this host, or on a Ray cluster.",
)
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Runs at a time.")
@click.option("--seed", type=int, metavar="N", help="Random seed of each trial.")
@click.option("--seeds", metavar="SEEDS", help="Several seeds for each trial, which is their mean.")
@click.option(
    "--metric", metavar="NAME", help="Metric to optimize; default: the best evaluation's return."
)
@click.option(
    "--direction",
    type=click.Choice(["maximize", "minimize"]),
    help="Default: minimize regret and losses, maximize what else.",
)
@click.option("--sampler", metavar="NAME", help="Optuna's sampler; default: tpe.")
@click.option("--pruner", metavar="NAME", help="Optuna's pruner, or none; default: median.")
@click.option(
    "--study",
    "name",
    metavar="NAME",
    help="Name of the study, which goes on if there is one; default: by its options.",
)
@preset_option
@addons_option
@config_option
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=complete_settings,
    help="Set an option of all trials, or one of [tune]: tune.seed=1.",
)
@click.option(
    "--tag", "tags", multiple=True, metavar="KEY=VALUE", help="MLflow tag of all runs; repeatable."
)
@click.option("--quiet", is_flag=True, help="Print errors only.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one line of JSON.")
@debug_option
def tune(
    spaces: tuple[str, ...],
    trials: int | None,
    jobs: int | None,
    seeds: str | None,
    metric: str | None,
    direction: str | None,
    sampler: str | None,
    pruner: str | None,
    name: str | None,
    quiet: bool,
    as_json: bool,
    **flags: Any,
) -> int:
    """Search for the options of a run: trials that Optuna proposes, each a run of one group.

    The same command goes on with a study that was interrupted, and so does rlplug resume STUDY.

    \b
    rlplug tune --algo ppo --env CartPole-v1 --trials 20 \\
        --space 'learning_rate={low=1e-5,high=1e-2,log=true}'
    rlplug tune --config tune.toml --jobs 4         with [tune] and [tune.space]
    rlplug options tune                             all options of a study
    """
    from rlplug.runs.request import find_plugins, layers_of
    from rlplug.runs.tuning.study import import_optuna

    request = make_request(**flags)
    registry = Registry.installed()
    # Before the import of torch, so that a wrong name is answered at once.
    find_plugins(layers_of(request), registry)
    import_optuna()
    given = {
        "trials": trials,
        "seeds": seeds,
        "metric": metric,
        "direction": direction,
        "sampler": sampler,
        "pruner": pruner,
    }
    values: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    values["space"] = _spaces(spaces)
    from rlplug.runs.tuning.asked import TuneRequest
    from rlplug.runs.tuning.tune import tune as carry_out

    asked = TuneRequest.of(request, values, registry)
    return finish_study(
        lambda display: carry_out(asked, jobs or 0, display, name or ""),
        quiet=quiet,
        as_json=as_json,
    )


def _spaces(texts: tuple[str, ...]) -> dict[str, Any]:
    """The ranges of `--space`."""
    from rlplug.config.sources import parse_setting
    from rlplug.errors import RequestError

    found: dict[str, Any] = {}
    for text in texts:
        if "=" not in text:
            raise RequestError(
                f"--space takes KEY=RANGE, got {text!r}.",
                "try: --space 'learning_rate={low=1e-5,high=1e-2,log=true}'",
            )
        one = parse_setting(text)
        if one.key in found:
            raise RequestError(f"--space {one.key} is given twice.", "try: it once")
        found[one.key] = one.value
    return found


def finish_study(
    carry_out: Callable[[MakeDisplay], TuneOutcome], *, quiet: bool, as_json: bool
) -> int:
    """Carry out a study and print how it ended; returns the exit code."""

    def display(title: str) -> ShownSeeds:
        from rlplug.runs.seeds.display import QuietSeeds, display_for

        return QuietSeeds(title) if quiet else display_for(title)

    outcome = carry_out(display)
    if as_json and outcome.summary is not None:
        of_all = {"summary_run_id": outcome.run_id, "folder": str(outcome.group.folder)}
        print(json.dumps({**outcome.summary.as_json(), **of_all}), flush=True)
    elif not quiet and outcome.summary is not None:
        shown = console()
        for line in (*outcome.summary.lines(shown.width), "", *_where(outcome)):
            shown.print(line, markup=False, soft_wrap=True)
    if outcome.ended_by:
        # After SIGHUP nobody reads.
        with contextlib.suppress(OSError):
            print(
                "rlplug: interrupted; what has finished is kept.\n"
                f"  go on with it: the same command, or {_resume(outcome)}",
                file=sys.stderr,
                flush=True,
            )
    return outcome.code


def _where(outcome: TuneOutcome) -> Iterator[str]:
    """The best trial, how to train with its options, and where to look."""
    from rlplug.config.toml import toml_value

    summary = outcome.summary
    assert summary is not None
    best, run = summary.best, summary.best_run
    if best is not None:
        score = format_number(best.proposal.score)
        yield f"best: trial {best.proposal.number}, {summary.label} {score}"
        for name, value in best.proposal.values.items():
            yield f"  {name} = {toml_value(value)}"
    if best is not None and run is not None and not outcome.ended_by:
        file = shlex.quote(format_path(outcome.group.folder / "best.toml"))
        yield f"train with its options: rlplug run --config {file} --seeds 5"
        yield f"the same run again: rlplug run --like {run.short}"
    yield f"study {summary.study}"
    yield f"in {format_path(outcome.group.folder)}"
    if outcome.run_id:
        yield f"summary in MLflow: run {outcome.run_id}"
        yield "look at it: rlplug ui"


def _resume(outcome: TuneOutcome) -> str:
    from rlplug.tracking.location import default_folder

    root = outcome.group.root
    home = "" if root == default_folder() else f"RLPLUG_HOME={shlex.quote(str(root))} "
    return f"{home}rlplug resume {outcome.group.name}"
