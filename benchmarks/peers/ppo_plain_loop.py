"""PPO as one page of torch, the way CleanRL writes algorithms."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import gymnasium
import numpy
import torch
from ppo_settings import Part, measure
from torch import Tensor, nn
from torch.distributions import Categorical


def layer(inputs: int, outputs: int, gain: float) -> nn.Linear:
    """A linear layer with orthogonal weights."""
    made = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


def network(widths: list[int], gain: float) -> nn.Sequential:
    """Layers with tanh in between."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths[:-1]):
        layers += [layer(before, after, 2**0.5), nn.Tanh()]
    return nn.Sequential(*layers, layer(widths[-2], widths[-1], gain))


class Agent(nn.Module):
    """An actor and a critic."""

    def __init__(self, inputs: int, actions: int, net_arch: tuple[int, int]) -> None:
        super().__init__()
        self.critic = network([inputs, *net_arch, 1], 1.0)
        self.actor = network([inputs, *net_arch, actions], 0.01)

    def decide(self, seen: Tensor, action: Any = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Action, log-probability, entropy and value."""
        chances = Categorical(logits=self.actor(seen))
        if action is None:
            action = chances.sample()
        return action, chances.log_prob(action), chances.entropy(), self.critic(seen).flatten()


def train(part: Part, steps: int, seed: int) -> Callable[[], object]:
    """A training as everybody is set."""
    torch.manual_seed(seed)
    envs = gymnasium.vector.SyncVectorEnv(
        [
            lambda: gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(part.env))
            for _ in range(part.num_envs)
        ]
    )
    inputs = int(numpy.prod(envs.single_observation_space.shape))
    agent = Agent(inputs, int(envs.single_action_space.n), part.net_arch)
    adam = torch.optim.Adam(agent.parameters(), lr=part.learning_rate, eps=1e-5)

    def work() -> None:
        seen, _ = envs.reset(seed=seed)
        ended = numpy.zeros(part.num_envs)
        for _ in range(steps // (part.num_envs * part.n_steps)):
            rollout, seen, ended = collected(part, agent, envs, seen, ended)
            learned(part, agent, adam, rollout)

    return work


def collected(part: Part, agent: Agent, envs: Any, seen: Any, ended: Any) -> Any:
    """A rollout with its advantages, flat."""
    shape = (part.n_steps, part.num_envs)
    states = torch.zeros(*shape, *envs.single_observation_space.shape)
    actions, logs, rewards, dones, values = (torch.zeros(shape) for _ in range(5))
    for time in range(part.n_steps):
        states[time], dones[time] = torch.Tensor(seen), torch.Tensor(ended)
        with torch.no_grad():
            action, logs[time], _, values[time] = agent.decide(states[time])
        actions[time] = action
        seen, reward, terminated, truncated, _ = envs.step(action.numpy())
        ended = numpy.logical_or(terminated, truncated)
        rewards[time] = torch.tensor(reward).view(-1)
    with torch.no_grad():
        following = agent.critic(torch.Tensor(seen)).flatten()
    advantages = torch.zeros(shape)
    last = torch.zeros(part.num_envs)
    goes_on = 1 - torch.Tensor(ended)
    for time in reversed(range(part.n_steps)):
        error = rewards[time] + part.gamma * following * goes_on - values[time]
        last = error + part.gamma * part.gae_lambda * goes_on * last
        advantages[time] = last
        following, goes_on = values[time], 1 - dones[time]
    flat = [states.flatten(0, 1), actions.flatten(), logs.flatten(), advantages.flatten()]
    return [*flat, (advantages + values).flatten()], seen, ended


def learned(part: Part, agent: Agent, adam: torch.optim.Adam, rollout: list[Tensor]) -> None:
    """All epochs over a rollout."""
    rows = len(rollout[0])
    order = numpy.arange(rows)
    for _ in range(part.n_epochs):
        numpy.random.shuffle(order)
        for start in range(0, rows, part.batch_size):
            picked = order[start : start + part.batch_size]
            states, actions, logs, advantages, returns = (one[picked] for one in rollout)
            _, new_logs, entropy, values = agent.decide(states, actions.long())
            log_ratio = new_logs - logs
            ratio = log_ratio.exp()
            with torch.no_grad():
                ((ratio - 1) - log_ratio).mean()
                ((ratio - 1.0).abs() > part.clip_range).float().mean().item()
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            limited = torch.clamp(ratio, 1 - part.clip_range, 1 + part.clip_range)
            policy = torch.max(-advantages * ratio, -advantages * limited).mean()
            value = ((values - returns) ** 2).mean()
            loss = policy - part.ent_coef * entropy.mean() + part.vf_coef * value
            adam.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), part.max_grad_norm)
            adam.step()


if __name__ == "__main__":
    measure("torch", train)
