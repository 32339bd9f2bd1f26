"""Whether environments gave numbers that something can be learned from."""

from __future__ import annotations

from typing import Any

import numpy
from gymnasium import spaces

from rlplug.batch.nested import leaves
from rlplug.envs import Environments
from rlplug.envs.sync import InTurn
from rlplug.errors import EnvironmentFailedError
from rlplug.feeds.experience import Experience, Finals
from rlplug.sampling.masks import first_without_choice, opened
from rlplug.spaces import misshapen

__all__ = ["Health"]


class Health:
    """Refuses rewards and observations that are not finite, naming the first of them.

    It looks once per collection, and for streams that is every step: one call per array.
    """

    def __init__(self, environments: Environments, during: str = "") -> None:
        self._vector = environments.vector
        self._name = environments.name
        self._num_envs = environments.num_envs
        self._during = during
        """What the steps belong to that errors count, where it is not the run itself."""
        self._foreign = None if isinstance(self._vector, InTurn) else self._vector.observation_space
        """What observations are to look like, where they are not put together here."""
        space = environments.action_space
        self._choices = int(space.n) if isinstance(space, spaces.Discrete) else 0
        self._zeros: dict[int, Any] = {}

    def failed(self, what: str, timestep: int, error: BaseException) -> EnvironmentFailedError:
        """Which environment raised in which method, and when."""
        told = getattr(self._vector, "failed", None)
        which = ""
        if told is not None:
            index, what = told
            which = self._which(index)
        return EnvironmentFailedError(
            f"environment {self._name!r}{which} failed in {what} "
            f"{self._when(timestep)}: {type(error).__name__}: {error}",
            "try: mend the environment (--debug shows where); what was recorded stays",
        )

    def check_seen(self, observations: Any, timestep: int) -> None:
        """What is about to be acted on, and what an update may value."""
        leaf = self._first_broken(observations)
        if leaf is not None:
            raise self._broken_row("an observation", leaf, timestep)

    def check_forms(self, observations: Any, rewards: Any, *ends: Any) -> None:
        """What a vector of others gave, before it is spread over rows that it does not have."""
        space = self._foreign
        if space is None:
            return
        for name, column in zip(
            ("rewards", "terminated", "truncated"), (rewards, *ends), strict=True
        ):
            shape = numpy.shape(column)
            if shape != (self._num_envs,):
                raise ValueError(
                    f"it gave {name} of shape {shape} for {self._num_envs} environments"
                )
        said = misshapen(space, observations)
        if said:
            raise ValueError(f"it gave observations {said}")

    def check_step(self, rewards: Any, finals: Finals | None, timestep: int) -> None:
        """What one step of the vector gave."""
        if not self._finite(rewards):
            raise self._broken_row("a reward", rewards, timestep + self._num_envs)
        if finals is not None:
            self._check_finals(finals, timestep)

    def check_steps(self, experience: Experience, timestep: int) -> None:
        """What was collected from `timestep` on."""
        columns = experience.columns
        if not self._finite(columns["rewards"]):
            raise self._broken_step("a reward", columns["rewards"], experience, timestep)
        leaf = self._first_broken(columns["observations"])
        if leaf is not None:
            # What was acted on is what the step before led to.
            before = timestep - self._num_envs
            raise self._broken_step("an observation", leaf, experience, before)
        if experience.finals is not None:
            self._check_finals(experience.finals, timestep)

    def checked_mask(self, mask: Any, resting: Any, timestep: int) -> Any:
        """What may be chosen next: anything where an environment will only be reset."""
        if isinstance(mask, numpy.ndarray):
            self._check_form(mask, timestep)
        mask = opened(mask, resting)
        row = first_without_choice(mask)
        if row is not None:
            raise EnvironmentFailedError(
                f"environment {self._name!r}{self._which(row)} gave an action mask that forbids "
                f"every action {self._when(timestep)}.",
                "try: allow at least one, or end the episode before",
            )
        return mask

    def _check_form(self, mask: Any, timestep: int) -> None:
        found = ""
        if mask.dtype.kind not in "biuf":
            found = f"of {mask.dtype}, expected truth values,"
        elif not self._finite(mask):
            found = "with numbers that are neither true nor false"
        elif self._choices and mask.shape[1:] != (self._choices,):
            found = f"of shape {mask.shape[1:]}, expected ({self._choices},),"
        if found:
            raise EnvironmentFailedError(
                f"environment {self._name!r} gave an action mask {found} {self._when(timestep)}.",
                "try: one truth value for each action",
            )

    def _check_finals(self, finals: Finals, timestep: int) -> None:
        leaf = self._first_broken(finals.seen["observations"])
        if leaf is not None:
            row, why = _first_odd(leaf)
            time, env = divmod(int(finals.places[row]), self._num_envs)
            after = timestep + (time + 1) * self._num_envs
            raise self._message("a final observation", why, self._which(env), after)

    def _first_broken(self, column: Any) -> Any:
        """The first array with such a number; None if there is none."""
        if type(column) is numpy.ndarray:
            return None if self._finite(column) else column
        return next((leaf for leaf in leaves(column) if not self._finite(leaf)), None)

    def _finite(self, leaf: Any) -> bool:
        """Whether all are numbers, and such as networks have them."""
        if leaf.dtype.kind != "f":
            return True
        flat = leaf.ravel()
        if flat.itemsize == 8:
            # Of what is not finite, `dot` would warn.
            return bool(numpy.vdot(flat, flat) < _LARGEST**2)
        # Nothing but NaN and infinity times zero is not zero.
        # A format's own hash would cost more than the sum.
        size = flat.size * 16 + flat.itemsize
        zeros = self._zeros.get(size)
        if zeros is None:
            zeros = self._zeros[size] = numpy.zeros_like(flat)
        return bool(numpy.vdot(flat, zeros) == 0.0)

    def _broken_row(self, what: str, leaf: Any, timestep: int) -> EnvironmentFailedError:
        row, why = _first_odd(leaf)
        return self._message(what, why, self._which(row), timestep)

    def _broken_step(
        self, what: str, column: Any, experience: Experience, timestep: int
    ) -> EnvironmentFailedError:
        times, envs = experience.places()
        first, why = _first_odd(column, times)
        after = timestep + (int(times[first]) + 1) * self._num_envs
        return self._message(what, why, self._which(int(envs[first])), after)

    def _which(self, index: int) -> str:
        return "" if self._num_envs == 1 else f" ({index + 1} of {self._num_envs})"

    def _when(self, timestep: int) -> str:
        return f"after {timestep:,} steps{self._during}"

    def _message(self, what: str, why: str, which: str, timestep: int) -> EnvironmentFailedError:
        return EnvironmentFailedError(
            f"environment {self._name!r}{which} gave {what} that is {why} {self._when(timestep)}.",
            "try: mend the environment, or put a wrapper around it that replaces such numbers",
        )


_LARGEST = 1e38
"""Beyond it, and a little more, numbers of 32 bits are infinite."""


def _first_odd(leaf: Any, times: Any = None) -> tuple[int, str]:
    """The first row, in the order of rows or of times, with such a number, and what it is."""
    rows = leaf.reshape(len(leaf), -1)
    odd = numpy.flatnonzero(~(numpy.abs(rows) < _LARGEST).all(1))
    if not len(odd):
        # Each is small enough, and all of them together are not.
        odd = numpy.abs(rows).max(1).argsort()[-1:]
    first = int(odd[0] if times is None else odd[numpy.argmin(times[odd])])
    finite = numpy.isfinite(rows[first]).all()
    return first, "too large for 32 bits" if finite else "not a finite number"
