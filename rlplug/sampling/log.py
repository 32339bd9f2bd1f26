"""Reads experience from a log, and evaluates the policy on it before it is learned from."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, pairwise
from typing import Any, TypeAlias

import numpy
import torch

from rlplug.batch.nested import to_arrays, tree_map
from rlplug.errors import RequestError
from rlplug.feeds import Experience
from rlplug.feeds.feed import rows_of
from rlplug.logs import Log, LogRows
from rlplug.logs.encoding import said_of
from rlplug.plugin import ActInput, Module
from rlplug.seeding import derive

__all__ = ["LogReader", "OfflineEvaluation"]

_LOG = logging.getLogger("rlplug")

_LEARNED = {"label": "label", "weight": "weights", "action_mask": "action_mask"}
"""Role → column of a batch."""


class LogReader:
    """Gives the rows of a log as experience: one step of as many environments as rows.

    `pool` rows at a time are shuffled, and handed out `rows` at a time; a pool of 1 leaves the
    rows in order. After its last row the log begins again. The run ends after `steps` rows. With
    `trains_on_accepted`, rows are weighted as the `evaluation` weighs them.
    """

    roster = None

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
        self._shuffles, self._pool_size = pool > 1, max(pool, rows)
        self._wants_next, self._n_step, self._gamma = wants_next, n_step, gamma
        self._evaluation, self._trains_on_accepted = evaluation, trains_on_accepted
        self._epoch = 0
        self._pools: Iterator[tuple[LogRows, LogRows | None]] = iter(())
        self._first = self._next_first = 0
        """Rows of the log at which the pool in memory begins, and the next one."""
        self._columns: dict[str, Any] = {}
        self._order: Any = ()
        """In which the rows of the pool are handed out; of which `_used` were."""
        self._used = 0
        self._said_unseen = False
        self._rewards = numpy.zeros(2)
        """How many rewards there were since the last report, and their sum."""

    def start(self, seed: int | None = None) -> None:
        """Begin with the first row."""
        self._read_from(0)

    def collect(self, timestep: int) -> Experience:
        """The next rows, at most up to the end of the run."""
        if self._used == len(self._order):
            self._read_pool()
        stop = self._used + min(self._rows, max(self._steps - timestep, 1))
        columns = rows_of(self._columns, self._order[self._used : stop])
        rows = len(columns["rewards"])
        self._used += rows
        if self._evaluation is not None:
            importance = self._evaluation.weigh(columns, timestep, self._log.num_arms)
            del columns["propensity"]
            if self._trains_on_accepted:
                columns["weights"] = columns.get("weights", 1.0) * importance
        self._rewards += rows, columns["rewards"].sum()
        return Experience(columns, steps=1, num_envs=rows)

    def absorb(self) -> None:
        """Observations of a log are not normalized."""

    def take_metrics(self) -> dict[str, float]:
        """The mean reward of the rows since the last call, and how often the log was read."""
        (count, total), self._rewards = self._rewards.tolist(), numpy.zeros(2)
        metrics = {"data/reward_mean": total / count} if count else {}
        read = self._next_first - len(self._order) + self._used
        if self._evaluation is not None:
            metrics |= self._evaluation.take_metrics()
        unseen = self._log.unseen
        if unseen:
            metrics["data/unseen_levels"] = float(sum(unseen.values()))
            if not self._said_unseen:
                _LOG.warning("rlplug: %s", said_of(unseen))
            self._said_unseen = True
        return {**metrics, "data/epoch": self._epoch + read / self._log.rows}

    def get_state(self, *, environments: bool = True) -> dict[str, Any]:
        """Where it reads."""
        return {
            "files": self._log.fingerprint(),
            "epoch": self._epoch,
            "pool": self._first,
            "used": self._used,
            "rewards": self._rewards.tolist(),
            "evaluation": None if self._evaluation is None else self._evaluation.get_state(),
            "not_saved": "",
        }

    def set_state(self, saved: Mapping[str, Any], *, seed: int) -> str:
        """Go on at the row where the state was saved."""
        before, now = [list(file) for file in saved["files"]], self._log.fingerprint()
        if before != now:
            pairs = [*zip(before, now, strict=False), (before[-1], now[-1])]
            was, there = next(pair for pair in pairs if pair[0] != pair[1])
            raise RequestError(
                f"the log is not the one that the run was reading: {was[0]} had {was[1]:,} rows "
                f"and {was[2]:,} bytes, now {there[0]} has {there[1]:,} and {there[2]:,}.",
                "try: the same files, or a new run with --init-from",
            )
        if self._evaluation is not None and saved["evaluation"] is not None:
            self._evaluation.set_state(saved["evaluation"])
        self._epoch, self._rewards = saved["epoch"], numpy.array(saved["rewards"])
        self._read_from(saved["pool"])
        if saved["used"]:
            self._read_pool()
            self._used = saved["used"]
        return ""

    def close(self) -> None:
        """Close the files."""
        self._pools = iter(())

    def _read_from(self, first: int) -> None:
        self._first = self._next_first = first
        self._order, self._used = (), 0
        batches = self._log.read(first, self._pool_size)
        self._pools = ((rows, None) for rows in batches)
        if self._wants_next and not self._log.is_bandit and "next_context" not in self._log.roles:
            # The rows after a pool hold the next observation of its last row.
            ended: Any = (None,)
            self._pools = pairwise(chain(batches, ended))

    def _read_pool(self) -> None:
        pool = next(self._pools, None)
        if pool is None:
            self._epoch += 1
            self._read_from(0)
            pool = next(self._pools)
        rows, following = pool
        self._first, self._next_first = rows.first, rows.first + len(rows)
        self._columns, self._used = self._columns_of(rows, following), 0
        self._order = numpy.arange(len(self._columns["rewards"]))
        if self._shuffles:
            seed = derive(self._seed, "log", self._epoch, rows.first)
            self._order = numpy.random.default_rng(seed).permutation(len(self._order))

    def _columns_of(self, rows: LogRows, following: LogRows | None) -> dict[str, Any]:
        """The columns of a batch."""
        columns: dict[str, Any] = {
            "observations": rows.observations,
            "actions": rows["action"],
            "rewards": rows["reward"],
            "terminated": numpy.ones(len(rows), numpy.bool_),
            "truncated": numpy.zeros(len(rows), numpy.bool_),
        }
        columns |= {name: rows[role] for role, name in _LEARNED.items() if role in rows.columns}
        if self._evaluation is not None:
            columns["propensity"] = rows.propensity_or_uniform(self._log.num_arms)
        episode = numpy.arange(len(rows))
        if not self._log.is_bandit:
            episode = _add_ends(columns, rows, following)
        if not self._wants_next:
            return columns
        if self._n_step > 1:
            columns["episode"] = episode
        if self._log.is_bandit:
            columns["next_observations"] = columns["observations"]
        elif "next_context" in rows.columns:
            columns["next_observations"] = rows["next_context"]
        else:
            columns = _with_next(columns, following)
        return _over_steps(columns, self._n_step, self._gamma) if self._n_step > 1 else columns


def _add_ends(columns: dict[str, Any], rows: LogRows, following: LogRows | None) -> Any:
    """Add where episodes end; one that only changes its number was cut off.

    Returns the number of the episode of each row; without a column, ends tell them apart.
    """
    terminated, truncated, episode = map(rows.get, ("terminated", "truncated", "episode"))
    columns["terminated"] = ~columns["terminated"] if terminated is None else terminated
    if truncated is not None:
        columns["truncated"] = truncated
    elif episode is not None:
        after = numpy.append(episode[1:], -1 if following is None else following["episode"][0])
        columns["truncated"] = (after != episode) & ~columns["terminated"]
    if episode is None:
        ended = columns["terminated"] | columns["truncated"]
        episode = numpy.concatenate([[0], ended[:-1].cumsum()])
    return episode


def _with_next(columns: dict[str, Any], following: LogRows | None) -> dict[str, Any]:
    """The rows whose next observation is that of the row after them, or does not matter."""
    seen = columns["observations"]
    if isinstance(seen, Mapping):
        raise RequestError(
            "episodes of a bandit's observations have no next observations.",
            "try: leave data.episode, data.terminated and data.truncated out",
        )
    last = seen[-1:] if following is None else following["context"][:1]
    columns["next_observations"] = numpy.concatenate([seen[1:], last])
    usable = ~columns["truncated"]
    if following is None:
        usable[-1] &= columns["terminated"][-1]
    if not usable.any():
        raise RequestError(
            "no row of the log has a next observation.",
            "try: map the columns data.next_context, or data.episode and data.terminated",
        )
    return {name: column[usable] for name, column in columns.items()}


def _over_steps(columns: dict[str, Any], n_step: int, gamma: float) -> dict[str, Any]:
    """Transitions over up to `n_step` steps, with the `discounts` of what follows them.

    They stop at the end of their episode, and at the last row of it that is here. `episode` is left
    out.
    """
    columns = dict(columns)
    episode = columns.pop("episode")
    # Episodes of several environments may have been recorded by turns.
    order = numpy.argsort(episode, kind="stable")
    ended = columns["terminated"] | columns["truncated"]
    follows = numpy.append(numpy.diff(episode[order]) == 0, False) & ~ended[order]
    rewards = columns["rewards"][order].astype(numpy.float64)
    returns, last = rewards.copy(), numpy.arange(len(order))
    goes_on = numpy.ones(len(order), bool)
    for step in range(1, n_step):
        goes_on &= follows[last]
        last[goes_on] += 1
        returns[goes_on] += gamma**step * rewards[last[goes_on]]
    steps = last - numpy.arange(len(order)) + 1
    back = numpy.empty(len(order), int)
    back[order] = numpy.arange(len(order))
    at = order[last][back]
    for name in ("terminated", "truncated", "next_observations"):
        columns[name] = tree_map(lambda leaf: leaf[at], columns[name])
    columns["rewards"] = returns[back]
    columns["discounts"] = (gamma**steps)[back]
    return columns


Reduce: TypeAlias = Callable[[list[torch.Tensor], str], list[torch.Tensor]]
"""Combines tensors over all learners: gives their sums ("sum"), or the largest ones ("max")."""


class OfflineEvaluation:
    """Compares the actions of a frozen copy with those of a log (Li et al. 2011).

    Rows where they agree are accepted, with the importance weight 1 / propensity, at most
    `max_weight` unless that is 0; all others have the weight 0. The copy is renewed after each
    `critical_weight` of data. `explores`: the copy acts as in training, not greedily.
    """

    def __init__(
        self,
        module: Module,
        *,
        random: numpy.random.Generator,
        explores: bool,
        max_weight: float = 0.0,
        critical_weight: float = 0.0,
        learners: int = 1,
        reduce: Reduce | None = None,
    ) -> None:
        self._module, self._random, self._explores = module, random, explores
        self._max_weight, self._critical_weight = max_weight or numpy.inf, critical_weight
        self._learners, self._reduce = learners, reduce
        self._frozen = self._copy()
        self._since = 0.0
        """Weight of the data since the copy was made, of all learners."""
        self._renewed = 0
        self._sums = numpy.zeros((2, 8))
        """What `_metrics` takes, since the last report, and of the whole run."""
        self._extremes = numpy.array([-numpy.inf, 0.0])
        """Minus the fewest arms of a row since the last report, and the most."""

    def weigh(self, columns: Mapping[str, Any], timestep: int, num_arms: int) -> Any:
        """The importance weight of each row; 0 where the copy would have acted otherwise."""
        if self._since >= self._critical_weight and self._sums[1, 0]:
            self._frozen, self._since = self._copy(), 0.0
            self._renewed += 1
        mask, rewards = columns.get("action_mask"), columns["rewards"]
        act = ActInput(
            columns["observations"], action_mask=mask, timestep=timestep, random=self._random
        )
        frozen = self._frozen
        choose = frozen.forward_exploration if self._explores else frozen.forward_inference
        with torch.no_grad():
            accepted = to_arrays(choose(act).actions) == columns["actions"]
        importance = numpy.minimum(accepted / columns["propensity"], self._max_weight)
        rows = len(accepted)
        weights = columns.get("weights", numpy.ones(rows))
        slates = numpy.full(rows, num_arms) if mask is None else (mask != 0).sum(1)
        if rows:
            numpy.maximum(self._extremes, [-slates.min(), slates.max()], out=self._extremes)
        effective = weights * importance
        self._sums += (
            rows,
            accepted.sum(),
            weights.sum(),
            effective.sum(),
            slates.sum(),
            rewards.sum(),
            rewards[accepted].sum(),
            effective @ rewards,
        )
        self._since += float(self._summed(weights.sum(keepdims=True))[0])
        return importance

    def take_metrics(self) -> dict[str, float]:
        """Metrics since the last call, and the estimate over the whole run."""
        # Learners without rows join the sums of the others.
        window, whole = self._summed(self._sums)
        least, most = self._summed(self._extremes, "max").tolist()
        own = self._sums[0].copy()
        if not window[0]:
            return {}
        metrics = _metrics(window, "ope")
        if whole[3]:
            metrics["ope/value"] = float(whole[7] / whole[3])
        if self._learners > 1 and own[0]:
            metrics |= _metrics(own, "ope/local")
        metrics |= {"ope/slate_size_min": -least, "ope/slate_size_max": most}
        metrics["ope/renewed"] = float(self._renewed)
        self._sums[0] = 0.0
        self._extremes[:] = -numpy.inf, 0.0
        return metrics

    def get_state(self) -> dict[str, Any]:
        """All that the next weights depend on."""
        return {
            "frozen": {name: part.clone() for name, part in self._frozen.state_dict().items()},
            "random": self._random.bit_generator.state,
            "since": self._since,
            "renewed": self._renewed,
            "sums": self._sums.copy(),
            "slates": self._extremes.copy(),
        }

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        self._frozen = self._copy()
        self._frozen.load_state_dict(saved["frozen"])
        self._random.bit_generator.state = saved["random"]
        self._since, self._renewed = saved["since"], saved["renewed"]
        self._sums[:], self._extremes[:] = saved["sums"], saved["slates"]

    def _copy(self) -> Module:
        return copy.deepcopy(self._module).eval()

    def _summed(self, values: Any, op: str = "sum") -> Any:
        """The values over all learners."""
        if self._reduce is None or self._learners == 1:
            return values
        (summed,) = self._reduce([torch.from_numpy(values.copy())], op)
        return summed.numpy()


def _metrics(sums: Any, prefix: str) -> dict[str, float]:
    rows, accepted, _, weight_accepted, slates, rewards, rewards_accepted, _ = sums.tolist()
    rejected = rows - accepted
    metrics = {
        "accepted_fraction": accepted / rows,
        "reward_all": rewards / rows,
        "slate_size_mean": slates / rows,
    }
    if accepted:
        metrics["reward_accepted"] = rewards_accepted / accepted
        metrics["importance_weight_mean"] = weight_accepted / rows
    if rejected:
        metrics["reward_rejected"] = (rewards - rewards_accepted) / rejected
        metrics["accepted_per_rejected"] = accepted / rejected
    return {f"{prefix}/{name}": value for name, value in metrics.items()}
