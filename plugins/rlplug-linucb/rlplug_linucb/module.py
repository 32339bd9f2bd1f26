"""LinUCBModule and LinTSModule: they choose arms, and learn from rewards in closed form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import attrs
import numpy
import torch
from torch import Tensor

from rlplug import Acted, ActInput, Module
from rlplug.bandits import BanditBatch
from rlplug.bandits.probability import allowed_arms, gaussian_best, greedy_probabilities
from rlplug.config.schedule import resolve
from rlplug.errors import RunFailedError
from rlplug.nn import masked
from rlplug.spaces import as_array
from rlplug_linucb.config import LinearOptions, LinTSConfig, LinUCBConfig
from rlplug_linucb.ridge import ArrayModule, Estimates, Floats, upper_confidence_bound
from rlplug_linucb.rows import MODELS, Disjoint, Layout, Model, Seen, model_name

__all__ = ["Columns", "Draws", "LinTSModule", "LinUCBModule"]

Columns: TypeAlias = tuple[Seen, Any, Any, Any]
"""What was seen, and arms, rewards and weights (None: 1) of the same rows."""

_TOLERANCE = 1e-12
"""Values that differ by less, relative to the best or to 1, are tied: they differ by rounding."""
_SMALLEST = 1e-30
"""Of a probability that was found to be 0 by rounding."""
_CHUNK = 8192
"""Rows that are copied at a time while they are summed."""
_DRAWS = 1000
"""From which probabilities of correlated arms are estimated."""
_AT_ONCE = 2**18
"""Scores that are drawn together."""


class LinUCBModule(ArrayModule, Module):
    """A linear bandit: score, choose, update; it can be used without a run.

    Observations are an array of contexts (n, d), or a mapping with `context`, `arms` (n, arms, f)
    and `action_mask`, as the layout says. All that it learns is in its `state_dict`.
    """

    score_name: ClassVar[str] = "ucb"
    """The extra that tells by what an arm was chosen."""

    alpha: Floats

    def __init__(self, layout: Layout, config: LinUCBConfig | None = None) -> None:
        super().__init__()
        config = resolve(LinUCBConfig() if config is None else config, 0)
        self.layout = layout
        self.model: Model = MODELS[model_name(layout, config)](layout, config)
        # As a plain attribute it is found ten times as fast.
        vars(self)["model"] = self.model
        self.register_buffer("alpha", torch.tensor([float(config.alpha)], dtype=torch.float64))
        self.show_arrays()

    def get_extra_state(self) -> Tensor:
        """The names of arms: each regression keeps its own, whatever arms a module had."""
        return torch.tensor(list("\0".join(self.layout.arm_names).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Take over the names of arms."""
        if names := bytes(state.tolist()).decode():
            self._set_names(names.split("\0"))

    # -- acting --------------------------------------------------------------------------------

    def forward_exploration(self, act: ActInput) -> Acted:
        """The arms of the highest bound (or draw); ties are broken by `act.random`."""
        seen = self.read(act.observations, act.action_mask)
        scores = self.scores(seen, act.random)
        arms = _choose(scores[2], seen.mask, act.random)
        # Indexing by arrays would cost a single decision as much as its bounds.
        row = 0 if len(arms) == 1 else numpy.arange(len(arms))
        chosen = row, (slice(arms[0], arms[0] + 1) if len(arms) == 1 else arms)
        extras = {
            "pred_label": scores[0][chosen],
            "pred_sigma": scores[1][chosen],
            self.score_name: scores[2][chosen],
        }
        if act.wants_log_prob:
            shares = self.probabilities(seen, scores, act.timestep)[chosen]
            extras["log_prob"] = numpy.log(numpy.maximum(shares, _SMALLEST)).astype(numpy.float32)
        return Acted(arms, extras=extras)

    def forward_inference(self, act: ActInput) -> Acted:
        """The arms of the highest predicted reward; of equal ones, the first."""
        seen = self.read(act.observations, act.action_mask)
        return Acted(_choose(self.model.predict(seen)[0], seen.mask, None))

    def forward_export(self, act: ActInput) -> Acted:
        """The arms of the highest predicted reward, in torch."""
        if not torch.compiler.is_compiling():
            self.model.refresh()
        context, arms, mask = self.layout.parts(act.observations, act.action_mask)
        if not self.layout.context_dim and not self.layout.arm_dim:
            shown = mask if context is None else context
            context = torch.ones((shown.shape[0], 1))
        context, arms = (None if part is None else part.double() for part in (context, arms))
        return Acted(masked(self.model.mean(context, arms, torch), mask).argmax(1))

    def action_probabilities(self, act: ActInput) -> Any:
        """Probability (n, arms) of each arm under `forward_exploration`."""
        seen = self.read(act.observations, act.action_mask)
        scores = self.scores(seen, numpy.random.default_rng([1, act.timestep, 1]))
        return self.probabilities(seen, scores, act.timestep)

    def choose(
        self, observations: Any, random: Any, action_mask: Any = None, alpha: float | None = None
    ) -> Any:
        """The actions of `forward_exploration`, one per row; `alpha` is that of this call."""
        seen = self.read(observations, action_mask)
        return _choose(self.scores(seen, random, alpha)[2], seen.mask, random)

    def score(
        self, observations: Any, alpha: Any = None, action_mask: Any = None, random: Any = None
    ) -> Any:
        """Predicted reward, its standard deviation and the bound of every arm of every row.

        Of absent arms the reward and the bound are -inf, the deviation is 0.
        """
        seen = self.read(observations, action_mask)
        scores = self.scores(seen, random, alpha)
        if seen.mask is not None:
            present = allowed_arms(seen.mask, scores[2].shape)
            absent = -numpy.inf, 0.0, -numpy.inf
            scores = type(scores)(*map(numpy.where, (present,) * 3, scores, absent))
        return scores

    def read(self, observations: Any, action_mask: Any = None, rows: int = 1) -> Seen:
        """The parts of observations; `action_mask` takes precedence over theirs.

        Without features of contexts or arms they only show the number of rows; None has `rows`.
        """
        layout = self.layout
        if type(observations) is numpy.ndarray and action_mask is None:
            # The fast path: a single array.
            if layout.arm_dim:
                return Seen(None, observations)
            if layout.context_dim:
                return Seen(observations)
        parts = layout.parts(observations, action_mask)
        context, arms, mask = (None if part is None else as_array(part) for part in parts)
        if not layout.context_dim and not layout.arm_dim:
            shown = mask if context is None else context
            context = numpy.ones((rows if shown is None else len(shown), 1))
        return Seen(context, arms, mask)

    def scores(self, seen: Seen, random: Any, alpha: float | None = None) -> Any:
        """The three scores of every arm, each (n, arms)."""
        mean, variance = self.model.predict(seen)
        return upper_confidence_bound(mean, variance, self.alpha.item() if alpha is None else alpha)

    def probabilities(self, seen: Seen, scores: Any, timestep: int) -> Floats:
        """1 over the number of arms that are tied for the highest bound, (n, arms)."""
        return greedy_probabilities(scores.ucb, seen.mask, _TOLERANCE)

    # -- learning ------------------------------------------------------------------------------

    def update(self, observations: Any, actions: Any, rewards: Any, weights: Any = None) -> None:
        """Learn the rewards of the chosen arms; a row of weight w counts as w such rows."""
        self.learn_columns(*self.columns(observations, actions, rewards, weights))

    def learn(self, batch: BanditBatch) -> None:
        """Learn the labels (rewards, as a rule) of a batch, with its effective weights."""
        weights = batch.effective_weight if batch.weighted else None
        self.update(batch.observations, batch.actions, batch.label, weights)

    def statistics(
        self, observations: Any, actions: Any, rewards: Any, weights: Any = None
    ) -> list[Tensor]:
        """The sums of these rows, to be added to those of other learners and absorbed."""
        return self.sum_columns(*self.columns(observations, actions, rewards, weights))

    def absorb(self, statistics: Sequence[Tensor], rows: int) -> None:
        """Add `statistics`; `rows` is the number of rows of each learner, for the discount."""
        self.model.absorb([as_array(total) for total in statistics], rows)

    def discount_(self, gamma: float) -> None:
        """Multiply the weight of all data so far by `gamma`."""
        self.model.discount_(gamma)

    def solved(self) -> Mapping[str, int]:
        """How many inverses were computed, and how many of those matrices were singular."""
        refreshed, pseudo_inverted = self.model.solutions.tolist()
        return {"refreshed": refreshed, "pseudo_inverted": pseudo_inverted}

    def estimates(self) -> Estimates:
        """A, b, A⁻¹ and theta, of every arm or of the regression that all share."""
        return self.model.estimates()

    def columns(self, observations: Any, actions: Any, rewards: Any, weights: Any) -> Columns:
        """What was seen, and arms, rewards and weights as arrays of equal length."""
        rewards = as_array(rewards).reshape(-1)
        seen = self.read(observations, rows=len(rewards))
        arms = as_array(actions).reshape(-1)
        if arms.dtype.kind not in "iu":
            # Names, or what is none: a float is refused.
            arms = numpy.array([self.layout.index_of(arm) for arm in arms.tolist()], int)
        observed = len(seen.arms if seen.context is None else seen.context)
        if weights is not None:
            weights = as_array(weights).reshape(-1).astype(float)
            if (weights < 0.0).any():
                raise _bad_row("weights", weights < 0.0, "are negative")
        counts = {observed, len(arms), len(rewards), len(rewards if weights is None else weights)}
        if len(counts) > 1:
            raise RunFailedError(
                f"rlplug-linucb: columns of {sorted(counts)} rows were given.",
                "try: one observation, action and reward per row",
            )
        count = self.layout.num_arms
        # Reductions of a single row would cost as much as its update.
        ends = arms.tolist() if len(arms) == 1 else [arms.min(initial=0), arms.max(initial=0)]
        if not 0 <= ends[0] <= ends[-1] < count:
            raise _bad_row("arms", (arms < 0) | (arms >= count), f"are none of 0 to {count - 1}")
        return seen, arms, rewards, weights

    def learn_columns(self, seen: Seen, arms: Any, rewards: Any, weights: Any) -> None:
        """Learn such columns: row by row, or many at once by their sums."""
        if len(arms) > self.model.most_rank_one:
            self.absorb(self.sum_columns(seen, arms, rewards, weights), len(arms))
            return
        groups, x, r = self.model.rows(seen, arms, rewards)
        x, r = x.astype(float, copy=False), r.astype(float, copy=False)
        squares = numpy.vdot(x, x) + numpy.vdot(r, r)
        if not math.isfinite(squares if weights is None else squares + weights.sum()):
            raise _not_finite(rewards=rewards, weights=weights, features=x)
        for row, group in enumerate(groups.tolist()):
            weight = 1.0 if weights is None else float(weights[row])
            self.model.learn(group, x[row], r[row], weight)

    def sum_columns(self, seen: Seen, arms: Any, rewards: Any, weights: Any) -> list[Tensor]:
        """The sums of such columns, whose rows are built in chunks."""
        sums = [numpy.zeros_like(total) for total in self.model.sums()]
        for start in range(0, len(arms), _CHUNK):
            part = slice(start, start + _CHUNK)
            rows = self.model.rows(seen.part(part), arms[part], rewards[part])
            self.model.add_rows(sums, *rows, None if weights is None else weights[part])
        if not all(math.isfinite(total.sum()) for total in sums):
            raise _not_finite(
                rewards=rewards, weights=weights, context=seen.context, arms=seen.arms
            )
        return [torch.from_numpy(total) for total in sums]

    # -- arms that come and go -----------------------------------------------------------------

    def add_arm(self, name: str = "") -> int:
        """Add an arm without data, after the others; returns its index."""
        names, count = self.layout.arm_names, self.layout.num_arms
        if bool(name) != bool(names) or name in names:
            raise RunFailedError(
                f"rlplug-linucb: an arm cannot be added as {name!r}, the arms are "
                f"{', '.join(names) or 'numbered'}.",
                "try: a new name where arms have names, none where they have not",
            )
        self.model.rearrange(range(count), 1)
        self._set_names([*names, name], count + 1)
        return count

    def remove_arm(self, arm: int | str) -> None:
        """Remove an arm, given by index or name; arms after it move up by one.

        The regression that arms share keeps what it learned.
        """
        gone, names = self.layout.index_of(arm), self.layout.arm_names
        kept = [place for place in range(self.layout.num_arms) if place != gone]
        self.model.rearrange(kept, 0)
        self._set_names([names[place] for place in kept if names], len(kept))

    def _set_names(self, names: Sequence[str], count: int = 0) -> None:
        named = tuple(filter(None, names))
        self.layout = attrs.evolve(self.layout, num_arms=count or len(names), arm_names=named)


