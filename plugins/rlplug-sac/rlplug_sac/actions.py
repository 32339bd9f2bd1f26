"""Actions of a Box, as the environment takes them and as critics see them."""

from __future__ import annotations

from typing import Any

import numpy
import torch
from gymnasium import spaces
from torch import Tensor, nn

__all__ = ["BoxActions"]


class BoxActions(nn.Module):
    """Actions within the bounds of a Box; scaled, they are rows of numbers in [-1, 1]."""

    scale: Tensor
    middle: Tensor

    def __init__(self, space: spaces.Box) -> None:
        super().__init__()
        self._space = space
        low, high = (bound.reshape(-1).astype(float) for bound in (space.low, space.high))
        self._scale, self._middle = (high - low) / 2, (high + low) / 2
        self._log_density = -float(numpy.log(high - low).sum())
        self._is_scaled = bool((self._scale == 1).all() and (self._middle == 0).all())
        for name, numbers in (("scale", self._scale), ("middle", self._middle)):
            part = torch.as_tensor(numbers, dtype=torch.get_default_dtype())
            self.register_buffer(name, part, persistent=False)

    def scaled(self, actions: Tensor) -> Tensor:
        """Actions of the environment, shape (n, *shape), as rows in [-1, 1]."""
        rows = actions.flatten(1)
        return rows if self._is_scaled else (rows - self.middle) / self.scale

    def for_env(self, scaled: Any) -> Any:
        """Rows in [-1, 1] as actions of the environment."""
        space = self._space
        rows = scaled if self._is_scaled else self._middle + self._scale * scaled
        actions = rows.reshape(-1, *space.shape).astype(space.dtype)
        # Rounding may put an action beyond its bound.
        return actions if self._is_scaled else numpy.clip(actions, space.low, space.high)

    def tensor_for_env(self, scaled: Tensor) -> Tensor:
        """The same in torch."""
        space = self._space
        actions = (self.middle + self.scale * scaled).reshape(-1, *space.shape)
        low, high = (torch.as_tensor(one, device=actions.device) for one in (space.low, space.high))
        return actions.to(low.dtype).clamp(low, high)

    def uniform(self, rows: int, random: numpy.random.Generator) -> Any:
        """Random actions of the environment."""
        return self.for_env(random.uniform(-1, 1, (rows, len(self._scale))))

    def uniform_log_prob(self, actions: Any) -> Any:
        """The log-density of each action among uniform ones: minus infinity outside the bounds."""
        rows = numpy.asarray(actions).reshape(len(actions), -1)
        low, high = self._space.low.reshape(-1), self._space.high.reshape(-1)
        inside = ((rows >= low) & (rows <= high)).all(1)
        return numpy.where(inside, self._log_density, -numpy.inf).astype(numpy.float32)
