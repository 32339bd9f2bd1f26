"""Options of behaviour cloning."""

from __future__ import annotations

from typing import Literal

import attrs

from rlplug.config import at_least, not_empty, option
from rlplug.nn.layers import check_widths

__all__ = ["BCConfig"]


@attrs.frozen(kw_only=True)
class BCConfig:
    """Options of behaviour cloning."""

    learning_rate: float = option(1e-3, "Adam learning rate.", at_least(0), schedulable=True)
    batch_size: int = option(128, "Rows per update.", at_least(1))
    ent_coef: float = option(
        0.0, "Coefficient of the entropy, which keeps the policy from being certain.", at_least(0)
    )
    l2_coef: float = option(0.0, "Coefficient of the squared norm of the weights.", at_least(0))
    net_arch: tuple[int, ...] = option(
        (64, 64), "Sizes of the hidden layers.", not_empty, check_widths
    )
    activation: Literal["relu", "tanh", "elu", "silu", "leaky_relu"] = option(
        "relu", "Activation function of the hidden layers."
    )
    encoder: str = option(
        "", "Custom encoder as module:Class; empty: chosen from the observation space."
    )
