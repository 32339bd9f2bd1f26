"""Checks of log-probabilities: those that a module gives are those that it acts by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy
import torch
from gymnasium import spaces

from rlplug.batch import Batch
from rlplug.batch.nested import to_tensors, tree_map
from rlplug.plugin import ActInput
from rlplug.testing.cases import CASES, RUN_STEPS, Case, act_input, in_torch
from rlplug.testing.check import check
from rlplug.testing.comparison import to_array
from rlplug.testing.harness import Harness, make_harness
from rlplug.testing.report import CheckFailed, DoesNotApply, location
from rlplug.testing.subject import Subject

DRAWS = 4000
TOLD = 16
"""Rows whose probabilities are asked for."""


@check("algorithm")
def log_probs_are_those_of_actions(subject: Subject) -> None:
    """Actions are drawn as often as their log-probabilities say, on every kind of space."""
    applies = False
    for setting in ({}, *subject.variants):
        for case in _kinds_of_spaces(subject):
            if not subject.supports(case, setting):
                continue
            harness = make_harness(subject, case, config=subject.changed(setting))
            harness.train(3)
            # At the end of a run; of the defaults, also at its start.
            for at in (RUN_STEPS, 0)[: 1 if setting else 2]:
                act = act_input(harness.module, case, 1, seed=2, at=at, copies=DRAWS)
                act.wants_log_prob = True
                applies = _require_draws(harness, act) or applies
    if not applies:
        raise DoesNotApply("it gives no log_prob, and forward_train no log_probs")


@check("algorithm")
def acting_and_training_agree_on_log_probs(subject: Subject) -> None:
    """The column log_prob that `prepare_batch` adds is what acting gives where it is asked for."""
    applies = False
    for case in [case for case in subject.cases if not case.one_step]:
        harness = make_harness(subject, case)
        batch = harness.batch()
        prepared = harness.prepare(batch)
        if "log_prob" in batch or "log_prob" not in prepared or harness.module.initial_state(1):
            continue
        applies = True
        act = act_input(harness.module, case, 16)
        act.wants_log_prob = True
        acted = harness.module.forward_exploration(act)
        given = to_array(acted.extras.get("log_prob", numpy.nan))
        again = to_array(harness.prepare(_batch_of(act, acted.actions))["log_prob"])
        error = abs(again - given).max()
        if not error <= 1e-3:
            where = location(type(harness.module), "forward_exploration")
            raise CheckFailed(
                f"the same log_prob where act.wants_log_prob is set as in training {harness.note}",
                f"they differ by up to {error:.3g}",
                f"{where}, or {location(subject.kind, 'prepare_batch')}",
            )
    if not applies:
        raise DoesNotApply("prepare_batch adds no log_prob")


def _kinds_of_spaces(subject: Subject) -> list[Case]:
    """One environment per kind of action space, masked ones, and a Box of one dimension."""
    chosen: dict[Any, Case] = {}
    # What it supports by default first: others may be supported with variants.
    for case in (*subject.cases, *CASES):
        space = case.action_space
        if case.one_step == subject.is_bandit and "image" not in case.name:
            shape = space.shape if isinstance(space, spaces.Box) else ()
            chosen.setdefault((type(space), shape, case.masked), case)
    return list(chosen.values())


def _batch_of(act: ActInput, actions: Any) -> Batch:
    """What was observed and done as a batch, each step an episode."""
    columns: dict[str, Any] = {"actions": torch.as_tensor(to_array(actions))}
    if act.action_mask is not None:
        columns["action_mask"] = torch.as_tensor(act.action_mask)
    return single_steps(to_tensors(act.observations), len(actions), columns)


def single_steps(observations: Any, rows: int, columns: Mapping[str, Any]) -> Batch:
    """A batch of episodes of one step, with these columns."""
    usual = {
        "observations": observations,
        "next_observations": observations,
        "actions": torch.zeros(rows, dtype=torch.int64),
        "rewards": torch.zeros(rows),
        "terminated": torch.ones(rows, dtype=torch.bool),
        "truncated": torch.zeros(rows, dtype=torch.bool),
        "fragments": torch.tensor([[0, rows]]),
        "final_observations": tree_map(lambda leaf: leaf[-1:], observations),
    }
    return Batch({**usual, **columns})


def _require_draws(harness: Harness, act: ActInput) -> bool:
    """Whether log-probabilities are given; raises if actions are not drawn by them."""
    module, space = harness.module, harness.case.action_space
    where = location(type(module), "forward_exploration", "forward_train")
    for way in [act, in_torch(act)] if module.acts_on_tensors else [act]:
        with torch.no_grad():
            acted = module.forward_exploration(way)
        actions, given = to_array(acted.actions), acted.extras.get("log_prob")
        if given is None and way is act:
            given = _of_training(harness, act, actions)
        if given is None:
            return False
        log_probs = to_array(given).reshape(DRAWS, -1).astype(float)
        if found := _mismatch(space, actions, log_probs):
            raise CheckFailed(
                f"actions as likely as their log-probabilities say {harness.note}",
                found,
                f"{where}: masks, the log-determinant of squashing, sums over dimensions",
            )
        if way is act and not _are_estimates(actions, log_probs):
            _require_told(harness, act.timestep, actions[:TOLD], log_probs[:TOLD, 0])
    return True


def _require_told(harness: Harness, at: int, actions: Any, log_probs: Any) -> None:
    """What a module tells of the probabilities of actions agrees with what it acts by."""
    module, first = harness.module, getattr(harness.case.action_space, "start", 0)
    for method in ("action_probabilities", "action_log_prob"):
        act = act_input(module, harness.case, 1, seed=2, at=at, copies=TOLD)
        before = act.random.bit_generator.state
        more = (actions,) if method == "action_log_prob" else ()
        found = getattr(module, method)(act, *more)
        # Those of noisy networks are of noise that is drawn for them.
        if found is None or act.random.bit_generator.state != before:
            continue
        told = to_array(found).astype(float)
        if method == "action_probabilities":
            chosen = told[numpy.arange(TOLD), actions - first]
            told = numpy.log(numpy.maximum(chosen, 1e-30))
        if told.shape == (TOLD,) and _are_estimates(actions, told):
            continue
        if told.shape != (TOLD,) or not numpy.allclose(told, log_probs, 1e-3, 1e-3):
            raise CheckFailed(
                f"the same probabilities by {method} as by log_prob {harness.note}",
                f"log-probabilities of {told.reshape(-1)[:3]} and {log_probs[:3]}",
                location(type(module), method),
            )


def _are_estimates(actions: Any, log_probs: Any) -> bool:
    """Whether rows of the same observation and action were given different probabilities."""
    rows = actions.reshape(len(actions), -1)
    each, places = numpy.unique(rows, axis=0, return_inverse=True)
    chosen = [log_probs.reshape(-1)[places.reshape(-1) == index] for index in range(len(each))]
    return any(numpy.ptp(one) > 1e-3 for one in chosen)


@torch.no_grad()
def _of_training(harness: Harness, act: ActInput, actions: Any) -> Any:
    """The log-probabilities of these actions by `log_probs` or `logits` of `forward_train`."""
    if not isinstance(harness.case.action_space, spaces.Discrete):
        return None
    batch = _batch_of(act, actions).to(harness.learner.device, harness.learner.dtype)
    try:
        out = harness.module.forward_train(batch)
    except KeyError:
        return None
    logits = out.get("log_probs", out.get("logits"))
    if logits is None or logits.dim() != 2:
        return None
    if "log_probs" not in out:
        # They may be those before the mask.
        mask = batch.get("action_mask", torch.ones_like(logits))
        logits = logits.masked_fill(mask == 0, -torch.inf).log_softmax(1)
    return logits.gather(1, torch.as_tensor(actions).long()[:, None])


def _mismatch(space: Any, actions: Any, log_probs: Any) -> str:
    """How draws and log-probabilities disagree; nothing where they agree."""
    if log_probs.shape[1] != 1 or not numpy.isfinite(log_probs).all():
        return f"log-probabilities of shape {log_probs.shape}, or not finite: one per row is needed"
    probabilities, actions = numpy.exp(log_probs[:, 0]), actions.reshape(DRAWS, -1)
    if isinstance(space, spaces.Box):
        return _density_mismatch(actions[:, 0], probabilities) if space.shape == (1,) else ""
    # All rows have the same observation: an action has one probability, unless it is an estimate.
    each, places = numpy.unique(actions, axis=0, return_inverse=True)
    total = 0.0
    for index, action in enumerate(each.tolist()):
        told = probabilities[places.reshape(-1) == index]
        share, probability = len(told) / DRAWS, float(told.mean())
        total += probability
        # Estimates, which differ from row to row, may be off by as much as they differ.
        spread = 5 * numpy.sqrt(max(probability * (1 - min(probability, 1)), 1e-4) / DRAWS)
        if abs(share - probability) > spread + 0.002 + told.std():
            drawn = f"action {action} in {share:.1%} of {DRAWS:,} draws"
            return f"{drawn}, by its log-probability {probability:.1%}"
    return "" if total < 1.01 else f"probabilities that add up to {total:.3g}"


def _density_mismatch(actions: Any, densities: Any) -> str:
    """How far the drawn distribution is from the integrated density, if too far."""
    # Near the bounds, many draws of a squashed action round to the same number.
    low, high = numpy.quantile([actions.min(), actions.max()], (0.02, 0.98))
    inside = (actions > low) & (actions < high)
    order = numpy.argsort(actions[inside])
    points, density = actions[inside][order].astype(float), densities[inside][order]
    steps = numpy.diff(points) * (density[1:] + density[:-1]) / 2
    integrated = numpy.concatenate(([0.0], numpy.cumsum(steps)))
    count = len(points)
    drawn = numpy.arange(count) / max(count - 1, 1)
    distance = float(abs(drawn - integrated / max(integrated[-1], 1e-30)).max(initial=0.0))
    if count < DRAWS / 10 or distance <= 0.05 * (DRAWS / count) ** 0.5:
        return ""
    return f"a density whose integral is off by {distance:.2f} from how {count:,} draws lie"
