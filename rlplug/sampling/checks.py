"""What passes between modules and environments: actions they take, finite numbers, masks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from rlplug.batch.nested import copied, leaves
from rlplug.errors import EnvironmentFailedError, PluginError
from rlplug.feeds import Experience
from rlplug.spaces import ACTION_MASK, AnySpace, of_present_arms, whole_numbers

__all__ = ["LOOKS", "EnvironmentChecks", "action_clipper", "first_fully_masked", "one_of"]

LOOKS = 32
"""What the first steps of environments look like, the others do, too."""


class EnvironmentChecks:
    """Refuses rewards and observations that are not finite, and action masks that allow nothing.

    `which` names a row in messages, `during` says what the steps belong to. Only the first masks
    are looked at for their shape and type.
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
        self._num, self._which = num, which or (lambda row: one_of(row, num))
        self._num_actions = int(action_space.n) if isinstance(action_space, spaces.Discrete) else 0
        self._looks = LOOKS

    def failed(
        self, which: str, method: str, timestep: int, error: BaseException
    ) -> EnvironmentFailedError:
        """The error for an exception that an environment raised in `method`."""
        return EnvironmentFailedError(
            f"environment {self.name!r}{which} failed in {method} "
            f"{self._when(timestep)}: {type(error).__name__}: {error}",
            "try: fix the environment (--debug shows where)",
        )

    def check(self, what: str, column: Any, timestep: int) -> None:
        """Check numbers of one step, a row for each environment."""
        leaf = _first_not_finite(column)
        if leaf is not None:
            row, why = _first_bad(leaf)
            raise self._bad_number(what, why, row, timestep)

    def check_step(self, rewards: Any, observations: Any, timestep: int) -> None:
        """Check a step that was taken alone."""
        if not _is_finite(rewards):
            self.check("a reward", rewards, timestep)
        if type(observations) is not numpy.ndarray or not _is_finite(observations):
            self.check("an observation", observations, timestep)

    def check_experience(self, experience: Experience, timestep: int) -> None:
        """Check a collection from `timestep` on, with what comes after it."""
        # An observation was returned one step before it was acted on.
        named = ("a reward", "rewards", 1), ("an observation", "observations", 0)
        for what, name, ahead in named:
            leaf = _first_not_finite(experience.columns[name])
            if leaf is not None:
                times, envs = experience.times_and_envs()
                first, why = _first_bad(leaf, times)
                after = timestep + (int(times[first]) + ahead) * self._num
                raise self._bad_number(what, why, int(envs[first]), after)
        self.check_finals(experience, timestep)

    def check_finals(self, experience: Experience, timestep: int) -> None:
        """Check the last observations of episodes."""
        finals = experience.finals
        leaf = None if finals is None else _first_not_finite(finals.columns["observations"])
        if finals is not None and leaf is not None:
            row, why = _first_bad(leaf)
            time, env = divmod(int(finals.indices[row]), self._num)
            after = timestep + (time + 1) * self._num
            raise self._bad_number("a final observation", why, env, after)

    def check_mask(self, mask: Any, resetting: Any, timestep: int) -> Any:
        """Refuse rows that forbid every action; rows that only reset are opened instead."""
        if self._looks and isinstance(mask, numpy.ndarray):
            self._looks -= 1
            self._check_mask_format(mask, timestep)
        if resetting is not None and resetting.any():
            rows = resetting & ~_has_choice(mask)
            if rows.any():
                mask = copied(mask)
                mask[rows] = 1
        row = first_fully_masked(mask)
        if row is not None:
            raise EnvironmentFailedError(
                f"environment {self.name!r}{self._which(row)} gave an action mask that "
                f"forbids every action {self._when(timestep)}.",
                "try: allow at least one, or end the episode before",
            )
        return mask

    def _check_mask_format(self, mask: Any, timestep: int) -> None:
        fault = ""
        if mask.dtype.kind not in "biuf":
            fault = f"of {mask.dtype}, expected booleans,"
        elif not _is_finite(mask):
            fault = "with numbers that are neither true nor false"
        elif self._num_actions and mask.shape[1:] != (self._num_actions,):
            fault = f"of shape {mask.shape[1:]}, expected ({self._num_actions},),"
        if fault:
            raise EnvironmentFailedError(
                f"environment {self.name!r} gave an action mask {fault} {self._when(timestep)}.",
                "try: one boolean for each action",
            )

    def _bad_number(self, what: str, why: str, row: int, timestep: int) -> EnvironmentFailedError:
        return EnvironmentFailedError(
            f"environment {self.name!r}{self._which(row)} gave {what} that is {why} "
            f"{self._when(timestep)}.",
            "try: fix the environment, or wrap it to replace such numbers",
        )

    def _when(self, timestep: int) -> str:
        return f"after {timestep:,} steps{self.during}"


