"""What a policy takes and gives, as plain values: for a server, and as a model of MLflow."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy
from gymnasium import spaces

from rlplug.batch.nested import to_arrays, tree_map
from rlplug.durable import write_durably
from rlplug.errors import RequestError
from rlplug.logs.encoding import Encoder
from rlplug.serving.act_requests import plain
from rlplug.serving.policy import Policy
from rlplug.spaces import ACTION_MASK, AnySpace, mask_width, open_masks

__all__ = [
    "SIGNATURE",
    "flatten",
    "latency",
    "named_leaves",
    "nest",
    "requirements",
    "sampled_observations",
    "signature_of",
    "space_as_json",
    "write_signature",
]

SIGNATURE = "signature.json"
"""The file in the folder of a run from which its models in MLflow are made."""

_LIBRARIES = ("torch", "numpy", "gymnasium", "mlflow")
_SECONDS = 1.0
"""How long at most latency is measured, for each number of observations."""


def named_leaves(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The parts of nested values or spaces under their paths: `camera.rgb`, `0`."""
    if isinstance(tree, spaces.Tuple):
        tree = tree.spaces
    if isinstance(tree, tuple):
        tree = dict(enumerate(tree))
    if not isinstance(tree, Mapping):
        yield name, tree
        return
    for key, part in tree.items():
        yield from named_leaves(part, f"{name}.{key}" if name else str(key))


# -- for a server -------------------------------------------------------------------------------


def space_as_json(space: AnySpace) -> dict[str, Any]:
    """A Gymnasium space as values that JSON has; bounds that are all the same are one number."""
    if isinstance(space, spaces.Dict):
        return {"kind": "Dict", "parts": {key: space_as_json(one) for key, one in space.items()}}
    if isinstance(space, spaces.Tuple):
        return {"kind": "Tuple", "parts": [space_as_json(one) for one in space.spaces]}
    names = {"Box": ("low", "high"), "Discrete": ("n", "start"), "MultiDiscrete": ("nvec", "start")}
    return {
        "kind": type(space).__name__,
        "shape": list(space.shape or ()),
        "dtype": str(space.dtype),
        **{
            name: _bounds(getattr(space, name))
            if isinstance(space, spaces.Box)
            else plain(getattr(space, name))
            for name in names.get(type(space).__name__, ())
        },
    }


def _bounds(values: Any) -> Any:
    """None for those that are not finite."""
    flat = [float(one) if math.isfinite(one) else None for one in numpy.ravel(values)]
    if len(set(flat)) == 1:
        return flat[0]
    return numpy.array(flat, object).reshape(numpy.shape(values)).tolist()


def sampled_observations(space: AnySpace, n: int, seed: int = 0) -> Any:
    """So many observations drawn from a space, with masks that allow everything."""
    # Of a copy: who owns the space may draw from it, too.
    drawn = copy.deepcopy(space)
    drawn.seed(seed)
    rows = [drawn.sample() for _ in range(n)]
    batch = tree_map(lambda *leaves: numpy.stack([numpy.asarray(one) for one in leaves]), *rows)
    open_masks(batch)
    return batch


def latency(policy: Policy, rows: int = 1, calls: int = 500) -> dict[str, float]:
    """Milliseconds of a prediction for so many observations: median and 99th percentile."""
    batch = sampled_observations(policy.observation_space, rows)
    given = tree_map(lambda leaf: leaf[0], batch) if rows == 1 else batch
    taken: list[float] = []
    begun = time.perf_counter()
    # The first ones make plans and fill caches.
    for index in range(-20, calls):
        before = time.perf_counter()
        policy.reset()
        policy.predict(given)
        after = time.perf_counter()
        if index >= 0:
            taken.append(after - before)
        if taken and after - begun > _SECONDS:
            break
    policy.reset()
    p50, p99 = numpy.percentile(taken, [50, 99]) * 1e3
    return {"p50_ms": round(float(p50), 4), "p99_ms": round(float(p99), 4)}


# -- as a model of MLflow -----------------------------------------------------------------------


