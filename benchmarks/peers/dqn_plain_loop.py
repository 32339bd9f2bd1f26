"""DQN as one loop on a page, in the manner of CleanRL: eager torch and nothing around it."""

from __future__ import annotations

import copy
from typing import Any

import dqn_settings as same
import gymnasium
import numpy
import torch
from torch import nn
from torch.nn import functional


class Transitions:
    """A ring of single steps."""

    def __init__(self, seed: int) -> None:
        size = same.BUFFER_SIZE
        self.seen = numpy.zeros((size, 4), numpy.float32)
        self.after = numpy.zeros((size, 4), numpy.float32)
        self.actions = numpy.zeros((size, 1), numpy.int64)
        self.rewards = numpy.zeros(size, numpy.float32)
        self.terminated = numpy.zeros(size, numpy.float32)
        self.random = numpy.random.default_rng(seed)
        self.added = 0

    def add(self, seen: Any, after: Any, action: Any, reward: Any, terminated: Any) -> None:
        """Keep one step in the place of the oldest."""
        place = self.added % same.BUFFER_SIZE
        self.seen[place], self.after[place] = seen[0], after[0]
        self.actions[place], self.rewards[place] = action[0], reward[0]
        self.terminated[place] = terminated[0]
        self.added += 1

    def draw(self, count: int) -> list[torch.Tensor]:
        """So many of them, each as likely as the others."""
        rows = self.random.integers(min(self.added, same.BUFFER_SIZE), size=count)
        columns = (self.seen, self.after, self.actions, self.rewards, self.terminated)
        return [torch.from_numpy(column[rows]) for column in columns]


class Learner:
    """Two networks and an optimizer."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        first, second = same.NET_ARCH
        layers = [nn.Linear(4, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU()]
        self.network = nn.Sequential(*layers, nn.Linear(second, 2))
        self.target = copy.deepcopy(self.network)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=same.LEARNING_RATE)

    def update(self, transitions: Transitions, batch_size: int) -> None:
        """One step towards the targets."""
        seen, after, actions, rewards, terminated = transitions.draw(batch_size)
        with torch.no_grad():
            best = self.target(after).max(dim=1).values
            targets = rewards + same.GAMMA * best * (1 - terminated)
        values = self.network(seen).gather(1, actions).squeeze(1)
        error = functional.mse_loss if same.BARE else functional.smooth_l1_loss
        loss = error(targets, values)
        self.optimizer.zero_grad()
        loss.backward()
        if not same.BARE:
            nn.utils.clip_grad_norm_(self.network.parameters(), same.MAX_GRAD_NORM)
        self.optimizer.step()

    @torch.no_grad()
    def best(self, seen: Any) -> Any:
        """The action of the highest value."""
        return torch.argmax(self.network(torch.Tensor(seen)), dim=1).cpu().numpy()


def collect(learner: Learner, transitions: Transitions, steps: int, seed: int) -> None:
    """Step, keep, and learn every so many steps."""
    environments = gymnasium.vector.SyncVectorEnv(
        [lambda: gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(same.ENV))],
        autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
    )
    first, last, fraction = same.EXPLORATION
    random = numpy.random.default_rng(seed)
    seen, _ = environments.reset(seed=seed)
    for step in range(steps):
        epsilon = max(last, first + (last - first) * step / (fraction * steps))
        explores = random.random() < epsilon
        actions = environments.action_space.sample() if explores else learner.best(seen)
        after, rewards, terminated, truncated, infos = environments.step(actions)
        real = after
        if terminated[0] or truncated[0]:
            real = after.copy()
            real[0] = infos["final_obs"][0]
        transitions.add(seen, real, actions, rewards, terminated)
        seen = after
        if step >= same.LEARNING_STARTS:
            if step % same.TRAIN_FREQ == 0:
                learner.update(transitions, same.BATCH_SIZE)
            if step % same.TARGET_INTERVAL == 0:
                learner.target.load_state_dict(learner.network.state_dict())


def run(steps: int, seed: int) -> same.Timed:
    """A whole training."""
    learner, transitions = Learner(seed), Transitions(seed)
    return same.timed(lambda: collect(learner, transitions, steps, seed))


def learn(updates: int, batch_size: int, seed: int) -> same.Timed:
    """Updates alone, drawn from a buffer of steps."""
    learner, transitions = Learner(seed), Transitions(seed)
    collect(learner, transitions, same.LEARNING_STARTS, seed)

    def work() -> None:
        for _ in range(updates):
            learner.update(transitions, batch_size)

    return same.timed(work)


if __name__ == "__main__":
    same.measure("torch", run=run, learn=learn)
