"""What a log of single choices and a policy chose, and the predictions of models fitted to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy
from numpy.typing import NDArray

from rlplug.errors import RequestError
from rlplug.logs import Log, LogRows
from rlplug.ope.estimators import Floats
from rlplug.ope.judge import Choices
from rlplug.ope.reward_model import RewardModel, mrdr_weights
from rlplug.serving import Policy

__all__ = ["FOLDS", "ROWS", "LoggedBy", "Target", "bandit_choices"]

ROWS = 8192
"""Rows that are read at a time."""

FOLDS = 2
"""Parts that models are fitted without, to predict them."""


@attrs.frozen(kw_only=True, eq=False)
class Target:
    """The policy to be judged: greedy, or as it explores."""

    policy: Policy
    explores: bool

    def probabilities(self, rows: LogRows) -> Floats:
        """Of all actions, (n, actions)."""
        shares: Floats = numpy.asarray(
            self.policy.probabilities(
                rows.observations, not self.explores, action_mask=rows.get("action_mask")
            ),
            numpy.float64,
        )
        return shares


@attrs.frozen(kw_only=True, eq=False)
class LoggedBy:
    """Where the propensities of the logged actions come from."""

    num_arms: int
    policy: Policy | None = None
    """One that chose them while it explored, or imitates who did; None: the log tells them."""

    def log_propensities(self, rows: LogRows) -> Any:
        """Logarithms of the probabilities (densities) of the logged actions."""
        if self.policy is None:
            if self.num_arms:
                return numpy.log(rows.propensity_or_uniform(self.num_arms))
            if "action_log_prob" in rows.columns:
                return rows["action_log_prob"]
            return numpy.log(rows["propensity"])
        mask = rows.get("action_mask")
        if not self.num_arms:
            found = self.policy.log_prob(rows.observations, rows["action"], action_mask=mask)
            return numpy.asarray(found, numpy.float64)
        shares = self.policy.probabilities(rows.observations, False, action_mask=mask)
        chosen = shares[numpy.arange(len(rows)), rows.action_index]
        if not chosen.all():
            row = rows.first + int(chosen.argmin())
            raise RequestError(
                f"the policy of --logged-by never takes the action of row {row:,}.",
                "try: the run that was recorded, or one of bc that was trained on this log",
            )
        return numpy.log(chosen)


def bandit_choices(
    target: Target, log: Log, logged_by: LoggedBy, progress: Callable[[int], None]
) -> Choices:
    """The choices on all rows; the log is read twice, `progress` is told how many rows were."""
    n = log.rows
    rewards, propensities, weights = numpy.empty(n), numpy.empty(n), numpy.ones(n)
    probabilities, unseen = numpy.empty(n), numpy.zeros(n)
    logged = numpy.empty(n, numpy.int64)
    # Of a greedy policy, a number is kept instead of a row of probabilities.
    wanted = None if target.explores else numpy.empty(n, numpy.int64)
    featured = "arms" in log.roles
    plain, robust = (RewardModel(log.num_arms, featured=featured, folds=FOLDS) for _ in range(2))
    for rows in log.read(0, ROWS):
        part = slice(rows.first, rows.first + len(rows))
        every = numpy.arange(len(rows))
        rewards[part], logged[part] = rows["reward"], rows.action_index
        propensities[part] = numpy.exp(logged_by.log_propensities(rows))
        shares = target.probabilities(rows)
        probabilities[part] = shares[every, logged[part]]
        if wanted is not None:
            wanted[part] = shares.argmax(1)
        if "propensities" in rows.columns:
            unseen[part] = (shares * (rows["propensities"] == 0)).sum(1)
        if "weight" in rows.columns:
            weights[part] = rows["weight"]
        folds = _folds(part)
        given = rows.columns, logged[part], rewards[part], folds
        plain.add(*given, weights[part])
        plain.add_policy(rows.columns, shares, folds, weights[part])
        robust.add(*given, weights[part] * mrdr_weights(probabilities[part], propensities[part]))
        progress(len(rows))
    models = {"plain": plain, "robust": robust}
    q = {(name, which): numpy.empty(n) for name in models for which in ("logged", "policy")}
    influence = numpy.empty(n)
    never = (numpy.bincount(logged, minlength=log.num_arms) == 0).astype(float)
    for rows in log.read(0, ROWS):
        part = slice(rows.first, rows.first + len(rows))
        folds = _folds(part)
        shares = (
            target.probabilities(rows) if wanted is None else numpy.eye(log.num_arms)[wanted[part]]
        )
        unseen[part] = numpy.maximum(unseen[part], shares @ never)
        for name, model in models.items():
            q[name, "logged"][part] = model.predict(rows.columns, logged[part], folds)
            q[name, "policy"][part] = model.predict_policy(rows.columns, shares, folds)
        influence[part] = plain.influence(rows.columns, logged[part], rewards[part], folds)
        progress(len(rows))
    return Choices(
        rewards=rewards,
        propensities=propensities,
        probabilities=probabilities,
        q_logged=q["plain", "logged"],
        q_policy=q["plain", "policy"],
        mrdr_q_logged=q["robust", "logged"],
        mrdr_q_policy=q["robust", "policy"],
        unseen=unseen,
        weights=weights if "weight" in log.roles else None,
        influence=influence,
    )


def _folds(part: slice) -> NDArray[Any]:
    return numpy.arange(part.start, part.stop) % FOLDS
