"""Checks at the borders of episodes: ends, time limits, cut rollouts, neighbours in a batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch
from torch import Tensor

from rlplug.batch import Batch
from rlplug.testing.bench import Bench, bench_of
from rlplug.testing.comparing import first_difference
from rlplug.testing.report import CheckFailed, DoesNotApply, place
from rlplug.testing.subject import Subject

__all__ = [
    "check_fragments_do_not_leak",
    "check_terminated_steps_do_not_bootstrap",
    "check_truncated_steps_bootstrap",
]

_WHERE = ("prepare_batch", "compute_loss_for_module")


def check_terminated_steps_do_not_bootstrap(subject: Subject) -> None:
    """What is seen after a terminated step makes no difference to what is learned."""
    bench, batch = _pieces(subject)
    ended = _ending(batch, terminated=True, truncated=False)
    difference = first_difference(
        _after(bench, ended), _after(bench, _with_other_finals(bench, ended))
    )
    if difference is not None:
        raise CheckFailed(
            "an update that ignores the observation after a terminated step",
            f"it depends on it: {difference}",
            place(subject.kind, *_WHERE) + ': try `* ~batch["terminated"]` on next values',
        )


def check_truncated_steps_bootstrap(subject: Subject) -> None:
    """A step cut by a time limit is learned from like one after which the episode goes on."""
    bench, batch = _pieces(subject)
    going_on = _ending(batch, terminated=False, truncated=False)
    elsewhere = _with_other_finals(bench, going_on)
    if first_difference(_after(bench, going_on), _after(bench, elsewhere)) is None:
        raise DoesNotApply("nothing that it learns depends on what comes after a step")
    cut = _ending(batch, terminated=False, truncated=True)
    difference = first_difference(_after(bench, going_on), _after(bench, cut))
    if difference is not None:
        raise CheckFailed(
            "truncated steps that bootstrap like steps in mid-episode",
            f"the update differs: {difference}",
            place(subject.kind, *_WHERE) + ': read batch["terminated"], not "truncated"',
        )


def check_fragments_do_not_leak(subject: Subject) -> None:
    """What is prepared for the rows of one episode does not depend on its neighbours."""
    bench, batch = _pieces(subject)
    if not bench.calls.implements("prepare_batch"):
        raise DoesNotApply("it prepares no columns")
    stop = int(batch["fragments"][0, 1])
    one, other = _prepared(bench, batch), _prepared(bench, _with_other_neighbours(batch, stop))
    for name in one:
        if name in batch or one[name].dim() != 1:
            continue
        left, right = one[name][:stop].double(), other[name][:stop].double()
        if not torch.equal(left, right) and not _rescaled(left, right):
            raise CheckFailed(
                "columns of one episode that do not depend on the next one in the batch",
                f"{name!r} of the first episode is {_words(left)}, beside other neighbours "
                f"{_words(right)}",
                place(subject.kind, "prepare_batch")
                + ": mind fragments and their final observations",
            )


def _pieces(subject: Subject) -> tuple[Bench, Batch]:
    """A learner with some experience, and pieces of three steps each."""
    case = subject.case(
        lambda one: not one.one_step, "it is for bandits, whose episodes have one step"
    )
    bench = bench_of(subject, case)
    bench.live(3)
    bench.play(steps=2)
    return bench, bench.play(steps=3)["default"]


def _ending(batch: Batch, *, terminated: bool, truncated: bool) -> Batch:
    """The batch with all its pieces ending like this."""
    last = torch.zeros(batch.rows, dtype=torch.bool)
    last[batch["fragments"][:, 1] - 1] = True
    return batch.with_columns({"terminated": last & terminated, "truncated": last & truncated})


def _with_other_finals(bench: Bench, batch: Batch) -> Batch:
    """The batch with other observations after the last step of each piece."""
    space = next(iter(bench.cases.values())).observation_space
    space.seed(11)
    pieces = len(batch["fragments"])
    drawn = [space.sample() for _ in range(pieces)]
    finals = _map2(batch["final_observations"], _stack(drawn), lambda old, new: new.to(old.dtype))
    last = batch["fragments"][:, 1] - 1

    def put(old: Tensor, new: Tensor) -> Tensor:
        column = old.clone()
        column[last] = new.to(old.dtype)
        return column

    return batch.with_columns(
        {
            "final_observations": finals,
            "next_observations": _map2(batch["next_observations"], finals, put),
        }
    )


def _with_other_neighbours(batch: Batch, stop: int) -> Batch:
    """The batch with other rewards and observations in all pieces but the first."""

    def moved(leaf: Tensor) -> Tensor:
        column = leaf.clone()
        column[stop:] = column[stop:].flip(0)
        return column

    names = ("observations", "next_observations")
    columns = {name: _map2(batch[name], batch[name], lambda old, _: moved(old)) for name in names}
    rewards = moved(batch["rewards"])
    rewards[stop:] += 5.0
    return batch.with_columns({**columns, "rewards": rewards})


def _after(bench: Bench, batch: Batch) -> dict[str, Any]:
    """The weights after one update from the same start."""
    start, timestep = bench.learner.get_state(), bench.timestep
    draws = copy.deepcopy(bench.draws)
    try:
        bench.update(batch)
        return bench.weights()
    finally:
        bench.learner.set_state(start)
        # What goes by steps or by chance, as targets and dropout do, is to go alike each time.
        bench.timestep, bench.draws = timestep, draws


def _prepared(bench: Bench, batch: Batch) -> Batch:
    learner = bench.learner
    name = next(iter(learner.modules))
    placed = batch.to(learner.device, learner.dtype)
    with bench.draws(), torch.no_grad():
        return bench.calls.prepare_batch(
            name, bench.module, placed, {name: placed}, bench.timestep, learner
        )


def _rescaled(left: Tensor, right: Tensor) -> bool:
    """Whether two columns differ by a shift and a scale alone, as normalised ones do."""
    if len(left) < 3 or not left.std() or not right.std():
        return False
    return bool(numpy.corrcoef(left.numpy(), right.numpy())[0, 1] > 1 - 1e-6)


def _stack(rows: list[Any]) -> Any:
    first = rows[0]
    if isinstance(first, Mapping):
        return {name: _stack([row[name] for row in rows]) for name in first}
    if isinstance(first, tuple):
        return tuple(_stack(list(column)) for column in zip(*rows, strict=True))
    return torch.as_tensor(numpy.stack(rows))


def _map2(one: Any, other: Any, change: Callable[[Tensor, Tensor], Tensor]) -> Any:
    if isinstance(one, Mapping):
        return {name: _map2(part, other[name], change) for name, part in one.items()}
    if isinstance(one, tuple):
        return tuple(_map2(left, right, change) for left, right in zip(one, other, strict=True))
    return change(one, other)


def _words(values: Tensor) -> str:
    return "[" + ", ".join(f"{value:.4g}" for value in values.tolist()) + "]"
