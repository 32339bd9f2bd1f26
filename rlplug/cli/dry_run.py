"""What `rlplug run --dry-run` prints: the options, where each came from, and who takes part."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rlplug.cli.terminal import console
from rlplug.config.toml import flat

if TYPE_CHECKING:
    from rlplug.runs.prepare import Prepared

__all__ = ["print_prepared"]


def print_prepared(prepared: Prepared) -> None:
    """Print the resolved options as TOML with their origins, then plugins and hook order."""
    from rich.text import Text

    shown = console()
    width = max(len(line) for line, _ in _lines(prepared))
    for line, origin in _lines(prepared):
        comment = (f"  # {origin}", "dim") if origin else ""
        shown.print(Text.assemble(f"{line:<{width}}" if origin else line, comment))
    shown.print("\n[bold]plugins[/bold]")
    for participant in (prepared.algorithm, *prepared.addons):
        shown.print(f"  {participant.label}", markup=False)
    shown.print("\n[bold]hooks, in call order[/bold]")
    for hook, names in prepared.hooks().order().items():
        shown.print(f"  {hook:<32} {' → '.join(names)}", markup=False)


def _lines(prepared: Prepared) -> Iterator[tuple[str, str]]:
    section = None
    for path, value in flat(prepared.config).items():
        *parents, name = path.split(".")
        if parents != section:
            if section is not None:
                yield "", ""
            section = parents
            yield f"[{'.'.join(parents)}]", ""
        yield f"{name} = {_toml(value)}", prepared.origins[path]


def _toml(value: object) -> str:
    # TOML's word for infinity is not that of JSON.
    return "inf" if value == math.inf else json.dumps(value, ensure_ascii=False)
