"""Sources of options, TOML files and `--set`, and their precedence."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from rlplug.config.names import Owners, core_owners, names, unknown_option
from rlplug.config.sections import CORE_SECTIONS
from rlplug.durable import absolute_path
from rlplug.errors import Problem, RequestError, did_you_mean


@attrs.frozen
class Setting:
    """One `--set KEY=VALUE` with its parsed value."""

    key: str
    value: Any


PROFILE = Setting("profiler.enabled", value=True)
"""What `--profile` sets."""


class Layers:
    """Nested values where later ones override earlier ones, each with its origin."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[tuple[str, ...], str] = {}

    def merge(self, values: Mapping[str, Any], origin: str, path: tuple[str, ...] = ()) -> None:
        """Override with nested values."""
        for name, value in values.items():
            where = (*path, name)
            if isinstance(value, Mapping) and (value or self.section(*where)):
                self.merge(value, origin, where)
            else:
                # An empty table of its own: what is put into it later is not put into `values`.
                self.put(where, {} if isinstance(value, Mapping) else value, origin)

    def put(self, path: tuple[str, ...], value: Any, origin: str) -> None:
        """Set one value by its path."""
        *parents, last = path
        node = self.values
        for name in parents:
            below = node.get(name)
            if not isinstance(below, dict):
                below = node[name] = {}
            node = below
        node[last] = value
        self.origins[path] = origin

    def merge_layers(self, other: Layers) -> None:
        """Override with the values of another instance, each with its origin."""
        for path, origin in other.origins.items():
            *parents, last = path
            values = other.section(*parents)
            if isinstance(values, Mapping) and last in values:
                self.put(path, values[last], origin)

    def section(self, *path: str) -> Any:
        """The values under a path; an empty mapping if there are none."""
        node: Any = self.values
        for name in path:
            node = node.get(name, {}) if isinstance(node, Mapping) else {}
        return node


_CHOSEN = {"algorithm": "use --algo NAME", "addons": "use --with NAME for each"}


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; parse errors name the line."""
    try:
        # Some editors begin a file with a byte order mark.
        text = absolute_path(path, "--config").read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise RequestError(
            f"there is no file {str(path)!r}.", "try: --config with the path of a TOML file"
        ) from None
    except (OSError, ValueError) as error:
        raise RequestError(
            f"{str(path)!r} cannot be read: {error}.", "try: a readable text file"
        ) from error
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # TOMLDecodeError, or that of an integer with thousands of digits, or of nested arrays.
        raise RequestError(
            f"{str(path)!r} is not valid TOML: {error}.", "try: fix that line"
        ) from error


def settings_of(options: Mapping[str, Any] | None) -> tuple[Setting, ...]:
    """The options that a function of Python was given, as settings."""
    return tuple(Setting(key, value) for key, value in (options or {}).items())


def parse_setting(text: str) -> Setting:
    """Parse `KEY=VALUE`; a value that is not valid TOML is a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise RequestError(
            f"--set takes KEY=VALUE, got {text!r}.", f"try: --set {key.strip() or 'gamma'}=VALUE"
        )
    return Setting(key.strip(), _parsed(value))


def _parsed(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text.strip()
    # A line break in the value would define a second key.
    return parsed["value"] if len(parsed) == 1 else text.strip()


def parse_tags(texts: Iterable[str]) -> dict[str, str]:
    """Parse each `--tag KEY=VALUE`; values stay strings."""
    tags: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise RequestError(f"--tag takes KEY=VALUE, got {text!r}.", "try: --tag team=search")
        if key in tags:
            raise RequestError(f"the tag {key!r} is given twice.", "try: another key, or one value")
        tags[key] = value
    return tags


def addon_section(name: str, addons: Collection[str]) -> str:
    """Where the options of an add-on are; empty if it is none of those that are used."""
    return f"options of an add-on are in 'addons.{name}'" if name in addons else ""


def locate(
    setting: Setting,
    algorithm: type[Any],
    addons: Mapping[str, type[Any]],
    owners: Owners = core_owners,
) -> tuple[str, ...] | Problem:
    """The full path of a setting's key, or what is wrong with it.

    A key without a section is the algorithm's option, or that of the only section that has it.
    """
    first, *others = setting.key.split(".")
    known = [*CORE_SECTIONS, "algorithm", "addons", "modules"]
    if others:
        if first in known:
            return (first, *others)
        guess = addon_section(first, addons) or did_you_mean(first, known)
        return Problem(setting.key, f"unknown section {first!r}" + (f", {guess}" if guess else ""))
    if first in names(algorithm):
        return ("algorithm", first)
    if first in known and isinstance(setting.value, Mapping):
        return Problem(first, f"is a section: name an option of it, as in '{first}.OPTION'")
    if first in _CHOSEN:
        # The plugins are loaded by now: it would be recorded without effect.
        return Problem(first, f"cannot be set here: {_CHOSEN[first]}")
    kinds: dict[tuple[str, ...], type[Any]] = {
        **{(name,): kind for name, kind in CORE_SECTIONS.items()},
        **{("addons", name): kind for name, kind in addons.items()},
    }
    homes = [home for home, kind in kinds.items() if first in names(kind)]
    if len(homes) == 1:
        return (*homes[0], first)
    if homes:
        paths = " and ".join(".".join((*home, first)) for home in homes)
        return Problem(first, f"is ambiguous: {paths}; name the section")
    options = [name for kind in (algorithm, *kinds.values()) for name in names(kind)]
    said = unknown_option(first, options, owners)
    if first in known and ":" not in said:
        said = f"is a section: name an option of it, as in '{first}.OPTION'"
    return Problem(first, said)
