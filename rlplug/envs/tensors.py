"""Vector environments that give and take torch tensors on a device; a view of them as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from rlplug.batch.nested import first_leaf, leaves, to_arrays, to_tensors, tree_map
from rlplug.envs.making import trying
from rlplug.envs.sync import LOOKS, set_spaces
from rlplug.errors import RequestError
from rlplug.seeding import forked
from rlplug.spaces import ACTION_MASK, shape_mismatch

__all__ = ["ArrayVector", "TensorVector", "tensor_vector"]

_FINAL_NAMES = ("final_obs", "final_observation")
"""Where Gymnasium and ManiSkill put the last observations of episodes."""

_KNOWN_ARRAYS = ("gymnasium.envs.", "rlplug.envs.", "rlplug.bandits.")
"""Modules with vector environments that give arrays."""


class TensorVector(VectorEnv[Any, Any, Any]):
    """A vector environment of tensors with Gymnasium's interface, whatever class it is of.

    The first steps are checked for shapes, dtypes and devices; no step for values: that would
    wait for the device.
    """

    def __init__(self, inner: Any, name: str, device: torch.device) -> None:
        self.inner = inner
        """The environment itself."""
        self.device = device
        """Where its tensors are."""
        spaces = inner.single_observation_space, inner.single_action_space
        set_spaces(self, *spaces, int(inner.num_envs))
        # Those that declare nothing reset in the same step: Isaac Lab, ManiSkill, Brax.
        declared = getattr(inner, "metadata", None) or {}
        mode = AutoresetMode(declared.get("autoreset_mode", AutoresetMode.SAME_STEP))
        if mode == AutoresetMode.DISABLED:
            raise RequestError(
                f"environment {name!r} leaves resets to its caller (AutoresetMode.DISABLED), who "
                "would have to wait for the device in every step.",
                "try: one that resets in its step (SAME_STEP or NEXT_STEP)",
            )
        self.metadata = {**declared, "autoreset_mode": mode}
        self._looks = LOOKS

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Reset all."""
        observations, infos = self.inner.reset(seed=seed, options=options)
        self._check_observations(observations)
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Step all."""
        observations, rewards, terminated, truncated, infos = self.inner.step(actions)
        if self._looks:
            self._looks -= 1
            self._check_observations(observations)
            columns = {"rewards": rewards, "terminated": terminated, "truncated": truncated}
            for name, column in columns.items():
                self._check(name, column)
                if column.shape != (self.num_envs,):
                    shape = tuple(column.shape)
                    raise ValueError(f"it gave {name} of shape {shape} for {self.num_envs} rows")
                if name != "rewards" and column.dtype != torch.bool:
                    raise TypeError(f"it gave {name} of {column.dtype}, expected booleans")
        return observations, rewards, terminated, truncated, infos

    def final_observations(self, infos: Mapping[str, Any]) -> Any:
        """The last observations of the episodes that ended in a step, in all rows; None without."""
        for name in _FINAL_NAMES:
            finals = infos.get(name)
            if finals is not None and all(isinstance(leaf, Tensor) for leaf in leaves(finals)):
                return finals
        return None

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environment."""
        self.inner.close()

    def _check_observations(self, observations: Any) -> None:
        mismatch = shape_mismatch(self.observation_space, observations)
        if mismatch:
            raise ValueError(f"it gave observations {mismatch}")
        for leaf in leaves(observations):
            self._check("observations", leaf)

    def _check(self, name: str, leaf: Any) -> None:
        if not isinstance(leaf, Tensor) or leaf.device != self.device:
            kind = f"on {leaf.device}" if isinstance(leaf, Tensor) else f"of {type(leaf).__name__}"
            raise ValueError(f"it gave {name} {kind}, expected tensors on {self.device}")


class ArrayVector(VectorEnv[Any, Any, Any]):
    """A vector environment of tensors as one of arrays: each step copies to the host and back."""

    def __init__(self, tensors: TensorVector) -> None:
        self.tensors, self.metadata = tensors, tensors.metadata
        spaces = tensors.single_observation_space, tensors.single_action_space
        set_spaces(self, *spaces, tensors.num_envs)
        self._same_step = self.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
        self._before: Any = None
        """The observations acted on, for environments that give no final ones."""

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Reset all."""
        observations, infos = self.tensors.reset(seed=seed, options=options)
        self._before = tree_map(_copied_to_host, observations)
        return self._before, _infos_read(infos)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all."""
        moved = tree_map(lambda leaf: leaf.to(self.tensors.device), to_tensors(to_arrays(actions)))
        observations, rewards, terminated, truncated, infos = self.tensors.step(moved)
        host = tree_map(_copied_to_host, observations)
        ended = _copied_to_host(terminated), _copied_to_host(truncated)
        read = _infos_read(infos)
        if self._same_step:
            finals = self.tensors.final_observations(infos)
            read["final_obs"] = self._before if finals is None else to_arrays(finals)
            read["_final_obs"] = ended[0] | ended[1]
        self._before = host
        return host, _copied_to_host(rewards), *ended, read

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environment."""
        self.tensors.close()


def tensor_vector(made: Any, name: str) -> TensorVector | None:
    """The same environment if it gives tensors, which a reset tells; None if it gives arrays."""
    if f"{type(made).__module__}.".startswith(_KNOWN_ARRAYS):
        return None
    with trying(name, "reset"), forked(0):
        first = first_leaf(made.reset(seed=0)[0])
        if isinstance(first, Tensor):
            return TensorVector(made, name, first.device)
    if not isinstance(made, VectorEnv):
        raise RequestError(
            f"{name} made a {type(made).__name__} that gives {type(first).__name__}; a class that "
            "is no gymnasium.vector.VectorEnv must give tensors.",
            "try: a VectorEnv, or tensors as observations",
        )
    return None


def _copied_to_host(leaf: Any) -> Any:
    """A copy: on the CPU, the environment may write into its tensors again."""
    return numpy.array(to_arrays(leaf))


def _infos_read(infos: Mapping[str, Any]) -> dict[str, Any]:
    """The infos that sampling reads, as arrays."""
    mask = infos.get(ACTION_MASK)
    return {} if mask is None else {ACTION_MASK: _copied_to_host(mask)}
