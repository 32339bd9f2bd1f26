"""Checks of algorithms that learn in closed form: sums over rows, weights, references."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy
import torch
from torch import Tensor

from rlplug.batch import Batch
from rlplug.batch.nested import to_arrays, tree_map
from rlplug.plugin import Acted
from rlplug.testing.checks.effects import acting_inputs
from rlplug.testing.collector import to_array
from rlplug.testing.comparison import leaves_of
from rlplug.testing.harness import Harness, make_harness
from rlplug.testing.report import CheckFailed, DoesNotApply, location
from rlplug.testing.subject import Subject
from rlplug.testing.trial import Trial, named, trials

__all__ = [
    "check_discounts_are_powers",
    "check_equals_its_reference",
    "check_metrics_are_means_over_rows",
    "check_rows_may_be_split_into_batches",
    "check_weights_count_rows",
    "predictions",
]

_CLOSE = 1e-5


def check_rows_may_be_split_into_batches(subject: Subject) -> None:
    """One batch teaches what its halves teach, and its rows one by one."""
    applies = False
    for trial in _closed_forms(subject):
        if _discounts(trial):
            continue
        applies = True
        half = trial.batch.rows // 2
        whole = _after(trial, [trial.batch])
        halves = [trial.batch.select(slice(half)), trial.batch.select(slice(half, None))]
        # Buffers may keep single rows for later: what is predicted must be the same.
        told = {path: value for path, value in whole.items() if path.startswith("extras.")}
        for expected, parts, which in (
            (whole, halves, "its halves, one after the other"),
            (told or whole, _one_by_one(trial.batch), "its rows, one by one"),
        ):
            _require_same(
                subject,
                expected,
                _after(trial, parts),
                f"the same from a batch and from {which}" + named(trial.setting),
                "sums over all rows of a batch, not over the first or the last",
            )
    if not applies:
        raise DoesNotApply("it learns by gradients, or discounts what was learned")


def check_weights_count_rows(subject: Subject) -> None:
    """A row of weight 2 is learned as two such rows, one of weight 0 as none."""
    applies = False
    for trial in _closed_forms(subject):
        batch = trial.batch
        if _discounts(trial) or not _reads_weights(trial):
            continue
        applies = True
        beside = named(trial.setting)
        ones = torch.ones(batch.rows, dtype=torch.float64)
        twice, without = ones.clone(), ones.clone()
        twice[2], without[2] = 2.0, 0.0
        rows = torch.arange(batch.rows)
        doubled = _rows(batch, torch.cat([rows[:3], rows[2:]]))
        for weights, same, what in (
            (ones, batch, "weights of 1 and no weights"),
            (twice, doubled, "a row of weight 2 and two such rows"),
            (without, _rows(batch, rows[rows != 2]), "a row of weight 0 and none"),
        ):
            _require_same(
                subject,
                _after(trial, [batch.with_columns({"weights": weights})]),
                _after(trial, [same]),
                f"the same from {what}{beside}",
                "multiply every sum over rows by the weights, once",
            )
    if not applies:
        raise DoesNotApply("it learns by gradients, or reads no weights")


def check_discounts_are_powers(subject: Subject) -> None:
    """With a discount, the row learned k rows ago counts with its k-th power, as by a weight."""
    applies = False
    for trial in _closed_forms(subject):
        config = trial.harness.algorithm.config
        discount = getattr(config, "discount", 1.0)
        if not _discounts(trial) or not subject.accepts({**trial.setting, "discount": 1.0}):
            continue
        plain = Trial(subject, {**trial.setting, "discount": 1.0}, trial.case)
        if not _reads_weights(plain):
            continue
        applies = True
        ages = torch.arange(trial.batch.rows - 1, -1, -1, dtype=torch.float64)
        known = []
        for one, batch in (
            (trial, trial.batch),
            (plain, trial.batch.with_columns({"weights": discount**ages})),
        ):
            fresh = make_harness(subject, one.case, config=one.harness.algorithm.config)
            fresh.update(batch)
            known.append(predictions(fresh.module, one.case))
        _require_same(
            subject,
            known[0],
            known[1],
            f"predictions as from rows of weights {discount}ᵏ" + named(trial.setting),
            "discount everything that was learned before, once per row, and not the penalty",
        )
    if not applies:
        raise DoesNotApply("it has no option 'discount', or reads no weights")


def check_metrics_are_means_over_rows(subject: Subject) -> None:
    """Metrics of one row, which may be computed another way, are those of the same row twice."""
    applies = False
    for trial in _closed_forms(subject):
        rows = range(min(trial.batch.rows, 4))
        once, twice = (
            [_metrics(trial, _rows(trial.batch, torch.tensor([row] * times))) for row in rows]
            for times in (1, 2)
        )
        for name in once[0].keys() & twice[0].keys():
            ones, twos = ([float(one[name]) for one in each] for each in (once, twice))
            if all(value.is_integer() for value in (*ones, *twos)):
                # Counts.
                continue
            applies = True
            if not numpy.allclose(ones, twos, _CLOSE, _CLOSE):
                raise CheckFailed(
                    f"the same metric {name!r} for a row and for that row twice"
                    + named(trial.setting),
                    f"{ones[:3]} and {twos[:3]} for three rows",
                    f"{location(subject.kind, 'additional_update')}: means over rows, also where "
                    "single rows have a path of their own",
                )
    if not applies:
        raise DoesNotApply("it learns by gradients, or its metrics only count")


def check_equals_its_reference(subject: Subject) -> None:
    """It acts as the plain computation that its author names in `reference`."""
    if not subject.kind.reference:
        raise DoesNotApply("it names no plain computation: reference = 'module:function'")
    module, _, name = subject.kind.reference.partition(":")
    reference = getattr(import_module(module), name)
    compared = 0
    for setting in subject.settings:
        for case in subject.cases:
            config = subject.changed(setting)
            if config is None:
                continue
            if subject.kind(config).supports(case.observation_space, case.action_space) is not None:
                continue
            harness = make_harness(subject, case, config=config)
            batches = []
            for index in range(4):
                batch = harness.collect(3)["default"]
                if index % 2:
                    weights = torch.linspace(0.5, 2.0, batch.rows, dtype=torch.float64)
                    batch = batch.with_columns({"weights": weights})
                batches.append(batch)
                # Algorithms may learn single rows another way, as they come one by one in a run.
                for part in _one_by_one(batch) if index > 1 else [batch]:
                    harness.update(part)
            (act, *_), (explored, *_) = (
                list(acting_inputs(harness.module, case, 8, seed=4)) for _ in range(2)
            )
            count = int(getattr(case.action_space, "n", 0))
            expected = reference(config, _all_rows(batches), act.observations, count)
            if expected is None:
                continue
            compared += 1
            beside = f"{case.name!r}{named(setting)}"
            acted = harness.module.forward_exploration(explored)
            greedy = to_array(harness.module.forward_inference(act).actions)
            _compare(subject, beside, expected, acted, greedy, act.action_mask)
    if not compared:
        raise CheckFailed(
            "a reference for one of the settings and environments of the kit",
            "it returned None for all of them",
            subject.kind.reference,
        )


def _compare(
    subject: Subject,
    beside: str,
    expected: Mapping[str, Any],
    acted: Acted,
    greedy: Any,
    mask: Any,
) -> None:
    """Extras at the explored actions, and the best actions, against the scores of a reference."""
    where = location(subject.kind, "additional_update", "build")
    reference = subject.kind.reference
    each = numpy.arange(len(greedy))
    chosen = to_array(acted.actions)
    for key, scores in expected.items():
        wanted = numpy.asarray(scores)[each, chosen]
        if key not in acted.extras:
            raise CheckFailed(f"{key!r} among the extras of acting", ", ".join(acted.extras), where)
        given = to_array(acted.extras[key])
        if not numpy.allclose(given, wanted, 1e-4, 1e-6):
            raise CheckFailed(
                f"{key} as {reference} computes it in {beside}",
                f"{given[:3].tolist()}, not {wanted[:3].tolist()}",
                where,
            )
    scores = numpy.asarray(next(iter(expected.values())), float)
    if mask is not None:
        scores = numpy.where(mask, scores, -numpy.inf)
    if not numpy.allclose(scores[each, greedy], scores.max(1), 1e-4, 1e-6):
        raise CheckFailed(
            f"the best actions by {reference} in {beside}",
            f"{greedy.tolist()}, not {scores.argmax(1).tolist()}",
            where,
        )


def _closed_forms(subject: Subject) -> Iterator[Trial]:
    for trial in trials(subject):
        if not trial.harness.learner.optimizers.of("default"):
            yield trial


def _discounts(trial: Trial) -> bool:
    return getattr(trial.harness.algorithm.config, "discount", 1.0) != 1.0


def _reads_weights(trial: Trial) -> bool:
    weights = {"weights": torch.full((trial.batch.rows,), 3.0, dtype=torch.float64)}
    return not trial.after(trial.batch.with_columns(weights)).equals(trial.after(trial.batch))


def _metrics(trial: Trial, batch: Batch) -> Mapping[str, Any]:
    """The metrics of an update, which is then undone."""
    with _undone(trial.harness) as harness:
        return harness.update(batch)["default"]


def _after(trial: Trial, batches: list[Batch]) -> dict[str, Any]:
    """What is kept after these batches, which are then undone; single numbers are counters."""
    with _undone(trial.harness) as harness:
        for batch in batches:
            harness.update(batch)
        kept = {
            path: value
            for path, value in leaves_of(harness.weights())
            if isinstance(value, Tensor) and value.numel() > 1 and value.is_floating_point()
        }
        return {**kept, **predictions(harness.module, trial.case)}


@contextmanager
def _undone(harness: Harness) -> Iterator[Harness]:
    """Take back what is learned meanwhile."""
    start, timestep = harness.learner.get_state(), harness.timestep
    try:
        yield harness
    finally:
        harness.learner.set_state(start)
        harness.timestep = timestep


def predictions(module: Any, case: Any) -> dict[str, Any]:
    """What the module says beside its actions: scores, deviations."""
    act = next(iter(acting_inputs(module, case, 16, seed=3)))
    extras = module.forward_exploration(act).extras
    return {f"extras.{name}": torch.as_tensor(to_array(part)) for name, part in extras.items()}


def _require_same(
    subject: Subject, one: Mapping[str, Any], other: Mapping[str, Any], looked_for: str, hint: str
) -> None:
    for path, value in one.items():
        two = other[path].double()
        if "recent" in path or value.shape != two.shape:
            continue
        if not torch.allclose(value.double(), two, _CLOSE, _CLOSE * float(two.abs().max() + 1e-9)):
            raise CheckFailed(
                looked_for,
                f"{path} differs by up to {float((value.double() - two).abs().max()):.3g}",
                f"{location(subject.kind, 'additional_update')}: {hint}",
            )


def _one_by_one(batch: Batch) -> list[Batch]:
    return [batch.select(slice(row, row + 1)) for row in range(batch.rows)]


def _rows(batch: Batch, rows: Tensor) -> Batch:
    return Batch({name: tree_map(lambda leaf: leaf[rows], batch[name]) for name in batch})


def _all_rows(batches: list[Batch]) -> dict[str, Any]:
    """The columns of all batches as NumPy; weights of 1 where there were none."""
    columns: dict[str, Any] = {}
    for name in batches[0]:
        parts = [to_arrays(batch[name]) for batch in batches]
        columns[name] = tree_map(lambda *leaves: numpy.concatenate(leaves), *parts)
    columns["weights"] = numpy.concatenate(
        [
            to_array(batch["weights"]) if "weights" in batch else numpy.ones(batch.rows)
            for batch in batches
        ]
    )
    return columns
