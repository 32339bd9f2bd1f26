"""Neural LinUCB: LinUCB on the features of a network, as of the last refit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from rlplug import Acted, ActInput, Batch, UnsupportedSpaceError
from rlplug.config.schedule import resolve
from rlplug.nn import Body, Network, NetworkOptions, QHead
from rlplug.spaces import as_array
from rlplug_linucb.config import LinUCBConfig, NeuralLinUCBConfig
from rlplug_linucb.module import Columns, LinUCBModule
from rlplug_linucb.rows import Layout, Seen, arm_features, layout_of

__all__ = ["DRAWN", "Kept", "NeuralLinUCBModule", "Window", "input_layout"]

DRAWN = "drawn_"
"""Prefix of columns drawn from the buffer, with several rows for each new one."""


class Kept(NamedTuple):
    """Columns of rows to learn from."""

    observations: Tensor
    actions: Tensor
    labels: Tensor
    weights: Tensor


class NeuralLinUCBModule(LinUCBModule):
    """A bandit with a regression per arm on the last hidden layer of a network.

    Featured arms have an input each, the context and the arm side by side, and share a regression.

    Features come from `settled`, a frozen copy of the network's body that is updated only when the
    regressions are refitted: their sums and their predictions must be of the same features.
    """

    def __init__(
        self, observation_space: Space[Any], num_arms: int, config: NeuralLinUCBConfig | None = None
    ) -> None:
        config = resolve(NeuralLinUCBConfig() if config is None else config, 0)
        options = NetworkOptions(
            net_arch=config.net_arch,
            activation=config.activation,
            ortho_init=config.ortho_init,
            encoder=config.encoder,
        )
        space, observed = input_layout(observation_space, num_arms)
        featured = observed.arm_dim > 0
        body = Body(space, options)
        network = Network(body, QHead(body.out_features, 1 if featured else num_arms))
        settled = Network(Body(space, options), nn.Sequential()).requires_grad_(False)
        dims: Any = {"arm_dim" if featured else "context_dim": body.out_features + 1}
        layout = Layout(num_arms=num_arms, **dims)
        super().__init__(layout, LinUCBConfig(alpha=config.alpha, l2_lambda=config.l2_lambda))
        self.input_space, self.observed, self.featured = space, observed, featured
        self.network, self.settled = network, settled
        self.update_frozen_copy()

    # -- acting --------------------------------------------------------------------------------

    def read(self, observations: Any, action_mask: Any = None, rows: int = 1) -> Seen:
        """The frozen copy's features of observations, in place of their context or arms."""
        inputs, mask = self.inputs(observations, action_mask)
        features = self.features(inputs)
        mask = None if mask is None else as_array(mask)
        return Seen(None, features, mask) if self.featured else Seen(features, None, mask)

    def forward_export(self, act: ActInput) -> Acted:
        """The arms of the highest predicted reward, in torch."""
        inputs, mask = self.inputs(act.observations, act.action_mask)
        lead = inputs.shape[:2] if self.featured else inputs.shape[:1]
        hidden = self.settled.step(inputs.flatten(0, 1) if self.featured else inputs)[0]
        ones = torch.ones((*hidden.shape[:1], 1), dtype=torch.float64)
        features = torch.cat([hidden.double(), ones], 1).reshape(*lead, -1)
        return super().forward_export(ActInput(features, action_mask=mask))

    def inputs(self, observations: Any, action_mask: Any = None) -> tuple[Any, Any]:
        """Inputs of the network, (n, …) or (n, arms, features) of featured arms, and the mask."""
        context, arms, mask = self.observed.parts(observations, action_mask)
        if arms is None:
            return context, mask
        xp = torch if isinstance(arms, Tensor) else numpy
        return arm_features(self.observed, False, context, arms, xp), mask

    def features(self, inputs: Any) -> Any:
        """The frozen copy's last hidden layer of inputs and a column of ones, (…, width + 1)."""
        lead = inputs.shape[: inputs.ndim - len(self.input_space.shape or ())]
        hidden = self.settled.act(inputs.reshape(math.prod(lead), *inputs.shape[len(lead) :]))[0]
        features = numpy.ones((*lead, hidden.shape[1] + 1))
        features[..., :-1] = hidden.reshape(*lead, hidden.shape[1])
        return features

    # -- learning ------------------------------------------------------------------------------

    def forward_train(self, batch: Batch) -> Mapping[str, Tensor]:
        """Predicted reward of every arm in the drawn contexts, or in those of the batch itself.

        Of featured arms only that of the chosen one, (n, 1). With cross-entropy they are logits.
        """
        if f"{DRAWN}observations" in batch:
            inputs = batch[f"{DRAWN}observations"].flatten(0, 1)
        else:
            inputs = self.chosen_inputs(batch["observations"], batch["actions"].reshape(-1).long())
        return {"values": self.network(inputs)}

    def chosen_inputs(self, observations: Any, actions: Tensor) -> Tensor:
        """The inputs (n, …) that predict the chosen arms."""
        inputs: Tensor = self.inputs(observations)[0]
        if not self.featured:
            return inputs
        return inputs[torch.arange(inputs.shape[0], device=inputs.device), actions]

    def columns_of(self, rows: Kept) -> Columns:
        """Rows of the network's inputs as the regressions learn them."""
        features = self.features(rows.observations)
        seen = Seen(None, features[:, None]) if self.featured else Seen(features)
        return seen, as_array(rows.actions), as_array(rows.labels), as_array(rows.weights)

    def update_frozen_copy(self) -> None:
        """Copy the network's weights into the frozen copy."""
        self.settled.body.load_state_dict(self.network.body.state_dict())


