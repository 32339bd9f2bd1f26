"""Gymnasium spaces: image layouts, action masks, shape checks, descriptions for messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import attrs
import numpy
from gymnasium import spaces
from numpy.typing import NDArray

from rlplug.errors import RequestError, RunFailedError, UnsupportedSpaceError

AnySpace: TypeAlias = "spaces.Space[Any]"

ACTION_MASK = "action_mask"
"""The observation key with the allowed actions; networks do not get it."""

_MIN_IMAGE_SIDE = 8
"""Two-dimensional arrays with a shorter side are tables of numbers; so are boards."""


@attrs.frozen(kw_only=True)
class Image:
    """Size and axis order of an image space."""

    channels: int
    height: int
    width: int
    layout: str
    """The axes of one observation in order: of `chw`, `hwc`, `hw`, or `shwc` with a stack."""


def shape_mismatch(space: AnySpace, observation: Any) -> str:
    """How the shape of an observation differs from its space; empty if it does not."""
    if isinstance(space, spaces.Dict):
        parts = [(space[key], observation[key], repr(key)) for key in space.spaces]
    elif isinstance(space, spaces.Tuple):
        pairs = zip(space.spaces, observation, strict=True)
        parts = [(part, seen, f"part {index}") for index, (part, seen) in enumerate(pairs)]
    elif space.shape is None:
        return ""
    else:
        # A list has the shape of the array that it becomes.
        found = numpy.shape(observation)
        if found == space.shape:
            return ""
        return f"of shape {tuple(found)}, its space has {space.shape}"
    for part, seen, where in parts:
        mismatch = shape_mismatch(part, seen)
        if mismatch:
            return f"with {where} {mismatch}"
    return ""


def whole_numbers(values: Any, name: str) -> NDArray[Any]:
    """Discrete values as integers; a number that is not whole is refused, never truncated."""
    given = as_array(values)
    if given.dtype.kind in "iub":
        return given
    whole = numpy.zeros(given.shape, bool)
    if given.dtype.kind == "f":
        # Beyond, an integer of 64 bits would be another number.
        whole = (numpy.abs(given) < 2.0**63) & (given == numpy.floor(given))
    if not whole.all():
        first = tuple(numpy.argwhere(~whole)[0].tolist())
        where = f" of row {first[0]}" if first else ""
        raise RunFailedError(
            f"{name} {given[first]}{where} is no whole number.",
            "try: integers, for example the argmax of scores rather than the scores",
        )
    return given.astype(numpy.int64)


def real_numbers(values: Any, name: str) -> NDArray[Any]:
    """Numbers in double precision; anything else is refused."""
    try:
        given = as_array(values)
    except ValueError:
        given = numpy.empty(0, object)
    if given.dtype.kind not in "fiub":
        raise RunFailedError(
            f"{name} must be real numbers, found an array of {given.dtype}.",
            "try: numbers alone, in rows of one length",
        )
    return given.astype(numpy.float64, copy=False)


def as_array(values: Any) -> NDArray[Any]:
    """The values of a tensor, an array or a list as an array on the CPU, without a graph."""
    if type(values) is numpy.ndarray:
        return values
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if values.is_floating_point() and values.element_size() < 4:
            # NumPy has no bfloat16.
            values = values.float()
    return numpy.asarray(values)


def number_of_arms(action_space: AnySpace) -> int:
    """Number of arms of a bandit; raises UnsupportedSpaceError for other action spaces."""
    if not isinstance(action_space, spaces.Discrete):
        raise UnsupportedSpaceError(
            f"a bandit chooses among arms: it needs Discrete actions, found {action_space}."
        )
    if int(action_space.start) != 0:
        raise UnsupportedSpaceError(
            f"a bandit counts arms from 0, found {action_space}; "
            "try gymnasium.wrappers.TransformAction."
        )
    if int(action_space.n) < 2:
        raise UnsupportedSpaceError("a bandit chooses among arms: it needs two arms, found one.")
    return int(action_space.n)


def find_mask(observations: Any, infos: Mapping[str, Any]) -> Any:
    """The action mask in observations or infos; None if there is none."""
    if type(observations) is dict and ACTION_MASK in observations:
        return observations[ACTION_MASK]
    mask = infos.get(ACTION_MASK)
    if mask is None:
        return None
    if mask.dtype == object:
        known = next((row for row in mask if row is not None), None)
        if known is None:
            return None
        every = numpy.ones_like(known)
        return numpy.stack([every if row is None else row for row in mask])
    told = infos.get("_action_mask")
    if told is None or told.all():
        return mask
    # Gymnasium fills in zeros for environments without a mask.
    mask = mask.copy()
    mask[~told] = 1
    return mask


def mask_width(space: AnySpace) -> int | None:
    """How many values a mask has for one observation; None if actions cannot be masked."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    return int(numpy.prod(space.shape)) if isinstance(space, spaces.MultiBinary) else None


