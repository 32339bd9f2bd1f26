"""Step environments in this process with one module, and hand over what was seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy

from rlplug.batch.nested import copied, each, to_arrays
from rlplug.envs import Environments
from rlplug.envs.sync import InTurn
from rlplug.errors import FAILURES, RlplugError
from rlplug.feeds.experience import Experience
from rlplug.nn.standing import Standing
from rlplug.plugin import Acted, ActInput, Module
from rlplug.sampling.borders import Borders
from rlplug.sampling.health import Health
from rlplug.sampling.masks import everything_like, mask_of
from rlplug.sampling.storage import Rooms, Storage
from rlplug.sampling.tally import Tally
from rlplug.sampling.translation import sent_to
from rlplug.seeding import derive

__all__ = ["VectorSampler"]

Columns = dict[str, Any]


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
        num_envs = environments.num_envs
        self.tally = Tally(num_envs)
        self._environments = environments
        self._step_vector = environments.vector.step
        self._num_envs = num_envs
        self._module = module
        self._steps = steps
        self._keep_next = keep_next
        self._state_interval = state_interval
        self._seed = seed
        random = numpy.random.default_rng(derive(seed, "acting"))
        self._act = ActInput(None, random=random, steps=run_steps)
        self._borders = Borders(environments, module, keep_finals=keep_next)
        self._health = Health(environments)
        self._storage = Storage(steps, num_envs, by_environment=by_environment)
        self._sent = sent_to(environments.action_space)
        vector = environments.vector
        # A subclass may say otherwise what a step gives.
        self._filled = vector if type(vector) is InTurn and vector.fills and steps > 1 else None
        self._normalization = environments.normalization
        self._standing = Standing()
        self._seen: Columns = {}
        self._everything: Any = None
        """A mask that allows everything, for steps that bring none after others did."""
        self._rooms: Rooms | None = None
        self._chosen: list[Any] = []
        """Where actions are kept by time, once it is known what they look like."""
        self._begins_anew = True
        # One for all collections: making it anew would cost a stream more than filling it.
        self._experience = Experience(
            {},
            steps=steps,
            num_envs=num_envs,
            by_environment=by_environment,
            initial_state=self._borders.fresh_state,
        )

    def start(self) -> None:
        """Reset the environments, every one from a seed of its own."""
        try:
            observations, infos = self._environments.reset(self._seed)
        except RlplugError:
            raise
        except FAILURES as error:
            raise self._health.failed("reset", 0, error) from error
        self._begins_anew = True
        if self._normalization is not None:
            self._normalization.forget_episodes()
        self._borders.start()
        self._act.state = self._module.initial_state(self._environments.num_envs)
        self._see(observations, infos, 0)
        self._health.check_seen(observations, 0)

    def collect(self, timestep: int) -> Experience:
        """What happens in the next steps."""
        several = self._steps > 1
        experience = self._experience
        if not several:
            columns = self._single(timestep)
        else:
            with self._standing:
                columns = self._several(timestep)
        experience.columns = columns
        experience.following = self._seen if self._keep_next else _NOTHING
        experience.finals = self._borders.take_finals()
        experience.stepped = columns.pop("stepped", None)
        experience.begins_anew, self._begins_anew = self._begins_anew, False
        if several:
            self._health.check_steps(experience, timestep)
        else:
            self._health.check_step(columns["rewards"], experience.finals, timestep)
        after = timestep + self._steps * self._num_envs
        self._health.check_seen(self._seen["observations"], after)
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
        self._act.observations = self._normalization.observations(self._seen["observations"])

    def close(self) -> None:
        """Close the environments."""
        self._environments.vector.close()

    def _single(self, timestep: int) -> Columns:
        """One step: what it gave, without a copy."""
        if self._act.state is not None:
            self._experience.states = [self._act.state]
        columns = self._decide(timestep)
        seen = self._seen["observations"]
        # A vector may write its next observations over the last.
        columns["observations"] = each(seen, copied) if self._keep_next else seen
        infos = self._advance(columns["actions"], columns, 0, timestep)
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
        if self._filled is not None:
            return self._several_filled(self._filled, timestep)
        storage, interval = self._storage, self._state_interval or self._steps
        self._experience.states = states = []
        for time in range(self._steps):
            now = timestep + time * self._num_envs
            if self._act.state is not None and time % interval == 0:
                states.append(each(self._act.state, copied))
            storage.write(time, {"observations": self._seen["observations"]})
            columns = self._decide(now)
            storage.write(time, columns)
            outcome: Columns = {}
            infos = self._advance(columns["actions"], outcome, time, now)
            storage.write(time, outcome)
            self.tally.add_infos(infos, outcome.get("stepped"))
        return self._told(storage)

    def _several_filled(self, vector: InTurn, timestep: int) -> Columns:
        """Several steps, of which the environments write what they give where it is kept."""
        storage, act, interval = self._storage, self._act, self._state_interval or self._steps
        self._experience.states = states = []
        explore, sent = self._module.forward_exploration, self._sent
        normalization = self._normalization
        last, rooms, chosen = self._seen["observations"], self._rooms, self._chosen
        if rooms is None:
            rooms = self._rooms = Rooms(storage, self._num_envs, last)
        rooms.begin(last)
        seen, rewards = rooms.seen, rooms.rewards
        terminated, truncated = rooms.terminated, rooms.truncated
        if normalization is None:
            act.observations = seen[0]
        for time in range(self._steps):
            act.timestep = now = timestep + time * self._num_envs
            if act.state is not None and time % interval == 0:
                states.append(each(act.state, copied))
            acted = explore(act)
            actions, following = acted.actions, seen[time + 1]
            if type(actions) is not numpy.ndarray:
                actions = to_arrays(actions)
            if chosen and act.action_mask is None and act.state is None and not acted.extras:
                chosen[time][:] = actions
            else:
                storage.write(time, self._noted(acted))
            try:
                infos: Mapping[str, Any] = vector.fill(
                    sent(actions), following, rewards[time], terminated[time], truncated[time]
                )
                if infos and self._borders.matter:
                    outcome = {"terminated": terminated[time], "truncated": truncated[time]}
                    self._borders.cross(time, outcome, following, infos, act)
            except RlplugError:
                raise
            except FAILURES as error:
                raise self._health.failed("step", now, error) from error
            if infos or act.action_mask is not None:
                self.tally.add_infos(infos)
                self._see(following, infos, now + self._num_envs)
            elif normalization is None:
                act.observations = following
            else:
                act.observations = normalization.observations(following)
        self._seen = {**self._seen, "observations": following}
        grid = storage.columns["actions"]
        if not chosen and type(grid) is numpy.ndarray:
            self._chosen = storage.places("actions", grid)
        return self._told(storage)

    def _told(self, storage: Storage) -> Columns:
        """The columns of several steps, which the tally takes in."""
        grid = storage.grid
        self.tally.add_steps(
            grid("rewards"), grid("terminated"), grid("truncated"), grid("stepped")
        )
        return dict(storage.columns)

    def _decide(self, timestep: int) -> Columns:
        """The actions of one step, what the module wants kept with them, and what it may do."""
        self._act.timestep = timestep
        return self._noted(self._module.forward_exploration(self._act))

    def _noted(self, acted: Acted) -> Columns:
        """What is stored of an answer, and remembered of it."""
        act = self._act
        if act.state is not None:
            act.state = acted.state
        columns = {"actions": acted.actions}
        if act.action_mask is not None:
            columns["action_mask"] = act.action_mask
        if acted.extras:
            columns.update(acted.extras)
        return columns

    def _advance(self, actions: Any, outcome: Columns, time: int, timestep: int) -> Any:
        """Step the vector, see what it led to, and put what came of it into `outcome`."""
        if type(actions) is not numpy.ndarray:
            actions = to_arrays(actions)
        try:
            observations, rewards, terminated, truncated, told = self._step_vector(
                self._sent(actions)
            )
            outcome["rewards"] = rewards
            outcome["terminated"] = terminated
            outcome["truncated"] = truncated
            infos: Mapping[str, Any] = told
            if self._borders.matter:
                observations, infos = self._borders.cross(
                    time, outcome, observations, told, self._act
                )
        except RlplugError:
            raise
        except FAILURES as error:
            raise self._health.failed("step", timestep, error) from error
        self._see(observations, infos, timestep + self._num_envs)
        return told

    def _see(self, observations: Any, infos: Mapping[str, Any], timestep: int) -> None:
        self._seen = seen = {"observations": observations}
        act = self._act
        mask = mask_of(observations, infos)
        if mask is None:
            mask = self._everything
        else:
            mask = self._health.checked_mask(mask, self._borders.resting, timestep)
            if self._everything is None:
                self._everything = everything_like(mask)
        act.action_mask = mask
        if mask is not None:
            seen["action_mask"] = mask
        normalization = self._normalization
        act.observations = (
            observations if normalization is None else normalization.observations(observations)
        )


_NOTHING: Columns = {}
