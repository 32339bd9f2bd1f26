"""Step environments in this process with one module, and hand over what was seen."""

from __future__ import annotations

from typing import Any

import numpy

from rlplug.batch.nested import copied, each
from rlplug.envs import Environments
from rlplug.envs.sync import InTurn
from rlplug.feeds.experience import Experience
from rlplug.nn.arrays import FrozenWeights
from rlplug.plugin import Module
from rlplug.sampling.in_place import InPlace
from rlplug.sampling.seat import Columns, Seat
from rlplug.sampling.storage import Storage
from rlplug.sampling.tally import Tally
from rlplug.seeding import derive

__all__ = ["VectorSampler"]


class VectorSampler:
    """Acts with one module in a vector of environments, some steps at a time.

    `keep_next` is for feeds that need to know where steps led to: nothing follows the only step of
    a bandit. `state_interval` notes the module's memory every so many steps. `run_steps` is the
    length of the whole run, for modules whose exploration ends with it.
    """

    def __init__(
        self,
        environments: Environments,
        module: Module,
        *,
        seed: int,
        steps: int = 1,
        keep_next: bool = True,
        by_environment: bool = False,
        state_interval: int = 0,
        run_steps: int = 0,
    ) -> None:
        vector, normalization = environments.vector, environments.normalization
        self.tally = Tally(environments.num_envs)
        self._vector = vector
        self._num_envs = environments.num_envs
        self._module = module
        self._steps = steps
        self._keep_next = keep_next
        self._state_interval = state_interval or steps
        self._seed = seed
        self._normalization = normalization
        self._seat = Seat(
            environments,
            module,
            random=numpy.random.default_rng(derive(seed, "acting")),
            show=None if normalization is None else normalization.observations,
            keep_finals=keep_next,
            run_steps=run_steps,
        )
        self._storage = Storage(steps, self._num_envs, by_environment=by_environment)
        self._in_place: InPlace | None = None
        # A subclass may say otherwise what a step gives.
        if type(vector) is InTurn and vector.fills and steps > 1:
            self._in_place = InPlace(vector, module, self._seat, self._storage, self.tally)
        self._frozen_weights = FrozenWeights()
        self._begins_anew = True
        # One for all collections: making it anew would cost a stream more than filling it.
        self._experience = Experience(
            {},
            steps=steps,
            num_envs=self._num_envs,
            by_environment=by_environment,
            initial_state=self._seat.borders.fresh_state,
        )

    def start(self) -> None:
        """Reset the environments, every one from a seed of its own."""
        if self._normalization is not None:
            self._normalization.forget_episodes()
        self._begins_anew = True
        self._seat.reset(self._seed)

    def collect(self, timestep: int) -> Experience:
        """What happens in the next steps."""
        several = self._steps > 1
        experience, seat = self._experience, self._seat
        if not several:
            columns = self._single(timestep)
        else:
            with self._frozen_weights:
                columns = self._several(timestep)
        experience.columns = columns
        experience.following = seat.seen if self._keep_next else _NOTHING
        experience.finals = seat.borders.take_finals()
        experience.stepped = columns.pop("stepped", None)
        experience.begins_anew, self._begins_anew = self._begins_anew, False
        health = seat.health
        if several:
            health.check_steps(experience, timestep)
        else:
            health.check_step(columns["rewards"], experience.finals, timestep)
        health.check_seen(seat.seen["observations"], timestep + self._steps * self._num_envs)
        return experience

    def absorb(self) -> None:
        """Let normalisers take in what was collected last."""
        last, columns = self._experience, self._experience.columns
        if self._normalization is None or not columns:
            return
        observations = columns["observations"]
        stepped = last.stepped
        if stepped is not None:
            observations = each(observations, lambda leaf: leaf[stepped])
            stepped = last.grid(stepped)
        self._normalization.absorb(
            observations, last.grid(columns["rewards"]), last.ended(), stepped
        )
        # What will be acted on next was scaled when it was seen, by what was known then.
        self._seat.look_again()

    def close(self) -> None:
        """Close the environments."""
        self._vector.close()

    def _single(self, timestep: int) -> Columns:
        """One step: what it gave, without a copy."""
        seat = self._seat
        if seat.act.state is not None:
            self._experience.states = [seat.act.state]
        columns = self._decide(timestep)
        seen = seat.seen["observations"]
        # A vector may write its next observations over the last.
        columns["observations"] = each(seen, copied) if self._keep_next else seen
        infos = seat.step(columns["actions"], columns, 0, timestep)
        self.tally.add(
            columns["rewards"],
            columns["terminated"],
            columns["truncated"],
            infos,
            columns.get("stepped"),
        )
        return columns

    def _several(self, timestep: int) -> Columns:
        """Several steps, in the storage."""
        states: list[Any] = []
        self._experience.states = states
        storage = self._storage
        if self._in_place is not None:
            self._in_place.collect(timestep, self._steps, self._state_interval, states)
        else:
            self._copied(timestep, states)
        grid = storage.grid
        self.tally.add_steps(
            grid("rewards"), grid("terminated"), grid("truncated"), grid("stepped")
        )
        return dict(storage.columns)

    def _copied(self, timestep: int, states: list[Any]) -> None:
        """Steps of a vector that gives arrays of its own."""
        storage, seat = self._storage, self._seat
        for time in range(self._steps):
            now = timestep + time * self._num_envs
            if seat.act.state is not None and time % self._state_interval == 0:
                states.append(each(seat.act.state, copied))
            storage.write(time, {"observations": seat.seen["observations"]})
            columns = self._decide(now)
            storage.write(time, columns)
            outcome: Columns = {}
            infos = seat.step(columns["actions"], outcome, time, now)
            storage.write(time, outcome)
            self.tally.add_infos(infos, outcome.get("stepped"))

    def _decide(self, timestep: int) -> Columns:
        """The actions of one step, what the module wants kept with them, and what it may do."""
        seat = self._seat
        seat.act.timestep = timestep
        return seat.noted(self._module.forward_exploration(seat.act))


_NOTHING: Columns = {}
