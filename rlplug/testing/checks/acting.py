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
from rlplug.testing.cases import CASES, RUN_STEPS, act_input, in_torch
from rlplug.testing.check import check
from rlplug.testing.comparison import cloned, first_difference, leaves_of, to_array
from rlplug.testing.report import as_failure
from rlplug.testing.subject import Subject
from rlplug.testing.trial import Draws, Trial, acting, changed_generators, needed

METHODS = EXPLORE, INFER = ("forward_exploration", "forward_inference")
MOMENTS = (*range(8), RUN_STEPS // 4, *range(RUN_STEPS - 8, RUN_STEPS))
"""Steps of a run, in its beginning, its midst and at its end."""


def acted(trial: Trial, act: ActInput, method: str = INFER) -> Acted:
    """What the module of a trial answers."""
    answer: Acted = getattr(trial.module, method)(act)
    return answer


def actions(trial: Trial, act: ActInput, method: str = INFER) -> Any:
    """The actions that it chooses, as an array."""
    return to_array(acted(trial, act, method).actions)


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
            Trial(subject, case, updates=2)
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
    for trial in acting(subject):
        for method in METHODS:
            for n in (1, 5):
                _require_actions(trial, method, n)


def _require_actions(trial: Trial, method: str, n: int) -> None:
    answer, space = (
        acted(trial, act_input(trial.module, trial.case, n), method),
        trial.case.action_space,
    )
    if not isinstance(answer, Acted):
        raise trial.failure("an rlplug.Acted", type(answer).__name__, "", method)
    looked_for = f"{n} actions in {space} for {n} observations"
    for path, leaf in leaves_of({"actions": answer.actions, "extras": answer.extras}):
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            raise trial.failure("acting without gradients", f"{path} requires one", "", method)
        shape = numpy.shape(to_array(leaf))
        if shape[:1] != (n,):
            raise trial.failure(looked_for, f"{path} of shape {shape}", "", method)
    for action in to_array(answer.actions):
        if method == EXPLORE and isinstance(space, spaces.Box):
            # The sampler clips draws of distributions without bounds, of which log_prob is known.
            action = numpy.clip(action, space.low, space.high)
        converted = numpy.asarray(action, space.dtype)
        same_kind = numpy.asarray(action).dtype.kind == converted.dtype.kind
        if not space.contains(converted) or not (space.shape or same_kind):
            raise trial.failure(looked_for, f"{action!r}", "", method)


@check("algorithm")
def acting_draws_from_its_generator(subject: Subject) -> None:
    """At any step, what explores is drawn from `act.random`, and from nothing else."""
    for trial in acting(subject):
        with changed_generators() as changed, Draws(subject.kind) as draws:
            for method in METHODS:
                acted(trial, act_input(trial.module, trial.case, 8), method)
        if changed:
            line = f"{draws.lines[0]} draws" if draws.lines else ""
            found = f"draws from {', '.join(changed)}, a global generator"
            raise trial.failure("draws from act.random alone", found, line, EXPLORE)
        if trial.case is not subject.cases[0]:
            continue
        seen: set[bytes] = set()
        is_ignored = True
        for at in MOMENTS:
            first, again, other = (_explored(trial, at, seed) for seed in (0, 0, 1))
            if difference := first_difference(first, again):
                found = f"actions {difference}: something else than act.random was drawn from"
                looked_for = f"the same actions from the same generator at step {at}"
                raise trial.failure(looked_for, found, "", EXPLORE)
            seen.add(first.tobytes())
            is_ignored = is_ignored and first.tobytes() == other.tobytes()
        if is_ignored and len(seen) > len(MOMENTS) / 2:
            found = "the same ones, which change from step to step: they are drawn elsewhere"
            raise trial.failure("other actions from another generator", found, "", EXPLORE)


def _explored(trial: Trial, at: int, seed: int) -> Any:
    act = act_input(trial.module, trial.case, 16, at=at)
    act.random = numpy.random.default_rng(seed)
    return actions(trial, act, EXPLORE)


@check("algorithm")
def inference_is_not_random(subject: Subject) -> None:
    """The best action of an observation depends on no generator, and on no other observation."""
    for trial in acting(subject):
        act, other = (act_input(trial.module, trial.case, 12) for _ in range(2))
        other.random = numpy.random.default_rng(99)
        together = actions(trial, act)
        if difference := first_difference(together, actions(trial, other)):
            looked_for = "the same best actions whatever act.random draws"
            raise trial.failure(looked_for, f"actions {difference}", "it explores", INFER)
        act = act_input(trial.module, trial.case, 12)
        alone = [actions(trial, _only(trial.module, act, row))[0] for row in range(12)]
        if wrong := _differing(together, alone):
            raise trial.failure(
                "the same best action for an observation alone and beside others",
                f"{alone[wrong[0]]!r} alone, {together[wrong[0]]!r} among 12",
                "means over the batch, or axes that are mixed up",
                INFER,
            )


def _only(module: Module, act: ActInput, row: int) -> ActInput:
    """One row of an input."""
    observations = tree_map(lambda leaf: leaf[row : row + 1], act.observations)
    mask = None if act.action_mask is None else act.action_mask[row : row + 1]
    return ActInput(observations, mask, module.initial_state(1), act.timestep, act.random)


@check("algorithm")
def acting_changes_nothing(subject: Subject) -> None:
    """Acting changes no observations, weights, buffers, attributes or torch modes."""
    for trial in acting(subject):
        for method in METHODS:
            act = act_input(trial.module, trial.case, 8)
            before = copy.deepcopy(_touchable(trial, act, method))
            acted(trial, act, method)
            if difference := first_difference(before, _touchable(trial, act, method)):
                looked_for = "acting that leaves all as it was"
                raise trial.failure(looked_for, f"changed: {difference}", "", method)


def _touchable(trial: Trial, act: ActInput, method: str) -> dict[str, Any]:
    """What acting might change; noisy layers resample their buffers to explore."""
    module, infers = trial.module, method == INFER
    return {
        "observations": (act.observations, act.action_mask),
        "weights": cloned(dict(module.named_parameters())),
        "buffers": cloned(dict(module.named_buffers())) if infers else {},
        "attributes": trial.attributes() if infers else {},
        "training mode": module.training,
        "grad mode": torch.is_grad_enabled(),
    }


@check("algorithm", tier="silver")
def export_acts_like_inference(subject: Subject) -> None:
    """`forward_export`, on tensors, gives the actions of `forward_inference`."""
    pairs = [(trial, method) for trial in acting(subject) for method in _on_tensors(trial.module)]
    reason = "it defines no forward_export: its forward_inference is exported"
    for trial, method in needed(pairs, reason):
        expected = actions(trial, act_input(trial.module, trial.case, 24))
        trial.module.eval()
        with torch.no_grad():
            found = actions(trial, in_torch(act_input(trial.module, trial.case, 24)), method)
        wrong = _differing(found, expected)
        # Of two actions that are equally good, rounding decides.
        if len(wrong) > 1:
            raise trial.failure(
                f"the same actions by {method} on tensors as on arrays",
                f"{found[wrong[0]]!r} and {expected[wrong[0]]!r} in {len(wrong)} of 24 rows",
                "",
                method,
            )


def _on_tensors(module: Module) -> list[str]:
    """The methods for inference that take tensors."""
    exports = type(module).forward_export is not Module.forward_export
    return ["forward_export"] * exports + [INFER] * module.acts_on_tensors


@check("algorithm")
def masks_are_respected(subject: Subject) -> None:
    """No masked action is chosen, by either method."""
    masked = [trial for trial in acting(subject) if trial.case.masked]
    for trial in needed(masked, "it supports no environment with action masks"):
        for method in METHODS:
            act = act_input(trial.module, trial.case, 256)
            mask = numpy.array(act.action_mask)
            chosen = actions(trial, act, method)
            for row in numpy.flatnonzero(mask[numpy.arange(256), chosen] == 0)[:1]:
                looked_for = "no action that act.action_mask forbids"
                found = f"action {chosen[row]} under the mask {mask[row].astype(int).tolist()}"
                raise trial.failure(looked_for, found, "", method)


def _differing(one: Any, other: Any) -> list[int]:
    """The rows in which actions differ by more than rounding."""
    pairs = zip(one, other, strict=True)
    return [row for row, pair in enumerate(pairs) if not numpy.allclose(*pair, 1e-3, 1e-3)]
