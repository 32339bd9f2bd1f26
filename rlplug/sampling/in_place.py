"""Several steps of which the environments write what they give where it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy

from rlplug.batch.nested import copied, each, to_arrays
from rlplug.envs.sync import InTurn
from rlplug.errors import FAILURES, RlplugError
from rlplug.plugin import Module
from rlplug.sampling.seat import Seat
from rlplug.sampling.storage import Rooms, Storage
from rlplug.sampling.tally import Tally

__all__ = ["InPlace"]


class InPlace:
    """Steps environments of this process into the storage itself, without a copy."""

    def __init__(
        self,
        vector: InTurn,
        module: Module,
        seat: Seat,
        storage: Storage,
        tally: Tally,
    ) -> None:
        self._vector = vector
        self._num_envs = vector.num_envs
        self._module = module
        self._seat = seat
        self._storage = storage
        self._tally = tally
        self._rooms: Rooms | None = None
        self._chosen: list[Any] = []
        """Where actions are kept by time, once it is known what they look like."""

    def collect(self, timestep: int, steps: int, interval: int, states: list[Any]) -> None:
        """The next steps; into `states` goes the module's memory every so many of them."""
        seat, storage, chosen = self._seat, self._storage, self._chosen
        act, show, send, fill = seat.act, seat.show, seat.send, self._vector.fill
        explore, borders = self._module.forward_exploration, seat.borders
        last, rooms = seat.seen["observations"], self._rooms
        if rooms is None:
            rooms = self._rooms = Rooms(storage, self._num_envs, last)
        rooms.begin(last)
        seen, rewards = rooms.seen, rooms.rewards
        terminated, truncated = rooms.terminated, rooms.truncated
        if show is None:
            act.observations = seen[0]
        for time in range(steps):
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
                storage.write(time, seat.noted(acted))
            try:
                infos: Mapping[str, Any] = fill(
                    send(actions), following, rewards[time], terminated[time], truncated[time]
                )
                if infos and borders.matter:
                    outcome = {"terminated": terminated[time], "truncated": truncated[time]}
                    borders.cross(time, outcome, following, infos, act)
            except RlplugError:
                raise
            except FAILURES as error:
                raise seat.health.failed("step", now, error) from error
            if infos or act.action_mask is not None:
                self._tally.add_infos(infos)
                seat.look(following, infos, now + self._num_envs)
            else:
                act.observations = following if show is None else show(following)
        seat.seen = {**seat.seen, "observations": following}
        grid = storage.columns["actions"]
        if not chosen and type(grid) is numpy.ndarray:
            self._chosen = storage.places("actions", grid)
