"""Options of VDN: those of DQN that a team can have, and how values are mixed."""

from __future__ import annotations

from typing import Any, Literal

import attrs
from rlplug_dqn import DQNConfig

from rlplug.config import at_least, option

__all__ = ["VDNConfig"]


def _of_dqn(name: str) -> Any:
    """An option as DQN has it."""
    field = attrs.fields_dict(DQNConfig)[name]
    return attrs.field(
        default=field.default,
        validator=field.validator,
        metadata=dict(field.metadata),
        kw_only=True,
    )


@attrs.frozen(kw_only=True)
class VDNConfig:
    """Options of VDN."""

    mixing: Literal["vdn", "qmix"] = option(
        "vdn",
        "Value of a team: vdn, the sum of its agents' values; qmix, a monotonic network of them "
        "whose weights follow from the state of the environment.",
    )
    mixing_width: int = option(32, "Hidden size of the mixing network of qmix.", at_least(1))
    learning_rate: float = _of_dqn("learning_rate")
    adam_eps: float = _of_dqn("adam_eps")
    gamma: float = _of_dqn("gamma")
    batch_size: int = _of_dqn("batch_size")
    buffer_size: int = _of_dqn("buffer_size")
    learning_starts: int = _of_dqn("learning_starts")
    train_freq: int = _of_dqn("train_freq")
    gradient_steps: int = _of_dqn("gradient_steps")
    tau: float = _of_dqn("tau")
    target_update_interval: int = _of_dqn("target_update_interval")
    loss: Literal["huber", "mse"] = _of_dqn("loss")
    double: bool = _of_dqn("double")
    dueling: bool = _of_dqn("dueling")
    n_step: int = _of_dqn("n_step")
    prioritized: bool = _of_dqn("prioritized")
    priority_alpha: float = _of_dqn("priority_alpha")
    priority_beta: float = _of_dqn("priority_beta")
    noisy: bool = _of_dqn("noisy")
    noisy_sigma: float = _of_dqn("noisy_sigma")
    exploration_fraction: float = _of_dqn("exploration_fraction")
    exploration_initial_eps: float = _of_dqn("exploration_initial_eps")
    exploration_final_eps: float = _of_dqn("exploration_final_eps")
    net_arch: tuple[int, ...] = _of_dqn("net_arch")
    activation: Literal["relu", "tanh", "elu", "silu", "leaky_relu"] = _of_dqn("activation")
    ortho_init: bool = _of_dqn("ortho_init")
    encoder: str = _of_dqn("encoder")

    def of_agent(self) -> DQNConfig:
        """The same options for the values of one agent."""
        known = attrs.fields_dict(DQNConfig)
        names = [name for name in attrs.fields_dict(VDNConfig) if name in known]
        return DQNConfig(**{name: getattr(self, name) for name in names})
