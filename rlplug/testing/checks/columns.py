"""Checks of what an update makes of the columns of its batch, with every setting."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from rlplug.batch import Batch
from rlplug.batch.nested import first_leaf, tree_map
from rlplug.testing.report import CheckFailed, DoesNotApply, location, locations
from rlplug.testing.subject import Subject
from rlplug.testing.trial import Trial, named, trials

__all__ = [
    "check_importance_weights_scale_the_loss",
    "check_priorities_grow_with_errors",
    "check_rows_are_learned_one_by_one",
    "check_updates_depend_on_every_column",
]

_WHERE = ("prepare_batch", "compute_loss_for_module", "additional_update")


def check_updates_depend_on_every_column(subject: Subject) -> None:
    """Observations, actions, rewards and what else the feed gives change the update, row by row."""
    for trial in trials(subject):
        before = trial.expect_repeatable(trial.batch)
        for name, changed, hint in _changes(trial):
            if trial.after(changed).equals(before):
                raise CheckFailed(
                    f"another update for other {name!r}" + named(trial.setting),
                    "the same one",
                    locations(subject.kind, *_WHERE) + f": {hint}",
                )


def check_rows_are_learned_one_by_one(subject: Subject) -> None:
    """Each row of a batch belongs together: the order of rows makes no difference."""
    applies = False
    for trial in trials(subject):
        batch = trial.batch
        if trial.of_fragments or _draws(trial):
            continue
        order = torch.randperm(batch.rows, generator=torch.Generator().manual_seed(3))
        columns = {name: tree_map(lambda leaf, at=order: leaf[at], batch[name]) for name in batch}
        if _discounts_by_row(trial):
            continue
        usual, reordered = trial.after(batch), trial.after(Batch(columns))
        if usual.keeps_rows(reordered):
            continue
        applies = True
        found = reordered.difference(usual)
        if found:
            raise CheckFailed(
                "the same update for the same rows in another order" + named(trial.setting),
                found,
                locations(subject.kind, *_WHERE)
                + ": look for roll, shapes that broadcast, and columns of other rows",
            )
    if not applies:
        raise DoesNotApply("its rows are ordered, or its updates are random")


def check_importance_weights_scale_the_loss(subject: Subject) -> None:
    """The loss of a row is multiplied by its weight, from a prioritized feed or a log."""
    applies = False
    for trial in trials(subject):
        if not trial.is_prioritized and not subject.learns_from_logs:
            continue
        applies = True
        weights = trial.batch.get("weights")
        if weights is None:
            weights = torch.ones(trial.batch.rows, dtype=trial.batch["rewards"].dtype)
        batch = trial.batch.with_columns({"weights": weights})
        once = trial.gradients(batch)
        twice = trial.gradients(batch.with_columns({"weights": weights * 2}))
        where = location(subject.kind, "compute_loss_for_module")
        for name, gradient in once.items():
            doubled = twice[name] - 2 * gradient
            if float(doubled.abs().max()) > 1e-3 * float(gradient.abs().max()) + 1e-9:
                raise CheckFailed(
                    "gradients twice as large for weights twice as large" + named(trial.setting),
                    "others",
                    where + ': multiply each row\'s loss by batch["weights"], then take the mean',
                )
        first = torch.zeros(batch.rows, dtype=torch.bool)
        first[0] = True
        if not trial.is_prioritized:
            continue
        other = batch["rewards"] + 3.0 * first.to(batch["rewards"].dtype)
        ignored = batch.with_columns({"weights": weights.masked_fill(first, 0.0)})
        changed = trial.after(ignored.with_columns({"rewards": other}))
        found = changed.difference(trial.after(ignored))
        if found:
            raise CheckFailed(
                "an update that ignores a row of weight 0" + named(trial.setting),
                f"it depends on the row's reward: {found}",
                where + ": weights of other rows",
            )
    if not applies:
        raise DoesNotApply("its feed gives no weights")


def check_priorities_grow_with_errors(subject: Subject) -> None:
    """A prioritized feed gets one priority per row, not negative, larger for larger errors."""
    applies = False
    where = location(subject.kind, "compute_loss_for_module") + ': Loss(rows={"priority": …})'
    for trial in _prioritized(subject):
        applies = True
        batch = trial.batch
        found: list[Tensor] = []
        for shift in (0.0, 3.0, -3.0):
            rewards = batch["rewards"] + shift
            rows = trial.after(batch.with_columns({"rewards": rewards})).rows
            if "priority" not in rows or rows["priority"].shape != (batch.rows,):
                raise CheckFailed("one priority per row" + named(trial.setting), "none", where)
            if bool((rows["priority"] < 0).any()):
                raise CheckFailed(
                    "priorities that are not negative" + named(trial.setting),
                    f"{float(rows['priority'].min()):.3g}",
                    where + ": the absolute value of the error",
                )
            found.append(rows["priority"].double().mean())
        usual, more, less = found
        if not max(more, less) > usual:
            raise CheckFailed(
                "higher priorities for rewards that are further from what was predicted"
                + named(trial.setting),
                f"a mean of {usual:.3g}, and of {more:.3g} and {less:.3g} for rewards 3 higher and "
                "lower",
                where + ": the absolute value of the error, not its inverse",
            )
    if not applies:
        raise DoesNotApply("its feed draws no batches by priority")


def _changes(trial: Trial) -> Iterator[tuple[str, Batch, str]]:
    """Batches with one column changed, the name of the column, and a hint."""
    batch, case = trial.batch, trial.case
    flipped = torch.arange(batch.rows - 1, -1, -1)
    rewards = batch["rewards"]
    order = batch["actions"].reshape(batch.rows, -1).double().sum(1).argsort()
    sorted_by_action = torch.empty_like(rewards)
    sorted_by_action[order] = rewards.sort().values
    if bool((batch["actions"] == batch["actions"][0]).all()):
        # Where one action was taken all along, it makes no difference which row earned what.
        sorted_by_action = 2 * rewards + 1
    if not trial.subject.learns_from_logs:
        # Imitation has no use for them.
        yield (
            "rewards",
            batch.with_columns({"rewards": sorted_by_action}),
            "rewards must belong to their rows; (n, 1) and (n,) broadcast to (n, n)",
        )
    actions = batch["actions"].flip(0)
    if not torch.equal(actions, batch["actions"]):
        yield "actions", batch.with_columns({"actions": actions}), "what the action was matters"
    observed = batch["observations"]
    if first_leaf(observed).float().std() > 0:
        other = tree_map(lambda leaf: leaf[flipped.to(leaf.device)], observed)
        yield "observations", batch.with_columns({"observations": other}), "what was observed"
    if not trial.has_next or case.one_step:
        return
    going = trial.with_ends(terminated=False, truncated=False)
    expected = trial.after(going)
    if trial.after(trial.with_other_next(going)).equals(expected):
        # Monte Carlo returns, or an algorithm that looks at no next state.
        return
    ended = trial.with_ends(terminated=True, truncated=False)
    if trial.after(ended).equals(expected):
        yield "terminated", batch, 'end returns where batch["terminated"] is set'
    if "discounts" in batch and bool((batch["discounts"] != batch["discounts"][0]).any()):
        halved = going.with_columns({"discounts": batch["discounts"] * 0.5})
        if trial.after(halved).equals(expected):
            hint = 'rows span several steps: discount with batch["discounts"], not gamma'
            yield "discounts", batch, hint


def _prioritized(subject: Subject) -> Iterator[Trial]:
    for trial in trials(subject):
        if trial.is_prioritized:
            yield trial


def _draws(trial: Trial) -> bool:
    """Whether an update draws random numbers."""
    learner = trial.harness.learner
    start = learner.get_state()
    generators = [learner.generator(name).get_state() for name in learner.modules]
    with trial.harness.generators():
        before = torch.get_rng_state()
        trial.harness.learner.update({"default": trial.batch}, timestep=trial.harness.timestep + 1)
        drew = not torch.equal(before, torch.get_rng_state())
    after = [learner.generator(name).get_state() for name in learner.modules]
    drew = drew or any(
        not torch.equal(one, other) for one, other in zip(generators, after, strict=True)
    )
    learner.set_state(start)
    return drew


def _discounts_by_row(trial: Trial) -> bool:
    """Whether an option discounts what was learned, so that later rows count more."""
    discount = getattr(trial.harness.algorithm.config, "discount", 1.0)
    return isinstance(discount, float) and discount < 1
