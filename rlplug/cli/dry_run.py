"""`rlplug run --dry-run`: print the resolved options, their origins, and the plugins."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rlplug.cli.terminal import console
from rlplug.config.secrets import masked
from rlplug.config.toml import as_mapping

if TYPE_CHECKING:
    from rlplug.runs.prepare import Prepared

__all__ = ["print_prepared"]

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


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
            yield f"[{'.'.join(map(_key, parents))}]", ""
        yield f"{_key(name)} = {_toml(value)}", prepared.origins[".".join(path)]


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


def _key(name: str) -> str:
    return name if _BARE.match(name) else json.dumps(name, ensure_ascii=False)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(name)} = {_toml(part)}' for name, part in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    # Numbers, inf and nan among them, and dates are TOML as Python writes them.
    return str(value)
