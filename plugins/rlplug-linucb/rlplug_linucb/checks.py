"""Validation of rows before they are learned; errors name the row and the column at fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy
from torch import Tensor

from rlplug.bandits.probability import allowed_arms
from rlplug.errors import RunFailedError
from rlplug.spaces import as_array, real_numbers, whole_numbers
from rlplug_linucb.arrays import Array
from rlplug_linucb.layout import Layout, ParsedObservations, features_in, part_as_array
from rlplug_linucb.models import Model, Rows

__all__ = [
    "checked_columns",
    "checked_numbers",
    "checked_rows",
    "checked_weights",
    "chosen_ids",
    "columns_of",
    "non_finite",
    "non_finite_scores",
]


def checked_columns(
    model: Model, layout: Layout, observations: Any, actions: Any, rewards: Any, weights: Any
) -> tuple[ParsedObservations, Array, Array, Array | None]:
    """Parsed observations, arms, rewards and weights, as arrays of equal length."""
    rewards = checked_numbers(model, "rewards", rewards)
    parsed = layout.parse(observations, rows=len(rewards))
    if parsed.rows != len(rewards):
        raise _unequal_lengths(len(rewards), observations=parsed.rows)
    if layout.arm_names:
        actions = _by_name(layout, actions)
    arms = _checked_arms(model, actions, len(rewards), layout.num_arms)
    if parsed.mask is not None:
        _refuse_absent(parsed.mask, arms)
    if weights is not None:
        weights = checked_weights(model, weights, len(rewards))
    return parsed, arms, rewards, weights


def checked_numbers(model: Model, name: str, values: Any) -> Array:
    """A column of real numbers, one per row."""
    if not isinstance(values, Tensor) or values.is_complex():
        values = real_numbers(values, f"rlplug-linucb: {name}")
    return model.regressions.to_array(values).reshape(-1)


def checked_rows(model: Model, x: Any, arms: Any, z: Any, count: int) -> Rows:
    """Rows that the caller built; they must be as wide as the model's."""
    to_array, widths = model.regressions.to_array, model.widths
    x, z, arms = features_in("x", x), features_in("z", z), part_as_array("arms", arms)
    for name, values, width in (("x", x, widths.x), ("z", z, widths.z)):
        expected = None if width is None else (count, width)
        found = None if values is None else tuple(values.shape)
        if found != expected:
            raise _wrong_rows(name, found, expected)
    if widths.arms is None:
        if arms is not None:
            raise _wrong_rows("arms", (len(arms),), None)
    elif arms is None:
        raise _wrong_rows("arms", None, (count,))
    else:
        arms = _checked_arms(model, arms, count, widths.arms)
    return Rows(to_array(x, None), arms, None if z is None else to_array(z, None))


def checked_weights(model: Model, weights: Any, count: int) -> Array | None:
    """The weight of each row, none of them negative."""
    if weights is None:
        return None
    weights = checked_numbers(model, "weights", weights)
    if len(weights) != count:
        raise _unequal_lengths(count, weights=len(weights))
    if count and float(weights.min()) < 0.0:
        row = int(weights.argmin())
        raise RunFailedError(
            f"rlplug-linucb: the weight of row {row} is {float(weights[row])}, which is negative.",
            "nothing was changed; try: leave the row out, or give it the weight 0",
        )
    return weights


def non_finite(columns: Mapping[str, Any]) -> RunFailedError:
    """The error for rows whose sums are not finite: names the first value that made them so."""
    for name, values in columns.items():
        if values is None:
            continue
        array = as_array(values)
        indices = numpy.argwhere(~numpy.isfinite(array))
        if len(indices):
            return RunFailedError(
                f"rlplug-linucb: {name} has {array[tuple(indices[0])]} at {_place(indices[0])}.",
                "nothing was changed; try: leave such rows out, or impute the values",
            )
    return RunFailedError(
        f"rlplug-linucb: {', '.join(columns)} are finite, but too large to be squared and summed.",
        "nothing was changed; try: scale the features, for example to unit variance",
    )


def non_finite_scores(parsed: ParsedObservations) -> RunFailedError:
    """The error for scores of present arms that are not finite."""
    present = None if parsed.mask is None else allowed_arms(parsed.mask, numpy.shape(parsed.mask))
    return non_finite({"context": parsed.context, "arms": _only(parsed.arms, present)})


