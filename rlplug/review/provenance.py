"""Provenance of a run: options, plugins, code and machine, and what differs between two runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import attrs

__all__ = [
    "PROVENANCE",
    "Difference",
    "OptionRecord",
    "PluginRecord",
    "Provenance",
    "differences",
    "read_provenance",
]

PROVENANCE = "provenance.json"
"""The file of a run's folder, and of the folder `config` of its artifacts."""

FORMAT = 1
_NONE = "none"
"""Stands for what only one of two runs has."""


@attrs.frozen(kw_only=True)
class PluginRecord:
    """A plugin that took part in a run."""

    name: str
    kind: str = ""
    """`algorithm` or `addon`."""
    distribution: str = ""
    version: str = ""
    source_hash: str = ""
    """SHA-256 of the package's Python files; empty: they were not found."""
    commit: str = ""
    """The git commit of an editable install; followed by `+` if files were changed since."""

    @property
    def shown(self) -> str:
        """`linucb 0.3.0 (rlplug-linucb)`."""
        return " ".join(
            part for part in (self.name, self.version, f"({self.distribution})") if part
        )


@attrs.frozen(kw_only=True)
class OptionRecord:
    """An option of a run, as a plain value without secrets."""

    value: Any
    default: Any = None
    origin: str = "default"
    """`default`, `preset NAME`, a file, `--set`, …"""


@attrs.frozen(kw_only=True)
class Provenance:
    """What a run was made from and where; texts are empty where nothing is known."""

    options: Mapping[str, OptionRecord] = attrs.field(factory=dict)
    plugins: Sequence[PluginRecord] = ()
    """The algorithm, then the add-ons in order."""
    hooks: Mapping[str, Sequence[str]] = attrs.field(factory=dict)
    """Hook → plugins in call order."""
    versions: Mapping[str, str] = attrs.field(factory=dict)
    """Versions of Python and of the packages that results depend on; source hash of the core."""
    code: Mapping[str, str] = attrs.field(factory=dict)
    """Git of the working folder: `commit`, `branch`, `changed`, and `diff`, a hash of changes."""
    machine: Mapping[str, str] = attrs.field(factory=dict)
    """`host`, `os`, `cpu`, `cores`, `threads`, `gpu`."""
    rerunnable: bool = True
    """False if plugins or the environment were passed from Python."""

    @property
    def shown_plugins(self) -> str:
        """The plugins in plain text, separated by commas."""
        return ", ".join(one.shown for one in self.plugins)

    def to_json(self) -> str:
        """The content of `provenance.json`."""
        return json.dumps({"format": FORMAT, **attrs.asdict(self)}, indent=1, default=str) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Provenance:
        """Read what `to_json` wrote; what is missing or of another type is left out."""
        try:
            facts = json.loads(text)
        except (ValueError, RecursionError):
            facts = {}
        facts = facts if isinstance(facts, Mapping) else {}
        return cls(
            options={
                name: OptionRecord(
                    value=one.get("value"),
                    default=one.get("default"),
                    origin=str(one.get("origin", "")),
                )
                for name, one in _mapping(facts, "options").items()
                if isinstance(one, Mapping)
            },
            plugins=plugins_of(facts.get("plugins")),
            hooks={
                name: [str(plugin) for plugin in plugins]
                for name, plugins in _mapping(facts, "hooks").items()
                if isinstance(plugins, list)
            },
            versions=_texts(facts, "versions"),
            code=_texts(facts, "code"),
            machine=_texts(facts, "machine"),
            rerunnable=facts.get("rerunnable") is not False,
        )


class Difference(NamedTuple):
    """One thing that is not the same in two runs."""

    part: str
    """`options`, `plugins`, `hooks`, `versions`, `code` or `machine`."""
    name: str
    value_a: str
    value_b: str

    @property
    def shown(self) -> str:
        """`options algorithm.alpha: 1.0 → 2.0`."""
        return f"{self.part} {self.name}: {self.value_a} → {self.value_b}"


def differences(a: Provenance, b: Provenance) -> list[Difference]:
    """What differs, part by part; values as JSON, hashes shortened, `none` where there is none.

    Where a run is recorded is not a difference: options of `[tracking]` are left out.
    """
    found: list[Difference] = []
    for part, one, other in (
        ("options", _values(a), _values(b)),
        ("plugins", _plugins(a), _plugins(b)),
        ("hooks", _orders(a), _orders(b)),
        ("versions", a.versions, b.versions),
        ("code", a.code, b.code),
        ("machine", a.machine, b.machine),
    ):
        for name in dict.fromkeys((*one, *other)):
            here, there = one.get(name, _NONE), other.get(name, _NONE)
            if here != there:
                found.append(Difference(part, name, _short(here), _short(there)))
    return found


def read_provenance(folder: Path) -> Provenance | None:
    """That of a run's folder; None if it was not recorded."""
    try:
        return Provenance.from_json((folder / PROVENANCE).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None


def plugins_of(facts: Any) -> tuple[PluginRecord, ...]:
    """The plugins in the JSON values of a record."""
    names = [field.name for field in attrs.fields(PluginRecord)]
    return tuple(
        PluginRecord(**{name: str(one.get(name, "")) for name in names})
        for one in (facts if isinstance(facts, list) else ())
        if isinstance(one, Mapping) and one.get("name")
    )


def _values(run: Provenance) -> dict[str, str]:
    """The options that a result depends on."""
    return {
        name: json.dumps(one.value, default=str)
        for name, one in run.options.items()
        if not name.startswith("tracking.")
    }


def _plugins(run: Provenance) -> dict[str, str]:
    """Distribution and version, and the source hash and the commit as things of their own."""

    def facts(one: PluginRecord) -> Iterator[tuple[str, str]]:
        yield one.name, f"{one.version} ({one.distribution})".strip()
        if one.source_hash:
            yield f"{one.name} source", one.source_hash
        if one.commit:
            yield f"{one.name} commit", one.commit

    return dict(fact for one in run.plugins for fact in facts(one))


def _orders(run: Provenance) -> dict[str, str]:
    return {hook: ", ".join(plugins) for hook, plugins in run.hooks.items()}


def _short(value: str) -> str:
    """Of hashes and commits, as much as tells them apart."""
    plain = value.removesuffix("+")
    is_hash = len(plain) in (40, 64) and set(plain) <= set("0123456789abcdef")
    return plain[:12] + value[len(plain) :] if is_hash else value


def _mapping(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = facts.get(name)
    return value if isinstance(value, Mapping) else {}


def _texts(facts: Mapping[str, Any], name: str) -> dict[str, str]:
    return {key: str(value) for key, value in _mapping(facts, name).items()}
