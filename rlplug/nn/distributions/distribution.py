"""What every distribution over actions can do."""

from __future__ import annotations

from typing import Any, Protocol

import numpy
import torch
from torch import Tensor

from rlplug.batch.nested import to_tensors
from rlplug.errors import EnvironmentFailedError
from rlplug.nn.arrays import NumpyArray

__all__ = [
    "Constants",
    "Distribution",
    "check_mask",
    "log_prob_of",
    "masked",
    "masked_array",
    "probabilities_of",
]


class Distribution(Protocol):
    """A family of distributions over the actions of one space.

    It holds no parameters: a network gives them, `size` numbers for each row. Acting happens in
    NumPy under the sampler's generator, in environments of tensors and training in torch. Actions
    are those of the environment: a Discrete that starts at 3 gives 3 first. Masks are True where an
    action may be chosen.
    """

    size: int
    """How many numbers describe one distribution."""
    deviations: int = 0
    """How many of them, the last ones, are logarithms of standard deviations."""

    def sample(
        self, parameters: NumpyArray, random: numpy.random.Generator, mask: NumpyArray | None = None
    ) -> NumpyArray:
        """One action for each row."""

    def mode(self, parameters: NumpyArray, mask: NumpyArray | None = None) -> NumpyArray:
        """The most likely action of each row, the first of equal ones."""

    def tensor_sample(
        self, parameters: Tensor, generator: torch.Generator, mask: Tensor | None = None
    ) -> Tensor:
        """`sample` in torch."""

    def tensor_mode(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        """`mode` as the environment takes it, in torch."""

    def for_env(self, actions: NumpyArray) -> NumpyArray:
        """The actions as the environment takes them: within its bounds."""
        return actions

    def log_prob(self, parameters: Tensor, actions: Tensor, mask: Tensor | None = None) -> Tensor:
        """The log-probability (or log-density) of each row's action, shape (n,)."""
        return self.score(parameters, actions, mask)[0]

    def entropy(self, parameters: Tensor, mask: Tensor | None = None) -> Tensor:
        """The entropy of each row, shape (n,)."""

    def score(
        self, parameters: Tensor, actions: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`log_prob` and `entropy`, at the price of one where they have something in common."""
        return self.log_prob(parameters, actions, mask), self.entropy(parameters, mask)

    def kl(self, parameters: Tensor, others: Tensor, mask: Tensor | None = None) -> Tensor:
        """The divergence of each row from the same row of `others`, shape (n,)."""


class Constants:
    """Arrays as tensors, copied to each device once: a copy from the host waits for the device."""

    def __init__(self, **arrays: NumpyArray) -> None:
        self._arrays = arrays
        self._tensors: dict[tuple[str, torch.device, torch.dtype | None], Tensor] = {}

    def on(self, like: Tensor, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """One of them where another tensor is."""
        key = name, like.device, dtype
        known = self._tensors.get(key)
        # What is kept here must not be memory of a graph.
        if known is None or torch.compiler.is_compiling():
            known = torch.as_tensor(self._arrays[name], dtype=dtype, device=like.device)
            if not torch.compiler.is_compiling():
                self._tensors[key] = known
        return known


def log_prob_of(
    distribution: Distribution, parameters: Any, actions: Any, mask: Any = None
) -> NumpyArray:
    """The log-probabilities of actions that were sampled on arrays, for `Acted.extras`."""
    allowed = None if mask is None else to_tensors(mask)
    log_prob = distribution.log_prob(to_tensors(parameters), to_tensors(actions), allowed)
    return log_prob.numpy(force=True)


def probabilities_of(logits: Any, mask: Any = None) -> NumpyArray:
    """The probability of each action, (n, actions), from what acting computed on arrays."""
    allowed = None if mask is None else to_tensors(mask)
    return masked(to_tensors(logits), allowed).softmax(-1).numpy(force=True)


def masked(logits: Tensor, mask: Tensor | None) -> Tensor:
    """The logits, those of forbidden actions so low that their probability and gradient are 0."""
    # Not minus infinity: 0 × inf would make the entropy NaN.
    if mask is None:
        return logits
    # Gymnasium's masks are of bytes, whose ~ would be another thing.
    return logits.masked_fill(mask.logical_not(), torch.finfo(logits.dtype).min)


def masked_array(logits: NumpyArray, mask: NumpyArray | None) -> NumpyArray:
    """The same on arrays."""
    return logits if mask is None else numpy.where(mask, logits, -numpy.inf)


def check_mask(mask: Any) -> None:
    """Refuse a mask that leaves nothing to choose in some row."""
    allowed = numpy.asarray(mask).any(-1)
    if not allowed.all():
        row = numpy.argwhere(~allowed)[0].tolist()
        raise EnvironmentFailedError(
            f"the action mask of environment {row[0]} forbids every action.",
            "try: allow at least one, or end the episode before",
        )
