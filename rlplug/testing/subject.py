"""The plugin that is checked, with the options and environments that it is checked with."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import attrs
import gymnasium

from rlplug.config.strict import structure
from rlplug.config.toml import plain
from rlplug.errors import ConfigError, PluginError
from rlplug.registry import ADDON, ALGORITHM, FoundPlugin, Participant, Registry, describe
from rlplug.testing.report import DoesNotApply

if TYPE_CHECKING:
    from rlplug.testing.cases import Case

__all__ = ["PACE", "Subject"]

PACE: Mapping[str, Any] = {
    "learning_rate": 0.01,
    "gamma": 0.9,
    "gae_lambda": 0.9,
    "n_steps": 16,
    "batch_size": 32,
    "n_epochs": 4,
    "buffer_size": 2_000,
    "learning_starts": 64,
    "train_freq": 1,
    "gradient_steps": 1,
    "target_update_interval": 10,
    "exploration_fraction": 0.5,
    "net_arch": (32, 32),
}
"""Options by which a plugin learns within seconds, for those that it has under these names."""


@attrs.frozen(kw_only=True, eq=False, slots=False)
class Subject:
    """One plugin under test: `Subject.of("linucb")`, or `Subject.of(Mine, options={…})`."""

    found: FoundPlugin
    kind: type[Any]
    options: Mapping[str, Any] = attrs.field(factory=dict)
    """Options to check it with, over its defaults and `PACE`."""
    variants: Sequence[Mapping[str, Any]] = ()
    """Further options in which something takes part that otherwise does not."""
    neutral: Mapping[str, Any] | None = None
    """Options by which an add-on claims to change nothing."""
    environment: Callable[[], gymnasium.Env[Any, Any]] | None = None
    """An environment of its own, where it supports none of the kit's."""

    @classmethod
    def of(cls, plugin: str | type[Any], **given: Any) -> Subject:
        """An installed plugin by its name, or a class at hand."""
        registry = Registry.installed()
        found = _named(registry, plugin) if isinstance(plugin, str) else _at_hand(registry, plugin)
        kind = registry.load(found)
        given.setdefault("neutral", getattr(kind, "neutral", None))
        return cls(found=found, kind=kind, **given)

    @property
    def is_addon(self) -> bool:
        """Whether it takes part in the runs of algorithms."""
        return self.found.kind == ADDON

    @property
    def label(self) -> str:
        """How messages name it."""
        return self.found.label

    def config(self, **changes: Any) -> Any:
        """Its options for checks, with these changed."""
        values = {**self._pace, **self.options, **changes}
        config, problems = structure(self.kind.Config, plain(values), self.found.name)
        if config is None:
            raise ConfigError(f"the options that {self.label} is checked with", problems)
        return config

    def participant(self, config: Any = None, kind: type[Any] | None = None) -> Participant:
        """A fresh instance that can take part in a run."""
        options = self.config() if config is None else config
        return Participant(self.found, (kind or self.kind)(options), options)

    @cached_property
    def cases(self) -> tuple[Case, ...]:
        """The kit's environments whose spaces it supports, and its own."""
        from rlplug.testing.cases import supported

        return tuple(supported(self))

    def case(self, fits: Callable[[Case], bool] = lambda case: True, what: str = "") -> Case:
        """The first supported environment that fits, or the reason why a check does not apply."""
        for case in self.cases:
            if fits(case):
                return case
        raise DoesNotApply(what or "it supports none of the kit's spaces: give it an environment")

    @cached_property
    def _pace(self) -> dict[str, Any]:
        """Those of `PACE` that it has and accepts."""
        known = {field.name: field for field in attrs.fields(self.kind.Config)}
        defaults = self.kind.Config()
        accepted: dict[str, Any] = {}
        for name, value in PACE.items():
            if name in known and type(getattr(defaults, name)) is type(value):
                tried, _ = structure(self.kind.Config, plain({**accepted, name: value}), "")
                if tried is not None:
                    accepted[name] = value
        return accepted


def _named(registry: Registry, name: str) -> FoundPlugin:
    short = name.rpartition(":")[2]
    both = [kind for kind in (ALGORITHM, ADDON) if short in registry.grouped(kind)]
    return registry.find(both[0] if both else ALGORITHM, name)


def _at_hand(registry: Registry, kind: type[Any]) -> FoundPlugin:
    if not isinstance(kind, type):
        raise PluginError(f"{kind!r} is neither the name of a plugin nor a class.")
    target = f"{kind.__module__}:{kind.__qualname__}"
    for plugin in registry.found:
        if plugin.target == target:
            return plugin
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", "-", kind.__name__).lower().strip("-")
    return describe(name, kind)
