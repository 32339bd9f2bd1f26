"""Checks of two learners that update one policy together, each with its own experience."""

from __future__ import annotations

from functools import partial

import torch

from rlplug.batch import Batch
from rlplug.batch.nested import tree_map
from rlplug.testing.checks.closed_forms import predictions
from rlplug.testing.comparison import leaves_of
from rlplug.testing.harness import Harness, make_harness
from rlplug.testing.lockstep import Lockstep, LockstepGroup
from rlplug.testing.report import CheckFailed, location
from rlplug.testing.subject import Subject
from rlplug.testing.trial import named

__all__ = ["check_two_learners_stay_the_same"]

UPDATES = 6
_TABLE = 100
"""A buffer with so many entries along its first axis is a table of rows."""


def check_two_learners_stay_the_same(subject: Subject) -> None:
    """Two learners with different experience keep the same weights, and learn from both."""
    for setting in ({}, *subject.variants):
        case = subject.case_for(setting)
        if case is None:
            continue
        lockstep = Lockstep()
        config = subject.changed(setting)
        pair = [
            make_harness(subject, case, config=config, process_group=LockstepGroup(lockstep, rank))
            for rank in range(2)
        ]
        # The same modules and generators of training, other environments and actions.
        pair[1].collectors = make_harness(subject, case, config=config, seed=7).collectors
        for collector in pair[1].collectors.values():
            collector.act_with(pair[1].module)
        batches: list[list[Batch]] = [[], []]

        lockstep.run([partial(_train, *both) for both in zip(pair, batches, strict=True)])
        weights = [dict(leaves_of(one.weights())) for one in pair]
        for path, value in weights[0].items():
            if _is_kept_apart(value):
                continue
            if not bool(torch.isfinite(value.double()).all()):
                raise CheckFailed(
                    "finite weights after six updates" + named(setting),
                    f"{path} is not finite",
                    location(subject.kind, "additional_update", "compute_loss_for_module"),
                )
            if not torch.allclose(value.double(), weights[1][path].double(), 1e-5, 1e-7):
                raise CheckFailed(
                    "the same weights in two learners after six updates" + named(setting),
                    f"{path} is another one in each",
                    location(subject.kind, "additional_update", "prepare_batch")
                    + ": statistics of a batch must be combined with learner.all_reduce",
                )
        if not pair[0].learner.optimizers.of("default") and not _discounts(config):
            _check_both_are_learned(subject, pair[0], batches)


def _train(harness: Harness, seen: list[Batch]) -> None:
    for _ in range(UPDATES):
        collected = harness.collect(4)
        seen += collected.values()
        harness.update(collected)


def _check_both_are_learned(subject: Subject, learned: Harness, batches: list[list[Batch]]) -> None:
    """A closed form learns what one learner would that sees all rows."""
    case = next(iter(learned.cases.values()))
    alone = make_harness(subject, case, config=learned.algorithm.config)
    for pair in zip(*batches, strict=True):
        alone.update(_joined(pair))
    found, expected = (predictions(one.module, case) for one in (learned, alone))
    if not found:
        # Sums and counts; what is derived from them may be due to be computed again.
        found, expected = (dict(leaves_of(one.weights())) for one in (learned, alone))
    for path, value in found.items():
        if not value.is_floating_point() or value.numel() < 2:
            continue
        if not torch.allclose(value.double(), expected[path].double(), 1e-4, 1e-6):
            raise CheckFailed(
                "two learners that learn what one would that sees all rows",
                f"{path} differs",
                location(subject.kind, "additional_update")
                + ": learner.all_reduce of sums, and of all that the update reads",
            )


def _is_kept_apart(value: object) -> bool:
    """Whether it is a table of rows, which each learner keeps of its own experience."""
    return not isinstance(value, torch.Tensor) or (value.dim() > 0 and len(value) >= _TABLE)


def _joined(pair: tuple[Batch, ...]) -> Batch:
    names = [name for name in pair[0] if name in pair[1]]
    return Batch(
        {
            name: tree_map(lambda one, two: torch.cat([one, two]), *(part[name] for part in pair))
            for name in names
        }
    )


def _discounts(config: object) -> bool:
    return getattr(config, "discount", 1.0) != 1.0