def columns_of(
    parsed: ParsedObservations, arms: Array, rewards: Array, weights: Any
) -> Mapping[str, Any]:
    """What was learned from, by name; of the features those of the chosen arms."""
    chosen = None
    if parsed.arms is not None:
        chosen = numpy.arange(parsed.arms.shape[1]) == numpy.asarray(arms.tolist())[:, None]
    features = _only(parsed.arms, chosen)
    return {"context": parsed.context, "arms": features, "rewards": rewards, "weights": weights}


def chosen_ids(ids: Any, arms: Array) -> Any:
    """The ids (n,) of the chosen arms, of (n, arms)."""
    chosen = ids[numpy.arange(len(ids)), numpy.asarray(arms.tolist(), int)]
    if len(chosen) and chosen.min() < 0:
        row = int(chosen.argmin())
        raise RunFailedError(
            f"rlplug-linucb: the chosen arm of row {row} has the id {chosen[row]}.",
            "nothing was changed; try: ids of at least 0",
        )
    return chosen


def _only(features: Any, arms: Any) -> Any:
    """Features (n, arms, f) with those of other arms zeroed: what they hold is no error."""
    if features is None or arms is None:
        return features
    return numpy.where(arms[:, :, None], as_array(features), 0.0)


def _checked_arms(model: Model, arms: Any, count: int, num_arms: int) -> Array:
    """The arm of each row, all of them valid."""
    if type(arms) is not numpy.ndarray or arms.dtype.kind != "i":
        arms = _whole_numbers(arms)
    arms = model.regressions.to_array(arms, "int64").reshape(-1)
    if len(arms) != count:
        raise _unequal_lengths(count, actions=len(arms))
    if count == 1:
        valid = 0 <= arms.item() < num_arms
    else:
        valid = not count or (int(arms.min()) >= 0 and int(arms.max()) < num_arms)
    if not valid:
        row = next(row for row, arm in enumerate(arms.tolist()) if not 0 <= arm < num_arms)
        raise RunFailedError(
            f"rlplug-linucb: arm {int(arms[row])} of row {row} is none of 0 to {num_arms - 1}.",
            "nothing was changed; try: number the arms from 0",
        )
    return arms


def _refuse_absent(mask: Any, arms: Array) -> None:
    """Refuse rewards of arms that the mask says were absent."""
    chosen = numpy.asarray(arms.tolist(), int)
    is_present = allowed_arms(mask, numpy.shape(mask))[numpy.arange(len(chosen)), chosen]
    if not is_present.all():
        row = int(is_present.argmin())
        raise RunFailedError(
            f"rlplug-linucb: arm {chosen[row]} of row {row} is absent in its action_mask.",
            "nothing was changed; try: the mask that the arm was chosen by",
        )


def _by_name(layout: Layout, actions: Any) -> Any:
    """Indices of arms that may be given by name."""
    given = actions if isinstance(actions, Tensor) else numpy.asarray(actions)
    if isinstance(given, Tensor) or given.dtype.kind not in "UO":
        return actions
    # Columns of tables hold texts as objects.
    if not any(isinstance(one, str) for one in given.flat):
        return actions
    return [layout.index_of(name) for name in given.reshape(-1).tolist()]


def _whole_numbers(arms: Any) -> Any:
    if isinstance(arms, Tensor) and not arms.dtype.is_floating_point:
        return arms
    return whole_numbers(arms, "rlplug-linucb: arm")


def _unequal_lengths(rewards: int, **columns: int) -> RunFailedError:
    found = ", ".join(f"{name} has {rows}" for name, rows in columns.items())
    return RunFailedError(
        f"rlplug-linucb: {rewards} rewards were given, but {found}.", "try: one value per row"
    )


def _wrong_rows(name: str, found: Any, expected: Any) -> RunFailedError:
    if expected is None:
        return RunFailedError(
            f"rlplug-linucb: this model takes no {name}.", f"try: leave {name} out"
        )
    return RunFailedError(
        f"rlplug-linucb: {name} must have the shape {expected}, found {found or 'nothing'}.",
        "try: one row per label, as wide as the features the module was built for",
    )


def _place(index: Any) -> str:
    row, *others = index.tolist()
    if not others:
        return f"row {row}"
    arm = f", arm {others[0]}" if len(others) > 1 else ""
    return f"row {row}{arm}, column {others[-1]}"
