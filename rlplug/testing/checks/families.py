"""Checks of options that algorithms of a family have: plugins name their families in `checks`.

What they expect of an option of a name is what papers and libraries mean by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor

from rlplug.testing.cases import Case, act_input
from rlplug.testing.check import Check, check
from rlplug.testing.checks.probes import require_support, train
from rlplug.testing.comparison import cloned, largest_difference, to_array
from rlplug.testing.harness import make_harness
from rlplug.testing.probes import box_target, entropy_ahead, no_reward, reward_by_action
from rlplug.testing.report import DoesNotApply
from rlplug.testing.subject import Subject
from rlplug.testing.trial import Trial, each_trial

_LIMITS: Mapping[str, tuple[float, float, str]] = {
    "clip_range": (0.001, 0.5, "the mean of −min(ratio · A, clip(ratio) · A)"),
    "target_kl": (1e-6, 10.0, "Loss(stop=…) where the KL divergence is above it"),
    "kl_coef": (30.0, 0.01, "kl_coef · KL is added to the loss"),
    "clip_range_vf": (0.001, 100.0, "the mean of max((V − R)², (clip(V) − R)²)"),
}
"""Options → a strict value, one by which policies or values may change much, and the formula."""
_NOT_ACCEPTED = "it accepts none of the coefficients, or supports none of the spaces"


@check("algorithm")
def advantages_are_sums_of_td_errors(subject: Subject) -> None:
    """With `gae_lambda`, a reward counts k steps before it with (gamma · lambda)^k, in its episode.

    Which values the TD errors have, and whether advantages are normalized, makes no difference.
    """
    for trial in each_trial(subject, _has_advantages, "it prepares no advantages of rollouts"):
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
                    f"for a higher reward in row {row} they differ from that by {rest:.2g} beside "
                    f"{share:.2g} of it",
                    "from which row to which the sums go, and what decays them",
                    "prepare_batch",
                )


def _require_option(subject: Subject, *names: str) -> None:
    if not set(names).intersection(subject.option_names):
        raise DoesNotApply(f"it has no option {' or '.join(names)}")


def _has_advantages(trial: Trial) -> bool:
    has_options = "gae_lambda" in trial.subject.option_names and trial.of_fragments
    return has_options and "advantages" in trial.prepare(trial.batch)


def _shares(trial: Trial, row: int, decay: float) -> Tensor:
    """How much of the reward of a row counts in each row."""
    last = trial.batch["fragments"][:, 1] - 1
    if "continued" in trial.batch:
        # Truncated backpropagation through time cuts fragments, but not episodes.
        last = last[~trial.batch["continued"]]
    before = [int(one) for one in last if one < row]
    start = max(before, default=-1) + 1
    shares = torch.zeros(trial.batch.rows)
    shares[start : row + 1] = decay ** torch.arange(row - start, -1, -1)
    return shares


@check("algorithm")
def advantages_are_normalized(subject: Subject) -> None:
    """With `normalize_advantage`, advantages have mean 0 and standard deviation 1; else not."""
    for trial in each_trial(subject, _has_advantages, "it prepares no advantages of rollouts"):
        prepared = trial.prepare(trial.batch)
        column = prepared["advantages"].double()
        mean, spread = float(column.mean()), float(column.std(correction=0))
        changed = prepared.with_columns({"advantages": 3.0 * prepared["advantages"] + 2.0})
        pair = (trial.gradients(one, prepared=True) for one in (prepared, changed))
        # Of few rows, the standard deviation with and without Bessel's correction differ.
        in_column = abs(mean) < 1e-3 and abs(spread - 1) < 0.05
        in_loss = largest_difference(*pair)[1] < 1e-3
        if (in_column or in_loss) is not bool(trial.option("normalize_advantage")):
            raise trial.failure(
                f"advantages as normalize_advantage = {trial.option('normalize_advantage')} says",
                f"a mean of {mean:.2g} and a standard deviation of {spread:.2g} in the column, and "
                f"{'the same' if in_loss else 'other'} gradients for advantages 3 · A + 2",
                "(advantages - mean) / standard deviation, in one of the two",
                *("prepare_batch", "compute_loss_for_module"),
            )


@check("algorithm")
def limits_keep_policies_near(subject: Subject) -> None:
    """Strict `clip_range`, `target_kl`, … change policies, or values, less than loose ones."""
    _require_option(subject, *_LIMITS)
    for option in [name for name in _LIMITS if name in subject.option_names]:
        *numbers, formula = _LIMITS[option]
        near, far = (_change(subject, option, one) for one in numbers)
        if not near < 0.9 * far:
            raise subject.failure(
                f"outputs that change less with {option} = {numbers[0]:g} than with {numbers[1]:g}",
                f"changes of {near:.3g} and {far:.3g}",
                formula,
                "compute_loss_for_module",
            )


def _change(subject: Subject, option: str, value: float) -> float:
    """How much values, or all other outputs, change in two updates."""
    case = subject.case_for({option: value})
    config = subject.changed({option: value})
    harness = make_harness(subject, case, config=config, steps=4)
    batch = harness.batch().to(harness.learner.device, harness.learner.dtype)
    before = cloned(dict(harness.module.forward_train(batch)))
    harness.train(2, as_a_run=True)
    after = cloned(dict(harness.module.forward_train(batch)))
    names = [name for name in before if (name == "values") is (option == "clip_range_vf")]
    return sum(float((after[name] - before[name]).abs().mean()) for name in names)


@check("algorithm")
def entropy_keeps_policies_random(subject: Subject) -> None:
    """A large `ent_coef` keeps the policy random; a learned one aims at its entropy."""
    hint = "the entropy in the loss of the policy: its sign, its axis, its gradient, its target"
    applies = False
    for make, coefficient, steps, low, high, what in (
        # 3: also where advantages are normalized, which takes over 1.5. By the softmax, 66 %.
        (reward_by_action, 3.0, 3_000, 0.4, 0.95, "the share of the better of two actions"),
        (no_reward, 0.2, 4_000, 0.4, inf, "the spread of actions in [−1, 3] without rewards"),
        (box_target, "auto", 8_000, 0.02, 0.7, "the spread of actions around the best one"),
    ):
        drawn = _drawn(subject, make, {"ent_coef": coefficient}, steps)
        if drawn is None:
            continue
        applies = True
        found = float(drawn.mean() if make is reward_by_action else drawn.std())
        # Of squashed actions, wrong densities push to the bounds; others may lie beyond them.
        is_bounded = make is no_reward and bool((abs(drawn - 1) <= 2.001).all())
        at_bounds = float((abs(drawn - 1) > 1.96).mean()) if is_bounded else 0.0
        if not low < found < high or at_bounds > 0.3:
            raise subject.failure(
                f"{what} between {low:g} and {high:g} with ent_coef = {coefficient!r}",
                f"{found:.2f}, and {at_bounds:.0%} at the bounds",
                hint,
            )
    if not applies:
        raise DoesNotApply(_NOT_ACCEPTED)


@check("algorithm")
def values_include_entropy(subject: Subject) -> None:
    """Values include the entropy of the policy ahead, as in SAC: it chooses more steps."""
    applies = False
    for continuous in (True, False):
        make = partial(entropy_ahead, continuous=continuous)
        drawn = _drawn(subject, make, {"ent_coef": 0.5, "gamma": 0.95}, 8_000)
        if drawn is None:
            continue
        applies = True
        chance = float(((drawn + 1) / 4.0 if continuous else drawn).mean())
        if not chance >= 0.62:
            raise subject.failure(
                "a chance of at least 0.62 to go on, 0.5 if entropy does not count",
                f"{chance:.2f}",
                "targets with α · entropy of the next state",
            )
    if not applies:
        raise DoesNotApply(_NOT_ACCEPTED)


def _drawn(subject: Subject, make: Callable[[], Any], changes: dict[str, Any], steps: int) -> Any:
    """Actions drawn at the start of an episode, after a training; None where that is refused."""
    require_support(subject, reward_by_action, one_step=True)
    if not subject.accepts(changes) or not subject.supports(make(), changes):
        return None
    module = train(subject, make, steps=steps, config=subject.changed(changes)).module
    act = act_input(module, Case(name="start", make=make), 1, at=10**6, copies=2_000)
    return to_array(module.forward_exploration(act).actions).reshape(-1)


FAMILIES: Mapping[str, tuple[Check, ...]] = {
    "policy_gradient": (
        advantages_are_sums_of_td_errors,
        advantages_are_normalized,
        limits_keep_policies_near,
        entropy_keeps_policies_random,
    ),
    "maximum_entropy": (entropy_keeps_policies_random, values_include_entropy),
}
"""The checks of each family; those of options that a plugin lacks do not apply."""
