"""Whole networks: from observations to features, on to what heads make of them, and acting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import attrs
import numpy
import torch
from torch import Tensor, nn

from rlplug.batch.nested import first_leaf, to_arrays, tree_map
from rlplug.config import at_least, option
from rlplug.errors import RequestError
from rlplug.nn.arrays import Array, ArrayForward, NumpyArray, Views, run_plain
from rlplug.nn.encoders import FlatEncoder, load_encoder, make_encoder
from rlplug.nn.heads import PolicyHead, QHead
from rlplug.nn.layers import HiddenLayers, MakeLinear, check_widths, device_of, evaluating
from rlplug.nn.memory import Fragments, Memory, State
from rlplug.spaces import AnySpace, without_action_mask

__all__ = ["ActingNetwork", "ActorCriticOptions", "Body", "Network", "NetworkOptions"]

_LARGEST_IN_NUMPY = 32_000_000
"""Multiplications up to which NumPy is ahead of torch, as measured."""


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
        self.encoder: Any
        if options.encoder:
            self.encoder = load_encoder(options.encoder, space)
        else:
            self.encoder = make_encoder(space, ortho_init=options.ortho_init)
        self.hidden = HiddenLayers(
            self.encoder.out_features,
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

    def followed_by(self, *head: nn.Module) -> list[nn.Module]:
        """The layers that plain observations pass up to the end of a head."""
        is_plain = type(self.encoder) is FlatEncoder and self.memory is None
        return [self.hidden if is_plain else self, *head]

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
        if self.memory is None:
            return views.stateless(self.encoder, self.hidden)
        before, memory = views.chain(self.encoder, self.hidden), views.forward_of(self.memory)
        return lambda observations, state: memory(before(observations), state)


class ActingNetwork(nn.Module):
    """A network that acts on observations as environments give them: in NumPy where it is small."""

    def __init__(self) -> None:
        super().__init__()
        self._views: dict[bool, Views | None] = {}

    def act(
        self, observations: Any, state: State | None = None, *, explore: bool = False
    ) -> tuple[NumpyArray, Mapping[str, NumpyArray] | None]:
        """What decides n actions, as an array of n rows, and the memory's next state.

        No gradients, no dropout, batch statistics as they are; noisy layers are noisy only with
        `explore`. Whether NumPy or torch computes it makes no difference beyond 1e-5. What is
        written into weights counts at once; another tensor in the place of one is noticed, but
        during a collection or an update only once that is over.
        """
        # A network that has none goes without until it is moved.
        views = self._views[explore] if explore in self._views else self._look(explore)
        if views is not None and not views.current():
            views = self._look(explore)
        is_plain = type(observations) is numpy.ndarray
        rows = len(observations if is_plain else first_leaf(observations))
        if views is None or rows * views.weights > _LARGEST_IN_NUMPY:
            return self._act_in_torch(observations, state, explore)
        if not is_plain:
            observations = to_arrays(observations)
        answer: tuple[NumpyArray, Mapping[str, NumpyArray] | None]
        answer = views.forward(observations, state)
        return answer

    def act_on_tensors(
        self, observations: Any, state: State | None = None, *, explore: bool = False
    ) -> tuple[Tensor, Mapping[str, Tensor] | None]:
        """The same for observations that are tensors on the network's device, as tensors."""
        with torch.no_grad(), evaluating(self, noisy=explore):
            return self.step(observations, state)

    def step(
        self, observations: Any, state: Mapping[str, Tensor] | None = None
    ) -> tuple[Tensor, Mapping[str, Tensor] | None]:
        """The same in torch, with gradients, for observations that are tensors."""
        raise TypeError(f"{type(self).__name__} must define step")

    def tensors_of(self, observations: Any) -> Any:
        """Observations as tensors where the network is."""
        return tree_map(partial(torch.as_tensor, device=device_of(self)), observations)

    def _look(self, explore: bool) -> Views | None:
        views = self._views[explore] = Views.of_network(self, noisy=explore)
        return views

    def _act_in_torch(
        self, observations: Any, state: State | None, explore: bool
    ) -> tuple[NumpyArray, Mapping[str, NumpyArray] | None]:
        before = None if state is None else self.tensors_of(state)
        values, after = self.act_on_tensors(self.tensors_of(observations), before, explore=explore)
        return to_arrays(values), None if after is None else to_arrays(after)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ActingNetwork:
        # Also where this was moved to decides whether NumPy can act.
        self._views.clear()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call] # untyped in torch
        return self

    def __getstate__(self) -> dict[str, Any]:
        """All but the views: a copy has weights of its own."""
        return {**self.__dict__, "_views": {}}


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
            outputs = run_plain(self, observations, self._layers)
        if outputs is None:
            outputs = self.head(self.body(observations, fragments))
        return outputs  # type: ignore[no-any-return] # a tensor

    def _layers(self) -> list[nn.Module]:
        return self.body.followed_by(*plain_layers(self.head))

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
        if type(self.body) is Body and self.body.memory is None:
            return views.stateless(self.body.encoder, self.body.hidden, *plain_layers(self.head))
        body, head = views.forward_of(self.body), views.chain(self.head)

        def forward(observations: Any, state: Any) -> Any:
            features, after = body(observations, state)
            return head(features), after

        return forward


def plain_layers(head: nn.Module) -> list[nn.Module]:
    """The layers that a head is nothing but, or else the head."""
    if type(head) is QHead and not head.dueling:
        return [head.advantage]
    if type(head) is PolicyHead and head.log_std is None:
        return [head.linear]
    return [head]
