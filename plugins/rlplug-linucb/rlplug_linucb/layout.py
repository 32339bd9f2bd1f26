"""The layout of observations: derived from the spaces once, then used to parse each batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import attrs
import numpy
import torch
from gymnasium import Space, spaces
from torch import Tensor

from rlplug.errors import RequestError, RunFailedError, UnsupportedSpaceError
from rlplug.quantities import is_whole_number
from rlplug.spaces import as_array, number_of_arms, real_numbers, whole_numbers

__all__ = [
    "Layout",
    "ParsedObservations",
    "check_rows",
    "features_in",
    "is_name",
    "layout_of",
    "no_observations",
    "part_as_array",
    "wrong_shape",
]

_KEYS = ("context", "arms", "arm_ids", "action_mask")
_REAL = "fiub"
"""Kinds of NumPy's dtypes."""


class ParsedObservations(NamedTuple):
    """The parts of n observations."""

    context: Any
    """(n, d); ones (n, 1) if neither contexts nor arms have features; else None."""
    arms: Any
    """(n, arms, f), or None."""
    mask: Any
    """(n, arms), true where an arm may be chosen, or None."""
    ids: Any
    """(n, arms), which arm stands at each index, or None where they are the same in every row."""
    as_tensors: bool
    """Whether they are tensors, so that results should be."""

    def part(self, rows: slice) -> ParsedObservations:
        """Some of the rows."""
        context, arms, mask, ids = (None if one is None else one[rows] for one in self[:4])
        return ParsedObservations(context, arms, mask, ids, self.as_tensors)

    @property
    def rows(self) -> int:
        """Number of observations."""
        return len(self.arms if self.context is None else self.context)