class Draws(NamedTuple):
    """Scores of every arm, each of shape (n, arms)."""

    pred_label: Any
    """Predicted reward."""
    pred_sigma: Any
    """Standard deviation of the prediction, for noise of unit variance."""
    sampled: Any
    """Reward predicted by coefficients drawn from the posterior N(theta, v² A⁻¹)."""


class LinTSModule(LinUCBModule):
    """Linear Thompson sampling (Agrawal and Goyal, 2013): its `alpha` is the option `v`.

    `score` needs a generator, `random`.
    """

    score_name: ClassVar[str] = "sampled"

    def __init__(self, layout: Layout, config: LinTSConfig | None = None) -> None:
        config = resolve(LinTSConfig() if config is None else config, 0)
        options = {field.name: getattr(config, field.name) for field in attrs.fields(LinearOptions)}
        super().__init__(layout, LinUCBConfig(alpha=config.v, **options))

    def scores(self, seen: Seen, random: Any, alpha: float | None = None) -> Any:
        """The three scores of every arm, each (n, arms); every row gets draws of its own."""
        mean, variance = self.model.predict(seen)
        alpha = self.alpha.item() if alpha is None else alpha
        deviation = alpha * self.model.draw(seen, random, 1)[..., 0] if alpha else 0.0
        return Draws(mean, numpy.sqrt(variance), mean + deviation)

    def probabilities(self, seen: Seen, scores: Any, timestep: int) -> Floats:
        """Of each arm's draw being the highest, (n, arms).

        Estimated where draws of arms are correlated; regressions of their own are independent.
        """
        alpha = self.alpha.item()
        if alpha == 0.0:
            return greedy_probabilities(scores.pred_label, seen.mask, _TOLERANCE)
        if isinstance(self.model, Disjoint):
            return gaussian_best(scores.pred_label, alpha * scores.pred_sigma, seen.mask)
        # Of their own, so that nothing else is chosen because probabilities are told.
        random = numpy.random.default_rng([1, timestep])
        # One more than how often, so that nothing that was chosen has probability 0.
        wins = greedy_probabilities(scores.sampled, seen.mask)
        left, together = _DRAWS, max(_AT_ONCE // wins.size, 1)
        while left > 0:
            times = min(left, together)
            deviation = alpha * self.model.draw(seen, random, times)
            sampled = numpy.moveaxis(scores.pred_label[..., None] + deviation, 2, 0)
            mask = None if seen.mask is None else numpy.tile(seen.mask, (times, 1))
            best = greedy_probabilities(sampled.reshape(-1, wins.shape[1]), mask)
            wins += best.reshape(sampled.shape).sum(0)
            left -= together
        return wins / (_DRAWS + 1)


def _choose(values: Any, mask: Any, random: numpy.random.Generator | None) -> Any:
    """The arm of the highest value in each row of (n, arms), among those that the mask allows.

    Ties are broken uniformly at random; without a generator, in favour of the first arm.
    """
    if mask is not None:
        values = numpy.where(allowed_arms(mask, values.shape), values, -numpy.inf)
    best = values.argmax(1)
    if len(values) == 1:
        # Single decisions should be fast.
        (row,) = values
        top = row.item(best.item())
        if not math.isfinite(top):
            raise _not_finite(scores=values)
        if random is not None:
            (tied,) = (row >= top - _TOLERANCE * max(1.0, abs(top))).nonzero()
            if len(tied) > 1:
                best[0] = tied[random.integers(len(tied))]
        return best
    # argmax returns the place of a NaN if there is one.
    top = values[numpy.arange(len(values)), best]
    if not numpy.isfinite(top).all():
        raise _not_finite(scores=top)
    if random is not None:
        tied = values >= (top - _TOLERANCE * numpy.maximum(1.0, abs(top)))[:, None]
        rows = numpy.flatnonzero(tied.sum(1) > 1)
        draws = random.random((len(rows), values.shape[1]))
        best[rows] = numpy.where(tied[rows], draws, -1.0).argmax(1)
    return best


def _not_finite(**columns: Any) -> RunFailedError:
    """The error for what cannot be learned or chosen by: names the first such column and row."""
    for name, column in columns.items():
        if column is not None and not numpy.isfinite(column).all():
            return _bad_row(name, ~numpy.isfinite(column), "are not finite")
    return _bad_row("squares of features and rewards", numpy.ones(1), "are too large")


def _bad_row(name: str, bad: Any, why: str) -> RunFailedError:
    return RunFailedError(
        f"rlplug-linucb: {name} of row {numpy.argwhere(bad)[0][0]} {why}.",
        "nothing was changed; try: leave such rows out, or impute the values",
    )
