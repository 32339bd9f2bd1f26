"""`rlplug ablate`: what an add-on is worth, by pairs of seeds."""

from __future__ import annotations

from typing import Any

import click

from rlplug.cli.command import Command
from rlplug.cli.completion import complete_plugins
from rlplug.cli.options import option, training_options
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
    from rlplug.cli.compare import show_compared
    from rlplug.cli.groups import print_interrupted
    from rlplug.review.comparison import Compared
    from rlplug.runs.groups.ablation import variants
    from rlplug.runs.groups.asked import Asked
    from rlplug.runs.groups.display import GroupDisplay, QuietDisplay
    from rlplug.runs.groups.life import run_group
    from rlplug.runs.groups.seeds import parse_seeds, refuse_seed_option
    from rlplug.runs.prepare import prepare

    registry = Registry.installed()
    request = make_request(**flags)
    refuse_seed_option(request)
    chosen = parse_seeds(seeds or "5")
    requests = variants(request, flags["run__addons"], without, registry)
    # All of them first, so that what is wrong with one is said before the others are run.
    groups = [Asked.of_seeds(prepare(variant, registry), chosen) for variant in requests.values()]
    display = QuietDisplay if quiet or as_json else GroupDisplay
    compared = []
    for variant in groups:
        outcome = run_group(variant, jobs or 0, display, resume_existing=resume_existing)
        print_interrupted(outcome)
        result = outcome.result
        if result is not None and result.counted:
            compared.append(Compared(label=result.group, runs=result.counted))
        if outcome.code:
            break
    if compared[1:] and (as_json or not quiet):
        show_compared(compared, as_json=as_json)
    return outcome.code
