"""Approximations of the values of states and actions."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rlplug.approximation.approximation import Approximation
from rlplug.approximation.checkpointer import DummyCheckpointer
from rlplug.nn.projection import project
from rlplug.nn.tensors import device_of

__all__ = ["Identity", "QContinuous", "QDist", "QNetwork", "VNetwork"]

IdentityT = TypeVar("IdentityT", bound="Identity")


class QNetwork(Approximation):
    """The values of n actions: `q(observations)` of all, `q(observations, actions)` of those."""

    def __init__(
        self, model: nn.Module, optimizer: Any = None, name: str = "q", **options: Any
    ) -> None:
        super().__init__(_Chosen(model), optimizer, name=name, **options)


class QContinuous(Approximation):
    """The values of actions made of numbers: `q(observations, actions, terminated)`.

    The model takes both side by side. Terminated observations have the value 0.
    """

    def __init__(
        self, model: nn.Module, optimizer: Any = None, name: str = "q", **options: Any
    ) -> None:
        super().__init__(_SideBySide(model), optimizer, name=name, **options)


class VNetwork(Approximation):
    """The values of states: `v(observations, terminated)`; terminated ones have the value 0."""

    def __init__(
        self, model: nn.Module, optimizer: Any = None, name: str = "v", **options: Any
    ) -> None:
        super().__init__(_Alone(model), optimizer, name=name, **options)


class QDist(Approximation):
    """The distribution of the return of each action over fixed atoms (C51), as probabilities.

    `q(observations)` has shape (n, actions, atoms), `q(observations, actions)` (n, atoms). The
    model gives `n_actions * n_atoms` logits. Terminated observations return 0 for certain.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any = None,
        n_actions: int = 1,
        n_atoms: int = 51,
        v_min: float = -10.0,
        v_max: float = 10.0,
        name: str = "q_dist",
        **options: Any,
    ) -> None:
        atoms = torch.linspace(v_min, v_max, n_atoms, device=device_of(model))
        self._returns = _Returns(model, n_actions, atoms)
        super().__init__(self._returns, optimizer, name=name, **options)

    @property
    def atoms(self) -> Tensor:
        """Where the atoms lie."""
        return self._returns.atoms

    def project(self, probabilities: Tensor, positions: Tensor) -> Tensor:
        """Mass at any positions put back on the atoms: shapes (n, m), (n, m) to (n, atoms)."""
        return project(probabilities, positions, self.atoms)


class Identity(Approximation):
    """Gives what it is given, and learns nothing."""

    def __init__(self, device: torch.device | str | None = None, name: str = "identity") -> None:
        super().__init__(nn.Identity(), device=device, name=name, checkpointer=DummyCheckpointer())

    def reinforce(self: IdentityT, loss: Tensor | None = None) -> IdentityT:
        """Nothing: there is nothing to move."""
        return self

    def step(self: IdentityT, loss: Tensor | None = None) -> IdentityT:
        """Nothing."""
        return self


class _Chosen(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, observations: Any, actions: Tensor | None = None) -> Tensor:
        values: Tensor = self.model(observations)
        if actions is None:
            return values
        return values.gather(1, actions.long().reshape(-1, 1)).squeeze(1)


class _SideBySide(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, observations: Tensor, actions: Tensor, terminated: Tensor | None = None
    ) -> Tensor:
        together = torch.cat([observations, actions.to(observations.dtype)], -1)
        return _unless(terminated, self.model(together).squeeze(-1))


class _Alone(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, observations: Any, terminated: Tensor | None = None) -> Tensor:
        return _unless(terminated, self.model(observations).squeeze(-1))


class _Returns(nn.Module):
    atoms: Tensor

    def __init__(self, model: nn.Module, n_actions: int, atoms: Tensor) -> None:
        super().__init__()
        self.model = model
        self._n_actions = n_actions
        self.register_buffer("atoms", atoms)

    def forward(
        self, observations: Any, actions: Tensor | None = None, terminated: Tensor | None = None
    ) -> Tensor:
        logits = self.model(observations).reshape(-1, self._n_actions, self.atoms.shape[0])
        chances = torch.softmax(logits, -1)
        if terminated is not None:
            one = torch.ones(1, 1, device=chances.device, dtype=chances.dtype)
            nothing = project(one, torch.zeros_like(one), self.atoms)
            chances = torch.where(terminated.reshape(-1, 1, 1), nothing, chances)
        if actions is None:
            return chances
        return chances[
            torch.arange(len(chances), device=chances.device), actions.long().reshape(-1)
        ]


def _unless(terminated: Tensor | None, values: Tensor) -> Tensor:
    return values if terminated is None else torch.where(terminated, 0.0, values)
