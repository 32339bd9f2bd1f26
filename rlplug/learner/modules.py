"""The modules of a learner: built, added, removed, with extras, optimizers, engines and state."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import gymnasium
import torch
from torch import Tensor, nn

from rlplug.batch import Batch
from rlplug.config.sections import ComputeSection, LearnerSection
from rlplug.config.sources import check_options
from rlplug.errors import RequestError, UnsupportedSpaceError, did_you_mean
from rlplug.hooks.calls import HookCalls
from rlplug.learner.actions import DiscreteActions
from rlplug.learner.arguments import (
    check_bool,
    check_choice,
    check_ids,
    check_module_id,
    check_optimizer,
    check_params,
)
from rlplug.learner.device import ChosenDevice, Precision, apply_compute, choose_device, is_small
from rlplug.learner.engines import Engines
from rlplug.learner.gradients import GradientHooks, TermGradients
from rlplug.learner.losses import LossHooks
from rlplug.learner.member import (
    Member,
    SharedParameters,
    check_shared,
    find_shared,
    refuse_to_share,
)
from rlplug.learner.module_update import ModuleUpdate
from rlplug.learner.optimizers import (
    Optimizers,
    RegisteredOptimizer,
    check_lbfgs,
    default_optimizer,
    optimizers_from,
    without_effect,
)
from rlplug.learner.process_group import ProcessGroup
from rlplug.nn.arrays import FrozenWeights
from rlplug.plugin import ALL_MODULES, DEFAULT_MODULE, Module
from rlplug.seeding import derive
from rlplug.spaces import AnySpace

__all__ = ["LearnerModules", "ToTrain"]

ToTrain: TypeAlias = "Collection[str] | Callable[[str, Batch], bool] | None"
Spaces: TypeAlias = "tuple[gymnasium.Space[Any], gymnasium.Space[Any]]"


class _TakenBack(Exception):  # noqa: N818 # no error: what was made is not kept
    """Raised to put everything back as it was."""


class LearnerModules:
    """Modules, extras and optimizers by module id; `Learner` makes updates of them."""

    def __init__(
        self,
        calls: HookCalls,
        spaces: Mapping[str, Spaces],
        *,
        seed: int,
        learning: LearnerSection | None = None,
        compute: ComputeSection | None = None,
        modules: Mapping[str, Any] | None = None,
        process_group: ProcessGroup | None = None,
        training_spaces: Mapping[str, AnySpace] | None = None,
    ) -> None:
        for module_id in (*spaces, *(modules or {})):
            check_module_id(module_id)
        self.calls = calls
        self.spaces: dict[str, Any] = dict(spaces)
        self.training_spaces = dict(training_spaces or {})
        """Of `batch["observations"]`, for modules that learn from more than they act on."""
        self.seed = seed
        self.learning = LearnerSection() if learning is None else learning
        self.compute = ComputeSection() if compute is None else compute
        self.process_group = ProcessGroup() if process_group is None else process_group
        self.world_size = self.process_group.size
        """How many learners share each update."""
        self.dtype = torch.float64 if self.compute.dtype == "float64" else torch.float32
        """The format of weights, and of the columns that modules with optimizers get."""
        self.chosen: ChosenDevice | None = None
        """The device, and why it is this one."""
        self.precision = Precision(ComputeSection(), torch.device("cpu"))
        self.timestep = 0
        self.updates = 0
        self.prepare_seconds = 0.0
        """Seconds that `prepare_batch` hooks took."""
        self._modules_to_train: ToTrain = None
        self.modules: dict[str, Module] = {}
        self.extra: dict[str, dict[str, nn.Module]] = {}
        self._optimizers = Optimizers()
        self.members: dict[str, Member] = {}
        self.module_updates: dict[str, ModuleUpdate] = {}
        """Of the modules that have optimizers."""
        self.shared_update: ModuleUpdate | None = None
        """Of the parameters that modules share."""
        self.scheduled: list[RegisteredOptimizer] = []
        """Optimizers whose learning rate follows a schedule."""
        self.rows: dict[str, dict[str, Tensor]] = {}
        """Per-row values of the last update (`priority`), with their `indices`, by module."""
        self.registered_metrics: dict[str, dict[str, Any]] = {}
        self._discrete_actions: dict[str, tuple[AnySpace, DiscreteActions | None]] = {}
        """What is made of the action spaces, with these."""
        self._given_modules = dict(modules or {})
        self._shared_member: Member | None = None
        """The parameters that modules share, as a module."""
        self._assembling = False
        """Whether new modules are still getting their optimizers."""
        self._generators: dict[str, torch.Generator] = {}
        self._frozen_weights = FrozenWeights()
        self._losses = LossHooks(calls, self)
        self._gradient_hooks = GradientHooks(calls, self)
        self._terms = TermGradients(
            wanted=calls.wants("postprocess_gradients", "term_gradients"),
            balance=self.learning.balance_grad_norms,
            limit=self.learning.max_grad_norm,
        )

    def build(self) -> None:
        """Make modules, extras and optimizers; a second call changes nothing."""
        ids = dict.fromkeys([*self.spaces, *self._given_modules])
        with self._all_or_nothing():
            new = [self._make_member(one) for one in ids if one not in self.members]
            if new:
                self._assemble(new)

    @property
    def device(self) -> torch.device:
        """Where modules and batches are."""
        return torch.device("cpu") if self.chosen is None else self.chosen.device

    @property
    def engines(self) -> dict[str, tuple[str, str]]:
        """Module id → what computes its gradients (`arrays`, `torch`, `compiled`), and why."""
        return {
            module_id: (update.engine.name, update.engine_reason)
            for module_id, update in self.module_updates.items()
        }

    @property
    def optimizers(self) -> Optimizers:
        """The optimizers of all modules."""
        return self._optimizers

    @optimizers.setter
    def optimizers(self, value: Any) -> None:
        raise RequestError(
            f"learner.optimizers cannot be set to {value!r}: the option is read when a learner "
            "is built.",
            'try: build_learner(…, options={"learner.optimizers": "in_turn"})',
        )

    def all_reduce(self, tensors: Sequence[Tensor], op: str = "sum") -> list[Tensor]:
        """The tensors combined over all learners (`sum`, `mean`, `max`)."""
        return self.process_group.all_reduce(tensors, op)

    def generator(self, module_id: str = DEFAULT_MODULE) -> torch.Generator:
        """The random numbers of training hooks: part of the state, one generator per module."""
        found = self._generators.get(module_id)
        if found is None:
            seed = derive(self.seed, "training", module_id)
            found = self._generators[module_id] = torch.Generator(self.device).manual_seed(seed)
        return found

    def _set_timestep(self, timestep: int) -> None:
        self.timestep = timestep
        self.calls.at_step(timestep)
        for one in self.scheduled:
            one.at_step(timestep)

    # -- modules -------------------------------------------------------------------------------

    @property
    def modules_to_train(self) -> ToTrain:
        """None for all, the ids of some, or a function of module id and batch.

        A function is no part of the state: loading one leaves `modules_to_train` as it is then.
        """
        return self._modules_to_train

    @modules_to_train.setter
    def modules_to_train(self, wanted: ToTrain) -> None:
        self._check_to_train(wanted)
        if callable(wanted):
            check_choice(wanted)
        self._modules_to_train = wanted

    def _check_to_train(self, wanted: Any) -> None:
        """Refuse what is neither ids of modules nor a function."""
        if wanted is None or callable(wanted):
            return
        check_ids("modules_to_train", wanted, "a function of module id and batch, or None for all")
        known = {*self.spaces, *self._given_modules}
        for module_id in wanted:
            if not isinstance(module_id, str) or module_id not in known:
                self.member(module_id)

    def member(self, module_id: str) -> Member:
        """A module with all that belongs to it."""
        found = self.members.get(module_id) if isinstance(module_id, str) else None
        if found is None:
            hint = did_you_mean(str(module_id), self.members, sentence=True)
            raise RequestError(
                f"the learner has no module {module_id!r}. {hint}".rstrip(),
                f"it has: {', '.join(self.members) or 'none: call build() first'}",
            )
        return found

    def add_module(
        self,
        module_id: str,
        spaces: Spaces | None = None,
        *,
        module: Any = None,
        like: str = "",
        trainable: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> Module:
        """Add a module in mid-training: a new one, the one given, or a copy `like` another.

        `trainable=False` is for frozen opponents: they act and are saved, and never change.
        `options` are those of the algorithm that this module alone has. What fails leaves the
        learner as it was.
        """
        check_module_id(module_id)
        check_bool("trainable", trainable)
        if options is not None:
            check_options(options, f"the options of module {module_id!r}")
        if module_id in self.members:
            raise RequestError(f"the learner has a module {module_id!r} already.")
        if like and spaces is not None:
            raise RequestError(
                f"module {module_id!r} is given spaces and like={like!r}.", "give one of them"
            )
        with self._all_or_nothing():
            if like:
                if self.member(like).module_id in self.spaces:
                    self.spaces[module_id] = self.spaces[like]
                elif module is None:
                    raise RequestError(
                        f"module {like!r} has no spaces to build another one like it.",
                        f"try: learner.add_module({module_id!r}, module=…)",
                    )
                if like in self.training_spaces:
                    self.training_spaces[module_id] = self.training_spaces[like]
                self.calls.set_overrides(module_id, self.calls.overrides(like))
            elif spaces is not None:
                self.check_spaces(module_id, spaces)
                self.spaces[module_id] = spaces
            elif module is None:
                raise RequestError(
                    f"module {module_id!r} needs its spaces.", "or name another one: like='default'"
                )
            if module is not None:
                self._given_modules[module_id] = module
            if options:
                self.set_options(module_id, options)
            member = self._make_member(module_id)
            member.trainable = bool(trainable)
            self._assemble([member])
            if like:
                member.copy_weights(self.member(like))
        return self.modules[module_id]

    def remove_module(self, module_id: str) -> None:
        """Remove a module with its extras, its optimizers and the options it alone has."""
        self.member(module_id)
        self.optimizers.remove(module_id)
        self.scheduled = [one for one in self.optimizers if one.rates]
        for table in self._tables():
            table.pop(module_id, None)
        self.calls.set_overrides(module_id, {})
        if self.modules_to_train is not None and not callable(self.modules_to_train):
            self.modules_to_train = {one for one in self.modules_to_train if one != module_id}

    def check_spaces(self, module_id: str, spaces: Spaces) -> None:
        """Refuse what are no spaces, or spaces that the algorithm does not support."""
        match spaces:
            case [gymnasium.Space(), gymnasium.Space()]:
                pass
            case _:
                raise RequestError(
                    f"module {module_id!r} needs an observation space and an action space, got "
                    f"{spaces!r}.",
                    "try: (env.observation_space, env.action_space)",
                )
        algorithm = self.calls.algorithm
        reason = algorithm.plugin.supports(*spaces)
        if reason is not None:
            raise UnsupportedSpaceError(
                f"{algorithm.label} cannot have module {module_id!r}: {reason.rstrip('.')}."
            )

    def set_options(self, module_id: str, options: Mapping[str, Any], plugin: str = "") -> None:
        """Set options of the algorithm, or of another `plugin`, for one module alone.

        They hold from the next call of a hook on and are part of the state. Optimizers take over
        what they would be made with now, such as `learning_rate`. What `build` read, such as the
        sizes of layers, stays as it is: give such options to `add_module`.
        """
        if module_id not in self.spaces and module_id not in self._given_modules:
            self.member(module_id)
        with self._changing_options(module_id):
            self.calls.set_options(plugin or self.calls.algorithm.name, module_id, options)

    @contextmanager
    def _changing_options(self, module_id: str) -> Iterator[None]:
        """Let a module's optimizers take over options that change inside."""
        kept = self.calls.overrides(module_id)
        before = self._fresh_optimizers(module_id)
        try:
            yield
            after = self._fresh_optimizers(module_id)
            alike = len(before) == len(after)
            if not (alike and all(map(RegisteredOptimizer.is_like, before, after))):
                raise RequestError(
                    f"these options make other optimizers for module {module_id!r}.",
                    "give them to add_module(…, options=…)",
                )
        except BaseException:
            self.calls.set_overrides(module_id, kept)
            raise
        for old, new in zip(before, after, strict=True):
            self.optimizers.get(module_id, old.name).take_over(old, new)
        self._follow_schedules()

    def _fresh_optimizers(self, module_id: str) -> list[RegisteredOptimizer]:
        """Those that plugins would make of a module now; it keeps the ones that it has."""
        member, made = self.members.get(module_id), []
        if member is not None:
            with contextlib.suppress(_TakenBack), self._all_or_nothing():
                self.optimizers.remove(module_id)
                self._configure_optimizers(member)
                made = self.optimizers.of(module_id)
                raise _TakenBack
        return made

    def _follow_schedules(self) -> None:
        """Find the optimizers whose learning rates change with the steps."""
        self.scheduled = [one for one in self.optimizers if one.rates]
        for one in self.scheduled:
            one.at_step(self.timestep)

    def _tables(self) -> tuple[dict[str, Any], ...]:
        """Everything that is kept by module id."""
        return (
            self.members,
            self.modules,
            self.extra,
            self.module_updates,
            self.spaces,
            self.rows,
            self.registered_metrics,
            self._generators,
            self._given_modules,
            self.training_spaces,
        )

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Put modules, optimizers and options back as they were if anything fails."""
        tables = [(table, dict(table)) for table in self._tables()]
        kept = {
            name: getattr(self, name)
            for name in (
                *("scheduled", "shared_update", "_shared_member", "_modules_to_train"),
                *("chosen", "precision"),
            )
        }
        optimizers = self.optimizers.copy()
        members = [(one, one.shared, one.optimizers) for one in self.members.values()]
        ids = {*self.spaces, *self._given_modules, *self.members}
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
            self._optimizers = optimizers
            raise

    # -- optimizers ----------------------------------------------------------------------------

    def register_optimizer(
        self,
        module_id: str,
        optimizer_name: str,
        optimizer: torch.optim.Optimizer,
        params: Sequence[nn.Parameter] | None = None,
        lr_or_lr_schedule: Any = None,
    ) -> None:
        """Register an optimizer; a schedule is `[[step, value], …]` over environment steps."""
        check_optimizer(optimizer, f"optimizer {optimizer_name!r}")
        if module_id != ALL_MODULES:
            self.member(module_id)
        one = RegisteredOptimizer(module_id, optimizer_name, "", optimizer)
        if params is not None:
            check_params(
                params, one.params, f"optimizer {optimizer_name!r} of module {module_id!r}"
            )
        one.set_rate(lr_or_lr_schedule)
        shares = self._shared_member is not None or any(m.shared for m in self.members.values())
        if module_id == ALL_MODULES and not shares:
            raise without_effect(optimizer_name)
        with self._all_or_nothing():
            self.optimizers.add(one)
            if module_id != ALL_MODULES:
                self._use_optimizers(self.member(module_id))
            elif not self._assembling:
                self._use_shared_optimizers()

    def get_optimizer(
        self, module_id: str = DEFAULT_MODULE, optimizer_name: str = "default"
    ) -> torch.optim.Optimizer:
        """One optimizer by its module and its name."""
        return self.optimizers.get(module_id, optimizer_name).optimizer

    # -- building ------------------------------------------------------------------------------

    def _make_member(self, module_id: str) -> Member:
        """Build a module, or take the one given, and build its extras."""
        if module_id == ALL_MODULES:
            raise RequestError(f"{ALL_MODULES!r} stands for all modules.", "choose another id")
        observation_space, action_space = self.spaces.get(module_id, (None, None))
        learned = self.training_spaces.get(module_id, observation_space)
        seed = derive(self.seed, "module", module_id)
        module = self._given_modules.get(module_id)
        if isinstance(module, type):
            raise RequestError(
                f"module {module_id!r} is the class {module.__name__}.",
                f"try: module={module.__name__}(…)",
            )
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
            self.precision = Precision(self.compute, self.device)
            apply_compute(self.compute, self.device, small=is_small(parts))
            self._engines = Engines(
                self.calls,
                self._losses,
                compute=self.compute,
                precision=self.precision,
                terms=self._terms,
                hooks=self._gradient_hooks,
                generators=self._generators,
                registered_metrics=self.registered_metrics,
            )
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
        answers = dict(self.calls.configure_optimizers_for_module(module_id, member.module, self))
        registered = {one.plugin for one in self.optimizers.of(module_id)}
        if algorithm not in {*answers, *registered} and (params := member.own(algorithm)):
            config = self.calls.scheduled_config_of(algorithm, module_id)
            answers = {algorithm: default_optimizer(config, algorithm, params), **answers}
        for one, schedulers in optimizers_from(answers, module_id, algorithm):
            self.optimizers.add(one, schedulers)
        self._use_optimizers(member)

    def _use_optimizers(self, member: Member) -> None:
        """Let a module's registered optimizers take part in its updates."""
        member.optimizers = self.optimizers.of(member.module_id)
        for one in member.optimizers:
            one.plugin = one.plugin or member.owner_of(one.params)
            if member.module_id == ALL_MODULES:
                check_shared(one, member, self.members.values())
            member.check_owned(one)
        scaled = self.precision.scaler is not None
        check_lbfgs(member.optimizers, shared=bool(member.shared), scaled=scaled)
        self._follow_schedules()
        if member.optimizers and member.module_id != ALL_MODULES:
            before = self.module_updates.get(member.module_id)
            made = self._make_update(member)
            if before is not None:
                made.go_on_from(before)
            self.module_updates[member.module_id] = made

    def _use_shared_optimizers(self) -> None:
        """Let the optimizers of shared parameters take part; refuse those that could never step."""
        registered, both = self.optimizers.of(ALL_MODULES), self._shared_member
        if both is None:
            if registered:
                raise without_effect(registered[0].name)
            return
        if registered != both.optimizers or (registered and self.shared_update is None):
            self._use_optimizers(both)
            self.shared_update = self._make_update(both)

    def _make_update(self, member: Member) -> ModuleUpdate:
        update = ModuleUpdate(
            member,
            self._losses,
            section=self.learning,
            precision=self.precision,
            seed=derive(self.seed, "minibatches", member.module_id),
        )
        self._engines.choose(update)
        return update

    def _all_updates(self) -> dict[str, ModuleUpdate]:
        shared = self.shared_update
        if shared is None:
            return self.module_updates
        return {**self.module_updates, ALL_MODULES: shared}
