"""LinUCBModule: chooses arms by upper confidence bounds, and learns from rewards in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy
import torch
from torch import Tensor, nn

from rlplug import Acted, ActInput, Module
from rlplug.bandits import BanditBatch
from rlplug.bandits.probability import allowed_arms, check_generator, greedy_probabilities
from rlplug.errors import RequestError, RunFailedError
from rlplug.nn import masked
from rlplug.quantities import is_number
from rlplug_linucb.arrays import Array, BufferViews, Estimates, HasEstimates, namespace
from rlplug_linucb.checks import (
    checked_columns,
    checked_numbers,
    checked_rows,
    checked_weights,
    chosen_ids,
    columns_of,
    non_finite,
    non_finite_scores,
)
from rlplug_linucb.choice import TOLERANCE, choose, with_log_prob
from rlplug_linucb.config import LinUCBConfig, config_of
from rlplug_linucb.hybrid import HybridRegressions, HybridSums
from rlplug_linucb.layout import Layout, ParsedObservations, is_name
from rlplug_linucb.linucb import RidgeRegressions, Scores, upper_confidence_bound
from rlplug_linucb.models import JointModel, Model, Rows, make_model
from rlplug_linucb.sums import Sums

__all__ = ["LinUCBModule"]

_CHUNK = 8192
"""Rows that are copied at a time while they are summed."""

_OPTIONAL = ("arm_names", *RidgeRegressions.optional_state)
"""What a state may lack: names, which it may have besides as well, and what is newer than it."""


class StrictState(nn.Module):
    """A module that refuses a state of another kind of bandit before anything is loaded."""

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """As in torch, but a state that does not fit changes nothing."""
        if strict:
            own, found = set(self.state_dict()), set(state_dict)
            if lacking := {one for one in own - found if not one.endswith(_OPTIONAL)}:
                raise _does_not_fit(f"it lacks {_listed(lacking)}")
            if more := {one for one in found - own if not one.endswith("arm_names")}:
                raise _does_not_fit(f"it has {_listed(more)}, which the module lacks")
        return super().load_state_dict(state_dict, strict, assign)


class LinUCBModule(HasEstimates, BufferViews, StrictState, Module):
    """A linear bandit: score, choose, update; it can be used without a run.

    Observations are an array of contexts (n, d), or a mapping with `context`, `arms` (n, arms, f)
    and `action_mask`, as the layout says. All that it learns is in its `state_dict`.
    """

    alpha: Tensor
    _alpha: Array

    def __init__(self, layout: Layout, config: LinUCBConfig | None = None) -> None:
        super().__init__()
        if not isinstance(layout, Layout):
            raise RequestError(
                f"rlplug-linucb: a module is made from a Layout, found {layout!r}.",
                "try: Layout(num_arms=3, context_dim=2)",
            )
        config = config_of(LinUCBConfig, config)
        self.layout = layout
        self.model: Model = make_model(layout, config)
        self.arm_ids = self.model.arm_ids
        # Registers the parameters; `self.model.regressions` is faster to look up.
        self.regressions = self.model.regressions
        self.register_buffer("alpha", torch.tensor([float(config.alpha)], dtype=torch.float64))
        self.renew_views()

    def make_views(self) -> dict[str, Any]:
        """A view of alpha."""
        return {"_alpha": self.alpha.numpy() if self.alpha.device.type == "cpu" else self.alpha}

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.layout.arm_names:
            names = "\0".join(self.layout.arm_names).encode()
            destination[f"{prefix}arm_names"] = torch.tensor(list(names), dtype=torch.uint8)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        # Each regression keeps the name of its arm, whatever arms this module had.
        saved = state_dict.pop(f"{prefix}arm_names", None)
        names = () if saved is None else tuple(bytes(saved.tolist()).decode().split("\0"))
        # Featured arms that share a regression may be any number: no shape tells how many.
        shared = self.layout.featured and isinstance(self.model, JointModel)
        own = self.state_dict(prefix=prefix)
        own.pop(f"{prefix}arm_names", None)
        for name, mine in own.items():
            if name in state_dict and state_dict[name].shape != mine.shape:
                raise _of_another_shape(name, state_dict[name].shape, mine.shape)
        if names and len(names) != self.layout.num_arms and not shared:
            raise _of_another_shape(f"{prefix}arm_names", (len(names),), (self.layout.num_arms,))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        if names and all(one in state_dict or one.endswith(_OPTIONAL) for one in own):
            self.layout = attrs.evolve(self.layout, num_arms=len(names), arm_names=names)
            self.model.fit(self.layout)

    @property
    def on_cpu(self) -> bool:
        """Whether NumPy arrays are read without a copy."""
        return self.model.regressions.on_cpu

    # -- acting --------------------------------------------------------------------------------

    def forward_exploration(self, act: ActInput) -> Acted:
        """The arms of the highest upper confidence bound; ties are broken by `act.random`."""
        parsed = self.layout.parse(act.observations, act.action_mask)
        scores = self._score(parsed, float(self._alpha[0]))
        acted = self.pick(parsed, scores, act.random)
        if act.wants_log_prob:
            shares = greedy_probabilities(scores.ucb, parsed.mask, TOLERANCE)
            return with_log_prob(acted, shares)
        return acted

    def action_probabilities(self, act: ActInput) -> Any:
        """1 over the number of arms that are tied for the highest bound, (n, arms)."""
        parsed = self.layout.parse(act.observations, act.action_mask)
        scores = self._score(parsed, float(self._alpha[0]))
        return greedy_probabilities(scores.ucb, parsed.mask, TOLERANCE)

    def forward_inference(self, act: ActInput) -> Acted:
        """The arms of the highest predicted reward; of equal ones, the first."""
        parsed = self.layout.parse(act.observations, act.action_mask)
        return Acted(self.pick(parsed, self._score(parsed, 0.0), None).actions)

    def forward_export(self, act: ActInput) -> Acted:
        """The arms of the highest predicted reward, in torch."""
        if self.arm_ids is not None:
            raise RunFailedError(
                "rlplug-linucb: a policy with arm_ids cannot be exported, which arm has which "
                "regression is looked up in a table.",
                "try: rlplug serve",
            )
        if not torch.compiler.is_compiling():
            self.regressions.refresh()
        context, arms, mask = self.layout.tensors(act.observations, act.action_mask)
        return Acted(masked(self.model.mean(context, arms), mask).argmax(1))

    def choose(
        self,
        observations: Any,
        random: numpy.random.Generator,
        action_mask: Any = None,
        alpha: float | None = None,
    ) -> Any:
        """The actions of `forward_exploration`, one per row; `alpha` is that of this call."""
        check_generator(random, "rlplug-linucb")
        parsed = self.layout.parse(observations, action_mask)
        alpha = float(self._alpha[0]) if alpha is None else self.width(alpha)
        arms = _best(parsed, self._score(parsed, alpha).ucb, random)
        return torch.from_numpy(arms) if parsed.as_tensors else arms

    def score(
        self, observations: Any, alpha: float | None = None, action_mask: Any = None
    ) -> Scores:
        """Predicted reward, its standard deviation and the UCB of every arm of every row.

        Of absent arms the reward and the UCB are -inf, the deviation is 0.
        """
        parsed = self.layout.parse(observations, action_mask)
        scores = self._score(parsed, self.width(alpha))
        return Scores(*self.checked_scores(parsed, scores))

    def confidence_width(
        self, observations: Any, alpha: float | None = None, action_mask: Any = None
    ) -> Any:
        """By how much the UCB of every arm exceeds its predicted reward; 0 for absent arms."""
        alpha = self.width(alpha)
        return alpha * self.score(observations, alpha, action_mask).pred_sigma

    def set_alpha(self, alpha: float) -> None:
        """Set the width of the confidence bound."""
        alpha = self.width(alpha)
        if float(self._alpha[0]) != alpha:
            self._alpha[0] = alpha

    def checked_scores(self, parsed: ParsedObservations, scores: Sequence[Any]) -> list[Any]:
        """Three scores with absent arms left out; refused if one of a present arm is not finite."""
        mean, sigma, score = scores
        finite = numpy.isfinite(score)
        if parsed.mask is not None:
            present = allowed_arms(parsed.mask, score.shape)
            finite = finite | ~present
            mean, score = (numpy.where(present, one, -numpy.inf) for one in (mean, score))
            sigma = numpy.where(present, sigma, 0.0)
        if not finite.all():
            raise non_finite_scores(parsed)
        checked = [mean, sigma, score]
        return [torch.from_numpy(one) for one in checked] if parsed.as_tensors else checked

    def pick(
        self,
        parsed: ParsedObservations,
        scores: Sequence[Any],
        random: numpy.random.Generator | None,
        by: str = "ucb",
    ) -> Acted:
        """The arms of the highest last score, and their three scores; `by` names the last."""
        arms = _best(parsed, scores[-1], random)
        rows = numpy.arange(len(arms))
        names = ("pred_label", "pred_sigma", by)
        extras = {name: one[rows, arms] for name, one in zip(names, scores, strict=True)}
        if parsed.as_tensors:
            tensors = {name: torch.from_numpy(values) for name, values in extras.items()}
            return Acted(torch.from_numpy(arms), extras=tensors)
        return Acted(arms, extras=extras)

    def estimates(self) -> Estimates:
        """A, b, A⁻¹ and theta at once."""
        return self.model.estimates()

    def shared_estimates(self) -> Estimates | None:
        """Of the regression that all arms of a hybrid model share; None for other models."""
        regressions = self.model.regressions
        if not isinstance(regressions, HybridRegressions):
            return None
        return regressions.shared_estimates()

    def width(self, alpha: float | None, name: str = "alpha") -> float:
        """The width of one call, called `name` there; None: that of the module."""
        if alpha is None:
            return float(self._alpha[0])
        if not (isinstance(alpha, int | float | numpy.number) and 0.0 <= alpha < math.inf):
            raise RunFailedError(
                f"rlplug-linucb: {name} must be at least 0, found {alpha!r}.",
                "try: 0 for the greedy choice",
            )
        return alpha

    # Features that are not finite are found by their scores, which raise an error of their own.
    @numpy.errstate(over="ignore", invalid="ignore")
    def _score(self, parsed: ParsedObservations, alpha: float) -> Scores:
        mean, variance = self.model.predict(parsed)
        if isinstance(mean, Tensor):
            mean, variance = mean.cpu().numpy(), variance.cpu().numpy()
        return upper_confidence_bound(mean, variance, alpha)

    # -- learning ------------------------------------------------------------------------------

    def update(self, observations: Any, actions: Any, rewards: Any, weights: Any = None) -> None:
        """Learn the rewards of the chosen arms; a row of weight w counts as w such rows."""
        columns = (observations, actions, rewards, weights)
        parsed, arms, rewards, weights = checked_columns(self.model, self.layout, *columns)
        if len(rewards) > self.model.max_rank_one:
            sums = self._sums(parsed, arms, rewards, weights)
            self.model.regressions.absorb(sums.arrays(), len(rewards))
            return
        rows = self.model.rows(parsed, arms)
        if self.arm_ids is not None:
            rows = rows._replace(arms=chosen_ids(parsed.ids, arms))
        if not self._update_each(rows, rewards, weights):
            raise non_finite(columns_of(parsed, arms, rewards, weights))

    def learn(self, batch: BanditBatch) -> None:
        """Learn the labels (rewards, as a rule) of a batch, with its effective weights."""
        if not isinstance(batch, BanditBatch):
            raise RequestError(
                f"rlplug-linucb: learn takes a BanditBatch, found a {type(batch).__name__}.",
                "try: update(observations, actions, rewards), or BanditBatch.of(batch)",
            )
        weights = batch.effective_weight if batch.weighted else None
        self.update(batch.observations, batch.actions, batch.label, weights)

    def update_params(
        self, x: Any, y: Any, weight: Any = None, arms: Any = None, z: Any = None
    ) -> None:
        """Learn rows of the regression itself: x (n, d), reward y (n,), weight (n,).

        A disjoint model needs the arm of each row, a hybrid one also the shared features z (n, k).
        """
        rewards = checked_numbers(self.model, "y", y)
        rows = checked_rows(self.model, x, arms, z, len(rewards))
        weights = checked_weights(self.model, weight, len(rewards))
        if len(rewards) > self.model.max_rank_one:
            sums = self._sum(lambda part: _part(rows, part), rewards, weights)
            if sums is not None:
                self.model.regressions.absorb(sums.arrays(), len(rewards))
                return
        elif self._update_each(rows, rewards, weights):
            return
        raise non_finite({"x": x, "z": z, "y": y, "weight": weight})

    def statistics(
        self, observations: Any, actions: Any, rewards: Any, weights: Any = None
    ) -> list[Tensor]:
        """The sums of these rows, to be added to those of other learners and absorbed."""
        columns = (observations, actions, rewards, weights)
        sums = self._sums(*checked_columns(self.model, self.layout, *columns))
        return [torch.as_tensor(one) for one in sums.arrays()]

    def absorb(self, statistics: Sequence[Tensor], rows: int) -> None:
        """Add `statistics`; `rows` is the number of rows of each learner, for the discount."""
        regressions = self.model.regressions
        regressions.absorb([regressions.to_array(one) for one in statistics], rows)

    def discount_(self, gamma: float) -> None:
        """Multiply the weight of all data so far by `gamma`."""
        if not (is_number(gamma) and 0.0 <= gamma <= 1.0):
            raise RunFailedError(
                f"rlplug-linucb: data cannot be discounted by {gamma!r}.",
                "try: a number from 0, which forgets all, to 1, which keeps all",
            )
        self.model.regressions.discount_(gamma)

    # -- arms that come and go -----------------------------------------------------------------

    def add_arm(self, name: str = "") -> int:
        """Add an arm without data, after the others; returns its index.

        The joint model of fixed arms is refused: it has one regression for all of them.
        """
        layout = self.layout
        known = name == "" or (is_name(name) and name not in layout.arm_names)
        if not known or bool(name) != bool(layout.arm_names):
            named = ", ".join(layout.arm_names) or "numbered"
            raise RunFailedError(
                f"rlplug-linucb: an arm cannot be added as {name!r}, the arms are {named}.",
                "try: a new name where arms have names, none where they have not",
            )
        sources = [*range(layout.num_arms), None]
        self._rearrange(sources, (*layout.arm_names, name) if name else ())
        return layout.num_arms

    def remove_arm(self, arm: int | str) -> None:
        """Remove an arm, given by index or name (where observations have `arm_ids`, by its id).

        Arms after it move up by one. The regression that arms share keeps what it learned.
        """
        layout = self.layout
        if self.arm_ids is not None:
            if isinstance(arm, bool) or not isinstance(arm, int | numpy.integer):
                raise RunFailedError(
                    f"rlplug-linucb: arms are known by their arm_ids, and {arm!r} is none.",
                    "try: one of the integers in arm_ids",
                )
            group = self.arm_ids.forget(int(arm))
            if group is not None:
                self.model.regressions.forget(group)
            return
        index = layout.index_of(arm)
        if layout.num_arms == 2:
            raise RunFailedError(
                f"rlplug-linucb: arm {arm!r} is one of the last two.",
                "try: add an arm first: a bandit chooses among at least two",
            )
        names = layout.arm_names[:index] + layout.arm_names[index + 1 :]
        self._rearrange([one for one in range(layout.num_arms) if one != index], names)

    def _rearrange(self, sources: Sequence[int | None], names: tuple[str, ...]) -> None:
        if self.arm_ids is not None:
            raise RunFailedError(
                "rlplug-linucb: which arms there are is told by the arm_ids of the observations.",
                "try: an id that is new",
            )
        layout = attrs.evolve(self.layout, num_arms=len(sources), arm_names=names)
        if not isinstance(self.model, JointModel):
            self.model.regressions.rearrange(sources)
        elif not layout.featured:
            raise RunFailedError(
                "rlplug-linucb: a joint model has one regression for all fixed arms.",
                "try: model = 'disjoint' or 'hybrid'",
            )
        self.model.fit(layout)
        self.layout = layout

    def fallbacks(self) -> Mapping[str, int]:
        """How many inverses were computed, and for how many Cholesky needed a fallback."""
        return self.model.regressions.fallbacks()

    def _update_each(self, rows: Rows, rewards: Array, weights: Array | None) -> bool:
        """Learn rows one by one, in order; False, and nothing learned, if one is not finite."""
        regressions = self.model.regressions
        x, r = regressions.to_array(rows.x), _targets(regressions, rewards, rows.z)
        squares = _sum_of_squares(x) + _sum_of_squares(r)
        if not math.isfinite(squares if weights is None else squares + float(weights.sum())):
            return False
        for index in range(len(rewards)):
            group = 0 if rows.arms is None else int(rows.arms[index])
            if self.arm_ids is not None:
                group, taken = self.arm_ids.learn(group)
                if taken:
                    regressions.forget(group)
            regressions.update(
                group,
                x[index],
                r[index],
                1.0 if weights is None else float(weights[index]),
            )
        return True

    def _sums(
        self, parsed: ParsedObservations, arms: Array, rewards: Array, weights: Array | None
    ) -> Sums | HybridSums:
        if self.arm_ids is not None:
            raise RunFailedError(
                "rlplug-linucb: which of several learners' arms is which cannot be told.",
                "try: a single learner where observations have arm_ids",
            )

        def rows_of(part: slice) -> Rows:
            return self.model.rows(parsed.part(part), arms[part])

        sums = self._sum(rows_of, rewards, weights)
        if sums is None:
            raise non_finite(columns_of(parsed, arms, rewards, weights))
        return sums

    # Rows that are not finite are found by their sums, which raise an error of their own.
    @numpy.errstate(over="ignore", invalid="ignore")
    def _sum(
        self, rows_of: Callable[[slice], Rows], rewards: Array, weights: Array | None
    ) -> Sums | HybridSums | None:
        """The sums of rows that are built in chunks; None if they are not finite."""
        regressions = self.model.regressions
        sums: Sums | HybridSums
        if isinstance(regressions, HybridRegressions):
            sums = HybridSums(regressions)
        else:
            sums = Sums(regressions)
        for start in range(0, len(rewards), _CHUNK):
            part = slice(start, start + _CHUNK)
            rows = rows_of(part)
            r = _targets(regressions, rewards[part], rows.z)
            sums.add(rows.x, r, None if weights is None else weights[part], rows.arms)
        finite = math.isfinite(float(rewards.sum())) and sums.finite()
        return sums if finite else None


def _best(parsed: ParsedObservations, values: Any, random: numpy.random.Generator | None) -> Any:
    """The arm of the highest value in each row."""
    try:
        arms = choose(values, parsed.mask, random)
    except FloatingPointError:
        raise non_finite_scores(parsed) from None
    if parsed.ids is not None:
        # An arm whose reward could not be learned must not be chosen.
        chosen_ids(parsed.ids, arms)
    return arms


def _of_another_shape(name: str, found: Sequence[int], own: Sequence[int]) -> RequestError:
    return _does_not_fit(f"{name} has the shape {tuple(found)}, the module's has {tuple(own)}")


def _does_not_fit(reason: str) -> RequestError:
    return RequestError(
        f"rlplug-linucb: the saved state does not fit: {reason}.",
        "nothing was changed; try: a module of the layout and options that it was saved with",
    )


def _listed(names: Iterable[str]) -> str:
    first, more = sorted(names)[:3], sorted(names)[3:]
    return ", ".join(first) + (f" and {len(more)} more" if more else "")


def _part(rows: Rows, part: slice) -> Rows:
    return Rows(*(None if one is None else one[part] for one in rows))


def _targets(regressions: Any, rewards: Array, z: Array | None) -> Array:
    """What each row is to predict: the reward (n, 1), or (n, 1 + k) with the features z."""
    if z is None:
        return rewards[:, None]
    return namespace(rewards).concatenate([rewards[:, None], regressions.to_array(z)], -1)


def _sum_of_squares(values: Array) -> float:
    """Not finite if any value is not."""
    # Unlike `dot`, `vdot` does not warn of an overflow.
    if isinstance(values, numpy.ndarray):
        return float(numpy.vdot(values, values))
    return float((values * values).sum())
