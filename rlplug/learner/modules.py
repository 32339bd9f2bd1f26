"""The modules of a learner: built, added, removed, with extras, optimizers, engines and options."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from typing import Any, Protocol, TypeAlias

import gymnasium
import torch
from gymnasium.spaces import Discrete
from torch import nn

from rlplug.batch import Batch
from rlplug.batch.nested import tree_map
from rlplug.config.schedule import Schedule, ScheduledValue
from rlplug.config.secrets import without_masked
from rlplug.config.sections import ComputeSection, LearnerSection
from rlplug.errors import PluginError, RequestError, UnsupportedSpaceError, did_you_mean
from rlplug.hooks.calls import HookCalls
from rlplug.learner.device import Precision, apply_compute, choose_device, is_small
from rlplug.learner.gradients import choose_engine
from rlplug.learner.losses import LossHooks
from rlplug.learner.member import Member
from rlplug.learner.optimizers import (
    OptimizerCycle,
    Optimizers,
    RegisteredOptimizer,
    check_lbfgs,
    default_optimizer,
)
from rlplug.learner.step import Engine, TrainedModule
from rlplug.nn.targets import TargetNetwork
from rlplug.optim.forms import read_forms
from rlplug.plugin import ALL_MODULES, DEFAULT_MODULE, LearnerView, Module
from rlplug.seeding import derive
from rlplug.spaces import AnySpace, shape_mismatch, whole_numbers, without_action_mask

ToTrain: TypeAlias = "Collection[str] | Callable[[str, Batch], bool] | None"
Spaces: TypeAlias = "tuple[gymnasium.Space[Any], gymnasium.Space[Any]]"


class Tables(LearnerView, Protocol):
    """A learner as its methods in other files see it: all that the next update depends on."""

    calls: HookCalls
    seed: int
    learning: LearnerSection
    compute: ComputeSection
    losses: LossHooks
    dtype: torch.dtype
    by_term: bool
    precision: Precision
    timestep: int
    updates: int
    modules_to_train: ToTrain
    optimizers: Optimizers
    shared: TrainedModule | None
    """The parameters that modules share, where they have an optimizer."""
    shared_member: Member | None
    """The same, with an optimizer or without."""
    read: frozenset[tuple[str, str, str]]
    """The options that optimizers were made of: module id, plugin, name."""
    # Everything that is kept by module id, and only that, is a dict:
    spaces: dict[str, Any]
    training_spaces: dict[str, AnySpace]
    given: dict[str, Any]
    members: dict[str, Member]
    modules: dict[str, Module]
    extra: dict[str, dict[str, nn.Module]]
    trained: dict[str, TrainedModule]
    generators: dict[str, torch.Generator]
    registered: dict[str, dict[str, Any]]


def generator(learner: Tables, module_id: str = DEFAULT_MODULE) -> torch.Generator:
    """The random numbers of training hooks: part of the state, one generator per module."""
    if module_id not in learner.generators:
        seed = derive(learner.seed, "training", module_id)
        made = torch.Generator(learner.precision.device).manual_seed(seed)
        learner.generators[module_id] = made
    return learner.generators[module_id]


def set_timestep(learner: Tables, timestep: int) -> None:
    """Move schedules to an environment step."""
    learner.timestep = timestep
    learner.calls.configs.at_step(timestep)
    for optimizer in learner.optimizers.by_key.values():
        if optimizer.rates:
            optimizer.at_step(timestep)


def member_of(learner: Tables, module_id: str) -> Member:
    """A module with all that belongs to it."""
    if module_id in learner.members:
        return learner.members[module_id]
    hint = did_you_mean(str(module_id), learner.members, sentence=True)
    raise RequestError(
        f"the learner has no module {module_id!r}. {hint}".rstrip(),
        f"it has: {', '.join(learner.members) or 'none: call build() first'}",
    )


def all_trained(learner: Tables) -> dict[str, TrainedModule]:
    """All that have optimizers, also what modules share."""
    shared = learner.shared
    return learner.trained if shared is None else {**learner.trained, ALL_MODULES: shared}


# -- adding and removing -----------------------------------------------------------------------


def build(learner: Tables) -> None:
    """Make modules, extras and optimizers; a second call changes nothing."""
    ids = dict.fromkeys([*learner.spaces, *learner.given])
    with undone_on_error(learner):
        new = [make_member(learner, name) for name in ids if name not in learner.members]
        add_members(learner, new)


def make_member(learner: Tables, module_id: str) -> Member:
    """Build a module of known spaces, or take the one given, and build its extras."""
    if not module_id or module_id == ALL_MODULES:
        raise RequestError(f"no module can be called {module_id!r}.", "choose another id")
    calls, spaces = learner.calls, learner.spaces.get(module_id, (None, None))
    if module_id in learner.spaces and (reason := calls.algorithm.plugin.supports(*spaces)):
        raise UnsupportedSpaceError(
            f"{calls.algorithm.label} cannot have module {module_id!r}: {reason.rstrip('.')}."
        )
    observation_space, action_space = spaces
    learned = learner.training_spaces.get(module_id, observation_space)
    seed = derive(learner.seed, "module", module_id)
    module = learner.given.get(module_id)
    if module is None:
        module = calls.build(module_id, observation_space, action_space, seed, learned)
    extras = {}
    if isinstance(module, Module):
        extras = calls.build_extra(module_id, module, learned, action_space, seed)
    return Member(module_id, module, extras, calls.algorithm.name)


def add_members(learner: Tables, new: Sequence[Member]) -> None:
    """Give new members their place, their device and their optimizers."""
    members = [*learner.members.values(), *new]
    parts = [part for member in members for part in member.parts()]
    if new and not learner.members:
        device = choose_device(learner.compute, parts)
        learner.precision = Precision(learner.compute, device)
        apply_compute(learner.compute, device, small=is_small(parts))
    dtype = learner.dtype if learner.dtype is torch.float64 else None
    for member in new:
        for part in member.parts():
            part.to(learner.precision.device, dtype)
        learner.modules[member.module_id] = member.module
        learner.extra[member.module_id] = member.extras
        learner.members[member.module_id] = member
    counts = Counter(key for member in members for key in {*map(id, member.named.values())})
    shared = frozenset(key for key, count in counts.items() if count > 1)
    for member in members:
        member.shared = shared & {id(param) for param in member.named.values()}
    for member in new:
        _configure_optimizers(learner, member)
    _configure_shared(learner, shared)
    use_optimizers(learner)


def remove_module(learner: Tables, module_id: str) -> None:
    """Remove a module with its extras, its optimizers and the options it alone has."""
    member_of(learner, module_id)
    learner.optimizers.remove(module_id)
    for table in _tables(learner).values():
        table.pop(module_id, None)
    learner.calls.configs.set_overrides(module_id, {})
    if learner.modules_to_train is not None and not callable(learner.modules_to_train):
        learner.modules_to_train = set(learner.modules_to_train) - {module_id}


def _tables(learner: Tables) -> dict[str, dict[str, Any]]:
    return {name: value for name, value in vars(learner).items() if isinstance(value, dict)}


@contextmanager
def undone_on_error(learner: Tables) -> Iterator[None]:
    """Put modules, optimizers and options back as they were if anything fails."""
    configs, overrides = learner.calls.configs, dict(learner.calls.configs.overrides)
    before = dict(vars(learner))
    tables = {name: dict(table) for name, table in _tables(learner).items()}
    optimizers = dict(learner.optimizers.by_key)
    members = [(member, dict(vars(member))) for member in learner.members.values()]
    try:
        yield
    except BaseException:
        for module_id in {*overrides, *configs.overrides}:
            configs.set_overrides(module_id, overrides.get(module_id, {}))
        vars(learner).update(before)
        for name, table in _tables(learner).items():
            # In place: the learner shows them as well.
            table.clear()
            table.update(tables[name])
        learner.optimizers.by_key = optimizers
        for member, own in members:
            vars(member).update(own)
        raise


# -- options and optimizers --------------------------------------------------------------------


def replace_options(
    learner: Tables, module_id: str, options: Mapping[str, Mapping[str, Any]]
) -> None:
    """Replace what a module alone has, by plugin; with other options it has other optimizers."""
    configs = learner.calls.configs
    before = configs.overrides.get(module_id, {})
    configs.set_overrides(module_id, {})
    for plugin, changes in options.items():
        configs.set_options(plugin, module_id, without_masked(changes))
    if configs.overrides[module_id] != before:
        learner.optimizers.remove(module_id)
        _configure_optimizers(learner, learner.members[module_id])
        use_optimizers(learner)


def _configure_optimizers(learner: Tables, member: Member) -> None:
    """Register what the plugins answer; those of add-ons bear the add-on's name."""
    module_id, algorithm, calls = member.module_id, member.algorithm, learner.calls
    if not member.is_torch:
        return
    read: set[tuple[str, str]] = set()
    answers = dict(calls.configure_optimizers_for_module(module_id, member.module, learner, read))
    registered = {optimizer.plugin for optimizer in learner.optimizers.of(module_id)}
    if algorithm not in {*answers, *registered} and (params := member.own(algorithm)):
        config = calls.configs.scheduled((algorithm, module_id))
        answers = {algorithm: default_optimizer(config, algorithm, params), **answers}
        read.add((algorithm, "learning_rate"))
    others = {option for option in learner.read if option[0] != module_id}
    learner.read = frozenset(others | {(module_id, *option) for option in read})
    for plugin, answer in answers.items():
        for plan in read_forms(answer, f"configure_optimizers_for_module of plugin {plugin!r}"):
            name = plan.name
            if plugin != algorithm:
                name = plugin if name == "default" else f"{plugin}.{name}"
            made = module_id, name, plugin, plan.optimizer, plan.frequency, plan.schedulers
            learner.optimizers.add(RegisteredOptimizer(*made))


