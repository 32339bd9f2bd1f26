"""Checks of what an update makes of its batch: ends, fragments, columns, masks and teams."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy
import torch
from torch import Tensor

from rlplug.batch import Batch
from rlplug.batch.nested import first_leaf, tree_map
from rlplug.nn import QuantileHead
from rlplug.testing.check import check
from rlplug.testing.comparison import first_difference, largest_difference, tensors_of
from rlplug.testing.subject import Subject
from rlplug.testing.trial import Trial, Update, each_trial

_FEWEST = 3
"""Numbers that show whether two columns differ by a shift and a scale."""
_FAR = 1e3
"""A reward further from what is predicted than any loss takes for near."""
_PREPARING = "prepare_batch"


def _of_several_steps(
    subject: Subject, applies: Callable[[Trial], Any] = lambda trial: True
) -> Iterator[Trial]:
    """A trial per setting in an environment whose episodes have several steps."""
    cases = [one for one in subject.cases if not one.one_step]
    reason = "its updates look at no next observations"
    return each_trial(subject, lambda one: one.has_next and applies(one), reason, cases=cases)


def _bootstraps(trial: Trial) -> bool:
    """Whether an update depends on what was observed after the rows in mid-episode."""
    unended = trial.with_ends()
    return bool(trial.after(trial.with_other_next(unended)).difference(trial.after(unended)))


@check("algorithm")
def terminated_steps_do_not_bootstrap(subject: Subject) -> None:
    """The observation after a terminated step makes no difference to an update."""
    for trial in _of_several_steps(subject):
        terminated = trial.with_ends(terminated=True)
        expected = trial.expect_repeatable(terminated)
        if found := trial.after(trial.with_other_next(terminated)).difference(expected):
            raise trial.failure(
                "an update that ignores the observation after a terminated step",
                f"it depends on it: {found}",
                'try `* ~batch["terminated"]` on next values',
            )


@check("algorithm")
def truncated_steps_bootstrap(subject: Subject) -> None:
    """A truncated step gives the same update as a step in mid-episode."""
    defaults = subject.kind.Config()
    for trial in _of_several_steps(subject, _bootstraps):
        expected = trial.expect_repeatable(trial.with_ends())
        found = trial.after(trial.with_ends(truncated=True)).difference(expected)
        # A bool about truncation that is inverted asks to treat time limits as ends.
        asked = [name for name in trial.setting if "trunc" in name and name in subject.option_names]
        if found and not any(trial.option(name) is not getattr(defaults, name) for name in asked):
            raise trial.failure(
                "truncated steps that bootstrap like steps in mid-episode",
                f"the update differs: {found}",
                'read batch["terminated"], not "truncated"',
            )


@check("algorithm")
def fragments_do_not_leak(subject: Subject) -> None:
    """Columns prepared for one fragment, or for one transition, do not depend on others."""
    for trial in _of_several_steps(subject, lambda one: one.calls.implements(_PREPARING)):
        stop = _end_of_fragment(trial) if trial.of_fragments else trial.batch.rows // 2
        for how in ("terminated", "truncated", "cut in mid-episode"):
            columns = {name: trial.batch[name].clone() for name in ("terminated", "truncated")}
            for name, column in columns.items():
                column[stop - 1] = how == name
            batch = trial.batch.with_columns(columns)
            usual, other = trial.prepare(batch), trial.prepare(_with_other_neighbours(batch, stop))
            for name in set(usual) - set(batch):
                left, right = usual[name][:stop].double(), other[name][:stop].double()
                if left.dim() == 1 and not _same_up_to_scale(left, right):
                    raise trial.failure(
                        "columns of an episode that do not depend on later ones in the batch",
                        f"{name!r} of the first {stop} rows, the last of them {how}, is "
                        f"{left.tolist()}, with others after them {right.tolist()}",
                        "mind fragments and their final observations",
                        _PREPARING,
                    )


def _end_of_fragment(trial: Trial) -> int:
    """The end of the first fragment with enough rows up to there to tell a leak from a scale."""
    ends = trial.batch["fragments"][:, 1]
    if "continued" in trial.batch:
        # With truncated BPTT, a fragment that the next one continues ends no episode.
        ends = ends[~trial.batch["continued"]]
    stops = [int(stop) for stop in ends]
    return next((stop for stop in stops if _FEWEST <= stop < trial.batch.rows), stops[0])


def _with_other_neighbours(batch: Batch, stop: int) -> Batch:
    """The batch with other rewards and observations in all rows from `stop` on."""
    rows = torch.arange(batch.rows)
    rows[stop:] = rows[stop:].flip(0)
    names = [name for name in ("observations", "next_observations") if name in batch]
    columns = {name: tree_map(lambda leaf: leaf[rows], batch[name]) for name in names}
    rewards = batch["rewards"][rows]
    rewards[stop:] += 5.0
    return batch.with_columns({**columns, "rewards": rewards})


def _same_up_to_scale(left: Tensor, right: Tensor) -> bool:
    """Whether two columns are equal, or differ by a shift and a scale as after normalisation."""
    if torch.allclose(left, right, 1e-4, 1e-5):
        return True
    if len(left) < _FEWEST or not left.std() or not right.std():
        return False
    return bool(numpy.corrcoef(left.numpy(), right.numpy())[0, 1] > 1 - 1e-6)


@check("algorithm")
def updates_depend_on_every_column(subject: Subject) -> None:
    """Observations, actions, rewards and what else the feed gives change the update, row by row."""
    for trial in each_trial(subject):
        trial.expect_repeatable(trial.batch)
        for name, before, after, hint in _other_columns(trial):
            if not trial.after(after).difference(trial.after(before)):
                raise trial.failure(f"another update for other {name!r}", "the same one", hint)


def _other_columns(trial: Trial) -> Iterator[tuple[str, Batch, Batch, str]]:
    """The name of a column, batches with two of it, and a hint."""
    batch = trial.batch
    rewards, actions, observed = batch["rewards"], batch["actions"], batch["observations"]
    if not trial.subject.learns_from_logs:
        # Imitation has no use for them.
        order = actions.reshape(batch.rows, -1).double().sum(1).argsort()
        by_action = torch.empty_like(rewards)
        by_action[order] = rewards.sort().values
        if bool((actions == actions[0]).all()):
            # Where one action was taken all along, it makes no difference which row earned what.
            by_action = 2 * rewards + 1
        hint = "rewards belong to rows; (n, 1) and (n,) broadcast to (n, n)"
        yield "rewards", batch, batch.with_columns({"rewards": by_action}), hint
    if not torch.equal(actions.flip(0), actions):
        flipped = batch.with_columns({"actions": actions.flip(0)})
        yield "actions", batch, flipped, "what the action was matters"
    if first_leaf(observed).float().std() > 0:
        flipped = tree_map(lambda leaf: leaf.flip(0), observed)
        changed = batch.with_columns({"observations": flipped})
        yield "observations", batch, changed, "what was observed"
    if not trial.has_next or trial.case.one_step or not _bootstraps(trial):
        return
    discounts = batch.get("discounts")
    if discounts is not None and bool((discounts != discounts[0]).any()):
        going = trial.with_ends()
        hint = 'rows span several steps: use batch["discounts"], not gamma'
        yield "discounts", going, going.with_columns({"discounts": discounts * 0.5}), hint


@check("algorithm")
def errors_pull_values(subject: Subject) -> None:
    """The further a target is above an action value or quantile, the more the loss raises it.

    The q-th quantile is pulled up q times as much as it is pulled up and down.
    """
    reason = "forward_train gives no q_values or quantiles whose gradients follow rewards"

    def applies(trial: Trial) -> Any:
        return trial.has_next and not trial.of_fragments and _pulls(trial, 0.0)[1]

    for trial in each_trial(subject, applies, reason):
        rewards = [-_FAR, *torch.linspace(-4.0, 4.0, 17).tolist(), _FAR]
        outputs, pulls = zip(*(_pulls(trial, reward) for reward in rewards), strict=True)
        for name in pulls[0]:
            pulled = [pull[name] for pull in pulls]
            quantiles = _fractions(trial, outputs[0], pulled[0])
            steps = torch.stack(pulled[1:-1]).diff(dim=0)
            # Gradients: the more they pull up, the lower they are.
            if float(steps.max()) > 1e-3 * float(torch.stack(pulled[1:-1]).abs().max()):
                raise trial.failure(
                    f"gradients of {name!r} that fall as the target rises",
                    f"they rise by {float(steps.max()):.2g} for a reward that is 0.5 higher",
                    "the sign of the error; both parts of a Huber loss have the same slope",
                    "compute_loss_for_module",
                )
            if quantiles is None:
                continue
            down, up = (_by_quantile(pull, quantiles) for pull in (pulled[0], pulled[-1]))
            shares = up / (up + down)
            if not torch.allclose(shares, quantiles.expand_as(shares), 0.02, 0.01):
                raise trial.failure(
                    f"quantiles in {name!r} pulled up by q, and down by 1 - q, of a far target",
                    f"up by {shares.flatten()[:4].tolist()} of both for q = "
                    f"{quantiles.flatten()[:4].tolist()}",
                    "errors = target - quantile, and |q - (error < 0)|",
                    "compute_loss_for_module",
                )


def _pulls(trial: Trial, reward: float) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Outputs, and gradients of action values and quantiles, where all rows end with a reward."""
    ended = {
        "rewards": torch.full_like(trial.batch["rewards"], reward),
        "terminated": torch.ones(trial.batch.rows, dtype=torch.bool),
        "truncated": torch.zeros(trial.batch.rows, dtype=torch.bool),
    }
    batch = trial.batch.with_columns(ended)
    outputs, found = trial.gradients_of_outputs(batch, lambda part: part.dim() > 1)
    return outputs, {
        name: pull.double().cpu()
        for name, pull in found.items()
        if name == "q_values" or _fractions(trial, outputs, pull) is not None
    }


