"""Checks of bootstrapping: terminated steps, time limits and fragments."""

from __future__ import annotations

import copy
from typing import Any

import numpy
import torch
from torch import Tensor

from rlplug.batch import Batch
from rlplug.batch.nested import to_tensors, tree_map
from rlplug.testing.collector import stacked
from rlplug.testing.comparison import first_difference, require_equal
from rlplug.testing.harness import Harness, make_harness
from rlplug.testing.report import CheckFailed, DoesNotApply, location
from rlplug.testing.subject import Subject

__all__ = [
    "check_fragments_do_not_leak",
    "check_terminated_steps_do_not_bootstrap",
    "check_truncated_steps_bootstrap",
]

_WHERE = ("prepare_batch", "compute_loss_for_module")


def check_terminated_steps_do_not_bootstrap(subject: Subject) -> None:
    """The observation after a terminated step makes no difference to an update."""
    harness, batch = _batch_of_fragments(subject)
    terminated = _with_ends(batch, terminated=True, truncated=False)
    require_equal(
        _weights_after(harness, terminated),
        _weights_after(harness, _with_other_finals(harness, terminated)),
        "an update that ignores the observation after a terminated step",
        location(subject.kind, *_WHERE) + ': try `* ~batch["terminated"]` on next values',
        found="it depends on it: ",
    )


def check_truncated_steps_bootstrap(subject: Subject) -> None:
    """A truncated step gives the same update as a step in mid-episode."""
    harness, batch = _batch_of_fragments(subject)
    unended = _with_ends(batch, terminated=False, truncated=False)
    expected = _weights_after(harness, unended)
    others = _weights_after(harness, _with_other_finals(harness, unended))
    if first_difference(expected, others) is None:
        raise DoesNotApply("its updates do not depend on next observations")
    truncated = _with_ends(batch, terminated=False, truncated=True)
    require_equal(
        expected,
        _weights_after(harness, truncated),
        "truncated steps that bootstrap like steps in mid-episode",
        location(subject.kind, *_WHERE) + ': read batch["terminated"], not "truncated"',
        found="the update differs: ",
    )


def check_fragments_do_not_leak(subject: Subject) -> None:
    """Columns prepared for the rows of one fragment do not depend on other fragments."""
    harness, batch = _batch_of_fragments(subject)
    if not harness.calls.implements("prepare_batch"):
        raise DoesNotApply("it prepares no columns")
    stop = int(batch["fragments"][0, 1])
    one, other = harness.prepare(batch), harness.prepare(_with_other_neighbours(batch, stop))
    for name in one:
        if name in batch or one[name].dim() != 1:
            continue
        left, right = one[name][:stop].double(), other[name][:stop].double()
        if not torch.equal(left, right) and not _is_rescaled(left, right):
            raise CheckFailed(
                "columns of one episode that do not depend on the next one in the batch",
                f"{name!r} of the first episode is {_text(left)}, beside other neighbours "
                f"{_text(right)}",
                location(subject.kind, "prepare_batch")
                + ": mind fragments and their final observations",
            )


def _batch_of_fragments(subject: Subject) -> tuple[Harness, Batch]:
    """A learner after a few updates, and a batch with fragments of three steps."""
    case = subject.case(
        lambda one: not one.one_step, "it is for bandits, whose episodes have one step"
    )
    harness = make_harness(subject, case)
    harness.train(3)
    harness.collect(steps=2)
    return harness, harness.collect(steps=3)["default"]


def _with_ends(batch: Batch, *, terminated: bool, truncated: bool) -> Batch:
    """The batch with the last step of each fragment marked like this."""
    last = torch.zeros(batch.rows, dtype=torch.bool)
    last[batch["fragments"][:, 1] - 1] = True
    return batch.with_columns({"terminated": last & terminated, "truncated": last & truncated})


def _with_other_finals(harness: Harness, batch: Batch) -> Batch:
    """The batch with other final observations."""
    space = next(iter(harness.cases.values())).observation_space
    space.seed(11)
    samples = [space.sample() for _ in batch["fragments"]]
    finals = tree_map(
        lambda old, new: new.to(old.dtype),
        batch["final_observations"],
        to_tensors(stacked(samples)),
    )
    last = batch["fragments"][:, 1] - 1

    def put(old: Tensor, new: Tensor) -> Tensor:
        column = old.clone()
        column[last] = new.to(old.dtype)
        return column

    return batch.with_columns(
        {
            "final_observations": finals,
            "next_observations": tree_map(put, batch["next_observations"], finals),
        }
    )


def _with_other_neighbours(batch: Batch, stop: int) -> Batch:
    """The batch with other rewards and observations in all fragments but the first."""

    def reversed_rows(leaf: Tensor) -> Tensor:
        column = leaf.clone()
        column[stop:] = column[stop:].flip(0)
        return column

    names = ("observations", "next_observations")
    columns = {name: tree_map(reversed_rows, batch[name]) for name in names}
    rewards = reversed_rows(batch["rewards"])
    rewards[stop:] += 5.0
    return batch.with_columns({**columns, "rewards": rewards})


def _weights_after(harness: Harness, batch: Batch) -> dict[str, Any]:
    """The weights after one update, which is then undone."""
    start, timestep = harness.learner.get_state(), harness.timestep
    generators = copy.deepcopy(harness.generators)
    try:
        harness.update(batch)
        return harness.weights()
    finally:
        harness.learner.set_state(start)
        # Target networks go by steps, dropout by chance: both are the same in the next update.
        harness.timestep, harness.generators = timestep, generators


def _is_rescaled(left: Tensor, right: Tensor) -> bool:
    """Whether two columns differ only by a shift and a scale, as after normalisation."""
    if len(left) < 3 or not left.std() or not right.std():
        return False
    return bool(numpy.corrcoef(left.numpy(), right.numpy())[0, 1] > 1 - 1e-6)


def _text(values: Tensor) -> str:
    return "[" + ", ".join(f"{value:.4g}" for value in values.tolist()) + "]"
