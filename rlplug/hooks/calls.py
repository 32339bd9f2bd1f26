"""HookCalls: the hooks of one run, each with the contract's rule for combining results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from rlplug.errors import PluginError
from rlplug.hooks.options import OptionsInForce
from rlplug.hooks.resolved import HOOKS, Implementation, Participant, resolve
from rlplug.hooks.wrapping import checked, nested
from rlplug.registry import ADDON, describe
from rlplug.seeding import derive, forked

if TYPE_CHECKING:
    from pathlib import Path

    import gymnasium
    from torch import Tensor, nn

    from rlplug.batch import Batch
    from rlplug.plugin import LearnerView, Module

__all__ = ["HookCalls", "Participant"]


class HookCalls:
    """The hooks of one run: one algorithm and its add-ons, in order.

    Every method takes what its hook offers, except `config` and `extra`: each plugin gets its own.
    Methods that collect return `(plugin name, result)` pairs, so that each can be traced.
    """

    def __init__(
        self,
        algorithm: Participant,
        addons: Sequence[Participant] = (),
    ) -> None:
        self.algorithm = algorithm
        self.addons = tuple(addons)
        _refuse_twins([algorithm, *addons])
        self._implementations = resolve(self.participants)
        self._options = OptionsInForce({one.name: one.config for one in self.participants})
        self._bind()

    def listen(self, listeners: Sequence[object]) -> None:
        """Let the core's own trackers hear what add-ons hear, after them."""
        heard = [
            Participant(describe(type(one).__name__.lower(), type(one), ADDON), one)
            for one in listeners
        ]
        self._implementations = resolve([*self.participants, *heard])
        self._bind()

    @property
    def participants(self) -> tuple[Participant, ...]:
        """The algorithm and its add-ons, in call order."""
        return (self.algorithm, *self.addons)

    def implementations(self, hook: str) -> tuple[Implementation, ...]:
        """Who implements a hook, in call order."""
        return self._implementations[hook]

    def implements(self, hook: str) -> bool:
        """Whether anybody does."""
        return bool(self._implementations[hook])

    def wants(self, hook: str, argument: str) -> bool:
        """Whether some implementation of a hook names this argument."""
        return any(argument in one.arguments for one in self._implementations[hook])

    def order(self) -> dict[str, list[str]]:
        """Hook → names of plugins in call order, for the record of a run."""
        plugins = set(self.participants)
        named = {
            hook: [one.name for one in self._implementations[hook] if one.participant in plugins]
            for hook in HOOKS
        }
        return {hook: names for hook, names in named.items() if names}

    # -- options ------------------------------------------------------------------------------

    def config_of(self, plugin: str, module_id: str) -> Any:
        """A plugin's options for a module, schedules resolved at the current step."""
        return self._options.of(plugin, module_id)

    def followed_config_of(self, plugin: str, module_id: str) -> Any:
        """The same with numbers that remember their schedules, for optimizers to follow."""
        return self._options.followed(plugin, module_id)

    def override_config(self, plugin: str, module_id: str, config: Any) -> None:
        """Give a plugin other options for one module."""
        self._options.override(plugin, module_id, config)

    def at_step(self, step: int) -> None:
        """Move schedules to an environment step."""
        self._options.at_step(step)

    # -- building ------------------------------------------------------------------------------

    def build(
        self,
        module_id: str,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        seed: int,
    ) -> Module:
        """The algorithm's module, wrapped by add-ons, the first of them outermost."""
        # Wrappers come first, the outermost before all others.
        *wrappers, answer = self._implementations["build"]

        def offered(one: Implementation) -> tuple[Any, ...]:
            config = self.config_of(one.name, module_id)
            return (module_id, observation_space, action_space, config, _own(seed, one))

        def draws(one: Implementation) -> AbstractContextManager[None]:
            return forked(_own(seed, one))

        return checked(nested(wrappers, answer, offered, draws), answer)

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
            config = self.config_of(one.name, module_id)
            own = _own(seed, one)
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
        return [
            (name, one(module_id, module, extra, self.followed_config_of(name, module_id), learner))
            for name, one, extra, _ in self._each(self._optimizers, module_id, learner)
        ]

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
        """The batch with everybody's columns: add-ons in order, the algorithm last."""
        if not self._preparers:
            return batch
        for _, one, extra, config in self._each(self._preparers, module_id, learner):
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
        """Each plugin's loss as it gave it; those that gave None are left out."""
        if not self._losses:
            return []
        results = []
        for name, one, extra, config in self._each(self._losses, module_id, learner):
            loss = one(module_id, module, extra, config, batch, fwd_out, optimizers, learner)
            if loss is not None:
                results.append((name, loss))
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
        """Everybody in order; `gradients(plugin)` is what that plugin may see."""
        if not self._gradients:
            return
        for name, one, extra, config in self._each(self._gradients, module_id, learner):
            seen = gradients(name)
            one(module_id, module, extra, config, seen, term_gradients, metrics, learner)

    def additional_update(
        self,
        module_id: str,
        module: Module,
        batch: Batch,
        timestep: int,
        metrics: Mapping[str, Any],
        learner: LearnerView,
    ) -> list[tuple[str, Mapping[str, Any]]]:
        """Each plugin's metrics; those that gave none are left out."""
        if not self._additional:
            return []
        results = []
        for name, one, extra, config in self._each(self._additional, module_id, learner):
            given = one(module_id, module, extra, config, batch, timestep, metrics, learner)
            if given:
                results.append((name, given))
        return results

    def inference_module(self, module_id: str, module: Module, learner: LearnerView) -> Module:
        """What to evaluate and serve: the last answer, or the module itself."""
        if not self._inference:
            return module
        chosen = module
        for _, one, extra, config in self._each(self._inference, module_id, learner):
            answer = one(module_id, module, extra, config, learner)
            chosen = chosen if answer is None else answer
        return chosen

    # -- state and events ----------------------------------------------------------------------

    def save_state(self) -> dict[str, Mapping[str, Any]]:
        """Every plugin's own state, by plugin name."""
        return {one.name: one() for one in self._implementations["save_state"]}

    def load_state(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Hand every plugin its own state back."""
        for one in self._implementations["load_state"]:
            if one.name in states:
                one(states[one.name])

    def run_started(self, run: Any) -> None:
        for one in self._implementations["run_started"]:
            one(run)

    def update_finished(
        self, step: int, update: int, results: Mapping[str, Any], learner: LearnerView
    ) -> None:
        for one in self._update_finished:
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
        for one in self._implementations["run_failed"]:
            one(step, error)

    # -- inside --------------------------------------------------------------------------------

    def _bind(self) -> None:
        """Look up once what is called in every update."""
        of = self._implementations
        self._optimizers = of["configure_optimizers_for_module"]
        # Add-ons first: the algorithm's advantages and targets must see their bonuses.
        preparers = of["prepare_batch"]
        self._preparers = tuple(
            sorted(preparers, key=lambda one: one.participant is self.algorithm)
        )
        self._losses = of["compute_loss_for_module"]
        self._gradients = of["postprocess_gradients"]
        self._additional = of["additional_update"]
        self._inference = of["inference_module"]
        self._update_finished = of["update_finished"]

    def _each(
        self, implementations: tuple[Implementation, ...], module_id: str, learner: LearnerView
    ) -> Iterator[tuple[str, Implementation, nn.Module | None, Any]]:
        """Every implementation with its plugin's own extra and options."""
        extras = learner.extra.get(module_id, _NOTHING)
        options = self._options.of
        for one in implementations:
            name = one.name
            yield name, one, extras.get(name), options(name, module_id)


_NOTHING: Mapping[str, Any] = {}


def _own(seed: int, one: Implementation) -> int:
    """A seed per plugin, so that an add-on changes nobody else's numbers."""
    return derive(seed, one.participant.found.kind, one.name)


def _refuse_twins(participants: Sequence[Participant]) -> None:
    seen: dict[str, Participant] = {}
    for one in participants:
        if one.name in seen:
            raise PluginError(
                f"{one.label} takes part twice, or shares its name with {seen[one.name].label}.",
                "try: name each plugin once",
            )
        seen[one.name] = one