def _configure_shared(learner: Tables, shared: frozenset[int]) -> None:
    """Ask for optimizers of what modules share, while there is none."""
    before = learner.shared_member
    named: dict[str, nn.Parameter] = {}
    known = set(map(id, before.named.values())) if before is not None else set()
    for member in learner.members.values():
        for name, param in member.named.items():
            if id(param) not in shared or any(param is other for other in named.values()):
                continue
            # Under the name that the first of them gives it, which may name another's already.
            named[f"{member.module_id}.{name}" if name in named else name] = param
            late = before is not None and before.optimizers and id(param) not in known
            if late and member.trainable and param.requires_grad:
                raise PluginError(
                    f"module {member.module_id!r} shares {name!r} with a module that was added "
                    "later, and no optimizer of what modules share holds it.",
                    "build modules that share parameters together, from the start",
                )
    if shared - known and not (before is not None and before.optimizers):
        module = Module()
        module.shared = nn.ParameterList(named.values())
        member = Member(ALL_MODULES, module, {}, learner.calls.algorithm.name)
        member.named, member.owners = named, dict.fromkeys(named, member.algorithm)
        learner.shared_member = member
        learner.extra[ALL_MODULES] = {}
        _configure_optimizers(learner, member)


def use_optimizers(learner: Tables) -> None:
    """Let optimizers that were registered take part, and refuse those that cannot work."""
    both = [] if learner.shared_member is None else [learner.shared_member]
    for member in (*learner.members.values(), *both):
        module_id, optimizers = member.module_id, learner.optimizers.of(member.module_id)
        for optimizer in optimizers:
            _check_owned(optimizer, member)
        scaled = learner.precision.scaler is not None
        check_lbfgs(optimizers, shared=bool(member.shared), scaled=scaled)
        if optimizers == member.optimizers:
            continue
        member.optimizers = optimizers
        for optimizer in optimizers:
            optimizer.at_step(learner.timestep)
        before = all_trained(learner).get(module_id)
        learner.trained.pop(module_id, None)
        if not optimizers:
            continue
        cycle, shuffler = OptimizerCycle(optimizers), torch.Generator()
        shuffler.manual_seed(derive(learner.seed, "minibatches", module_id))
        if before is not None:
            # It shuffles, and counts in its cycles, where it was.
            shuffler, cycle.position = before.shuffler, before.cycle.position
        modules = [module for part in member.parts() for module in part.modules()]
        targets = [module for module in modules if isinstance(module, TargetNetwork)]
        made = TrainedModule(member, cycle, engine_of(learner, member), shuffler, targets)
        if module_id == ALL_MODULES:
            learner.shared = made
        else:
            learner.trained[module_id] = made


