"""Judge a policy by a log: all estimates, how much of the log supports them, and warnings."""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs
import numpy
from numpy.typing import NDArray

from rlplug.ope.bootstrap import Interval, bootstrap, interval
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

__all__ = ["ESTIMATORS", "Choices", "Judgement", "effective_sample_size", "judge", "terms_of"]

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
}
"""Name → how it is written in tables."""

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
    unseen: NDArray[numpy.bool_]
    """Where the policy chooses an arm that the log could not have chosen, or never did."""
    weights: Floats | None = None
    """How many rows each row stands for."""
    influence: Floats | None = None
    """Of each row on the model's predictions of the policy, `RewardModel.influence`."""


@attrs.frozen(kw_only=True, eq=False)
class Judgement:
    """Estimates of a policy's value, by estimator, and what they rest on."""

    rows: int
    logged: Interval
    """Mean reward of the log: what its own policy earned."""
    estimates: Mapping[str, Interval]
    matches: int
    """Rows whose action the policy may have chosen."""
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


def terms_of(
    choices: Choices, *, switch: float = 10.0, max_weight: float = 0.0
) -> dict[str, Terms]:
    """All estimates by name; `switch` is the threshold of Switch-DR, `max_weight` clips w."""
    r = choices.rewards
    w = importance_weights(choices.probabilities, choices.propensities, max_weight)
    q = choices.q_logged, choices.q_policy
    mrdr = choices.mrdr_q_logged, choices.mrdr_q_policy
    return {
        "replay": replay(r, choices.probabilities > 1 - 1e-9),
        "dm": dm(choices.q_policy, choices.influence),
        "ips": ips(r, w),
        "snips": snips(r, w),
        "dr": dr(r, w, *q),
        "sndr": sndr(r, w, *q),
        "switch_dr": switch_dr(r, w, *q, threshold=switch),
        "mrdr": dr(r, w, *mrdr),
        "snmrdr": sndr(r, w, *mrdr),
    }


def judge(
    choices: Choices,
    *,
    samples: int = 200,
    confidence: float = 0.95,
    seed: int = 0,
    switch: float = 10.0,
    max_weight: float = 0.0,
) -> Judgement:
    """All estimates with their intervals, from the same bootstrap samples."""
    terms = terms_of(choices, switch=switch, max_weight=max_weight)
    terms["logged"] = Terms(offset=choices.rewards)
    drawn = bootstrap(terms, samples=samples, seed=seed, weights=choices.weights)
    found = {name: interval(values, confidence) for name, values in drawn.items()}
    w = importance_weights(choices.probabilities, choices.propensities, max_weight)
    effective = effective_sample_size(w)
    matches = int(numpy.count_nonzero(choices.probabilities > 0))
    return Judgement(
        rows=len(choices.rewards),
        logged=found.pop("logged"),
        estimates=found,
        matches=matches,
        effective=effective,
        max_weight=float(w.max(initial=0.0)),
        warnings=tuple(_warnings(choices, w, matches, effective, max_weight)),
        samples=drawn,
    )


def _warnings(
    choices: Choices, weights: Floats, matches: int, effective: float, max_weight: float
) -> list[str]:
    """Why estimates may be wrong by more than their intervals say."""
    rows, said = len(weights), []
    unseen = int(numpy.count_nonzero(choices.unseen))
    if not matches:
        return [
            "the policy that logged never chose what this policy wants, in none of "
            f"{rows:,} rows: only the direct method has an estimate, and it extrapolates."
        ]
    if unseen:
        said.append(
            f"on {unseen / rows:.1%} of the rows the policy wants an arm that the log never could "
            "have chosen: estimates leave those rewards out, or extrapolate."
        )
    if effective < _FEW:
        said.append(
            f"the log says as much about the policy as {effective:,.0f} rows of its own: intervals "
            "are not to be trusted."
        )
    mean, error = float(weights.mean()), float(weights.std()) / math.sqrt(rows)
    if not max_weight and abs(mean - 1) > 4 * error + 1e-9:
        said.append(
            f"importance weights have the mean {mean:.3f} ± {error:.3f} instead of 1: support is "
            "missing, or the propensities are not those that were acted on."
        )
    return said
