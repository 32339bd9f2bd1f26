"""Samples by runners that are Ray actors: each steps its share of the environments."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from rlplug.envs import Environments
from rlplug.errors import EnvironmentFailedError, RequestError, RunFailedError
from rlplug.feeds import Experience
from rlplug.plugin import Module
from rlplug.sampling.episode_stats import EpisodeStats, metrics_of_modules
from rlplug.sampling.league import Roster
from rlplug.scale.cluster import this_node, why_gone
from rlplug.scale.experience import join

__all__ = ["RaySampler"]

_LOG = logging.getLogger("rlplug")

_TOLD_SECONDS = 20.0
"""How long room is waited for before a person is told."""

_ROOM_SECONDS = 10.0
"""How long a lost runner waits for a place of its own before it goes on beside another."""


class RaySampler:
    """Collects from all runners at once, at most `ahead` collections before the last weights.

    `make_runner` makes the runner of an index; `life` counts those that were made later, and
    `beside` is a node on which it reserves nothing, if there is no room for it. Weights of all
    modules and normalisation go through the object store once per version; `collecting` has the
    modules that learn from what runners collect, with the number of rows of all runners. Each of
    the `learners` of a run has as many runners.
    """

    def __init__(
        self,
        ray: Any,
        make_runner: Callable[..., Any],
        environments: Environments,
        modules: Mapping[str, Module],
        collecting: Mapping[str, int],
        *,
        runners: int,
        learners: int,
        ahead: int,
        max_restarts: int,
        placement_timeout: float,
        roster: Roster | None,
    ) -> None:
        self.version = 0
        """Updates of the weights so far."""
        self.step_seconds = 0.0
        """Seconds that the environments of the slowest runner took for their steps."""
        self._ray = ray
        self._make_runner = make_runner
        self._normalization = environments.normalization
        self._modules = modules
        self._learners = learners
        self._ahead = ahead
        self._max_restarts = max_restarts
        self._placement_timeout = placement_timeout
        self._lives = 0
        self._lost: list[str] = []
        """The nodes of runners that were replaced; empty for those that died while they started."""
        self._gone = (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError)
        self.roster = roster
        """Who may play in the league, where there is one."""
        self._told: list[set[int]] = [set() for _ in range(runners)]
        """The copies of the league that each runner has."""
        self._stats = {module_id: EpisodeStats(rows) for module_id, rows in collecting.items()}
        self._put: tuple[int | None, Any] = (None, None)
        self._pending: deque[tuple[int, list[Any]]] = deque()
        """Timesteps and answers of collections under way, the oldest first."""
        self._last: Experience | None = None
        self._nodes: list[str] = []
        self._waiting: dict[int, tuple[Any, Any]] = {}
        """For runners beside others: those that wait for the place, and what their build gives."""
        self._runners = [make_runner(index, life=0) for index in range(runners)]
        try:
            for index in range(runners):
                self._wait_for_room(index)
            self._all("build")
            self._nodes = self._all("node")
        except BaseException:
            self.close()
            raise

    @property
    def stats_by_module(self) -> Mapping[str, EpisodeStats]:
        """The statistics of the episodes of all its runners."""
        return self._stats

    def start(self, seed: int | None = None) -> None:
        """Reset the environments, from a seed of their own under `seed`, or the run's."""
        self._pending.clear()
        if self.roster is not None:
            self.roster.begin()
        self._all("start", seed, told=True)

    def collect(self, timestep: int) -> Experience:
        """The next steps of all runners."""
        self._move_to_places()
        while len(self._pending) <= self._ahead:
            self._begin(timestep)
        parts = [self._received(index) for index in range(len(self._runners))]
        self._pending.popleft()
        self.step_seconds = max(one["step_seconds"] for one in parts)
        if self.roster is not None:
            for one in parts:
                self.roster.results += one["results"]
        self._last = join([one["experience"] for one in parts])
        return self._last

    def absorb(self) -> None:
        """Update the normalisation statistics with the last collection."""
        if self._normalization is not None and self._last is not None:
            self._last.absorb_into(self._normalization)

    def take_metrics(self) -> dict[str, float]:
        """Metrics of the episodes of all runners since the last call."""
        sums = self._all("take_sums")
        found = {
            module_id: stats.metrics(sum(one[module_id] for one in sums))
            for module_id, stats in self._stats.items()
        }
        metrics = metrics_of_modules(found)
        restarts = float(len(self._lost))
        over_learners = next(iter(self._stats.values())).sum
        if over_learners is not None:
            (restarts,) = over_learners([restarts])
        if restarts:
            metrics["sampling/restarts"] = restarts
        if self.roster is not None:
            self.roster.settle()
            metrics |= self.roster.metrics()
        return metrics

    def get_state(self, *, environments: bool) -> dict[str, Any]:
        """The states of all runners; collections under way are not part of them."""
        states = self._all("get_state", environments)
        reason = next((one["not_saved"] for one in states if one["not_saved"]), "")
        return {
            "runners": states,
            "stats": {name: one.get_state() for name, one in self._stats.items()},
            "results": [] if self.roster is None else self.roster.results,
            "environments": b"" if reason else b"those of the runners",
            "not_saved": reason,
        }

    def set_state(self, saved: Mapping[str, Any], *, seed: int) -> str:
        """Restore a state; returns why environments were reset, from `seed`, or nothing."""
        states = saved.get("runners")
        if states is None or len(states) != len(self._runners):
            before = "no runners"
            if states is not None:
                count = len(states) * self._learners
                before = f"{count} runner{'s' if count > 1 else ''}"
            self.start(seed)
            return f"the run had {before}, now it has {len(self._runners) * self._learners}"
        for name, one in self._stats.items():
            one.set_state(saved["stats"][name])
        if self.roster is not None:
            self.roster.results = [(number, score) for number, score in saved["results"]]
        reason = str(saved["not_saved"])
        if not saved["environments"]:
            states = [{**one, "environments": b"", "not_saved": reason} for one in states]
        answers = [
            runner.set_state.remote(state, seed, self._league(index))
            for index, (runner, state) in enumerate(zip(self._runners, states, strict=True))
        ]
        told = [self._answer(one) for one in answers]
        return next((one for one in told if one), "")

    def close(self) -> None:
        """End the runners."""
        for runner in [*self._runners, *(own for own, _ in self._waiting.values())]:
            self._ray.kill(runner)

    # -- inside ----------------------------------------------------------------------------------

    def _begin(self, timestep: int) -> None:
        if self.roster is not None:
            self.roster.refresh(timestep)
        weights = self._weights()
        answers = [
            one.collect.remote(weights, timestep, self._league(index))
            for index, one in enumerate(self._runners)
        ]
        self._pending.append((timestep, answers))

    def _league(self, index: int) -> dict[str, Any] | None:
        """What a runner is told of the league, without the copies that it has."""
        if self.roster is None:
            return None
        told = self.roster.tell(self._told[index])
        self._told[index] |= {one.number for one in self.roster.copies}
        return told

    def _weights(self) -> Any:
        """The weights in the object store, put there once per version."""
        version, reference = self._put
        if version != self.version:
            reference = self._ray.put(
                {
                    "version": self.version,
                    "modules": {
                        module_id: {
                            name: value.numpy(force=True) if isinstance(value, Tensor) else value
                            for name, value in module.state_dict().items()
                        }
                        for module_id, module in self._modules.items()
                    },
                    "normalization": None
                    if self._normalization is None
                    else self._normalization.get_state(),
                }
            )
            self._put = self.version, reference
        return reference

    def _received(self, index: int) -> dict[str, Any]:
        """A runner's part of the oldest collection; one that has died is replaced first."""
        while True:
            try:
                told: dict[str, Any] = self._answer(self._pending[0][1][index])
                return told
            except self._gone as error:
                self._replace(index, error)

    def _replace(self, index: int, error: Exception) -> None:
        node = self._nodes[index] if self._nodes else ""
        while True:
            self._lost.append(node)
            reason = why_gone(self._ray, error)
            if self._deaths() > self._max_restarts:
                raise RunFailedError(
                    f"runner {index} died ({reason}), after {self._max_restarts} others.",
                    "try: look at its memory, or --set scale.max_restarts=N",
                ) from error
            _LOG.warning(
                "rlplug: runner %d died and is replaced; its episodes start anew (%s).",
                index,
                reason,
            )
            # One that only cannot be reached would hold what it reserves.
            self._ray.kill(self._runners[index])
            self._told[index] = set()
            try:
                built = self._place_anew(index)
                runner = self._runners[index]
                self._answer(built)
                self._answer(runner.start.remote(None, self._league(index)))
                if self._nodes:
                    self._nodes[index] = self._answer(runner.node.remote())
                break
            except self._gone as again:
                # On a node that is leaving, too.
                error, node = again, ""
        # What the dead one had under way comes from its successor, in the same order.
        for timestep, answers in self._pending:
            answers[index] = runner.collect.remote(self._weights(), timestep, self._league(index))

    def _deaths(self) -> int:
        """How many runners died, without those whose node has left."""
        alive = self._alive()
        return len([node for node in self._lost if not node or node in alive])

    def _alive(self) -> set[str]:
        return {one["NodeID"] for one in self._ray.nodes() if one["Alive"]}

    def _place_anew(self, index: int) -> Any:
        """Place a lost runner, beside another if there is no room; gives what its build gives."""
        if index not in self._waiting:
            self._waiting[index] = self._make_built(index)
        own, built = self._waiting.pop(index)
        self._runners[index] = own
        placed = own.node.remote()
        if self._ray.wait([placed], timeout=_ROOM_SECONDS)[0]:
            return built
        guest, built_beside = self._make_built(index, beside=self._node_beside(index))
        first, _ = self._ray.wait([placed, guest.node.remote()])
        if placed in first:
            self._ray.kill(guest)
            return built
        _LOG.warning(
            "rlplug: there is no room for runner %d, which goes on beside another until there is.",
            index,
        )
        self._runners[index] = guest
        self._waiting[index] = own, built
        return built_beside

    def _make_built(self, index: int, **where: Any) -> tuple[Any, Any]:
        self._lives += 1
        runner = self._make_runner(index, life=self._lives, **where)
        return runner, runner.build.remote()

    def _node_beside(self, index: int) -> str:
        """The node with the fewest of the other runners; that of this process if it has all."""
        alive = self._alive()
        others = [node for other, node in enumerate(self._nodes) if other != index]
        counts = Counter(node for node in others if node in alive)
        return min(counts, key=counts.__getitem__, default=this_node(self._ray))

    def _move_to_places(self) -> None:
        """Give runners that are beside others the places for which there is room by now."""
        for index, (own, built) in list(self._waiting.items()):
            if not self._ray.wait([built], timeout=0)[0]:
                continue
            guest = self._runners[index]
            try:
                # After the collections that it has under way.
                state = self._answer(guest.get_state.remote(True))
            except self._gone:
                # It is replaced when it does not collect.
                continue
            self._told[index] = set()
            try:
                self._answer(built)
                reset = self._answer(own.set_state.remote(state, None, self._league(index)))
                self._nodes[index] = self._answer(own.node.remote())
            except self._gone:
                # Its node has left again.
                self._waiting[index] = self._make_built(index)
                continue
            except (RequestError, EnvironmentFailedError) as error:
                _LOG.warning("rlplug: runner %d stays beside another: %s", index, error)
                self._ray.kill(own)
                del self._waiting[index]
                continue
            self._ray.kill(guest)
            self._runners[index] = own
            del self._waiting[index]
            anew = f"; its episodes start anew ({reset})" if reset else ""
            _LOG.warning("rlplug: runner %d has a place of its own again%s.", index, anew)

    def _wait_for_room(self, index: int) -> None:
        """Wait until a runner has its place; other runs may hold what the cluster has."""
        placed = self._runners[index].__ray_ready__.remote()
        for seconds in (_TOLD_SECONDS, max(self._placement_timeout - _TOLD_SECONDS, 0)):
            if self._ray.wait([placed], timeout=seconds)[0]:
                return
            _LOG.warning("rlplug: runner %d waits for room on the cluster.", index)
        raise RunFailedError(
            f"there was no room for runner {index} on the cluster within "
            f"{self._placement_timeout:g} seconds.",
            "try: ray status; fewer scale.runners, or a longer scale.placement_timeout",
        )

    def _all(self, method: str, *arguments: Any, told: bool = False) -> list[Any]:
        """What every runner answers, `told` of the league; one that has died is replaced first."""

        def asked(index: int) -> Any:
            league = (self._league(index),) if told else ()
            return getattr(self._runners[index], method).remote(*arguments, *league)

        answers = [asked(index) for index in range(len(self._runners))]
        found = []
        for index, answer in enumerate(answers):
            try:
                found.append(self._answer(answer))
            except self._gone as error:
                self._replace(index, error)
                found.append(self._answer(asked(index)))
        return found

    def _answer(self, answer: Any) -> Any:
        told, failure = self._ray.get(answer)
        if failure is not None:
            message, hints, is_request = failure
            raise (RequestError if is_request else EnvironmentFailedError)(message, *hints)
        return told
