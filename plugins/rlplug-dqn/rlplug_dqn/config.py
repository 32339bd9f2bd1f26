"""The options of DQN and Rainbow, and those that exclude each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import attrs

from rlplug.config import above, at_least, at_most, between, not_empty, option
from rlplug.nn.layers import check_widths

__all__ = ["DQNConfig", "RainbowConfig"]


def _count_or_all(value: int) -> str | None:
    """Refuse anything but a positive number or -1."""
    if value == -1 or value >= 1:
        return None
    return f"must be at least 1, or -1 for as many as steps were taken, got {value!r}"


@attrs.frozen(kw_only=True)
class DQNConfig:
    """Options of DQN."""

    learning_rate: float = option(5e-4, "Step size of Adam.", at_least(0), schedulable=True)
    adam_eps: float = option(1e-8, "What Adam adds to its denominator.", above(0))
    gamma: float = option(0.99, "Weight of the next state's value.", between(0, 1))
    batch_size: int = option(64, "Transitions of one update.", at_least(1))
    buffer_size: int = option(100_000, "Transitions that are kept.", at_least(1))
    learning_starts: int = option(
        1_000, "Steps before the first update, in which all actions are random.", at_least(0)
    )
    train_freq: int = option(4, "Steps of the (vector) environment between updates.", at_least(1))
    gradient_steps: int = option(
        1, "Updates each time; -1: as many as environment steps were taken.", _count_or_all
    )
    tau: float = option(
        1.0,
        "1: the target network is a copy, renewed by target_update_interval; less: it moves by "
        "this share of its distance after every update.",
        above(0),
        at_most(1),
    )
    target_update_interval: int = option(
        500, "Environment steps between copies; for tau = 1.", at_least(1)
    )
    loss: Literal["huber", "mse"] = option(
        "huber", "Huber's loss, or the squared error, of values that are not distributions."
    )
    double: bool = option(False, "The trained network chooses the action that the target values.")
    dueling: bool = option(
        False,
        "Value of the state and advantages of the actions apart; each has the last width of "
        "net_arch for itself.",
    )
    n_step: int = option(1, "Steps whose rewards a target sums up.", at_least(1))
    prioritized: bool = option(False, "Draw what was predicted badly more often.")
    priority_alpha: float = option(
        0.6, "How much priorities matter: 0 draws uniformly, 1 in proportion.", between(0, 1)
    )
    priority_beta: float = option(
        0.4,
        "How much weights make up for that, at first; it grows to 1 in the course of the run.",
        between(0, 1),
    )
    distributional: bool = option(False, "Learn chances of returns between v_min and v_max (C51).")
    n_atoms: int = option(51, "Returns whose chances are learned.", at_least(2))
    v_min: float = option(-10.0, "The lowest of them.")
    v_max: float = option(10.0, "The highest of them.")
    quantile: bool = option(False, "Learn quantiles of returns, with Huber's loss (QR-DQN).")
    n_quantiles: int = option(200, "How many quantiles are learned.", at_least(1))
    noisy: bool = option(
        False,
        "Explore by learned noise on the weights behind the encoder; epsilon stays as it is set.",
    )
    noisy_sigma: float = option(0.5, "How strong the noise is at first.", above(0))
    exploration_fraction: float = option(
        0.2, "Share of the run during which random actions become rarer.", between(0, 1)
    )
    exploration_initial_eps: float = option(
        1.0, "Chance of a random action at the start.", between(0, 1)
    )
    exploration_final_eps: float = option(
        0.05, "Chance of a random action after that share of the run.", between(0, 1)
    )
    net_arch: tuple[int, ...] = option(
        (128, 128), "Widths of the hidden layers.", not_empty, check_widths
    )
    activation: Literal["relu", "tanh", "elu", "silu", "leaky_relu"] = option(
        "relu", "Activation after each hidden layer."
    )
    ortho_init: bool = option(False, "Orthogonal initial weights; false: those of torch.")
    encoder: str = option(
        "", "Own encoder, as module:Class; empty: chosen from the observation space."
    )

    def __attrs_post_init__(self) -> None:
        conflicts = list(self._conflicts())
        if conflicts:
            raise ValueError("\n".join(conflicts))

    def _conflicts(self) -> Iterator[str]:
        if self.distributional and self.quantile:
            yield "distributional and quantile are two ways to learn the same: choose one"
        if self.v_min >= self.v_max:
            yield f"v_min must be less than v_max, got {self.v_min} and {self.v_max}"
        if self.loss == "mse" and (self.distributional or self.quantile):
            which = "distributional" if self.distributional else "quantile"
            yield f"loss has no effect with {which}, which has its own: leave it out"


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
