"""`rlplug version`: what is installed, for reports of bugs; nothing of it is imported."""

from __future__ import annotations

import platform
from importlib import metadata

import click

from rlplug.cli.command import Command
from rlplug.cli.parameters import debug_option
from rlplug.cli.terminal import in_columns
from rlplug.registry import Registry, core_version

__all__ = ["version", "versions"]

_PACKAGES = ("torch", "gymnasium", "mlflow", "numpy")


@click.command(cls=Command)
@debug_option
def version() -> None:
    """Print the versions of rlplug, its plugins, Python, and the packages they stand on."""
    for line in in_columns(versions()):
        click.echo(line)


def versions() -> dict[str, str]:
    """Package → its version, or the plugins that it brings."""
    rows = {"rlplug": core_version()}
    for plugin in Registry.installed().found:
        names = rows.get(plugin.package, "")
        rows[plugin.package] = f"{names}, {plugin.name}" if names else plugin.name
    rows["python"] = f"{platform.python_version()} on {platform.platform(terse=True)}"
    rows.update({name: _version(name) for name in _PACKAGES})
    return rows


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
