"""Checks of `forward_exploration` and `forward_inference`."""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import numpy
import torch
from gymnasium import spaces
from torch import Tensor

from rlplug.batch.nested import tree_map
from rlplug.plugin import Acted, ActInput, Module
from rlplug.testing.cases import Case
from rlplug.testing.checks.distributions import in_torch
from rlplug.testing.collector import first_observations, to_array
from rlplug.testing.comparison import cloned, first_difference, leaves_of, require_equal
from rlplug.testing.harness import Harness, changed_generators, make_harness
from rlplug.testing.report import CheckFailed, DoesNotApply, location
from rlplug.testing.subject import Subject
from rlplug.testing.trial import named
from rlplug.trees import pack

__all__ = [
    "check_acting_changes_nothing",
    "check_acting_is_repeatable",
    "check_actions_are_in_the_action_space",
    "check_export_acts_like_inference",
    "check_inference_is_not_random",
    "check_masks_are_respected",
]

METHODS = ("forward_exploration", "forward_inference")


def check_actions_are_in_the_action_space(subject: Subject) -> None:
    """n observations give n actions in the action space and n rows of extras, without gradients."""
    for case in subject.cases:
        harness = make_harness(subject, case)
        harness.train(1)
        for n in (1, 5):
            for method in METHODS:
                _check_actions(subject, harness.module, case, method, n)


def check_acting_is_repeatable(subject: Subject) -> None:
    """The same observations and generator give the same actions."""
    case = subject.case()
    harness = make_harness(subject, case)
    # Ties are common before the first update, and rare afterwards.
    for _ in range(2):
        for n in (1, 8):
            _check_repeatable(harness.module, case, n)
        harness.train(2)


def check_inference_is_not_random(subject: Subject) -> None:
    """The best action of an observation depends on no generator, and on no other observation."""
    for setting in ({}, *subject.variants):
        config = subject.changed(setting)
        plugin = subject.kind(config)
        for case in subject.cases:
            if plugin.supports(case.observation_space, case.action_space) is None:
                harness = make_harness(subject, case, config=config)
                harness.train(3)
                _check_inference(harness.module, case, named(setting))


def check_acting_changes_nothing(subject: Subject) -> None:
    """Acting changes no observations, weights, buffers, torch modes or global generators."""
    for case in subject.cases:
        harness = make_harness(subject, case)
        harness.train(2)
        for method in METHODS:
            _check_untouched(harness, case, method)


def check_export_acts_like_inference(subject: Subject) -> None:
    """`forward_export`, on tensors, gives the actions of `forward_inference`."""
    applies = False
    for case in subject.cases:
        harness = make_harness(subject, case)
        module = harness.module
        exports = type(module).forward_export is not Module.forward_export
        if not (exports or module.acts_on_tensors):
            continue
        applies = True
        harness.train(3)
        expected = to_array(_acted(module, "forward_inference", _input(case, module, 24)).actions)
        module.eval()
        if exports:
            _check_on_tensors(module, case, "forward_export", expected)
        if module.acts_on_tensors:
            _check_on_tensors(module, case, "forward_inference", expected)
    if not applies:
        raise DoesNotApply("it defines no forward_export: its forward_inference is exported")


def check_masks_are_respected(subject: Subject) -> None:
    """No masked action is chosen, by either method."""
    subject.case(lambda one: one.masked, "it supports no environment with action masks")
    masked = [one for one in subject.cases if one.masked]
    for setting, case in product(({}, *subject.variants), masked):
        config = subject.changed(setting)
        if subject.kind(config).supports(case.observation_space, case.action_space) is not None:
            continue
        harness = make_harness(subject, case, config=config)
        for _ in range(4):
            for method in METHODS:
                _check_mask(harness.module, case, method, seed=harness.timestep)
            harness.train(2)


def _check_on_tensors(module: Module, case: Case, method: str, expected: Any) -> None:
    """The actions of a method on tensors are those that were expected, up to rounding."""
    with torch.no_grad():
        found = to_array(_acted(module, method, in_torch(_input(case, module, 24))).actions)
    wrong = [row for row in range(24) if not numpy.allclose(found[row], expected[row], 1e-3, 1e-3)]
    # Of two actions that are equally good, rounding decides.
    if len(wrong) > 1:
        raise CheckFailed(
            f"the same actions by {method} on tensors as by forward_inference on arrays in "
            f"{case.name!r}",
            f"{found[wrong[0]]!r} and {expected[wrong[0]]!r}, others in {len(wrong)} of 24 rows",
            location(type(module), method),
        )


