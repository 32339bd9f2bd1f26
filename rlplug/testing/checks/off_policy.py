"""Checks of experience that older weights collected: ratios to the log-probabilities of acting."""

from __future__ import annotations

import torch
from torch import Tensor

from rlplug.batch import Batch
from rlplug.testing.comparison import largest_difference
from rlplug.testing.report import CheckFailed, DoesNotApply, location
from rlplug.testing.subject import Subject
from rlplug.testing.trial import Trial, named, trials

__all__ = ["check_actions_that_policies_avoid_teach_nothing"]

_RARE = 30.0
"""How much likelier, in log-probability, an action was when it was taken than it is now."""
_SHIFT = 5.0
_FEWEST = 3


def check_actions_that_policies_avoid_teach_nothing(subject: Subject) -> None:
    """Where ratios to `log_prob` correct returns, what follows a rare action does not count."""
    applies = False
    for trial in trials(subject):
        if "log_prob" not in trial.batch or not trial.of_fragments:
            continue
        longest = max(trial.batch["fragments"].tolist(), key=lambda one: one[1] - one[0])
        start, row = longest[0], sum(longest) // 2
        if longest[1] - longest[0] < _FEWEST or not _corrects(trial, row):
            continue
        applies = True
        _check_returns(trial, start, row)
        plain = {**trial.setting, "normalize_advantage": False}
        # Normalization would spread a change of one row over all others.
        _check_gradients(Trial(subject, plain, trial.case) if subject.accepts(plain) else trial)
    if not applies:
        raise DoesNotApply("prepare_batch makes nothing of a column log_prob")


def _check_returns(trial: Trial, start: int, row: int) -> None:
    rare, liked = (_taken(trial.batch, row, by) for by in (_RARE, -_RARE))
    where = location(trial.subject.kind, "prepare_batch")
    hint = ': exp(log_prob of the policy − batch["log_prob"]), truncated from above'
    for name, ignored in _changed(trial, rare, start, row).items():
        if ignored > 1e-3:
            raise CheckFailed(
                f"{name!r} up to row {row} that do not depend on rewards from there on, where its "
                f"action has become e³⁰ times less likely" + named(trial.setting),
                f"they change by up to {ignored:.2g} for rewards {_SHIFT:g} higher",
                where + hint,
            )
    if not any(one > 0.1 for one in _changed(trial, liked, start, row).values()):
        raise CheckFailed(
            f"value targets up to row {row} that depend on rewards from there on, where its action "
            "has become likelier" + named(trial.setting),
            "the same ones",
            where + hint,
        )


def _check_gradients(trial: Trial) -> None:
    """The policy's loss has the ratio, too."""
    longest = max(trial.batch["fragments"].tolist(), key=lambda one: one[1] - one[0])
    row = sum(longest) // 2
    rare = _taken(trial.batch, row, _RARE)
    first, error = largest_difference(
        trial.gradients(rare), trial.gradients(_paid(rare, row, row + 1))
    )
    if error > 1e-3:
        raise CheckFailed(
            f"gradients that do not depend on the reward of row {row}, whose action has become e³⁰ "
            "times less likely" + named(trial.setting),
            f"that of {first!r} differs by {error:.2g} of its size",
            location(trial.subject.kind, "compute_loss_for_module")
            + ": multiply the advantage of a row by the ratio of its action's probabilities",
        )


def _corrects(trial: Trial, row: int) -> bool:
    """Whether any prepared column changes with the log-probability of acting."""
    one = trial.prepare(trial.batch)
    for by in (1.0, -1.0):
        other = trial.prepare(_taken(trial.batch, row, by))
        if any(not torch.equal(one[name], other[name]) for name in _columns(trial, one)):
            return True
    return False


def _changed(trial: Trial, batch: Batch, start: int, row: int) -> dict[str, float]:
    """By how much prepared columns up to a row change for other rewards from there on."""
    one, other = trial.prepare(batch), trial.prepare(_paid(batch, row, batch.rows))
    return {
        name: float((one[name] - other[name])[start : row + 1].abs().max())
        for name in _columns(trial, one)
        # Advantages may be without the ratio of their own action.
        if name != "advantages"
    }


def _columns(trial: Trial, prepared: Batch) -> list[str]:
    return [
        name
        for name in prepared
        if name not in trial.batch
        and isinstance(prepared[name], Tensor)
        and prepared[name].dim() == 1
        and prepared[name].is_floating_point()
    ]


def _taken(batch: Batch, row: int, by: float) -> Batch:
    """The batch as if the action of a row had been so much likelier when it was taken."""
    column = batch["log_prob"].clone()
    column[row] += by
    return batch.with_columns({"log_prob": column})


def _paid(batch: Batch, first: int, stop: int) -> Batch:
    rewards = batch["rewards"].clone()
    rewards[first:stop] += _SHIFT
    return batch.with_columns({"rewards": rewards})
