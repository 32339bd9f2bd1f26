"""Checks of algorithms that learn in closed form: sums over rows, weights, references."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy
import torch
from torch import Tensor

from rlplug.batch import Batch
from rlplug.batch.nested import to_arrays, tree_map
from rlplug.plugin import Acted
from rlplug.testing.cases import act_input
from rlplug.testing.check import check
from rlplug.testing.checks.updates import is_sequential, select
from rlplug.testing.comparison import tensors_of, to_array
from rlplug.testing.harness import Harness, make_harness
from rlplug.testing.report import DoesNotApply
from rlplug.testing.subject import Subject
from rlplug.testing.trial import Trial, each_trial

__all__ = ["known_of"]


@check("algorithm")
def weights_count_rows(subject: Subject) -> None:
    """A batch teaches what its rows do one by one; a row of weight 2 counts as two such rows."""

    def applies(trial: Trial) -> bool:
        return not trial.harness.has_optimizers and trial.option("discount", 1.0) == 1.0

    for trial in each_trial(subject, applies, "it learns by gradients, or discounts what it knows"):
        batch = trial.batch
        rows, half = torch.arange(batch.rows), batch.rows // 2
        pairs = []
        if not is_sequential(trial):
            halves = [select(batch, rows[:half]), select(batch, rows[half:])]
            pairs = [
                ("a batch and from its halves, one after the other", [batch], halves),
                ("a batch and from its rows, one by one", [batch], _one_by_one(batch)),
            ]
        if _reads_weights(trial):
            doubled, left_out = torch.cat([rows[:3], rows[2:]]), rows[rows != 2]
            pairs += [
                ("weights of 1 and no weights", [_weighted(batch, 1.0)], [batch]),
                ("a row of weight 2 and two", [_weighted(batch, 2.0)], [select(batch, doubled)]),
                ("a row of weight 0 and none", [_weighted(batch, 0.0)], [select(batch, left_out)]),
            ]
        for what, one, other in pairs:
            known, wanted = _known_after(trial, one), _known_after(trial, other)
            # Tables of single rows may have another length.
            shared = [path for path in known if known[path].shape == wanted[path].shape]
            for path in shared:
                error = (known[path].double() - wanted[path].double()).abs().max()
                if float(error) > 2e-5 * float(wanted[path].abs().max()) + 1e-9:
                    raise trial.failure(
                        f"the same from {what}",
                        f"{path} differs by up to {float(error):.3g}",
                        "sums over all rows of a batch, each multiplied by its weight, once",
                    )


@check("algorithm")
def equals_its_reference(subject: Subject) -> None:
    """It acts as the plain computation that its author names in `reference`."""
    if not subject.kind.reference:
        if subject.is_bandit:
            raise DoesNotApply(
                "the numbers of its posterior were not checked (priors, precisions, factors): "
                "name a plain computation, reference = 'module:function'"
            )
        raise DoesNotApply("it names no plain computation: reference = 'module:function'")
    module, _, name = subject.kind.reference.partition(":")
    reference = getattr(import_module(module), name)
    compared = 0
    for setting in subject.settings:
        for case in [case for case in subject.cases if subject.supports(case, setting)]:
            harness = make_harness(subject, case, config=subject.changed(setting), steps=3)
            batches = []
            for index in range(4):
                batch = harness.batch()
                if index % 2:
                    weights = torch.linspace(0.5, 2.0, batch.rows, dtype=torch.float64)
                    batch = batch.with_columns({"weights": weights})
                batches.append(batch)
                # Algorithms may learn single rows another way, as they come one by one in a run.
                for part in _one_by_one(batch) if index > 1 else [batch]:
                    harness.update(part)
            act, explored = (act_input(harness.module, case, 8, seed=4, at=0) for _ in range(2))
            count = int(getattr(case.action_space, "n", 0))
            expected = reference(harness.config, _all_rows(batches), act.observations, count)
            if expected is not None:
                compared += 1
                acted = harness.module.forward_exploration(explored)
                greedy = to_array(harness.module.forward_inference(act).actions)
                _compare(subject, harness.note, expected, acted, greedy, act.action_mask)
    if not compared:
        looked_for = "a reference for one of the settings and environments of the kit"
        raise subject.failure(looked_for, "it returned None for all of them")


def _compare(
    subject: Subject, note: str, expected: Mapping[str, Any], acted: Acted, greedy: Any, mask: Any
) -> None:
    """Extras at the explored actions, and the best actions, against the scores of a reference."""
    each, chosen = numpy.arange(len(greedy)), to_array(acted.actions)
    note = f"{subject.kind.reference} {note}"
    for key, scores in expected.items():
        wanted = numpy.asarray(scores)[each, chosen]
        given = to_array(acted.extras.get(key, numpy.nan))
        if not numpy.allclose(given, wanted, 1e-4, 1e-6):
            found = f"{given.reshape(-1)[:3].tolist()}, not {wanted[:3].tolist()}"
            raise subject.failure(f"{key!r} among the extras, as by {note}", found)
    scores = numpy.asarray(next(iter(expected.values())), float)
    if mask is not None:
        scores = numpy.where(mask, scores, -numpy.inf)
    if not numpy.allclose(scores[each, greedy], scores.max(1), 1e-4, 1e-6):
        found = f"{greedy.tolist()}, not {scores.argmax(1).tolist()}"
        raise subject.failure(f"the best actions by {note}", found)


def _reads_weights(trial: Trial) -> bool:
    weights = torch.full((trial.batch.rows,), 3.0, dtype=torch.float64)
    weighted = trial.batch.with_columns({"weights": weights})
    return not trial.after(weighted).equals(trial.after(trial.batch))


def _weighted(batch: Batch, weight: float) -> Batch:
    """The batch with this weight for one of its rows."""
    weights = torch.ones(batch.rows, dtype=torch.float64)
    weights[2] = weight
    return batch.with_columns({"weights": weights})


def _known_after(trial: Trial, batches: list[Batch]) -> dict[str, Tensor]:
    """What is known after these batches, which are then undone."""
    with trial.harness.undone() as harness:
        for batch in batches:
            harness.update(batch)
        return known_of(harness)


def known_of(harness: Harness) -> dict[str, Tensor]:
    """What the module says beside its actions; if that is nothing, its sums.

    Buffers may keep single rows for later, or be due to be computed again; single numbers count.
    """
    acted = harness.module.forward_exploration(act_input(harness.module, harness.case, 16, seed=3))
    told = {name: torch.as_tensor(to_array(part)) for name, part in acted.extras.items()}
    return told or {
        path: value
        for path, value in tensors_of(harness.weights()).items()
        if value.numel() > 1 and value.is_floating_point()
    }


def _one_by_one(batch: Batch) -> list[Batch]:
    return [batch.select(slice(row, row + 1)) for row in range(batch.rows)]


def _all_rows(batches: list[Batch]) -> dict[str, Any]:
    """The columns of all batches as NumPy; weights of 1 where there were none."""
    ones = [torch.ones(batch.rows, dtype=torch.float64) for batch in batches]
    weights = [batch.get("weights", one) for batch, one in zip(batches, ones, strict=True)]
    columns = {name: [to_arrays(batch[name]) for batch in batches] for name in batches[0]}
    columns["weights"] = [to_array(one) for one in weights]
    return {
        name: tree_map(lambda *leaves: numpy.concatenate(leaves), *parts)
        for name, parts in columns.items()
    }
