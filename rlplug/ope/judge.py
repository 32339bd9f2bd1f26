"""Judge a policy by a log: all estimates, how much of the log supports them, and warnings."""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs
import numpy

from rlplug.ope.bootstrap import Interval, bootstrap, interval
from rlplug.ope.episodes import (
    cumulative_log_weights,
    per_decision_is,
    per_decision_wis,
    sequential_dr,
    trajectory_is,
    trajectory_wis,
    weighted_dr,
)
from rlplug.ope.estimators import (
    Floats,
    Terms,
    dm,
    dr,
    importance_weights,
    ips,
    replay,
    sndr,
    snips,
    switch_dr,
)

__all__ = [
    "ESTIMATORS",
    "Choices",
    "EpisodeChoices",
    "Judgement",
    "effective_sample_size",
    "judge",
]

ESTIMATORS: Mapping[str, str] = {
    "replay": "Replay",
    "dm": "Direct method",
    "ips": "IPS",
    "snips": "SNIPS",
    "dr": "DR",
    "sndr": "Self-normalized DR",
    "switch_dr": "Switch-DR",
    "mrdr": "MRDR",
    "snmrdr": "Self-normalized MRDR",
    "trajectory_is": "Trajectory IS",
    "trajectory_wis": "Trajectory WIS",
    "per_decision_is": "Per-decision IS",
    "per_decision_wis": "Per-decision WIS",
    "sequential_dr": "Sequential DR",
    "weighted_dr": "Weighted DR",
}
"""Name → how it is written in tables."""

_NEGLIGIBLE = 1e-6
"""Probability of unsupported choices that is not worth a warning."""

_FEW = 100
"""Effective rows below which intervals are not to be trusted."""


@attrs.frozen(kw_only=True, eq=False)
class Choices:
    """What a log and a policy chose on n rows, and a model's predictions of both."""

    rewards: Floats
    propensities: Floats
    """Probability of the logged actions under the policy that logged."""
    probabilities: Floats
    """Probability of the logged actions under the policy that is judged, π(a|x)."""
    q_logged: Floats
    q_policy: Floats
    """q(x, π)."""
    mrdr_q_logged: Floats
    mrdr_q_policy: Floats
    unseen: Floats
    """Probability that the policy chooses an arm that the log could not choose, or never did."""
    weights: Floats | None = None
    """How many rows each row stands for."""
    influence: Floats | None = None
    """Of each row on the model's predictions of the policy, `RewardModel.influence`."""

    def importance(self, max_weight: float = 0.0) -> Floats:
        """The importance weight of each row, clipped unless the largest one is 0."""
        return importance_weights(self.probabilities, self.propensities, max_weight)

    def terms(self, *, switch: float = 10.0, max_weight: float = 0.0) -> dict[str, Terms]:
        """All estimates by name; `switch` is the threshold of Switch-DR, `max_weight` clips w."""
        r, w = self.rewards, self.importance(max_weight)
        q = self.q_logged, self.q_policy
        mrdr = self.mrdr_q_logged, self.mrdr_q_policy
        return {
            # Of a policy that chooses at random, no row is what it would have chosen.
            "replay": replay(r, self.probabilities > 1 - 1e-9),
            "dm": dm(self.q_policy, self.influence),
            "ips": ips(r, w),
            "snips": snips(r, w),
            "dr": dr(r, w, *q),
            "sndr": sndr(r, w, *q),
            "switch_dr": switch_dr(r, w, *q, threshold=switch),
            "mrdr": dr(r, w, *mrdr),
            "snmrdr": sndr(r, w, *mrdr),
        }


@attrs.frozen(kw_only=True, eq=False)
class EpisodeChoices:
    """What a log did in its episodes, (episodes, steps), and how likely the policy does the same.

    After an episode's end, rewards, values and log-ratios are 0.
    """

    rewards: Floats
    log_ratios: Floats
    """log π(a|s) − log p, -inf where the policy never takes the logged action."""
    steps: int
    """Steps of all episodes together."""
    gamma: float = 1.0
    q_logged: Floats | None = None
    """A model's value of the logged actions; None: there is no model."""
    q_policy: Floats | None = None
    """Its value of the policy in each state."""

    @property
    def returns(self) -> Floats:
        """The discounted return of each episode."""
        found: Floats = self.rewards @ self.gamma ** numpy.arange(self.rewards.shape[1])
        return found

    def importance(self, max_weight: float = 0.0) -> Floats:
        """The importance weight of each whole episode."""
        return numpy.exp(cumulative_log_weights(self.log_ratios, max_weight)[:, -1])

    def terms(self, *, max_weight: float = 0.0) -> dict[str, Terms]:
        """All estimates by name; those of a model are left out where there is none."""
        given = self.rewards, cumulative_log_weights(self.log_ratios, max_weight)
        terms = {
            "trajectory_is": trajectory_is(*given, self.gamma),
            "trajectory_wis": trajectory_wis(*given, self.gamma),
            "per_decision_is": per_decision_is(*given, self.gamma),
            "per_decision_wis": per_decision_wis(*given, self.gamma),
        }
        if self.q_logged is not None and self.q_policy is not None:
            q = self.q_logged, self.q_policy
            terms["dm"] = dm(self.q_policy[:, 0])
            terms["sequential_dr"] = sequential_dr(*given, *q, self.gamma)
            terms["weighted_dr"] = weighted_dr(*given, *q, self.gamma)
        return terms


