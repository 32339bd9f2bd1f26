"""What looks wrong with a run, in sentences, from the metrics that it reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy

from rlplug.quantities import format_number
from rlplug.review.history import NO_VALUES, History, Series

__all__ = ["diagnose"]

FEWEST = 5
"""Reports of a metric below which nothing is said of it."""


def diagnose(history: History, options: Mapping[str, str], steps: int) -> list[str]:
    """A sentence for each sign of a known problem; empty where nothing looks wrong.

    `options` are those that differ from the defaults, `steps` is the length of the whole run.
    """
    run = _Run(history, options, steps)
    return [sentence for check in _CHECKS for sentence in check(run)]


class _Run:
    def __init__(self, history: History, options: Mapping[str, str], steps: int) -> None:
        self.history, self.steps = history, steps
        self._options = options

    def option(self, name: str) -> float | None:
        """The value of a numeric option of the algorithm; None if it is the default."""
        try:
            return float(self._options[f"algorithm.{name}"])
        except (KeyError, ValueError):
            return None

    @property
    def is_noisy(self) -> bool:
        """Whether noisy layers explore."""
        return self._options.get("algorithm.noisy") == "true"

    def series(self, name: str) -> Series:
        """The finite values of a metric; none if there are only few."""
        steps, values = self.history.get(name, NO_VALUES)
        known = numpy.isfinite(values)
        return Series(steps[known], values[known]) if known.sum() >= FEWEST else NO_VALUES

    def each(self, name: str) -> Iterator[tuple[str, Series]]:
        """A metric and its variants: of several modules, optimizers or terms of a loss."""
        for key in sorted(self.history):
            if key == name or key.startswith(f"{name}/"):
                series = self.series(key)
                if len(series.values):
                    yield key, series

    @property
    def returns(self) -> Series:
        """Mean returns of evaluations, else of training episodes."""
        evaluations = self.series("eval/return_mean")
        return evaluations if len(evaluations.values) else self.series("rollout/return_mean")

    def improved(self, since: float | None = None) -> bool:
        """Whether returns became better after this step, by default after their first fifth.

        Without returns, nothing shows that they did not.
        """
        steps, values = self.returns
        if not len(steps):
            return True
        end = steps[max(len(steps) // 5, 1) - 1] if since is None else since
        first, later = values[steps <= end], values[steps > end]
        if not len(first) or not len(later):
            return True
        spread = max(float(numpy.abs(first).max()), 1e-8) * 0.1
        return bool(later.max() > first.max() + spread)


def _entropy(run: _Run) -> Iterator[str]:
    for name, (steps, values) in run.each("train/entropy"):
        low = (values >= 0) & (values < 0.05 * values[0])
        # From where on it stayed low.
        start = len(low) - int(numpy.argmin(low[::-1])) if not low.all() else 0
        if low[-1] and steps[start] < run.steps / 3 and not run.improved(float(steps[start])):
            yield (
                f"{name} fell from {format_number(values[0])} to {format_number(values[start])} by "
                f"step {steps[start]:,.0f}, and returns did not improve after it: the policy "
                "hardly explores. Try a larger ent_coef or a smaller learning_rate."
            )


def _explained_variance(run: _Run) -> Iterator[str]:
    for name, (_, values) in run.each("train/explained_variance"):
        # Without any learning, it is 0 up to noise.
        if len(values) >= 2 * FEWEST and values.max() < 0.01:
            yield (
                f"{name} was never above {format_number(max(values.max(), 0))}: the value function "
                "predicts returns no better than their mean. Check the rewards and vf_coef."
            )


def _kl(run: _Run) -> Iterator[str]:
    target = run.option("target_kl") or run.option("kl_target")
    if not target:
        return
    for name, (_, values) in run.each("train/approx_kl"):
        median = float(numpy.median(values))
        if median > 3 * target:
            yield (
                f"{name} was {format_number(median)} in the median, {median / target:.0f} times "
                f"the target, {format_number(target)}. Try a smaller learning_rate or fewer "
                "n_epochs."
            )


def _clip_fraction(run: _Run) -> Iterator[str]:
    for name, (_, values) in run.each("train/clip_fraction"):
        median = float(numpy.median(values))
        if median > 0.7:
            yield (
                f"{name} was {format_number(median)} in the median: nearly every ratio leaves the "
                "clip range. Try a smaller learning_rate or fewer n_epochs."
            )


def _values(run: _Run) -> Iterator[str]:
    returns = numpy.abs(run.series("rollout/return_mean").values)
    for name, (_, values) in run.each("train/q_mean") if len(returns) else ():
        sizes = numpy.abs(values)
        last, middle = sizes[-1], sizes[len(sizes) // 2]
        if last > 10 * max(returns.max(), 1.0) and last > 2 * middle:
            yield (
                f"{name} reached {format_number(values[-1])} and was still growing, while returns "
                f"stayed within {format_number(returns.max())}: values diverge. "
                "Try a smaller learning_rate or gamma, or slower target updates."
            )


def _actions(run: _Run) -> Iterator[str]:
    _, values = run.series("eval/actions_at_bounds")
    share = float(numpy.median(values[len(values) // 2 :])) if len(values) else 0.0
    if share > 0.95 and not run.improved():
        yield (
            f"{100 * share:.0f} % of the actions in evaluations were at their bounds, and returns "
            "did not improve: the policy is saturated. Try a smaller learning_rate, or normalized "
            "observations."
        )


def _exploration(run: _Run) -> Iterator[str]:
    final, fraction = run.option("exploration_final_eps"), run.option("exploration_fraction")
    end = (0.2 if fraction is None else fraction) * run.steps
    if final == 0 and end < run.steps / 10 and not run.is_noisy:
        yield (
            f"epsilon is 0 from step {end:,.0f} of {run.steps:,} on (exploration_final_eps = 0): "
            "after learning_starts, no action is random. Try exploration_final_eps=0.05."
        )


def _rewards(run: _Run) -> Iterator[str]:
    _, rewards = run.series("rollout/reward_mean")
    if len(rewards) and not rewards.any():
        yield (
            "no reward other than 0 was seen in training. Check the environment's rewards, or try "
            "more exploration."
        )


def _evaluations(run: _Run) -> Iterator[str]:
    _, spreads = run.series("eval/return_std")
    _, means = run.series("eval/return_mean")
    if len(spreads) and not spreads.any() and numpy.ptp(means) == 0:
        yield (
            f"every episode of all {len(means)} evaluations had the return "
            f"{format_number(means[0])}: nothing that was learned shows in evaluations."
        )


def _gradients(run: _Run) -> Iterator[str]:
    for name, (_, norms) in run.each("train/grad_norm"):
        clipped = run.series(name.replace("grad_norm", "grad_norm_clipped")).values
        if len(clipped) == len(norms) and (norms > 100 * clipped).all() and not run.improved():
            before, after = (format_number(numpy.median(values)) for values in (norms, clipped))
            yield (
                f"{name} was {before} in the median and was clipped to {after}, in every report, "
                "and returns did not improve. Try a larger learner.max_grad_norm, or scaled "
                "rewards."
            )


def _learning_rate(run: _Run) -> Iterator[str]:
    for name, (steps, values) in run.each("train/learning_rate"):
        if values[-1] == 0:
            start = steps[len(values) - int(numpy.argmax(values[::-1] > 0))] if values.any() else 0
            if start < 0.9 * run.steps:
                yield (
                    f"{name} was 0 from step {start:,.0f} of {run.steps:,} on: nothing was learned "
                    "after it. Check its schedule."
                )


_CHECKS: tuple[Callable[[_Run], Iterator[str]], ...] = (
    *(_rewards, _evaluations, _entropy, _exploration, _learning_rate, _explained_variance),
    *(_kl, _clip_fraction, _values, _actions, _gradients),
)