def _at_least(lowest: int) -> Any:
    """Refuses what is no whole number from this on."""

    def check(layout: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if not is_whole_number(value) or value < lowest:
            raise RequestError(
                f"rlplug-linucb: {attribute.name} of a Layout must be a whole number from {lowest} "
                f"on, found {value!r}.",
                "try: Layout(num_arms=3, context_dim=2)",
            )

    return check


@attrs.frozen(kw_only=True)
class Layout:
    """Number of arms, and number of features of contexts and arms."""

    num_arms: int = attrs.field(validator=_at_least(2))
    context_dim: int = attrs.field(default=0, validator=_at_least(0))
    """0 without a context."""
    arm_dim: int = attrs.field(default=0, validator=_at_least(0))
    """0 for fixed arms, which have no features."""
    arm_names: tuple[str, ...] = attrs.field(default=())
    """The name of each arm, by which rewards can be credited; empty: they have numbers only."""
    max_arms: int = attrs.field(default=0, validator=_at_least(0))
    """Most arms remembered where observations tell with `arm_ids` which arm stands at each index;
    0: the same arms stand there in every observation."""
    plain_shape: tuple[int, ...] | None = attrs.field(init=False, eq=False, repr=False)
    """Shape of an observation that is a single array; None if it takes two."""

    @arm_names.validator
    def _check_names(self, attribute: Any, names: tuple[str, ...]) -> None:
        if not isinstance(names, tuple | list):
            raise ValueError(f"arm_names must be a tuple of texts, found {names!r}")
        if names and not len(set(names)) == len(names) == self.num_arms:
            raise ValueError(f"arm_names must be {self.num_arms} different names, found {names}")
        unfit = [name for name in names if not is_name(name)]
        if unfit:
            raise ValueError(f"arm_names must be texts that are not empty, found {unfit[0]!r}")

    @plain_shape.default
    def _plain_shape(self) -> tuple[int, ...] | None:
        if bool(self.arm_dim) == bool(self.context_dim) or self.max_arms:
            return None
        return (self.num_arms, self.arm_dim) if self.arm_dim else (self.context_dim,)

    @property
    def featured(self) -> bool:
        """Whether each context brings its own arms, with features."""
        return self.arm_dim > 0

    def index_of(self, arm: int | str) -> int:
        """The index of an arm, given by its name or by the index itself."""
        if isinstance(arm, str) and arm in self.arm_names:
            return self.arm_names.index(arm)
        is_index = isinstance(arm, int | numpy.integer) and not isinstance(arm, bool)
        if is_index and 0 <= int(arm) < self.num_arms:
            return int(arm)
        known = ", ".join(self.arm_names) or f"0 to {self.num_arms - 1}"
        raise RunFailedError(f"rlplug-linucb: there is no arm {arm!r}.", f"try: {known}")

    def parse(self, observations: Any, mask: Any = None, rows: int = 1) -> ParsedObservations:
        """The parts of observations; `mask` takes precedence over their `action_mask`.

        Without features of contexts or arms they only show the number of rows; None has `rows`.
        """
        # Fast path: a plain array and no mask.
        plain = type(observations) is numpy.ndarray and mask is None
        plain = plain and observations.dtype.kind in _REAL
        if plain and observations.shape[1:] == self.plain_shape:
            if self.arm_dim:
                return ParsedObservations(None, observations, None, None, False)
            return ParsedObservations(observations, None, None, None, False)
        as_tensors = isinstance(observations, Tensor)
        context = arms = ids = None
        if isinstance(observations, Mapping):
            mask = observations.get("action_mask") if mask is None else mask
            context, arms = observations.get("context"), observations.get("arms")
            ids = observations.get("arm_ids")
            as_tensors = any(isinstance(part, Tensor) for part in (context, arms, ids, mask))
        elif as_tensors or isinstance(observations, numpy.ndarray):
            if self.arm_dim and not self.context_dim:
                arms = observations
            else:
                context = observations
        elif observations is not None:
            raise no_observations(observations)
        context, arms = features_in("context", context), features_in("arms", arms)
        ids, mask = part_as_array("arm_ids", ids), part_as_array("action_mask", mask)
        if not self.context_dim and not self.arm_dim:
            context = _ones(context, ids, mask, rows)
        self._check(context, arms, mask, ids)
        if ids is not None:
            ids = _whole_ids(ids, mask)
        return ParsedObservations(context, arms, mask, ids, as_tensors)

    def tensors(
        self, observations: Any, mask: Any = None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Context, arms and mask of observations that are tensors; a context of ones if none."""
        context, arms = observations, None
        if isinstance(observations, Mapping):
            mask = observations.get("action_mask") if mask is None else mask
            context, arms = observations.get("context"), observations.get("arms")
        elif self.arm_dim and not self.context_dim:
            context, arms = None, observations
        if not self.context_dim:
            shown = next(part for part in (arms, context, mask) if part is not None)
            context = torch.ones((shown.shape[0], 1), dtype=torch.float64)
        return context.double(), None if arms is None else arms.double(), mask

    def _check(self, context: Any, arms: Any, mask: Any, ids: Any) -> None:
        num_arms, context_dim, arm_dim = self.num_arms, self.context_dim, self.arm_dim
        if arm_dim and not context_dim and context is not None:
            raise wrong_shape("context", context, ("n", 0))
        if context_dim and (context is None or context.shape[1:] != (context_dim,)):
            raise wrong_shape("context", context, ("n", context_dim))
        if arm_dim and (arms is None or arms.shape[1:] != (num_arms, arm_dim)):
            raise wrong_shape("arms", arms, ("n", num_arms, arm_dim))
        if arms is not None and not arm_dim:
            raise RunFailedError(
                "rlplug-linucb: fixed arms may not carry features, the observations have arms.",
                "try: algorithm.arms = 'featured'",
            )
        if mask is not None and mask.shape[1:] != (num_arms,):
            raise wrong_shape("action_mask", mask, ("n", num_arms))
        if self.max_arms and (ids is None or ids.shape[1:] != (num_arms,)):
            raise wrong_shape("arm_ids", ids, ("n", num_arms))
        if ids is not None and not self.max_arms:
            raise RunFailedError(
                "rlplug-linucb: the observations have arm_ids, the layout keeps the same arms.",
                "try: Layout(max_arms=200, ...)",
            )
        check_rows({"context": context, "arms": arms, "action_mask": mask, "arm_ids": ids})


def check_rows(parts: Mapping[str, Any]) -> None:
    """Refuse parts of observations (None: not given) that differ in their number of rows."""
    given = {name: len(part) for name, part in parts.items() if part is not None}
    if len(set(given.values())) > 1:
        found = ", ".join(f"{name} has {count}" for name, count in given.items())
        raise RunFailedError(
            f"rlplug-linucb: parts of observations differ in their rows: {found}.",
            "try: one row of each part per observation",
        )


def no_observations(observations: Any) -> RunFailedError:
    """The error for what is neither an array nor a mapping of arrays."""
    keys = f"a mapping with the keys {', '.join(_KEYS)}"
    return RunFailedError(
        f"a bandit reads an array or a mapping, got {type(observations).__name__}.",
        f"try: numpy.asarray(…), or {keys}",
    )


def part_as_array(name: str, part: Any) -> Any:
    """A part of observations; lists of numbers are arrays."""
    if part is None or hasattr(part, "shape"):
        return part
    try:
        return numpy.asarray(part)
    except ValueError:
        raise RunFailedError(
            f"rlplug-linucb: the rows of {name} differ in their lengths.",
            "try: an array, one row per observation",
        ) from None


def features_in(name: str, part: Any) -> Any:
    """A part of observations that holds real numbers."""
    part = part_as_array(name, part)
    if isinstance(part, numpy.ndarray) and part.dtype.kind not in _REAL:
        return real_numbers(part, f"rlplug-linucb: {name}")
    return part


def _whole_ids(ids: Any, mask: Any) -> Any:
    """Ids as integers, of those present; one that is not whole is no arm's."""
    ids = as_array(ids)
    if ids.dtype.kind not in "iu" and mask is not None:
        # What stands where there is no arm may be anything.
        ids = numpy.where(as_array(mask) != 0, ids, numpy.zeros_like(ids))
    return whole_numbers(ids, "rlplug-linucb: arm id")


def _ones(context: Any, ids: Any, mask: Any, rows: int) -> Any:
    """The number 1 for each observation, of those that have no features."""
    if context is not None and (not context.shape or context.shape[1:] not in ((), (0,))):
        raise wrong_shape("context", context, ("n", 0))
    # Others without rows are refused by their shapes.
    shown = next((part for part in (context, ids, mask) if part is not None and part.shape), None)
    return numpy.ones((rows if shown is None else len(shown), 1))


def is_name(name: Any) -> bool:
    """Whether an arm may have this name; saved states separate names by a null character."""
    return isinstance(name, str) and bool(name) and "\0" not in name


def layout_of(
    observation_space: Space[Any], action_space: Space[Any], arms: str = "auto", max_arms: int = 0
) -> Layout:
    """The layout of an environment; raises UnsupportedSpaceError for spaces not of a bandit.

    At most `max_arms` arms are remembered where observations have `arm_ids`.
    """
    num_arms = number_of_arms(action_space)
    if isinstance(observation_space, spaces.Box):
        if arms == "featured":
            raise UnsupportedSpaceError(
                f"arms = 'featured' needs an observation key 'arms', found {observation_space}."
            )
        if observation_space.shape == (0,):
            return Layout(num_arms=num_arms)
        return Layout(num_arms=num_arms, context_dim=_length(observation_space, "observations"))
    if isinstance(observation_space, spaces.Discrete) and observation_space.n == 1:
        return Layout(num_arms=num_arms)
    if isinstance(observation_space, spaces.Dict):
        return _layout_of_parts(observation_space.spaces, num_arms, arms, max_arms)
    raise UnsupportedSpaceError(
        "a linear bandit needs a Box of context features, or a Dict with the keys context, arms "
        f"and action_mask; found {observation_space}."
    )


def _layout_of_parts(
    parts: Mapping[str, Space[Any]], num_arms: int, arms: str, max_arms: int
) -> Layout:
    unknown = sorted(set(parts) - set(_KEYS))
    if unknown:
        raise UnsupportedSpaceError(
            f"a linear bandit reads the observation keys {', '.join(_KEYS)}; "
            f"found {', '.join(unknown)}."
        )
    if "arms" in parts and arms == "fixed":
        raise UnsupportedSpaceError(
            "arms = 'fixed': such arms may not carry features, the observations have a key 'arms'."
        )
    if "arms" not in parts and arms == "featured":
        raise UnsupportedSpaceError(
            f"arms = 'featured' needs observations with a key 'arms', found {', '.join(parts)}."
        )
    if not parts:
        raise UnsupportedSpaceError("a linear bandit needs at least one part of observations.")
    for name in ("action_mask", "arm_ids"):
        part = parts.get(name)
        if part is not None and part.shape != (num_arms,):
            raise UnsupportedSpaceError(
                f"{name} must have one value per arm ({num_arms}), found shape {part.shape}."
            )
    ids = parts.get("arm_ids")
    if ids is not None and numpy.dtype(ids.dtype).kind not in "iu":
        raise UnsupportedSpaceError(f"arm_ids must be integers, found {ids}.")
    return Layout(
        num_arms=num_arms,
        context_dim=_length(parts["context"], "context") if "context" in parts else 0,
        arm_dim=_length(parts["arms"], "arms", num_arms) if "arms" in parts else 0,
        max_arms=max_arms if ids is not None else 0,
    )


def _length(space: Space[Any], name: str, *before: int) -> int:
    shape = space.shape
    if isinstance(space, spaces.Box) and shape and shape[:-1] == before and shape[-1] > 0:
        return int(shape[-1])
    wanted = ", ".join([*map(str, before), "features"])
    raise UnsupportedSpaceError(
        f"a linear bandit needs {name} as a Box of shape ({wanted}), found {space}."
    )


def wrong_shape(name: str, values: Any, wanted: tuple[Any, ...]) -> RunFailedError:
    """The error for observations of another shape."""
    found = "nothing" if values is None else str(tuple(values.shape))
    shape = ", ".join(map(str, wanted))
    return RunFailedError(
        f"rlplug-linucb: {name} must have the shape ({shape}), found {found}.",
        "try: the observations of the environment the module was built for, one row each",
    )
