"""`rlplug run --dry-run`: print the resolved options, their origins, and the plugins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rlplug.cli.terminal import console
from rlplug.config.secrets import masked
from rlplug.config.toml import as_mapping, bare_key, toml_value

if TYPE_CHECKING:
    from rlplug.runs.prepare import Prepared

__all__ = ["print_prepared"]


def print_prepared(prepared: Prepared, feed: str) -> None:
    """Print options as TOML with their origins, then plugins, hook order and memory."""
    from rich.text import Text

    # First, so that errors in hooks are raised before anything is printed.
    order = prepared.hooks().order()
    shown = console()
    width = max(len(line) for line, _ in _lines(prepared))
    for line, origin in _lines(prepared):
        comment = (f"  # {origin}", "dim") if origin else ""
        shown.print(Text.assemble(f"{line:<{width}}" if origin else line, comment))
    shown.print("\n[bold]plugins[/bold]")
    for participant in (prepared.algorithm, *prepared.addons):
        shown.print(f"  {participant.label}", markup=False)
    shown.print("\n[bold]hooks, in call order[/bold]")
    for hook, names in order.items():
        shown.print(f"  {hook:<32} {' → '.join(names)}", markup=False)
    if feed:
        shown.print("\n[bold]memory[/bold]")
        shown.print(f"  {feed}", markup=False)


def _lines(prepared: Prepared) -> Iterator[tuple[str, str]]:
    section: tuple[str, ...] = ()
    for path, value in _leaves(masked(as_mapping(prepared.config)), ()):
        *parents, name = path
        if tuple(parents) != section:
            if section:
                yield "", ""
            section = tuple(parents)
            yield f"[{'.'.join(map(bare_key, parents))}]", ""
        yield f"{bare_key(name)} = {toml_value(value)}", prepared.origins[".".join(path)]


def _leaves(
    values: Mapping[str, Any], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All values with their paths, those of a section before its subsections."""
    for name, value in values.items():
        if not isinstance(value, Mapping):
            yield (*path, name), value
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, name))
