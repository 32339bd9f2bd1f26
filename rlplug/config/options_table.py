"""Options of a config class as a table, for `plugins show` and READMEs."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import attrs

from rlplug.config.sections import CORE_SECTIONS, ModuleSection, TuneSection
from rlplug.config.strict import type_name
from rlplug.config.toml import plain


@attrs.frozen
class OptionRow:
    """One option as text."""

    name: str
    type: str
    default: str
    help: str


def sections() -> dict[str, type[Any]]:
    """The sections of every run by name, of each of its modules, and of a study."""
    return {**CORE_SECTIONS, "modules.NAME": ModuleSection, "tune": TuneSection}


def rows(config: type[Any]) -> list[OptionRow]:
    """One row per option, in the order of the class."""
    types = get_type_hints(config)
    # A required option has no valid default.
    with attrs.validators.disabled():
        defaults = config()
    return [
        OptionRow(
            "…" if field.metadata.get("rest") else field.name,
            _type(types[field.name], field),
            json.dumps(plain(getattr(defaults, field.name))).replace("Infinity", "inf"),
            field.metadata["help"],
        )
        for field in attrs.fields(config)
    ]


def _type(declared: Any, field: attrs.Attribute[Any]) -> str:
    schedule = " or schedule" if field.metadata["schedulable"] else ""
    return ", ".join([type_name(declared) + schedule, *field.metadata["limits"]])


def markdown(config: type[Any]) -> str:
    """The rows as a Markdown table."""
    lines = ["| option | type | default | what it does |", "|---|---|---|---|"]
    lines += [
        f"| `{row.name}` | {row.type} | `{row.default}` | {row.help} |" for row in rows(config)
    ]
    return "\n".join(lines) + "\n"
