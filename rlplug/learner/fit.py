"""Whether a saved state fits a learner: found before anything is changed, all problems at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeGuard

import numpy
import torch
from torch import Tensor, nn

from rlplug.errors import RequestError
from rlplug.learner.member import Member
from rlplug.learner.module_update import ModuleUpdate
from rlplug.learner.optimizer_fit import optimizer_problems
from rlplug.learner.optimizers import RegisteredOptimizer
from rlplug.learner.state import random_problem
from rlplug.plugin import ALL_MODULES
from rlplug.registry import NOT_INSTALLED
from rlplug.spaces import AnySpace, space_from_dict, space_to_dict

__all__ = [
    "FORMAT",
    "check_modules",
    "check_origin",
    "compare",
    "compare_optimizers",
    "fits",
    "part_problems",
    "refuse",
    "spaces_of",
    "spaces_to_tree",
    "stage_problems",
    "weight_problems",
]

FORMAT = 1

_PARTS = {
    "counters": 1,
    "modules": 1,
    "extra": 3,
    "optimizers": 3,
    "stages": 2,
    "scaler": 1,
    "plugin_states": 2,
    "random": 1,
}
"""The mappings that every state has: how many levels of them."""
_LATER_PARTS = {"options": 3, "plugin_options": 2, "generators": 1, "spaces": 3}
"""Those that states of earlier versions lack."""


def check_origin(saved: Mapping[str, Any], here: Mapping[str, str]) -> None:
    """Refuse a state of another format, or of other plugins than those here: name → package."""
    if saved.get("format") != FORMAT:
        raise RequestError(
            f"the state has format {saved.get('format')!r}, this rlplug reads {FORMAT}.",
            "load it with the version of rlplug that saved it",
        )
    there = saved.get("plugins")
    if not isinstance(there, Mapping) or not all(isinstance(one, str) for one in there.values()):
        raise _unfit(f"'plugins' is {there!r}, not the packages by plugin")
    for name in {**there, **here}:
        if here.get(name) != there.get(name):
            if name not in there:
                hint = f"take part without {name!r}"
            elif there[name] == NOT_INSTALLED:
                hint = f"take part with the plugin {name!r} of the program that saved it"
            else:
                hint = f"try: pip install {there[name].replace(' ', '==')}"
            raise RequestError(
                f"the state was saved with plugin {name!r} as {there.get(name, 'absent')}, "
                f"here it is {here.get(name, 'absent')}.",
                hint,
            )


def check_modules(saved: Mapping[str, Any], members: Mapping[str, Member]) -> None:
    """Refuse a state that lacks a module."""
    if not isinstance(saved.get("modules"), Mapping):
        # What is wrong with it is told with all other problems.
        return
    for module_id, member in members.items():
        if member.has_state and module_id not in saved["modules"]:
            raise RequestError(
                f"the state has no module {module_id!r}.",
                f"it has: {', '.join(saved['modules']) or 'none'}",
                f"try: learner.remove_module({module_id!r}) before",
            )


def part_problems(
    saved: Mapping[str, Any], members: Mapping[str, Member], device: torch.device
) -> Iterator[str]:
    """Parts that are not there, or not of the kind that they should be."""
    for name, levels in {**_PARTS, **_LATER_PARTS}.items():
        if name in saved:
            yield from _no_mappings(saved[name], levels, repr(name))
        elif name in _PARTS:
            yield f"it has no {name!r}"
    yield from _count_problems(saved.get("counters"))
    yield from _id_problems(saved, members)
    yield from _generator_problems(saved, device)
    for module_id in _mapping(saved.get("spaces")):
        try:
            spaces_of(saved, module_id)
        except Exception as error:
            yield f"the spaces of module {module_id!r}: {type(error).__name__}: {error}"


def weight_problems(
    saved: Mapping[str, Any], members: Mapping[str, Member], shared: Member | None
) -> Iterator[str]:
    """Modules, extras and optimizers of other names, kinds or shapes than the members'."""
    for module_id, weights in saved["modules"].items():
        member = members[module_id]
        if not member.has_state:
            yield f"module {module_id!r} is a {type(member.module).__name__} here, without a state"
        if not member.is_torch:
            continue
        yield from _first(_differences(member.module, weights, f"module {module_id!r}"))
        extras = saved["extra"].get(module_id, {})
        for plugin, extra in member.extras.items():
            what = f"the extra of {plugin!r} for module {module_id!r}"
            if plugin in extras:
                yield from _first(_differences(extra, extras[plugin], what))
            else:
                yield f"it has no extra of plugin {plugin!r} for module {module_id!r}"
        yield from optimizer_problems(member, saved["optimizers"].get(module_id, {}))
    of_shared = saved["optimizers"].get(ALL_MODULES, {})
    if shared is not None:
        yield from optimizer_problems(shared, of_shared)
    elif of_shared:
        yield (
            f"it has optimizers {sorted(of_shared)} of what modules share ({ALL_MODULES!r}), "
            "here they share nothing"
        )


