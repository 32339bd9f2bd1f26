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
from rlplug.testing.checks.acting import EXPLORE, acted
from rlplug.testing.comparison import to_array
from rlplug.testing.subject import Subject
from rlplug.testing.trial import Trial, needed

DRAWS = 4000
TOLD = 16
"""Rows whose probabilities are asked for."""


@check("algorithm")
def log_probs_are_those_of_actions(subject: Subject) -> None:
    """Actions are drawn as often as their log-probabilities say, on every kind of space."""
    drawn = []
    for setting, case in subject.places(cases=_kinds_of_spaces(subject), every_case=True):
        trial = Trial(subject, case, setting, updates=3)
        # At the end of a run; of the defaults, also at its start.
        drawn += [_require_draws(trial, at) for at in (RUN_STEPS, 0)[: 1 if setting else 2]]
    list(needed(filter(None, drawn), "it gives no log_prob, and forward_train no log_probs"))


@check("algorithm")
def acting_and_training_agree_on_log_probs(subject: Subject) -> None:
    """The column log_prob that `prepare_batch` adds is what acting gives where it is asked for."""
    trials = [Trial(subject, case) for case in subject.cases if not case.one_step]
    for trial in needed(filter(_prepares_log_prob, trials), "prepare_batch adds no log_prob"):
        act = act_input(trial.module, trial.case, 16)
        act.wants_log_prob = True
        answer = acted(trial, act, EXPLORE)
        given = to_array(answer.extras.get("log_prob", numpy.nan))
        again = to_array(trial.prepare(_batch_of(act, answer.actions))["log_prob"])
        error = abs(again - given).max()
        if not error <= 1e-3:
            looked_for = "the same log_prob where act.wants_log_prob is set as in training"
            found = f"they differ by up to {error:.3g}"
            raise trial.failure(looked_for, found, "", EXPLORE, "prepare_batch")


def _prepares_log_prob(trial: Trial) -> bool:
    is_new = "log_prob" not in trial.batch and "log_prob" in trial.prepare(trial.batch)
    return is_new and not trial.module.initial_state(1)


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


@torch.no_grad()
def _require_draws(trial: Trial, at: int) -> bool:
    """Whether log-probabilities are given; raises if actions are not drawn by them."""
    usual = act_input(trial.module, trial.case, 1, seed=2, at=at, copies=DRAWS)
    usual.wants_log_prob = True
    for act in [usual, in_torch(usual)] if trial.module.acts_on_tensors else [usual]:
        answer = acted(trial, act, EXPLORE)
        actions, given = to_array(answer.actions), answer.extras.get("log_prob")
        if given is None and act is usual:
            given = _of_training(trial, act, actions)
        if given is None:
            return False
        log_probs = to_array(given).reshape(DRAWS, -1).astype(float)
        if found := _mismatch(trial.case.action_space, actions, log_probs):
            raise trial.failure(
                "actions as likely as their log-probabilities say",
                found,
                "masks, the log-determinant of squashing, sums over dimensions",
                *(EXPLORE, "forward_train"),
            )
        if act is usual and not _are_estimates(actions, log_probs):
            _require_told(trial, at, actions[:TOLD], log_probs[:TOLD, 0])
    return True


def _require_told(trial: Trial, at: int, actions: Any, log_probs: Any) -> None:
    """What a module tells of the probabilities of actions agrees with what it acts by."""
    for method in ("action_probabilities", "action_log_prob"):
        act = act_input(trial.module, trial.case, 1, seed=2, at=at, copies=TOLD)
        before = act.random.bit_generator.state
        more = (actions,) if method == "action_log_prob" else ()
        found = getattr(trial.module, method)(act, *more)
        # Those of noisy networks are of noise that is drawn for them.
        if found is None or act.random.bit_generator.state != before:
            continue
        told = to_array(found).astype(float)
        if method == "action_probabilities":
            first = getattr(trial.case.action_space, "start", 0)
            chosen = told[numpy.arange(TOLD), actions - first]
            told = numpy.log(numpy.maximum(chosen, 1e-30))
        if told.shape == (TOLD,) and _are_estimates(actions, told):
            continue
        if told.shape != (TOLD,) or not numpy.allclose(told, log_probs, 1e-3, 1e-3):
            looked_for = f"the same probabilities by {method} as by log_prob"
            found = f"log-probabilities of {told.reshape(-1)[:3]} and {log_probs[:3]}"
            raise trial.failure(looked_for, found, "", method)


def _are_estimates(actions: Any, log_probs: Any) -> bool:
    """Whether rows of the same observation and action were given different probabilities."""
    rows = actions.reshape(len(actions), -1)
    each, places = numpy.unique(rows, axis=0, return_inverse=True)
    chosen = [log_probs.reshape(-1)[places.reshape(-1) == index] for index in range(len(each))]
    return any(numpy.ptp(one) > 1e-3 for one in chosen)


def _of_training(trial: Trial, act: ActInput, actions: Any) -> Any:
    """The log-probabilities of these actions by `log_probs` or `logits` of `forward_train`."""
    if not isinstance(trial.case.action_space, spaces.Discrete):
        return None
    batch = _batch_of(act, actions).to(trial.learner.device, trial.learner.dtype)
    try:
        out = trial.module.forward_train(batch)
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
