"""What a policy is, as plain values: its spaces, how long it takes, valid observations for it."""

from __future__ import annotations

import copy
import math
import time
from typing import Any

import numpy
from gymnasium import spaces

from rlplug.batch.nested import tree_map
from rlplug.serving.policy import Policy
from rlplug.spaces import open_masks

__all__ = ["json_type", "latency", "sampled_observations", "space_as_json"]

_SECONDS = 1.0
"""How long at most latency is measured, for each number of observations."""


def space_as_json(space: spaces.Space[Any]) -> dict[str, Any]:
    """A Gymnasium space as values that JSON has; bounds that are all the same are one number."""
    if isinstance(space, spaces.Dict):
        return {"kind": "Dict", "parts": {key: space_as_json(one) for key, one in space.items()}}
    if isinstance(space, spaces.Tuple):
        return {"kind": "Tuple", "parts": [space_as_json(one) for one in space.spaces]}
    described: dict[str, Any] = {
        "kind": type(space).__name__,
        "shape": list(space.shape or ()),
        "dtype": str(space.dtype),
    }
    if isinstance(space, spaces.Box):
        described |= {"low": _bounds(space.low), "high": _bounds(space.high)}
    elif isinstance(space, spaces.Discrete):
        described |= {"n": int(space.n), "start": int(space.start)}
    elif isinstance(space, spaces.MultiDiscrete):
        described |= {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
    return described


def json_type(value: Any) -> str:
    """What a value that was read from JSON is, for messages."""
    names = {bool: "a boolean", str: "text", list: "a list", dict: "an object"}
    return "null" if value is None else names.get(type(value), "a number")


def sampled_observations(space: spaces.Space[Any], n: int, seed: int = 0) -> Any:
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


def _bounds(values: Any) -> Any:
    """None for those that are not finite."""
    flat = [float(one) if math.isfinite(one) else None for one in numpy.ravel(values)]
    if len(set(flat)) == 1:
        return flat[0]
    return numpy.array(flat, object).reshape(numpy.shape(values)).tolist()
