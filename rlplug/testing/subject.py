"""The plugin under test, with the options and environments to check it with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, get_args, get_origin, get_type_hints

import attrs
import gymnasium
from gymnasium import spaces

from rlplug.config.strict import structure
from rlplug.config.toml import plain
from rlplug.errors import ConfigError, PluginError
from rlplug.feeds import Logged, Stream
from rlplug.registry import ADDON, FoundPlugin, Participant, Registry, describe
from rlplug.testing.cases import CASES, Case
from rlplug.testing.report import DoesNotApply

__all__ = ["FAST_OPTIONS", "Subject"]

FAST_OPTIONS: Mapping[str, Any] = {
    "learning_rate": 0.01,
    "gamma": 0.9,
    "gae_lambda": 0.9,
    "n_steps": 16,
    "batch_size": 32,
    "n_epochs": 4,
    "buffer_size": 2_000,
    "learning_starts": 64,
    "train_freq": 2,
    "gradient_steps": 1,
    "target_update_interval": 10,
    "tau": 0.05,
    "exploration_fraction": 0.5,
    "net_arch": (32, 32),
}
"""Options that let an algorithm learn within seconds, for those that it has."""


@attrs.frozen(kw_only=True, eq=False, slots=False)
class Subject:
    """One plugin under test: `Subject.of("linucb")`, or `Subject.of(Mine, options={…})`."""

    found: FoundPlugin
    kind: type[Any]
    options: Mapping[str, Any] = attrs.field(factory=dict)
    """Options to check it with, on top of its defaults and `FAST_OPTIONS`."""
    variants: Sequence[Mapping[str, Any]] = ()
    """Further sets of options, which enable what the others leave out."""
    neutral: Mapping[str, Any] | None = None
    """Options by which an add-on claims to change nothing."""
    environment: Callable[[], gymnasium.Env[Any, Any]] | None = None
    """An environment to check it in, if it supports none of the kit's."""
    seed: int = 0
    """Other seeds for everything that is drawn in the checks."""
    trainings: int | None = None
    """Trainings after which a probe counts as not solved; None: as many as its check allows."""

    @classmethod
    def of(cls, plugin: str | type[Any], **arguments: Any) -> Subject:
        """An installed plugin by its name, or a class."""
        registry = Registry.installed()
        found = registry.named(plugin) if isinstance(plugin, str) else _of_class(registry, plugin)
        kind = registry.load(found)
        arguments.setdefault("neutral", getattr(kind, "neutral", None))
        if not arguments.get("variants"):
            arguments["variants"] = tuple(getattr(kind, "variants", ()))
        return cls(found=found, kind=kind, **arguments)

    @property
    def is_addon(self) -> bool:
        """Whether it is an add-on."""
        return self.found.kind == ADDON

    @property
    def is_bandit(self) -> bool:
        """Whether it is an algorithm for episodes of one step."""
        feed = None if self.is_addon else self.participant().plugin.feed()
        return isinstance(feed, Stream) and feed.one_step_episodes

    @property
    def label(self) -> str:
        """Its name in messages."""
        return self.found.label

    def config(self, **changes: Any) -> Any:
        """The options to check it with, with these changed."""
        values = {**self._fast_options, **self.options, **changes}
        config, problems = structure(self.kind.Config, plain(values), self.found.name)
        if config is None:
            raise ConfigError(f"the options that {self.label} is checked with", problems)
        return config

    def accepts(self, changes: Mapping[str, Any]) -> bool:
        """Whether these changes of options are valid."""
        return self.changed(changes) is not None

    def accepts_any(self, change: Mapping[str, Any]) -> bool:
        """Whether this change is valid alone or beside one of the settings."""
        return any(self.accepts({**one, **change}) for one in (*self.settings, *self.enabled))

    def changed(self, changes: Mapping[str, Any], kind: type[Any] | None = None) -> Any:
        """The options to check it with and these changes; None if they are refused."""
        values = {**self._fast_options, **self.options, **changes}
        config, _ = structure(kind or self.kind.Config, plain(values), self.found.name)
        return config

    @cached_property
    def learns_from_logs(self) -> bool:
        """Whether it learns from logs only, and acts in no environment."""
        return isinstance(self.participant().plugin.feed(), Logged)

    @cached_property
    def settings(self) -> tuple[Mapping[str, Any], ...]:
        """Changes of options to check it with: none, the author's variants, and `switches`."""
        named = ({}, *self.variants)
        return (*named, *(one for one in self.switches if one not in named))

    @cached_property
    def enabled(self) -> tuple[Mapping[str, Any], ...]:
        """Each number that is 0 in the options set to another one: 0 often disables."""
        config = self.config()
        return tuple(
            {field.name: other}
            for field in attrs.fields(self.kind.Config)
            for other in (0.1, 1)
            if getattr(config, field.name) == 0
            and type(getattr(config, field.name)) is type(other)
            and self.accepts({field.name: other})
        )

    @cached_property
    def worth_training(self) -> tuple[Mapping[str, Any], ...]:
        """The settings that are worth a training: the author's variants, or else the switches."""
        return tuple(self.variants) or self.switches

    @cached_property
    def switches(self) -> tuple[Mapping[str, Any], ...]:
        """Each bool inverted, each other choice of a Literal, and n-step returns, where valid."""
        config, found = self.config(), []
        types = get_type_hints(self.kind.Config)
        for field in attrs.fields(self.kind.Config):
            name, value = field.name, getattr(config, field.name)
            others: list[Any] = []
            if isinstance(value, bool):
                others = [not value]
            elif get_origin(types[name]) is Literal:
                others = [choice for choice in get_args(types[name]) if choice != value]
            elif name == "n_step" and value == 1:
                others = [3]
            found += [{name: other} for other in others if self.accepts({name: other})]
        return tuple(found)

    def participant(self, config: Any = None, kind: type[Any] | None = None) -> Participant:
        """A new instance that can take part in a run."""
        options = self.config() if config is None else config
        return Participant(self.found, (kind or self.kind)(options), options)

    @cached_property
    def cases(self) -> tuple[Case, ...]:
        """The environments that it supports: its own one first, then those of the kit."""
        return tuple(self._supported())

    def case(self, fits: Callable[[Case], bool] = lambda case: True, what: str = "") -> Case:
        """The first case that fits; otherwise the check does not apply, for the reason `what`."""
        for case in self.cases:
            if fits(case):
                return case
        raise DoesNotApply(what or "it supports none of the kit's spaces: give it an environment")

    def case_for(
        self, setting: Mapping[str, Any], cases: Sequence[Case] | None = None
    ) -> Case | None:
        """The first case whose spaces it supports with these options; None if none."""
        plugin = None if self.is_addon else self.kind(self.changed(setting))
        for case in self.cases if cases is None else cases:
            if plugin is None or not plugin.supports(case.observation_space, case.action_space):
                return case
        return None

    def refusals(self) -> Iterator[tuple[Case, str]]:
        """The cases whose spaces an algorithm does not support, with its reasons."""
        plugin = self.participant().plugin
        for case in CASES:
            if not case.one_step:
                reason = plugin.supports(case.observation_space, case.action_space)
                if reason is not None:
                    yield case, reason

    def _supported(self) -> Iterator[Case]:
        if self.environment is not None:
            yield Case(name="its own environment", make=self.environment)
        plugin = self.participant().plugin
        one_step = self.is_bandit
        for case in CASES:
            if case.one_step != one_step:
                continue
            if self.is_addon:
                if case.name.startswith("box") and isinstance(case.action_space, spaces.Discrete):
                    yield case
            elif plugin.supports(case.observation_space, case.action_space) is None:
                yield case

    @cached_property
    def _fast_options(self) -> dict[str, Any]:
        """Those of `FAST_OPTIONS` that it has and accepts."""
        known = {field.name: field for field in attrs.fields(self.kind.Config)}
        defaults = self.kind.Config()
        accepted: dict[str, Any] = {}
        for name, value in FAST_OPTIONS.items():
            usual = getattr(defaults, name, None)
            # Updates and targets may come sooner than by default, but not later.
            if (name == "tau" and usual is not None and usual >= value) or (
                name in ("target_update_interval", "train_freq")
                and usual is not None
                and usual <= value
            ):
                continue
            if name in known and type(usual) is type(value):
                tried, _ = structure(self.kind.Config, plain({**accepted, name: value}), "")
                if tried is not None:
                    accepted[name] = value
        return accepted


def _of_class(registry: Registry, kind: type[Any]) -> FoundPlugin:
    if not isinstance(kind, type):
        raise PluginError(f"{kind!r} is neither the name of a plugin nor a class.")
    target = f"{kind.__module__}:{kind.__qualname__}"
    for plugin in registry.found:
        if plugin.target == target:
            return plugin
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", "-", kind.__name__).lower().strip("-")
    return describe(name, kind)