def stage_problems(
    saved: Mapping[str, Any], updates: Mapping[str, ModuleUpdate], scaler: Any
) -> Iterator[str]:
    """Cycles, generators of minibatches and schedulers that are not those of the modules."""
    for module_id, update in updates.items():
        where = f"of module {module_id!r} in 'stages'"
        stage = saved["stages"].get(module_id)
        if stage is None:
            yield f"it has no 'stages' of module {module_id!r}"
            continue
        names = [one.name for one in update.member.optimizers]
        for part, wanted in (("turns", [*update.cycle.positions]), ("unanswered", names)):
            counts = stage.get(part)
            if not isinstance(counts, Mapping) or not all(map(_is_whole, counts.values())):
                yield f"{part!r} {where} is {counts!r}, not counts by name"
            elif set(counts) != set(wanted) and set(names) == set(
                saved["optimizers"].get(module_id, {})
            ):
                # Where the optimizers are others, that is the problem.
                yield f"{part!r} {where} counts for {sorted(counts)}, here it is {sorted(wanted)}"
        if not _is_generator(stage.get("shuffler"), torch.device("cpu")):
            yield f"'shuffler' {where} is no state of a generator"
        schedulers = stage.get("schedulers")
        if isinstance(schedulers, Mapping):
            for one in update.member.optimizers:
                there = schedulers.get(one.name)
                if one.scheduler is not None:
                    yield from _scheduler_problems(one, there, where)
                elif there is not None:
                    yield f"optimizer {one.name!r} {where} has a scheduler there, and none here"
        else:
            yield f"'schedulers' {where} is a {type(schedulers).__name__}, not a mapping"
        match stage.get("engine", ["", ""]):
            case [str(), str()]:
                pass
            case engine:
                yield f"'engine' {where} is {engine!r}, not a name and a reason"
    if scaler is not None and saved["scaler"]:
        for name in scaler.state_dict():
            if not isinstance(saved["scaler"].get(name), int | float):
                yield f"{name!r} of 'scaler' is {saved['scaler'].get(name)!r}, not a number"


def refuse(problems: Iterable[str]) -> None:
    """Refuse a state with all that is wrong with it."""
    found = list(problems)
    if len(found) == 1:
        raise _unfit(found[0])
    if found:
        raise RequestError(
            f"the state does not fit this learner: {len(found)} problems.", *found, _HINT
        )


def spaces_to_tree(spaces: Mapping[str, AnySpace | None]) -> dict[str, Any]:
    """Spaces by what they are of, for a state; nothing of those that cannot be told."""
    return {name: space_to_dict(one) for name, one in spaces.items() if one is not None}


def spaces_of(saved: Mapping[str, Any], module_id: str) -> dict[str, AnySpace]:
    """The spaces that a state has of a module, if it has both, of types that can be made again.

    States of earlier versions have none.
    """
    try:
        told = saved.get("spaces", {}).get(module_id, {})
        found = {name: space_from_dict(one) for name, one in told.items()}
    except RequestError:
        return {}
    return found if {"observation", "action"} <= set(found) else {}


def fits(module: nn.Module, saved: Mapping[str, Tensor]) -> bool:
    """Whether weights have the names and shapes of the module's."""
    try:
        compare(module, saved, "the module")
    except RequestError:
        return False
    return True


def compare(module: nn.Module, saved: Any, what: str) -> None:
    """Refuse weights of other names or shapes than the module's."""
    for problem in _differences(module, saved, what):
        raise _unfit(problem)


def compare_optimizers(member: Member, states: Any) -> None:
    """Refuse states of optimizers of other names, kinds or sizes than the member's."""
    for problem in optimizer_problems(member, states):
        raise _unfit(problem)