def one_of(index: int, num: int) -> str:
    """Which of several it is, for messages; empty if there is only one."""
    return "" if num == 1 else f" ({index + 1} of {num})"


def first_fully_masked(mask: Any) -> int | None:
    """The first row that forbids every action; None if there is none."""
    allowed = _has_choice(mask)
    return None if allowed.all() else int(numpy.flatnonzero(~allowed)[0])


def _has_choice(mask: Any) -> NDArray[numpy.bool_]:
    return numpy.asarray(mask.any(-1), bool)


_FLOAT32_MAX = 1e38
"""Rounded down: a little beyond it, float32 overflows."""


def _first_not_finite(column: Any) -> Any:
    """The first array with a number that is not finite; None if there is none."""
    if type(column) is numpy.ndarray:
        return None if _is_finite(column) else column
    arms = column.get("arms") if isinstance(column, Mapping) else None
    for leaf in leaves(column):
        if not _is_finite(leaf):
            # The features of a bandit's absent arms may be anything.
            mask = column.get(ACTION_MASK) if leaf is arms else None
            present = leaf if mask is None else of_present_arms(leaf, mask)
            if present is leaf or not _is_finite(present):
                return present
    return None


def _is_finite(leaf: Any) -> bool:
    """Whether all numbers are finite in float32, the format of networks."""
    if leaf.dtype.kind != "f":
        return True
    if leaf.size == 1:
        number = leaf.item()
        return abs(number) < _FLOAT32_MAX if leaf.itemsize == 8 else math.isfinite(number)
    flat = leaf.ravel()
    # Unlike vdot, dot warns about numbers that are not finite.
    squares = float(numpy.vdot(flat, flat))
    if flat.itemsize == 8:
        return squares < _FLOAT32_MAX**2
    return math.isfinite(squares) or bool(numpy.isfinite(flat).all())


def _first_bad(leaf: Any, times: Any = None) -> tuple[int, str]:
    """The first row, or the row of the earliest time, with a number out of range, and why."""
    # The limit is no number of 16 bits.
    rows = leaf.reshape(len(leaf), -1).astype(numpy.float64)
    bad = numpy.flatnonzero(~(numpy.abs(rows) < _FLOAT32_MAX).all(1))
    if not len(bad):
        # Each number is in range, but their sum of squares is not.
        bad = numpy.abs(rows).max(1).argsort()[-1:]
    first = int(bad[0] if times is None else bad[numpy.argmin(times[bad])])
    finite = numpy.isfinite(rows[first]).all()
    return first, "too large for 32 bits" if finite else "not a finite number"


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
        bounded = bool(numpy.isfinite(space.low).any() or numpy.isfinite(space.high).any())
        if device is None:
            return partial(_clipped, low=space.low, high=space.high, bounded=bounded)
        low, high = (torch.as_tensor(bound, device=device) for bound in (space.low, space.high))
        return partial(_clipped_tensors, low=low, high=high, bounded=bounded)
    if device is not None:
        return _whole
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return _discrete
    return lambda actions: actions


def _clipped(actions: Any, *, low: Any, high: Any, bounded: bool) -> Any:
    actions = numpy.asarray(actions, low.dtype)
    return numpy.minimum(numpy.maximum(actions, low), high) if bounded else actions


def _clipped_tensors(actions: Tensor, *, low: Tensor, high: Tensor, bounded: bool) -> Tensor:
    actions = actions.to(low.dtype)
    return actions.clamp(low, high) if bounded else actions


def _whole(actions: Tensor) -> Tensor:
    if actions.is_floating_point():
        raise PluginError(
            f"the module's actions are of {actions.dtype}, the action space has whole numbers.",
            "try: integers, for example the argmax of scores rather than the scores",
        )
    return actions


def _discrete(actions: Any) -> Any:
    if type(actions) is numpy.ndarray and actions.dtype.kind == "i":
        return actions
    return whole_numbers(actions, "the module's action")
