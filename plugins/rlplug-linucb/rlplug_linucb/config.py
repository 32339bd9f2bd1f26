"""Options of LinUCB, LinTS and neural LinUCB."""

from __future__ import annotations

from typing import Literal

import attrs

from rlplug.config import above, at_least, at_most, not_empty, option
from rlplug.nn.layers import check_widths

__all__ = ["LinTSConfig", "LinUCBConfig", "LinearOptions", "NeuralLinUCBConfig"]


@attrs.frozen(kw_only=True)
class LinearOptions:
    """Options of the regressions, shared by LinUCB and LinTS."""

    l2_lambda: float = option(
        1.0,
        "Ridge penalty; it is not discounted. 0: least squares by pseudo-inverse, at the cost of "
        "one per update; directions without data then count as certain. Not for hybrid models.",
        at_least(0),
    )
    discount: float = option(
        1.0,
        "Discount of all earlier data per learned row; 1 disables forgetting. "
        "Below 1, every update costs a matrix inversion per arm.",
        above(0),
        at_most(1),
    )
    model: Literal["auto", "joint", "disjoint", "hybrid"] = option(
        "auto",
        "'disjoint': a regression per arm (fixed arms only); 'joint': one for all arms; 'hybrid': "
        "a shared one plus one per arm (featured arms must then keep their index in every "
        "context); 'auto': disjoint for fixed arms, joint for featured ones.",
    )
    use_interaction_features: bool = option(
        True,
        "Use products of context and arm features in the regression that arms share; false: "
        "concatenate them (joint), or use arm features alone (hybrid, featured arms only).",
    )
    refresh_every: int = option(
        1000,
        "Rank-one updates of an inverse before it is recomputed from the sums.",
        at_least(1),
    )
    update_every: int = option(1, "Steps of the (vector) environment per update.", at_least(1))

    def __attrs_post_init__(self) -> None:
        if self.model == "hybrid" and not self.l2_lambda:
            raise ValueError("a hybrid model needs a penalty: set l2_lambda above 0")


@attrs.frozen(kw_only=True)
class LinUCBConfig(LinearOptions):
    """Options of LinUCB."""

    alpha: float = option(
        1.0,
        "Width of the confidence bound in standard deviations; 0 is greedy.",
        at_least(0),
        schedulable=True,
    )


@attrs.frozen(kw_only=True)
class LinTSConfig(LinearOptions):
    """Options of LinTS."""

    v: float = option(
        0.25,
        "Scale of the posterior's standard deviations; 0 is greedy.",
        at_least(0),
        schedulable=True,
    )


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
