"""Checks of `forward_exploration` and `forward_inference`."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from gymnasium import spaces
from torch import Tensor

from rlplug.batch.nested import tree_map
from rlplug.plugin import Acted, ActInput, Module
from rlplug.testing.cases import Case, act_input, in_torch
from rlplug.testing.check import check
from rlplug.testing.comparison import cloned, first_difference, leaves_of, to_array
from rlplug.testing.harness import Harness, changed_generators, make_harness
from rlplug.testing.report import CheckFailed, DoesNotApply, as_failure, location
from rlplug.testing.subject import Subject, named
from rlplug.trees import pack

METHODS = ("forward_exploration", "forward_inference")


@check("algorithm", tier="silver")
def builds_for_the_spaces_it_supports(subject: Subject) -> None:
    """It acts and learns in every space that it supports, and names the space that it refuses."""
    from rlplug.testing.cases import CASES

    refused = {case: subject.refusal(case) for case in CASES if not case.one_step}
    if not subject.cases:
        found = next((reason for reason in refused.values() if reason), "nothing")
        hint = "or give the conformance class an `environment`"
        looked_for = "spaces that it supports among those of the kit"
        raise subject.failure(looked_for, f"none; it says: {found}", hint, "supports")
    for case in subject.cases:
        try:
            make_harness(subject, case).train(2)
        except CheckFailed:
            raise
        except Exception as error:
            looked_for = f"that it acts and learns in {case.name!r}, which `supports` accepts"
            raise as_failure(error, looked_for, subject.kind) from error
    for case, reason in refused.items():
        parts = (case.observation_space, case.action_space)
        words = {word for one in parts for word in (type(one).__name__, str(one))}
        words |= {part for one in parts if isinstance(one, spaces.Dict) for part in one.spaces}
        if reason is not None and ("\n" in reason or not any(word in reason for word in words)):
            looked_for = "a reason in one line that names the space it found"
            raise subject.failure(looked_for, f"for {case.name!r}: {reason!r}", "", "supports")


@check("algorithm")
def actions_are_in_the_action_space(subject: Subject) -> None:
    """n observations give n actions in the action space and n rows of extras, without gradients."""
    for case in subject.cases:
        harness = make_harness(subject, case)
        harness.train(1)
        for n in (1, 5):
            for method in METHODS:
                _require_actions(harness.module, case, method, n)


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
def acting_is_repeatable(subject: Subject) -> None:
    """The same observations and generator give the same actions."""
    case = subject.case()
    harness = make_harness(subject, case)
    module = harness.module
    # Ties are common before the first update, and rare afterwards.
    for _ in range(2):
        for n, method in ((1, METHODS[0]), (8, METHODS[0]), (1, METHODS[1]), (8, METHODS[1])):
            acts = [act_input(module, case, n) for _ in range(5)]
            first, *others = (to_array(_acted(module, method, act).actions) for act in acts)
            for other in others:
                if difference := first_difference(first, other):
                    raise CheckFailed(
                        f"the same actions of {method} from generators of the same seed",
                        f"actions {difference}: something else than act.random was drawn from",
                        location(type(module), method),
                    )
        harness.train(2)


@check("algorithm")
def inference_is_not_random(subject: Subject) -> None:
    """The best action of an observation depends on no generator, and on no other observation."""
    for harness, beside in _trained_harnesses(subject):
        module, case = harness.module, harness.case
        where = location(type(module), "forward_inference")
        acts = [act_input(module, case, 12) for _ in range(3)]
        acts[1].random = numpy.random.default_rng(99)
        together, other = (_greedy(module, act) for act in acts[:2])
        if difference := first_difference(together, other):
            looked_for = f"the same best actions whatever act.random draws{beside}"
            raise CheckFailed(looked_for, f"actions {difference}", f"{where}: it explores")
        alone = numpy.concatenate(
            [_greedy(module, _only(module, acts[2], row)) for row in range(12)]
        )
        wrong = [
            row for row in range(12) if not numpy.allclose(together[row], alone[row], 1e-3, 1e-3)
        ]
        if wrong:
            raise CheckFailed(
                f"the same best action for an observation alone and beside others{beside}",
                f"{alone[wrong[0]]!r} alone, {together[wrong[0]]!r} among 12",
                f"{where}: means over the batch, or axes that are mixed up",
            )


@check("algorithm")
def acting_changes_nothing(subject: Subject) -> None:
    """Acting changes no observations, weights, buffers, torch modes or global generators."""
    for case in subject.cases:
        harness = make_harness(subject, case)
        harness.train(2)
        for method in METHODS:
            _require_untouched(harness.module, case, method)


def _require_untouched(module: Module, case: Case, method: str) -> None:
    where = location(type(module), method)
    act = act_input(module, case, 8)
    inputs = copy.deepcopy((act.observations, act.action_mask))
    before = cloned(module.state_dict()), _attributes(module)
    modes = module.training, torch.is_grad_enabled()
    with changed_generators() as changed:
        _acted(module, method, act)
    if changed:
        looked_for = "draws from act.random, and from no global generator"
        raise CheckFailed(looked_for, ", ".join(changed), where)
    pairs: dict[str, Any] = {"observations": (inputs, (act.observations, act.action_mask))}
    names = set(before[0])
    if method == "forward_exploration":
        # Noisy layers resample their noise buffers to explore.
        names = {name for name, param in module.named_parameters() if param.requires_grad}
    else:
        pairs["attributes"] = before[1], _attributes(module)
    weights = ({name: part[name] for name in names} for part in (before[0], module.state_dict()))
    pairs["weights and buffers"] = tuple(weights)
    pairs["training mode and grad mode"] = modes, (module.training, torch.is_grad_enabled())
    for what, (old, new) in pairs.items():
        if difference := first_difference(old, new):
            raise CheckFailed(f"{what} left as they were", f"changed: {difference}", where)


@check("algorithm", tier="silver")
def export_acts_like_inference(subject: Subject) -> None:
    """`forward_export`, on tensors, gives the actions of `forward_inference`."""
    applies = False
    for case in subject.cases:
        harness = make_harness(subject, case)
        module = harness.module
        exports = type(module).forward_export is not Module.forward_export
        methods = ["forward_export"] * exports + ["forward_inference"] * module.acts_on_tensors
        if not methods:
            continue
        applies = True
        harness.train(3)
        expected = _greedy(module, act_input(module, case, 24))
        module.eval()
        for method in methods:
            with torch.no_grad():
                acted = _acted(module, method, in_torch(act_input(module, case, 24)))
            found = to_array(acted.actions)
            rows = range(24)
            wrong = [
                row for row in rows if not numpy.allclose(found[row], expected[row], 1e-3, 1e-3)
            ]
            # Of two actions that are equally good, rounding decides.
            if len(wrong) > 1:
                raise CheckFailed(
                    f"the same actions by {method} on tensors as by forward_inference on arrays in "
                    f"{case.name!r}",
                    f"{found[wrong[0]]!r} and {expected[wrong[0]]!r} in {len(wrong)} of 24 rows",
                    location(type(module), method),
                )
    if not applies:
        raise DoesNotApply("it defines no forward_export: its forward_inference is exported")


@check("algorithm")
def masks_are_respected(subject: Subject) -> None:
    """No masked action is chosen, by either method."""
    subject.case(lambda one: one.masked, "it supports no environment with action masks")
    for harness, beside in _trained_harnesses(subject, masked=True):
        for _ in range(4):
            for method in METHODS:
                act = act_input(harness.module, harness.case, 64, seed=harness.timestep)
                mask = numpy.array(act.action_mask)
                actions = to_array(_acted(harness.module, method, act).actions)
                wrong = numpy.flatnonzero(mask[numpy.arange(64), actions] == 0)
                if len(wrong):
                    row = wrong[0]
                    raise CheckFailed(
                        f"no action that act.action_mask forbids{beside}",
                        f"action {actions[row]} under the mask {mask[row].astype(int).tolist()}",
                        location(type(harness.module), method),
                    )
            harness.train(2)


def _trained_harnesses(subject: Subject, *, masked: bool = False) -> Iterator[tuple[Harness, str]]:
    """One after a few updates in each environment with each variant, and both in words."""
    for setting in ({}, *subject.variants):
        for case in subject.cases:
            if (case.masked or not masked) and subject.supports(case, setting):
                harness = make_harness(subject, case, config=subject.changed(setting))
                harness.train(0 if masked else 3)
                yield harness, f" in {case.name!r}{named(setting)}"


def _only(module: Module, act: ActInput, row: int) -> ActInput:
    """One row of an input."""
    return ActInput(
        tree_map(lambda leaf: leaf[row : row + 1], act.observations),
        None if act.action_mask is None else act.action_mask[row : row + 1],
        module.initial_state(1),
        act.timestep,
        act.random,
    )


def _attributes(module: Module) -> dict[str, Any]:
    """A copy of the numbers, texts and collections in a module's plain attributes."""
    attributes: dict[str, Any] = {}
    for name in vars(module).keys() - vars(torch.nn.Module()).keys():
        try:
            attributes[name] = pack(getattr(module, name), {}, name)
        except Exception:
            continue
    return copy.deepcopy(attributes)


def _greedy(module: Module, act: ActInput) -> Any:
    return to_array(module.forward_inference(act).actions)


def _acted(module: Module, method: str, act: ActInput) -> Acted:
    acted: Acted = getattr(module, method)(act)
    return acted
