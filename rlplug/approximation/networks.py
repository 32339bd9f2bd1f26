"""Value functions of states and of actions.

They take observations, or States as in the Autonomous Learning Library: objects with `observation`
and `mask`, which is 0 where the episode is terminated. Further inputs may be given by position or
name: `actions`, `terminated`.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rlplug.approximation.approximation import Approximation
from rlplug.approximation.arguments import (
    count,
    limits,
    output_of,
    refuse_unfit,
    refuse_unprojectable,
    shown,
)
from rlplug.approximation.states import (
    is_state,
    observation_of,
    real_actions,
    terminated_rows,
    whole_actions,
)
from rlplug.errors import RequestError
from rlplug.nn.projection import project
from rlplug.nn.tensors import device_of

__all__ = ["Identity", "QContinuous", "QDist", "QNetwork", "VNetwork"]

IdentityT = TypeVar("IdentityT", bound="Identity")


class QNetwork(Approximation):
    """Q-values of discrete actions: of all, or those of `q(observations, actions)`.

    With `terminated`, the values of terminated observations are 0.
    """

    def __init__(
        self, model: nn.Module, optimizer: Any = None, name: str = "q", **options: Any
    ) -> None:
        super().__init__(model, optimizer, name=name, **options)

    def _network(self, model: nn.Module) -> nn.Module:
        return _DiscreteQ(model, self.name)


class QContinuous(Approximation):
    """Q-values of continuous actions: `q(observations, actions, terminated)`.

    The model takes both concatenated. The value of terminated observations is 0.
    """

    def __init__(
        self, model: nn.Module, optimizer: Any = None, name: str = "q", **options: Any
    ) -> None:
        super().__init__(model, optimizer, name=name, **options)

    def _network(self, model: nn.Module) -> nn.Module:
        return _ContinuousQ(model, self.name)


class VNetwork(Approximation):
    """State values: `v(observations, terminated)`; those of terminated observations are 0."""

    def __init__(
        self, model: nn.Module, optimizer: Any = None, name: str = "v", **options: Any
    ) -> None:
        super().__init__(model, optimizer, name=name, **options)

    def _network(self, model: nn.Module) -> nn.Module:
        return _StateValue(model, self.name)


class QDist(Approximation):
    """Return distributions of discrete actions over fixed atoms (C51), as probabilities.

    `q(observations)` has shape (n, actions, atoms), `q(observations, actions)` (n, atoms). The
    model returns `n_actions * n_atoms` logits. Terminated observations have a return of 0.
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
        self.n_actions = n_actions
        self._support = v_min, v_max, n_atoms
        super().__init__(model, optimizer, name=name, **options)

    @property
    def atoms(self) -> Tensor:
        """The support of the distributions."""
        return self._returns.atoms

    def project(self, probabilities: Tensor, positions: Tensor) -> Tensor:
        """Project distributions onto the atoms: shapes (n, m), (n, m) to (n, atoms)."""
        refuse_unprojectable(self.name, probabilities, positions)
        return project(probabilities, positions, self.atoms)

    def _network(self, model: nn.Module) -> nn.Module:
        v_min, v_max, n_atoms = self._support
        counts = count("n_actions", self.n_actions, 1), count("n_atoms", n_atoms, 2)
        refuse_unfit(type(self), self.name, [*counts, *limits(v_min, v_max)])
        atoms = torch.linspace(v_min, v_max, n_atoms, device=device_of(model))
        self._returns = _ReturnDistribution(model, self.name, self.n_actions, atoms)
        return self._returns


class Identity(Approximation):
    """Returns its input; learns nothing, and has nothing to save."""

    def __init__(
        self, device: torch.device | str | None = None, name: str = "identity", **options: Any
    ) -> None:
        if "model" in options:
            raise RequestError(
                "an Identity was given a model, and has none.",
                "try: Approximation(model), or FeatureNetwork(model)",
            )
        super().__init__(nn.Identity(), device=device, name=name, **options)

    def reinforce(self: IdentityT, loss: Tensor | None = None) -> IdentityT:
        """Do nothing: it has no parameters."""
        return self

    def step(self: IdentityT, loss: Tensor | None = None) -> IdentityT:
        """Do nothing."""
        return self