def _fractions(trial: Trial, outputs: Mapping[str, Any], pull: Tensor) -> Tensor | None:
    """The fractions of the quantiles along an axis of an output, shape (rows or 1, quantiles)."""
    heads = [one for one in trial.module.modules() if isinstance(one, QuantileHead)]
    own = [outputs[name] for name in ("fractions", "taus") if name in outputs]
    for one in [*own, *(head.fractions for head in heads[:1])]:
        fractions: Tensor = one.detach().double().cpu().reshape(-1, one.shape[-1])
        if pull.shape[1:].count(fractions.shape[1]) == 1 and len(fractions) in (1, len(pull)):
            return fractions
    return None


def _by_quantile(pull: Tensor, quantiles: Tensor) -> Tensor:
    """The size of a gradient per row and quantile, or per quantile where rows have the same."""
    axis = [*pull.shape].index(quantiles.shape[1], 1)
    axes = [other for other in range(1, pull.dim()) if other != axis]
    sizes = pull.abs().sum(axes) if axes else pull.abs()
    return sizes if len(quantiles) > 1 else sizes.sum(0, keepdim=True)


@check("algorithm")
def rows_are_learned_one_by_one(subject: Subject) -> None:
    """Each row of a batch belongs together: the order of rows makes no difference."""

    def applies(trial: Trial) -> bool:
        is_ordered = trial.of_fragments or trial.option("discount", 1.0) != 1.0
        return not is_ordered and not _draws(trial) and not is_sequential(trial)

    reason = "its rows are ordered, or its updates are random"
    for trial in each_trial(subject, applies, reason):
        batch = trial.batch
        order = torch.randperm(batch.rows, generator=torch.Generator().manual_seed(3))
        usual, reordered = trial.after(batch), trial.after(batch.select(order))
        if (found := reordered.difference(usual)) and not _keeps_rows(usual, reordered):
            raise trial.failure(
                "the same update for the same rows in another order",
                found,
                "look for roll, shapes that broadcast, and columns of other rows",
            )


