"""HookCalls: calls the hooks of one run and combines their results as the contract says."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from time import perf_counter
from typing import TYPE_CHECKING, Any

import attrs

from rlplug.config.schedule import resolve, resolve_scheduled
from rlplug.config.strict import structure
from rlplug.config.toml import plain
from rlplug.errors import ConfigError, PluginError, RequestError, did_you_mean
from rlplug.hooks.binding import HOOKS, Implementation, bind
from rlplug.hooks.events import RunHooks
from rlplug.registry import ADDON, Participant, describe
from rlplug.seeding import derive, forked

if TYPE_CHECKING:
    import gymnasium
    from torch import Tensor, nn

    from rlplug.batch import Batch
    from rlplug.plugin import LearnerView, Module

__all__ = ["HookCalls", "HookTrace", "Implementation"]


class HookCalls:
    """The hooks of one run: one algorithm and its add-ons, in order.

    Every method takes what its hook offers, except `config` and `extra`: each plugin gets its own.
    Methods that collect return `(plugin name, result)` pairs, so that each can be traced.
    """

    def __init__(
        self,
        algorithm: Participant,
        addons: Sequence[Participant] = (),
        *,
        trace: HookTrace | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.addons = tuple(addons)
        self.participants = (algorithm, *self.addons)
        """The algorithm, then its add-ons in order."""
        self._trace = trace
        self.configs = ConfigCache(self.participants)
        """(plugin, module id) → options, with schedules resolved at the current step."""
        names = Counter(one.name for one in self.participants)
        for one in self.participants:
            if names[one.name] > 1:
                raise PluginError(f"{one.label} takes part twice.", "try: name each plugin once")
        self._implementations = self._bind(self.participants)

    def _bind(self, participants: Sequence[Participant]) -> dict[str, tuple[Implementation, ...]]:
        bound = bind(participants)
        # Add-ons first: the algorithm's advantages and targets must see their bonuses.
        bound["prepare_batch"] = tuple(
            sorted(bound["prepare_batch"], key=lambda one: one.participant is self.algorithm)
        )
        for one in (one for implementations in bound.values() for one in implementations):
            if self._trace is not None and one.participant in self.participants:
                one.called = self._trace.traced(one.name, one.hook, one.plain)
        return bound

    def listen(self, listeners: Sequence[object]) -> None:
        """Add the core's own trackers, which hear events after all add-ons."""
        trackers = [
            Participant(describe(type(one).__name__.lower(), type(one), ADDON), one)
            for one in listeners
        ]
        self._implementations = self._bind([*self.participants, *trackers])

    def mute(self) -> None:
        """Tell nobody of the run's events: another process does. `update_finished` is no such."""
        events = {hook for hook in HOOKS if hasattr(RunHooks, hook)} - {"update_finished"}
        self._implementations |= dict.fromkeys(events, ())

    def implementations(self, hook: str) -> tuple[Implementation, ...]:
        """The implementations of a hook, in call order."""
        return self._implementations[hook]

    def implements(self, hook: str) -> bool:
        """Whether any participant implements a hook."""
        return bool(self._implementations[hook])

    def wants(self, hook: str, argument: str) -> bool:
        """Whether any implementation of a hook takes this argument."""
        return any(argument in one.arguments for one in self._implementations[hook])

    def copied(self, memo: dict[int, Any]) -> HookCalls:
        """The same with deep copies of the plugins, for a trial that must change nothing.

        `memo` is that of `copy.deepcopy`.
        """
        algorithm, *addons = [
            Participant(one.found, copy.deepcopy(one.plugin, memo), one.config)
            for one in self.participants
        ]
        made = HookCalls(algorithm, addons)
        made.configs = self.configs
        return made

    def order(self) -> dict[str, list[str]]:
        """Hook → names of plugins in call order, for the record of a run."""
        named = {
            hook: [one.name for one in implementations if one.participant in self.participants]
            for hook, implementations in self._implementations.items()
        }
        return {hook: names for hook, names in named.items() if names}

    def take_trace(self) -> dict[str, float]:
        """The metrics of the trace since the last call; none without one."""
        return {} if self._trace is None else self._trace.take()

    # -- building ------------------------------------------------------------------------------

    def build(
        self,
        module_id: str,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        seed: int,
        training_space: gymnasium.Space[Any] | None = None,
    ) -> Module:
        """The algorithm's module, wrapped by add-ons, the first of them outermost."""
        from rlplug.plugin import Module

        # pluggy lists wrappers first, the outermost before all others.
        *wrappers, algorithm = self._implementations["build"]
        spaces = observation_space, action_space
        learned = observation_space if training_space is None else training_space

        def call(hook: Implementation) -> Any:
            offered = module_id, *spaces, _seed_of(hook, seed), learned
            return hook(offered, config=self.configs[hook.name, module_id])

        opened = []
        for wrapper in wrappers:
            opened.append((wrapper, call(wrapper)))
            _resume(*opened[-1], seed, None)
        with forked(_seed_of(algorithm, seed)):
            module = call(algorithm)
        for wrapper, generator in reversed(opened):
            module = _resume(wrapper, generator, seed, (module,))
        if isinstance(module, Module):
            return module
        raise PluginError(
            f"{algorithm.participant.label}: 'build' returned {type(module).__name__}, "
            "which is not an rlplug.Module.",
            "try: return a subclass of rlplug.Module (a wrapper returns what it was given)",
        )

    def build_extra(self, module_id: str, *offered: Any) -> dict[str, nn.Module]:
        """What each plugin keeps beside a module, by name; what is offered ends with a seed."""
        *built, seed = offered
        extras = {}
        for hook in self._implementations["build_extra"]:
            own = _seed_of(hook, seed)
            with forked(own):
                extra = hook((module_id, *built, own), config=self.configs[hook.name, module_id])
            if extra is not None:
                extras[hook.name] = extra
        return extras

    def configure_optimizers_for_module(
        self,
        module_id: str,
        module: Module,
        learner: LearnerView,
        read: set[tuple[str, str]] | None = None,
    ) -> list[tuple[str, Any]]:
        """Each implementing plugin's optimizers, in any of the six forms; `None` is kept.

        A number of a schedulable option that becomes an optimizer's `lr` follows its schedule.
        What plugins read of their options is added to `read`, as plugin and name.
        """
        extras = learner.extra.get(module_id, {})
        results = []
        for one in self._implementations["configure_optimizers_for_module"]:
            config = self.configs.scheduled((one.name, module_id))
            if read is not None:
                config = noting_reads(config, one.name, read)
            offered = module_id, module, learner
            results.append((one.name, one(offered, extras.get(one.name), config)))
        return results

    # -- updating ------------------------------------------------------------------------------

    def results(self, hook: str, offered: tuple[Any, ...]) -> list[tuple[str, Any]]:
        """Each plugin's name and result, but None; what is offered ends with the learner."""
        module_id = offered[0]
        extras, configs = offered[-1].extra.get(module_id, _NOTHING), self.configs
        results = []
        for one in self._implementations[hook]:
            name = one.name
            try:  # As `one(…)` does it, in less time.
                result = one.called(offered, extras.get(name), configs[name, module_id])
            except BaseException as error:
                one.add_note(error)
                raise
            if result is not None:
                results.append((name, result))
        return results

    def prepare_batch(self, module_id: str, module: Module, batch: Batch, *offered: Any) -> Batch:
        """The batch with the columns of all plugins: add-ons in order, the algorithm last."""
        for hook in self._implementations["prepare_batch"]:
            columns = self.call(hook, module_id, module, batch, *offered)
            if columns:
                batch = batch.with_columns(columns)
        return batch

    def call(self, hook: Implementation, *offered: Any) -> Any:
        """One implementation; what is offered begins with a module id and ends with a learner."""
        module_id = offered[0]
        extra = offered[-1].extra.get(module_id, _NOTHING).get(hook.name)
        return hook(offered, extra, self.configs[hook.name, module_id])

    def inference_module(self, module_id: str, module: Module, learner: LearnerView) -> Module:
        """The module to evaluate and serve: the last plugin's that returns one, or the module."""
        answers = self.results("inference_module", (module_id, module, learner))
        return answers[-1][1] if answers else module

    # -- state and events ----------------------------------------------------------------------

    def save_state(self) -> dict[str, Mapping[str, Any]]:
        """Each plugin's own state, by plugin name."""
        return {one.name: one(()) for one in self._implementations["save_state"]}

    def load_state(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore each plugin's own state."""
        for one in self._implementations["load_state"]:
            if one.name in states:
                one((states[one.name],))

    def tell(self, event: str, *offered: Any) -> None:
        """Tell all listeners of an event, in order.

        Of `run_failed` all are told, whichever raises; the last exception is raised in the end.
        """
        if event != "run_failed":
            for one in self._implementations[event]:
                one(offered)
            return
        with ExitStack() as stack:
            for one in reversed(self._implementations[event]):
                stack.callback(one, offered)


def _resume(wrapper: Implementation, generator: Any, seed: int, result: tuple[Any] | None) -> Any:
    """Run a wrapper of `build` up to its yield, or with the result of it to its end."""
    try:
        with forked(_seed_of(wrapper, seed)):
            generator.send(None if result is None else result[0])
        if result is None:
            return None
    except StopIteration as stop:
        if result is not None:
            return stop.value
    except BaseException as error:
        wrapper.add_note(error)
        raise
    raise PluginError(
        f"{wrapper.participant.label}: its wrapper of {wrapper.hook!r} must yield exactly once.",
        "try: module = yield; return module",
    )


def _seed_of(hook: Implementation, seed: int) -> int:
    """A seed per plugin, so that an add-on does not change the others' random numbers."""
    return derive(seed, hook.participant.found.kind, hook.name)


_NOTHING: Mapping[str, Any] = {}


# -- options and traces ---------------------------------------------------------------------------


class ConfigCache(dict[tuple[str, str], Any]):
    """(plugin, module id) → options, with schedules resolved at the current step."""

    def __init__(self, participants: Sequence[Participant]) -> None:
        super().__init__()
        self._configs = {one.name: one.config for one in participants}
        self.overrides: dict[str, dict[str, Any]] = {}
        """Module id → plugin → options."""
        self.step = 0
        self.has_schedules = False

    def __missing__(self, key: tuple[str, str]) -> Any:
        config = self._unresolved(key)
        self[key] = resolved = resolve(config, self.step)
        self.has_schedules = self.has_schedules or resolved is not config
        return resolved

    def scheduled(self, key: tuple[str, str]) -> Any:
        """The same with `ScheduledValue` numbers, which optimizers follow."""
        return resolve_scheduled(self._unresolved(key), self.step)

    def at_step(self, step: int) -> None:
        """Move schedules to an environment step."""
        self.step = step
        if self.has_schedules:
            self.clear()

    def set_options(self, plugin: str, module_id: str, options: Mapping[str, Any]) -> None:
        """Set some options of a plugin for one module, checked as those of a run are."""
        known = self._configs
        if plugin not in known:
            raise RequestError(
                f"plugin {plugin!r} takes no part here. "
                f"{did_you_mean(plugin, known, sentence=True)}".rstrip(),
                f"there are: {', '.join(known)}",
            )
        who = f"the options of {plugin!r} for module {module_id!r}"
        base = self._unresolved((plugin, module_id))
        config, problems = structure(type(base), {**plain(base), **options}, "options")
        if problems:
            raise ConfigError(who, problems)
        self.set_overrides(module_id, {**self.overrides.get(module_id, {}), plugin: config})

    def set_overrides(self, module_id: str, configs: Mapping[str, Any]) -> None:
        """Replace all options that were set for one module alone, by plugin."""
        self.overrides[module_id] = dict(configs)
        for plugin in self._configs:
            self.pop((plugin, module_id), None)

    def _unresolved(self, key: tuple[str, str]) -> Any:
        plugin, module_id = key
        return self.overrides.get(module_id, {}).get(plugin, self._configs[plugin])


def noting_reads(config: Any, plugin: str, read: set[tuple[str, str]]) -> Any:
    """The same options, which add the names of those that are read to `read`, with the plugin's."""
    kind: Any = type(config)
    fields = {field.name for field in attrs.fields(kind)}

    class Noting(kind):  # type: ignore[misc] # of a class that is known when it runs
        """Options of a plugin, of which somebody wants to know which ones it reads."""

        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            if name in fields:
                read.add((plugin, name))
            return super().__getattribute__(name)

    made = object.__new__(Noting)
    # The options may note reads themselves: to copy them is no use of them.
    for name in fields:
        object.__setattr__(made, name, object.__getattribute__(config, name))
    return made


class HookTrace:
    """Sums between two reports, by plugin.

    Seconds are those of the process: on other devices than the CPU, hooks return before what they
    started is done.
    """

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._norms: defaultdict[str, list[Tensor]] = defaultdict(list)

    def traced(self, plugin: str, hook: str, function: Any) -> Any:
        """A plugin's function for a hook, called with what is offered; it is timed.

        Before and after `postprocess_gradients`, the norm of the gradients is kept as well.
        """
        name = f"hooks/{plugin}"

        def called(offered: tuple[Any, ...], extra: Any, config: Any) -> Any:
            if hook == "postprocess_gradients":
                self._norms[f"{name}/grad_norm_before"].append(_norm(offered[_GRADIENTS]))
            began = perf_counter()
            try:
                return function(offered, extra, config)
            finally:
                seconds = perf_counter() - began
                self._seconds[f"{name}/{hook}_seconds"] += seconds
                self._seconds[f"{name}/seconds"] += seconds
                if hook == "postprocess_gradients":
                    self._norms[f"{name}/grad_norm_after"].append(_norm(offered[_GRADIENTS]))

        return called

    def take(self) -> dict[str, float]:
        """The metrics since the last call, `hooks/PLUGIN/…`: sums of seconds, means of norms."""
        means = {name: sum(map(float, norms)) / len(norms) for name, norms in self._norms.items()}
        metrics = {**self._seconds, **means}
        self._seconds.clear()
        self._norms.clear()
        return metrics


def _norm(gradients: Mapping[str, Tensor]) -> Tensor:
    import torch

    tensors = [gradient.detach() for gradient in gradients.values()]
    norms = torch._foreach_norm(tensors) if tensors else (torch.zeros(()),)
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


_GRADIENTS = 2
"""Where they stand among what `postprocess_gradients` offers to all."""