def _check_owned(optimizer: RegisteredOptimizer, holder: Member) -> None:
    """Refuse an optimizer over parameters that its plugin does not own or another must move."""
    names = {id(param): name for name, param in holder.named.items()}
    for param in optimizer.params:
        name = names.get(id(param))
        if name is None:
            shape = tuple(param.shape)
            held = f"a parameter of shape {shape} that is neither in the module nor in an extra"
            advice = "return what holds it from 'build' or 'build_extra', for its own module id"
        elif holder.owners[name] != optimizer.plugin:
            held = f"{name!r}, which belongs to {holder.owners[name]!r}"
            advice = "optimize your own parameters; to change others', use postprocess_gradients"
        elif id(param) in holder.shared:
            held = f"{name!r}, which other modules share"
            advice = "build them together, and optimize it where module_id is rlplug.ALL_MODULES"
        else:
            continue
        raise PluginError(f"{optimizer} holds {held}.", advice)


def engine_of(learner: Tables, member: Member, kept: Mapping[str, Any] | None = None) -> Engine:
    """What computes the gradients of a module; `kept` is the state of one to go on with."""
    return choose_engine(
        member, learner.losses, learner.precision, learner.compute, terms=learner.by_term, kept=kept
    )


# -- methods of the learner ------------------------------------------------------------------------


