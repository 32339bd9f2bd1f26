"""Environments in worker processes as a source, and which of them are acted for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy

from rlplug.batch.nested import to_arrays, tree_map
from rlplug.config.sections import SamplingSection
from rlplug.envs import Environments
from rlplug.envs.saving import SavedEnvironments, joined, parts_of
from rlplug.envs.workers import WorkerVector
from rlplug.feeds import OpenFeed
from rlplug.feeds.feed import rows_of
from rlplug.sampling.source import Rows, Source
from rlplug.spaces import ACTION_MASK, find_mask

__all__ = ["WorkerSource"]


class WorkerSource(Source):
    """Steps environments in worker processes, all `in_step` or each as soon as it has an action.

    Not in step, a collection has as many rows of each environment or, with `count`, about so many
    of whichever bring them; `ahead`, environments may also begin steps for the next collection.
    """

    def __init__(
        self,
        environments: Environments,
        vector: WorkerVector,
        options: SamplingSection,
        feed: OpenFeed,
        count: int,
        memory: bool,
    ) -> None:
        super().__init__(environments)
        ahead = count > 0 and not feed.by_environment and not memory
        num = vector.num_envs
        self.own = Rows(num, is_live=True)
        self.rows = dict.fromkeys(self.rows, self.own)
        self.in_step, self.spare_steps = options.force_sync, int(ahead)
        self._workers, self._vector = vector.workers, vector
        self._shared: Any = vector.columns
        self._keep_finals, self._options, self._count = feed.wants_next, options, count
        self._ahead, self._drains = ahead, count > 0 and memory
        self._most = min(options.max_batch_size or num, num)
        self._all = numpy.arange(num)
        self._received: dict[int, list[dict[str, Any]]] = {}
        """The environments whose steps arrived since the last turn, and their infos."""
        self._arrived: dict[int, list[dict[str, Any]]] = {}
        """Those whose steps arrived between collections."""
        self._ready: list[int] = []
        """Environments to act for, in the order in which they became ready."""
        self._stepping = numpy.zeros(num, bool)
        self._counts = numpy.zeros(num, numpy.int64)
        """Rows that each environment brought to this collection."""
        self._versions = numpy.zeros(num, numpy.int64)
        """The updates that the weights had seen that acted last."""
        self._last_version = 0
        names = ("rewards", "terminated", "truncated")
        self._outcome = {name: getattr(self._shared, name) for name in names}
        self._seconds = 0.0
        self._sizes: list[int] = []
        """Of the batches since the last report."""
        self._ages: list[Any] = []
        """Updates between choosing the actions of rows and collecting them, since then."""

    def reset(self, seed: int) -> None:
        """Reset all environments from a seed."""
        self._workers.receive_all()
        rows, self._arrived = self.own, {}
        self._stepping[:] = False
        self._ready = self._all.tolist()
        observations, infos = self.environments.reset(seed)
        self.checks.check("an observation", observations, 0)
        rows.seen, rows.mask = self._shared.observations, None
        mask = find_mask(rows.seen, infos)
        if mask is not None:
            rows.mask = self.checks.check_mask(mask, None, 0)

    def turns(self, timestep: int, steps: int) -> Iterator[int]:
        """Step after each turn to act; yields the steps of the run so far."""
        if self.in_step:
            yield from super().turns(timestep, steps)
            return
        self._counts[:] = 0
        arrived, self._arrived = self._arrived, {}
        self._note(arrived)
        until, options = 0.0, self._options
        while not self._is_complete(steps):
            ready = [env for env in self._ready if self._counts[env] < steps]
            soon = len(ready) + int(self._stepping.sum())
            seconds: float | None = None
            if ready and len(ready) >= min(options.min_batch_size, soon):
                now = time.monotonic()
                until = until or now + options.max_wait_time
                seconds = 0.0 if len(ready) >= min(self._most, soon) else until - now
            if seconds is None or seconds > 0.0:
                self.recv(seconds)
            else:
                until = 0.0
                yield self._turn(ready, timestep)
                self.recv(0.0)
        if self._drains:
            # A row of the next collection would need the state from before it.
            self._note(dict(self._workers.receive_all()))
        while self._ahead and len(self._ready) >= max(
            min(options.min_batch_size, len(self._ready) + int(self._stepping.sum())), 1
        ):
            yield self._turn(self._ready, timestep)
        self._answer()
        self._last_version = self.version

    def send(self, module_id: str, which: Any, actions: Any) -> None:
        """Let these environments take a step, or all."""
        which = self._all if which is None else which
        self._stepping[which], self._versions[which] = True, self.version
        self._sizes.append(len(which))
        self._workers.timestep = self.timestep
        self._vector.send(which, self.clip(to_arrays(actions)), together=self.in_step)

    def recv(self, max_wait: float | None = None) -> None:
        """Wait for steps; for those of all if they are taken `in_step`."""
        began, workers = time.perf_counter(), self._workers
        received = dict(workers.receive_all() if self.in_step else workers.receive(max_wait))
        self.step_seconds += time.perf_counter() - began
        if self.in_step:
            self._received = received
            self._answer()
        else:
            self._note(received)

    def take_metrics(self) -> dict[str, float]:
        """Metrics of workers and of batches since the last call.

        `batches_of_4` is the share of batches of 4 to 7 environments; those of 1, 2, 8 … likewise.
        """
        metrics = {"time/worker_seconds": self._seconds}
        ages = numpy.concatenate([(), *self._ages])
        for name, column in (("batch_size", self._sizes), ("staleness", ages)):
            if len(column):
                metrics[f"sampling/{name}_mean"] = float(numpy.mean(column))
                metrics[f"sampling/{name}_min"] = float(min(column))
                metrics[f"sampling/{name}_max"] = float(max(column))
        for size in {2 ** (size.bit_length() - 1) for size in self._sizes}:
            share = numpy.mean([size <= one < 2 * size for one in self._sizes])
            metrics[f"sampling/batches_of_{size}"] = float(share)
        self._seconds, self._sizes, self._ages = 0.0, [], []
        return metrics

    def save(self, beside: Any) -> SavedEnvironments:
        """The environments and what belongs to their step, or why they cannot be saved."""
        self._arrived |= dict(self._workers.receive_all())
        own = {name: getattr(self, name) for name in _SAVED}
        shared = {name: getattr(self._shared, name) for name in _SHARED}
        return joined(self._workers.call("save"), (own, self.own.mask, shared, beside))

    def restore(self, pickled: bytes) -> Any:
        """Continue the saved episodes; returns what was saved beside them."""
        environments, (own, mask, shared, beside) = parts_of(pickled, self.own.num)
        self._workers.call("restore", environments)
        for name, value in own.items():
            setattr(self, name, value)
        for name, column in shared.items():
            tree_map(numpy.copyto, getattr(self._shared, name), column)
        self.own.seen = self._shared.observations
        self.own.mask = mask if find_mask(self.own.seen, {}) is None else self.own.seen[ACTION_MASK]
        return beside

    def _is_complete(self, steps: int) -> bool:
        """Whether the collection has all its rows."""
        if not self._count:
            return bool((self._counts >= steps).all())
        if self._counts.sum() < self._count:
            return False
        # As many updates are expected until the next collection as since the last one.
        oldest = 2 * self.version - self._last_version - self._options.max_staleness
        too_old = self._stepping & (self._versions < oldest)
        return not self._options.max_staleness or not too_old.any()

    def _turn(self, ready: list[int], timestep: int) -> int:
        """Let those act that have been ready the longest; returns the steps of the run so far."""
        chosen = sorted(ready[: self._most])
        self._ready = [env for env in self._ready if env not in chosen]
        self.own.turns = None if len(chosen) == self.own.num else numpy.array(chosen)
        if self._count:
            self.own.more = {"version": numpy.full(len(chosen), self.version)}
        self._answer()
        self.timestep = timestep + int(self._counts.sum())
        return self.timestep

    def _note(self, received: dict[int, list[dict[str, Any]]]) -> None:
        """These environments have taken their step, which is a row of this collection."""
        envs = sorted(received)
        self._received |= received
        self._ready += envs
        self._stepping[envs] = False
        self._counts[envs] += 1
        if self._count and envs:
            self._ages.append(self.version - self._versions[envs])

    def _answer(self) -> None:
        """Make what arrived the answers of its rows."""
        received, self._received = self._received, {}
        rows, shared = self.own, self._shared
        is_all = len(received) == rows.num
        envs = self._all if is_all else numpy.array(sorted(received), numpy.int64)
        rows.answered = None if is_all else envs
        rows.outcome = self._outcome
        self._seconds += float(shared.seconds[envs].sum())
        told = sorted(pair for pair in received.items() if pair[1])
        rows.infos = infos = self._vector.batched(told) if told else {}
        ended = envs[shared.terminated[envs] | shared.truncated[envs]]
        if len(ended):
            rows.restarted = ended
            if self._keep_finals:
                last = rows_of(shared.finals, ended)
                rows.keep_finals(ended, last, rows.mask, infos.get("final_info", {}))
        if infos or rows.mask is not None:
            self._take_masks(envs, find_mask(rows.seen, infos))

    def _take_masks(self, envs: Any, found: Any) -> None:
        """Take the masks of these environments; without one, everything is allowed."""
        rows = self.own
        if rows.mask is None:
            rows.mask = found
        elif found is not rows.mask:
            rows.mask[envs] = 1 if found is None else found[envs]
        if rows.mask is not None and len(envs):
            # Others may be written meanwhile.
            masks = numpy.ones_like(rows.mask)
            masks[envs] = rows.mask[envs]
            self.checks.check_mask(masks, None, self.timestep)


_SHARED = ("observations", "finals", "rewards", "seconds", "terminated", "truncated")
_SAVED = ("_arrived", "_ready", "_stepping", "_versions", "_last_version")
"""What the next collection depends on."""
