"""Serialize options to TOML that reads back as the same options."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import attrs

from rlplug.config.schedule import Schedule
from rlplug.config.sections import CORE_SECTIONS, RunConfig

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


def as_mapping(config: RunConfig) -> dict[str, Any]:
    """The config as nested plain values, in the order of the sections."""
    sections: dict[str, Any] = {"run": plain(config.run), "algorithm": plain(config.algorithm)}
    if config.addons:
        sections["addons"] = {name: plain(options) for name, options in config.addons.items()}
    if config.modules:
        sections["modules"] = {name: plain(own) for name, own in config.modules.items()}
    for name in CORE_SECTIONS:
        # Which columns a log would have is no option of a run without one.
        if name == "data" and not config.data.is_used:
            continue
        sections.setdefault(name, plain(getattr(config, name)))
    return {name: values for name, values in sections.items() if values}


def flat(config: RunConfig | Mapping[str, Any]) -> dict[str, Any]:
    """Every option, of a config or of a file that was read, by its dotted path."""
    return dict(_leaves(config if isinstance(config, Mapping) else as_mapping(config), ""))


def plain(options: Any) -> Any:
    """Options as TOML-compatible values."""
    if attrs.has(type(options)) and not isinstance(options, Schedule):
        values: dict[str, Any] = {}
        for field in attrs.fields(type(options)):
            value = plain(getattr(options, field.name))
            if field.metadata.get("rest"):
                values.update(value)
            else:
                values[field.name] = value
        return values
    if isinstance(options, Schedule):
        return [[step, value] for step, value in options.pairs]
    if isinstance(options, Mapping):
        return {str(name): plain(value) for name, value in options.items()}
    if isinstance(options, list | tuple):
        return [plain(value) for value in options]
    return options


def bare_key(name: str) -> str:
    """A key, in quotation marks where it needs them."""
    return name if _BARE.match(name) else json.dumps(name, ensure_ascii=False)


def toml_value(value: object) -> str:
    """One plain value, in one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        pairs = (f"{bare_key(str(name))} = {toml_value(part)}" for name, part in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    # Numbers, inf and nan among them, and dates are TOML as Python writes them.
    return str(value)


def _leaves(values: Mapping[str, Any], path: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in values.items():
        where = f"{path}.{name}" if path else name
        found += _leaves(value, where) if isinstance(value, Mapping) else [(where, value)]
    return found
