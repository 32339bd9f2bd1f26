"""Options of neural LinUCB."""

from __future__ import annotations

from typing import Literal

import attrs

from rlplug.config import above, at_least, not_empty, option
from rlplug.nn.layers import check_widths

__all__ = ["NeuralLinUCBConfig"]


@attrs.frozen(kw_only=True)
class NeuralLinUCBConfig:
    """Options of neural LinUCB."""

    alpha: float = option(
        0.3,
        "Width of the confidence bound in standard deviations; 0 is greedy.",
        at_least(0),
        schedulable=True,
    )
    l2_lambda: float = option(
        0.1,
        "Ridge penalty of each arm's regression on the network's features; 0: least squares by "
        "pseudo-inverse.",
        at_least(0),
    )
    net_arch: tuple[int, ...] = option(
        (64, 64),
        "Widths of the hidden layers; the last one is the number of features of the regressions.",
        not_empty,
        check_widths,
    )
    activation: Literal["relu", "tanh", "elu", "silu", "leaky_relu"] = option(
        "relu", "Activation after each hidden layer."
    )
    ortho_init: bool = option(True, "Orthogonal initialisation; false: PyTorch's default.")
    encoder: str = option(
        "", "Custom encoder, as module:Class; empty: chosen from the observation space."
    )
    loss: Literal["mse", "cross_entropy"] = option(
        "mse",
        "'mse': the network predicts rewards, by squared error; 'cross_entropy': it predicts the "
        "probability of a reward of 1 through a sigmoid, for rewards from 0 to 1.",
    )
    learning_rate: float = option(5e-3, "Learning rate of Adam.", above(0), schedulable=True)
    update_every: int = option(
        4,
        "Steps of the (vector) environment per update, which takes one gradient step.",
        at_least(1),
    )
    batch_size: int = option(
        64,
        "Rows per gradient step, drawn from the buffer; at least as many as are new.",
        at_least(1),
    )
    buffer_size: int = option(
        10_000, "Most recent rows kept for gradient steps and refits.", at_least(1)
    )
    refit_every: int = option(
        200,
        "Environment steps between refits of the regressions on the network's current features.",
        at_least(1),
    )
