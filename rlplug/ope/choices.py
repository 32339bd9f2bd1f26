"""What a log and a policy chose, on single rows or in episodes, and models fitted to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import attrs
import numpy
from gymnasium import spaces
from numpy.typing import NDArray

from rlplug.errors import RequestError
from rlplug.logs import Log, LogRows
from rlplug.logs.encoding import Encoder
from rlplug.ope.estimators import Floats
from rlplug.ope.judge import Choices, EpisodeChoices
from rlplug.ope.q_model import MAX_FEATURES, fit_q, state_features
from rlplug.ope.reward_model import RewardModel, mrdr_weights
from rlplug.spaces import AnySpace, describe, outline

__all__ = ["Acting", "Policies", "bandit_choices", "episode_choices"]

_ROWS = 8192
"""Rows that are read at a time."""

_FOLDS = 2
"""Parts that models are fitted without, to predict them."""


class Acting(Protocol):
    """A policy, as far as estimates ask it."""

    @property
    def observation_space(self) -> AnySpace: ...

    @property
    def action_space(self) -> AnySpace: ...

    @property
    def encoder(self) -> Encoder: ...

    @property
    def has_memory(self) -> bool: ...

    def probabilities(
        self, observations: Any, deterministic: bool = True, *, action_mask: Any = None
    ) -> Any:
        """Of all actions, (n, actions)."""

    def log_prob(self, observations: Any, actions: Any, *, action_mask: Any = None) -> Any:
        """Log-densities of continuous actions, (n,)."""

    def reset(self) -> None:
        """Forget what was seen."""


@attrs.frozen(kw_only=True, eq=False)
class Policies:
    """The policy to be judged, and what chose the actions of the log."""

    target: Acting
    explores: bool
    """Whether it is judged as it explores in training, not greedily."""
    num_arms: int
    """0: the actions are continuous."""
    logged_by: Acting | None = None
    """What chose them while it explored, or imitates who did; None: the log has propensities."""

    def probabilities(self, rows: LogRows) -> Floats:
        """Of all actions under the policy to be judged, (n, actions)."""
        mask = rows.get("action_mask")
        shares = self.target.probabilities(rows.observations, not self.explores, action_mask=mask)
        return numpy.asarray(shares, numpy.float64)

    def log_propensities(self, rows: LogRows) -> Floats:
        """Logarithms of the probabilities (densities) of the logged actions."""
        mask, policy = rows.get("action_mask"), self.logged_by
        if policy is None and self.num_arms:
            found = numpy.log(rows.propensity_or_uniform(self.num_arms))
        elif policy is None:
            logged = rows.get("action_log_prob")
            found = numpy.log(rows["propensity"]) if logged is None else logged
        elif not self.num_arms:
            found = policy.log_prob(rows.observations, rows["action"], action_mask=mask)
        else:
            shares = policy.probabilities(rows.observations, False, action_mask=mask)
            chosen = shares[numpy.arange(len(rows)), rows.action_index]
            if not chosen.all():
                raise RequestError(
                    "the policy of --logged-by never takes the action of row "
                    f"{rows.first + int(chosen.argmin()):,}.",
                    "try: the run that was recorded, or one of bc that was trained on this log",
                )
            found = numpy.log(chosen)
        return numpy.asarray(found, numpy.float64)

    def log_ratios(self, rows: LogRows) -> tuple[Floats, Floats | None]:
        """log ρ of each row, and probabilities of all actions, if they are discrete."""
        shares = None
        if self.num_arms:
            shares = self.probabilities(rows)
            with numpy.errstate(divide="ignore"):
                chosen = numpy.log(shares[numpy.arange(len(rows)), rows.action_index])
        else:
            mask = rows.get("action_mask")
            chosen = self.target.log_prob(rows.observations, rows["action"], action_mask=mask)
        return numpy.asarray(chosen, numpy.float64) - self.log_propensities(rows), shares

    def refuse(self, log: Log, name: str, *, assume_uniform: bool) -> None:
        """Raise why the policy, which messages call `name`, cannot be judged by this log."""
        for policy in filter(None, (self.target, self.logged_by)):
            _refuse_spaces(policy, log, name)
        if not log.num_arms and not self.explores:
            raise RequestError(
                f"the actions of log {log.name!r} are continuous: a greedy policy takes exactly "
                "the logged ones with probability 0.",
                "try: --explore, which judges the policy as it explores in training",
            )
        if log.has_propensities or self.logged_by is not None:
            return
        if assume_uniform and log.num_arms:
            return
        wrong = "has no propensities: with which probability its actions were chosen is not known"
        if assume_uniform:
            wrong = "has continuous actions: they cannot be assumed to be uniform"
        raise RequestError(
            f"log {log.name!r} {wrong}.",
            "try: --set propensity=COLUMN, or --assume-uniform if they were chosen uniformly at "
            "random",
            "or: --logged-by RUN, of the policy that chose them, or of bc that was trained on the "
            "log",
        )


def _refuse_spaces(policy: Acting, log: Log, name: str) -> None:
    """Refuse a policy of other observations, features or actions."""
    for verb, own, logged, hint in (
        (
            "chooses among",
            policy.action_space,
            log.action_space,
            "try: --set num_arms=N, or the log of the same arms",
        ),
        (
            "sees",
            policy.observation_space,
            log.observation_space,
            "try: --set context=PATTERN for the columns that it was trained on",
        ),
    ):
        if outline(own) != outline(logged):
            raise RequestError(
                f"{name} {verb} {describe(own)}, log {log.name!r} has {describe(logged)}.", hint
            )
    if policy.encoder.features and policy.encoder != log.encoder:
        raise RequestError(
            f"{name} knows features {', '.join(policy.encoder.names):.200}, or levels and arms, "
            f"other than those with which log {log.name!r} is read: "
            f"{', '.join(log.encoder.names):.200}.",
            "try: runs that learned from the same log",
        )


def bandit_choices(policies: Policies, log: Log, progress: Callable[[int], None]) -> Choices:
    """The choices on all rows; the log is read twice, `progress` is told how many rows were."""
    n, featured = log.rows, "arms" in log.roles
    rewards, propensities, weights = numpy.empty(n), numpy.empty(n), numpy.ones(n)
    probabilities, unseen = numpy.empty(n), numpy.zeros(n)
    logged, greedy = numpy.empty(n, int), numpy.empty(n, int)
    plain, robust = (RewardModel(log.num_arms, featured=featured, folds=_FOLDS) for _ in range(2))
    for rows, part, folds in _parts(log, progress):
        shares = policies.probabilities(rows)
        rewards[part], logged[part] = rows["reward"], rows.action_index
        propensities[part] = numpy.exp(policies.log_propensities(rows))
        probabilities[part] = shares[numpy.arange(len(rows)), logged[part]]
        greedy[part] = shares.argmax(1)
        if "propensities" in rows.columns:
            unseen[part] = (shares * (rows["propensities"] == 0)).sum(1)
        if "weight" in rows.columns:
            weights[part] = rows["weight"]
        given = rows.columns, logged[part], rewards[part], folds
        plain.add(*given, weights[part])
        plain.add_policy(rows.columns, shares, folds, weights[part])
        robust.add(*given, weights[part] * mrdr_weights(probabilities[part], propensities[part]))
    q_logged, q_policy = numpy.empty((2, n)), numpy.empty((2, n))
    influence = numpy.empty(n)
    never = (numpy.bincount(logged, minlength=log.num_arms) == 0).astype(float)
    for rows, part, folds in _parts(log, progress):
        # Of a greedy policy, a number was kept instead of a row of probabilities.
        shares = (
            policies.probabilities(rows)
            if policies.explores
            else numpy.eye(log.num_arms)[greedy[part]]
        )
        unseen[part] = numpy.maximum(unseen[part], shares @ never)
        for index, model in enumerate((plain, robust)):
            q_logged[index, part] = model.predict(rows.columns, logged[part], folds)
            q_policy[index, part] = model.predict_policy(rows.columns, shares, folds)
        influence[part] = plain.influence(rows.columns, logged[part], rewards[part], folds)
    return Choices(
        rewards=rewards,
        propensities=propensities,
        probabilities=probabilities,
        q_logged=q_logged[0],
        q_policy=q_policy[0],
        mrdr_q_logged=q_logged[1],
        mrdr_q_policy=q_policy[1],
        unseen=unseen,
        weights=weights if "weight" in log.roles else None,
        influence=influence,
    )


def _parts(
    log: Log, progress: Callable[[int], None]
) -> Iterator[tuple[LogRows, slice, NDArray[Any]]]:
    """Rows of the log, where they are in it, and the fold of each."""
    for rows in log.read(0, _ROWS):
        part = slice(rows.first, rows.first + len(rows))
        yield rows, part, numpy.arange(part.start, part.stop) % _FOLDS
        progress(len(rows))


def episode_choices(
    policies: Policies, log: Log, gamma: float, progress: Callable[[int], None]
) -> tuple[EpisodeChoices, list[str]]:
    """The choices in all episodes that end in the log, and what is to be said of the others."""
    steps = _steps(policies, log, progress)
    steps = _taken(steps, numpy.argsort(steps["episodes"], kind="stable"))
    starts, lengths = _sequences(steps["episodes"])
    whole = steps["ended"][starts + lengths - 1]
    if not {"terminated", "truncated"} & set(log.roles.columns):
        whole[:] = True
    if not whole.any():
        raise RequestError(
            f"none of the {len(starts):,} episodes of log {log.name!r} ends in it.",
            "try: a longer recording, or --set terminated=COLUMN",
        )
    said = []
    if not whole.all():
        said.append(
            f"{(~whole).sum():,} of {len(whole):,} episodes do not end in the log, and were left "
            "out."
        )
        steps, lengths = _taken(steps, numpy.repeat(whole, lengths)), lengths[whole]
    n, longest = len(lengths), int(lengths.max())
    episode = numpy.repeat(numpy.arange(n), lengths)
    time = numpy.arange(len(episode)) - numpy.repeat(lengths.cumsum() - lengths, lengths)

    def table(column: Floats) -> Floats:
        padded = numpy.zeros((n, longest))
        padded[episode, time] = column
        return padded

    values = _values(steps, log, episode, time / longest, gamma)
    q_logged, q_policy = (None, None) if values is None else map(table, values)
    choices = EpisodeChoices(
        rewards=table(steps["rewards"]),
        log_ratios=table(steps["log_ratios"]),
        steps=len(episode),
        gamma=gamma,
        q_logged=q_logged,
        q_policy=q_policy,
    )
    return choices, said


def _taken(steps: Mapping[str, NDArray[Any]], places: NDArray[Any]) -> dict[str, NDArray[Any]]:
    return {name: column[places] for name, column in steps.items()}


def _steps(
    policies: Policies, log: Log, progress: Callable[[int], None]
) -> dict[str, NDArray[Any]]:
    """Columns of all steps; policies without memory are asked as they are read.

    There are `shares`, the policy's probabilities of all actions, if actions are discrete, and
    `observations`, the numbers of each, if they are few.
    """
    remembers = any(one.has_memory for one in (policies.target, policies.logged_by) if one)
    parts = []
    for rows in log.read(0, log.rows if remembers else _ROWS):
        n, seen = len(rows), rows.observations
        ended = numpy.full(n, log.is_bandit)
        for role in ("terminated", "truncated"):
            if role in rows.columns:
                ended |= rows[role]
        # Episodes of several environments may have been recorded by turns: numbers tell them apart.
        numbers = rows.get("episode")
        columns = {
            "rewards": numpy.asarray(rows["reward"], numpy.float64),
            "episodes": numpy.zeros(n, int) if numbers is None else numbers,
            "ended": ended,
            "actions": rows.action_index,
        }
        if isinstance(seen, numpy.ndarray) and seen[0].size <= MAX_FEATURES:
            columns["observations"] = seen.reshape(n, -1).astype(float)
        if not remembers:
            columns |= _named(policies.log_ratios(rows))
        parts.append(columns)
        progress(n)
    steps = {name: numpy.concatenate([one[name] for one in parts]) for name in parts[0]}
    if "episode" not in log.roles:
        steps["episodes"] = numpy.concatenate([[0], steps["ended"][:-1].cumsum()])
    if remembers:
        steps |= _in_time(policies, rows, steps["episodes"])
    return steps


def _named(found: tuple[Floats, Floats | None]) -> dict[str, Floats]:
    ratios, shares = found
    return {"log_ratios": ratios} if shares is None else {"log_ratios": ratios, "shares": shares}


def _sequences(numbers: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Where sequences of equal numbers start, and how long they are."""
    starts = numpy.concatenate([[0], numpy.flatnonzero(numpy.diff(numbers)) + 1])
    return starts, numpy.diff(starts, append=len(numbers))