@attrs.frozen(kw_only=True, eq=False)
class Judgement:
    """Estimates of a policy's value, by estimator, and what they rest on."""

    rows: int
    """Rows, or episodes."""
    steps: int = 0
    """Steps of the episodes; 0: rows are single choices."""
    logged: Interval
    """Mean reward (return) of the log: what its own policy earned."""
    estimates: Mapping[str, Interval]
    matches: int
    """Rows (episodes) whose actions the policy may have chosen."""
    effective: float
    """Effective sample size of the importance weights."""
    max_weight: float
    warnings: tuple[str, ...]
    samples: Mapping[str, Floats]
    """Each estimate, then its bootstrap samples."""


def effective_sample_size(weights: Floats) -> float:
    """(Σ w)² / Σ w²: as many rows of equal weight say as much (Kish 1965)."""
    squares = float((weights * weights).sum())
    return float(weights.sum()) ** 2 / squares if squares else 0.0


def judge(
    choices: Choices | EpisodeChoices,
    *,
    samples: int = 200,
    confidence: float = 0.95,
    seed: int = 0,
    switch: float = 10.0,
    max_weight: float = 0.0,
) -> Judgement:
    """All estimates with their intervals, from the same bootstrap samples."""
    weights = choices.importance(max_weight)
    if isinstance(choices, Choices):
        terms, logged = choices.terms(switch=switch, max_weight=max_weight), choices.rewards
        rows, unseen, of_replay = choices.weights, float(choices.unseen.mean()), _of_replay(choices)
        steps, unit = 0, "rows"
    else:
        terms, logged = choices.terms(max_weight=max_weight), choices.returns
        rows, unseen, of_replay = None, 0.0, []
        steps, unit = choices.steps, "episodes"
    terms["logged"] = Terms(offset=logged)
    drawn = bootstrap(terms, samples=samples, seed=seed, weights=rows)
    estimates = {name: interval(values, confidence) for name, values in drawn.items()}
    effective, matches = effective_sample_size(weights), int(numpy.count_nonzero(weights))
    warnings = _warnings(weights, matches, effective, max_weight > 0, unseen, unit)
    return Judgement(
        rows=len(weights),
        steps=steps,
        logged=estimates.pop("logged"),
        estimates=estimates,
        matches=matches,
        effective=effective,
        max_weight=float(weights.max(initial=0.0)),
        warnings=(*warnings, *of_replay),
        samples=drawn,
    )


def _of_replay(choices: Choices) -> list[str]:
    """What Replay assumes, where it has an estimate and the assumption does not hold."""
    agreed = choices.propensities[choices.probabilities > 1 - 1e-9]
    if not len(agreed) or agreed.max() - agreed.min() < 1e-6:
        return []
    return [
        f"Replay is biased: the log chose with probabilities of {agreed.min():.3g} to "
        f"{agreed.max():.3g} what the policy would have chosen, not uniformly at random."
    ]


def _warnings(
    weights: Floats, matches: int, effective: float, clipped: bool, unseen: float, of: str
) -> list[str]:
    """Why estimates may be wrong by more than their intervals say."""
    rows, said = len(weights), []
    if not matches and of == "episodes":
        return [
            f"the policy would have left every one of {rows:,} logged episodes before its end: "
            "estimates are of first steps, or extrapolate; intervals are not to be trusted."
        ]
    if not matches:
        return [
            f"the policy that logged never chose what this policy wants, in none of {rows:,} {of}: "
            "only the direct method has an estimate, and it extrapolates."
        ]
    if unseen > _NEGLIGIBLE:
        said.append(
            f"{unseen:.1%} of the policy's choices are arms that the log never could have chosen: "
            "estimates leave those rewards out, or extrapolate."
        )
    if effective < _FEW:
        said.append(
            f"the log says as much about the policy as {effective:,.0f} {of} of its own: intervals "
            "are not to be trusted."
        )
    mean, error = float(weights.mean()), float(weights.std()) / math.sqrt(rows)
    if not clipped and abs(mean - 1) > 4 * error + 1e-9:
        said.append(
            f"importance weights have the mean {mean:.3f} ± {error:.3f} instead of 1: support is "
            "missing, or the propensities are not those that were acted on."
        )
    return said
