"""Checks of how a module acts."""

from __future__ import annotations

import copy
from typing import Any

import numpy
import torch
from torch import Tensor

from rlplug.learner.state import pack
from rlplug.plugin import Acted, ActInput, Module
from rlplug.testing.bench import Bench, bench_of, copied
from rlplug.testing.cases import Case
from rlplug.testing.comparing import first_difference, leaves_of
from rlplug.testing.draws import moved_generators
from rlplug.testing.experience import as_arrays, see
from rlplug.testing.report import CheckFailed, place
from rlplug.testing.subject import Subject

__all__ = [
    "check_acting_changes_nothing",
    "check_acting_is_repeatable",
    "check_actions_are_in_the_action_space",
    "check_masks_are_respected",
]

WAYS = ("forward_exploration", "forward_inference")


def check_actions_are_in_the_action_space(subject: Subject) -> None:
    """n observations give n actions of the action space, n states and extras, no gradients."""
    for case in subject.cases:
        bench = bench_of(subject, case)
        bench.live(1)
        for n in (1, 5):
            for way in WAYS:
                _check_actions(subject, bench.module, case, way, n)


def check_acting_is_repeatable(subject: Subject) -> None:
    """Equal observations give equal actions; exploring draws from `act.random` alone."""
    case = subject.case()
    bench = bench_of(subject, case)
    # Before anything is learned, ties are common; afterwards, there are none.
    for _ in range(2):
        for n in (1, 8):
            _check_repeatable(bench.module, case, n)
        bench.live(2)


def check_acting_changes_nothing(subject: Subject) -> None:
    """Acting leaves observations, weights, buffers, mode and global generators as they were."""
    for case in subject.cases:
        bench = bench_of(subject, case)
        bench.live(2)
        for way in WAYS:
            _check_untouched(bench, case, way)


def check_masks_are_respected(subject: Subject) -> None:
    """No masked action is ever chosen, exploring or not, however few are left."""
    subject.case(lambda one: one.masked, "it supports no environment with action masks")
    for case in [one for one in subject.cases if one.masked]:
        bench = bench_of(subject, case)
        for _ in range(4):
            for way in WAYS:
                _check_mask(bench.module, case, way, seed=bench.timestep)
            bench.live(2)


def _check_repeatable(module: Module, case: Case, n: int) -> None:
    for way, looked_for, hint in (
        ("forward_inference", "the same best actions for the same observations", ""),
        (
            "forward_exploration",
            "the same explored actions from generators of the same seed",
            ": something else than act.random was drawn from",
        ),
    ):
        tries = [_acted(module, way, _input(case, module, n)).actions for _ in range(5)]
        for other in tries[1:]:
            difference = first_difference(as_arrays(tries[0]), as_arrays(other))
            if difference is not None:
                found = f"actions {difference}{hint}"
                raise CheckFailed(looked_for, found, place(type(module), way))


def _check_mask(module: Module, case: Case, way: str, *, seed: int) -> None:
    act = _input(case, module, 64, seed=seed)
    mask = numpy.array(act.action_mask)
    actions = as_arrays(_acted(module, way, act).actions)
    wrong = numpy.flatnonzero(mask[numpy.arange(len(mask)), actions] == 0)
    if len(wrong):
        raise CheckFailed(
            "no action that act.action_mask forbids",
            f"action {actions[wrong[0]]} under the mask {mask[wrong[0]].astype(int).tolist()}",
            place(type(module), way),
        )


def _check_actions(subject: Subject, module: Module, case: Case, way: str, n: int) -> None:
    acted = _acted(module, way, _input(case, module, n))
    where = place(type(module), way)
    looked_for = f"{n} actions in {case.action_space} for {n} observations"
    if not isinstance(acted, Acted):
        raise CheckFailed("an rlplug.Acted", type(acted).__name__, where)
    for path, leaf in leaves_of({"actions": acted.actions, "extras": acted.extras}):
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            raise CheckFailed("acting without gradients", f"{path} requires one", where)
        if numpy.shape(as_arrays(leaf))[:1] != (n,):
            raise CheckFailed(looked_for, f"{path} of shape {numpy.shape(as_arrays(leaf))}", where)
    space = case.action_space
    for action in as_arrays(acted.actions):
        given = numpy.asarray(action, space.dtype) if space.shape else action
        whole = space.dtype is None or numpy.asarray(action).dtype.kind == space.dtype.kind
        if not space.contains(given) and not (whole and space.contains(numpy.int64(action))):
            raise CheckFailed(looked_for, f"{action!r}", where)


def _check_untouched(bench: Bench, case: Case, way: str) -> None:
    module = bench.module
    where = place(type(module), way)
    act = _input(case, module, 8)
    seen = copy.deepcopy(act.observations), copy.deepcopy(act.action_mask)
    before, mode, grad = copied(module.state_dict()), module.training, torch.is_grad_enabled()
    others = _attributes(module)
    with moved_generators() as moved:
        _acted(module, way, act)
    if moved:
        found = f"{', '.join(moved)}"
        raise CheckFailed("draws from act.random, and from no global generator", found, where)
    difference = first_difference(seen, (act.observations, act.action_mask))
    if difference is not None:
        raise CheckFailed("observations left as they were", f"changed: {difference}", where)
    after = module.state_dict()
    if way == "forward_exploration":
        # Noisy layers draw new noise to explore; what is trained must not move.
        names = [name for name, param in module.named_parameters() if param.requires_grad]
        before, after = ({name: part[name] for name in names} for part in (before, after))
    difference = first_difference(before, after)
    if difference is not None:
        raise CheckFailed("weights and buffers that stand still", f"moved: {difference}", where)
    if way == "forward_inference" and (changed := first_difference(others, _attributes(module))):
        raise CheckFailed("attributes that stand still", f"changed: {changed}", where)
    if (module.training, torch.is_grad_enabled()) != (mode, grad):
        raise CheckFailed("modes of torch left as they were", "train() or grad changed", where)


def _attributes(module: Module) -> dict[str, Any]:
    """What a module keeps in plain attributes, as far as it is numbers, texts and lists."""
    kept: dict[str, Any] = {}
    for name, value in vars(module).items():
        if name not in vars(torch.nn.Module()):
            try:
                kept[name] = pack(value, {}, name)
            except Exception:
                continue
    return copy.deepcopy(kept)


def _input(case: Case, module: Module, n: int, seed: int = 0) -> ActInput:
    """The same n observations for the same seed, with generators of the same seed."""
    seen = []
    for index in range(n):
        environment = case.make()
        seen.append(environment.reset(seed=1000 * seed + index))
    observations, mask = see(case.observation_space, [o for o, _ in seen], [i for _, i in seen])
    return ActInput(
        observations, mask, module.initial_state(n), 100, numpy.random.default_rng(seed)
    )


def _acted(module: Module, way: str, act: ActInput) -> Acted:
    acted: Acted = getattr(module, way)(act)
    return acted
