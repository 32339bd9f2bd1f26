"""Environments in worker processes as a source, and which of them are acted for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import numpy
from numpy.typing import NDArray

from rlplug.batch.nested import to_arrays, tree_map
from rlplug.config.sections import SamplingSection
from rlplug.envs import Environments
from rlplug.envs.saving import SavedEnvironments, joined, parts_of
from rlplug.envs.workers import Infos, WorkerVector
from rlplug.feeds.feed import rows_of
from rlplug.sampling.actor import put_rows
from rlplug.sampling.source import Source
from rlplug.spaces import ACTION_MASK

__all__ = ["Turns", "WorkerSource"]

Envs: TypeAlias = NDArray[numpy.int64]


class Turns:
    """The environments of a collection, some of which step while others are acted for.

    A collection has `steps` rows of each environment or, with `count`, about so many of whichever
    bring them, at most `steps` of each; `times` has those that each brought. With `ahead`,
    environments may also begin steps for the next collection.
    """

    def __init__(
        self, times: Envs, options: SamplingSection, *, steps: int, count: int, ahead: bool
    ) -> None:
        num = len(times)
        self.ready: list[int] = []
        """Environments to act for, in the order in which they became ready."""
        self.stepping = numpy.zeros(num, bool)
        self.versions: Envs = numpy.zeros(num, numpy.int64)
        """The updates that the weights had seen that acted last."""
        self.sizes: list[int] = []
        """Of the batches since the last report."""
        self.ages: list[Any] = []
        """Updates since the actions of the rows were chosen that came since the last report."""
        self.version = 0
        """Updates of the weights that act."""
        self._least = num if options.force_sync else options.min_batch_size
        """The fewest environments to act for at once, unless no more will be ready."""
        self._most = min(options.max_batch_size or num, num)
        self._longest = options.max_wait_time
        """Seconds to wait for more environments once there are enough."""
        self._max_staleness = options.max_staleness
        """The most updates between choosing an action and learning from it; 0: no limit."""
        self._times = times
        self._steps, self._count, self._ahead = steps, count, ahead
        self._last_version = 0

    def start(self) -> None:
        """All were reset: none steps, and all are to be acted for."""
        self.stepping[:] = False
        self.ready = list(range(len(self._times)))

    def wait(self, receive: Callable[[float | None], None]) -> list[int]:
        """Receive steps until there are environments to act for; none: the collection is complete.

        They are in their order.
        """
        began = 0.0
        while not self.is_complete():
            if self._are_most_ready():
                return self._chosen()
            seconds: float | None = None
            if self._are_enough_ready():
                now = time.monotonic()
                began = began or now
                seconds = began + self._longest - now
                if seconds <= 0:
                    return self._chosen()
            receive(seconds)
        return []

    def ahead(self) -> list[int]:
        """Environments to act for although the collection is complete."""
        return self._chosen() if self._ahead and self._are_enough_ready() else []

    def acted(self, envs: list[int]) -> None:
        """These environments begin a step."""
        self.ready = [env for env in self.ready if env not in envs]
        self.versions[envs] = self.version
        self.stepping[envs] = True
        self.sizes.append(len(envs))

    def stepped(self, envs: Envs) -> None:
        """These have taken it, which is a row."""
        self.stepping[envs] = False
        self.ready += envs.tolist()
        if self._count:
            self.ages.append(self.version - self.versions[envs])

    def finish(self) -> None:
        """The collection has ended."""
        self._last_version = self.version

    def is_complete(self) -> bool:
        """Whether the collection has all its rows."""
        if not self._count:
            return bool((self._times >= self._steps).all())
        return bool(self._times.sum() >= self._count) and not self._too_old()

    def take_metrics(self) -> dict[str, float]:
        """The metrics of batches since the last call.

        `batches_of_4` is the share of batches of 4 to 7 environments; those of 1, 2, 8 … likewise.
        """
        metrics: dict[str, float] = {}
        if self.sizes:
            sizes = numpy.array(self.sizes)
            for kind in ("mean", "min", "max"):
                metrics[f"sampling/batch_size_{kind}"] = float(getattr(sizes, kind)())
            bins, counts = numpy.unique(numpy.log2(sizes).astype(int), return_counts=True)
            for power, count in zip(bins.tolist(), counts.tolist(), strict=True):
                metrics[f"sampling/batches_of_{2**power}"] = count / len(sizes)
        if self.ages:
            ages = numpy.concatenate(self.ages)
            metrics["sampling/staleness_mean"] = float(ages.mean())
            metrics["sampling/staleness_max"] = float(ages.max())
        self.sizes, self.ages = [], []
        return metrics

    def get_state(self) -> dict[str, Any]:
        """All that the next collection depends on."""
        return {
            "ready": self.ready,
            "stepping": self.stepping,
            "versions": self.versions,
            "last_version": self._last_version,
        }

    def set_state(self, saved: dict[str, Any]) -> None:
        """Restore a state."""
        self.ready, self.stepping = saved["ready"], saved["stepping"]
        self.versions, self._last_version = saved["versions"], saved["last_version"]

    def _chosen(self) -> list[int]:
        return sorted(self._may_step()[: self._most])

    def _are_most_ready(self) -> bool:
        """Whether waiting would add no environment to those to act for."""
        ready = len(self._may_step())
        return ready >= self._most or bool(ready and not self.stepping.any())

    def _are_enough_ready(self) -> bool:
        """Whether so many are ready as must be; all that may be soon, if those are fewer."""
        ready = len(self._may_step())
        soon = int(self.stepping.sum()) + ready
        return ready >= max(min(self._least, soon), 1)

    def _may_step(self) -> list[int]:
        """Ready environments that may bring more rows."""
        if self._ahead and self.is_complete():
            return self.ready
        return [env for env in self.ready if self._times[env] < self._steps]

    def _too_old(self) -> bool:
        """Whether a step would be too many updates old in the next collection."""
        if not self._max_staleness:
            return False
        next_version = 2 * self.version - self._last_version
        oldest = next_version - self._max_staleness
        return bool((self.stepping & (self.versions < oldest)).any())


class WorkerSource(Source):
    """Steps environments in worker processes, all `in_step` or each as soon as it has an action."""

    is_watched = False

    def __init__(
        self, environments: Environments, vector: WorkerVector, keep_finals: bool, in_step: bool
    ) -> None:
        super().__init__(environments)
        self.own.is_live = True
        self.vector = vector
        self.in_step, self._keep_finals = in_step, keep_finals
        self._worker_seconds = 0.0
        self._received: list[tuple[int, list[dict[str, Any]]]] = []
        """The environments whose steps arrived and were not answered for yet, and their infos."""

    def reset(self, seed: int) -> None:
        """Reset all environments from a seed."""
        self.drain()
        self._received = []
        self.timestep, self.doing = 0, "reset"
        self.own.seen, infos = self.environments.reset(seed)
        self.doing, self.own.mask = "", None
        self.checks.check("an observation", self.own.seen, 0)
        self._observe(numpy.arange(self.own.num), cast(Infos, infos))

    def send(self, module_id: str, which: Any, actions: Any) -> None:
        """Let these environments take a step, or all."""
        which = numpy.arange(self.own.num) if which is None else which
        self.doing, self.vector.workers.timestep = "step", self.timestep
        self.vector.send(which, self.clip(to_arrays(actions)), together=self.in_step)
        self.doing = ""

    def recv(self, max_wait: float | None = None) -> None:
        """Wait for steps, at most so many seconds; in step, for all."""
        if self.in_step:
            self.drain()
        else:
            self.doing, began = "step", time.perf_counter()
            self._received += self.vector.workers.receive(max_wait)
            self.step_seconds += time.perf_counter() - began
            self.doing = ""
        self.answer()

    def drain(self) -> None:
        """Wait for all steps that go on."""
        self.doing, began = "step", time.perf_counter()
        self._received += self.vector.workers.receive_all()
        self.step_seconds += time.perf_counter() - began
        self.doing = ""

    def answer(self) -> None:
        """Make what arrived the answers of its rows."""
        rows, shared = self.own, self.vector.columns
        infos, self._received = dict(self._received), []
        envs = numpy.array(sorted(infos), numpy.int64)
        infos = {env: told for env, told in infos.items() if told}
        rows.answered = None if len(envs) == rows.num else envs
        rows.rewards, rows.infos = shared.rewards, {}
        rows.terminated, rows.truncated = shared.terminated, shared.truncated
        rows.restarted = ended = envs[shared.terminated[envs] | shared.truncated[envs]]
        rows.finals = []
        if len(ended) and self._keep_finals:
            rows.finals.append((ended, self._finals(ended, infos)))
        self._worker_seconds += float(shared.seconds[envs].sum())
        self._observe(envs, infos)

    def _finals(self, ended: Any, infos: Infos) -> dict[str, Any]:
        """The final observations of episodes, with their action masks if there are any."""
        observations, mask = rows_of(self.vector.columns.finals, ended), self.own.mask
        final: dict[str, Any] = {"observations": observations}
        if isinstance(observations, dict) and ACTION_MASK in observations:
            final[ACTION_MASK] = observations[ACTION_MASK]
        elif mask is not None:
            # A final state without a mask may be bootstrapped from the value of any action.
            final[ACTION_MASK] = masks = numpy.ones_like(mask[ended])
            for index, env in enumerate(ended.tolist()):
                told = (info.get("final_info", {}).get(ACTION_MASK) for info in infos.get(env, ()))
                known = next((mask for mask in told if mask is not None), None)
                if known is not None:
                    masks[index] = known
        return final

    def _observe(self, envs: Any, infos: Infos) -> None:
        """Take what these environments show now."""
        rows = self.own
        put_rows(rows.seen, envs, rows_of(self.vector.columns.observations, envs))
        masks: dict[int, Any] = {}
        regrets: list[float] = []
        for env in envs.tolist() if infos else ():
            for info in infos.get(env, ()):
                if ACTION_MASK in info:
                    masks[env] = numpy.asarray(info[ACTION_MASK])
                regret = info.get("final_info", info).get("regret")
                regrets += [] if regret is None else [float(regret)]
        if regrets:
            rows.infos = {"regret": numpy.array([*rows.infos.get("regret", ()), *regrets])}
        if isinstance(rows.seen, dict) and ACTION_MASK in rows.seen:
            rows.mask = rows.seen[ACTION_MASK]
        elif masks or rows.mask is not None:
            if rows.mask is None:
                first = next(iter(masks.values()))
                rows.mask = numpy.ones((rows.num, *first.shape), first.dtype)
            for env in envs.tolist():
                rows.mask[env] = masks.get(env, 1)
        if rows.mask is not None and len(envs):
            rows.mask = self.checks.check_mask(rows.mask, None, self.timestep)

    def take_metrics(self) -> dict[str, float]:
        """Metrics of the workers since the last call."""
        seconds, self._worker_seconds = self._worker_seconds, 0.0
        return {"time/worker_seconds": seconds}

    def save(self, beside: Any) -> SavedEnvironments:
        """The environments and what belongs to their step, or why they cannot be saved."""
        shared = {name: getattr(self.vector.columns, name) for name in _SHARED}
        own = self.own.seen, self.own.mask, self._received, shared
        return joined(self.vector.workers.call("save"), (own, beside))

    def restore(self, pickled: bytes) -> Any:
        """Continue the saved episodes; returns what was saved beside them."""
        environments, (own, beside) = parts_of(pickled, self.own.num)
        self.vector.workers.call("restore", environments)
        self.own.seen, self.own.mask, self._received, shared = own
        for name, column in shared.items():
            tree_map(numpy.copyto, getattr(self.vector.columns, name), column)
        return beside


_SHARED = ("observations", "finals", "rewards", "seconds", "terminated", "truncated")
