"""Options of networks, for plugins' configs to inherit."""

from __future__ import annotations

from typing import Literal

import attrs

from rlplug.config import at_least, option
from rlplug.nn.layers import check_widths

__all__ = ["ActorCriticOptions", "NetworkOptions"]


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