def is_sequential(trial: Trial) -> bool:
    """Whether a closed form learns two batches otherwise in the other order.

    An exact posterior does not; one that is approximated around what is known by then does.
    """
    if trial.has_optimizers:
        return False
    half, known = trial.batch.rows // 2, []
    halves = [trial.batch.select(slice(0, half)), trial.batch.select(slice(half, None))]
    for batches in (halves, halves[::-1]):
        known.append(trial.after(*batches))
    return bool(known[0].difference(known[1])) and not _keeps_rows(*known)


def _keeps_rows(usual: Update, other: Update) -> bool:
    """Whether a table holds the same numbers in both, in another order: rows of batches."""
    others = tensors_of(other.weights)
    pairs = [
        (value.double(), others[path].double()) for path, value in tensors_of(usual.weights).items()
    ]
    return any(
        left.shape == right.shape
        and not torch.equal(left, right)
        and torch.equal(left.flatten().sort()[0], right.flatten().sort()[0])
        for left, right in pairs
    )


def _draws(trial: Trial) -> bool:
    """Whether an update draws random numbers."""
    generator = trial.learner.generator(trial.module_id)
    with trial.undone():
        before, random = generator.get_state(), trial.random
        trial.update(trial.batch)
        return bool(first_difference([before, random], [generator.get_state(), trial.random]))


