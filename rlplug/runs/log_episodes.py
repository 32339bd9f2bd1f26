"""What a log did in its episodes, how likely a policy does the same, and a model of its values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy
from gymnasium import spaces
from numpy.typing import NDArray

from rlplug.errors import RequestError
from rlplug.logs import Log, LogRows
from rlplug.ope.estimators import Floats
from rlplug.ope.judge import EpisodeChoices
from rlplug.ope.q_model import MAX_FEATURES, fit_q, state_features
from rlplug.runs.log_choices import FOLDS, ROWS, LoggedBy, Target

__all__ = ["episode_choices"]


@attrs.define(eq=False)
class _Steps:
    """Columns of all steps, (n, …)."""

    rewards: Floats
    episodes: NDArray[numpy.int64]
    ended: NDArray[numpy.bool_]
    actions: NDArray[Any]
    log_ratios: Floats
    shares: Floats | None
    """Probabilities of all actions, if they are discrete."""
    observations: Floats | None
    """Numbers of each observation, if they are few."""

    def take(self, places: NDArray[Any]) -> _Steps:
        """The same with the rows at these places."""
        columns: dict[str, Any] = attrs.asdict(self, recurse=False)
        for name, column in columns.items():
            columns[name] = None if column is None else column[places]
        return _Steps(**columns)


def episode_choices(
    target: Target, log: Log, logged_by: LoggedBy, gamma: float, progress: Callable[[int], None]
) -> tuple[EpisodeChoices, list[str]]:
    """The choices in all episodes that end in the log, and what is to be said of the others."""
    steps = _read(target, log, logged_by, progress)
    steps = steps.take(numpy.argsort(steps.episodes, kind="stable"))
    starts, lengths = _runs(steps.episodes)
    whole = steps.ended[starts + lengths - 1]
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
        steps, lengths = steps.take(numpy.repeat(whole, lengths)), lengths[whole]
    n, longest = len(lengths), int(lengths.max())
    episode = numpy.repeat(numpy.arange(n), lengths)
    time = numpy.arange(len(episode)) - numpy.repeat(lengths.cumsum() - lengths, lengths)

    def table(column: Floats) -> Floats:
        found = numpy.zeros((n, longest))
        found[episode, time] = column
        return found

    values = _values(steps, log, episode, time / longest, gamma)
    q_logged, q_policy = (None, None) if values is None else map(table, values)
    choices = EpisodeChoices(
        rewards=table(steps.rewards),
        log_ratios=table(steps.log_ratios),
        steps=len(episode),
        gamma=gamma,
        q_logged=q_logged,
        q_policy=q_policy,
    )
    return choices, said


def _read(target: Target, log: Log, logged_by: LoggedBy, progress: Callable[[int], None]) -> _Steps:
    """All steps; a policy without memory is asked as they are read."""
    remembers = target.policy.has_memory or (
        logged_by.policy is not None and logged_by.policy.has_memory
    )
    parts = []
    for rows in log.read(0, log.rows if remembers else ROWS):
        ended = _ended(rows, log)
        # Episodes of several environments may have been recorded by turns: numbers tell them apart.
        numbers = rows.get("episode")
        chances: tuple[Floats, Floats | None] = numpy.zeros(len(rows)), None
        if not remembers:
            chances = _chances(target, log, logged_by, rows)
        seen = rows.observations
        few = isinstance(seen, numpy.ndarray) and seen[0].size <= MAX_FEATURES
        parts.append(
            _Steps(
                rewards=numpy.asarray(rows["reward"], numpy.float64),
                episodes=numpy.zeros(len(rows), int) if numbers is None else numbers,
                ended=ended,
                actions=rows.action_index,
                log_ratios=chances[0],
                shares=chances[1],
                observations=seen.reshape(len(rows), -1).astype(float) if few else None,
            )
        )
        progress(len(rows))
    columns: dict[str, Any] = attrs.asdict(parts[0], recurse=False)
    for name, first in columns.items():
        if first is not None:
            columns[name] = numpy.concatenate([getattr(one, name) for one in parts])
    steps = _Steps(**columns)
    if "episode" not in log.roles:
        steps.episodes = numpy.concatenate([[0], steps.ended[:-1].cumsum()])
    if remembers:
        steps.log_ratios, steps.shares = _in_time(target, log, logged_by, rows, steps.episodes)
    return steps


def _ended(rows: LogRows, log: Log) -> NDArray[numpy.bool_]:
    """Where episodes end."""
    ended = numpy.full(len(rows), log.is_bandit)
    for role in ("terminated", "truncated"):
        if role in rows.columns:
            ended |= rows[role]
    return ended


def _runs(numbers: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Where runs of equal numbers start, and how long they are."""
    starts = numpy.concatenate([[0], numpy.flatnonzero(numpy.diff(numbers)) + 1])
    return starts, numpy.diff(starts, append=len(numbers))


def _chances(
    target: Target, log: Log, logged_by: LoggedBy, rows: LogRows
) -> tuple[Floats, Floats | None]:
    """log ρ of each row, and the policy's probabilities of all actions, if they are discrete."""
    shares = None
    if log.num_arms:
        shares = target.probabilities(rows)
        with numpy.errstate(divide="ignore"):
            chosen = numpy.log(shares[numpy.arange(len(rows)), rows.action_index])
    else:
        mask = rows.get("action_mask")
        chosen = target.policy.log_prob(rows.observations, rows["action"], action_mask=mask)
    return numpy.asarray(chosen, numpy.float64) - logged_by.log_propensities(rows), shares


def _in_time(
    target: Target, log: Log, logged_by: LoggedBy, rows: LogRows, episodes: NDArray[Any]
) -> tuple[Floats, Floats | None]:
    """`_chances` of policies with memory: one step of all episodes at a time."""
    order = numpy.argsort(episodes, kind="stable")
    starts, lengths = _runs(episodes[order])
    ratios = numpy.empty(len(order))
    shares = numpy.empty((len(order), log.num_arms)) if log.num_arms else None
    for policy in filter(None, (target.policy, logged_by.policy)):
        policy.reset()
    for time in range(int(lengths.max())):
        # Episodes that have ended go on with their last step, which nobody looks at.
        places = order[starts + numpy.minimum(time, lengths - 1)]
        found, chances = _chances(target, log, logged_by, rows.take(places))
        alive = time < lengths
        ratios[places[alive]] = found[alive]
        if shares is not None and chances is not None:
            shares[places[alive]] = chances[alive]
    return ratios, shares


def _values(
    steps: _Steps, log: Log, episode: NDArray[Any], times: Floats, gamma: float
) -> tuple[Floats, Floats] | None:
    """Q of the logged actions and V of the policy; None where no model can be fitted."""
    if steps.shares is None or steps.observations is None:
        return None
    observations = steps.observations
    if isinstance(log.observation_space, spaces.Discrete):
        first, count = int(log.observation_space.start), int(log.observation_space.n)
        if count > MAX_FEATURES:
            return None
        observations = numpy.eye(count)[observations[:, 0].astype(int) - first]
    features = state_features(observations, times, MAX_FEATURES // log.num_arms)
    if features is None:
        return None
    ended = numpy.append(numpy.diff(episode) > 0, True)
    return fit_q(
        features, steps.actions, steps.rewards, ended, steps.shares, episode % FOLDS, gamma=gamma
    )
