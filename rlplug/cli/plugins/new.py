"""`rlplug plugins new NAME`: the package of a new plugin."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from rlplug.cli.command import Command
from rlplug.cli.parameters import debug_option
from rlplug.registry import Registry

__all__ = ["new"]


@click.command(cls=Command)
@click.argument("name")
@click.option("--addon", is_flag=True, help="An add-on instead of an algorithm.")
@click.option("--bandit", is_flag=True, help="An algorithm for bandits.")
@debug_option
def new(name: str, addon: bool, bandit: bool) -> None:
    """Create the package of a new plugin, which trains as it is, in the current folder.

    \b
    rlplug plugins new reinforce           a policy gradient
    rlplug plugins new reinforce --bandit  the same for bandits
    rlplug plugins new anchor --addon      a penalty beside any algorithm's loss
    """
    from rlplug.scaffold import Flavour, create_package

    if addon and bandit:
        raise click.UsageError("--addon and --bandit exclude each other.")
    flavour: Flavour = "addon" if addon else "bandit" if bandit else "algorithm"
    created = create_package(name, flavour, Path.cwd(), Registry.installed())
    names = created.names
    if names.plugin != name:
        click.echo(f"the name of the plugin is {names.plugin}; {name} is its distribution.")
    run = f"--algo NAME --with {names.plugin}" if addon else f"--algo {names.plugin}"
    folder = shlex.quote(names.distribution)
    click.echo(f"created {folder}: {created.summary[0].lower()}{created.summary[1:]}")
    click.echo(f"  its hooks       {names.package}/{'addon' if addon else 'algorithm'}.py")
    click.echo(f"  install it      pip install -e './{folder}[test]'")
    click.echo(f"  run it          rlplug run {run}")
    click.echo(f"  check it        rlplug plugins check {names.plugin}")
    click.echo(f"  its tests       pytest {folder}")
