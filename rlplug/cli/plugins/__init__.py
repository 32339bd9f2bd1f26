"""`rlplug plugins`: list, show, check and create plugins; print the hook reference."""

from __future__ import annotations

import click

from rlplug.cli.command import Command, Group
from rlplug.cli.parameters import debug_option
from rlplug.cli.plugins.check import check
from rlplug.cli.plugins.list import list_plugins
from rlplug.cli.plugins.new import new
from rlplug.cli.plugins.show import show

__all__ = ["plugins"]


@click.group(cls=Group)
@debug_option
def plugins() -> None:
    """List, show, check and create plugins, and print the hooks."""


@click.command(cls=Command)
@click.option(
    "--markdown",
    is_flag=True,
    help="Print the guide and the full reference.",
)
@debug_option
def hooks(markdown: bool) -> None:
    """List the hooks that plugins can implement."""
    from rlplug.hooks import reference

    if markdown:
        click.echo(reference.markdown(), nl=False)
        return
    for entry in reference.entries():
        click.echo(f"{click.style(entry.name, bold=True)}({', '.join(entry.arguments)})")
        click.echo(f"    {entry.summary}")
        click.echo(f"    called: {entry.called}\n")
    click.echo("full reference with examples: rlplug plugins hooks --markdown")


plugins.add_command(list_plugins)
plugins.add_command(show)
plugins.add_command(check)
plugins.add_command(new)
plugins.add_command(hooks)
