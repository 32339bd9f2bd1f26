"""Reads observations as environments return them into batches for a module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy
from gymnasium import spaces

from rlplug.batch.nested import tree_map
from rlplug.errors import RequestError
from rlplug.spaces import ACTION_MASK, of_present_arms

__all__ = ["Reader"]

Form = Literal["one", "several", "frame"]


class Reader:
    """Accepts one observation, several with a first axis, or single frames of a frame stack.

    Single frames are stacked with those before; the first one fills the whole stack.
    """

    def __init__(self, space: spaces.Space[Any], frame_stack: int = 1) -> None:
        self._space = space
        self._stack = frame_stack
        self._frames: Any = None

    def reset(self) -> None:
        """Start a new episode: the next frame fills the stack."""
        self._frames = None

    def read(self, observation: Any) -> tuple[Any, bool]:
        """Returns a batch, and whether it was made of a single observation."""
        forms: set[Form] = set()
        read = self._read(self._space, observation, "observation", forms)
        if len(forms) != 1:
            raise RequestError(
                "the parts of the observation disagree on how many there are.",
                "give each part one value, or each a first axis of the same length",
            )
        (form,) = forms
        if form == "several":
            return read, False
        if form == "frame":
            read = self._frames = _shifted(self._frames, read, self._stack)
        return tree_map(lambda leaf: leaf[None], read), True

    def _read(
        self,
        space: spaces.Space[Any],
        given: Any,
        path: str,
        forms: set[Form],
        action_mask: Any = None,
    ) -> Any:
        if isinstance(space, spaces.Dict):
            if not isinstance(given, Mapping) or set(given) != set(space.spaces):
                keys = ", ".join(space.spaces)
                raise RequestError(f"{path} must be a mapping with the keys {keys}.")
            mask = given.get(ACTION_MASK)
            return {
                key: self._read(
                    part, given[key], f"{path}[{key!r}]", forms, mask if key == "arms" else None
                )
                for key, part in space.spaces.items()
            }
        if isinstance(space, spaces.Tuple):
            if not isinstance(given, tuple | list) or len(given) != len(space.spaces):
                raise RequestError(f"{path} must be a tuple of {len(space.spaces)} parts.")
            return tuple(
                self._read(part, one, f"{path}[{index}]", forms)
                for index, (part, one) in enumerate(zip(space.spaces, given, strict=True))
            )
        rows = _as_array(given, space, path)
        if rows.dtype.kind == "f" and not numpy.isfinite(of_present_arms(rows, action_mask)).all():
            # Argmax of NaN still returns an action.
            raise RequestError(
                f"{path} holds a number that is not finite.", "give what the policy was trained on"
            )
        forms.add(self._form(rows.shape, space.shape or (), path))
        return rows

    def _form(self, shape: tuple[int, ...], wanted: tuple[int, ...], path: str) -> Form:
        if shape == wanted:
            return "one"
        if shape[1:] == wanted and len(shape) == len(wanted) + 1:
            return "several"
        if self._stack > 1 and shape == wanted[1:]:
            return "frame"
        several = ", ".join(["n", *map(str, wanted)])
        frame = f", or one frame of shape {wanted[1:]}" if self._stack > 1 else ""
        raise RequestError(
            f"{path} has shape {shape}, expected {wanted}, or ({several}) for n of them{frame}."
        )


def _as_array(given: Any, space: spaces.Space[Any], path: str) -> Any:
    try:
        rows = numpy.asarray(given)
        if rows.dtype.kind in "US":
            raise ValueError(f"it holds text, {rows.flat[0].item()!r}")
        wanted = rows.astype(space.dtype, copy=False)
        # As integers and bytes, 0.5 or 300 would silently become other observations.
        exact = wanted.dtype.kind == "f" or bool((wanted == rows).all())
    except (TypeError, ValueError, OverflowError) as error:
        raise RequestError(f"{path} cannot be read as {space.dtype}: {error}.") from error
    if not exact:
        raise RequestError(f"{path} must be {space.dtype}, got {rows.dtype} that does not fit.")
    return wanted


def _shifted(frames: Any, newest: Any, size: int) -> Any:
    """The stack with the newest frame at the end; a first frame fills all of it."""
    if frames is None:
        return tree_map(lambda part: numpy.stack([part] * size), newest)
    return tree_map(lambda part, stack: numpy.concatenate([stack[1:], part[None]]), newest, frames)
