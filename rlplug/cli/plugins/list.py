"""`rlplug plugins list`: reads package metadata only, so that it is instant and cannot fail.

It prints without rich, which takes longer to import than the rest of the command.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

import click

from rlplug.cli.command import Command
from rlplug.cli.parameters import debug_option
from rlplug.registry import ADDON, ALGORITHM, FoundPlugin, Kind, Registry, is_name

__all__ = ["list_plugins"]

_HEADINGS: dict[Kind, str] = {ALGORITHM: "ALGORITHM", ADDON: "ADD-ON"}
_COLOURS = {"ok": "green", "unfit": "red", "clash": "red", "odd": "yellow"}


@click.command("list", cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option(
    "--requirements", is_flag=True, help="Print pinned requirements that install the same plugins."
)
@debug_option
def list_plugins(as_json: bool, requirements: bool) -> None:
    """List the installed algorithms and add-ons."""
    if as_json and requirements:
        raise click.UsageError("--json and --requirements exclude each other.")
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
    rows = _all_rows(registry)
    columns = [
        max(9, *(len(row["name"]) for row in rows)),
        max(7, *(len(row["package"]) for row in rows)),
        6,
    ]
    for index, kind in enumerate(kind for kind in _HEADINGS if registry.of_kind(kind)):
        if index:
            click.echo()
        heading = _aligned((_HEADINGS[kind], "PACKAGE", "STATUS"), columns)
        click.echo(_styled("  ".join(heading).rstrip(), bold=True))
        for row in rows:
            if row["kind"] == kind:
                name, package, status = _aligned(
                    (row["name"], row["package"], row["status"]), columns
                )
                coloured = _styled(status, fg=_COLOURS[row["status"]])
                first, *others = _wrapped(row["detail"], sum(columns) + 2 * len(columns))
                click.echo("  ".join((name, package, coloured, first)).rstrip())
                for line in others:
                    click.echo(line)


def _aligned(words: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [f"{word:<{width}}" for word, width in zip(words, widths, strict=True)]


def _wrapped(text: str, indent: int) -> list[str]:
    """The lines of the last column, wrapped to the terminal's width if there is one."""
    if sys.stdout is None or not sys.stdout.isatty():
        return [text]
    width = max(shutil.get_terminal_size().columns - indent, 24)
    first, *others = textwrap.wrap(text, width) or [""]
    return [first, *(" " * indent + line for line in others)]


def _styled(text: str, **style: Any) -> str:
    return text if os.environ.get("NO_COLOR") else click.style(text, **style)


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
