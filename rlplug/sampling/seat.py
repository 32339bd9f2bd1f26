"""What a module is shown of its environments, and what is remembered of its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy

from rlplug.batch.nested import to_arrays
from rlplug.envs import Environments
from rlplug.errors import FAILURES, RlplugError
from rlplug.plugin import Acted, ActInput, Module
from rlplug.sampling.borders import Borders
from rlplug.sampling.health import Health
from rlplug.sampling.masks import everything_like, mask_of
from rlplug.sampling.translation import sent_to

__all__ = ["Columns", "Seat"]

Columns: TypeAlias = dict[str, Any]


class Seat:
    """Where a module sits before its environments: what it sees, may do, and remembers.

    `show` makes of observations what the module is given; `during` is what the steps belong to.
    """

    def __init__(
        self,
        environments: Environments,
        module: Module,
        *,
        random: numpy.random.Generator,
        show: Callable[[Any], Any] | None = None,
        keep_finals: bool = False,
        run_steps: int = 0,
        during: str = "",
    ) -> None:
        self.act = ActInput(None, random=random, steps=run_steps)
        """What the module is given next."""
        self.seen: Columns = {}
        """What the environments showed last, as they gave it."""
        self.borders = Borders(environments, module, keep_finals=keep_finals)
        self.health = Health(environments, during)
        self.send = sent_to(environments.action_space)
        """Makes of actions what the environments are sent."""
        self._environments = environments
        self._vector = environments.vector
        self._num_envs = environments.num_envs
        self._module = module
        self.show = show
        self._everything: Any = None
        """A mask that allows everything, for steps that bring none after others did."""

    def reset(self, seed: int) -> None:
        """All episodes begin, from a seed."""
        try:
            observations, infos = self._environments.reset(seed)
        except RlplugError:
            raise
        except FAILURES as error:
            raise self.health.failed("reset", 0, error) from error
        self.borders.start()
        self.act.state = self._module.initial_state(self._num_envs)
        self.health.check_seen(observations, 0)
        self.look(observations, infos, 0)

    def step(self, actions: Any, outcome: Columns, time: int, timestep: int) -> Any:
        """Step the vector, see what it led to, and put what came of it into `outcome`."""
        if type(actions) is not numpy.ndarray:
            actions = to_arrays(actions)
        try:
            observations, rewards, terminated, truncated, told = self._vector.step(
                self.send(actions)
            )
            self.health.check_forms(observations, rewards, terminated, truncated)
            outcome["rewards"] = rewards
            outcome["terminated"] = terminated
            outcome["truncated"] = truncated
            infos: Mapping[str, Any] = told
            if self.borders.matter:
                observations, infos = self.borders.cross(
                    time, outcome, observations, told, self.act
                )
        except RlplugError:
            raise
        except FAILURES as error:
            raise self.health.failed("step", timestep, error) from error
        self.look(observations, infos, timestep + self._num_envs)
        return told

    def look(self, observations: Any, infos: Mapping[str, Any], timestep: int) -> None:
        """See what the environments show."""
        self.seen = seen = {"observations": observations}
        act = self.act
        mask = mask_of(observations, infos)
        if mask is None:
            mask = self._everything
        else:
            mask = self.health.checked_mask(mask, self.borders.resting, timestep)
            if self._everything is None:
                self._everything = everything_like(mask)
        act.action_mask = mask
        if mask is not None:
            seen["action_mask"] = mask
        show = self.show
        act.observations = observations if show is None else show(observations)

    def look_again(self) -> None:
        """What was seen last may be shown otherwise by now."""
        if self.show is not None:
            self.act.observations = self.show(self.seen["observations"])

    def noted(self, acted: Acted) -> Columns:
        """What is stored of an answer, and remembered of it."""
        act = self.act
        if act.state is not None:
            act.state = acted.state
        columns = {"actions": acted.actions}
        if act.action_mask is not None:
            columns["action_mask"] = act.action_mask
        if acted.extras:
            columns.update(acted.extras)
        return columns
