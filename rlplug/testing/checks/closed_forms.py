"""Checks of algorithms that learn in closed form: sums over rows, weights, references."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import numpy
import torch
from torch import Tensor

from rlplug.batch import Batch
from rlplug.batch.nested import to_arrays, tree_map
from rlplug.testing.cases import act_input
from rlplug.testing.check import check
from rlplug.testing.checks.acting import EXPLORE, acted, actions
from rlplug.testing.checks.updates import is_sequential
from rlplug.testing.comparison import largest_difference, tensors_of, to_array
from rlplug.testing.report import DoesNotApply
from rlplug.testing.subject import Subject
from rlplug.testing.trial import Trial, each_trial

Batches = list[Batch]


@check("algorithm")
def weights_count_rows(subject: Subject) -> None:
    """A batch teaches what its rows do one by one; a row of weight 2 counts as two such rows."""

    def applies(trial: Trial) -> bool:
        return not trial.has_optimizers and trial.option("discount", 1.0) == 1.0

    for trial in each_trial(subject, applies, "it learns by gradients, or discounts what it knows"):
        for what, one, other in _equivalent(trial):
            # Tables of single rows may have another length.
            path, error = largest_difference(_known_after(trial, one), _known_after(trial, other))
            if not error <= 2e-5:
                raise trial.failure(
                    f"the same from {what}",
                    f"{path} differs by up to {error:.3g} of its size",
                    "sums over all rows of a batch, each multiplied by its weight, once",
                )


def _equivalent(trial: Trial) -> Iterator[tuple[str, Batches, Batches]]:
    """Pairs of batches that teach the same, with words for them."""
    batch, rows = trial.batch, torch.arange(trial.batch.rows)
    if not is_sequential(trial):
        half = batch.rows // 2
        halves = [batch.select(rows[:half]), batch.select(rows[half:])]
        yield "a batch and from its halves, one after the other", [batch], halves
        yield "a batch and from its rows, one by one", [batch], _one_by_one(batch)
    weighted = batch.with_columns({"weights": torch.full((batch.rows,), 3.0, dtype=torch.float64)})
    if trial.after(weighted).difference(trial.after(batch)):
        doubled, left_out = torch.cat([rows[:3], rows[2:]]), rows[rows != 2]
        yield "weights of 1 and no weights", [_weighted(batch, 1.0)], [batch]
        yield "a row of weight 2 and two", [_weighted(batch, 2.0)], [batch.select(doubled)]
        yield "a row of weight 0 and none", [_weighted(batch, 0.0)], [batch.select(left_out)]


@check("algorithm")
def equals_its_reference(subject: Subject) -> None:
    """It acts as the plain computation that its author names in `reference`."""
    if not subject.kind.reference:
        unchecked = "the numbers of its posterior were not checked (priors, precisions, factors): "
        said = "name a plain computation, reference = 'module:function'"
        raise DoesNotApply((unchecked if subject.is_bandit else "") + said)
    module, _, name = subject.kind.reference.partition(":")
    reference = getattr(import_module(module), name)
    compared = 0
    for setting, case in subject.places(subject.settings, every_case=True):
        trial = Trial(subject, case, setting, steps=3)
        batches = []
        for index in range(4):
            batch = trial.next_batch()
            if index % 2:
                weights = torch.linspace(0.5, 2.0, batch.rows, dtype=torch.float64)
                batch = batch.with_columns({"weights": weights})
            batches.append(batch)
            # Algorithms may learn single rows another way, as they come one by one in a run.
            for part in _one_by_one(batch) if index > 1 else [batch]:
                trial.update(part)
        observed = act_input(trial.module, case, 8, seed=4, at=0).observations
        expected = reference(trial.config, _all_rows(batches), observed, trial.num_actions)
        if expected is not None:
            compared += 1
            _compare(trial, expected)
    if not compared:
        looked_for = "a reference for one of the settings and environments of the kit"
        raise subject.failure(looked_for, "it returned None for all of them")


def _compare(trial: Trial, expected: Mapping[str, Any]) -> None:
    """Extras at the explored actions, and the best actions, against the scores of a reference."""
    act, explored = (act_input(trial.module, trial.case, 8, seed=4, at=0) for _ in range(2))
    answer, greedy, each = acted(trial, explored, EXPLORE), actions(trial, act), numpy.arange(8)
    note = f"as by {trial.subject.kind.reference}"
    for key, scores in expected.items():
        wanted = numpy.asarray(scores)[each, to_array(answer.actions)]
        given = to_array(answer.extras.get(key, numpy.nan))
        if not numpy.allclose(given, wanted, 1e-4, 1e-6):
            found = f"{given.reshape(-1)[:3].tolist()}, not {wanted[:3].tolist()}"
            raise trial.failure(f"{key!r} among the extras, {note}", found)
    scores = numpy.asarray(next(iter(expected.values())), float)
    if act.action_mask is not None:
        scores = numpy.where(act.action_mask, scores, -numpy.inf)
    if not numpy.allclose(scores[each, greedy], scores.max(1), 1e-4, 1e-6):
        found = f"{greedy.tolist()}, not {scores.argmax(1).tolist()}"
        raise trial.failure(f"the best actions, {note}", found)


def _weighted(batch: Batch, weight: float) -> Batch:
    """The batch with this weight for one of its rows."""
    weights = torch.ones(batch.rows, dtype=torch.float64)
    weights[2] = weight
    return batch.with_columns({"weights": weights})


def _known_after(trial: Trial, batches: Batches) -> dict[str, Tensor]:
    """What is known after these batches, which are then undone."""
    with trial.undone():
        for batch in batches:
            trial.update(batch)
        return known_of(trial)


def known_of(trial: Trial) -> dict[str, Tensor]:
    """What the module says beside its actions; if that is nothing, its sums.

    Buffers may keep single rows for later, or be due to be computed again; single numbers count.
    """
    answer = acted(trial, act_input(trial.module, trial.case, 16, seed=3), EXPLORE)
    told = {name: torch.as_tensor(to_array(part)) for name, part in answer.extras.items()}
    return told or {
        path: value
        for path, value in tensors_of(trial.weights()).items()
        if value.numel() > 1 and value.is_floating_point()
    }


def _one_by_one(batch: Batch) -> Batches:
    return [batch.select(slice(row, row + 1)) for row in range(batch.rows)]


def _all_rows(batches: Batches) -> dict[str, Any]:
    """The columns of all batches as NumPy; weights of 1 where there were none."""
    ones = [torch.ones(batch.rows, dtype=torch.float64) for batch in batches]
    weights = [batch.get("weights", one) for batch, one in zip(batches, ones, strict=True)]
    columns = {name: [to_arrays(batch[name]) for batch in batches] for name in batches[0]}
    columns["weights"] = [to_array(one) for one in weights]
    return {
        name: tree_map(lambda *leaves: numpy.concatenate(leaves), *parts)
        for name, parts in columns.items()
    }
