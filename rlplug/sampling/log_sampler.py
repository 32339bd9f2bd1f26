"""Reads experience from a log, where a run learns from one instead of from environments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import numpy

from rlplug.errors import RequestError
from rlplug.feeds import Experience
from rlplug.logs import Log, LogRows
from rlplug.sampling.log_steps import ends_of, episodes_of, over_steps, with_next
from rlplug.sampling.offline_evaluation import OfflineEvaluation
from rlplug.seeding import derive

__all__ = ["LogSampler"]

_LEARNED = {"label": "label", "weight": "weights", "action_mask": "action_mask"}
"""Role → column of a batch."""


class LogSampler:
    """Gives the rows of a log as experience: one step of as many environments as rows.

    `pool` rows at a time are shuffled, and handed out `rows` at a time; a pool of 1 leaves the
    rows in order. After its last row the log begins again. The run ends after `steps` rows. With
    `trains_on_accepted`, rows are weighted as the `evaluation` weighs them.
    """

    def __init__(
        self,
        log: Log,
        *,
        rows: int,
        steps: int,
        seed: int,
        pool: int = 1,
        wants_next: bool = False,
        n_step: int = 1,
        gamma: float = 1.0,
        evaluation: OfflineEvaluation | None = None,
        trains_on_accepted: bool = False,
    ) -> None:
        self.version = 0
        self.step_seconds = 0.0
        self._log, self._rows, self._steps, self._seed = log, rows, steps, seed
        self._shuffles = pool > 1
        self._pool_size = max(pool, rows) if self._shuffles else rows
        self._wants_next, self._n_step, self._gamma = wants_next, n_step, gamma
        self._evaluation, self._trains_on_accepted = evaluation, trains_on_accepted
        self._epoch = 0
        self._next_pool = 0
        """Row at which the next pool begins."""
        self._pool: _Pool | None = None
        self._pools: Iterator[tuple[LogRows, LogRows | None]] = iter(())
        self._reward_sum, self._reward_rows = 0.0, 0

    def start(self, seed: int | None = None) -> None:
        """Begin with the first row."""
        self._read_from(0)

    def collect(self, timestep: int) -> Experience:
        """The next rows, at most up to the end of the run."""
        if self._pool is None or not self._pool.left:
            self._pool = self._read_pool()
        wanted = min(self._rows, max(self._steps - timestep, 1))
        columns = self._pool.take(wanted)
        if self._evaluation is not None:
            importance = self._evaluation.weigh(columns, timestep, self._log.num_arms)
            del columns["propensity"]
            if self._trains_on_accepted:
                given = columns.get("weights")
                columns["weights"] = importance if given is None else given * importance
        rewards = columns["rewards"]
        self._reward_sum += float(rewards.sum())
        self._reward_rows += len(rewards)
        return Experience(columns, steps=1, num_envs=len(rewards))

    def record_phases(self, record: Callable[[str, Any], Any]) -> None:
        """Make a phase of a profile, `step`, of reading."""
        self._read_pool = record("step", self._read_pool)  # type: ignore[method-assign] # timed

    def absorb(self) -> None:
        """Observations of a log are not normalized."""

    def take_metrics(self) -> dict[str, float]:
        """The mean reward of the rows since the last call, and how often the log was read."""
        rows = self._reward_rows
        metrics = {"data/reward_mean": self._reward_sum / rows} if rows else {}
        self._reward_sum, self._reward_rows = 0.0, 0
        done = self._next_pool - (0 if self._pool is None else self._pool.left)
        if self._evaluation is not None:
            metrics |= self._evaluation.take_metrics()
        return {**metrics, "data/epoch": self._epoch + done / self._log.rows}

    def get_state(self, *, environments: bool = True) -> dict[str, Any]:
        """Where it reads."""
        pool = self._pool
        return {
            "files": self._log.fingerprint(),
            "epoch": self._epoch,
            "pool": self._next_pool if pool is None else pool.first,
            "used": 0 if pool is None else pool.used,
            "rewards": [self._reward_sum, self._reward_rows],
            "evaluation": None if self._evaluation is None else self._evaluation.get_state(),
            "not_saved": "",
        }

    def set_state(self, saved: Mapping[str, Any], *, seed: int) -> str:
        """Go on at the row where the state was saved."""
        before, now = [list(one) for one in saved["files"]], self._log.fingerprint()
        if before != now:
            was, there = next(
                (pair for pair in zip(before, now, strict=False) if pair[0] != pair[1]),
                (before[-1], now[-1]),
            )
            raise RequestError(
                f"the log is not the one that the run was reading: {was[0]} had {was[1]:,} rows "
                f"and {was[2]:,} bytes, now {there[0]} has {there[1]:,} and {there[2]:,}.",
                "try: the same files, or a new run with --init-from",
            )
        if self._evaluation is not None and saved["evaluation"] is not None:
            self._evaluation.set_state(saved["evaluation"])
        self._epoch = saved["epoch"]
        self._reward_sum, self._reward_rows = saved["rewards"]
        self._read_from(saved["pool"])
        if saved["used"]:
            self._pool = self._read_pool()
            self._pool.used = saved["used"]
        return ""

    def close(self) -> None:
        """Close the files."""
        self._pools = iter(())

    def _read_from(self, first: int) -> None:
        self._pool, self._next_pool = None, first
        self._pools = self._with_following(first)

    def _read_pool(self) -> _Pool:
        found = next(self._pools, None)
        if found is None:
            self._epoch += 1
            self._read_from(0)
            found = next(self._pools)
        rows, following = found
        self._next_pool = rows.first + len(rows)
        columns = self._columns(rows, following)
        order = None
        if self._shuffles:
            seed = derive(self._seed, "log", self._epoch, rows.first)
            order = numpy.random.default_rng(seed).permutation(len(columns["rewards"]))
        return _Pool(first=rows.first, columns=columns, order=order)

    def _with_following(self, first: int) -> Iterator[tuple[LogRows, LogRows | None]]:
        """Pools, each with the rows after it: they hold the next observation of its last row."""
        batches = self._log.read(first, self._pool_size)
        if not self._needs_following:
            for rows in batches:
                yield rows, None
            return
        before: LogRows | None = None
        for rows in batches:
            if before is not None:
                yield before, rows
            before = rows
        if before is not None:
            yield before, None

    @property
    def _needs_following(self) -> bool:
        log = self._log
        return self._wants_next and not log.is_bandit and "next_context" not in log.roles

    def _columns(self, rows: LogRows, following: LogRows | None) -> dict[str, Any]:
        """The columns of a batch."""
        count = len(rows)
        columns: dict[str, Any] = {
            "observations": rows.observations,
            "actions": rows["action"],
            "rewards": rows["reward"],
            "terminated": numpy.ones(count, numpy.bool_),
            "truncated": numpy.zeros(count, numpy.bool_),
        }
        for role, name in _LEARNED.items():
            if role in rows.columns:
                columns[name] = rows[role]
        if self._evaluation is not None:
            columns["propensity"] = rows.propensity_or_uniform(self._log.num_arms)
        if not self._log.is_bandit:
            columns |= ends_of(rows, following)
        if not self._wants_next:
            return columns
        if self._n_step > 1:
            columns["episode"] = episodes_of(rows, columns)
        if self._log.is_bandit:
            columns["next_observations"] = columns["observations"]
        elif "next_context" in rows.columns:
            columns["next_observations"] = rows["next_context"]
        else:
            columns = with_next(columns, following)
            if not len(columns["rewards"]):
                raise RequestError(
                    "no row of the log has a next observation.",
                    "try: map the columns data.next_context, or data.episode and data.terminated",
                )
        return over_steps(columns, self._n_step, self._gamma) if self._n_step > 1 else columns


@attrs.define(eq=False)
class _Pool:
    """Rows in memory, handed out in an order."""

    first: int
    """Number of the first row in the log."""
    columns: dict[str, Any]
    order: Any
    """None: as they are."""
    used: int = 0

    @property
    def left(self) -> int:
        """Rows that were not handed out yet."""
        return len(self.columns["rewards"]) - self.used

    def take(self, count: int) -> dict[str, Any]:
        """The next rows, fewer at the end."""
        stop = min(self.used + count, len(self.columns["rewards"]))
        part: Any = slice(self.used, stop)
        if self.order is not None:
            part = self.order[part]
        self.used = stop
        return {name: _rows(column, part) for name, column in self.columns.items()}


def _rows(column: Any, part: Any) -> Any:
    if isinstance(column, Mapping):
        return {name: _rows(one, part) for name, one in column.items()}
    return column[part]
