"""`rlplug tune`: search for the options of a run."""

from __future__ import annotations

from typing import Any

import click

from rlplug.cli.command import Command
from rlplug.cli.completion import complete_settings
from rlplug.cli.options import SEED, option, training_options, with_options
from rlplug.cli.run import make_request
from rlplug.errors import RequestError
from rlplug.registry import Registry

__all__ = ["parse_spaces", "tune"]


_DIRECTIONS = ("maximize", "minimize")


@click.command(cls=Command)
@with_options(
    option(
        "--space KEY=RANGE",
        "An option and its range, as in the example, or its choices: "
        "'net_arch={choices=[[64],[256,256]]}'; repeatable, or [tune.space] of the file.",
        "spaces",
        many=True,
        complete=complete_settings,
    ),
    option("--trials N", "Number of trials; default: 20.", type=click.INT),
    option("--metric NAME", "Metric to optimize; default: the best evaluation's return."),
    option("--direction", "Default: minimize regret and losses.", type=_DIRECTIONS, rare=True),
    option("--sampler NAME", "Optuna's sampler; default: tpe.", rare=True),
    option("--pruner NAME", "Optuna's pruner; default: median.", rare=True),
)
@training_options("Seeds per trial; the score is their mean.")
@SEED
def tune(
    *,
    spaces: tuple[str, ...],
    trials: int | None,
    seeds: str | None,
    metric: str | None,
    direction: str | None,
    sampler: str | None,
    pruner: str | None,
    jobs: int | None,
    resume_existing: bool,
    trust: bool,
    quiet: bool,
    as_json: bool,
    **flags: Any,
) -> int:
    """Search for the options of a run: Optuna proposes trials, each a run of one study.

    \b
    rlplug tune --algo ppo --env CartPole-v1 --trials 20 \\
        --space 'learning_rate={low=1e-5,high=1e-2,log=true}'
    rlplug tune --config tune.toml --jobs 4          with [tune] and [tune.space]
    """
    from rlplug.cli.groups import finish_group
    from rlplug.runs.groups.study import import_optuna
    from rlplug.runs.request import find_plugins, layers_of

    name = flags.pop("tracking__run_name")
    request = make_request(tracking__run_name=None, **flags)
    registry = Registry.installed()
    # Before the import of torch, so that a wrong name is answered at once.
    find_plugins(layers_of(request), registry)
    import_optuna()
    given: dict[str, Any] = {"trials": trials, "seeds": seeds, "metric": metric}
    given |= {"direction": direction, "sampler": sampler, "pruner": pruner}
    given["space"] = parse_spaces(spaces)
    from rlplug.runs.groups.asked import search_of
    from rlplug.runs.groups.life import run_group

    values = {key: value for key, value in given.items() if value is not None}
    asked = search_of(request, values, registry, name or "")
    return finish_group(
        lambda display: run_group(asked, jobs or 0, display, resume_existing=resume_existing),
        quiet=quiet,
        as_json=as_json,
    )


def parse_spaces(texts: tuple[str, ...]) -> dict[str, Any]:
    """The ranges of `--space`."""
    from rlplug.config.sources import parse_setting

    found: dict[str, Any] = {}
    for text in texts:
        if "=" not in text:
            raise RequestError(
                f"--space takes KEY=RANGE, got {text!r}.",
                "try: --space 'learning_rate={low=1e-5,high=1e-2,log=true}'",
            )
        setting = parse_setting(text)
        if setting.key in found:
            raise RequestError(f"--space {setting.key} is given twice.", "try: it once")
        found[setting.key] = setting.value
    return found
