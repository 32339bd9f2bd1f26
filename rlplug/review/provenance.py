"""Provenance of a run: options, plugins, code and machine, and what differs between two runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import attrs

from rlplug.config.strict import structure

PROVENANCE = "provenance.json"
"""The file of a run's folder, and of the folder `config` of its artifacts."""

_NONE = "none"
"""Shown for what only one of two runs has."""


@attrs.frozen(kw_only=True)
class PluginRecord:
    """A plugin that took part in a run."""

    name: str
    kind: str = ""
    """`algorithm` or `addon`."""
    distribution: str = ""
    version: str = ""
    source_hash: str = ""
    """SHA-256 of the package's Python files; empty if they were not found."""
    commit: str = ""
    """The git commit of an editable install; followed by `+` if files were changed since."""

    @property
    def shown(self) -> str:
        """`linucb 0.3.0 (rlplug-linucb)`."""
        distribution = f"({self.distribution})" if self.distribution else ""
        return " ".join(filter(None, (self.name, self.version, distribution)))


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
        return json.dumps(attrs.asdict(self), indent=1, default=str) + "\n"

    def facts(self) -> dict[str, str]:
        """The machine, the versions of what results depend on, and the commit of the code."""
        versions = {name: text for name, text in self.versions.items() if "source" not in name}
        shown = ", ".join(f"{name} {text}" for name, text in versions.items() if text)
        return {**self.machine, "versions": shown, "git commit": self.code.get("commit", "")}

    def parts(self) -> dict[str, Mapping[str, str]]:
        """What is compared; options of `[tracking]`, where it is recorded, are left out."""
        plugins: dict[str, str] = {}
        for plugin in self.plugins:
            plugins[plugin.name] = f"{plugin.version} ({plugin.distribution})"
            plugins[f"{plugin.name} source"] = plugin.source_hash
            plugins[f"{plugin.name} commit"] = plugin.commit
        options = {
            name: json.dumps(option.value, default=str)
            for name, option in self.options.items()
            if not name.startswith("tracking.")
        }
        return {
            "options": options,
            "plugins": {name: text for name, text in plugins.items() if text},
            "hooks": {hook: ", ".join(called) for hook, called in self.hooks.items()},
            "versions": self.versions,
            "code": self.code,
            "machine": self.machine,
        }


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
    """What differs, part by part; values as JSON, hashes shortened, `none` where there is none."""
    others = b.parts()
    rows = [
        Difference(part, name, *(_short(side.get(name, _NONE)) for side in (facts, others[part])))
        for part, facts in a.parts().items()
        for name in dict.fromkeys((*facts, *others[part]))
    ]
    return [row for row in rows if row.value_a != row.value_b]


def read_provenance(folder: Path) -> Provenance | None:
    """That of a run's folder; None if it has none that can be read."""
    try:
        facts = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return structure(Provenance, facts, PROVENANCE)[0]


def _short(value: str) -> str:
    """Of hashes and commits, as much as tells them apart."""
    plain = value.removesuffix("+")
    is_hash = len(plain) in (40, 64) and set(plain) <= set("0123456789abcdef")
    return plain[:12] + value[len(plain) :] if is_hash else value
