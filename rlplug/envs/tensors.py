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
from rlplug.envs.sync import LOOKS, check_columns, check_observation, set_spaces
from rlplug.errors import RequestError
from rlplug.seeding import forked
from rlplug.spaces import ACTION_MASK

__all__ = ["ArrayVector", "TensorVector", "tensor_vector"]

_FINAL_NAMES = ("final_obs", "final_observation")
"""Where Gymnasium and ManiSkill put the last observations of episodes."""

_KNOWN_ARRAYS = ("gymnasium.envs.", "rlplug.envs.", "rlplug.bandits.")
"""Modules with vector environments that give arrays."""

_COLUMNS = ("observations", "rewards", "terminated", "truncated")


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
        check_observation(self.observation_space, observations)
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Step all."""
        observations, rewards, terminated, truncated, infos = self.inner.step(actions)
        columns = observations, rewards, terminated, truncated
        if self._looks:
            self._looks -= 1
            for name, column in zip(_COLUMNS, columns, strict=True):
                for leaf in leaves(column):
                    found = leaf.device if isinstance(leaf, Tensor) else type(leaf).__name__
                    if found != self.device:
                        wanted = f"expected tensors on {self.device}"
                        raise ValueError(f"it gave {name} of {found}, {wanted}")
            check_columns(self.observation_space, self.num_envs, *columns)
        return *columns, infos

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
        self._before = _on_host(observations)
        return self._before, _mask_of(infos)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all."""
        moved = tree_map(lambda leaf: leaf.to(self.tensors.device), to_tensors(to_arrays(actions)))
        *columns, told = self.tensors.step(moved)
        observations, rewards, terminated, truncated = _on_host(tuple(columns))
        infos = _mask_of(told)
        if self._same_step:
            finals = self.tensors.final_observations(told)
            infos["final_obs"] = self._before if finals is None else to_arrays(finals)
            infos["_final_obs"] = terminated | truncated
        self._before = observations
        return observations, rewards, terminated, truncated, infos

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


def _on_host(column: Any) -> Any:
    """A copy: on the CPU, the environment may write into its tensors again."""
    return tree_map(lambda leaf: numpy.array(to_arrays(leaf)), column)


def _mask_of(infos: Mapping[str, Any]) -> dict[str, Any]:
    """The action mask in infos, as an array."""
    return {name: _on_host(mask) for name, mask in infos.items() if name == ACTION_MASK}
