"""LinTSModule: linear Thompson sampling (Agrawal and Goyal, 2013) on LinUCB's regressions."""

from __future__ import annotations

from typing import Any, NamedTuple

import attrs
import numpy
from torch import Tensor

from rlplug import Acted, ActInput, Module
from rlplug.bandits import BanditBatch
from rlplug.bandits.probability import check_generator, gaussian_best, greedy_probabilities
from rlplug_linucb.arrays import Array, Estimates, HasEstimates, namespace
from rlplug_linucb.choice import TOLERANCE, with_log_prob
from rlplug_linucb.config import LinearOptions, LinTSConfig, LinUCBConfig, config_of
from rlplug_linucb.hybrid import HybridRegressions
from rlplug_linucb.layout import Layout, ParsedObservations
from rlplug_linucb.linucb import RidgeRegressions
from rlplug_linucb.models import DisjointModel, JointModel, Model
from rlplug_linucb.module import LinUCBModule, StrictState

__all__ = ["Draws", "LinTSModule"]


_DRAWS = 1000
"""From which probabilities of correlated arms are estimated."""
_AT_ONCE = 2**18
"""Scores that are drawn together."""
_ESTIMATE = 1
"""Tells the generator of estimates from others with the same timestep."""


class Draws(NamedTuple):
    """Scores of every arm, each of shape (n, arms)."""

    pred_label: Any
    """Predicted reward."""
    pred_sigma: Any
    """Standard deviation of the prediction, for noise of unit variance."""
    sampled: Any
    """Reward predicted by coefficients drawn from the posterior."""


