"""Checks of what environments return: shapes, finite numbers, action masks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy
from gymnasium import spaces
from numpy.typing import NDArray

from rlplug.batch.nested import copied, leaves
from rlplug.envs import Environments
from rlplug.envs.sync import SyncVector, check_ends
from rlplug.errors import EnvironmentFailedError
from rlplug.feeds import Experience, FinalObservations
from rlplug.spaces import ACTION_MASK, of_present_arms, shape_mismatch

__all__ = ["EnvironmentChecks", "first_fully_masked"]


class EnvironmentChecks:
    """Refuses rewards and observations that are not finite, and action masks that allow nothing.

    It runs once per collection, for streams in every step: one NumPy call per array. Only the first
    masks are looked at for their shape and type.
    """

    def __init__(self, environments: Environments, during: str = "") -> None:
        self._vector = environments.vector
        self.name = environments.name
        self._num_envs = environments.num_envs
        self.during = during
        """What the steps in messages belong to, if not to the run itself."""
        # SyncVector checks what single environments return; a subclass may return anything.
        known = type(self._vector) is SyncVector
        self._space = None if known else self._vector.observation_space
        space = environments.action_space
        self._num_actions = int(space.n) if isinstance(space, spaces.Discrete) else 0
        self._zeros: dict[int, Any] = {}
        self._looks = 32
        """Masks whose shape and type are still to be looked at."""

    def failed(self, method: str, timestep: int, error: BaseException) -> EnvironmentFailedError:
        """The error for an exception that an environment raised in `method`."""
        told = getattr(self._vector, "failed", None)
        which = ""
        if told is not None:
            index, method = told
            which = self.which(index)
        return EnvironmentFailedError(
            f"environment {self.name!r}{which} failed in {method} "
            f"{self._when(timestep)}: {type(error).__name__}: {error}",
            "try: fix the environment (--debug shows where)",
        )

    def check_step_format(
        self, observations: Any, rewards: Any, terminated: Any, truncated: Any
    ) -> None:
        """Refuse shapes and types that NumPy would fit into buffers without an error."""
        if self._space is None:
            return
        for name, column in zip(
            ("rewards", "terminated", "truncated"), (rewards, terminated, truncated), strict=True
        ):
            shape = numpy.shape(column)
            if shape != (self._num_envs,):
                raise ValueError(
                    f"it gave {name} of shape {shape} for {self._num_envs} environments"
                )
        mismatch = shape_mismatch(self._space, observations)
        if mismatch:
            raise ValueError(f"it gave observations {mismatch}")
        check_ends(terminated, truncated)

    def check(self, what: str, column: Any, timestep: int) -> None:
        """Check numbers of one step, a row for each environment."""
        leaf = self._first_not_finite(column)
        if leaf is not None:
            row, why = _first_bad(leaf)
            raise self._bad_number(what, why, row, timestep)

    def check_rollout(self, experience: Experience, timestep: int) -> None:
        """Check several steps, collected from `timestep` on."""
        # An observation was returned one step before it was acted on.
        named = ("a reward", "rewards", 1), ("an observation", "observations", 0)
        for what, name, ahead in named:
            leaf = self._first_not_finite(experience.columns[name])
            if leaf is not None:
                times, envs = experience.times_and_envs()
                first, why = _first_bad(leaf, times)
                after = timestep + (int(times[first]) + ahead) * self._num_envs
                raise self._bad_number(what, why, int(envs[first]), after)
        if experience.finals is not None:
            self.check_finals(experience.finals, timestep)

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
                f"environment {self.name!r}{self.which(row)} gave an action mask that "
                f"forbids every action {self._when(timestep)}.",
                "try: allow at least one, or end the episode before",
            )
        return mask

    def _check_mask_format(self, mask: Any, timestep: int) -> None:
        found = ""
        if mask.dtype.kind not in "biuf":
            found = f"of {mask.dtype}, expected booleans,"
        elif not self._is_finite(mask):
            found = "with numbers that are neither true nor false"
        elif self._num_actions and mask.shape[1:] != (self._num_actions,):
            found = f"of shape {mask.shape[1:]}, expected ({self._num_actions},),"
        if found:
            raise EnvironmentFailedError(
                f"environment {self.name!r} gave an action mask {found} {self._when(timestep)}.",
                "try: one boolean for each action",
            )

    def check_finals(self, finals: FinalObservations, timestep: int) -> None:
        """Check the last observations of episodes."""
        leaf = self._first_not_finite(finals.columns["observations"])
        if leaf is not None:
            row, why = _first_bad(leaf)
            time, env = divmod(int(finals.indices[row]), self._num_envs)
            after = timestep + (time + 1) * self._num_envs
            raise self._bad_number("a final observation", why, env, after)

    def _first_not_finite(self, column: Any) -> Any:
        """The first array with a number that is not finite; None if there is none."""
        if type(column) is numpy.ndarray:
            return None if self._is_finite(column) else column
        for leaf in leaves(column):
            if not self._is_finite(leaf):
                present = _of_present_arms(leaf, column)
                if present is leaf or not self._is_finite(present):
                    return present
        return None

    def _is_finite(self, leaf: Any) -> bool:
        """Whether all numbers are finite in float32, the format of networks."""
        if leaf.dtype.kind != "f":
            return True
        if leaf.size == 1:
            number = leaf.item()
            return abs(number) < _FLOAT32_MAX if leaf.itemsize == 8 else math.isfinite(number)
        flat = leaf.ravel()
        if flat.itemsize == 8:
            # Unlike vdot, dot warns about numbers that are not finite.
            return bool(numpy.vdot(flat, flat) < _FLOAT32_MAX**2)
        # Zero times NaN or infinity is NaN. Keyed by a number: hashing a dtype costs more than
        # the product.
        size = flat.size * 16 + flat.itemsize
        zeros = self._zeros.get(size)
        if zeros is None:
            zeros = self._zeros[size] = numpy.zeros_like(flat)
        return bool(numpy.vdot(flat, zeros) == 0.0)

    def _bad_number(self, what: str, why: str, env: int, timestep: int) -> EnvironmentFailedError:
        return EnvironmentFailedError(
            f"environment {self.name!r}{self.which(env)} gave {what} that is {why} "
            f"{self._when(timestep)}.",
            "try: fix the environment, or wrap it to replace such numbers",
        )

    def which(self, index: int) -> str:
        """Which environment it is, for messages; empty if there is only one."""
        return "" if self._num_envs == 1 else f" ({index + 1} of {self._num_envs})"

    def _when(self, timestep: int) -> str:
        return f"after {timestep:,} steps{self.during}"


def _of_present_arms(leaf: Any, observations: Any) -> Any:
    """The features of a bandit's arms with zeros for absent ones; other columns as they are."""
    arms = observations.get("arms") if isinstance(observations, Mapping) else None
    if arms is None or leaf is not arms:
        return leaf
    return of_present_arms(leaf, observations.get(ACTION_MASK))


def first_fully_masked(mask: Any) -> int | None:
    """The first row that forbids every action; None if there is none."""
    allowed = _has_choice(mask)
    return None if allowed.all() else int(numpy.flatnonzero(~allowed)[0])


def _has_choice(mask: Any) -> NDArray[numpy.bool_]:
    return numpy.asarray(mask.any(-1), bool)


_FLOAT32_MAX = 1e38
"""Rounded down: a little beyond it, float32 overflows."""


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
