"""The options of networks, for plugins to inherit in their own."""

from __future__ import annotations

from typing import Literal

import attrs

from rlplug.config import at_least, option
from rlplug.nn.layers import check_widths

__all__ = ["ActorCriticOptions", "NetworkOptions"]


@attrs.frozen(kw_only=True)
class NetworkOptions:
    """What a person can choose about a network; a plugin's `Config` may be a subclass."""

    net_arch: tuple[int, ...] = option((64, 64), "Widths of the hidden layers.", check_widths)
    activation: Literal["tanh", "relu", "elu", "silu", "leaky_relu"] = option(
        "tanh", "Activation after each hidden layer."
    )
    ortho_init: bool = option(True, "Orthogonal initial weights; false: those of torch.")
    encoder: str = option(
        "", "Own encoder, as module:Class; empty: chosen from the observation space."
    )
    memory: Literal["none", "lstm", "gru"] = option("none", "Memory after the hidden layers.")
    memory_size: int = option(64, "Width of the memory.", at_least(1))


@attrs.frozen(kw_only=True)
class ActorCriticOptions(NetworkOptions):
    """The same for an actor and a critic."""

    shared_encoder: bool | Literal["auto"] = option(
        "auto", "Actor and critic share encoder, hidden layers and memory; auto: for images only."
    )
    state_dependent_std: bool = option(
        False, "Standard deviations of Box actions are outputs of the network."
    )
    std_init: float = option(1.0, "First standard deviation of Box actions.", at_least(1e-6))
    squash: bool = option(False, "Squash Box actions into their bounds by tanh, not clip them.")