class _ValueNetwork(nn.Module):
    """A network around the model that was given."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model = model
        self._name = name
        """What errors call the approximation."""

    def _output(self, inputs: Any) -> Tensor:
        return output_of(self._name, self.model(inputs))

    def _column(self, inputs: Any) -> Tensor:
        """One value for each input, with a last dimension of 1 or without."""
        values = self._output(inputs)
        rows = inputs.shape[:-1] if isinstance(inputs, Tensor) else None
        single = rows is not None and not rows
        several = values.ndim > (0 if single else 1) and values.shape[-1] != 1
        # Other columns would be broadcast in a loss.
        if several and values.shape != rows:
            hint = "try: a last layer of 1 output"
            raise self._unfit("one value for each observation", values, hint)
        return values.squeeze(-1)

    def _unfit(self, wanted: str, output: Tensor, hint: str) -> RequestError:
        shape = tuple(output.shape)
        return RequestError(
            f"the model of approximation {self._name!r} gives {wanted}, found the shape {shape}.",
            hint,
        )


class _DiscreteQ(_ValueNetwork):
    def forward(self, observations: Any, actions: Any = None, terminated: Any = None) -> Tensor:
        values = self._output(observation_of(observations))
        by_row = actions is not None or terminated is not None or is_state(observations)
        if by_row and values.ndim != 2:
            few = "try: observations.unsqueeze(0)"
            hint = few if values.ndim < 2 else "try: a model with a column for each action"
            raise self._unfit("one row for each observation", values, hint)
        values = _zero_if(terminated_rows(observations, terminated, values), values)
        if actions is None:
            return values
        return values.gather(1, whole_actions(actions, values).unsqueeze(1)).squeeze(1)


class _ContinuousQ(_ValueNetwork):
    def forward(self, observations: Any, actions: Any, terminated: Any = None) -> Tensor:
        seen = observation_of(observations)
        if not isinstance(seen, Tensor):
            raise RequestError(
                f"the observations of approximation {self._name!r} are a tensor, found "
                f"{shown(seen)}.",
                "try: torch.as_tensor(observations, dtype=torch.float32)",
            )
        both = torch.cat([seen, real_actions(actions, seen)], -1)
        values = self._column(both)
        return _zero_if(terminated_rows(observations, terminated, values), values)


class _StateValue(_ValueNetwork):
    def forward(self, observations: Any, terminated: Any = None) -> Tensor:
        values = self._column(observation_of(observations))
        return _zero_if(terminated_rows(observations, terminated, values), values)


class _ReturnDistribution(_ValueNetwork):
    atoms: Tensor

    def __init__(self, model: nn.Module, name: str, n_actions: int, atoms: Tensor) -> None:
        super().__init__(model, name)
        self._n_actions = n_actions
        self.register_buffer("atoms", atoms)

    def forward(self, observations: Any, actions: Any = None, terminated: Any = None) -> Tensor:
        logits = self._output(observation_of(observations))
        n_atoms = self.atoms.shape[0]
        width = self._n_actions * n_atoms
        # Another width would be read as other rows.
        if logits.ndim not in (1, 2) or logits.shape[-1] != width:
            wanted = f"{width} columns, {self._n_actions} actions of {n_atoms} atoms"
            raise self._unfit(wanted, logits, f"try: a last layer of {width} outputs")
        logits = logits.reshape(-1, self._n_actions, n_atoms)
        probabilities = torch.softmax(logits, -1)
        ended = terminated_rows(observations, terminated, probabilities)
        if ended is not None:
            one = torch.ones(1, 1, device=probabilities.device, dtype=probabilities.dtype)
            nothing = project(one, torch.zeros_like(one), self.atoms)
            probabilities = torch.where(ended.reshape(-1, 1, 1), nothing, probabilities)
        if actions is None:
            return probabilities
        index = whole_actions(actions, probabilities).reshape(-1, 1, 1)
        return probabilities.take_along_dim(index, 1).squeeze(1)


def _zero_if(terminated: Tensor | None, values: Tensor) -> Tensor:
    if terminated is None:
        return values
    return torch.where(terminated.reshape(-1, *[1] * (values.ndim - 1)), 0.0, values)
