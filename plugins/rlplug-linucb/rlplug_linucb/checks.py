"""Find what may not be learned from, and say where it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy
from torch import Tensor

from rlplug.errors import RunFailedError

__all__ = ["bad_values", "misfit", "negative_weight", "unequal_rows"]


def bad_values(columns: Mapping[str, Any]) -> RunFailedError:
    """What to raise once a sum was not finite: names the row and the column that made it so."""
    for name, values in columns.items():
        if values is None:
            continue
        array = _numpy(values)
        places = numpy.argwhere(~numpy.isfinite(array))
        if len(places):
            return RunFailedError(
                f"rlplug-linucb: {name} has {array[tuple(places[0])]} at {_where(places[0])}.",
                "nothing was changed; try: leave such rows out, or fill them in",
            )
    return RunFailedError(
        f"rlplug-linucb: {', '.join(columns)} are finite, but too large to be squared and summed.",
        "nothing was changed; try: scale the features, for example to unit variance",
    )


def negative_weight(weights: Any) -> RunFailedError:
    """What to raise for a weight below nought."""
    array = _numpy(weights)
    row = int(array.argmin())
    return RunFailedError(
        f"rlplug-linucb: the weight of row {row} is {array[row]}, below nought.",
        "nothing was changed; try: leave the row out, or give it the weight 0",
    )


def unequal_rows(wanted: int, **columns: int) -> RunFailedError:
    """What to raise where columns do not have one value per row."""
    found = ", ".join(f"{name} has {rows}" for name, rows in columns.items() if rows != wanted)
    return RunFailedError(
        f"rlplug-linucb: {wanted} rewards were given, but {found}.", "try: one value per row"
    )


def misfit(name: str, found: Any, wanted: Any) -> RunFailedError:
    """What to raise where rows do not fit the regression."""
    if wanted is None:
        return RunFailedError(
            f"rlplug-linucb: this model takes no {name}.", f"try: leave {name} out"
        )
    return RunFailedError(
        f"rlplug-linucb: {name} must have the shape {wanted}, found {found or 'nothing'}.",
        "try: one row per label, as wide as the features the module was built for",
    )


def _where(place: Any) -> str:
    row, *others = place.tolist()
    if not others:
        return f"row {row}"
    arm = f", arm {others[0]}" if len(others) > 1 else ""
    return f"row {row}{arm}, column {others[-1]}"


def _numpy(values: Any) -> Any:
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    return numpy.asarray(values)
