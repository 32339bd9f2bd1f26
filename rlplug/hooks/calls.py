"""HookCalls: calls the hooks of one run and combines their results as the contract says."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from rlplug.errors import PluginError
from rlplug.hooks.binding import HOOKS, Implementation, bind
from rlplug.hooks.events import RunHooks
from rlplug.hooks.options import ConfigCache, noting_reads
from rlplug.hooks.tracing import HookTrace
from rlplug.registry import ADDON, Participant, describe
from rlplug.seeding import derive, forked

if TYPE_CHECKING:
    import gymnasium
    from torch import nn

    from rlplug.batch import Batch
    from rlplug.plugin import LearnerView, Module

__all__ = ["HookCalls", "Implementation"]


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
        self._configs = ConfigCache(self.participants)
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
                one.trace(self._trace)
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
        made._configs = self._configs
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

    # -- options ------------------------------------------------------------------------------

    def config_of(self, plugin: str, module_id: str) -> Any:
        """A plugin's options for a module, schedules resolved at the current step."""
        return self._configs[plugin, module_id]

    def scheduled_config_of(self, plugin: str, module_id: str) -> Any:
        """The same with `ScheduledValue` numbers, which optimizers follow."""
        return self._configs.scheduled((plugin, module_id))

    def set_options(self, plugin: str, module_id: str, options: Mapping[str, Any]) -> None:
        """Set some options of a plugin for one module, checked as those of a run are."""
        changed = self._configs.changed(plugin, module_id, options)
        self.set_overrides(module_id, {**self.overrides(module_id), plugin: changed})

    def overrides(self, module_id: str) -> dict[str, Any]:
        """The options that were set for one module alone, by plugin."""
        return dict(self._configs.overrides.get(module_id, {}))

    def set_overrides(self, module_id: str, configs: Mapping[str, Any]) -> None:
        """Replace all options that were set for one module alone."""
        self._configs.set_overrides(module_id, configs)

    def at_step(self, step: int) -> None:
        """Move schedules to an environment step."""
        self._configs.step = step
        if self._configs.has_schedules:
            self._configs.clear()

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
            return hook(offered, config=self._configs[hook.name, module_id])

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
                extra = hook((module_id, *built, own), config=self._configs[hook.name, module_id])
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
            extra, config = extras.get(one.name), self.scheduled_config_of(one.name, module_id)
            if read is not None:
                config = noting_reads(config, one.name, read)
            results.append((one.name, one((module_id, module, learner), extra, config)))
        return results

    # -- updating ------------------------------------------------------------------------------

    def _results(self, hook: str, offered: tuple[Any, ...]) -> list[tuple[str, Any]]:
        """Each plugin's name and result, but None; what is offered ends with the learner."""
        module_id = offered[0]
        extras, configs = offered[-1].extra.get(module_id, _NOTHING), self._configs
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
        extras = offered[-1].extra.get(module_id, _NOTHING)
        for hook in self._implementations["prepare_batch"]:
            extra, config = extras.get(hook.name), self._configs[hook.name, module_id]
            columns = hook((module_id, module, batch, *offered), extra, config)
            if columns:
                batch = batch.with_columns(columns)
        return batch

    def compute_loss_for_module(self, *offered: Any) -> list[tuple[str, Any]]:
        """Each plugin's loss as it was returned; None is left out."""
        return self._results("compute_loss_for_module", offered)

    def call(self, hook: Implementation, *offered: Any) -> Any:
        """One implementation; what is offered begins with a module id and ends with a learner."""
        module_id = offered[0]
        extra = offered[-1].extra.get(module_id, _NOTHING).get(hook.name)
        return hook(offered, extra, self._configs[hook.name, module_id])

    def additional_update(self, *offered: Any) -> list[tuple[str, Any]]:
        """Each plugin's metrics; plugins without any are left out."""
        return self._results("additional_update", offered)

    def inference_module(self, module_id: str, module: Module, learner: LearnerView) -> Module:
        """The module to evaluate and serve: the last plugin's that returns one, or the module."""
        answers = self._results("inference_module", (module_id, module, learner))
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
