"""The learners of a run on a Ray cluster: this process, and an actor for each of the others."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import attrs

from rlplug.config.sections import ScaleSection
from rlplug.errors import RequestError
from rlplug.scale.cluster import learner_resources, this_node, why_gone
from rlplug.scale.launcher import Place

__all__ = ["LearnerActors"]

_ENDING_SECONDS = 10.0
"""How long the actors may take to end after the last message of the first learner."""


class _Reservation:
    """Holds what the first learner reserves, which is no actor."""

    def gpus(self) -> list[Any]:
        """The GPUs that are reserved."""
        import ray

        found: list[Any] = ray.get_gpu_ids()
        return found


class LearnerActors:
    """The actors of all learners but the first.

    `learner` is the class of an actor whose method `follow` takes part in the run from its place
    on. What all reserve is reserved for the first, too, on the node of this process.
    """

    def __init__(
        self, ray: Any, section: ScaleSection, learner: type[Any], path: Sequence[str]
    ) -> None:
        self.host = ray.util.get_node_ip_address() if section.address else "127.0.0.1"
        """Where the others meet this process."""
        self._ray = ray
        self._path = list(path)
        wanted = learner_resources(section)
        self._own_gpu = section.learner_gpus >= 1
        options = {
            "num_cpus": wanted.pop("CPU", 0),
            "num_gpus": wanted.pop("GPU", 0),
            "resources": wanted or None,
        }
        self._actor = ray.remote(**options)(learner)
        self._is_local = not section.address
        strategies: Any = import_module("ray.util.scheduling_strategies")
        node = strategies.NodeAffinitySchedulingStrategy(this_node(ray), soft=False)
        self._reservation = ray.remote(**options, scheduling_strategy=node)(_Reservation).remote()
        self._gpu = 0
        if section.learner_gpus:
            self._gpu = int(next(iter(ray.get(self._reservation.gpus.remote())), 0))
        self._actors: list[Any] = []
        self._runs: list[Any] = []

    def place(self, place: Place) -> Place:
        """The same place on this cluster: Ray chooses hosts, and the GPUs that actors see."""
        return attrs.evolve(
            place,
            local_index=0 if place.index else self._gpu,
            # On other hosts, Ray sets the threads of actors by the CPUs that they reserve.
            local_size=place.size if self._is_local else 1,
            own_gpu=self._own_gpu,
        )

    def start(self, places: Sequence[Place]) -> None:
        """Start an actor for each place."""
        for place in places:
            actor = self._actor.remote()
            self._actors.append(actor)
            self._runs.append(actor.follow.remote(attrs.asdict(place), self._path))

    def ended(self) -> dict[int, str]:
        """Learner → how its actor ended, of those that have."""
        over, _ = self._ray.wait(self._runs, num_returns=len(self._runs), timeout=0)
        return {
            index: self._how(run) for index, run in enumerate(self._runs, start=1) if run in over
        }

    def refuse_ended(self) -> None:
        """Raise if one has ended before the run has begun."""
        for index, how in self.ended().items():
            raise RequestError(
                f"the actor of learner {index} {how} while it started.",
                "try: the same packages on all hosts; rlplug doctor shows those of one",
            )

    def close(self, *, kill: bool) -> None:
        """Wait until all have ended; those that do not are killed, with the runners they have."""
        if self._runs and not kill:
            self._ray.wait(self._runs, num_returns=len(self._runs), timeout=_ENDING_SECONDS)
        for actor in [*self._actors, self._reservation]:
            self._ray.kill(actor)
        self._runs.clear()

    def _how(self, run: Any) -> str:
        try:
            return f"ended with exit code {self._ray.get(run)}"
        except self._ray.exceptions.RayError as error:
            return f"is gone ({why_gone(self._ray, error)})"
