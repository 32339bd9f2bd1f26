"""What passes between modules and environments: actions they take, finite numbers, masks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
import torch
from gymnasium import spaces
from torch import Tensor

from rlplug.batch.nested import copied, leaves
from rlplug.errors import EnvironmentFailedError, PluginError
from rlplug.feeds import Experience
from rlplug.spaces import ACTION_MASK, AnySpace, of_present_arms, whole_numbers

__all__ = ["EnvironmentChecks", "action_clipper", "first_fully_masked"]

_LARGEST = 1e76
"""The square of about the largest number of 32 bits."""


class EnvironmentChecks:
    """Refuses rewards and observations that are not finite, and action masks that allow nothing.

    `which` names a row in messages, `during` says what the steps belong to.
    """

    def __init__(
        self,
        name: str,
        num: int,
        action_space: AnySpace,
        which: Callable[[int], str] | None = None,
        during: str = "",
    ) -> None:
        self.name, self.during = name, during
        self._num = num
        self._which = which or (lambda row: f" ({row + 1} of {num})" if num > 1 else "")
        self._num_actions = int(action_space.n) if isinstance(action_space, spaces.Discrete) else 0
        self._is_first_mask = True

    def fault(
        self,
        did: str,
        timestep: int,
        row: int | None,
        said: str = ".",
        hint: str = "try: fix the environment (--debug shows where)",
    ) -> EnvironmentFailedError:
        """The error for what an environment did after so many steps."""
        which = "" if row is None else self._which(row)
        when = f"after {timestep:,} steps{self.during}"
        return EnvironmentFailedError(f"environment {self.name!r}{which} {did} {when}{said}", hint)

    def check_step(self, rewards: Any, observations: Any, timestep: int) -> None:
        """Check a step that was taken alone."""
        if type(observations) is numpy.ndarray and observations.dtype.kind == "f":
            flat = observations.ravel()
            # False for numbers that are not finite, too. Unlike vdot, dot warns about them.
            if float(numpy.vdot(flat, flat)) + float(numpy.vdot(rewards, rewards)) < _LARGEST:
                return
        self.check("a reward", rewards, timestep)
        self.check("an observation", observations, timestep)

    def check_experience(self, experience: Experience, timestep: int) -> None:
        """Check a collection from `timestep` on; the observation after it is not part of it."""
        columns = experience.columns
        # An observation was returned one step before it was acted on.
        self.check("a reward", columns["rewards"], timestep + self._num, experience.times_and_envs)
        self.check("an observation", columns["observations"], timestep, experience.times_and_envs)
        self.check_finals(experience, timestep)

    def check_finals(self, experience: Experience, timestep: int) -> None:
        """Check the last observations of episodes."""
        finals = experience.finals
        if finals is not None:
            self.check(
                "a final observation",
                finals.columns["observations"],
                timestep + self._num,
                lambda: numpy.divmod(finals.indices, self._num),
            )

    def check(
        self,
        what: str,
        column: Any,
        timestep: int,
        times_and_envs: Callable[[], tuple[Any, Any]] | None = None,
    ) -> None:
        """Refuse numbers that are not finite, of the earliest step, by default of a single one."""
        is_array = type(column) is numpy.ndarray
        if _is_finite(column) if is_array else all(map(_is_finite, leaves(column))):
            return
        for leaf in _present_leaves(column):
            with numpy.errstate(over="ignore"):
                finite = numpy.isfinite(leaf.astype(numpy.float32)).reshape(len(leaf), -1).all(1)
            if not finite.all():
                bad = numpy.flatnonzero(~finite)
                times, envs = numpy.zeros(len(leaf), int), numpy.arange(len(leaf))
                if times_and_envs is not None:
                    times, envs = times_and_envs()
                row = bad[times[bad].argmin()]
                raise self.fault(
                    f"gave {what} that is not a finite number",
                    timestep + int(times[row]) * self._num,
                    int(envs[row]),
                    hint="try: fix the environment, or wrap it to replace such numbers and those "
                    "beyond 32 bits",
                )

    def check_mask(self, mask: Any, resetting: Any, timestep: int) -> Any:
        """Refuse rows that forbid every action; rows that only reset are opened instead."""
        if self._is_first_mask:
            self._is_first_mask = False
            expected = (self._num_actions,)
            fault = ""
            if mask.dtype.kind not in "biuf":
                fault = f"of {mask.dtype}, expected booleans,"
            elif self._num_actions and mask.shape[1:] != expected:
                fault = f"of shape {mask.shape[1:]}, expected {expected},"
            if fault:
                hint = "try: one boolean for each action"
                raise self.fault(f"gave an action mask {fault}", timestep, None, hint=hint)
        row = first_fully_masked(mask)
        if row is not None and resetting is not None:
            mask = copied(mask)
            mask[resetting & ~mask.any(-1)] = 1
            row = first_fully_masked(mask)
        if row is not None:
            hint = "try: allow at least one, or end the episode before"
            did = "gave an action mask that forbids every action"
            raise self.fault(did, timestep, row, hint=hint)
        return mask


def first_fully_masked(mask: Any) -> int | None:
    """The first row that forbids every action; None if there is none."""
    allowed = numpy.asarray(mask.any(-1), bool)
    return None if allowed.all() else int(allowed.argmin())


def _is_finite(leaf: Any) -> bool:
    """Whether all numbers are finite in float32, the format of networks; quick where they are."""
    return leaf.dtype.kind != "f" or float(numpy.vdot(leaf, leaf)) < _LARGEST


def _present_leaves(column: Any) -> list[Any]:
    """The arrays of a column; the features of a bandit's absent arms may be anything."""
    if type(column) is dict and "arms" in column and ACTION_MASK in column:
        column = {**column, "arms": of_present_arms(column["arms"], column[ACTION_MASK])}
    return list(leaves(column))


def action_clipper(space: AnySpace, device: torch.device | None = None) -> Callable[[Any], Any]:
    """Clips continuous actions to the bounds of their space; the unclipped ones are stored.

    Their log-probabilities are those of the unclipped ones. Discrete ones must be whole numbers.
    With a `device`, actions are tensors on it.
    """
    if isinstance(space, spaces.Dict):
        parts = {name: action_clipper(part, device) for name, part in space.spaces.items()}
        return lambda actions: {name: clip(actions[name]) for name, clip in parts.items()}
    if isinstance(space, spaces.Tuple):
        each = [action_clipper(part, device) for part in space.spaces]
        return lambda actions: tuple(clip(part) for clip, part in zip(each, actions, strict=True))
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        low, high = space.low, space.high
        if device is None:
            return partial(_clipped, low=low, high=high)
        bounds = [torch.as_tensor(bound, device=device) for bound in (low, high)]
        return lambda actions: actions.to(bounds[0].dtype).clamp(*bounds)
    if device is not None:
        return _whole_tensors
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return partial(whole_numbers, name="the module's action")
    return lambda actions: actions


def _clipped(actions: Any, *, low: Any, high: Any) -> Any:
    return numpy.minimum(numpy.maximum(numpy.asarray(actions, low.dtype), low), high)


def _whole_tensors(actions: Tensor) -> Tensor:
    if actions.is_floating_point():
        raise PluginError(
            f"the module's actions are of {actions.dtype}, the action space has whole numbers.",
            "try: integers, for example the argmax of scores rather than the scores",
        )
    return actions