def outline(space: AnySpace) -> Any:
    """What two spaces have in common if what is made for one fits the other: not their bounds."""
    if isinstance(space, spaces.Dict):
        return {name: outline(part) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return [outline(part) for part in space.spaces]
    if isinstance(space, spaces.Box):
        return "Box", space.shape, space.dtype.kind
    if isinstance(space, spaces.Discrete):
        return "Discrete", int(space.n), int(space.start)
    if isinstance(space, spaces.MultiDiscrete):
        return "MultiDiscrete", space.nvec.tolist(), space.start.tolist()
    return type(space).__name__, space.shape


def image_of(space: AnySpace) -> Image | None:
    """The image in a Box of three axes, of two with bytes, or of four with a stack of frames.

    Small boards, of signed integers or booleans, are tables of numbers.
    """
    if not isinstance(space, spaces.Box):
        return None
    shape = space.shape
    if len(shape) == 2:
        large = space.dtype == numpy.uint8 and min(shape) >= _MIN_IMAGE_SIDE
        layout = "hw" if large else ""
    elif len(shape) == 3:
        # Channels are few: stacked frames come first, colours last.
        layout = "chw" if shape[0] < min(shape[1:]) else "hwc"
    else:
        layout = "shwc" if len(shape) == 4 else ""
    if not layout:
        return None
    size = dict(zip(layout, shape, strict=True))
    if space.dtype.kind in "ib" and min(size["h"], size["w"]) < _MIN_IMAGE_SIDE:
        return None
    channels = size.get("s", 1) * size.get("c", 1)
    return Image(channels=channels, height=size["h"], width=size["w"], layout=layout)


def has_images(space: AnySpace) -> bool:
    """Whether a space is an image, or a Dict or Tuple with one in it."""
    if isinstance(space, spaces.Dict):
        return any(map(has_images, space.values()))
    if isinstance(space, spaces.Tuple):
        return any(map(has_images, space.spaces))
    return image_of(space) is not None


def without_action_mask(space: AnySpace) -> AnySpace:
    """The observation space without the action mask: what networks get."""
    if not (isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces):
        return space
    return spaces.Dict({key: part for key, part in space.spaces.items() if key != ACTION_MASK})


def present_arms(arms: NDArray[Any], action_mask: Any) -> NDArray[numpy.bool_] | None:
    """Which of a bandit's arms with these features (…, arms, f) are there, (…, arms).

    None without a mask, or with one that is of others.
    """
    mask = numpy.asarray(action_mask)
    return mask != 0 if mask.shape == arms.shape[:-1] else None


def of_present_arms(arms: NDArray[Any], action_mask: Any) -> NDArray[Any]:
    """The features of a bandit's arms, with zeros for those that are not there."""
    present = present_arms(arms, action_mask)
    return arms if present is None else numpy.where(present[..., None], arms, 0)


def open_masks(observations: Any) -> None:
    """Let the action masks in nested observations allow everything, in place."""
    if isinstance(observations, dict):
        for key, part in observations.items():
            if key == ACTION_MASK and isinstance(part, numpy.ndarray):
                part[...] = 1
            else:
                open_masks(part)


def placeholder(space: AnySpace, rows: int) -> Any:
    """Valid observations or actions for a dry run, drawn without randomness."""
    if isinstance(space, spaces.Dict):
        return {key: placeholder(part, rows) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(placeholder(part, rows) for part in space.spaces)
    if isinstance(space, spaces.Box):
        one = numpy.clip(numpy.zeros(space.shape, space.dtype), space.low, space.high)
    elif isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        one = numpy.asarray(space.start, space.dtype)
    else:
        one = numpy.zeros(space.shape or (), space.dtype)
    return numpy.repeat(one[None], rows, axis=0)


def describe(space: AnySpace) -> str:
    """The space in a few words: `Box of shape (4,), float32`, `Discrete with 2 values`."""
    if isinstance(space, spaces.Box):
        bounded = "" if space.is_bounded() else ", without bounds"
        return f"Box of shape {space.shape}, {space.dtype}{bounded}"
    if isinstance(space, spaces.Discrete):
        begin = f", from {space.start}" if space.start else ""
        return f"Discrete with {space.n} values{begin}"
    if isinstance(space, spaces.MultiDiscrete):
        return f"MultiDiscrete of {space.nvec.tolist()}"
    if isinstance(space, spaces.MultiBinary):
        return f"MultiBinary of shape {space.shape}"
    if isinstance(space, spaces.Dict):
        return "Dict of " + ", ".join(f"{key}: {describe(part)}" for key, part in space.items())
    if isinstance(space, spaces.Tuple):
        return "Tuple of " + ", ".join(describe(part) for part in space.spaces)
    return str(space)


def space_to_dict(space: AnySpace) -> dict[str, Any]:
    """A Gymnasium space as plain values and arrays; a space of unknown type only as text."""
    kind = type(space)
    if kind is spaces.Box:
        low, high = getattr(space, "low"), getattr(space, "high")  # noqa: B009 # of any Box
        return {"kind": "Box", "low": low, "high": high, "dtype": str(space.dtype)}
    if isinstance(space, spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "MultiDiscrete", "nvec": space.nvec, "start": space.start}
    if isinstance(space, spaces.MultiBinary):
        n = space.n if isinstance(space.n, int) else list(space.shape)
        return {"kind": "MultiBinary", "n": n}
    if isinstance(space, spaces.Dict):
        return {"kind": "Dict", "parts": {key: space_to_dict(one) for key, one in space.items()}}
    if isinstance(space, spaces.Tuple):
        return {"kind": "Tuple", "parts": [space_to_dict(one) for one in space.spaces]}
    return {"kind": "unknown", "text": str(space)}


def space_from_dict(values: Mapping[str, Any]) -> AnySpace:
    """The space that `space_to_dict` was given."""
    kind = values["kind"]
    if kind == "Box":
        return spaces.Box(values["low"], values["high"], dtype=numpy.dtype(values["dtype"]).type)
    if kind == "Discrete":
        return spaces.Discrete(values["n"], start=values["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(values["nvec"], start=values["start"])
    if kind == "MultiBinary":
        return spaces.MultiBinary(values["n"])
    if kind == "Dict":
        return spaces.Dict({key: space_from_dict(one) for key, one in values["parts"].items()})
    if kind == "Tuple":
        return spaces.Tuple([space_from_dict(one) for one in values["parts"]])
    raise RequestError(
        f"the saved space {values.get('text', kind)!r} has a type that cannot be stored.",
        "try: an environment with Gymnasium's own spaces",
    )
