"""Environments in worker processes as a source: those that have stepped are answered for."""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping
from typing import Any

import numpy

from rlplug.batch.nested import to_arrays, tree_map
from rlplug.envs import Environments
from rlplug.envs.saving import SavedEnvironments
from rlplug.envs.workers import WorkerVector
from rlplug.envs.workers.vector import Received
from rlplug.errors import RequestError
from rlplug.sampling.buffer import put_rows, rows_of
from rlplug.sampling.source import Source
from rlplug.spaces import ACTION_MASK, find_mask

__all__ = ["WorkerSource"]

Infos = Mapping[int, list[dict[str, Any]]]


class WorkerSource(Source):
    """Steps environments in worker processes, all `in_step` or each as soon as it has an action."""

    is_watched = False

    def __init__(
        self,
        environments: Environments,
        vector: WorkerVector,
        *,
        in_step: bool,
        keep_finals: bool,
        during: str = "",
    ) -> None:
        super().__init__(environments, during)
        self.vector = vector
        self.in_step, self._keep_finals = in_step, keep_finals
        self._worker_seconds = 0.0
        self._received = Received()
        """What arrived and was not answered for yet."""

    def reset(self, seed: int) -> None:
        """Reset all environments from a seed."""
        self.drain()
        self._received = Received()
        self.timestep, self.doing = 0, "reset"
        observations, infos = self.environments.reset(seed)
        self.doing = ""
        self.checks.check("an observation", observations, 0)
        mask = find_mask(observations, infos)
        if mask is not None:
            mask = self.checks.check_mask(mask, None, 0)
        self.own.seen, self.own.mask = observations, mask

    def send(self, module_id: str, which: Any, actions: Any) -> None:
        """Let these environments take a step, or all."""
        which = numpy.arange(self.own.num) if which is None else which
        self.doing, self.vector.timestep = "step", self.timestep
        self.vector.send(which, self.clip(to_arrays(actions)), together=self.in_step)
        self.doing = ""

    def recv(self, max_wait: float | None = None) -> None:
        """Wait for steps, at most so many seconds; in step, for all."""
        if self.in_step:
            self.drain()
        else:
            self.doing, began = "step", time.perf_counter()
            self._received.add(self.vector.receive(max_wait))
            self.step_seconds += time.perf_counter() - began
            self.doing = ""
        self.answer()

    def drain(self) -> None:
        """Wait for all steps that go on."""
        self.doing, began = "step", time.perf_counter()
        self._received.add(self.vector.receive_all())
        self.step_seconds += time.perf_counter() - began
        self.doing = ""

    def answer(self) -> None:
        """Make what arrived the answers of its rows."""
        rows, shared = self.own, self.vector.columns
        received, self._received = self._received, Received()
        infos: dict[int, list[dict[str, Any]]] = {}
        for env, info in received.infos:
            infos.setdefault(env, []).append(info)
        envs = numpy.array(sorted(received.envs), numpy.int64)
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
        state, reason = self.vector.get_state()
        if reason:
            return SavedEnvironments(reason=reason)
        shared = {name: getattr(self.vector.columns, name) for name in _SHARED}
        own = self.own.seen, self.own.mask, self._received, shared
        return SavedEnvironments(pickled=pickle.dumps((state, own, beside)))

    def restore(self, pickled: bytes) -> Any:
        """Continue the saved episodes; returns what was saved beside them."""
        try:
            state, own, beside = pickle.loads(pickled)
        except Exception as error:
            raise RequestError(
                f"the saved environments cannot be read: {type(error).__name__}: {error}.",
                "try: --set checkpoint.save_environments=false --allow-drift, which starts new "
                "episodes",
            ) from error
        self.vector.set_state(state)
        self.own.seen, self.own.mask, self._received, shared = own
        for name, column in shared.items():
            tree_map(numpy.copyto, getattr(self.vector.columns, name), column)
        return beside


_SHARED = ("observations", "finals", "rewards", "seconds", "terminated", "truncated")