def _differences(module: nn.Module, saved: Any, what: str) -> Iterator[str]:
    if not isinstance(saved, Mapping):
        yield f"that of {what} is a {type(saved).__name__}, not a mapping"
        return
    own, optional = module.state_dict(), _optional(module)
    for name in own:
        if name in optional and name not in saved:
            continue
        if name not in saved:
            yield f"it has no {name!r} for {what}"
        elif isinstance(own[name], Tensor):
            if not isinstance(saved[name], Tensor):
                yield f"{name!r} of {what} is a {type(saved[name]).__name__} there, no tensor"
            elif own[name].shape != saved[name].shape:
                yield (
                    f"{name!r} of {what} has shape {tuple(saved[name].shape)} there, "
                    f"{tuple(own[name].shape)} here"
                )
            elif saved[name].is_complex() and not own[name].is_complex():
                yield f"{name!r} of {what} is complex there, real here"
    for name in saved:
        if name not in own:
            yield f"{what} has no {name!r} here"


def _optional(module: nn.Module) -> set[str]:
    """What states may lack, as those do that are older: `optional_state` of parts of the module."""
    return {
        f"{path}.{name}" if path else name
        for path, part in module.named_modules()
        for name in getattr(part, "optional_state", ())
    }


def _scheduler_problems(one: RegisteredOptimizer, saved: Any, where: str) -> Iterator[str]:
    who = f"the scheduler of optimizer {one.name!r} {where}"
    if not isinstance(saved, Mapping):
        yield f"{who} is a {type(saved).__name__}, not a mapping"
        return
    runs = saved.get("schedulers", [saved])
    assert one.scheduler is not None
    if not isinstance(runs, list) or len(runs) != len(one.scheduler.runs):
        yield f"{who} is not of {len(one.scheduler.runs)}, as here"
        return
    for own, run in zip(one.scheduler.runs, runs, strict=True):
        match run:
            case {"passed": int(), "scheduler": Mapping() as inner}:
                here, there = own.plan.scheduler.state_dict().keys(), inner.keys()
                # Other versions of a scheduler add to what it saves, or leave out of it.
                if here - there and there - here:
                    kind = type(own.plan.scheduler).__name__
                    yield f"{who} is no {kind}: it has no {min(here - there)!r}"
            case _:
                yield f"{who} is {run!r}, without what it has passed"


def _no_mappings(value: Any, levels: int, what: str) -> Iterator[str]:
    """What should be mappings, down to this level, and is not."""
    if not isinstance(value, Mapping):
        yield f"{what} is a {type(value).__name__}, not a mapping"
    elif levels > 1:
        for key, part in value.items():
            yield from _no_mappings(part, levels - 1, f"{key!r} of {what}")


def _count_problems(counters: Any) -> Iterator[str]:
    for name in ("timestep", "updates"):
        count = _mapping(counters).get(name)
        if isinstance(counters, Mapping) and (not _is_whole(count) or count < 0):
            yield f"{name!r} of 'counters' is {count!r}, no count"


def _id_problems(saved: Mapping[str, Any], members: Mapping[str, Member]) -> Iterator[str]:
    for name in ("modules_to_train", "frozen"):
        ids = saved.get(name, "")
        if name not in saved:
            yield f"it has no {name!r}"
        elif ids is None and name == "modules_to_train":
            continue
        elif not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
            yield f"{name!r} is {ids!r}, not a list of ids"
        else:
            known = {*_mapping(saved.get("modules")), *members}
            for module_id in ids:
                if module_id not in known:
                    yield f"{name!r} has {module_id!r}, which is no module"


def _generator_problems(saved: Mapping[str, Any], device: torch.device) -> Iterator[str]:
    for module_id, state in _mapping(saved.get("generators")).items():
        if not _is_generator(state, device):
            yield f"{module_id!r} of 'generators' is no state of a generator on {device.type}"
    if isinstance(saved.get("random"), Mapping) and (reason := random_problem(saved["random"])):
        yield f"'random' is no state of the global generators ({reason})"


def _is_generator(state: Any, device: torch.device) -> bool:
    try:
        torch.Generator(device).set_state(state)
    except (TypeError, RuntimeError):
        return False
    return True


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int | numpy.integer) and not isinstance(value, bool)


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _first(problems: Iterable[str]) -> list[str]:
    """One problem is enough of weights: all others follow from it."""
    return list(problems)[:1]


def _unfit(reason: str) -> RequestError:
    return RequestError(f"the state does not fit this learner: {reason}.", _HINT)


_HINT = "use the options and spaces of the run that saved it"
