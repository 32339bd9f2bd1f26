"""Checks of bootstrapping: terminated steps, time limits, fragments and rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy
import torch
from torch import Tensor

from rlplug.batch import Batch
from rlplug.batch.nested import tree_map
from rlplug.testing.report import CheckFailed, DoesNotApply, location
from rlplug.testing.subject import Subject
from rlplug.testing.trial import Trial, named, trials

__all__ = [
    "check_fragments_do_not_leak",
    "check_terminated_steps_do_not_bootstrap",
    "check_truncated_steps_bootstrap",
]

_FEWEST = 3
"""Numbers that show whether two columns differ by a shift and a scale."""

_WHERE = ("prepare_batch", "compute_loss_for_module")


def check_terminated_steps_do_not_bootstrap(subject: Subject) -> None:
    """The observation after a terminated step makes no difference to an update."""
    for trial in _of_several_steps(subject):
        terminated = trial.with_ends(terminated=True, truncated=False)
        expected = trial.expect_repeatable(terminated)
        found = trial.after(trial.with_other_next(terminated)).difference(expected)
        if found:
            raise CheckFailed(
                "an update that ignores the observation after a terminated step"
                + named(trial.setting),
                f"it depends on it: {found}",
                location(subject.kind, *_WHERE) + ': try `* ~batch["terminated"]` on next values',
            )


def check_truncated_steps_bootstrap(subject: Subject) -> None:
    """A truncated step gives the same update as a step in mid-episode."""
    applies = False
    for trial in _of_several_steps(subject):
        unended = trial.with_ends(terminated=False, truncated=False)
        expected = trial.expect_repeatable(unended)
        if trial.after(trial.with_other_next(unended)).equals(expected):
            continue
        truncated = trial.with_ends(terminated=False, truncated=True)
        found = trial.after(truncated).difference(expected)
        if found and not _chosen(subject, trial):
            raise CheckFailed(
                "truncated steps that bootstrap like steps in mid-episode" + named(trial.setting),
                f"the update differs: {found}",
                location(subject.kind, *_WHERE) + ': read batch["terminated"], not "truncated"',
            )
        applies = True
    if not applies:
        raise DoesNotApply("its updates do not depend on next observations")


def check_fragments_do_not_leak(subject: Subject) -> None:
    """Columns prepared for one fragment, or for one transition, do not depend on others."""
    applies = False
    for trial in _of_several_steps(subject):
        if not trial.harness.calls.implements("prepare_batch"):
            continue
        applies = True
        stop = _end_of_fragment(trial.batch) if trial.of_fragments else trial.batch.rows // 2
        for how, batch in _endings(trial.batch, stop - 1):
            for name, left, right in _leaks(trial, batch, stop):
                raise CheckFailed(
                    "columns of an episode that do not depend on later ones in the batch"
                    + named(trial.setting),
                    f"{name!r} of the first {stop} rows, the last of them {how}, is "
                    f"{_text(left)}, with others after them {_text(right)}",
                    location(subject.kind, "prepare_batch")
                    + ": mind fragments and their final observations",
                )
    if not applies:
        raise DoesNotApply("it prepares no columns")


def _of_several_steps(subject: Subject) -> Iterator[Trial]:
    """A trial per setting in an environment whose episodes have several steps."""
    subject.case(lambda one: not one.one_step, "it is for bandits, whose episodes have one step")
    for trial in trials(subject, tuple(one for one in subject.cases if not one.one_step)):
        if trial.has_next:
            yield trial


def _chosen(subject: Subject, trial: Trial) -> bool:
    """Whether an option asks to treat time limits as ends: a bool about truncation, inverted."""
    defaults = subject.kind.Config()
    return any(
        "trunc" in name and isinstance(value, bool) and value != getattr(defaults, name)
        for name, value in trial.setting.items()
    )


def _leaks(trial: Trial, batch: Batch, stop: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Columns that are others up to `stop` if rows after it are: with both."""
    one, other = trial.prepare(batch), trial.prepare(_with_other_neighbours(batch, stop))
    for name in one:
        if name in batch or not isinstance(one[name], Tensor) or one[name].dim() != 1:
            continue
        left, right = one[name][:stop].double(), other[name][:stop].double()
        if not torch.allclose(left, right, 1e-4, 1e-5) and not _is_rescaled(left, right):
            yield name, left, right


def _endings(batch: Batch, row: int) -> Iterator[tuple[str, Batch]]:
    """The batch with each way in which that row can end a fragment."""
    for how in ("terminated", "truncated", "cut in mid-episode"):
        columns = {}
        for name in ("terminated", "truncated"):
            columns[name] = batch[name].clone()
            columns[name][row] = how == name
        yield how, batch.with_columns(columns)


def _end_of_fragment(batch: Batch) -> int:
    """The end of the first fragment with enough rows up to there to tell a leak from a scale.

    With truncated BPTT, a fragment that the next one continues ends neither its episode nor what
    was collected of it.
    """
    ends = batch["fragments"][:, 1]
    if "continued" in batch:
        ends = ends[~batch["continued"]]
    stops = ends.tolist()
    return next((int(stop) for stop in stops if _FEWEST <= stop < batch.rows), int(stops[0]))


def _with_other_neighbours(batch: Batch, stop: int) -> Batch:
    """The batch with other rewards and observations in all rows from `stop` on."""

    def reversed_rows(leaf: Tensor) -> Tensor:
        column = leaf.clone()
        column[stop:] = column[stop:].flip(0)
        return column

    names = [name for name in ("observations", "next_observations") if name in batch]
    columns = {name: tree_map(reversed_rows, batch[name]) for name in names}
    rewards = reversed_rows(batch["rewards"])
    rewards[stop:] += 5.0
    return batch.with_columns({**columns, "rewards": rewards})


def _is_rescaled(left: Tensor, right: Tensor) -> bool:
    """Whether two columns differ only by a shift and a scale, as after normalisation."""
    if len(left) < _FEWEST or not left.std() or not right.std():
        return False
    return bool(numpy.corrcoef(left.numpy(), right.numpy())[0, 1] > 1 - 1e-6)


def _text(values: Tensor) -> str:
    return "[" + ", ".join(f"{value:.4g}" for value in values.tolist()) + "]"