@check("algorithm")
def importance_weights_scale_the_loss(subject: Subject) -> None:
    """The loss of a row is multiplied by its weight, from a prioritized feed or a log."""
    hint = 'multiply each row\'s loss by batch["weights"], then take the mean'

    def applies(trial: Trial) -> bool:
        return _is_prioritized(trial) or subject.learns_from_logs

    for trial in each_trial(subject, applies, "its feed gives no weights"):
        rewards = trial.batch["rewards"]
        weights = trial.batch.get("weights", torch.ones_like(rewards))
        once, twice = (
            trial.gradients(trial.prepare(trial.batch.with_columns({"weights": weights * times})))
            for times in (1, 2)
        )
        path, error = largest_difference({name: 2 * part for name, part in once.items()}, twice)
        if error > 1e-3:
            looked_for = "gradients twice as large for weights twice as large"
            raise trial.failure(looked_for, f"others for {path!r}", hint)
        first = torch.arange(trial.batch.rows) == 0
        ignored = trial.batch.with_columns({"weights": weights.masked_fill(first, 0.0)})
        other = ignored.with_columns({"rewards": rewards + 3.0 * first.to(rewards.dtype)})
        if found := trial.after(other).difference(trial.after(ignored)):
            looked_for = "an update that ignores a row of weight 0"
            raise trial.failure(looked_for, f"it depends on the row's reward: {found}", hint)


def _is_prioritized(trial: Trial) -> bool:
    """Whether the feed draws by priority."""
    return "weights" in trial.batch and "indices" in trial.batch


@check("algorithm")
def priorities_grow_with_errors(subject: Subject) -> None:
    """A prioritized feed gets one priority per row, not negative, larger for larger errors."""
    for trial in each_trial(subject, _is_prioritized, "its feed draws no batches by priority"):
        means = []
        for shift in (0.0, 3.0, -3.0):
            rewards = trial.batch["rewards"] + shift
            rows = trial.after(trial.batch.with_columns({"rewards": rewards})).rows
            priority = rows.get("priority", torch.zeros(0))
            is_sound = priority.shape == rewards.shape and bool((priority >= 0).all())
            means.append(float(priority.double().mean()) if is_sound else math.nan)
        usual, more, less = means
        if not max(more, less) > usual:
            raise trial.failure(
                "one priority per row, higher for rewards that are further from what was predicted",
                f"a mean of {usual:.3g}; {more:.3g} and {less:.3g} for rewards 3 higher and lower",
                'Loss(rows={"priority": …}), the absolute value of the error',
                "compute_loss_for_module",
            )


@check("algorithm")
def masked_actions_are_not_learned(subject: Subject) -> None:
    """Outputs of `forward_train` for masked actions get no gradient: no loss depends on them."""
    masked = [one for one in subject.cases if one.masked]

    def applies(trial: Trial) -> Any:
        return "action_mask" in trial.batch and _of_actions(trial)

    reason = "its batches have no action_mask, or forward_train gives nothing of it"
    for trial in each_trial(subject, applies, reason, cases=masked):
        forbidden = trial.batch["action_mask"] == 0
        for name, gradient in _of_actions(trial).items():
            wrong = float(gradient[forbidden].abs().max())
            if wrong > 1e-4 * float(gradient.abs().max()):
                raise trial.failure(
                    f"a loss that does not depend on {name!r} of masked actions",
                    f"a gradient of up to {wrong:.2g}",
                    'log-probabilities and entropies under batch["action_mask"]',
                    "compute_loss_for_module",
                )


def _of_actions(trial: Trial) -> dict[str, Tensor]:
    """The gradient of each output of `forward_train` of a shape (rows, actions, …)."""
    shape = (trial.batch.rows, trial.num_actions)
    return trial.gradients_of_outputs(trial.batch, lambda part: part.shape[:2] == shape)[1]


@check("algorithm")
def masks_of_next_actions_are_used(subject: Subject) -> None:
    """Values of next states are those of actions that `next_action_mask` allows."""
    masked = [one for one in subject.cases if one.masked and not one.one_step]

    def applies(trial: Trial) -> bool:
        return "next_action_mask" in trial.batch

    reason = "its feed gives no next_action_mask"
    for trial in each_trial(subject, applies, reason, cases=masked):
        mask = trial.batch["next_action_mask"]
        masks = [*torch.eye(mask.shape[1]), torch.ones(mask.shape[1])]
        *only, free = (
            trial.after(trial.with_ends().with_columns({"next_action_mask": row.expand_as(mask)}))
            for row in masks
        )
        differing = sum(bool(one.difference(free)) for one in only)
        if differing < len(only) - 1 or not only[0].difference(only[1]):
            raise trial.failure(
                "another update where next_action_mask allows a single action",
                "the same one",
                'mask the values of next actions with batch["next_action_mask"]',
            )
