"""`rlplug plugins list`: read from metadata alone, so that it is instant and cannot break."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from rlplug.cli.debug import debug_option
from rlplug.cli.terminal import console
from rlplug.registry import ADDON, ALGORITHM, FoundPlugin, Kind, Registry, is_name

__all__ = ["list_plugins"]

_HEADINGS: dict[Kind, str] = {ALGORITHM: "ALGORITHM", ADDON: "ADD-ON"}
_COLOURS = {"ok": "green", "unfit": "red", "clash": "red", "odd": "yellow"}


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list instead of a table.")
@click.option(
    "--requirements", is_flag=True, help="Print pins with which pip installs the same plugins."
)
@debug_option
def list_plugins(as_json: bool, requirements: bool) -> None:
    """List the installed algorithms and add-ons."""
    if as_json and requirements:
        raise click.UsageError("--json and --requirements are two forms of one list: choose one.")
    registry = Registry.installed()
    if requirements:
        for pin in sorted({f"{one.distribution}=={one.version}" for one in registry.found}):
            click.echo(pin)
    elif as_json:
        click.echo(json.dumps([_as_json(row) for row in _all_rows(registry)], indent=2))
    else:
        _print(registry)


def _print(registry: Registry) -> None:
    if not registry.found:
        click.echo("no plugins are installed.")
        click.echo("  try: pip install rlplug-linucb")
        return
    from rich.table import Table
    from rich.text import Text

    shown = console()
    rows = _all_rows(registry)
    name_width = max(len(row["name"]) for row in rows)
    package_width = max(len(row["package"]) for row in rows)
    for index, kind in enumerate(kind for kind in _HEADINGS if registry.of_kind(kind)):
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column(_HEADINGS[kind], no_wrap=True, min_width=max(name_width, 9))
        table.add_column("PACKAGE", no_wrap=True, min_width=package_width)
        table.add_column("STATUS", no_wrap=True)
        table.add_column("")
        for row in rows:
            if row["kind"] == kind:
                status = Text(row["status"], style=_COLOURS[row["status"]])
                table.add_row(row["name"], row["package"], status, row["detail"])
        if index:
            click.echo()
        shown.print(table)


def _all_rows(registry: Registry) -> list[dict[str, Any]]:
    return [
        _row(kind, name, plugins)
        for kind in _HEADINGS
        for name, plugins in sorted(registry.grouped(kind).items())
    ]


def _row(kind: Kind, name: str, plugins: Sequence[FoundPlugin]) -> dict[str, Any]:
    if len(plugins) > 1:
        package = f"{len(plugins)} packages"
        status, detail = "clash", ", ".join(plugin.package for plugin in plugins)
    else:
        (plugin,) = plugins
        package = plugin.package
        unfit = plugin.incompatibility()
        if unfit is not None:
            status, detail = "unfit", unfit
        elif not is_name(name):
            status, detail = "odd", "names are lower case letters, digits and dashes"
        else:
            status, detail = "ok", plugin.summary
    return {
        "kind": kind,
        "name": name,
        "package": package,
        "status": status,
        "detail": detail,
        "plugins": plugins,
    }


def _as_json(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": row["kind"],
        "name": row["name"],
        "status": row["status"],
        "detail": row["detail"],
        "packages": [
            {
                "distribution": plugin.distribution,
                "version": plugin.version,
                "class": plugin.target,
                "summary": plugin.summary,
            }
            for plugin in row["plugins"]
        ],
    }
