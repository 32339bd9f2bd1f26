"""DQN of Tianshou."""

from __future__ import annotations

import dqn_settings as same
import gymnasium
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net


def made(seed: int) -> tuple[DQN, Collector]:
    """As everybody is set; it clips no gradients unless told otherwise."""
    environments = DummyVectorEnv([lambda: gymnasium.make(same.ENV)])
    environments.seed(seed)
    one = gymnasium.make(same.ENV)
    network = Net(
        state_shape=one.observation_space.shape,
        action_shape=one.action_space.n,
        hidden_sizes=same.NET_ARCH,
    )
    algorithm = DQN(
        policy=DiscreteQLearningPolicy(model=network, action_space=one.action_space),
        optim=AdamOptimizerFactory(lr=same.LEARNING_RATE),
        gamma=same.GAMMA,
        # It counts updates, of which there is one in ten steps.
        target_update_freq=same.TARGET_INTERVAL // same.TRAIN_FREQ,
        is_double=False,
        huber_loss_delta=1.0,
    )
    algorithm.policy.set_eps_training(same.EXPLORATION[0])
    buffer = VectorReplayBuffer(same.BUFFER_SIZE, 1)
    return algorithm, Collector(algorithm, environments, buffer, exploration_noise=True)


def run(steps: int, seed: int) -> same.Timed:
    """A whole training."""
    algorithm, collector = made(seed)
    first, last, fraction = same.EXPLORATION

    def explore(epoch: int, step: int) -> None:
        share = min(1.0, step / (fraction * steps))
        algorithm.policy.set_eps_training(first + share * (last - first))

    def work() -> None:
        collector.collect(n_step=same.LEARNING_STARTS, reset_before_collect=True)
        algorithm.run_training(
            OffPolicyTrainerParams(
                training_collector=collector,
                max_epochs=1,
                epoch_num_steps=steps - same.LEARNING_STARTS,
                collection_step_num_env_steps=same.TRAIN_FREQ,
                update_step_num_gradient_steps_per_sample=1 / same.TRAIN_FREQ,
                batch_size=same.BATCH_SIZE,
                training_fn=explore,
                show_progress=False,
                verbose=False,
            )
        )

    return same.timed(work)


def learn(updates: int, batch_size: int, seed: int) -> same.Timed:
    """Updates alone, drawn from a buffer of steps."""
    algorithm, collector = made(seed)
    collector.collect(n_step=2_000, reset_before_collect=True)
    from tianshou.algorithm.algorithm_base import policy_within_training_step

    def work() -> None:
        with policy_within_training_step(algorithm.policy):
            for _ in range(updates):
                algorithm.update(collector.buffer, batch_size)

    return same.timed(work)


if __name__ == "__main__":
    same.measure("tianshou", run=run, learn=learn)
