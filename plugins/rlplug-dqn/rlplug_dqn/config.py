"""Options of DQN and Rainbow, and which of them exclude each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import attrs

from rlplug.config import above, at_least, at_most, between, not_empty, option
from rlplug.nn.layers import check_widths

__all__ = ["DQNConfig", "RainbowConfig"]


def _count_or_all(value: int) -> str | None:
    """At least 1, or -1."""
    if value == -1 or value >= 1:
        return None
    return f"must be at least 1, or -1 for one per environment step, got {value!r}"


@attrs.frozen(kw_only=True)
class DQNConfig:
    """Options of DQN."""

    learning_rate: float = option(5e-4, "Adam learning rate.", at_least(0), schedulable=True)
    adam_eps: float = option(1e-8, "Adam eps, added to the denominator.", above(0))
    gamma: float = option(0.99, "Discount factor.", between(0, 1))
    batch_size: int = option(64, "Minibatch size.", at_least(1))
    buffer_size: int = option(
        100_000, "Capacity of the replay buffer, in transitions.", at_least(1)
    )
    learning_starts: int = option(
        1_000,
        "Environment steps before the first update; actions are random until then.",
        at_least(0),
    )
    train_freq: int = option(4, "Vector environment steps between updates.", at_least(1))
    gradient_steps: int = option(
        1,
        "Gradient steps per update; -1: one per environment step since the last update.",
        _count_or_all,
    )
    tau: float = option(
        1.0,
        "Polyak coefficient of the target network: below 1, soft updates after every update; 1: "
        "hard updates every target_update_interval.",
        above(0),
        at_most(1),
    )
    target_update_interval: int = option(
        500, "Environment steps between hard target network updates, for tau = 1.", at_least(1)
    )
    loss: Literal["huber", "mse"] = option(
        "huber", "TD loss: Huber or mean squared error; not for distributional or quantile."
    )
    cql_alpha: float = option(
        0.0,
        "Coefficient of the conservative penalty of CQL (Kumar et al. 2020), for learning from "
        "logs; 0 disables.",
        at_least(0),
    )
    double: bool = option(False, "Double Q-learning (van Hasselt et al. 2016).")
    dueling: bool = option(
        False,
        "Dueling streams for value and advantages (Wang et al. 2016), each with a hidden layer of "
        "the last size in net_arch.",
    )
    n_step: int = option(1, "Number of steps of n-step returns.", at_least(1))
    prioritized: bool = option(False, "Prioritized experience replay (Schaul et al. 2016).")
    priority_alpha: float = option(
        0.6, "Prioritization exponent alpha; 0 samples uniformly.", between(0, 1)
    )
    priority_beta: float = option(
        0.4,
        "Initial importance-sampling exponent beta, annealed to 1 over the run.",
        between(0, 1),
    )
    distributional: bool = option(
        False, "Categorical return distribution on [v_min, v_max] (C51, Bellemare et al. 2017)."
    )
    n_atoms: int = option(51, "Number of atoms of C51.", at_least(2))
    v_min: float = option(-10.0, "Lowest atom of C51.")
    v_max: float = option(10.0, "Highest atom of C51.")
    quantile: bool = option(
        False, "Quantile regression with the quantile Huber loss (QR-DQN, Dabney et al. 2018)."
    )
    n_quantiles: int = option(200, "Number of quantiles of QR-DQN.", at_least(1))
    noisy: bool = option(
        False,
        "Noisy linear layers after the encoder (Fortunato et al. 2018); epsilon is kept as set.",
    )
    noisy_sigma: float = option(0.5, "Initial noise scale sigma_0 of noisy layers.", above(0))
    exploration_fraction: float = option(
        0.2, "Fraction of the run over which epsilon is annealed.", between(0, 1)
    )
    exploration_initial_eps: float = option(
        1.0, "Initial epsilon of epsilon-greedy exploration.", between(0, 1)
    )
    exploration_final_eps: float = option(
        0.05, "Final epsilon of epsilon-greedy exploration.", between(0, 1)
    )
    net_arch: tuple[int, ...] = option(
        (128, 128), "Sizes of the hidden layers.", not_empty, check_widths
    )
    activation: Literal["relu", "tanh", "elu", "silu", "leaky_relu"] = option(
        "relu", "Activation function of the hidden layers."
    )
    ortho_init: bool = option(False, "Orthogonal weight initialization; false: torch's default.")
    encoder: str = option(
        "", "Custom encoder as module:Class; empty: chosen from the observation space."
    )

    def __attrs_post_init__(self) -> None:
        conflicts = list(self._conflicts())
        if conflicts:
            raise ValueError("\n".join(conflicts))

    def _conflicts(self) -> Iterator[str]:
        if self.distributional and self.quantile:
            yield "distributional and quantile exclude each other: choose one"
        if self.v_min >= self.v_max:
            yield f"v_min must be less than v_max, got {self.v_min} and {self.v_max}"
        if self.loss == "mse" and (self.distributional or self.quantile):
            which = "distributional" if self.distributional else "quantile"
            yield f"loss has no effect with {which}, which has a loss of its own: leave it out"


def _instead(name: str, default: Any) -> Any:
    """An option of DQN with another default."""
    field = attrs.fields_dict(DQNConfig)[name]
    return attrs.field(
        default=default, validator=field.validator, metadata=dict(field.metadata), kw_only=True
    )


@attrs.frozen(kw_only=True)
class RainbowConfig(DQNConfig):
    """Options of DQN with the values of Hessel et al. (2018), four frames to a step."""

    learning_rate: float = _instead("learning_rate", 6.25e-5)
    adam_eps: float = _instead("adam_eps", 1.5e-4)
    batch_size: int = _instead("batch_size", 32)
    buffer_size: int = _instead("buffer_size", 1_000_000)
    learning_starts: int = _instead("learning_starts", 20_000)
    target_update_interval: int = _instead("target_update_interval", 8_000)
    double: bool = _instead("double", True)
    dueling: bool = _instead("dueling", True)
    n_step: int = _instead("n_step", 3)
    prioritized: bool = _instead("prioritized", True)
    priority_alpha: float = _instead("priority_alpha", 0.5)
    distributional: bool = _instead("distributional", True)
    noisy: bool = _instead("noisy", True)
    exploration_initial_eps: float = _instead("exploration_initial_eps", 0.0)
    exploration_final_eps: float = _instead("exploration_final_eps", 0.0)
    net_arch: tuple[int, ...] = _instead("net_arch", (512,))
