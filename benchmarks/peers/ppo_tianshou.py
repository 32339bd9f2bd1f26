"""PPO of Tianshou."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium
import torch
from ppo_settings import Part, measure
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic


def train(part: Part, steps: int, seed: int) -> Callable[[], object]:
    """A training as everybody is set; for Discrete actions."""
    torch.manual_seed(seed)
    environments = DummyVectorEnv([lambda: gymnasium.make(part.env)] * part.num_envs)
    environments.seed(seed)
    one = gymnasium.make(part.env)
    actor, critic = (
        Net(
            state_shape=one.observation_space.shape,
            hidden_sizes=list(part.net_arch),
            activation=torch.nn.Tanh,
        )
        for _ in range(2)
    )
    algorithm = PPO(
        policy=ProbabilisticActorPolicy(
            actor=DiscreteActor(preprocess_net=actor, action_shape=one.action_space.n),
            dist_fn=torch.distributions.Categorical,
            action_space=one.action_space,
            action_scaling=False,
        ),
        critic=DiscreteCritic(preprocess_net=critic),
        optim=AdamOptimizerFactory(lr=part.learning_rate, eps=1e-5),
        eps_clip=part.clip_range,
        advantage_normalization=True,
        vf_coef=part.vf_coef,
        ent_coef=part.ent_coef,
        max_grad_norm=part.max_grad_norm,
        gae_lambda=part.gae_lambda,
        gamma=part.gamma,
    )
    rows = part.num_envs * part.n_steps
    collector = Collector(algorithm, environments, VectorReplayBuffer(rows, part.num_envs))
    return lambda: algorithm.run_training(
        OnPolicyTrainerParams(
            training_collector=collector,
            max_epochs=1,
            epoch_num_steps=steps,
            collection_step_num_env_steps=rows,
            update_step_num_repetitions=part.n_epochs,
            batch_size=part.batch_size,
            show_progress=False,
            verbose=False,
        )
    )


if __name__ == "__main__":
    measure("tianshou", train)
