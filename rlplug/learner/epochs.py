"""The loop of one update: epochs, minibatches, and the steps between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from rlplug.batch import Batch, minibatches
from rlplug.learner.joining import agree_on_rounds, join_gradients

if TYPE_CHECKING:
    from rlplug.learner.owned import Owned
    from rlplug.learner.stage import Stage

__all__ = ["train"]

Work: TypeAlias = "Sequence[tuple[Stage, Batch]]"
Cut: TypeAlias = "list[tuple[Stage, list[Batch]]]"


def train(learner: Owned, work: Work, num_iters: int, minibatch_size: int) -> None:
    """Pass over every module's batch `num_iters` times; all gradients before any step."""
    if len(work) == 1 and _comes_alone(learner, work[0][1], minibatch_size):
        _train_alone(*work[0], num_iters, minibatch_size)
        return
    live = list(work)
    for _ in range(num_iters):
        cut = [(stage, list(_minibatches(stage, batch, minibatch_size))) for stage, batch in live]
        stopped = _epoch(learner, cut)
        for stage, _ in cut:
            stage.epoch_ended()
        if learner.shared_stage is not None:
            learner.shared_stage.epoch_ended()
        live = [(stage, batch) for stage, batch in live if stage not in stopped]
        if not live:
            break


def _minibatches(stage: Stage, batch: Batch, size: int) -> Iterator[Batch]:
    return minibatches(batch, size, stage.shuffler, whole_fragments=stage.member.sequences)


def _comes_alone(learner: Owned, batch: Batch, minibatch_size: int) -> bool:
    """Whether nothing takes part in a step but one minibatch of one module."""
    if learner.peers.size > 1 or learner.shared_stage is not None:
        return False
    return learner.learning.accumulate == 1 or not 0 < minibatch_size < batch.rows


def _train_alone(stage: Stage, batch: Batch, num_iters: int, minibatch_size: int) -> None:
    """The same for one module whose minibatches come alone: most runs do nothing else."""
    for _ in range(num_iters):
        goes_on = all(map(stage.alone, _minibatches(stage, batch, minibatch_size)))
        stage.epoch_ended()
        if not goes_on:
            break


def _epoch(learner: Owned, cut: Cut) -> set[Stage]:
    """One pass; gives the stages whose plugins asked for the end of their epochs."""
    together = learner.learning.accumulate
    rounds = agree_on_rounds(learner.peers, max(len(parts) for _, parts in cut))
    stopped: set[Stage] = set()
    for start in range(0, rounds, together):
        window = [
            (stage, parts[start : start + together]) for stage, parts in cut if stage not in stopped
        ]
        if not window:
            break
        _window(learner, window, stopped)
    return stopped


def _window(learner: Owned, window: Cut, stopped: set[Stage]) -> None:
    """The minibatches of one step, of all modules."""
    shared = learner.shared_stage
    if shared is not None:
        shared.start()
    taken: list[tuple[Stage, float]] = []
    done: set[Stage] = set()
    for group, shares in learner.alike.of(window):
        if group.update(shares, stopped):
            done.update(group.stages)
    for stage, parts in window:
        if stage not in done:
            _take(stage, parts, taken, stopped)
    if learner.peers.size > 1:
        taken = join_gradients(learner.peers, [stage for stage, _ in window], taken, stopped)
    for stage, weight in taken:
        stage.step(weight)
    if shared is not None and taken:
        shared.acting = shared.turns.ready()
        shared.metrics = {}
        shared.step()
        shared.history.append(shared.metrics)
    # Last, so that targets follow what modules share as well.
    for stage, _ in taken:
        stage.update_targets()
    for stage in done - stopped:
        stage.update_targets()
    learner.precision.stepped()


def _take(
    stage: Stage, parts: list[Batch], taken: list[tuple[Stage, float]], stopped: set[Stage]
) -> None:
    stage.start()
    if len(parts) == 1:
        answer = stage.take(parts[0])
        if answer:
            taken.append((stage, 1.0))
        elif answer is False:
            stopped.add(stage)
        return
    rows = sum(part.rows for part in parts)
    weight = 0.0
    for part in parts:
        answer = stage.take(part, part.rows / rows)
        if answer is False:
            stopped.add(stage)
            return
        if answer:
            weight += part.rows / rows
    if weight:
        taken.append((stage, weight))
