"""DQN and Rainbow: their hooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
from gymnasium import spaces
from torch import Tensor
from torch.optim import Adam

from rlplug import Algorithm, Batch, Loss, hookimpl
from rlplug.feeds import Replay
from rlplug.nn import no_encoder
from rlplug.spaces import describe
from rlplug_dqn.config import DQNConfig, RainbowConfig
from rlplug_dqn.losses import dqn_loss, td_targets
from rlplug_dqn.module import DQNModule

__all__ = ["DQN", "Rainbow"]


class DQN(Algorithm):
    """Deep Q-learning from a replay buffer with a target network."""

    Config: ClassVar[type[DQNConfig]] = DQNConfig
    default_env: ClassVar[str] = "CartPole-v1"
    default_steps: ClassVar[int] = 50_000
    defaults: ClassVar[Mapping[str, Any]] = {"learner.max_grad_norm": 10.0}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cartpole": {
            "run.env": "CartPole-v1",
            "run.steps": 50_000,
            # Annealed: with a constant one the policy degrades again late in the run.
            "algorithm.learning_rate": [[0, 1e-3], [50_000, 1e-5]],
            "algorithm.net_arch": [120, 84],
            "algorithm.batch_size": 128,
            "algorithm.buffer_size": 100_000,
            "algorithm.learning_starts": 1_000,
            "algorithm.train_freq": 8,
            "algorithm.gradient_steps": 4,
            "algorithm.double": True,
            "algorithm.n_step": 3,
            "algorithm.tau": 0.01,
            "algorithm.exploration_fraction": 0.16,
            "algorithm.exploration_final_eps": 0.04,
            "evaluation.every": 2_000,
            "evaluation.episodes": 20,
        },
    }
    variants: ClassVar[Sequence[Mapping[str, Any]]] = (
        {"double": True, "n_step": 3, "dueling": True, "tau": 0.1, "loss": "mse"},
        {"prioritized": True, "double": True},
        {"distributional": True, "v_min": -2.0, "v_max": 12.0},
        {"quantile": True, "n_quantiles": 20},
        {"noisy": True, "exploration_initial_eps": 0.0, "exploration_final_eps": 0.0},
    )
    config: DQNConfig

    def feed(self) -> Replay:
        """Transitions are stored, and sampled repeatedly."""
        return Replay.of(self.config)

    def supports(
        self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> str | None:
        """Why these spaces cannot be handled; None if they can."""
        if not isinstance(action_space, spaces.Discrete):
            return f"it needs Discrete actions, found {describe(action_space)}"
        return None if self.config.encoder else no_encoder(observation_space)

    @hookimpl
    def build(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: spaces.Discrete,
        config: DQNConfig,
        seed: int,
    ) -> DQNModule:
        """The action-value network and its target network."""
        return DQNModule(observation_space, action_space, config, seed)

    @hookimpl
    def configure_optimizers_for_module(self, module: DQNModule, config: DQNConfig) -> Adam:
        """Adam over the online network."""
        parameters = list(module.network.parameters())
        fused = parameters[0].device.type in ("cpu", "cuda")
        return Adam(parameters, lr=config.learning_rate, eps=config.adam_eps, fused=fused)

    @hookimpl
    def prepare_batch(
        self, module: DQNModule, config: DQNConfig, batch: Batch
    ) -> Mapping[str, Tensor]:
        """Computes the TD targets."""
        if module.noisy:
            module.reset_noise()
        return {"targets": td_targets(module, batch, config.gamma)}

    @hookimpl
    def compute_loss_for_module(
        self, module: DQNModule, config: DQNConfig, batch: Batch, fwd_out: Mapping[str, Tensor]
    ) -> Loss:
        """The loss between the values of the actions taken and the TD targets."""
        return dqn_loss(module, config, batch, fwd_out)


class Rainbow(DQN):
    """DQN with the six extensions and the settings of Rainbow (Hessel et al. 2018)."""

    Config: ClassVar[type[DQNConfig]] = RainbowConfig
    default_env: ClassVar[str] = ""
    default_steps: ClassVar[int] = 50_000_000
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    variants: ClassVar[Sequence[Mapping[str, Any]]] = (
        {"distributional": False, "quantile": True, "n_quantiles": 20},
    )
