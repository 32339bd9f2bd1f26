"""Samples from worker processes, acting for those environments that are ready."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy

from rlplug.batch.nested import copied, to_arrays, tree_map
from rlplug.envs import Environments
from rlplug.envs.saving import SavedEnvironments
from rlplug.envs.workers import WorkerVector
from rlplug.envs.workers.lost import Received
from rlplug.errors import FAILURES, PluginError, RequestError, RlplugError
from rlplug.feeds import Experience
from rlplug.plugin import Module
from rlplug.sampling.batching import Batching, BatchStats
from rlplug.sampling.buffers import finals_of, put_rows, restarted, rows_of, with_rows
from rlplug.sampling.policy_io import Columns
from rlplug.sampling.turns import Envs, Turns
from rlplug.sampling.vector import VectorSampler
from rlplug.spaces import ACTION_MASK

__all__ = ["WorkerSampler"]

Infos = Mapping[int, list[dict[str, Any]]]

_MOST_SHARES = 4
"""How many times its equal share of a collection one environment may bring."""


class WorkerSampler(VectorSampler):
    """Steps environments in worker processes, and acts for those that are ready.

    A collection has `steps` rows of each environment or, with `count`, about so many rows of
    whichever environments bring them; those that are stepping then are rows of the next one. With
    `ahead`, environments also begin steps for the next collection: they step while the learner
    learns. In lock-step (`batching.force_sync`) all are acted for at once, and the numbers are
    those of a `VectorSampler`.

    With `count`, the weights that act may be older than those that learn: log-probabilities are
    stored with the actions, where the module tells them; with `needs_log_prob`, it must.
    """

    def __init__(
        self,
        environments: Environments,
        module: Module,
        *,
        batching: Batching,
        steps: int = 1,
        count: int = 0,
        ahead: bool = False,
        needs_log_prob: bool = False,
        **more: Any,
    ) -> None:
        num_envs, vector = environments.num_envs, environments.vector
        rows = -(-_MOST_SHARES * count // num_envs) if count else steps
        super().__init__(environments, module, steps=rows, **more)
        if not isinstance(vector, WorkerVector):
            raise TypeError(f"worker processes are needed, not a {type(vector).__name__}")
        self._workers: WorkerVector = vector
        self._send = vector.send
        self._receive_steps, self._receive_all = vector.receive, vector.receive_all
        self._batching, self._batch_stats = batching, BatchStats()
        self._count, self._ahead = count, ahead
        self._module = module
        self._io.act.wants_log_prob = count > 0
        self._needs_log_prob = needs_log_prob
        self._has_memory = self._io.autoreset.initial_state is not None
        self._turns = Turns(num_envs, batching, steps=rows, count=count, ahead=ahead)
        self._received = Received()
        """What arrived and is in no row yet."""
        self._acted: Columns = {}
        """Columns of the steps that go on, one row for each environment."""
        self._was_reset = numpy.zeros(num_envs, bool)
        """Environments that were reset since their last row, which ended no episode."""
        self._finals: list[tuple[int, int, Columns]] = []
        self._lost: list[tuple[int, int]] = []

    def start(self, seed: int | None = None) -> None:
        """Reset the environments, each from a seed of its own under `seed`, or the run's."""
        self._drain()
        self._received = Received()
        super().start(seed)
        self._turns.start()

    def collect(self, timestep: int) -> Experience:
        """Take the next steps; what it returns is valid until the next call."""
        self._turns.collect(self.version)
        self._finals, self._lost, self._experience.states = [], [], []
        try:
            # What arrived while a checkpoint was saved.
            self._store()
            while not self._turns.is_complete():
                if self._wait_for_batch():
                    self._act_for_batch(timestep)
                self._receive(0.0)
            if self._count and self._has_memory:
                # A row of the next collection would need the state from before it.
                self._drain()
                self._store()
            while self._ahead and self._turns.are_enough_ready():
                self._act_for_batch(timestep)
        except RlplugError:
            raise
        except FAILURES as error:
            raise self._io.checks.failed("step", timestep, error) from error
        return self._experienced(timestep)

    def take_metrics(self) -> dict[str, float]:
        """Metrics of episodes, batches and workers since the last call."""
        restarts = {"sampling/restarts": float(self._workers.restarts)}
        return {**super().take_metrics(), **self._batch_stats.take(), **restarts}

    def record_phases(self, record: Callable[[str, Any], Any]) -> None:
        """Make phases of a profile: `step` is waiting for workers, and sending them actions."""
        self.choose = record("act", self.choose)
        self._receive_steps = record("step", self._receive_steps)
        self._receive_all = record("step", self._receive_all)
        self._send = record("step", self._send)

    # -- which environments are acted for -------------------------------------------------------

    def _wait_for_batch(self) -> bool:
        """Wait until there are environments to act for; False if the collection is complete."""
        began, turns = 0.0, self._turns
        while True:
            if turns.are_most_ready():
                return True
            seconds: float | None = None
            if turns.are_enough_ready():
                now = time.monotonic()
                began = began or now
                seconds = began + self._batching.max_wait_time - now
                if seconds <= 0:
                    return True
            self._receive(seconds)
            if turns.is_complete():
                return False

    def _act_for_batch(self, timestep: int) -> None:
        """Act for environments that are ready, and let them step."""
        chosen = self._turns.choose()
        envs = numpy.array(chosen, numpy.int64)
        io, act = self._io, self._io.act
        everyone = len(envs) == self._num_envs
        state, mask = act.state, io.current.get(ACTION_MASK)
        if state is not None:
            self._keep_state(envs, state)
            act.state = state if everyone else rows_of(state, envs)
        seen = io.current["observations"]
        seen = seen if everyone else rows_of(seen, envs)
        act.observations = seen if io.normalize is None else io.normalize(seen)
        act.action_mask = mask if everyone or mask is None else mask[envs]
        act.timestep = self._workers.timestep = timestep + self._turns.taken
        with self._frozen_weights:
            acted = self.choose(act)
        if state is not None:
            act.state = acted.state if everyone else with_rows(state, envs, acted.state)
        if self._needs_log_prob and "log_prob" not in acted.extras:
            raise PluginError(
                f"{type(self._module).__name__}.forward_exploration returned no log_prob, which "
                "is needed where the weights that act may be older than those that learn.",
                'try: Acted(…, extras={"log_prob": …}) if act.wants_log_prob',
            )
        actions = to_arrays(acted.actions)
        for name, column in {"actions": actions, **acted.extras}.items():
            if name not in self._acted:
                self._acted[name] = tree_map(self._empty, to_arrays(column))
            put_rows(self._acted[name], envs, column)
        self._turns.acted(chosen)
        self._batch_stats.acted_for(len(envs))
        self._send(envs, io.clip(actions), together=self._batching.force_sync)

    def _empty(self, leaf: Any) -> Any:
        return numpy.zeros((self._num_envs, *leaf.shape[1:]), leaf.dtype)

    def _keep_state(self, envs: Envs, state: Any) -> None:
        """Copy the recurrent state of environments that are at the start of a fragment."""
        numbers, inside = numpy.divmod(self._turns.times[envs], self._state_interval)
        states: Any = self._experience.states
        for number in numpy.unique(numbers[inside == 0]).tolist():
            rows = envs[(inside == 0) & (numbers == number)]
            while len(states) <= number:
                states.append(tree_map(copied, to_arrays(state)))
            put_rows(states[number], rows, rows_of(state, rows))

    # -- what arrives ---------------------------------------------------------------------------

    def _receive(self, seconds: float | None) -> None:
        """Wait for steps, and put them into rows."""
        if self._batching.force_sync:
            self._drain()
        else:
            self._wait(seconds)
        self._store()

    def _wait(self, seconds: float | None) -> None:
        began = time.perf_counter()
        self._received.add(self._receive_steps(seconds))
        self._io.step_seconds += time.perf_counter() - began

    def _drain(self) -> None:
        """Wait for all steps that go on."""
        began = time.perf_counter()
        self._received.add(self._receive_all())
        self._io.step_seconds += time.perf_counter() - began

    def _store(self) -> None:
        received, self._received = self._received, Received()
        infos: dict[int, list[dict[str, Any]]] = {}
        for env, info in received.infos:
            infos.setdefault(env, []).append(info)
        if received.envs:
            self._store_steps(numpy.array(sorted(received.envs), numpy.int64), infos)
        for lost in received.lost:
            self._store_lost(numpy.array(lost.envs, numpy.int64), infos)

    def _store_steps(self, envs: Envs, infos: Infos) -> None:
        shared, times = self._workers.columns, self._turns.times[envs]
        terminated, truncated = shared.terminated[envs], shared.truncated[envs]
        columns = {
            **rows_of(self._io.current, envs),
            **rows_of(self._acted, envs),
            "rewards": shared.rewards[envs],
            "terminated": terminated,
            "truncated": truncated,
        }
        if self._count:
            columns["version"] = self._turns.versions[envs]
            self._batch_stats.aged(self.version - self._turns.versions[envs])
        self._buffer.write_rows(times, envs, columns)
        self._batch_stats.stepped(shared.seconds[envs])
        ended = envs[terminated | truncated]
        for env in ended.tolist() if self._keep_next else ():
            final = {"observations": rows_of(shared.finals, env)}
            self._finals.append(
                (int(self._turns.times[env]), env, self._with_mask(final, env, infos))
            )
        self._begin_episodes(ended)
        self._observe(envs, infos)
        self._turns.stepped(envs)

    def _with_mask(self, final: Columns, env: int, infos: Infos) -> Columns:
        """The final observation of an episode, with its action mask if there are any."""
        mask, observations = self._io.current.get(ACTION_MASK), final["observations"]
        if isinstance(observations, dict) and ACTION_MASK in observations:
            final[ACTION_MASK] = observations[ACTION_MASK]
        elif mask is not None:
            told = (info.get("final_info", {}).get(ACTION_MASK) for info in infos.get(env, ()))
            known = next((one for one in told if one is not None), None)
            # A final state without a mask may be bootstrapped from the value of any action.
            final[ACTION_MASK] = numpy.ones_like(mask[env]) if known is None else known
        return final

    def _store_lost(self, envs: Envs, infos: Infos) -> None:
        """End the episodes of lost environments after their last step, as if truncated there."""
        grids = self._buffer.grids
        for env in envs.tolist():
            last = int(self._turns.times[env]) - 1
            if last < 0:
                self._was_reset[env] = True
                self.episode_stats.forget_episode(env)
            elif not (grids["terminated"][last, env] or grids["truncated"][last, env]):
                grids["truncated"][last, env] = True
                self._lost.append((last, env))
                if self._keep_next:
                    self._finals.append((last, env, rows_of(self._io.current, env)))
        self._begin_episodes(envs)
        self._observe(envs, infos)
        self._turns.lost(envs)

    def _begin_episodes(self, envs: Envs) -> None:
        """Reset the recurrent state of these environments."""
        act = self._io.act
        if act.state is not None and len(envs):
            act.state = restarted(act.state, envs, self._io.autoreset.initial_state)

    def _observe(self, envs: Envs, infos: Infos) -> None:
        """Make what these environments show now the module's next input."""
        current, checks = self._io.current, self._io.checks
        seen = current["observations"]
        put_rows(seen, envs, rows_of(self._workers.columns.observations, envs))
        masks: dict[int, Any] = {}
        regrets: list[float] = []
        for env in envs.tolist():
            for info in infos.get(env, ()):
                if ACTION_MASK in info:
                    masks[env] = numpy.asarray(info[ACTION_MASK])
                regret = info.get("final_info", info).get("regret")
                regrets += [] if regret is None else [float(regret)]
        if regrets:
            self.episode_stats.add_infos({"regret": numpy.array(regrets)})
        mask = current.get(ACTION_MASK)
        if isinstance(seen, dict) and ACTION_MASK in seen:
            mask = seen[ACTION_MASK]
        elif masks or mask is not None:
            if mask is None:
                one = next(iter(masks.values()))
                mask = numpy.ones((self._num_envs, *one.shape), one.dtype)
            for env in envs.tolist():
                mask[env] = masks.get(env, 1)
        if mask is not None:
            current[ACTION_MASK] = checks.check_mask(mask, None, self._turns.taken)

    # -- the collection -------------------------------------------------------------------------

    def _experienced(self, timestep: int) -> Experience:
        """The rows of the collection."""
        experience, current = self._experience, self._io.current
        steps, columns = self._steps, dict(self._buffer.columns)
        experience.stepped = None
        if self._count:
            experience.counts = self._turns.times.copy()
            if not experience.by_environment:
                # The rows of later times are not used.
                steps = int(self._turns.times.max())
                end = steps * self._num_envs
                columns = {
                    name: tree_map(lambda leaf: leaf[:end], column)
                    for name, column in columns.items()
                }
            self._buffer.pad(self._turns.times, steps, current)
            stepped = numpy.arange(steps)[:, None] < self._turns.times
            experience.stepped = (stepped.T if experience.by_environment else stepped).reshape(-1)
        elif steps == 1:
            # Batches of single steps are not copied again.
            columns = {name: tree_map(copied, column) for name, column in columns.items()}
        experience.columns, experience.steps = columns, steps
        experience.following = tree_map(copied, current) if self._keep_next else {}
        experience.finals = finals_of(self._finals, self._num_envs)
        experience.after_reset = self._after_reset or (
            self._was_reset.copy() if self._was_reset.any() else False
        )
        self._after_reset = False
        self._was_reset[:] = False
        self._turns.finish()
        self._count_episodes(experience)
        self._check(experience, timestep)
        if self._min_trajectory > 1:
            self._discard_short(experience)
        return experience

    def _count_episodes(self, experience: Experience) -> None:
        grid = experience.grid
        columns, stats = experience.columns, self.episode_stats
        ends = columns["terminated"], columns["truncated"]
        if experience.steps == 1 and not self._count and not self._lost:
            stats.add(columns["rewards"], *ends, {})
            return
        stepped = None if experience.stepped is None else grid(experience.stepped)
        terminated, truncated = map(grid, ends)
        stats.add_rollout(grid(columns["rewards"]), terminated, truncated, stepped, self._lost)

    # -- state ----------------------------------------------------------------------------------

    def _save_environments(self) -> SavedEnvironments:
        self._drain()
        state, reason = self._workers.get_state()
        if reason:
            return SavedEnvironments(reason=reason)
        shared = self._workers.columns
        beside = {
            "io": self._io.get_state(),
            "turns": self._turns.get_state(),
            "received": self._received,
            "acted": self._acted,
            "was_reset": self._was_reset,
            "shared": {name: getattr(shared, name) for name in _SHARED},
        }
        return SavedEnvironments(pickled=pickle.dumps((state, beside)))

    def _restore_environments(self, saved: bytes) -> None:
        try:
            state, beside = pickle.loads(saved)
        except Exception as error:
            raise RequestError(
                f"the saved environments cannot be read: {type(error).__name__}: {error}.",
                "try: --set checkpoint.save_environments=false --allow-drift, which starts new "
                "episodes",
            ) from error
        if beside["acted"] and "log_prob" not in beside["acted"]:
            # Steps of a version that kept none: their rows need the columns of those to come.
            if self._needs_log_prob:
                raise RequestError(
                    "steps of the saved environments have no log_prob, which is needed where the "
                    "weights that act may be older than those that learn.",
                    "try: --set checkpoint.save_environments=false --allow-drift, which starts "
                    "new episodes",
                )
            self._io.act.wants_log_prob = False
        self._workers.set_state(state)
        self._io.set_state(beside["io"])
        self._turns.set_state(beside["turns"])
        self._received, self._acted = beside["received"], beside["acted"]
        self._was_reset = beside["was_reset"]
        for name, column in beside["shared"].items():
            tree_map(numpy.copyto, getattr(self._workers.columns, name), column)


_SHARED = ("observations", "finals", "rewards", "seconds", "terminated", "truncated")
