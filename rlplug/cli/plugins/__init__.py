"""`rlplug plugins`: what is installed, what it offers, and the hooks it is made of."""

from __future__ import annotations

import click

from rlplug.cli.debug import debug_option
from rlplug.cli.plugins.check import check
from rlplug.cli.plugins.hooks import hooks
from rlplug.cli.plugins.list import list_plugins
from rlplug.cli.plugins.show import show

__all__ = ["plugins"]


@click.group()
@debug_option
def plugins() -> None:
    """See what is installed and how plugins are made."""


plugins.add_command(list_plugins)
plugins.add_command(show)
plugins.add_command(check)
plugins.add_command(hooks)
