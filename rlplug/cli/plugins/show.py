"""`rlplug plugins show NAME`: the hooks, options and presets of one plugin."""

from __future__ import annotations

import inspect
import json
from typing import Any

import attrs
import click

from rlplug.cli.command import Command
from rlplug.cli.completion import complete_plugins
from rlplug.cli.parameters import debug_option
from rlplug.cli.terminal import console, print_options
from rlplug.registry import ADDON, ALGORITHM, FoundPlugin, Participant, Registry

__all__ = ["show"]


@click.command(cls=Command)
@click.argument("name", shell_complete=complete_plugins(ALGORITHM, ADDON))
@debug_option
def show(name: str) -> None:
    """Show the package, hooks, options and presets of one plugin."""
    registry = Registry.installed()
    found = registry.named(name)
    kind = registry.load(found)
    hooks = _implemented(found, kind)
    shown = console()
    shown.print(f"[bold]{found.label}[/bold]  {found.summary}", markup=True)
    shown.print(f"class    {found.target}")
    if found.kind == ALGORITHM:
        shown.print(
            f"default  {kind.default_env or 'no environment: name one with --env'}, "
            f"{kind.default_steps:,} steps"
        )
    if kind.__doc__:
        shown.print("\n" + inspect.cleandoc(kind.__doc__), markup=False)
    shown.print("\n[bold]Hooks[/bold]\n  " + ", ".join(hooks))
    _print_options(shown, kind.Config)
    _print_presets(shown, found, kind)
    _print_toml(shown, found, kind)


def _implemented(found: FoundPlugin, kind: Any) -> list[str]:
    """The hooks that the class implements, checked as in a run."""
    from rlplug.hooks.binding import bind

    with found.calling("__init__"):
        plugin = kind(kind.Config())
    participant = Participant(found, plugin, kind.Config())
    return [hook for hook, implementations in bind([participant]).items() if implementations]


def _print_options(shown: Any, config: type[Any]) -> None:
    from rlplug.config.options_table import rows

    shown.print("\n[bold]Options[/bold]")
    listed = rows(config)
    if listed:
        print_options(shown, listed)
        shown.print("  options of every run: rlplug options", style="dim")
    else:
        shown.print("  none")


def _print_presets(shown: Any, found: FoundPlugin, kind: Any) -> None:
    presets = getattr(kind, "presets", {})
    if not presets:
        return
    first = next(iter(presets))
    shown.print(
        f"\n[bold]Presets[/bold], named sets of options: rlplug run --algo {found.name} "
        f"--preset {first}"
    )
    for name, options in presets.items():
        shown.print(f"  {name}", markup=False)
        for path, value in options.items():
            shown.print(f"    {path} = {json.dumps(value)}", markup=False)


def _print_toml(shown: Any, found: FoundPlugin, kind: Any) -> None:
    import tomli_w

    from rlplug.config.toml import plain

    run: dict[str, Any] = {}
    section: dict[str, Any] = {}
    options = plain(kind.Config()) if attrs.fields(kind.Config) else {}
    if found.kind == ALGORITHM:
        run = {"algorithm": found.name}
        if kind.default_env:
            run["env"] = kind.default_env
        section = {"algorithm": options}
    else:
        run = {"addons": [found.name]}
        section = {"addons": {found.name: options}}
    text = tomli_w.dumps({"run": run, **section})
    for path, value in getattr(kind, "defaults", {}).items():
        text += f"\n# {path} = {json.dumps(value)}     (this algorithm's default)\n"
    shown.print("\n[bold]As run.toml[/bold], to copy: rlplug run --config run.toml")
    shown.print(text.rstrip(), markup=False)
