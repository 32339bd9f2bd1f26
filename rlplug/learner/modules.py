"""The modules of a learner: built, added, removed, with extras, optimizers, engines and options."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import gymnasium
import torch
from torch import nn

from rlplug.batch import Batch
from rlplug.config.secrets import without_masked
from rlplug.config.sections import ComputeSection, LearnerSection
from rlplug.errors import RequestError, UnsupportedSpaceError, did_you_mean
from rlplug.hooks.calls import HookCalls
from rlplug.learner.device import ChosenDevice, Precision, apply_compute, choose_device, is_small
from rlplug.learner.distributed import ProcessGroup
from rlplug.learner.gradients import choose_engine, wants_terms
from rlplug.learner.losses import LossHooks
from rlplug.learner.member import (
    Member,
    SharedParameters,
    check_shared,
    find_shared,
    refuse_to_share,
)
from rlplug.learner.optimizers import (
    OptimizerCycle,
    Optimizers,
    RegisteredOptimizer,
    check_lbfgs,
    default_optimizer,
    optimizers_from,
    without_effect,
)
from rlplug.learner.step import TrainedModule
from rlplug.nn.targets import TargetNetwork
from rlplug.plugin import ALL_MODULES, LearnerView, Module
from rlplug.seeding import derive
from rlplug.spaces import AnySpace

__all__ = ["LearnerModules", "Spaces", "ToTrain"]

ToTrain: TypeAlias = "Collection[str] | Callable[[str, Batch], bool] | None"
Spaces: TypeAlias = "tuple[gymnasium.Space[Any], gymnasium.Space[Any]]"


class LearnerModules:
    """Modules, extras and optimizers by module id, and all that the next update depends on."""

    def __init__(
        self,
        learner: LearnerView,
        calls: HookCalls,
        spaces: Mapping[str, Spaces],
        *,
        seed: int,
        learning: LearnerSection,
        compute: ComputeSection,
        given: Mapping[str, Any],
        process_group: ProcessGroup,
        training_spaces: Mapping[str, AnySpace],
    ) -> None:
        self.learner = learner
        """Only handed to hooks."""
        self.calls = calls
        self.seed = seed
        self.learning = learning
        self.compute = compute
        self.process_group = process_group
        self.losses = LossHooks(calls, learner)
        self.dtype = torch.float64 if compute.dtype == "float64" else torch.float32
        self.by_term = wants_terms(calls, learning)
        self.chosen: ChosenDevice | None = None
        self.precision = Precision(ComputeSection(), torch.device("cpu"))
        self.timestep = 0
        self.updates = 0
        self.modules_to_train: ToTrain = None
        self.optimizers = Optimizers()
        self.shared: TrainedModule | None = None
        """The parameters that modules share."""
        self.read: set[tuple[str, str, str]] = set()
        """The options that optimizers were made of: module id, plugin, name."""
        # By module id:
        self.members: dict[str, Member] = {}
        self.modules: dict[str, Module] = {}
        self.extra: dict[str, dict[str, nn.Module]] = {}
        self.trained: dict[str, TrainedModule] = {}
        """Of the modules that have optimizers."""
        self.spaces: dict[str, Any] = dict(spaces)
        self.training_spaces = dict(training_spaces)
        self.given: dict[str, Any] = dict(given)
        self.generators: dict[str, torch.Generator] = {}
        self.rows: dict[str, dict[str, Any]] = {}
        self.registered: dict[str, dict[str, Any]] = {}
        self._shared_member: Member | None = None
        self._assembling = False
        """Whether new modules are still getting their optimizers."""

    @property
    def device(self) -> torch.device:
        """Where modules and batches are."""
        return self.precision.device

    def generator(self, module_id: str) -> torch.Generator:
        """The random numbers of training hooks, one generator per module."""
        generator = self.generators.get(module_id)
        if generator is None:
            seed = derive(self.seed, "training", module_id)
            generator = self.generators[module_id] = torch.Generator(self.device).manual_seed(seed)
        return generator

    def set_timestep(self, timestep: int) -> None:
        """Move schedules to an environment step."""
        self.timestep = timestep
        self.calls.at_step(timestep)
        for optimizer in self.optimizers:
            if optimizer.rates:
                optimizer.at_step(timestep)

    def member(self, module_id: str) -> Member:
        """A module with all that belongs to it."""
        member = self.members.get(module_id)
        if member is None:
            hint = did_you_mean(str(module_id), self.members, sentence=True)
            raise RequestError(
                f"the learner has no module {module_id!r}. {hint}".rstrip(),
                f"it has: {', '.join(self.members) or 'none: call build() first'}",
            )
        return member

    def all_trained(self) -> dict[str, TrainedModule]:
        """All that have optimizers, also what modules share."""
        shared = self.shared
        return self.trained if shared is None else {**self.trained, ALL_MODULES: shared}

    # -- adding and removing -----------------------------------------------------------------------

    def build(self) -> None:
        """Make modules, extras and optimizers; a second call changes nothing."""
        ids = dict.fromkeys([*self.spaces, *self.given])
        with self.undone_on_error():
            new = [self._make_member(one) for one in ids if one not in self.members]
            if new:
                self._assemble(new)

    def add_module(
        self,
        module_id: str,
        spaces: Spaces | None,
        *,
        module: Any,
        like: str,
        trainable: bool,
        options: Mapping[str, Any] | None,
    ) -> None:
        """Add a module in mid-training; what fails leaves everything as it was."""
        if module_id in self.members:
            raise RequestError(
                f"the learner has a module {module_id!r} already.", "remove_module removes it"
            )
        if like and spaces is not None:
            raise RequestError(
                f"module {module_id!r} is given spaces and like={like!r}.", "give one of them"
            )
        with self.undone_on_error():
            if like:
                self._take_spaces(module_id, self.member(like), needed=module is None)
                self.calls.set_overrides(module_id, self.calls.overrides(like))
            elif spaces is not None:
                self.check_spaces(module_id, spaces)
                self.spaces[module_id] = spaces
            elif module is None:
                raise RequestError(
                    f"module {module_id!r} needs its spaces.", "or name another one: like='default'"
                )
            if module is not None:
                self.given[module_id] = module
            if options:
                self.calls.set_options(self.calls.algorithm.name, module_id, options)
            member = self._make_member(module_id)
            member.trainable = trainable
            self._assemble([member])
            if like:
                member.copy_weights(self.member(like))

    def _take_spaces(self, module_id: str, source: Member, *, needed: bool) -> None:
        like = source.module_id
        if like in self.spaces:
            self.spaces[module_id] = self.spaces[like]
        elif needed:
            raise RequestError(
                f"module {like!r} has no spaces to build another one like it.",
                f"try: learner.add_module({module_id!r}, module=…)",
            )
        if like in self.training_spaces:
            self.training_spaces[module_id] = self.training_spaces[like]

    def remove_module(self, module_id: str) -> None:
        """Remove a module with its extras, its optimizers and the options it alone has."""
        self.member(module_id)
        self.optimizers.remove(module_id)
        for table in self._tables():
            table.pop(module_id, None)
        self.calls.set_overrides(module_id, {})
        if self.modules_to_train is not None and not callable(self.modules_to_train):
            self.modules_to_train = {one for one in self.modules_to_train if one != module_id}

    def check_spaces(self, module_id: str, spaces: Spaces) -> None:
        """Refuse spaces that the algorithm does not support."""
        algorithm = self.calls.algorithm
        reason = algorithm.plugin.supports(*spaces)
        if reason is not None:
            raise UnsupportedSpaceError(
                f"{algorithm.label} cannot have module {module_id!r}: {reason.rstrip('.')}."
            )

    def set_options(self, module_id: str, options: Mapping[str, Any], plugin: str) -> None:
        """Set options of a plugin for one module; those that its optimizers read are refused."""
        if module_id not in self.spaces and module_id not in self.given:
            self.member(module_id)
        plugin = plugin or self.calls.algorithm.name
        for name in options:
            if (module_id, plugin, name) in self.read:
                raise RequestError(
                    f"the optimizers of module {module_id!r} were made with {name!r} of plugin "
                    f"{plugin!r}: another value would change nothing.",
                    "give it to add_module(…, options=…), or change the param_groups of "
                    "learner.get_optimizer(…)",
                )
        self.calls.set_options(plugin, module_id, options)

    def replace_options(self, module_id: str, options: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace what a module alone has, by plugin; optimizers that read it are made anew."""
        calls = self.calls
        shared = {one.name: one.config for one in calls.participants}
        before = {**shared, **calls.overrides(module_id)}
        calls.set_overrides(module_id, {})
        for plugin, values in options.items():
            calls.set_options(plugin, module_id, without_masked(values))
        after = {**shared, **calls.overrides(module_id)}
        if any(
            owner == module_id and getattr(before[plugin], name) != getattr(after[plugin], name)
            for owner, plugin, name in self.read
        ):
            self.optimizers.remove(module_id)
            self._configure_optimizers(self.members[module_id])

    def _tables(self) -> tuple[dict[str, Any], ...]:
        """Everything that is kept by module id."""
        return (
            self.members,
            self.modules,
            self.extra,
            self.trained,
            self.spaces,
            self.rows,
            self.registered,
            self.generators,
            self.given,
            self.training_spaces,
        )

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Put modules, optimizers and options back as they were if anything fails."""
        tables = [(table, dict(table)) for table in self._tables()]
        kept = {name: getattr(self, name) for name in _REPLACED}
        optimizers = self.optimizers.copy()
        members = [(member, member.shared, member.optimizers) for member in self.members.values()]
        ids = {*self.spaces, *self.given, *self.members}
        overrides = {module_id: self.calls.overrides(module_id) for module_id in ids}
        try:
            yield
        except BaseException:
            for module_id in {*self.spaces, *self.members, *overrides}:
                self.calls.set_overrides(module_id, overrides.get(module_id, {}))
            for table, before in tables:
                table.clear()
                table.update(before)
            for name, value in kept.items():
                setattr(self, name, value)
            for member, shared, held in members:
                member.shared, member.optimizers = shared, held
            self.optimizers = optimizers
            raise

    # -- optimizers --------------------------------------------------------------------------------

    def register_optimizer(
        self,
        module_id: str,
        name: str,
        optimizer: torch.optim.Optimizer,
        rate: Any,
    ) -> None:
        """Register an optimizer, maybe with a schedule of its learning rate."""
        if module_id != ALL_MODULES:
            self.member(module_id)
        registered = RegisteredOptimizer(module_id, name, "", optimizer)
        if rate is not None:
            registered.set_rate(rate)
        shares = self._shared_member is not None or any(m.shared for m in self.members.values())
        if module_id == ALL_MODULES and not shares:
            raise without_effect(name)
        with self.undone_on_error():
            self.optimizers.add(registered)
            if module_id != ALL_MODULES:
                self._use_optimizers(self.member(module_id))
            elif not self._assembling:
                self._use_shared_optimizers()

    # -- building ----------------------------------------------------------------------------------

    def _make_member(self, module_id: str) -> Member:
        """Build a module, or take the one given, and build its extras."""
        if not module_id or module_id == ALL_MODULES:
            raise RequestError(f"no module can be called {module_id!r}.", "choose another id")
        observation_space, action_space = self.spaces.get(module_id, (None, None))
        learned = self.training_spaces.get(module_id, observation_space)
        seed = derive(self.seed, "module", module_id)
        module = self.given.get(module_id)
        if module is None:
            module = self.calls.build(module_id, observation_space, action_space, seed, learned)
        extras = {}
        if isinstance(module, Module):
            extras = self.calls.build_extra(module_id, module, learned, action_space, seed)
        return Member(module_id, module, extras, self.calls.algorithm.name)

    def _assemble(self, new: Sequence[Member]) -> None:
        """Choose the device, then give new members their place and their optimizers."""
        members = [*self.members.values(), *new]
        parts = [part for member in members for part in member.parts()]
        if self.chosen is None:
            self.chosen = choose_device(self.compute, parts)
            self.precision = Precision(self.compute, self.chosen.device)
            apply_compute(self.compute, self.device, small=is_small(parts))
        shared = find_shared(members)
        self.optimizers.refuse_holding(shared)
        dtype = torch.float64 if self.compute.dtype == "float64" else None
        for member in new:
            for part in member.parts():
                part.to(self.device, dtype)
            self.modules[member.module_id] = member.module
            self.extra[member.module_id] = member.extras
            self.members[member.module_id] = member
        for member in members:
            member.shared = shared & {id(param) for param in member.named.values()}
        self._assembling = True
        try:
            for member in new:
                self._configure_optimizers(member)
            both = self._shared_member
            held = set() if both is None else {id(param) for param in both.named.values()}
            if both is not None and both.optimizers:
                refuse_to_share(members, shared - held)
            elif shared - held:
                module = SharedParameters(members, shared)
                both = Member(ALL_MODULES, module, {}, self.calls.algorithm.name)
                self.extra[ALL_MODULES] = {}
                self._shared_member = both
                self._configure_optimizers(both)
        finally:
            self._assembling = False
        self._use_shared_optimizers()

    def _configure_optimizers(self, member: Member) -> None:
        module_id, algorithm = member.module_id, member.algorithm
        if not member.is_torch:
            return
        read: set[tuple[str, str]] = set()
        answers = dict(
            self.calls.configure_optimizers_for_module(module_id, member.module, self.learner, read)
        )
        registered = {optimizer.plugin for optimizer in self.optimizers.of(module_id)}
        if algorithm not in {*answers, *registered} and (params := member.own(algorithm)):
            config = self.calls.scheduled_config_of(algorithm, module_id)
            answers = {algorithm: default_optimizer(config, algorithm, params), **answers}
            read.add((algorithm, "learning_rate"))
        self.read = {one for one in self.read if one[0] != module_id}
        self.read |= {(module_id, *one) for one in read}
        for optimizer, schedulers in optimizers_from(answers, module_id, algorithm):
            self.optimizers.add(optimizer, schedulers)
        self._use_optimizers(member)

    def _use_optimizers(self, member: Member) -> None:
        """Let a module's registered optimizers take part in its updates."""
        member.optimizers = self.optimizers.of(member.module_id)
        for optimizer in member.optimizers:
            optimizer.plugin = optimizer.plugin or member.owner_of(optimizer.params)
            if member.module_id == ALL_MODULES:
                check_shared(optimizer, member, self.members.values())
            member.check_owned(optimizer)
            optimizer.at_step(self.timestep)
        scaled = self.precision.scaler is not None
        check_lbfgs(member.optimizers, shared=bool(member.shared), scaled=scaled)
        if member.optimizers and member.module_id != ALL_MODULES:
            made, before = self._train(member), self.trained.get(member.module_id)
            if before is not None:
                # It shuffles, and counts in its cycles, where it was.
                made.shuffler = before.shuffler
                for plugin in made.cycle.positions.keys() & before.cycle.positions.keys():
                    made.cycle.positions[plugin] = before.cycle.positions[plugin]
            self.trained[member.module_id] = made

    def _use_shared_optimizers(self) -> None:
        """Let the optimizers of shared parameters take part; refuse those that could never step."""
        registered, both = self.optimizers.of(ALL_MODULES), self._shared_member
        if both is None:
            if registered:
                raise without_effect(registered[0].name)
            return
        if registered != both.optimizers or (registered and self.shared is None):
            self._use_optimizers(both)
            self.shared = self._train(both)

    def _train(self, member: Member) -> TrainedModule:
        modules = [part for held in member.parts() for part in held.modules()]
        seed = derive(self.seed, "minibatches", member.module_id)
        return TrainedModule(
            member,
            OptimizerCycle(member.optimizers),
            self.engine_of(member),
            torch.Generator().manual_seed(seed),
            [part for part in modules if isinstance(part, TargetNetwork)],
        )

    def engine_of(self, member: Member, kept: Mapping[str, Any] | None = None) -> Any:
        """What computes the gradients of a module; `kept` is the state of one to go on with."""
        return choose_engine(
            member, self.losses, self.precision, self.compute, terms=self.by_term, kept=kept
        )


_REPLACED = ("shared", "_shared_member", "modules_to_train", "chosen", "precision", "read")
