"""Options of SAC and TD3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import attrs

from rlplug.config import above, at_least, at_most, between, not_empty, option
from rlplug.nn.layers import check_widths

__all__ = ["OffPolicyConfig", "SACConfig", "TD3Config"]


def _count_or_all(value: int) -> str | None:
    """At least 1, or -1."""
    if value == -1 or value >= 1:
        return None
    return f"must be at least 1, or -1 for one per environment step, got {value!r}"


def _auto_or(check: Callable[[Any], str | None]) -> Callable[[Any], str | None]:
    """The word auto, or a number that passes the check."""
    return lambda value: None if value == "auto" else check(value)


@attrs.frozen(kw_only=True)
class OffPolicyConfig:
    """Options that SAC and TD3 share."""

    gamma: float = option(0.99, "Discount factor.", between(0, 1))
    batch_size: int = option(256, "Minibatch size.", at_least(1))
    buffer_size: int = option(
        1_000_000, "Capacity of the replay buffer, in transitions.", at_least(1)
    )
    learning_starts: int = option(
        100,
        "Environment steps before the first update; actions are random until then.",
        at_least(0),
    )
    train_freq: int = option(1, "Vector environment steps between updates.", at_least(1))
    gradient_steps: int = option(
        1,
        "Gradient steps per update; -1: one per environment step since the last update.",
        _count_or_all,
    )
    tau: float = option(0.005, "Polyak coefficient of the target networks.", above(0), at_most(1))
    n_step: int = option(1, "Number of steps of n-step returns.", at_least(1))
    activation: Literal["relu", "tanh", "elu", "silu", "leaky_relu"] = option(
        "relu", "Activation function of the hidden layers."
    )
    ortho_init: bool = option(False, "Orthogonal weight initialization; false: torch's default.")
    encoder: str = option(
        "", "Custom encoder as module:Class; empty: chosen from the observation space."
    )


@attrs.frozen(kw_only=True)
class SACConfig(OffPolicyConfig):
    """Options of SAC."""

    learning_rate: float = option(
        3e-4, "Adam learning rate of all three optimizers.", at_least(0), schedulable=True
    )
    ent_coef: float | Literal["auto"] = option(
        "auto", "Entropy coefficient (temperature); auto: learned.", _auto_or(at_least(0))
    )
    ent_coef_init: float = option(
        1.0, "Initial entropy coefficient, for ent_coef = auto.", above(0)
    )
    target_entropy: float | Literal["auto"] = option(
        "auto",
        "Entropy that a learned coefficient aims at, for actions scaled to [-1, 1]; auto: minus "
        "the number of action dimensions, or 0.89 of the largest entropy of Discrete actions.",
    )
    target_update_interval: int = option(
        1, "Gradient steps between updates of the target networks.", at_least(1)
    )
    net_arch: tuple[int, ...] = option(
        (256, 256), "Sizes of the hidden layers of actor and critics.", not_empty, check_widths
    )

    def __attrs_post_init__(self) -> None:
        conflicts = list(self._conflicts())
        if conflicts:
            raise ValueError("\n".join(conflicts))

    def _conflicts(self) -> Iterator[str]:
        if self.ent_coef == "auto":
            return
        if self.target_entropy != "auto":
            yield f"target_entropy has no effect with ent_coef = {self.ent_coef}: leave one out"
        if self.ent_coef_init != 1:
            yield f"ent_coef_init has no effect with ent_coef = {self.ent_coef}: leave one out"


@attrs.frozen(kw_only=True)
class TD3Config(OffPolicyConfig):
    """Options of TD3."""

    learning_rate: float = option(
        1e-3, "Adam learning rate of both optimizers.", at_least(0), schedulable=True
    )
    action_noise: float = option(
        0.1,
        "Standard deviation of the Gaussian exploration noise, for actions scaled to [-1, 1].",
        at_least(0),
    )
    policy_delay: int = option(
        2, "Gradient steps between updates of the actor and of the target networks.", at_least(1)
    )
    target_policy_noise: float = option(
        0.2,
        "Standard deviation of the noise on target actions (target policy smoothing).",
        at_least(0),
    )
    target_noise_clip: float = option(0.5, "Limit of the noise on target actions.", at_least(0))
    net_arch: tuple[int, ...] = option(
        (400, 300), "Sizes of the hidden layers of actor and critics.", not_empty, check_widths
    )
