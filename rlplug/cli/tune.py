"""`rlplug tune`: search for the options of a run."""

from __future__ import annotations

from typing import Any

import click

from rlplug.cli.command import RunCommand
from rlplug.cli.completion import complete_settings, complete_spaces
from rlplug.cli.groups import finish_group
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
from rlplug.registry import Registry

__all__ = ["tune"]


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
    from rlplug.runs.groups.study import import_optuna
    from rlplug.runs.request import find_plugins, layers_of

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
    from rlplug.runs.groups.tune import carry_out_study
    from rlplug.runs.groups.tune_request import TuneRequest

    asked = TuneRequest.of(request, values, registry)
    return finish_group(
        lambda display: carry_out_study(asked, jobs or 0, display, name or ""),
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