def write_signature(
    folder: Path,
    observation_space: AnySpace,
    action_space: AnySpace,
    *,
    frame_stack: int,
    encoder: Encoder | None = None,
    distributions: Sequence[str],
) -> None:
    """Write what the models of a run have in common into its folder."""
    described = {
        **signature_of(observation_space, action_space, frame_stack),
        **({} if encoder is None else _signature_of_names(encoder)),
        "requirements": requirements(distributions),
    }
    write_durably(folder / SIGNATURE, json.dumps(described).encode() + b"\n")


def signature_of(
    observation_space: AnySpace, action_space: AnySpace, frame_stack: int = 1
) -> dict[str, Any]:
    """Inputs, outputs and params, as MLflow writes them.

    A Dict or Tuple is one tensor per part, under its path. Every tensor has a first axis of
    observations; of stacked frames, the second one is their number, or 1 for the newest alone.
    Empty for spaces that cannot be stored.
    """
    taken, given = dict(named_leaves(observation_space)), dict(named_leaves(action_space))
    if any(part.dtype is None or part.shape is None for part in [*taken.values(), *given.values()]):
        return {}
    params: list[dict[str, Any]] = [
        {"name": "deterministic", "type": "boolean", "default": True, "shape": None},
        {"name": "session", "type": "string", "default": "", "shape": None},
        {"name": "reset", "type": "boolean", "default": False, "shape": None},
    ]
    if mask_width(action_space) is not None:
        params.append({"name": ACTION_MASK, "type": "boolean", "default": [], "shape": [-1]})
    return {
        "inputs": [_tensor(*part, frames=frame_stack > 1) for part in taken.items()],
        "outputs": [_tensor(*part) for part in given.items()],
        "params": params,
    }


def _signature_of_names(encoder: Encoder) -> dict[str, Any]:
    """Columns in place of a tensor where some are categories, and text where arms have names."""
    signature: dict[str, Any] = {}
    if encoder.categories:
        signature["inputs"] = [
            {"name": one.name, "type": "string" if one.is_category else "double", "required": True}
            for one in encoder.features
        ]
    if encoder.arms and isinstance(encoder.arms[0], str):
        signature["outputs"] = [{"type": "string", "required": True}]
    return signature


def requirements(distributions: Sequence[str]) -> list[str]:
    """The packages that a policy needs, with the versions that are installed."""
    needed = []
    for name in dict.fromkeys(["rlplug", *distributions, *_LIBRARIES]):
        # A plugin that was passed from Python is in no package.
        with contextlib.suppress(metadata.PackageNotFoundError):
            # What follows `+` tells how it was built; no index has such a version.
            needed.append(f"{name}=={metadata.version(name).partition('+')[0]}")
    return needed


def flatten(values: Any) -> Any:
    """The parts of nested arrays by their paths; an array alone stays as it is."""
    if not isinstance(values, Mapping | tuple):
        return to_arrays(values)
    return {name: to_arrays(part) for name, part in named_leaves(values)}


def nest(space: AnySpace, given: Any) -> Any:
    """The opposite of `flatten`."""
    nested = isinstance(space, spaces.Dict | spaces.Tuple)
    if nested != isinstance(given, Mapping):
        names = ", ".join(name for name, _ in named_leaves(space))
        raise RequestError(
            f"this policy takes {'several arrays' if nested else 'one array'}, found "
            f"{type(given).__name__}.",
            f"give an object with: {names}" if nested else 'try: {"inputs": [[...]]}, row by row',
        )
    return _nested(space, given, named_leaves(space)) if nested else numpy.asarray(given)


def _nested(
    space: AnySpace, given: Mapping[str, Any], names: Iterator[tuple[str, AnySpace]]
) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _nested(part, given, names) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nested(part, given, names) for part in space.spaces)
    name, _ = next(names)
    if name not in given:
        raise RequestError(f"there is no {name!r} among the inputs.", f"found: {', '.join(given)}")
    return numpy.asarray(given[name])


def _tensor(path: str, space: AnySpace, *, frames: bool = False) -> dict[str, Any]:
    shape = [-1, *(space.shape or ())]
    if frames:
        shape[1] = -1
    tensor = {"type": "tensor", "tensor-spec": {"dtype": str(space.dtype), "shape": shape}}
    return {"name": path, **tensor} if path else tensor
