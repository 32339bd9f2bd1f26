"""Action masks as environments tell them, and those that leave nothing to choose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy
from numpy.typing import NDArray

from rlplug.batch.nested import copied

__all__ = ["everything_like", "first_without_choice", "mask_of", "opened"]


def mask_of(observations: Any, infos: Mapping[str, Any]) -> Any:
    """The mask in observations or infos; None if everything is allowed."""
    if type(observations) is dict and "action_mask" in observations:
        return observations["action_mask"]
    mask = infos.get("action_mask")
    return None if mask is None else _completed(mask, infos.get("_action_mask"))


def everything_like(mask: Any) -> Any:
    """A mask of the same form that allows everything."""
    every = copied(mask)
    every[...] = 1
    return every


def opened(mask: Any, resting: Any) -> Any:
    """The mask, but where it forbids everything in these rows: what is chosen there is not done."""
    if resting is None or not resting.any():
        return mask
    rows = resting & ~_has_choice(mask)
    if not rows.any():
        return mask
    mask = copied(mask)
    mask[rows] = 1
    return mask


def first_without_choice(mask: Any) -> int | None:
    """The first row that forbids every action; None if there is none."""
    allowed = _has_choice(mask)
    return None if allowed.all() else int(numpy.flatnonzero(~allowed)[0])


def _has_choice(mask: Any) -> NDArray[numpy.bool_]:
    return numpy.asarray(mask.any(-1), bool)


def _completed(mask: Any, told: Any) -> Any:
    """Masks from infos, of which some may be missing: there everything is allowed."""
    if mask.dtype == object:
        known = next((row for row in mask if row is not None), None)
        if known is None:
            return None
        every = numpy.ones_like(known)
        return numpy.stack([every if row is None else row for row in mask])
    if told is None or told.all():
        return mask
    # Gymnasium has zeros where an environment said nothing.
    mask = mask.copy()
    mask[~told] = 1
    return mask