def _check_repeatable(module: Module, case: Case, n: int) -> None:
    for method, looked_for, hint in (
        ("forward_inference", "the same best actions for the same observations", ""),
        (
            "forward_exploration",
            "the same explored actions from generators of the same seed",
            ": something else than act.random was drawn from",
        ),
    ):
        repeats = [_acted(module, method, _input(case, module, n)).actions for _ in range(5)]
        for other in repeats[1:]:
            difference = first_difference(to_array(repeats[0]), to_array(other))
            if difference is not None:
                found = f"actions {difference}{hint}"
                raise CheckFailed(looked_for, found, location(type(module), method))


def _check_inference(module: Module, case: Case, beside: str) -> None:
    where = location(type(module), "forward_inference")
    acts = [_input(case, module, 12) for _ in range(2)]
    acts[1].random = numpy.random.default_rng(99)
    one, other = (to_array(_acted(module, "forward_inference", act).actions) for act in acts)
    difference = first_difference(one, other)
    if difference is not None:
        raise CheckFailed(
            f"the same best actions whatever act.random draws in {case.name!r}{beside}",
            f"actions {difference}",
            f"{where}: it explores",
        )
    alone = []
    for row in range(12):
        act = _input(case, module, 12)
        mask = None if act.action_mask is None else act.action_mask[row : row + 1]
        single = ActInput(
            tree_map(lambda leaf, at=row: leaf[at : at + 1], act.observations),
            mask,
            module.initial_state(1),
            act.timestep,
            act.random,
        )
        alone.append(to_array(_acted(module, "forward_inference", single).actions)[0])
    together = numpy.stack(alone)
    if not numpy.allclose(one, together, 1e-3, 1e-3):
        row = next(index for index in range(12) if not numpy.allclose(one[index], together[index]))
        raise CheckFailed(
            f"the same best action for an observation alone and beside others in {case.name!r}"
            + beside,
            f"{together[row]!r} alone, {one[row]!r} among 12",
            f"{where}: means over the batch, or axes that are mixed up",
        )


def _check_mask(module: Module, case: Case, method: str, *, seed: int) -> None:
    act = _input(case, module, 64, seed=seed)
    mask = numpy.array(act.action_mask)
    actions = to_array(_acted(module, method, act).actions)
    wrong = numpy.flatnonzero(mask[numpy.arange(len(mask)), actions] == 0)
    if len(wrong):
        raise CheckFailed(
            "no action that act.action_mask forbids",
            f"action {actions[wrong[0]]} under the mask {mask[wrong[0]].astype(int).tolist()}",
            location(type(module), method),
        )


def _check_actions(subject: Subject, module: Module, case: Case, method: str, n: int) -> None:
    acted = _acted(module, method, _input(case, module, n))
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
        if not space.contains(converted) and not (
            same_kind and space.contains(numpy.int64(action))
        ):
            raise CheckFailed(looked_for, f"{action!r}", where)


def _check_untouched(harness: Harness, case: Case, method: str) -> None:
    module = harness.module
    where = location(type(module), method)
    act = _input(case, module, 8)
    inputs = copy.deepcopy((act.observations, act.action_mask))
    before, mode, grad = cloned(module.state_dict()), module.training, torch.is_grad_enabled()
    attributes = _attributes(module)
    with changed_generators() as changed:
        _acted(module, method, act)
    if changed:
        looked_for = "draws from act.random, and from no global generator"
        raise CheckFailed(looked_for, ", ".join(changed), where)
    require_equal(
        inputs,
        (act.observations, act.action_mask),
        "observations left as they were",
        where,
        found="changed: ",
    )
    after = module.state_dict()
    if method == "forward_exploration":
        # Noisy layers resample their noise buffers to explore.
        names = [name for name, param in module.named_parameters() if param.requires_grad]
        before, after = ({name: part[name] for name in names} for part in (before, after))
    require_equal(before, after, "unchanged weights and buffers", where, found="moved: ")
    if method == "forward_inference":
        found = "changed: "
        require_equal(attributes, _attributes(module), "unchanged attributes", where, found=found)
    if (module.training, torch.is_grad_enabled()) != (mode, grad):
        raise CheckFailed("the same training mode and grad mode", "one of them changed", where)


def _attributes(module: Module) -> dict[str, Any]:
    """A copy of the numbers, texts and collections in a module's plain attributes."""
    attributes: dict[str, Any] = {}
    for name, value in vars(module).items():
        if name not in vars(torch.nn.Module()):
            try:
                attributes[name] = pack(value, {}, name)
            except Exception:
                continue
    return copy.deepcopy(attributes)


def _input(case: Case, module: Module, n: int, seed: int = 0) -> ActInput:
    """n observations and a generator, all from this seed."""
    stacked, mask = first_observations(case, n, seed)
    return ActInput(stacked, mask, module.initial_state(n), 100, numpy.random.default_rng(seed))


def _acted(module: Module, method: str, act: ActInput) -> Acted:
    acted: Acted = getattr(module, method)(act)
    return acted
