"""Checks of the column `advantages`: generalised advantage estimation, and its normalisation."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from rlplug.testing.comparison import largest_difference
from rlplug.testing.report import CheckFailed, DoesNotApply, location
from rlplug.testing.subject import Subject
from rlplug.testing.trial import Trial, named, trials

__all__ = ["check_advantages_are_normalized", "check_advantages_are_sums_of_td_errors"]

_FRAGMENTS = 4
"""The longest fragments, in which rewards are changed."""


def check_advantages_are_sums_of_td_errors(subject: Subject) -> None:
    """With `gae_lambda`, a reward counts k steps before it with (gamma · lambda)^k, in its episode.

    Which values the TD errors have, and whether advantages are normalized, makes no difference.
    """
    applies = False
    for trial in trials(subject):
        config = trial.harness.algorithm.config
        gamma, weight = getattr(config, "gamma", None), getattr(config, "gae_lambda", None)
        if not (isinstance(gamma, float) and isinstance(weight, float) and trial.of_fragments):
            continue
        usual = trial.prepare(trial.batch)
        if "advantages" not in usual or "advantages" in trial.batch:
            continue
        applies = True
        rewards = trial.batch["rewards"]
        for row in _rows_to_change(trial):
            shares = _shares(trial, row, gamma * weight)
            raised = rewards + 0.5 * (torch.arange(len(rewards)) == row).to(rewards.dtype)
            changed = trial.prepare(trial.batch.with_columns({"rewards": raised}))
            error, sign = _misfit(usual["advantages"], changed["advantages"], shares)
            if error > 1e-3 or sign <= 0:
                raise CheckFailed(
                    f"advantages that grow by (gamma · lambda)^k of a reward k steps later, "
                    f"with gamma = {gamma:g} and lambda = {weight:g}" + named(trial.setting),
                    f"for a higher reward in row {row} they differ from that by {error:.2g} of it"
                    if sign > 0
                    else f"for a higher reward in row {row} they are no higher",
                    location(subject.kind, "prepare_batch")
                    + ": from which row to which the sums go, and what decays them",
                )
    if not applies:
        raise DoesNotApply("it has no option gae_lambda, or prepares no advantages")


def check_advantages_are_normalized(subject: Subject) -> None:
    """With `normalize_advantage`, advantages have mean 0 and standard deviation 1; else not."""
    applies = False
    for trial in trials(subject):
        config = trial.harness.algorithm.config
        wanted = getattr(config, "normalize_advantage", None)
        prepared = trial.prepare(trial.batch)
        if wanted is None or "advantages" not in prepared:
            continue
        applies = True
        changed = prepared.with_columns({"advantages": 3.0 * prepared["advantages"] + 2.0})
        _, error = largest_difference(
            trial.gradients(prepared, prepared=True), trial.gradients(changed, prepared=True)
        )
        in_loss, in_column = error < 1e-3, _is_normalized(prepared["advantages"])
        if (in_loss or in_column) is not bool(wanted):
            mean, spread = _mean_and_spread(prepared["advantages"])
            raise CheckFailed(
                f"{'normalized advantages' if wanted else 'advantages as they are'}, as "
                f"normalize_advantage is {wanted}" + named(trial.setting),
                f"prepare_batch gives a mean of {mean:.2g} and a standard deviation of "
                f"{spread:.2g}, and gradients of the loss differ by {error:.2g} of their size for "
                "advantages 3 · A + 2",
                location(subject.kind, "prepare_batch", "compute_loss_for_module")
                + ": (advantages - mean) / standard deviation, in one of the two",
            )
    if not applies:
        raise DoesNotApply("it has no option normalize_advantage, or prepares no advantages")


def _rows_to_change(trial: Trial) -> Iterator[int]:
    """The last row and one in the middle of the longest fragments."""
    fragments = sorted(trial.batch["fragments"].tolist(), key=lambda one: one[0] - one[1])
    for start, stop in fragments[:_FRAGMENTS]:
        yield from {stop - 1, (start + stop) // 2}


def _shares(trial: Trial, row: int, decay: float) -> Tensor:
    """How much of the reward of a row counts in each row."""
    batch = trial.batch
    last = batch["fragments"][:, 1] - 1
    if "continued" in batch:
        # Truncated backpropagation through time cuts fragments, but not episodes.
        last = last[~batch["continued"]]
    ends = set(last.tolist())
    shares = torch.zeros(batch.rows, dtype=torch.float64)
    share = 1.0
    for index in range(row, -1, -1):
        if index in ends and index != row:
            break
        shares[index] = share
        share *= decay
    return shares


def _misfit(usual: Tensor, changed: Tensor, shares: Tensor) -> tuple[float, float]:
    """What is left of the change beside a shift, a scale and the shares; and their sign."""
    one, two = usual.double().cpu(), changed.double().cpu()
    known = torch.stack([one, shares, torch.ones_like(one)], 1)
    found = torch.linalg.lstsq(known, two[:, None]).solution
    size = float(found[1].abs())
    if size < 1e-9:
        return 0.0, 0.0
    rest = float((known @ found - two[:, None]).abs().max())
    return rest / size, float(found[1])


def _is_normalized(advantages: Tensor) -> bool:
    """Whether the column has mean 0 and standard deviation 1 already."""
    mean, spread = _mean_and_spread(advantages)
    # Of few rows, the standard deviation with and without Bessel's correction differ.
    return abs(mean) < 1e-3 and abs(spread - 1) < 0.05


def _mean_and_spread(column: Tensor) -> tuple[float, float]:
    return float(column.double().mean()), float(column.double().std(correction=0))
