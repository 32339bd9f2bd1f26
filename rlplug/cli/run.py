"""`rlplug run`: train, and record the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rlplug.cli.complete import names_of
from rlplug.cli.debug import debug_option
from rlplug.registry import ADDON, ALGORITHM

__all__ = ["run"]


@click.command()
@click.option("--algo", metavar="NAME", shell_complete=names_of(ALGORITHM), help="The algorithm.")
@click.option("--env", metavar="ID", help="The environment; without it, the algorithm's own.")
@click.option("--steps", type=int, metavar="N", help="Environment steps to take.")
@click.option("--seed", type=int, metavar="N", help="Seed of all random numbers of the run.")
@click.option(
    "--with",
    "addons",
    multiple=True,
    metavar="ADDON",
    shell_complete=names_of(ADDON),
    help="An add-on that takes part; repeat for several, in order.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A TOML file of options.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="One option, over the file: gamma=0.9, sampling.num_envs=16.",
)
@click.option("--dry-run", is_flag=True, help="Check everything and print what would be run.")
@debug_option
def run(settings: tuple[str, ...], config: Path | None, dry_run: bool, **flags: Any) -> int:
    """Train with an algorithm that is installed.

    \b
    rlplug run --algo linucb
    rlplug run --config run.toml --seed 1 --set alpha=0.5
    """
    from rlplug.cli.dry_run import print_prepared
    from rlplug.config.sources import parse_setting
    from rlplug.registry import Registry
    from rlplug.runs.prepare import prepare
    from rlplug.runs.request import Request

    request = Request(
        config=config,
        flags=_flags(**flags),
        settings=tuple(parse_setting(text) for text in settings),
    )
    prepared = prepare(request, Registry.installed())
    prepared.hooks()
    if dry_run:
        print_prepared(prepared)
        return 0
    return 0


def _flags(
    algo: str | None, env: str | None, steps: int | None, seed: int | None, addons: tuple[str, ...]
) -> dict[str, Any]:
    """What the flags say, as the sections of a file would."""
    said = {"algorithm": algo, "env": env, "steps": steps, "seed": seed, "addons": list(addons)}
    return {"run": {name: value for name, value in said.items() if value not in (None, [])}}
