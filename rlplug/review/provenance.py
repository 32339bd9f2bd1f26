"""Provenance of a run: options, plugins, code and machine, and what differs between two runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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

    def to_json(self) -> str:
        """The content of `provenance.json`."""
        return json.dumps({"format": FORMAT, **attrs.asdict(self)}, indent=1, default=str) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Provenance:
        """Read what `to_json` wrote; empty if it is damaged."""
        try:
            facts = json.loads(text)
            known = {
                field.name: facts[field.name] for field in attrs.fields(cls) if field.name in facts
            }
            options = {name: OptionRecord(**option) for name, option in known["options"].items()}
            plugins = tuple(PluginRecord(**plugin) for plugin in known["plugins"])
            record = cls(**{**known, "options": options, "plugins": plugins})
            # It may come from anybody: what cannot be compared is no record.
            _parts(record)
            return record
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return cls()

    def facts(self) -> dict[str, str]:
        """The machine, the versions of what results depend on, and the commit of the code."""
        versions = {name: text for name, text in self.versions.items() if "source" not in name}
        facts = {
            **self.machine,
            "versions": ", ".join(f"{name} {text}" for name, text in versions.items() if text),
            "git commit": self.code.get("commit", ""),
        }
        return {name: text for name, text in facts.items() if text}


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
    differences = []
    others = _parts(b)
    for part, facts in _parts(a).items():
        for name in dict.fromkeys((*facts, *others[part])):
            here, there = facts.get(name, _NONE), others[part].get(name, _NONE)
            if here != there:
                differences.append(Difference(part, name, _short(here), _short(there)))
    return differences


def read_provenance(folder: Path) -> Provenance | None:
    """That of a run's folder; None if it was not recorded."""
    try:
        return Provenance.from_json((folder / PROVENANCE).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None


def _parts(run: Provenance) -> dict[str, Mapping[str, str]]:
    """What is compared; of plugins, the source hash and the commit are things of their own."""
    plugins: dict[str, str] = {}
    for one in run.plugins:
        plugins[one.name] = f"{one.version} ({one.distribution})"
        named = {f"{one.name} source": one.source_hash, f"{one.name} commit": one.commit}
        plugins |= {name: value for name, value in named.items() if value}
    return {
        "options": {
            name: json.dumps(option.value, default=str)
            for name, option in run.options.items()
            if not name.startswith("tracking.")
        },
        "plugins": plugins,
        "hooks": {hook: ", ".join(called) for hook, called in run.hooks.items()},
        "versions": {**run.versions},
        "code": {**run.code},
        "machine": {**run.machine},
    }


def _short(value: str) -> str:
    """Of hashes and commits, as much as tells them apart."""
    plain = value.removesuffix("+")
    is_hash = len(plain) in (40, 64) and set(plain) <= set("0123456789abcdef")
    return plain[:12] + value[len(plain) :] if is_hash else value