def _in_time(policies: Policies, rows: LogRows, episodes: NDArray[Any]) -> dict[str, Floats]:
    """`log_ratios` of policies with memory: one step of all episodes at a time."""
    order = numpy.argsort(episodes, kind="stable")
    starts, lengths = _sequences(episodes[order])
    for policy in filter(None, (policies.target, policies.logged_by)):
        policy.reset()
    columns: dict[str, Floats] = {}
    for time in range(int(lengths.max())):
        # Episodes that have ended go on with their last step, which nobody looks at.
        places = order[starts + numpy.minimum(time, lengths - 1)]
        alive = time < lengths
        for name, values in _named(policies.log_ratios(rows.take(places))).items():
            column = columns.setdefault(name, numpy.empty((len(order), *values.shape[1:])))
            column[places[alive]] = values[alive]
    return columns


def _values(
    steps: Mapping[str, NDArray[Any]], log: Log, episode: NDArray[Any], times: Floats, gamma: float
) -> tuple[Floats, Floats] | None:
    """Q of the logged actions and V of the policy; None where no model can be fitted."""
    if not {"shares", "observations"} <= set(steps):
        return None
    observations = steps["observations"]
    if isinstance(log.observation_space, spaces.Discrete):
        first, count = int(log.observation_space.start), int(log.observation_space.n)
        if count > MAX_FEATURES:
            return None
        observations = numpy.eye(count)[observations[:, 0].astype(int) - first]
    features = state_features(observations, times, MAX_FEATURES // log.num_arms)
    if features is None:
        return None
    ended = numpy.append(numpy.diff(episode) > 0, True)
    given = features, steps["actions"], steps["rewards"], ended, steps["shares"], episode % _FOLDS
    return fit_q(*given, gamma=gamma)
