"""`rlplug ablate`: what an add-on is worth, by pairs of seeds."""

from __future__ import annotations

import json
from typing import Any

import click

from rlplug.cli.command import RunCommand
from rlplug.cli.completion import (
    complete_plugins,
    complete_settings,
)
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
from rlplug.registry import ADDON, Registry

__all__ = ["ablate"]


@click.command(cls=RunCommand, context_settings={"allow_extra_args": True})
@algo_option
@env_option
@steps_option
@click.option(
    "--seeds",
    metavar="SEEDS",
    default="5",
    show_default=True,
    help="The seeds of each variant: 5 (0 to 4), 0-4, or 1,2,5.",
)
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Runs at a time.")
@preset_option
@addons_option
@click.option(
    "--without",
    multiple=True,
    metavar="ADDON",
    shell_complete=complete_plugins(ADDON),
    help="Add-on to leave out; repeatable, one at a time; default: each of --with.",
)
@config_option
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=complete_settings,
    help="Set an option; those of an add-on are left out with it.",
)
@click.option("--quiet", is_flag=True, help="Print the differences only.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one line per add-on left out.")
@debug_option
def ablate(
    seeds: str,
    jobs: int | None,
    addons: tuple[str, ...],
    without: tuple[str, ...],
    quiet: bool,
    as_json: bool,
    **flags: Any,
) -> int:
    """Train with and without an add-on, with the same seeds, and compare seed by seed.

    \b
    rlplug ablate --algo dqn --with rnd --with ema --without rnd --seeds 5
    rlplug ablate --algo ppo --without ema --env CartPole-v1
    """
    from rlplug.runs.groups.ablation import ablate as carry_out
    from rlplug.runs.groups.ablation import variants
    from rlplug.runs.groups.display import GroupDisplay, QuietDisplay
    from rlplug.runs.groups.seed_numbers import parse_seeds, refuse_seed_option
    from rlplug.runs.request import find_plugins, layers_of

    registry = Registry.installed()
    request = make_request(addons=addons, **flags)
    refuse_seed_option(request)
    chosen = parse_seeds(seeds)
    requests = variants(request, addons, without, registry)
    find_plugins(layers_of(requests[""]), registry)
    display = QuietDisplay if quiet or as_json else GroupDisplay
    ablations, outcome = carry_out(requests, chosen, jobs or 0, display, registry)
    for index, one in enumerate(ablations):
        if as_json:
            click.echo(json.dumps(one.as_json()))
            continue
        if index or not quiet:
            click.echo()
        for line in one.lines():
            click.echo(line)
    return outcome.code
