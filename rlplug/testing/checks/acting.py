"""Checks of `forward_exploration` and `forward_inference`."""

from __future__ import annotations

import copy
from typing import Any

import numpy
import torch
from gymnasium import spaces
from torch import Tensor

from rlplug.batch.nested import tree_map
from rlplug.plugin import Acted, ActInput, Module
from rlplug.testing.cases import CASES, RUN_STEPS, Case, act_input, in_torch
from rlplug.testing.check import check
from rlplug.testing.comparison import cloned, first_difference, leaves_of, to_array
from rlplug.testing.harness import (
    Draws,
    acting,
    changed_generators,
    each_harness,
    make_harness,
    plain_attributes,
)
from rlplug.testing.report import CheckFailed, DoesNotApply, as_failure, location
from rlplug.testing.subject import Subject

METHODS = ("forward_exploration", "forward_inference")
MOMENTS = (*range(8), RUN_STEPS // 4, *range(RUN_STEPS - 8, RUN_STEPS))
"""Steps of a run, in its beginning, its midst and at its end."""


@check("algorithm", tier="silver")
def builds_for_the_spaces_it_supports(subject: Subject) -> None:
    """It acts and learns in every space that it supports, and names the space that it refuses."""
    refused = {case: subject.refusal(case) for case in CASES if not case.one_step}
    if not subject.cases:
        reason = next(filter(None, refused.values()), "nothing")
        hint = "or give the conformance class an `environment`"
        looked_for = "spaces that it supports among those of the kit"
        raise subject.failure(looked_for, f"none; it says: {reason}", hint, "supports")
    for case in subject.cases:
        try:
            make_harness(subject, case).train(2)
        except Exception as error:
            looked_for = f"that it acts and learns in {case.name!r}, which `supports` accepts"
            raise as_failure(error, looked_for, subject.kind) from error
    for case, said in refused.items():
        parts = (case.observation_space, case.action_space)
        words = {word for part in parts for word in (type(part).__name__, str(part))}
        words |= {name for part in parts if isinstance(part, spaces.Dict) for name in part.spaces}
        if said is not None and ("\n" in said or not any(word in said for word in words)):
            looked_for = "a reason in one line that names the space it found"
            raise subject.failure(looked_for, f"for {case.name!r}: {said!r}", "", "supports")


@check("algorithm")
def actions_are_in_the_action_space(subject: Subject) -> None:
    """n observations give n actions in the action space and n rows of extras, without gradients."""
    for harness in acting(subject):
        for n in (1, 5):
            for method in METHODS:
                _require_actions(harness.module, harness.case, method, n)


def _require_actions(module: Module, case: Case, method: str, n: int) -> None:
    acted = _acted(module, method, act_input(module, case, n))
    where = location(type(module), method)
    looked_for = f"{n} actions in {case.action_space} for {n} observations"
    if not isinstance(acted, Acted):
        raise CheckFailed("an rlplug.Acted", type(acted).__name__, where)
    for path, leaf in leaves_of({"actions": acted.actions, "extras": acted.extras}):
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            raise CheckFailed("acting without gradients", f"{path} requires one", where)
        if numpy.shape(to_array(leaf))[:1] != (n,):
            raise CheckFailed(looked_for, f"{path} of shape {numpy.shape(to_array(leaf))}", where)
    space = case.action_space
    for action in to_array(acted.actions):
        if method == "forward_exploration" and isinstance(space, spaces.Box):
            # The sampler clips draws of distributions without bounds, of which log_prob is known.
            action = numpy.clip(action, space.low, space.high)
        converted = numpy.asarray(action, space.dtype) if space.shape else action
        same_kind = space.dtype is None or numpy.asarray(action).dtype.kind == space.dtype.kind
        is_action = same_kind and numpy.ndim(action) == 0 and space.contains(numpy.int64(action))
        if not space.contains(converted) and not is_action:
            raise CheckFailed(looked_for, f"{action!r}", where)


@check("algorithm")
def acting_draws_from_its_generator(subject: Subject) -> None:
    """At any step, what explores is drawn from `act.random`, and from nothing else."""
    for harness in acting(subject):
        module, case = harness.module, harness.case
        where = location(type(module), METHODS[0])
        with changed_generators() as changed, Draws(subject.kind) as draws:
            for method in METHODS:
                _acted(module, method, act_input(module, case, 8))
        if changed:
            line = draws.lines[0] if draws.lines else where
            found = f"draws from {', '.join(changed)}, a global generator"
            raise CheckFailed(f"draws from act.random alone {harness.note}", found, line)
        if harness.case is not subject.cases[0]:
            continue
        seen: set[bytes] = set()
        is_ignored = True
        for at in MOMENTS:
            first, again, other = (
                _explored(module, act_input(module, case, 16, at=at), seed) for seed in (0, 0, 1)
            )
            if difference := first_difference(first, again):
                found = f"actions {difference}: something else than act.random was drawn from"
                looked_for = f"the same actions from the same generator at step {at} {harness.note}"
                raise CheckFailed(looked_for, found, where)
            seen.add(first.tobytes())
            is_ignored = is_ignored and first.tobytes() == other.tobytes()
        if is_ignored and len(seen) > len(MOMENTS) / 2:
            found = "the same ones, which change from step to step: they are drawn elsewhere"
            raise CheckFailed(f"other actions from another generator {harness.note}", found, where)


def _explored(module: Module, act: ActInput, seed: int) -> Any:
    act.random = numpy.random.default_rng(seed)
    return to_array(_acted(module, METHODS[0], act).actions)


@check("algorithm")
def inference_is_not_random(subject: Subject) -> None:
    """The best action of an observation depends on no generator, and on no other observation."""
    for harness in acting(subject):
        module = harness.module
        where = location(type(module), "forward_inference")
        acts = [act_input(module, harness.case, 12) for _ in range(3)]
        acts[1].random = numpy.random.default_rng(99)
        together, other = (_greedy(module, act) for act in acts[:2])
        if difference := first_difference(together, other):
            looked_for = f"the same best actions whatever act.random draws {harness.note}"
            raise CheckFailed(looked_for, f"actions {difference}", f"{where}: it explores")
        alone = [_greedy(module, _only(module, acts[2], row))[0] for row in range(12)]
        if wrong := _differing(together, alone):
            raise CheckFailed(
                f"the same best action for an observation alone and beside others {harness.note}",
                f"{alone[wrong[0]]!r} alone, {together[wrong[0]]!r} among 12",
                f"{where}: means over the batch, or axes that are mixed up",
            )


@check("algorithm")
def acting_changes_nothing(subject: Subject) -> None:
    """Acting changes no observations, weights, buffers, attributes or torch modes."""
    for harness in acting(subject):
        for method in METHODS:
            _require_untouched(harness.module, harness.case, method)


def _require_untouched(module: Module, case: Case, method: str) -> None:
    act = act_input(module, case, 8)
    inputs = copy.deepcopy((act.observations, act.action_mask))

    def state() -> dict[str, Any]:
        kept: dict[str, Any] = dict(module.named_parameters())
        if method == "forward_inference":
            # Noisy layers resample their noise buffers to explore.
            kept.update(module.named_buffers())
        return {
            "weights and buffers": cloned(kept),
            "attributes": plain_attributes(module) if method == "forward_inference" else {},
            "training mode": module.training,
            "grad mode": torch.is_grad_enabled(),
        }

    before = {"observations": inputs, **state()}
    _acted(module, method, act)
    after = {"observations": (act.observations, act.action_mask), **state()}
    if difference := first_difference(before, after):
        where = location(type(module), method)
        raise CheckFailed("acting that leaves all as it was", f"changed: {difference}", where)


@check("algorithm", tier="silver")
def export_acts_like_inference(subject: Subject) -> None:
    """`forward_export`, on tensors, gives the actions of `forward_inference`."""
    applies = False
    for harness in acting(subject):
        module, case = harness.module, harness.case
        exports = type(module).forward_export is not Module.forward_export
        methods = ["forward_export"] * exports + ["forward_inference"] * module.acts_on_tensors
        applies = applies or bool(methods)
        expected = _greedy(module, act_input(module, case, 24))
        for method in methods:
            with torch.no_grad():
                acted = _acted(module.eval(), method, in_torch(act_input(module, case, 24)))
            actions = to_array(acted.actions)
            wrong = _differing(actions, expected)
            # Of two actions that are equally good, rounding decides.
            if len(wrong) > 1:
                raise CheckFailed(
                    f"the same actions by {method} on tensors as on arrays {harness.note}",
                    f"{actions[wrong[0]]!r} and {expected[wrong[0]]!r} in {len(wrong)} of 24 rows",
                    location(type(module), method),
                )
    if not applies:
        raise DoesNotApply("it defines no forward_export: its forward_inference is exported")


@check("algorithm")
def masks_are_respected(subject: Subject) -> None:
    """No masked action is chosen, by either method."""
    masked = [case for case in subject.cases if case.masked]
    if not masked:
        raise DoesNotApply("it supports no environment with action masks")
    for harness in each_harness(subject, cases=masked):
        for _ in range(4):
            for method in METHODS:
                act = act_input(harness.module, harness.case, 64, seed=harness.timestep)
                mask = numpy.array(act.action_mask)
                actions = to_array(_acted(harness.module, method, act).actions)
                wrong = numpy.flatnonzero(mask[numpy.arange(64), actions] == 0)
                for row in wrong[:1]:
                    raise CheckFailed(
                        f"no action that act.action_mask forbids {harness.note}",
                        f"action {actions[row]} under the mask {mask[row].astype(int).tolist()}",
                        location(type(harness.module), method),
                    )
            harness.train(2)


def _differing(actions: Any, others: Any) -> list[int]:
    """The rows in which actions differ by more than rounding."""
    pairs = zip(actions, others, strict=True)
    return [row for row, pair in enumerate(pairs) if not numpy.allclose(*pair, 1e-3, 1e-3)]


def _only(module: Module, act: ActInput, row: int) -> ActInput:
    """One row of an input."""
    return ActInput(
        tree_map(lambda leaf: leaf[row : row + 1], act.observations),
        None if act.action_mask is None else act.action_mask[row : row + 1],
        module.initial_state(1),
        act.timestep,
        act.random,
    )


def _greedy(module: Module, act: ActInput) -> Any:
    return to_array(module.forward_inference(act).actions)


def _acted(module: Module, method: str, act: ActInput) -> Acted:
    acted: Acted = getattr(module, method)(act)
    return acted
