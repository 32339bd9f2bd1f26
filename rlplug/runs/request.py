"""What to run, as asked for, and the plugins that it names.

Nothing heavy is imported, so that a wrong name is answered at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import attrs

from rlplug.config.sections import CORE_SECTIONS
from rlplug.config.sources import Layers, Setting, read_toml
from rlplug.errors import ConfigError, Problem, RequestError
from rlplug.registry import ADDON, ALGORITHM, FoundPlugin, Kind, Registry, describe

if TYPE_CHECKING:
    from rlplug.plugin import AddOn, Algorithm

__all__ = ["FLAGS", "TUNE", "InlinePlugins", "Request", "find_plugins", "layers_of"]

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
        "record": "--record",
        "tags": "--tag",
        "run_name": "--resume-or-start",
        "learners": "--learners",
        "engine": "--scale",
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
        # Flags would silently take the place of a number.
        problems = [
            Problem(name, f"expected a section [{name}], got {value!r}")
            for name, value in values.items()
            if name in (*CORE_SECTIONS, "algorithm", "addons", "modules")
            and not isinstance(value, Mapping)
        ]
        if problems:
            raise ConfigError(str(request.config), problems, "see: rlplug options")
        layers.merge(values, str(request.config))
    layers.merge(request.flags, request.flags_origin)
    for setting in request.settings:
        if setting.key.startswith("run."):
            layers.put(tuple(setting.key.split(".")), setting.value, "--set")
    return layers


def find_plugins(layers: Layers, registry: Registry) -> list[FoundPlugin]:
    """The algorithm and the add-ons named in `[run]`, not imported yet."""
    name, addons = layers.section("run", "algorithm"), layers.section("run").get("addons", [])
    if not isinstance(name, str) or not name:
        if not registry.of_kind(ALGORITHM):
            registry.find(ALGORITHM, "")
        installed = ", ".join(sorted(registry.grouped(ALGORITHM)))
        raise RequestError(
            "no algorithm was named.", f"installed: {installed}", "try: rlplug run --algo NAME"
        )
    if not isinstance(addons, list | tuple) or not all(isinstance(one, str) for one in addons):
        raise ConfigError("[run]", [Problem("run.addons", f"expected list of str, got {addons!r}")])
    return [registry.find(ALGORITHM, name), *(registry.find(ADDON, addon) for addon in addons)]


@attrs.frozen(kw_only=True)
class InlinePlugins:
    """The plugins passed to `rlplug.run`, classes and instances among them, each with a name."""

    algorithm: str
    addons: tuple[str, ...]
    registry: Registry
    """The installed plugins, overridden by the inline ones."""
    rerunnable: bool
    """Whether all of them are installed, so that the recorded config can be run again."""
    instances: Mapping[str, AddOn]
    """Add-on instances by name."""

    @classmethod
    def of(cls, algorithm: str | type[Algorithm], addons: Sequence[str | AddOn]) -> InlinePlugins:
        """Name classes and instances: as installed, or after their classes."""
        installed = Registry.installed().found
        by_target = {plugin.target: plugin for plugin in installed}

        def named(kind: type[Any], role: Kind) -> FoundPlugin:
            known = by_target.get(f"{kind.__module__}:{kind.__qualname__}")
            # `GradNoise` → `grad-noise`.
            name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", "-", kind.__name__).lower().strip("-")
            return known or describe(name, kind, role)

        inline = [] if isinstance(algorithm, str) else [named(algorithm, ALGORITHM)]
        instances: dict[str, AddOn] = {}
        names = []
        for addon in addons:
            if isinstance(addon, str):
                names.append(addon)
                continue
            inline.append(named(type(addon), ADDON))
            names.append(inline[-1].name)
            instances[inline[-1].name] = addon
        overridden = {(plugin.kind, plugin.name) for plugin in inline}
        others = [plugin for plugin in installed if (plugin.kind, plugin.name) not in overridden]
        return cls(
            algorithm=algorithm if isinstance(algorithm, str) else inline[0].name,
            addons=tuple(names),
            registry=Registry((*inline, *others)),
            rerunnable=all(plugin.loaded is None for plugin in inline),
            instances=instances,
        )
