"""What a policy takes and gives as a model of MLflow: named tensors, params, and an example."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy
from gymnasium import spaces

from rlplug.batch.nested import to_arrays
from rlplug.durable import write_durably
from rlplug.errors import RequestError
from rlplug.serving.act_requests import plain
from rlplug.spaces import ACTION_MASK, mask_width, open_masks, placeholder

__all__ = ["SIGNATURE", "flatten", "nest", "requirements", "signature_of", "write_signature"]

SIGNATURE = "signature.json"
"""The file in the folder of a run from which its models in MLflow are made."""

_LIBRARIES = ("torch", "numpy", "gymnasium", "mlflow")


def write_signature(
    folder: Path,
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    *,
    frame_stack: int,
    distributions: Sequence[str],
) -> None:
    """Write what the models of a run have in common into its folder."""
    described = {
        **signature_of(observation_space, action_space, frame_stack),
        "requirements": requirements(distributions),
    }
    write_durably(folder / SIGNATURE, json.dumps(described).encode() + b"\n")


def signature_of(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], frame_stack: int = 1
) -> dict[str, Any]:
    """Inputs, outputs, params and an example, as MLflow writes them.

    A Dict or Tuple is one tensor per part, under its path: `camera.rgb`, `0`. Every tensor has a
    first axis of observations; of stacked frames, the second one is their number, or 1 for the
    newest alone. Empty for spaces that cannot be stored.
    """
    taken, given = dict(_parts(observation_space)), dict(_parts(action_space))
    if any(part.dtype is None or part.shape is None for part in [*taken.values(), *given.values()]):
        return {}
    params: list[dict[str, Any]] = [
        {"name": "deterministic", "type": "boolean", "default": True, "shape": None},
        {"name": "session", "type": "string", "default": "", "shape": None},
        {"name": "reset", "type": "boolean", "default": False, "shape": None},
    ]
    if mask_width(action_space) is not None:
        params.append({"name": ACTION_MASK, "type": "boolean", "default": [], "shape": [-1]})
    example = placeholder(observation_space, 1)
    open_masks(example)
    return {
        "inputs": [_tensor(*part, frames=frame_stack > 1) for part in taken.items()],
        "outputs": [_tensor(*part) for part in given.items()],
        "params": params,
        "example": {
            "inputs": plain(flatten(observation_space, example)),
            "params": {"deterministic": True},
        },
    }


def requirements(distributions: Sequence[str]) -> list[str]:
    """The packages that a policy needs, with the versions that are installed."""
    needed = []
    for name in dict.fromkeys(["rlplug", *distributions, *_LIBRARIES]):
        # A plugin that was passed from Python is in no package.
        with contextlib.suppress(metadata.PackageNotFoundError):
            # What follows `+` tells how it was built; no index has such a version.
            needed.append(f"{name}=={metadata.version(name).partition('+')[0]}")
    return needed


def flatten(space: spaces.Space[Any], values: Any) -> Any:
    """The parts of nested arrays by their paths; an array alone stays as it is."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return to_arrays(values)
    return dict(_leaves(space, values))


def nest(space: spaces.Space[Any], given: Any) -> Any:
    """The opposite of `flatten`."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        if isinstance(given, Mapping):
            raise RequestError(
                f"this policy takes one array, found {', '.join(map(repr, given)) or 'nothing'}.",
                'try: {"inputs": [[...]]} with a row for each observation',
            )
        return numpy.asarray(given)
    if not isinstance(given, Mapping):
        names = ", ".join(name for name, _ in _parts(space))
        raise RequestError(
            f"this policy takes several arrays, found {type(given).__name__}.",
            f"give an object with: {names}",
        )
    return _nest(space, given, "")


def _nest(space: spaces.Space[Any], given: Mapping[str, Any], path: str) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _nest(part, given, _join(path, key)) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        parts = enumerate(space.spaces)
        return tuple(_nest(part, given, _join(path, index)) for index, part in parts)
    if path not in given:
        raise RequestError(f"there is no {path!r} among the inputs.", f"found: {', '.join(given)}")
    return numpy.asarray(given[path])


def _parts(space: spaces.Space[Any], path: str = "") -> Iterator[tuple[str, spaces.Space[Any]]]:
    """The spaces of single arrays, by their paths."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _parts(part, _join(path, key))
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _parts(part, _join(path, index))
    else:
        yield path, space


def _leaves(space: spaces.Space[Any], values: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _leaves(part, values[key], _join(path, key))
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _leaves(part, values[index], _join(path, index))
    else:
        yield path, to_arrays(values)


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _tensor(path: str, space: spaces.Space[Any], *, frames: bool = False) -> dict[str, Any]:
    shape = [-1, *(space.shape or ())]
    if frames:
        shape[1] = -1
    tensor = {"type": "tensor", "tensor-spec": {"dtype": str(space.dtype), "shape": shape}}
    return {"name": path, **tensor} if path else tensor
