"""The plugin under test, with the options and environments to check it with."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from rlplug.testing.report import CheckFailed, DoesNotApply, location

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
_SOONER: Mapping[str, Any] = {"tau": max, "target_update_interval": min, "train_freq": min}
"""Updates and targets may come sooner than by default, but not later."""
_TRAINING = ("prepare_batch", "compute_loss_for_module", "additional_update")


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

    @cached_property
    def is_bandit(self) -> bool:
        """Whether it is an algorithm for episodes of one step."""
        feed = None if self.is_addon else self.participant().plugin.feed()
        return isinstance(feed, Stream) and feed.one_step_episodes

    @cached_property
    def learns_from_logs(self) -> bool:
        """Whether it learns from logs only, and acts in no environment."""
        return not self.is_addon and isinstance(self.participant().plugin.feed(), Logged)

    def failure(
        self, looked_for: str, found: str, hint: str = "", *methods: str, module: Any = None
    ) -> CheckFailed:
        """The failure of a check; look at these methods, or else at those that learn."""
        where = location(self.kind, *(methods or _TRAINING), module=module)
        return CheckFailed(looked_for, found, f"{where}: {hint}" if hint else where)

    def config(self, **changes: Any) -> Any:
        """The options to check it with, with these changed."""
        config, problems = self._structured(changes)
        if config is None:
            raise ConfigError(f"the options that {self.found.label} is checked with", problems)
        return config

    def changed(self, changes: Mapping[str, Any], kind: type[Any] | None = None) -> Any:
        """The options to check it with and these changes; None if they are refused."""
        return self._structured(changes, kind)[0]

    def accepts(self, changes: Mapping[str, Any]) -> bool:
        """Whether these changes of options are valid."""
        return self.changed(changes) is not None

    def _structured(self, changes: Mapping[str, Any], kind: type[Any] | None = None) -> Any:
        values = {**self._fast_options, **self.options, **changes}
        return structure(kind or self.kind.Config, plain(values), self.found.name)

    @cached_property
    def option_names(self) -> Collection[str]:
        """The names of its options."""
        return [field.name for field in attrs.fields(self.kind.Config)]

    @cached_property
    def settings(self) -> tuple[Mapping[str, Any], ...]:
        """The author's variants, and the `switches`."""
        return (*self.variants, *(one for one in self.switches if one not in self.variants))

    @cached_property
    def enabled(self) -> tuple[Mapping[str, Any], ...]:
        """Each number that is 0 in the options set to another one: 0 often disables."""
        usual = self.config()
        changes: list[dict[str, Any]] = []
        for name in self.option_names:
            other = {int: 1, float: 0.1}.get(type(getattr(usual, name)))
            if getattr(usual, name) == 0 and other is not None:
                changes.append({name: other})
        return tuple(filter(self.accepts, changes))

    @cached_property
    def worth_training(self) -> tuple[Mapping[str, Any], ...]:
        """The settings that are worth a training: the author's variants, or else the switches."""
        return tuple(self.variants) or self.switches

    @cached_property
    def switches(self) -> tuple[Mapping[str, Any], ...]:
        """Each bool inverted, each other choice of a Literal, and n-step returns, where valid."""
        usual, types = self.config(), get_type_hints(self.kind.Config)
        changes: list[dict[str, Any]] = []
        for name in self.option_names:
            value = getattr(usual, name)
            if isinstance(value, bool):
                changes.append({name: not value})
            elif get_origin(types[name]) is Literal:
                changes += [{name: one} for one in get_args(types[name]) if one != value]
            elif name == "n_step" and value == 1:
                changes.append({name: 3})
        return tuple(filter(self.accepts, changes))

    def participant(self, config: Any = None, kind: type[Any] | None = None) -> Participant:
        """A new instance that can take part in a run."""
        options = self.config() if config is None else config
        return Participant(self.found, (kind or self.kind)(options), options)

    def supports(self, environment: Any, changes: Mapping[str, Any] | None = None) -> bool:
        """Whether it works with the spaces of an environment or a case, with these options."""
        return self.refusal(environment, changes) is None

    def refusal(self, environment: Any, changes: Mapping[str, Any] | None = None) -> str | None:
        """Why it does not; None if it does."""
        if self.is_addon:
            return None
        config = self.changed(changes or {})
        if config is None:
            return "it refuses these options"
        reason: str | None = self.kind(config).supports(
            environment.observation_space, environment.action_space
        )
        return reason

    @cached_property
    def cases(self) -> tuple[Case, ...]:
        """The environments that it supports: its own one first, then those of the kit."""
        own = [Case(name="its own environment", make=self.environment)] if self.environment else []
        fitting = [one for one in CASES if one.one_step is self.is_bandit and self.supports(one)]
        if self.is_addon:
            # Those that the kit's algorithms support.
            discrete = [one for one in fitting if isinstance(one.action_space, spaces.Discrete)]
            fitting = [one for one in discrete if one.name.startswith("box")]
        return (*own, *fitting)

    def case(self) -> Case:
        """The first case; without any, no check applies."""
        if not self.cases:
            raise DoesNotApply("it supports none of the kit's spaces: give it an environment")
        return self.cases[0]

    def places(
        self,
        settings: Sequence[Mapping[str, Any]] | None = None,
        cases: Sequence[Case] | None = None,
        *,
        every_case: bool = False,
    ) -> Iterator[tuple[Mapping[str, Any], Case]]:
        """The defaults and settings, else the variants, each in the first case it supports.

        With `every_case` in all of them.
        """
        for setting in ({}, *(self.variants if settings is None else settings)):
            fitting = self.cases if cases is None else cases
            supported = [case for case in fitting if self.supports(case, setting)]
            for case in supported if every_case else supported[:1]:
                yield setting, case

    @cached_property
    def _fast_options(self) -> dict[str, Any]:
        """Those of `FAST_OPTIONS` that it has and accepts."""
        defaults = self.kind.Config()
        accepted: dict[str, Any] = {}
        for name, value in FAST_OPTIONS.items():
            usual, sooner = getattr(defaults, name, None), _SOONER.get(name)
            if type(usual) is not type(value) or (sooner and sooner(usual, value) == usual):
                continue
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
