"""Value functions of states and of actions, and features that they share.

They take observations, or States as in the Autonomous Learning Library: objects with `observation`
and `mask`, which is 0 where the episode is terminated. Further inputs may be given by position or
name: `actions`, `terminated`.
"""

from __future__ import annotations

import copy
from collections.abc import MutableMapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from rlplug.approximation.approximation import Approximation
from rlplug.errors import RequestError
from rlplug.nn.heads import project

__all__ = ["FeatureNetwork", "QContinuous", "QDist", "QNetwork", "VNetwork"]


class QNetwork(Approximation):
    """Q-values of discrete actions: of all, or those of `q(observations, actions)`.

    With `terminated`, the values of terminated observations are 0.
    """

    def __init__(
        self, model: nn.Module, optimizer: Any = None, name: str = "q", **options: Any
    ) -> None:
        super().__init__(model, optimizer, name=name, **options)

    def _forward(
        self, network: nn.Module, observations: Any, actions: Any = None, terminated: Any = None
    ) -> Tensor:
        values = network(_observation_of(observations))
        values = _zero_if_over(values, observations, terminated)
        return values if actions is None else _chosen(values, actions)


class QContinuous(Approximation):
    """Q-values of continuous actions: `q(observations, actions, terminated)`.

    The model takes both concatenated. The value of terminated observations is 0.
    """

    def __init__(
        self, model: nn.Module, optimizer: Any = None, name: str = "q", **options: Any
    ) -> None:
        super().__init__(model, optimizer, name=name, **options)

    def _forward(
        self, network: nn.Module, observations: Any, actions: Any, terminated: Any = None
    ) -> Tensor:
        seen = _observation_of(observations)
        both = torch.cat([seen, torch.as_tensor(actions, device=seen.device)], -1)
        values = _column(network, both)
        return _zero_if_over(values, observations, terminated)


class VNetwork(Approximation):
    """State values: `v(observations, terminated)`; those of terminated observations are 0."""

    def __init__(
        self, model: nn.Module, optimizer: Any = None, name: str = "v", **options: Any
    ) -> None:
        super().__init__(model, optimizer, name=name, **options)

    def _forward(self, network: nn.Module, observations: Any, terminated: Any = None) -> Tensor:
        values = _column(network, _observation_of(observations))
        return _zero_if_over(values, observations, terminated)


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
        super().__init__(model, optimizer, name=name, **options)
        self.n_actions = n_actions
        self.atoms = torch.linspace(v_min, v_max, n_atoms, device=self.device)
        """The support of the distributions."""
        self._zero = self.project(self.atoms.new_ones(1, 1), self.atoms.new_zeros(1, 1))
        """A return that is certain to be 0."""

    def project(self, probabilities: Tensor, positions: Tensor) -> Tensor:
        """Project distributions onto the atoms: shapes (n, m), (n, m) to (n, atoms)."""
        return project(probabilities, positions, self.atoms)

    def _forward(
        self, network: nn.Module, observations: Any, actions: Any = None, terminated: Any = None
    ) -> Tensor:
        logits = network(_observation_of(observations))
        probabilities = logits.unflatten(-1, (self.n_actions, len(self.atoms))).softmax(-1)
        probabilities = _zero_if_over(probabilities, observations, terminated, self._zero)
        return probabilities if actions is None else _chosen(probabilities, actions)


class FeatureNetwork(Approximation):
    """A network shared by several heads: its output is detached from the graph.

    The gradients of the heads accumulate at the detached output; `reinforce()`, without a loss,
    backpropagates them through the network once and takes one step; for a network without
    parameters to train it does nothing. The features of a State are a State.
    """

    def __init__(
        self, model: nn.Module, optimizer: Any = None, name: str = "feature", **options: Any
    ) -> None:
        super().__init__(model, optimizer, name=name, **options)
        self._outputs: list[tuple[Tensor, Tensor]] = []

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """The features, detached; their gradients accumulate until `reinforce`."""
        output = super().__call__(*inputs, **options)
        features = _observation_of(output)
        detached = features.detach().requires_grad_()
        if features.requires_grad:
            self._outputs.append((features, detached))
        return _with_observation(output, detached) if _is_state(output) else detached

    def reinforce(self, loss: Tensor | None = None) -> Self:
        """Backpropagate the gradients of the heads and take one step."""
        if loss is not None:
            raise RequestError(
                f"feature network {self.name!r} was given a loss of its own.",
                "try: reinforce the heads with their losses, then features.reinforce()",
            )
        outputs, self._outputs = self._outputs, []
        if not any(parameter.requires_grad for parameter in self.model.parameters()):
            return self
        reached = [(features, seen.grad) for features, seen in outputs if seen.grad is not None]
        if not reached:
            raise RequestError(f"no head sent gradients to {self.name!r}.", "reinforce one first")
        gradients = [gradient * self._loss_scaling for _, gradient in reached]
        torch.autograd.backward([features for features, _ in reached], gradients)
        return self.step()

    def zero_grad(self) -> Self:
        """Clear the accumulated gradients, those of the features too."""
        self._outputs.clear()
        return super().zero_grad()

    def _forward(self, network: nn.Module, *inputs: Any, **options: Any) -> Any:
        first, *others = inputs
        if not _is_state(first):
            return network(*inputs, **options)
        return _with_observation(first, network(first.observation, *others, **options))


def _is_state(inputs: Any) -> bool:
    return hasattr(inputs, "observation") and hasattr(inputs, "mask")


def _observation_of(inputs: Any) -> Any:
    return inputs.observation if _is_state(inputs) else inputs


def _with_observation(state: Any, observation: Any) -> Any:
    """A copy of a State with another observation."""
    if hasattr(state, "_replace"):
        # A named tuple.
        return state._replace(observation=observation)
    changed = copy.copy(state)
    if isinstance(changed, MutableMapping):
        changed["observation"] = observation
    else:
        # Past the __setattr__ of frozen classes: nobody else has this copy yet.
        object.__setattr__(changed, "observation", observation)
    return changed


def _column(network: nn.Module, inputs: Any) -> Tensor:
    """One value for each input, of an output with a last dimension of 1 or without."""
    values: Tensor = network(inputs).squeeze(-1)
    # Several values for each would be broadcast in a loss.
    if values.ndim > 1 and values.shape != getattr(inputs, "shape", ())[:-1]:
        raise RequestError(
            f"a model gives one value for each observation, found the shape {(*values.shape,)}.",
            "try: a last layer of 1 output",
        )
    return values


def _zero_if_over(values: Tensor, inputs: Any, terminated: Any, zero: Any = 0.0) -> Tensor:
    """The values, zero in rows that are terminated by the State's mask or as told."""
    if _is_state(inputs):
        values = torch.where(_beside(inputs.mask, values) == 0, zero, values)
    if terminated is not None:
        values = torch.where(_beside(terminated, values), zero, values)
    return values


def _chosen(values: Tensor, actions: Any) -> Tensor:
    """The values of discrete actions, one per row."""
    index = _beside(actions, values).expand(-1, 1, *values.shape[2:])
    return values.gather(1, index).squeeze(1)


def _beside(column: Any, values: Tensor) -> Tensor:
    """A number for each row of `values`, in a shape that broadcasts along them alone."""
    shape = *values.shape[:1], *[1] * (values.ndim - 1)
    return torch.as_tensor(column, device=values.device).reshape(shape)
