"""Whole networks: from observations to features, and on to what heads make of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs
from torch import Tensor, nn

from rlplug.config import at_least, option
from rlplug.errors import RequestError
from rlplug.nn.acting import ActingNetwork
from rlplug.nn.action_values import QHead
from rlplug.nn.arrays import Array, ArrayForward, Stateless, Views, run_plain
from rlplug.nn.custom import load_encoder
from rlplug.nn.encoders import FlatEncoder, make_encoder, width_of
from rlplug.nn.heads import PolicyHead
from rlplug.nn.layers import HiddenLayers, MakeLinear, check_widths
from rlplug.nn.memory import Fragments, Memory
from rlplug.spaces import AnySpace, without_action_mask

__all__ = ["ActorCriticOptions", "Body", "Network", "NetworkOptions"]


@attrs.frozen(kw_only=True)
class NetworkOptions:
    """Options of a network; a plugin's `Config` may be a subclass."""

    net_arch: tuple[int, ...] = option((64, 64), "Sizes of the hidden layers.", check_widths)
    activation: Literal["tanh", "relu", "elu", "silu", "leaky_relu"] = option(
        "tanh", "Activation function of the hidden layers."
    )
    ortho_init: bool = option(True, "Orthogonal weight initialization; false: torch's default.")
    encoder: str = option(
        "", "Custom encoder as module:Class; empty: chosen from the observation space."
    )
    memory: Literal["none", "lstm", "gru"] = option(
        "none", "Recurrent layer after the hidden layers: none, lstm or gru."
    )
    memory_size: int = option(64, "Hidden size of the recurrent layer.", at_least(1))


@attrs.frozen(kw_only=True)
class ActorCriticOptions(NetworkOptions):
    """Options of an actor and a critic."""

    shared_encoder: bool | Literal["auto"] = option(
        "auto",
        "Share encoder, hidden layers and memory between actor and critic; auto: for images only.",
    )
    state_dependent_std: bool = option(
        False, "Predict standard deviations of Box actions from the state."
    )
    std_init: float = option(1.0, "Initial standard deviation of Box actions.", at_least(1e-6))
    squash: bool = option(
        False, "Squash Box actions to their bounds with tanh instead of clipping."
    )


class Body(nn.Module):
    """Encoder, hidden layers, maybe memory: from the observations of a space to features."""

    def __init__(
        self,
        observation_space: AnySpace,
        options: NetworkOptions | None = None,
        *,
        linear: MakeLinear = nn.Linear,
    ) -> None:
        super().__init__()
        options = options or NetworkOptions()
        space = without_action_mask(observation_space)
        self.encoder = (
            load_encoder(options.encoder, space)
            if options.encoder
            else make_encoder(space, ortho_init=options.ortho_init)
        )
        self.hidden = HiddenLayers(
            width_of(self.encoder),
            options.net_arch,
            options.activation,
            ortho_init=options.ortho_init,
            linear=linear,
        )
        self.memory: Memory | None = None
        self.out_features = self.hidden.out_features
        if options.memory != "none":
            self.out_features = options.memory_size
            self.memory = Memory(
                self.hidden.out_features,
                options.memory_size,
                options.memory,
                ortho_init=options.ortho_init,
            )

    def forward(self, observations: Any, fragments: Fragments | None = None) -> Tensor:
        """Features of all rows, shape (rows, out_features); a memory needs fragments."""
        features: Tensor = self.hidden(self.encoder(observations))
        if self.memory is None:
            return features
        if fragments is None:
            raise RequestError(
                "a network with memory was given rows without fragments.",
                "try: forward(observations, Fragments(start, stop, state))",
            )
        remembered: Tensor = self.memory(features, fragments)[0]
        return remembered

    @property
    def is_plain(self) -> bool:
        """Whether observations pass the hidden layers as they are, and nothing else."""
        return type(self.encoder) is FlatEncoder and self.memory is None

    def step(
        self, observations: Any, state: Mapping[str, Tensor] | None
    ) -> tuple[Tensor, Mapping[str, Tensor] | None]:
        """Features of one step of n environments, and the memory's state after it."""
        features: Tensor = self.hidden(self.encoder(observations))
        if self.memory is None:
            return features, None
        return self.memory.step(features, state)

    def initial_state(self, n: int) -> dict[str, Tensor] | None:
        """The state of n fresh episodes; None without memory."""
        return None if self.memory is None else self.memory.initial_state(n)

    def array_forward(self, views: Views) -> ArrayForward:
        """`step` on arrays."""
        encoder, hidden = views.part(self, "encoder"), views.part(self, "hidden")
        if self.memory is None:
            return Stateless(encoder, hidden)
        memory = views.part(self, "memory")
        return lambda observations, state: memory(hidden(encoder(observations)), state)


class Network(ActingNetwork):
    """A body with one head: action values, or a policy alone."""

    def __init__(self, body: Body, head: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def forward(self, observations: Any, fragments: Fragments | None = None) -> Tensor:
        """What the loss needs: the head's outputs for all rows."""
        outputs: Any = None
        if type(observations) is Array:
            outputs = run_plain(self, observations, self._plain_layers)
        if outputs is None:
            outputs = self.head(self.body(observations, fragments))
        found: Tensor = outputs
        return found

    def _plain_layers(self) -> list[nn.Module] | None:
        """All layers from observations to outputs; None where there is more between them."""
        body, last = self.body, _plain_layers_of(self.head)
        return [*body.hidden, *last] if body.is_plain and last is not None else None

    def step(
        self, observations: Any, state: Mapping[str, Tensor] | None = None
    ) -> tuple[Tensor, Mapping[str, Tensor] | None]:
        """What decides the actions of one step, and the memory's state after it."""
        features, after = self.body.step(observations, state)
        outputs: Tensor = self.head(features)
        return self.head.values(outputs) if isinstance(self.head, QHead) else outputs, after

    def initial_state(self, n: int) -> dict[str, Tensor] | None:
        """The state of n fresh episodes; None without memory."""
        return self.body.initial_state(n)

    def array_forward(self, views: Views) -> ArrayForward:
        """`step` on arrays."""
        body, head = views.part(self, "body"), views.part(self, "head")
        if isinstance(body, Stateless):
            return Stateless(body.chain, head)

        def forward(observations: Any, state: Any) -> Any:
            features, after = body(observations, state)
            return head(features), after

        return forward


def _plain_layers_of(head: nn.Module) -> list[nn.Module] | None:
    if type(head) is QHead:
        return None if head.dueling else [*head.advantage]
    if type(head) is PolicyHead:
        return [head.linear] if head.log_std is None else None
    return [*head] if type(head) is nn.Sequential else None