def add_module(
    learner: Tables,
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
    calls, problem = learner.calls, ""
    source = member_of(learner, like) if like else None
    if module_id in learner.members:
        problem = f"the learner has a module {module_id!r} already: remove_module removes it"
    elif source is not None and spaces is not None:
        problem = f"module {module_id!r} is given spaces and like={like!r}: give one of them"
    elif module is None and spaces is None and like not in learner.spaces:
        problem = f"module {module_id!r} needs its spaces, or those of another: like='default'"
    if problem:
        raise RequestError(problem)
    with undone_on_error(learner):
        if spaces is not None:
            learner.spaces[module_id] = spaces
        if module is not None:
            learner.given[module_id] = module
        if source is not None:
            for table in (learner.spaces, learner.training_spaces):
                table.update({module_id: table[like]} if like in table else {})
            calls.configs.set_overrides(module_id, calls.configs.overrides.get(like, {}))
        if options:
            calls.configs.set_options(calls.algorithm.name, module_id, options)
        member = make_member(learner, module_id)
        member.trainable = trainable
        add_members(learner, [member])
        if source is not None:
            extras = {plugin: extra.state_dict() for plugin, extra in source.extras.items()}
            member.load(source.module.state_dict(), extras)
    return learner.modules[module_id]


def set_options(
    learner: Tables, module_id: str, options: Mapping[str, Any], plugin: str = ""
) -> None:
    """Set options of the algorithm, or of another `plugin`, for one module alone.

    They hold from the next call of a hook on and are part of the state. What its optimizers
    were made with is refused; what `build` read, such as the sizes of layers, stays as it is:
    give such options to `add_module`.
    """
    if module_id not in learner.spaces and module_id not in learner.given:
        member_of(learner, module_id)
    plugin = plugin or learner.calls.algorithm.name
    for name in options:
        if (module_id, plugin, name) in learner.read:
            raise RequestError(
                f"the optimizers of module {module_id!r} were made with {name!r} of plugin "
                f"{plugin!r}: another value would change nothing.",
                "give it to add_module, or change the param_groups of learner.get_optimizer(…)",
            )
    learner.calls.configs.set_options(plugin, module_id, options)


def register_optimizer(
    learner: Tables,
    module_id: str,
    optimizer_name: str,
    optimizer: torch.optim.Optimizer,
    params: Sequence[nn.Parameter] | None = None,
    lr_or_lr_schedule: Any = None,
) -> None:
    """Register an optimizer; a schedule is `[[step, value], …]` over environment steps."""
    rate = lr_or_lr_schedule
    plugin = learner.calls.algorithm.name
    if module_id != ALL_MODULES:
        plugin = member_of(learner, module_id).owner_of(optimizer)
    elif not any(member.shared for member in learner.members.values()):
        raise PluginError(
            f"optimizer {optimizer_name!r} is registered under {ALL_MODULES!r}, but no two modules "
            "share a parameter: it would never step.",
            "register it under the id of the module that holds its parameters",
        )
    if rate is not None and not isinstance(rate, float | int | torch.Tensor):
        schedule = rate if isinstance(rate, Schedule) else Schedule(rate)
        rate = ScheduledValue(schedule.at(0), schedule)
    for group in optimizer.param_groups if rate is not None else ():
        group["lr"] = rate
    with undone_on_error(learner):
        learner.optimizers.add(RegisteredOptimizer(module_id, optimizer_name, plugin, optimizer))
        use_optimizers(learner)


def can_module_be_updated(learner: Tables, module_id: str, batch: Batch | None = None) -> bool:
    """Whether this batch trains the module; without one, whether any can."""
    wanted = learner.modules_to_train
    if not learner.members[module_id].trainable:
        return False
    if callable(wanted):
        return batch is None or bool(wanted(module_id, batch))
    return wanted is None or module_id in wanted


def check_batch(learner: Tables, module_id: str, batch: Batch) -> Member:
    """Refuse what cannot be an update; done when a module's first batch comes."""
    member = member_of(learner, module_id)
    batch.check()
    space, action_space = learner.spaces.get(module_id, (None, None))
    learned = learner.training_spaces.get(module_id)
    discrete = isinstance(action_space, Discrete)
    _check_shapes(module_id, batch, learned or space, one_action=discrete and learned is None)
    if discrete and "actions" in batch:
        # Fractions would be cut off without a word.
        whole_numbers(batch.array("actions"), "action")
    losses = {hook.name for hook in learner.calls.implementations("compute_loss_for_module")}
    idle = member.algorithm in losses and not (member.optimizers or member.shared)
    if idle and learner.updates <= 1 and member.own(member.algorithm):
        logging.getLogger("rlplug").warning(
            "rlplug: nothing trains module %r: plugin %r returned no optimizer for it in "
            "'configure_optimizers_for_module'. For ALL_MODULES it is asked for what they share.",
            module_id,
            member.algorithm,
        )
    member.checked = True
    return member


def _check_shapes(
    module_id: str, batch: Batch, space: AnySpace | None, *, one_action: bool
) -> None:
    """Refuse shapes by which a batch would be broadcast or flattened into other numbers."""
    for name in (*_ONE_PER_ROW, "actions") if one_action else _ONE_PER_ROW:
        column: Any = batch.columns.get(name)
        if getattr(column, "ndim", 1) > 1:
            raise RequestError(
                f"{name!r} of the batch for module {module_id!r} has shape "
                f"{tuple(column.shape)}, expected ({batch.rows},).",
                f"give one number per row, such as {name}[:, 0]",
            )
    for name in _OBSERVATIONS:
        # Of what is missing the module says what it lacks.
        with suppress(KeyError, IndexError, TypeError, ValueError):
            first = tree_map(itemgetter(0), batch.columns[name])
            if space is not None and (wrong := shape_mismatch(without_action_mask(space), first)):
                raise RequestError(
                    f"{name!r} of the batch for module {module_id!r} is {wrong}.",
                    "give observations of the module's space, one in each row",
                )


_ONE_PER_ROW = ("rewards", "terminated", "truncated", "weights", "discounts", "indices")
"""Columns that hold one number per row, whatever the spaces are."""
_OBSERVATIONS = ("observations", "next_observations", "final_observations")