class LinTSModule(HasEstimates, StrictState, Module):
    """A linear bandit that chooses by Thompson sampling: score, choose, update."""

    def __init__(self, layout: Layout, config: LinTSConfig | None = None) -> None:
        super().__init__()
        config = config_of(LinTSConfig, config)
        common = {field.name: getattr(config, field.name) for field in attrs.fields(LinearOptions)}
        # v scales the same standard deviations as alpha does.
        self.bandit = LinUCBModule(layout, LinUCBConfig(alpha=config.v, **common))

    @property
    def layout(self) -> Layout:
        """What observations hold, and the arms that there are."""
        return self.bandit.layout

    def forward_exploration(self, act: ActInput) -> Acted:
        """The best arms for coefficients drawn from the posterior by `act.random`."""
        bandit = self.bandit
        parsed = bandit.layout.parse(act.observations, act.action_mask)
        draws = self._draw(parsed, act.random, float(bandit.alpha))
        acted = bandit.pick(parsed, draws, act.random, "sampled")
        if act.wants_log_prob:
            return with_log_prob(acted, self._probabilities(parsed, draws, act.timestep))
        return acted

    def action_probabilities(self, act: ActInput) -> Any:
        """Probability (n, arms) of each arm's draw being the highest.

        Estimated from draws where those of arms are correlated: joint and hybrid models.
        """
        parsed = self.bandit.layout.parse(act.observations, act.action_mask)
        random = numpy.random.default_rng([_ESTIMATE, act.timestep, 1])
        draws = self._draw(parsed, random, float(self.bandit.alpha))
        return self._probabilities(parsed, draws, act.timestep)

    def forward_inference(self, act: ActInput) -> Acted:
        """The arms of the highest predicted reward; of equal ones, the first."""
        return self.bandit.forward_inference(act)

    def forward_export(self, act: ActInput) -> Acted:
        """The arms of the highest predicted reward, in torch."""
        return self.bandit.forward_export(act)

    def choose(
        self,
        observations: Any,
        random: numpy.random.Generator,
        action_mask: Any = None,
        v: float | None = None,
    ) -> Any:
        """The actions of `forward_exploration`, one per row; `v` is that of this call."""
        check_generator(random, "rlplug-linucb")
        parsed = self.bandit.layout.parse(observations, action_mask)
        draws = self._draw(parsed, random, self.bandit.width(v, "v"))
        return self.bandit.pick(parsed, draws, random, "sampled").actions

    def score(
        self,
        observations: Any,
        random: numpy.random.Generator,
        action_mask: Any = None,
        v: float | None = None,
    ) -> Draws:
        """Predicted reward, its standard deviation and a draw of it for every arm of every row.

        Of absent arms the reward and the draw are -inf, the deviation is 0.
        """
        check_generator(random, "rlplug-linucb")
        parsed = self.bandit.layout.parse(observations, action_mask)
        draws = self._draw(parsed, random, self.bandit.width(v, "v"))
        return Draws(*self.bandit.checked_scores(parsed, draws))

    def confidence_width(
        self, observations: Any, v: float | None = None, action_mask: Any = None
    ) -> Any:
        """The standard deviation of the draws of every arm, v times that of the prediction; 0 for
        absent arms."""
        v = self.bandit.width(v, "v")
        return self.bandit.confidence_width(observations, v, action_mask)

    def learn(self, batch: BanditBatch) -> None:
        """Learn the labels (rewards, as a rule) of a batch, with its effective weights."""
        self.bandit.learn(batch)

    def add_arm(self, name: str = "") -> int:
        """Add an arm without data, after the others; returns its index."""
        return self.bandit.add_arm(name)

    def remove_arm(self, arm: int | str) -> None:
        """Remove an arm, given by index or name (where observations have `arm_ids`, by its id)."""
        self.bandit.remove_arm(arm)

    def estimates(self) -> Estimates:
        """A, b, A⁻¹ and theta at once."""
        return self.bandit.estimates()

    def shared_estimates(self) -> Estimates | None:
        """Of the regression that all arms of a hybrid model share; None for other models."""
        return self.bandit.shared_estimates()

    def update(self, observations: Any, actions: Any, rewards: Any, weights: Any = None) -> None:
        """Learn the rewards of the chosen arms; a row of weight w counts as w such rows."""
        self.bandit.update(observations, actions, rewards, weights)

    def _probabilities(self, parsed: ParsedObservations, draws: Draws, timestep: int) -> Any:
        """With which each arm is chosen, (n, arms): estimated where draws of arms are correlated.

        Those of arms with regressions of their own are independent.
        """
        v = float(self.bandit.alpha)
        if v == 0.0:
            return greedy_probabilities(draws.pred_label, parsed.mask, TOLERANCE)
        if isinstance(self.bandit.model, DisjointModel):
            return gaussian_best(draws.pred_label, v * draws.pred_sigma, parsed.mask)
        # Of their own, so that nothing else is chosen because probabilities are told.
        random = numpy.random.default_rng([_ESTIMATE, timestep])
        # One more than how often, so that nothing that was chosen has probability 0.
        wins = greedy_probabilities(draws.sampled, parsed.mask)
        left, together = _DRAWS, max(_AT_ONCE // wins.size, 1)
        while left > 0:
            sampled = self._sampled(parsed, random, min(left, together))
            mask = None if parsed.mask is None else numpy.tile(parsed.mask, (len(sampled), 1))
            best = greedy_probabilities(sampled.reshape(-1, wins.shape[1]), mask)
            wins = wins + best.reshape(sampled.shape).sum(0)
            left -= together
        return wins / (_DRAWS + 1)

    @numpy.errstate(over="ignore", invalid="ignore")
    def _sampled(self, parsed: ParsedObservations, random: Any, times: int) -> Any:
        """So many draws of the predicted rewards, (times, n, arms)."""
        mean, _, deviation = draw(self.bandit.model, parsed, random, times)
        sampled = mean[..., None] + float(self.bandit.alpha) * deviation
        if isinstance(sampled, Tensor):
            sampled = sampled.cpu().numpy()
        return numpy.moveaxis(sampled, 2, 0)

    # Features that are not finite are found by their scores, which raise an error of their own.
    @numpy.errstate(over="ignore", invalid="ignore")
    def _draw(self, parsed: ParsedObservations, random: numpy.random.Generator, v: float) -> Draws:
        model = self.bandit.model
        if v == 0.0:
            mean, variance = model.predict(parsed)
            deviation = 0.0 * variance
        else:
            mean, variance, deviations = draw(model, parsed, random)
            deviation = deviations[..., 0]
        sigma = namespace(variance).sqrt(variance)
        draws = (mean, sigma, mean + v * deviation)
        return Draws(*(one.cpu().numpy() if isinstance(one, Tensor) else one for one in draws))


def draw(
    model: Model, parsed: ParsedObservations, random: numpy.random.Generator, times: int = 1
) -> tuple[Array, Array, Array]:
    """Means and variances (n, arms), and deviations from the means at v = 1, (n, arms, times).

    The posterior is N(theta, v² A⁻¹); every observation gets draws of its own.
    """
    if isinstance(model, DisjointModel):
        mean, variance = model.predict(parsed)
        return mean, variance, _draw_independent(model.regressions, variance, random, times)
    if isinstance(model, JointModel):
        rows = model.design(parsed)
        means, variance = model.regressions.predict(rows)
        return means[..., 0], variance, _draw_shared(model.regressions, rows, random, times)
    if not model.regressions.penalized:
        x, z, groups = model.design(parsed)
        mean, variance = model.regressions.predict(x, z, groups)
        return mean, variance, _draw_whole(model.regressions, x, z, groups, random, times)
    # Given the shared coefficients, arms are independent: one draw of those, and one per arm.
    mean, variance, rows = model.regressions.predict_by_arm(*model.design(parsed))
    shared_mean, shared_variance = model.regressions.shared.predict(rows)
    deviation = _draw_shared(model.regressions.shared, rows, random, times)
    deviation = deviation + _draw_independent(model.regressions.arms, variance, random, times)
    return mean + shared_mean[..., 0], variance + shared_variance, deviation


def _draw_independent(
    regressions: RidgeRegressions, variance: Array, random: numpy.random.Generator, times: int
) -> Array:
    """Deviations of predictions (n, arms) by separate regressions: independent normal draws."""
    noise = regressions.to_array(random.standard_normal((*variance.shape, times)))
    return namespace(variance).sqrt(variance)[..., None] * noise


def _draw_shared(
    regressions: RidgeRegressions, rows: Array, random: numpy.random.Generator, times: int
) -> Array:
    """Deviations of predictions of rows (n, arms, d) by draws of coefficients for each n."""
    noise = regressions.to_array(random.standard_normal((len(rows), times, regressions.dim)))
    coefficients = noise @ _square_root(regressions.A_inv[0]).T
    return rows @ coefficients.swapaxes(1, 2)


def _draw_whole(
    regressions: HybridRegressions, x: Array, z: Array, groups: Any, random: Any, times: int
) -> Array:
    """Deviations of predictions (n, arms) by draws of all coefficients at once, for each n."""
    root = regressions.root()
    noise = regressions.to_array(random.standard_normal((len(x), times, len(root))))
    drawn, width = noise @ root.T, regressions.shared.dim
    own = drawn[..., width:].reshape(len(x), times, regressions.arms.groups, -1)
    by_group = (own @ x[:, None, :, None])[..., 0].swapaxes(1, 2)
    if groups is not None:
        by_group = by_group[numpy.arange(len(x))[:, None], groups]
    return by_group + z @ drawn[..., :width].swapaxes(1, 2)


def _square_root(covariance: Array) -> Array:
    """A matrix R with R Rᵀ equal to the covariance."""
    linalg: Any = namespace(covariance).linalg
    try:
        return linalg.cholesky(covariance)
    except (numpy.linalg.LinAlgError, RuntimeError):
        # Rounding may leave an eigenvalue of zero slightly negative.
        values, vectors = linalg.eigh(covariance)
        return vectors * abs(values) ** 0.5