def input_layout(space: Space[Any], num_arms: int) -> tuple[Space[Any], Layout]:
    """The space of the network's inputs, a context or the context and an arm, and what is seen."""
    layout = Layout(num_arms=num_arms, context_dim=1)
    if isinstance(space, spaces.Dict) and "arms" in space.spaces:
        layout = layout_of(space, spaces.Discrete(num_arms))
        width = layout.context_dim + layout.arm_dim
        return spaces.Box(-numpy.inf, numpy.inf, (width,), numpy.float32), layout
    if isinstance(space, spaces.Dict) and {"context"} <= set(space) <= {"context", "action_mask"}:
        space = space["context"]
    if isinstance(space, spaces.Dict | spaces.Tuple):
        raise UnsupportedSpaceError(
            "a neural bandit reads a context, or the observation keys context, arms and "
            f"action_mask; found {space}."
        )
    return space, layout


class Window(nn.Module):
    """Keeps the last `size` rows, and draws from them; the generator's state is saved with them."""

    observations: Tensor
    actions: Tensor
    labels: Tensor
    weights: Tensor
    counts: Tensor
    """Seed, number of draws, number of rows added, step of the last refit."""

    def __init__(self, space: Space[object], size: int, seed: int) -> None:
        super().__init__()
        kind = torch.from_numpy(numpy.empty(0, space.dtype)).dtype
        kept = torch.float32 if kind.is_floating_point else kind
        self.register_buffer("observations", torch.zeros((size, *(space.shape or ())), dtype=kept))
        self.register_buffer("actions", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("labels", torch.zeros(size))
        self.register_buffer("weights", torch.zeros(size))
        self.register_buffer("counts", torch.tensor([seed, 0, 0, 0]))

    def __len__(self) -> int:
        """Number of rows held."""
        return min(int(self.counts[2]), len(self.actions))

    def add(self, rows: Kept) -> None:
        """Add rows, replacing the oldest."""
        size, came, count = len(self.actions), int(self.counts[2]), len(rows.actions)
        first = max(0, count - size)
        places = torch.arange(came + first, came + count, device=self.actions.device) % size
        for mine, new in zip(self._columns(), rows, strict=True):
            mine[places] = new[first:].to(mine.dtype)
        self.counts[2] = came + count

    def draw(self, shape: tuple[int, int]) -> Kept:
        """Draw rows uniformly with replacement; every column begins with this shape."""
        seed, draws, *_ = self.counts.tolist()
        self.counts[1] = draws + 1
        # A counter-based generator has no state to save but the number of draws.
        random = numpy.random.Generator(numpy.random.Philox(key=seed, counter=[0, 0, 0, draws]))
        places = random.integers(0, len(self), shape[0] * shape[1])
        drawn = torch.from_numpy(places).to(self.actions.device)
        picked = (column.index_select(0, drawn) for column in self._columns())
        return Kept(*(column.view(*shape, *column.shape[1:]) for column in picked))

    def rows(self) -> Kept:
        """All rows held."""
        return Kept(*(column[: len(self)] for column in self._columns()))

    def _columns(self) -> Kept:
        return Kept(self.observations, self.actions, self.labels, self.weights)
