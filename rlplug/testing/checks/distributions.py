"""Checks of log-probabilities: those that a module gives are those that it acts by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy
import torch
from gymnasium import spaces
from torch import Tensor

from rlplug.batch import Batch
from rlplug.batch.nested import to_tensors, tree_map
from rlplug.plugin import ActInput, Module
from rlplug.testing.cases import CASES, Case
from rlplug.testing.checks.effects import acting_inputs
from rlplug.testing.collector import to_array
from rlplug.testing.harness import Harness, make_harness
from rlplug.testing.report import CheckFailed, DoesNotApply, location
from rlplug.testing.subject import Subject
from rlplug.testing.trial import named

__all__ = [
    "check_acting_and_training_agree_on_log_probs",
    "check_log_probs_are_those_of_actions",
    "in_torch",
]

DRAWS = 4000
TOLD = 16
"""Rows whose probabilities are asked for."""


def check_log_probs_are_those_of_actions(subject: Subject) -> None:
    """Actions are drawn as often as their log-probabilities say, on every kind of space."""
    applies = False
    for setting in ({}, *subject.variants):
        config = subject.changed(setting)
        plugin = subject.kind(config)
        for case in _cases(subject):
            if plugin.supports(case.observation_space, case.action_space) is not None:
                continue
            harness = make_harness(subject, case, config=config)
            harness.train(3)
            for act in _ways_to_act(harness.module, case, first=not setting):
                applies = _check_draws(harness, act, named(setting)) or applies
                if harness.module.acts_on_tensors and act.timestep:
                    _check_draws(harness, act, named(setting), on_tensors=True)
    if not applies:
        raise DoesNotApply("it gives no log_prob, and forward_train no log_probs")


def check_acting_and_training_agree_on_log_probs(subject: Subject) -> None:
    """The column log_prob that `prepare_batch` adds is what acting gives where it is asked for."""
    applies = False
    for case in [one for one in subject.cases if not one.one_step]:
        harness = make_harness(subject, case)
        batch = harness.collect()["default"]
        prepared = harness.prepare(batch)
        if "log_prob" in batch or "log_prob" not in prepared or harness.module.initial_state(1):
            continue
        applies = True
        act = next(iter(acting_inputs(harness.module, case, 16)))
        act.wants_log_prob = True
        acted = harness.module.forward_exploration(act)
        where = location(type(harness.module), "forward_exploration")
        if "log_prob" not in acted.extras:
            raise CheckFailed(
                "extras with log_prob where act.wants_log_prob is set",
                ", ".join(acted.extras) or "none",
                where,
            )
        columns: dict[str, Any] = {
            "observations": to_tensors(act.observations),
            "actions": torch.as_tensor(to_array(acted.actions)),
            "rewards": torch.zeros(16),
            "terminated": torch.ones(16, dtype=torch.bool),
            "truncated": torch.zeros(16, dtype=torch.bool),
            "fragments": torch.tensor([[0, 16]]),
            "final_observations": tree_map(lambda leaf: leaf[-1:], to_tensors(act.observations)),
        }
        columns["next_observations"] = columns["observations"]
        if act.action_mask is not None:
            columns["action_mask"] = torch.as_tensor(act.action_mask)
        again = harness.prepare(Batch(columns))["log_prob"]
        given = torch.as_tensor(to_array(acted.extras["log_prob"])).to(again.dtype)
        error = float((again - given).abs().max())
        if error > 1e-3:
            raise CheckFailed(
                f"the same log-probabilities in acting and in training in {case.name!r}",
                f"they differ by up to {error:.3g}",
                f"{where}, or {location(subject.kind, 'prepare_batch')}",
            )
    if not applies:
        raise DoesNotApply("prepare_batch adds no log_prob")


def _cases(subject: Subject) -> list[Case]:
    """One environment per kind of action space, masked ones, and a Box of one dimension."""
    chosen: dict[Any, Case] = {}
    # What it supports by default first: others may be supported with variants.
    for case in (*subject.cases, *CASES):
        space = case.action_space
        if case.one_step == subject.is_bandit:
            shape = space.shape if isinstance(space, spaces.Box) else ()
            chosen.setdefault((type(space), shape, case.masked), case)
    return [one for one in chosen.values() if "image" not in one.name]


def _ways_to_act(module: Module, case: Case, *, first: bool) -> Iterator[ActInput]:
    """One observation many times: at the end of a run, and `first` at its start."""
    early, *_, late = acting_inputs(module, case, 1, seed=2)
    if first:
        yield _repeated(module, early)
    yield _repeated(module, late)


def in_torch(act: ActInput) -> ActInput:
    """The same on tensors, as environments of tensors give it."""
    random = torch.Generator().manual_seed(int(act.random.integers(2**31)))
    return ActInput(
        to_tensors(act.observations),
        None if act.action_mask is None else torch.as_tensor(act.action_mask),
        None if act.state is None else tree_map(torch.as_tensor, act.state),
        act.timestep,
        random,
        act.steps,
        act.wants_log_prob,
        in_torch=True,
    )


def _repeated(module: Module, act: ActInput) -> ActInput:
    """The only observation of an input, many times."""

    def repeat(leaf: Any) -> Any:
        return numpy.repeat(leaf, DRAWS, axis=0)

    mask = None if act.action_mask is None else repeat(act.action_mask)
    return ActInput(
        tree_map(repeat, act.observations),
        mask,
        module.initial_state(DRAWS),
        act.timestep,
        act.random,
        act.steps,
        wants_log_prob=True,
    )


def _first_rows(module: Module, act: ActInput) -> ActInput:
    return ActInput(
        tree_map(lambda leaf: leaf[:TOLD], act.observations),
        None if act.action_mask is None else act.action_mask[:TOLD],
        module.initial_state(TOLD),
        act.timestep,
        act.random,
        act.steps,
    )


def _check_draws(harness: Harness, act: ActInput, beside: str, *, on_tensors: bool = False) -> bool:
    """Whether log-probabilities are given; raises if actions are not drawn by them."""
    module, case = harness.module, next(iter(harness.cases.values()))
    where = location(type(module), "forward_exploration", "forward_train")
    beside = f"in {case.name!r}{' on tensors' if on_tensors else ''}{beside}"
    with torch.no_grad():
        acted = module.forward_exploration(in_torch(act) if on_tensors else act)
    actions = to_array(acted.actions)
    given = acted.extras.get("log_prob")
    if given is None and not on_tensors:
        given = _of_training(harness, act, actions)
    if given is None:
        return False
    log_probs = to_array(given).reshape(DRAWS, -1)
    found = _mismatch(case.action_space, actions, log_probs)
    if found:
        raise CheckFailed(
            f"actions as likely as their log-probabilities say {beside}",
            found,
            f"{where}: masks, the log-determinant of a squashing function, sums over dimensions",
        )
    space = case.action_space
    first = int(space.start) if isinstance(space, spaces.Discrete) else 0
    if not _are_estimates(actions, log_probs[:, 0]):
        _check_told(module, act, actions, first, log_probs[:, 0], beside)
    return True


def _check_told(
    module: Module, act: ActInput, actions: Any, first: int, log_probs: Any, beside: str
) -> None:
    """What a module tells of the probabilities of actions agrees with what it acts by."""
    act, actions, log_probs = _first_rows(module, act), actions[:TOLD], log_probs[:TOLD]
    for method, more in (("action_probabilities", ()), ("action_log_prob", (actions,))):
        before = act.random.bit_generator.state
        found = getattr(module, method)(act, *more)
        # Those of noisy networks are of noise that is drawn for them.
        if found is None or act.random.bit_generator.state != before:
            continue
        told = to_array(found).astype(float)
        if method == "action_probabilities":
            told = numpy.log(numpy.maximum(told[numpy.arange(TOLD), actions - first], 1e-30))
        if told.shape == (TOLD,) and _are_estimates(actions, told):
            continue
        if told.shape != (TOLD,) or not numpy.allclose(told, log_probs, 1e-3, 1e-3):
            raise CheckFailed(
                f"the same probabilities by {method} as by log_prob {beside}",
                f"log-probabilities of {told.reshape(-1)[:3].tolist()} and "
                f"{log_probs[:3].tolist()}",
                location(type(module), method),
            )


@torch.no_grad()
def _of_training(harness: Harness, act: ActInput, actions: Any) -> Tensor | None:
    """The log-probabilities of these actions by `log_probs` or `logits` of `forward_train`."""
    if not isinstance(next(iter(harness.cases.values())).action_space, spaces.Discrete):
        return None
    columns: dict[str, Any] = {
        "observations": to_tensors(act.observations),
        "actions": torch.as_tensor(actions),
        "fragments": torch.tensor([[0, DRAWS]]),
    }
    if act.action_mask is not None:
        columns["action_mask"] = torch.as_tensor(act.action_mask)
    batch = Batch(columns).to(harness.learner.device, harness.learner.dtype)
    try:
        out = harness.module.forward_train(batch)
    except KeyError:
        return None
    chosen = torch.as_tensor(actions).long()[:, None]
    if "log_probs" in out and out["log_probs"].dim() == 2:
        return out["log_probs"].gather(1, chosen)
    if "logits" in out and out["logits"].dim() == 2:
        logits = out["logits"]
        if "action_mask" in batch:
            # They may be those before the mask.
            logits = logits.masked_fill(batch["action_mask"] == 0, -torch.inf)
        return logits.log_softmax(1).gather(1, chosen)
    return None


def _mismatch(space: Any, actions: Any, log_probs: Any) -> str:
    """How draws and log-probabilities disagree; nothing where they agree."""
    if log_probs.shape[1] != 1:
        return f"log-probabilities of shape {log_probs.shape}: one number per row is needed"
    log_probs = log_probs[:, 0]
    if not numpy.isfinite(log_probs).all():
        return "log-probabilities that are not finite"
    if isinstance(space, spaces.Box):
        return _density_mismatch(actions, log_probs) if space.shape == (1,) else ""
    total = 0.0
    for action, told in _by_action(actions, log_probs):
        share, probability = len(told) / DRAWS, float(told.mean())
        total += probability
        # Estimates, which differ from row to row, may be off by as much as they differ.
        spread = 5 * numpy.sqrt(max(probability * (1 - min(probability, 1)), 1e-4) / DRAWS)
        if abs(share - probability) > spread + 0.002 + told.std():
            return (
                f"action {action} in {share:.1%} of {DRAWS:,} draws, by its "
                f"log-probability {probability:.1%}"
            )
    return "" if total < 1.01 else f"probabilities that add up to {total:.3g}"


def _by_action(actions: Any, log_probs: Any) -> Iterator[tuple[list[Any], Any]]:
    """Each action, and the probabilities that its rows were given: one, unless they are estimates.

    All rows have the same observation.
    """
    each, places = _places(actions)
    probabilities = numpy.exp(log_probs.astype(float))
    for index, action in enumerate(each):
        yield action.tolist(), probabilities[places == index]


def _are_estimates(actions: Any, log_probs: Any) -> bool:
    """Whether rows of the same observation and action were given different probabilities."""
    each, places = _places(actions)
    probabilities = numpy.exp(log_probs.astype(float))
    least, most = numpy.full(len(each), numpy.inf), numpy.zeros(len(each))
    numpy.minimum.at(least, places, probabilities)
    numpy.maximum.at(most, places, probabilities)
    return bool((most - least > 1e-3 * most).any())


def _places(actions: Any) -> tuple[Any, Any]:
    """The different actions, and which of them each row has."""
    each, places = numpy.unique(actions.reshape(len(actions), -1), axis=0, return_inverse=True)
    return each, places.reshape(-1)


def _density_mismatch(actions: Any, log_probs: Any) -> str:
    """The largest distance of the drawn distribution from the integrated density, if too large."""
    order = numpy.argsort(actions[:, 0])
    points, density = actions[order, 0].astype(float), numpy.exp(log_probs[order].astype(float))
    steps = numpy.diff(points) * (density[1:] + density[:-1]) / 2
    integrated = numpy.concatenate(([0.0], numpy.cumsum(steps)))
    if integrated[-1] <= 0:
        return "a density of 0"
    drawn = numpy.arange(len(points)) / (len(points) - 1)
    distance = float(abs(drawn - integrated / integrated[-1]).max())
    if distance > 0.05:
        return (
            f"a density whose integral is off by {distance:.2f} from what {DRAWS:,} draws "
            "are distributed like"
        )
    return ""
