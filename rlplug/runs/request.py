"""What to run, as asked for, and the installed plugins that it names.

Nothing heavy is imported, so that a wrong name is answered at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs

from rlplug.config.sections import CORE_SECTIONS
from rlplug.config.sources import Layers, Setting, read_toml
from rlplug.errors import ConfigError, Problem, RequestError
from rlplug.registry import ADDON, ALGORITHM, FoundPlugin, Registry

__all__ = ["FLAGS", "TUNE", "Request", "find_plugins", "layers_of", "no_section"]

TUNE = "tune"
"""The section of a file that only `rlplug tune` reads."""

FLAGS: Mapping[str, str] = MappingProxyType(
    {
        "algorithm": "--algo",
        "env": "--env",
        "steps": "--steps",
        "seed": "--seed",
        "preset": "--preset",
        "init_from": "--init-from",
        "addons": "--with",
        "files": "--data",
        "record": "--save-episodes",
        "tags": "--tag",
        "run_name": "--name",
        "learners": "--learners",
        "engine": "--place",
        "runners": "--runners",
    }
)
"""Option → the flag of `rlplug run` that sets it."""


@attrs.frozen(kw_only=True)
class Request:
    """What to run, as asked for on the command line or in `rlplug.run`."""

    config: Path | None = None
    """A TOML file."""
    flags: Mapping[str, Any] = attrs.field(factory=dict)
    """Values of dedicated flags, nested: `{"run": {"seed": 1}}`."""
    flag_names: Mapping[str, str] = attrs.field(factory=dict)
    """How messages name a flag, where that is not the name of the option: `{"tags": "--tag"}`."""
    settings: tuple[Setting, ...] = ()
    """`--set`, in order."""
    flags_origin: str = "command line"


def layers_of(request: Request) -> Layers:
    """The values of file, flags and those settings that name a plugin or preset in full."""
    layers = Layers()
    if request.config is not None:
        values = read_toml(request.config)
        # The search of `rlplug tune`, in a file that is also that of a run.
        values.pop(TUNE, None)
        _refuse_no_sections(values, request.config)
        layers.merge(values, str(request.config))
    layers.merge(request.flags, request.flags_origin)
    for setting in request.settings:
        if setting.key.startswith("run."):
            layers.put(tuple(setting.key.split(".")), setting.value, "--set")
    return layers


def _refuse_no_sections(values: Mapping[str, Any], path: Path) -> None:
    """Refuse numbers and lists where sections are: flags would silently take their place."""
    problems = [
        no_section(name, values[name])
        for name in CORE_SECTIONS
        if not isinstance(values.get(name, {}), Mapping)
    ]
    if problems:
        raise ConfigError(str(path), problems, "see: rlplug plugins show all")


def no_section(name: str, value: Any) -> Problem:
    """The problem of something that stands in place of a section."""
    return Problem(name, f"expected a section [{name}], got {value!r}")


def find_plugins(layers: Layers, registry: Registry) -> list[FoundPlugin]:
    """The algorithm and the add-ons named in `[run]`, not imported yet."""
    run = layers.section("run")
    run = run if isinstance(run, Mapping) else {}
    name = run.get("algorithm", "")
    addons = run.get("addons", [])
    if not isinstance(name, str) or not name:
        if not registry.of_kind(ALGORITHM):
            registry.find(ALGORITHM, "")
        installed = ", ".join(sorted(registry.grouped(ALGORITHM)))
        raise RequestError(
            "no algorithm was named.", f"installed: {installed}", "try: rlplug run --algo NAME"
        )
    if not isinstance(addons, list | tuple) or not all(isinstance(one, str) for one in addons):
        raise ConfigError("[run]", [Problem("run.addons", f"expected list of str, got {addons!r}")])
    found = [registry.find(ALGORITHM, name)]
    return found + [registry.find(ADDON, one) for one in addons]
