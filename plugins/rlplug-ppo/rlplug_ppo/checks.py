"""What `rlplug plugins check` looks for beside its own checks: advantages, limits, entropy."""

from __future__ import annotations

import torch
from torch import Tensor

from rlplug.testing import DoesNotApply, Subject
from rlplug.testing.checks.probes import drawn
from rlplug.testing.comparison import cloned, largest_difference
from rlplug.testing.probes import no_reward, reward_by_action
from rlplug.testing.trial import Trial, each_trial, needed

LIMITS = {
    "clip_range": (0.001, 0.5, "the mean of −min(ratio · A, clip(ratio) · A)"),
    "target_kl": (1e-6, 10.0, "Loss(stop=…) where the KL divergence is above it"),
    "kl_coef": (30.0, 0.01, "kl_coef · KL is added to the loss"),
    "clip_range_vf": (0.001, 100.0, "the mean of max((V − R)², (clip(V) − R)²)"),
}
"""Options → a strict value, one by which policies or values may change much, and the formula."""


def advantages_are_sums_of_td_errors(subject: Subject) -> None:
    """With `gae_lambda`, a reward counts k steps before it with (gamma · lambda)^k, in its episode.

    Which values the TD errors have, and whether advantages are normalized, makes no difference.
    """
    for trial in each_trial(subject):
        decay = trial.option("gamma") * trial.option("gae_lambda")
        rewards, usual = trial.batch["rewards"], trial.prepare(trial.batch)["advantages"]
        longest = sorted(trial.batch["fragments"].tolist(), key=lambda one: one[0] - one[1])
        for row in {row for start, stop in longest[:4] for row in (stop - 1, (start + stop) // 2)}:
            raised = rewards + 0.5 * (torch.arange(len(rewards)) == row).to(rewards.dtype)
            changed = trial.prepare(trial.batch.with_columns({"rewards": raised}))["advantages"]
            known = torch.stack([usual, _shares(trial, row, decay), torch.ones_like(usual)], 1)
            known, wanted = known.double(), changed.double()[:, None]
            # A scale of the usual ones, a share of the reward, and a shift.
            found = torch.linalg.lstsq(known, wanted).solution
            share, rest = float(found[1]), float((known @ found - wanted).abs().max())
            if share <= 1e-9 or rest > 1e-3 * share:
                raise trial.failure(
                    f"advantages that grow by {decay:.3g}^k of a reward k steps later",
                    f"for a higher reward in row {row} they differ from that by {rest:.2g}",
                    "from which row to which the sums go, and what decays them",
                    "prepare_batch",
                )


def _shares(trial: Trial, row: int, decay: float) -> Tensor:
    """How much of the reward of a row counts in each row."""
    last = trial.batch["fragments"][:, 1] - 1
    if "continued" in trial.batch:
        # Truncated backpropagation through time cuts fragments, but not episodes.
        last = last[~trial.batch["continued"]]
    start = max((int(one) for one in last if one < row), default=-1) + 1
    shares = torch.zeros(trial.batch.rows)
    shares[start : row + 1] = decay ** torch.arange(row - start, -1, -1)
    return shares


def advantages_are_normalized(subject: Subject) -> None:
    """With `normalize_advantage`, advantages have mean 0 and standard deviation 1; else not."""
    for trial in each_trial(subject):
        prepared = trial.prepare(trial.batch)
        column = prepared["advantages"].double()
        mean, spread = float(column.mean()), float(column.std(correction=0))
        changed = prepared.with_columns({"advantages": 3.0 * prepared["advantages"] + 2.0})
        # Of few rows, the standard deviation with and without Bessel's correction differ.
        in_column = abs(mean) < 1e-3 and abs(spread - 1) < 0.05
        error = largest_difference(trial.gradients(prepared), trial.gradients(changed))[1]
        if (in_column or error < 1e-3) is not bool(trial.option("normalize_advantage")):
            raise trial.failure(
                f"advantages as normalize_advantage = {trial.option('normalize_advantage')} says",
                f"a mean of {mean:.2g} and a standard deviation of {spread:.2g} in the column; "
                f"with 3 · A + 2, gradients that differ by {error:.2g}",
                "(advantages - mean) / standard deviation, in one of the two",
                *("prepare_batch", "compute_loss_for_module"),
            )


def limits_keep_policies_near(subject: Subject) -> None:
    """Strict `clip_range`, `target_kl`, … change policies, or values, less than loose ones."""
    for option in needed([name for name in LIMITS if name in subject.option_names], "no limits"):
        *numbers, formula = LIMITS[option]
        near, far = (_change(subject, option, number) for number in numbers)
        if not near < 0.9 * far:
            raise subject.failure(
                f"outputs that change less with {option} = {numbers[0]:g} than with {numbers[1]:g}",
                f"changes of {near:.3g} and {far:.3g}",
                formula,
                "compute_loss_for_module",
            )


def _change(subject: Subject, option: str, value: float) -> float:
    """How much values, or all other outputs, change in two updates."""
    trial = Trial(subject, setting={option: value}, steps=4)
    batch = trial.next_batch().to(trial.learner.device, trial.learner.dtype)
    before = cloned(dict(trial.module.forward_train(batch)))
    trial.train(2, as_a_run=True)
    after = trial.module.forward_train(batch)
    names = [name for name in before if (name == "values") is (option == "clip_range_vf")]
    return sum(float((after[name] - before[name]).detach().abs().mean()) for name in names)


def entropy_keeps_policies_random(subject: Subject) -> None:
    """A large `ent_coef` keeps the policy random."""
    # 3: also where advantages are normalized, which takes over 1.5. By the softmax, 66 %.
    chosen = drawn(subject, reward_by_action, 3_000, ent_coef=3.0)
    spread = drawn(subject, no_reward, 4_000, ent_coef=0.2)
    if chosen is None and spread is None:
        raise DoesNotApply("it accepts no entropy coefficient in the spaces of the kit")
    is_even = chosen is None or 0.4 < chosen.mean() < 0.95
    if not is_even or (spread is not None and spread.std() <= 0.4):
        raise subject.failure(
            "policies that stay random with a large ent_coef",
            "one of two actions nearly always" if not is_even else "actions that hardly differ",
            "the entropy in the loss of the policy: its sign, its axis, its gradient",
            "compute_loss_for_module",
        )


CHECKS = (
    *(advantages_are_sums_of_td_errors, advantages_are_normalized),
    *(limits_keep_policies_near, entropy_keeps_policies_random),
)
