"""`rlplug ablate`: what an add-on is worth, by pairs of seeds."""

from __future__ import annotations

import json
from typing import Any

import click

from rlplug.cli.command import Command
from rlplug.cli.completion import complete_plugins
from rlplug.cli.options import option, training_options
from rlplug.cli.output import print_next
from rlplug.cli.run import make_request
from rlplug.registry import ADDON, Registry

__all__ = ["ablate"]


_WITHOUT = "Add-on to leave out; repeatable; default: each of --with in turn."


@click.command(cls=Command)
@training_options("The seeds of each variant: 5 (0 to 4, the default), 0-4, or 1,2,5.")
@option("--without ADDON", _WITHOUT, many=True, complete=complete_plugins(ADDON))
def ablate(
    *,
    seeds: str | None,
    jobs: int | None,
    without: tuple[str, ...],
    resume_existing: bool,
    trust: bool,
    quiet: bool,
    as_json: bool,
    **flags: Any,
) -> int:
    """Train with and without an add-on on the same seeds, and compare them seed by seed.

    \b
    rlplug ablate --algo dqn --with rnd --with ema --without rnd
    rlplug ablate --algo ppo --without ema --env CartPole-v1 --seeds 10
    """
    from rlplug.runs.groups.ablation import ablate as carry_out
    from rlplug.runs.groups.ablation import variants
    from rlplug.runs.groups.display import GroupDisplay, QuietDisplay
    from rlplug.runs.groups.seed_numbers import parse_seeds, refuse_seed_option
    from rlplug.runs.request import find_plugins, layers_of

    registry = Registry.installed()
    request = make_request(**flags)
    refuse_seed_option(request)
    chosen = parse_seeds(seeds or "5")
    requests = variants(request, flags["run__addons"], without, registry)
    find_plugins(layers_of(requests[""]), registry)
    ablations, outcome = carry_out(
        requests,
        chosen,
        jobs or 0,
        QuietDisplay if quiet or as_json else GroupDisplay,
        registry,
        resume_existing=resume_existing,
    )
    for one in ablations:
        for line in [json.dumps(one.as_json())] if as_json else ("", *one.lines()):
            click.echo(line)
    if ablations and not (as_json or quiet):
        last = ablations[-1]
        print_next(f"compare {last.whole.group} {last.without.group}")
    return outcome.code
