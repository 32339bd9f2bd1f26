"""Checks of options that algorithms of a family have: plugins name their families in `checks`.

What they expect of an option of a name is what papers and libraries mean by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor

from rlplug.batch import Batch
from rlplug.nn import QuantileHead
from rlplug.testing.cases import Case, act_input
from rlplug.testing.check import Check, check
from rlplug.testing.checks.probes import require_support, train
from rlplug.testing.comparison import cloned, largest_difference, to_array
from rlplug.testing.harness import make_harness
from rlplug.testing.probes import box_target, entropy_ahead, no_reward, reward_by_action
from rlplug.testing.report import DoesNotApply
from rlplug.testing.subject import Subject
from rlplug.testing.trial import Trial, each_trial

_FAR = 1e3
"""Of rewards: further from what is predicted than any loss takes for near."""
_LIMITS: Mapping[str, tuple[float, float, str]] = {
    "clip_range": (0.001, 0.5, "the mean of −min(ratio · A, clip(ratio) · A)"),
    "target_kl": (1e-6, 10.0, "Loss(stop=…) where the KL divergence is above it"),
    "kl_coef": (30.0, 0.01, "kl_coef · KL is added to the loss"),
    "clip_range_vf": (0.001, 100.0, "the mean of max((V − R)², (clip(V) − R)²)"),
}
"""Options → a strict value, one by which policies or values may change much, and the formula."""
_RARE = 30.0
"""How much likelier, in log-probability, an action was when it was taken than it is now."""

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
def actions_that_policies_avoid_teach_nothing(subject: Subject) -> None:
    """Where ratios to `log_prob` correct returns, what follows a rare action does not count."""
    hint = 'exp(log_prob of the policy − batch["log_prob"]), truncated from above'
    plain = {"normalize_advantage": False}
    # Normalization would spread a change of one row over all others.
    trials = each_trial(subject, _corrects, "nothing corrects returns by log_prob", changes=plain)
    for trial in trials:
        start, row = _middle(trial)
        rare, liked = (_taken(trial.batch, row, by) for by in (_RARE, -_RARE))
        ignored, counted = (
            max(_changes_by_rewards(trial, one, start, row)) for one in (rare, liked)
        )
        if ignored > 1e-3 or counted < 0.1:
            raise trial.failure(
                f"value targets up to row {row} that do not depend on rewards from there on where "
                "its action has become e³⁰ times less likely, and do where it has become likelier",
                f"changes of {ignored:.2g} and of {counted:.2g}",
                hint,
                "prepare_batch",
            )
        pair = (trial.gradients(one) for one in (rare, _paid(rare, row, row + 1)))
        if largest_difference(*pair)[1] > 1e-3:
            looked_for = (
                f"gradients that do not depend on the reward of row {row}, if it is as rare"
            )
            raise trial.failure(looked_for, "others", hint, "compute_loss_for_module")


def _middle(trial: Trial) -> tuple[int, int]:
    """The first row of the longest fragment, and one in its middle."""
    longest = max(trial.batch["fragments"].tolist(), key=lambda one: one[1] - one[0])
    return longest[0], sum(longest) // 2


def _corrects(trial: Trial) -> bool:
    """Whether any prepared column changes with the log-probability of acting."""
    if "log_prob" not in trial.batch or not trial.of_fragments:
        return False
    one = trial.prepare(trial.batch)
    others = [trial.prepare(_taken(trial.batch, _middle(trial)[1], by)) for by in (1.0, -1.0)]
    columns = [name for name in one if name not in trial.batch]
    return any(not torch.equal(one[name], other[name]) for name in columns for other in others)


def _changes_by_rewards(trial: Trial, batch: Batch, start: int, row: int) -> Iterator[float]:
    """By how much prepared columns up to a row change for other rewards from there on."""
    one, other = trial.prepare(batch), trial.prepare(_paid(batch, row, batch.rows))
    yield 0.0
    for name in one:
        # Advantages may be without the ratio of their own action.
        if name not in trial.batch and name != "advantages":
            yield float((one[name] - other[name])[start : row + 1].abs().max())


def _taken(batch: Batch, row: int, by: float) -> Batch:
    """The batch as if the action of a row had been so much likelier when it was taken."""
    column = batch["log_prob"].clone()
    column[row] += by
    return batch.with_columns({"log_prob": column})


def _paid(batch: Batch, first: int, stop: int) -> Batch:
    rewards = batch["rewards"].clone()
    rewards[first:stop] += 5.0
    return batch.with_columns({"rewards": rewards})


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
def kl_coefficient_aims_at_its_target(subject: Subject) -> None:
    """An adaptive `kl_coef` rises where the KL is above `kl_target`, and falls below it."""
    _require_option(subject, "kl_target")
    found = []
    for target in (1e-9, 1e3):
        config = subject.config(kl_coef=0.2, kl_target=target)
        results = make_harness(subject, config=config).train(4, as_a_run=True)
        found.append(float(next(iter(results[-1].values()))["kl_coef"]))
    if not found[0] > 0.2 > found[1]:
        raise subject.failure(
            "a kl_coef that rises from 0.2 for kl_target = 1e-9, and falls for 1,000",
            f"{found[0]:.3g} and {found[1]:.3g} after four updates",
        )


@check("algorithm")
def errors_pull_values(subject: Subject) -> None:
    """The further a target is above an action value or quantile, the more the loss raises it.

    The q-th output of a `QuantileHead` is pulled up q times as much as it is pulled down.
    """
    reason = "forward_train gives no values of actions that get gradients of whole steps"
    for trial in each_trial(subject, _gives_values, reason):
        rewards = [-_FAR, *torch.linspace(-4.0, 4.0, 17).tolist(), _FAR]
        pulls = [next(_pulls(trial, reward)) for reward in rewards]
        # Gradients: the more they pull up, the lower they are.
        steps = torch.stack(pulls[1:-1]).diff(dim=0)
        if float(steps.max()) > 1e-3 * float(torch.stack(pulls[1:-1]).abs().max()):
            raise trial.failure(
                "gradients of action values that fall as the target rises",
                f"they rise by {float(steps.max()):.2g} for a reward that is 0.5 higher",
                "the sign of the error; both parts of a Huber loss have the same slope",
                "compute_loss_for_module",
            )
        for head in _heads(trial):
            q = head.fractions.double().cpu()
            for pull, wanted in ((pulls[-1], q), (pulls[0], 1 - q)):
                size = pull.abs().sum((0, 1))
                if not torch.allclose(size / size.sum(), wanted / wanted.sum(), 0.02, 1e-6):
                    raise trial.failure(
                        "gradients in proportion to q where targets are far above the quantile q, "
                        "and to 1 - q far below",
                        f"{(size / size.sum()).tolist()}",
                        "errors = target - quantile, and |q - (error < 0)|",
                        "compute_loss_for_module",
                    )


def _heads(trial: Trial) -> list[QuantileHead]:
    return [one for one in trial.harness.module.modules() if isinstance(one, QuantileHead)]


def _gives_values(trial: Trial) -> bool:
    is_fit = trial.has_next and not trial.of_fragments
    return is_fit and next(_pulls(trial, 0.0), None) is not None


def _pulls(trial: Trial, reward: float) -> Iterator[Tensor]:
    """The gradients of action values, or of quantiles, where all rows end with this reward."""
    batch = trial.batch.with_columns(
        {
            "rewards": torch.full_like(trial.batch["rewards"], reward),
            "terminated": torch.ones_like(trial.batch["terminated"]),
            "truncated": torch.zeros_like(trial.batch["truncated"]),
        }
    )
    ends = [len(one.fractions) for one in _heads(trial)[:1]]
    for name, gradient in trial.gradients_of_outputs(batch, *ends).items():
        if gradient.dim() == 2 + len(ends) and (ends or name == "q_values"):
            yield gradient.double().cpu()


@check("algorithm")
def conservative_penalty_lowers_other_actions(subject: Subject) -> None:
    """With `cql_alpha`, values of actions in the batch are raised, those of others are lowered."""
    _require_option(subject, "cql_alpha")
    for masked in (False, True):
        cases = [one for one in subject.cases if one.masked is masked and not one.one_step]
        for trial in each_trial(subject, cases=cases, changes={"cql_alpha": 100.0}):
            actions = trial.batch["actions"].long()
            taken = torch.nn.functional.one_hot(actions, trial.num_actions).bool()
            allowed = trial.batch["action_mask"] != 0 if masked else taken | True
            # Where one action is allowed, there is no other one to lower.
            several = (allowed.sum(1, keepdim=True) > 1).expand_as(allowed)
            for name, gradient in trial.gradients_of_outputs(trial.batch).items():
                if gradient.dim() > 2:
                    continue
                wrong = (taken & several & (gradient >= 0)) | (allowed & ~taken & (gradient <= 0))
                if bool((wrong | (~allowed & (gradient != 0))).any()):
                    raise trial.failure(
                        f"{name!r} that rise for actions taken, and fall for all others",
                        "others",
                        "log Σ exp Q(s, ·) − Q(s, a) over allowed actions, added to the loss",
                        "compute_loss_for_module",
                    )


@check("algorithm")
def loss_is_the_one_that_is_named(subject: Subject) -> None:
    """For `loss`, "mse" has gradients that grow with errors, those of "huber" have a bound."""
    _require_option(subject, "loss")
    for name, growth in (("mse", 2.0), ("huber", 1.0)):
        for trial in each_trial(subject, changes={"loss": name}):
            norms = []
            for size in (_FAR, 2 * _FAR):
                rewards = torch.full_like(trial.batch["rewards"], size)
                found = trial.gradients(trial.batch.with_columns({"rewards": rewards}))
                norms.append(sum(float((one.double() ** 2).sum()) for one in found.values()) ** 0.5)
            if norms[0] and abs(norms[1] / norms[0] - growth) > 0.1:
                raise trial.failure(
                    f"gradients {growth:g} times as large for errors twice as large",
                    f"{norms[1] / norms[0]:.2g} times",
                    "",
                    "compute_loss_for_module",
                )


@check("algorithm")
def policy_is_delayed(subject: Subject) -> None:
    """With `policy_delay`, some parameters move in every so many updates, and rest in others."""
    _require_option(subject, "policy_delay")
    harness = make_harness(subject, config=subject.config(policy_delay=3), steps=2)
    moves = dict.fromkeys(harness.parameters(), 0)
    for _ in range(6):
        before = cloned(harness.parameters())
        harness.train(1)
        for name, param in harness.parameters().items():
            moves[name] += not torch.equal(param, before[name])
    if 2 not in moves.values():
        raise subject.failure(
            "parameters that move in 2 of 6 updates with policy_delay = 3",
            "all that are trained move in other ones",
            "leave the actor's loss out in the other updates, not only the targets",
            "compute_loss_for_module",
        )


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
def entropy_keeps_imitation_random(subject: Subject) -> None:
    """Learning from logs, a large `ent_coef` leads to a higher metric `entropy` than none."""
    found = []
    for coefficient in (0.0, 3.0):
        harness = make_harness(subject, config=subject.config(ent_coef=coefficient), steps=16)
        batch = harness.batch()
        metrics = [harness.update(batch)["default"] for _ in range(100)]
        if "entropy" not in metrics[-1]:
            raise DoesNotApply("it reports no metric entropy")
        found += [float(metrics[0]["entropy"]), float(metrics[-1]["entropy"])]
    # Without a bonus it falls as the policy fits the batch; with a large one it hardly does.
    if not found[3] > (found[0] + found[1]) / 2:
        raise subject.failure(
            "an entropy that hardly falls in 100 updates with ent_coef = 3",
            f"{found[3]:.3g} after {found[2]:.3g} at first; {found[1]:.3g} with ent_coef = 0",
            "the entropy in the loss: its sign, its axis, its gradient",
        )


@check("algorithm")
def values_include_entropy(subject: Subject) -> None:
    """Values include the entropy of the policy ahead, as in SAC."""
    of_numbers = _goes_on(subject, partial(entropy_ahead, continuous=True), 4.0, 0.62, 1.0)
    of_choices = _goes_on(subject, partial(entropy_ahead, continuous=False), 1.0, 0.62, 1.0)
    if not (of_numbers or of_choices):
        raise DoesNotApply(_NOT_ACCEPTED)


@check("algorithm", quick=False)
def values_include_entropy_of_squashed_actions(subject: Subject) -> None:
    """That entropy is the one of actions between their bounds, which a higher reward outweighs."""
    # Ten steps of uniform actions in [−1, 1] are worth 0.5 · log 2 each, 2.6 in all at first.
    make = partial(entropy_ahead, continuous=True, high=1.0, reward=3.8)
    if not _goes_on(subject, make, 2.0, 0.0, 0.5):
        raise DoesNotApply(_NOT_ACCEPTED)


@check("algorithm", quick=False)
def learned_temperature_keeps_choices_open(subject: Subject) -> None:
    """With `ent_coef` = "auto", the better of two actions is likelier, but not certain."""
    drawn = _drawn(subject, reward_by_action, {"ent_coef": "auto"}, 4_000)
    if drawn is None:
        raise DoesNotApply(_NOT_ACCEPTED)
    if not 0.52 < float(drawn.mean()) < 0.98:
        raise subject.failure(
            "both actions drawn with ent_coef = 'auto', the one that is rewarded more often",
            f"it in {float(drawn.mean()):.1%}",
            "the loss of the temperature, log α · (entropy − target entropy), and that target",
        )


def _goes_on(
    subject: Subject, make: Callable[[], Any], size: float, low: float, high: float
) -> bool:
    """Require that first actions lead to more steps in a share of the episodes.

    Each step is worth its entropy. False: the options or the spaces are refused.
    """
    drawn = _drawn(subject, make, {"ent_coef": 0.5, "gamma": 0.95}, 8_000)
    if drawn is None:
        return False
    mean = float(drawn.mean()) if size == 1.0 else float(((drawn + 1) / size).mean())
    if not low <= mean <= high:
        raise subject.failure(
            f"a chance between {low:g} and {high:g} to go on, 0.5 if entropy does not count",
            f"{mean:.2f}",
            "targets with α · entropy of the next state, minus log(1 − tanh²) of squashed actions",
        )
    return True


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
        *(advantages_are_sums_of_td_errors, advantages_are_normalized),
        *(actions_that_policies_avoid_teach_nothing, limits_keep_policies_near),
        *(kl_coefficient_aims_at_its_target, entropy_keeps_policies_random),
    ),
    "action_values": (
        *(errors_pull_values, conservative_penalty_lowers_other_actions),
        loss_is_the_one_that_is_named,
    ),
    "maximum_entropy": (
        *(entropy_keeps_policies_random, values_include_entropy),
        *(values_include_entropy_of_squashed_actions, learned_temperature_keeps_choices_open),
    ),
    "delayed_policy": (policy_is_delayed,),
    "imitation": (entropy_keeps_imitation_random,),
}
"""The checks of each family; those of options that a plugin lacks do not apply."""
