"""Train a small agent with approximations only: no run, no plugin, as in a notebook.

A deep Q-learner on CartPole-v1, about twenty seconds on one core.
"""

# %% Environment, network and optimizer.
import gymnasium
import numpy
import torch
from torch import nn

from rlplug.approximation import DummyCheckpointer, QNetwork
from rlplug.nn import FixedTarget

STEPS, BATCH, GAMMA = 12_000, 64, 0.98

torch.manual_seed(0)
torch.set_num_threads(1)
random = numpy.random.default_rng(0)
env = gymnasium.make("CartPole-v1")

model = nn.Sequential(
    nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2)
)
q = QNetwork(
    model,
    torch.optim.Adam(model.parameters(), 1e-3, fused=True),
    target=FixedTarget(100),
    clip_grad=10.0,
    checkpointer=DummyCheckpointer(),
)

# %% The replay buffer, as arrays.
observations = numpy.zeros((STEPS + 1, 4), numpy.float32)
following = numpy.zeros((STEPS + 1, 4), numpy.float32)
actions = numpy.zeros(STEPS + 1, numpy.int64)
terminated = numpy.zeros(STEPS + 1, bool)


def choose(observation: numpy.ndarray, epsilon: float) -> int:
    """An epsilon-greedy action."""
    if random.random() < epsilon:
        return int(random.integers(2))
    return int(q.no_grad(torch.from_numpy(observation[None])).argmax())


def learn(seen: int) -> None:
    """One gradient step on a random batch; every reward of CartPole is 1."""
    rows = random.integers(seen, size=BATCH)
    best = q.target(torch.from_numpy(following[rows])).amax(1)
    targets = 1 + GAMMA * best * ~torch.from_numpy(terminated[rows])
    values = q(torch.from_numpy(observations[rows]), torch.from_numpy(actions[rows]))
    q.reinforce(nn.functional.smooth_l1_loss(values, targets))


# %% Training loop.
observation, _ = env.reset(seed=0)
for step in range(STEPS):
    action = choose(observation, epsilon=max(0.05, 1 - step / 3000))
    after, _, fell, timed_out, _ = env.step(action)
    observations[step], following[step] = observation, after
    actions[step], terminated[step] = action, fell
    observation = env.reset()[0] if fell or timed_out else after
    if step >= 500:
        learn(step + 1)

# %% Evaluation, without exploration.
returns = []
for episode in range(10):
    observation, _ = env.reset(seed=1000 + episode)
    total, over = 0.0, False
    while not over:
        observation, reward, fell, timed_out, _ = env.step(choose(observation, epsilon=0.0))
        total, over = total + float(reward), fell or timed_out
    returns.append(total)
print(f"mean return of {len(returns)} greedy episodes: {numpy.mean(returns):.0f}")
