"""Policy input and output: from observations to `ActInput`, from `Acted` to environment actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, TypeAlias

import numpy
from gymnasium import spaces

from rlplug.batch.nested import builtin_dtype, copied, to_arrays, tree_map
from rlplug.envs import Environments
from rlplug.errors import FAILURES, RlplugError
from rlplug.plugin import Acted, ActInput, Module
from rlplug.sampling.autoreset import Autoreset
from rlplug.sampling.checks import EnvironmentChecks
from rlplug.spaces import ACTION_MASK, find_mask, whole_numbers

__all__ = ["Columns", "PolicyIO", "action_clipper"]

Columns: TypeAlias = dict[str, Any]

_LOOKS = 32
"""What the first steps of environments look like, the others do, too."""


class PolicyIO:
    """Connects a module with its environments: observations, masks, recurrent state, actions.

    `normalize` is applied to observations before the module gets them; `during` says in messages
    what the steps belong to.
    """

    def __init__(
        self,
        environments: Environments,
        module: Module,
        *,
        random: numpy.random.Generator,
        normalize: Callable[[Any], Any] | None = None,
        keep_finals: bool = False,
        run_steps: int = 0,
        during: str = "",
    ) -> None:
        self.act = ActInput(None, random=random, steps=run_steps)
        """Input of the module's next call."""
        self.current: Columns = {}
        """The observations to act on next, not normalised, and their action mask."""
        self.autoreset = Autoreset(environments, module, keep_finals=keep_finals)
        self.checks = EnvironmentChecks(environments, during)
        self.clip = action_clipper(environments.action_space)
        self.normalize = normalize
        self.step_vector: Callable[[Any], Any] = environments.vector.step
        """Steps the vector environment."""
        self._environments = environments
        self._num_envs = environments.num_envs
        self._module = module
        self.step_seconds = 0.0
        """Seconds that the environments took for their steps."""
        self._looks = _LOOKS
        """Steps whose shapes and types are still to be looked at."""
        self._full_mask: Any = None
        """Allows everything, for steps without a mask after steps with one."""

    def reset(self, seed: int) -> None:
        """Reset all environments from a seed."""
        try:
            observations, infos = self._environments.reset(seed)
        except RlplugError:
            raise
        except FAILURES as error:
            raise self.checks.failed("reset", 0, error) from error
        self.autoreset.reset()
        self.act.state = self._module.initial_state(self._num_envs)
        self.checks.check("an observation", observations, 0)
        self.observe(observations, infos, 0)

    def step(self, actions: Any, outcome: Columns, time: int, timestep: int) -> Any:
        """Step the vector environment, put rewards and ends into `outcome`, return its infos."""
        if type(actions) is not numpy.ndarray:
            actions = to_arrays(actions)
        try:
            acted_on, began = self.clip(actions), perf_counter()
            observations, rewards, terminated, truncated, stepped_infos = self.step_vector(acted_on)
            self.step_seconds += perf_counter() - began
            if self._looks:
                self._looks -= 1
                self.checks.check_step_format(observations, rewards, terminated, truncated)
            outcome |= {"rewards": rewards, "terminated": terminated, "truncated": truncated}
            infos: Mapping[str, Any] = stepped_infos
            if self.autoreset.active:
                observations, infos = self.autoreset.handle(
                    time, outcome, observations, infos, self.act
                )
        except RlplugError:
            raise
        except FAILURES as error:
            raise self.checks.failed("step", timestep, error) from error
        self.observe(observations, infos, timestep + self._num_envs)
        return stepped_infos

    def observe(self, observations: Any, infos: Mapping[str, Any], timestep: int) -> None:
        """Make the module's next input of what the environments returned."""
        self.current = current = {"observations": observations}
        act, mask = self.act, self._full_mask
        # Most environments have none: asking here is faster than a call.
        if type(observations) is dict or ACTION_MASK in infos:
            known = find_mask(observations, infos)
            if known is not None:
                mask = self.checks.check_mask(known, self.autoreset.resetting, timestep)
                if self._full_mask is None:
                    self._full_mask = copied(mask)
                    self._full_mask[...] = 1
        act.action_mask = mask
        if mask is not None:
            current["action_mask"] = mask
        normalize = self.normalize
        act.observations = observations if normalize is None else normalize(observations)

    def get_state(self) -> dict[str, Any]:
        """What the next step depends on, beside environments and generators; not a copy."""
        act = self.act
        return {
            "current": self.current,
            "action_mask": act.action_mask,
            "full_mask": self._full_mask,
            "state": act.state,
            "resetting": self.autoreset.resetting,
        }

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.autoreset.reset(saved["resetting"])
        self.current, self._full_mask = (
            tree_map(_as_made_here, saved["current"]),
            saved["full_mask"],
        )
        self.act.state, self.act.action_mask = saved["state"], saved["action_mask"]
        self.act.observations = self.current["observations"]
        self.normalize_again()

    def normalize_again(self) -> None:
        """Normalise the current observations with the statistics as they are now."""
        if self.normalize is not None:
            self.act.observations = self.normalize(self.current["observations"])

    def record(self, acted: Acted) -> Columns:
        """Keep the recurrent state for the next step; returns the columns to store."""
        act = self.act
        if act.state is not None:
            act.state = acted.state
        columns = {"actions": acted.actions}
        if act.action_mask is not None:
            columns["action_mask"] = act.action_mask
        if acted.extras:
            columns.update(acted.extras)
        return columns


def action_clipper(space: spaces.Space[Any]) -> Callable[[Any], Any]:
    """Clips continuous actions to the bounds of their space; the unclipped ones are stored.

    Their log-probabilities are those of the unclipped ones. Discrete ones must be whole numbers.
    """
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        low, high, dtype = space.low, space.high, space.dtype
        if not (numpy.isfinite(low).any() or numpy.isfinite(high).any()):
            return lambda actions: numpy.asarray(actions, dtype)
        return lambda actions: numpy.minimum(
            numpy.maximum(numpy.asarray(actions, dtype), low), high
        )
    if isinstance(space, spaces.Dict):
        parts = {name: action_clipper(part) for name, part in space.spaces.items()}
        return lambda actions: {name: clip(actions[name]) for name, clip in parts.items()}
    if isinstance(space, spaces.Tuple):
        each = [action_clipper(part) for part in space.spaces]
        return lambda actions: tuple(clip(part) for clip, part in zip(each, actions, strict=True))
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return _discrete
    return lambda actions: actions


def _as_made_here(leaf: Any) -> Any:
    if isinstance(leaf, numpy.ndarray):
        return leaf.view(builtin_dtype(leaf.dtype))
    return leaf


def _discrete(actions: Any) -> Any:
    if type(actions) is numpy.ndarray and actions.dtype.kind == "i":
        return actions
    return whole_numbers(actions, "the module's action")
