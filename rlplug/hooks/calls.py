"""HookCalls: calls the hooks of one run and combines their results as the contract says."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from operator import itemgetter
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rlplug.errors import PluginError
from rlplug.hooks.binding import HOOKS, bind, check_unique_names
from rlplug.hooks.options import ConfigCache
from rlplug.hooks.outside import OutsideNames
from rlplug.hooks.tracing import HookTrace
from rlplug.registry import ADDON, Participant, describe
from rlplug.seeding import derive, forked

if TYPE_CHECKING:
    from pathlib import Path

    import gymnasium
    from torch import Tensor, nn

    from rlplug.batch import Batch
    from rlplug.plugin import LearnerView, Module

__all__ = ["HookCalls", "Implementation"]


_EVENTS_OF_RUN = (
    "run_started",
    "metrics_reported",
    "evaluation_finished",
    "checkpoint_saved",
    "run_finished",
    "run_failed",
)


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
        self._trace = trace
        check_unique_names(self.participants)
        self._implementations = self._bind(self.participants)
        self._configs = ConfigCache(self.participants)

    def listen(self, listeners: Sequence[object]) -> None:
        """Add the core's own trackers, which hear events after all add-ons."""
        trackers = [
            Participant(describe(type(one).__name__.lower(), type(one), ADDON), one)
            for one in listeners
        ]
        self._implementations = self._bind([*self.participants, *trackers])

    def mute(self) -> None:
        """Tell nobody of the run's events: another process does. `update_finished` is no such."""
        self._implementations |= dict.fromkeys(_EVENTS_OF_RUN, ())

    @property
    def participants(self) -> tuple[Participant, ...]:
        """The algorithm, then its add-ons in order."""
        return (self.algorithm, *self.addons)

    def implementations(self, hook: str) -> tuple[Implementation, ...]:
        """The implementations of a hook, in call order."""
        return self._implementations[hook]

    def implements(self, hook: str) -> bool:
        """Whether any participant implements a hook."""
        return bool(self._implementations[hook])

    def wants(self, hook: str, argument: str) -> bool:
        """Whether any implementation of a hook takes this argument."""
        return any(argument in one.arguments for one in self._implementations[hook])

    def outside_names(self, parts: Iterable[object] = ()) -> OutsideNames:
        """The names outside of plugins, and of parts of modules, that their code can bind."""
        functions = [one.function for hook in self._implementations.values() for one in hook]
        plugins = [one.plugin for one in self.participants]
        return OutsideNames([*plugins, *parts], functions)

    def order(self) -> dict[str, list[str]]:
        """Hook → names of plugins in call order, for the record of a run."""
        plugins = set(self.participants)
        named = {
            hook: [one.name for one in implementations if one.participant in plugins]
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

    def override_config(self, plugin: str, module_id: str, config: Any) -> None:
        """Set other options of a plugin for one module."""
        self.set_overrides(module_id, {**self.overrides(module_id), plugin: config})

    def set_options(self, plugin: str, module_id: str, options: Mapping[str, Any]) -> None:
        """Set some options of a plugin for one module, checked as those of a run are."""
        self.override_config(plugin, module_id, self._configs.changed(plugin, module_id, options))

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

        if training_space is None:
            training_space = observation_space

        def call(one: Implementation) -> Any:
            config = self._configs[one.name, module_id]
            own = _seed_of(one, seed)
            return one(module_id, observation_space, action_space, config, own, training_space)

        # pluggy lists wrappers first, the outermost before all others.
        *wrappers, algorithm = self._implementations["build"]
        module = _call_wrapped(wrappers, algorithm, call, seed)
        if isinstance(module, Module):
            return module
        raise PluginError(
            f"{algorithm.participant.label}: 'build' returned {type(module).__name__}, "
            "which is not an rlplug.Module.",
            "try: return a subclass of rlplug.Module (a wrapper returns what it was given)",
        )

    def build_extra(
        self,
        module_id: str,
        module: Module,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        seed: int,
    ) -> dict[str, nn.Module]:
        """What each plugin keeps beside a module, by plugin name."""
        extras = {}
        for one in self._implementations["build_extra"]:
            config = self._configs[one.name, module_id]
            own = _seed_of(one, seed)
            with forked(own):
                extra = one(module_id, module, observation_space, action_space, config, own)
            if extra is not None:
                extras[one.name] = extra
        return extras

    def configure_optimizers_for_module(
        self, module_id: str, module: Module, learner: LearnerView
    ) -> list[tuple[str, Any]]:
        """Each implementing plugin's optimizers, in any of the six forms; `None` is kept.

        A number of a schedulable option that becomes an optimizer's `lr` follows its schedule.
        """
        extras = learner.extra.get(module_id, {})
        results = []
        for one in self._implementations["configure_optimizers_for_module"]:
            extra, config = extras.get(one.name), self.scheduled_config_of(one.name, module_id)
            results.append((one.name, one(module_id, module, extra, config, learner)))
        return results

    # -- updating ------------------------------------------------------------------------------

    def prepare_batch(
        self,
        module_id: str,
        module: Module,
        batch: Batch,
        batches: Mapping[str, Batch],
        timestep: int,
        learner: LearnerView,
    ) -> Batch:
        """The batch with the columns of all plugins: add-ons in order, the algorithm last."""
        extras = learner.extra.get(module_id, {})
        for one in self._implementations["prepare_batch"]:
            extra, config = extras.get(one.name), self._configs[one.name, module_id]
            columns = one(module_id, module, extra, config, batch, batches, timestep, learner)
            if columns:
                batch = batch.with_columns(columns)
        return batch

    def compute_loss_for_module(
        self,
        module_id: str,
        module: Module,
        batch: Batch,
        fwd_out: Mapping[str, Tensor],
        optimizers: tuple[str, ...],
        learner: LearnerView,
    ) -> list[tuple[str, Any]]:
        """Each plugin's loss as it was returned; None is left out."""
        extras = learner.extra.get(module_id, {})
        results = []
        for one in self._implementations["compute_loss_for_module"]:
            extra, config = extras.get(one.name), self._configs[one.name, module_id]
            loss = one(module_id, module, extra, config, batch, fwd_out, optimizers, learner)
            if loss is not None:
                results.append((one.name, loss))
        return results

    def postprocess_gradients(
        self,
        module_id: str,
        module: Module,
        gradients: Callable[[str], MutableMapping[str, Tensor]],
        term_gradients: Mapping[str, Mapping[str, Tensor]],
        metrics: MutableMapping[str, Any],
        learner: LearnerView,
    ) -> None:
        """All plugins in order; `gradients(plugin)` are those that the plugin may change."""
        extras = learner.extra.get(module_id, {})
        for one in self._implementations["postprocess_gradients"]:
            extra, config = extras.get(one.name), self._configs[one.name, module_id]
            own = gradients(one.name)
            trace = None if self._trace is None else self._trace.of_step(one.name)
            if trace is not None:
                trace.measure(one.name, "before", own)
            one(module_id, module, extra, config, own, term_gradients, metrics, learner)
            if trace is not None:
                trace.measure(one.name, "after", own)

    def additional_update(
        self,
        module_id: str,
        module: Module,
        batch: Batch,
        timestep: int,
        metrics: Mapping[str, Any],
        learner: LearnerView,
    ) -> list[tuple[str, Mapping[str, Any]]]:
        """Each plugin's metrics; plugins without any are left out."""
        extras = learner.extra.get(module_id, {})
        results = []
        for one in self._implementations["additional_update"]:
            extra, config = extras.get(one.name), self._configs[one.name, module_id]
            own = one(module_id, module, extra, config, batch, timestep, metrics, learner)
            if own:
                results.append((one.name, own))
        return results

    def inference_module(self, module_id: str, module: Module, learner: LearnerView) -> Module:
        """The module to evaluate and serve: the last plugin's that returns one, or the module."""
        extras = learner.extra.get(module_id, {})
        chosen = module
        for one in self._implementations["inference_module"]:
            extra, config = extras.get(one.name), self._configs[one.name, module_id]
            answer = one(module_id, module, extra, config, learner)
            chosen = chosen if answer is None else answer
        return chosen

    # -- state and events ----------------------------------------------------------------------

    def save_state(self) -> dict[str, Mapping[str, Any]]:
        """Each plugin's own state, by plugin name."""
        return {one.name: one() for one in self._implementations["save_state"]}

    def load_state(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore each plugin's own state."""
        for one in self._implementations["load_state"]:
            if one.name in states:
                one(states[one.name])

    def run_started(self, run: Any) -> None:
        for one in self._implementations["run_started"]:
            one(run)

    def update_finished(
        self, step: int, update: int, results: Mapping[str, Any], learner: LearnerView
    ) -> None:
        for one in self._implementations["update_finished"]:
            one(step, update, results, learner)

    def metrics_reported(self, step: int, metrics: Mapping[str, float]) -> None:
        for one in self._implementations["metrics_reported"]:
            one(step, metrics)

    def evaluation_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        for one in self._implementations["evaluation_finished"]:
            one(step, metrics)

    def checkpoint_saved(self, step: int, path: Path) -> None:
        for one in self._implementations["checkpoint_saved"]:
            one(step, path)

    def run_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        for one in self._implementations["run_finished"]:
            one(step, metrics)

    def run_failed(self, step: int, error: BaseException) -> None:
        """All are called, whichever raises; the last exception is raised in the end."""
        with ExitStack() as stack:
            for one in reversed(self._implementations["run_failed"]):
                stack.callback(one, step, error)

    def _bind(self, participants: Sequence[Participant]) -> dict[str, tuple[Implementation, ...]]:
        bound = {
            hook: tuple(self._implementation(participant, hook, one) for participant, one in found)
            for hook, found in bind(participants).items()
        }
        # Add-ons first: the algorithm's advantages and targets must see their bonuses.
        bound["prepare_batch"] = tuple(
            sorted(bound["prepare_batch"], key=lambda one: one.participant is self.algorithm)
        )
        return bound

    def _implementation(
        self, participant: Participant, hook: str, function: Callable[..., Any]
    ) -> Implementation:
        if self._trace is None or participant not in self.participants:
            return Implementation(participant, hook, function)
        return _Traced(participant, hook, function, self._trace)


class Implementation:
    """One plugin's function for one hook, called with the arguments that it names."""

    __slots__ = ("_pick", "arguments", "function", "hook", "name", "participant")

    def __init__(self, participant: Participant, hook: str, function: Callable[..., Any]) -> None:
        self.participant = participant
        self.name = participant.name
        self.hook = hook
        self.function = function
        self.arguments = tuple(inspect.signature(function).parameters)
        indices = [HOOKS[hook].index(argument) for argument in self.arguments]
        # itemgetter returns a tuple for two or more indices only; a slice gives one for fewer.
        first = indices[0] if indices else 0
        few = slice(first, first + len(indices))
        self._pick = itemgetter(*indices) if len(indices) > 1 else itemgetter(few)

    def __call__(self, *offered: Any) -> Any:
        """Call with all arguments that the hook offers, in the order of its specification."""
        try:
            return self.function(*self._pick(offered))
        except BaseException as error:
            self.add_note(error)
            raise

    def add_note(self, error: BaseException) -> None:
        """Note on an exception which hook of which plugin raised it."""
        note = f"raised in hook {self.hook!r} of {self.participant.label}"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)


class _Traced(Implementation):
    """An implementation whose calls are timed."""

    __slots__ = ("_seconds",)

    def __init__(
        self, participant: Participant, hook: str, function: Callable[..., Any], trace: HookTrace
    ) -> None:
        super().__init__(participant, hook, function)
        self._seconds = trace.seconds_of(self.name, hook)

    def __call__(self, *offered: Any) -> Any:
        """Call, and add the seconds that it took."""
        began = perf_counter()
        try:
            return self.function(*self._pick(offered))
        except BaseException as error:
            self.add_note(error)
            raise
        finally:
            self._seconds[0] += perf_counter() - began


def _call_wrapped(
    wrappers: Sequence[Implementation],
    function: Implementation,
    call: Callable[[Implementation], Any],
    seed: int,
) -> Any:
    """Call a function inside its wrappers: generators that yield once and return the result."""
    if not wrappers:
        with forked(_seed_of(function, seed)):
            return call(function)
    outer, *inner = wrappers
    generator: Generator[None, Any, Any] = call(outer)
    own = _seed_of(outer, seed)
    with forked(own):
        _advance(outer, lambda: next(generator), finished=False)
    try:
        result = _call_wrapped(inner, function, call, seed)
    except BaseException as error:
        raised = error
        with forked(own):
            return _advance(outer, lambda: generator.throw(raised), finished=True)
    with forked(own):
        return _advance(outer, lambda: generator.send(result), finished=True)


def _advance(one: Implementation, resume: Callable[[], Any], *, finished: bool) -> Any:
    try:
        resume()
    except StopIteration as stop:
        if finished:
            return stop.value
    except BaseException as error:
        one.add_note(error)
        raise
    else:
        if not finished:
            return None
    raise PluginError(
        f"{one.participant.label}: its wrapper of {one.hook!r} must yield exactly once.",
        "try: module = yield; return module",
    )


def _seed_of(one: Implementation, seed: int) -> int:
    """A seed per plugin, so that an add-on does not change the others' random numbers."""
    return derive(seed, one.participant.found.kind, one.name)
