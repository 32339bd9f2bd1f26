"""Options of the commands that train: the algorithm, where it learns, and its options."""

from __future__ import annotations

from pathlib import Path

import click

from rlplug.cli.completion import complete_environments, complete_plugins, complete_presets
from rlplug.registry import ADDON, ALGORITHM

__all__ = [
    "addons_option",
    "algo_option",
    "config_option",
    "env_option",
    "preset_option",
    "steps_option",
]

algo_option = click.option(
    "--algo", metavar="NAME", shell_complete=complete_plugins(ALGORITHM), help="Algorithm to train."
)

env_option = click.option(
    "--env",
    metavar="ID",
    shell_complete=complete_environments,
    help="Gymnasium id; default: the algorithm's environment.",
)

steps_option = click.option(
    "--steps", type=int, metavar="N", help="Total number of environment steps."
)

preset_option = click.option(
    "--preset",
    metavar="NAME",
    shell_complete=complete_presets,
    help="Named set of options of the algorithm; see plugins show.",
)

addons_option = click.option(
    "--with",
    "addons",
    multiple=True,
    metavar="ADDON",
    shell_complete=complete_plugins(ADDON),
    help="Add-on to use; repeatable, called in this order.",
)

config_option = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="TOML file with options.",
)
