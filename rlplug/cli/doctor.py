"""`rlplug doctor`: what is wrong with what is installed, and one thing to do about each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from rlplug.cli.command import Command
from rlplug.cli.parameters import debug_option
from rlplug.cli.terminal import in_columns
from rlplug.cli.version import versions
from rlplug.errors import RlplugError
from rlplug.registry import ADDON, ALGORITHM, FoundPlugin, Registry, is_name

__all__ = ["doctor"]


@click.command(cls=Command)
@debug_option
def doctor() -> int:
    """List plugins, versions, deprecations and clashes; exits with 1 if a plugin cannot be used.

    Every plugin is imported and its hooks are checked.
    """
    registry = Registry.installed()
    for line in in_columns(versions()):
        click.echo(line)
    problems = notes = 0
    click.echo()
    for kind in (ALGORITHM, ADDON):
        for name, found in sorted(registry.grouped(kind).items()):
            wrong, deprecated = _examined(found, registry)
            problems += bool(wrong)
            notes += len(deprecated)
            sign = "FAILED" if wrong else "warns" if deprecated else "ok"
            colour = {"FAILED": "red", "warns": "yellow", "ok": "green"}[sign]
            packages = ", ".join(one.package for one in found)
            click.echo(f"{click.style(f'{sign:<6}', fg=colour)}  {name}  ({packages})")
            for line in (*wrong, *deprecated):
                click.echo("        " + line.replace("\n", "\n        "))
    click.echo()
    click.echo(_summary(len(registry.found), problems, notes))
    return 1 if problems else 0


def _examined(found: Sequence[FoundPlugin], registry: Registry) -> tuple[list[str], list[str]]:
    """What is wrong with the plugins of a name, and what they use that will go."""
    if len(found) > 1:
        return [
            f"{len(found)} packages provide it: name one, as {found[0].distribution}:"
            f"{found[0].name}, or uninstall the other"
        ], []
    try:
        return [], list(_deprecations(found[0], registry))
    except RlplugError as error:
        return [str(error)], []


def _deprecations(found: FoundPlugin, registry: Registry) -> Iterator[str]:
    kind = registry.load(found)
    from rlplug.hooks.binding import deprecations
    from rlplug.registry import Participant

    with found.calling("__init__"):
        plugin = kind(kind.Config())
    yield from deprecations(Participant(found, plugin, plugin.config))
    if not is_name(found.name):
        yield "its name should be lower case letters, digits and dashes"
    if not any(line.lower().startswith("rlplug") and "<" in line for line in found.requires):
        yield "it does not bound the version of rlplug: add rlplug>=0.1,<0.2 to its dependencies"


def _summary(count: int, problems: int, notes: int) -> str:
    if not count:
        return "no plugins are installed.\n  try: pip install rlplug-linucb"
    said = f"{count} plugin{'s' if count > 1 else ''}: "
    said += f"{problems} cannot be used" if problems else "all can be used"
    return said + (f", {notes} warning{'s' if notes > 1 else ''}" if notes else "")
