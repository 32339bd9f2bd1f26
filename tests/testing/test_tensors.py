"""The kit's environments of tensors are those of Gymnasium, all of them at once."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import pytest
import torch

from rlplug.testing.tensors import TensorCartPole, TensorPendulum


def start(env: Any, states: torch.Tensor) -> None:
    """Go on from these states, as Gymnasium's environments have them."""
    env.reset(seed=0)
    assert env._state.shape == states.shape
    env._state = states.clone()


def test_cart_poles_move_and_fall_as_those_of_gymnasium() -> None:
    generator = torch.Generator().manual_seed(0)
    states = (torch.rand(64, 4, generator=generator) * 2 - 1) * torch.tensor([2.4, 1, 0.21, 1])
    actions = torch.randint(2, (64,), generator=generator)
    env = TensorCartPole(64)
    start(env, states)
    _, rewards, terminated, truncated, infos = env.step(actions)
    single = gymnasium.make("CartPole-v1").unwrapped
    for index, state in enumerate(states.double().numpy()):
        single.reset(seed=0)
        single.state = state  # type: ignore[attr-defined] # where it keeps it
        observed, reward, fallen, _, _ = single.step(int(actions[index]))
        assert infos["final_obs"][index].numpy() == pytest.approx(observed, abs=1e-6)
        assert (rewards[index].item(), terminated[index].item()) == (reward, fallen)
    assert terminated.any()
    assert not terminated.all()
    assert not truncated.any()


def test_pendulums_move_and_cost_as_those_of_gymnasium() -> None:
    generator = torch.Generator().manual_seed(0)
    states = (torch.rand(64, 2, generator=generator) * 2 - 1) * torch.tensor([7.0, 8.0])
    torques = torch.rand(64, 1, generator=generator) * 6 - 3
    env = TensorPendulum(64)
    start(env, states)
    observed, rewards, terminated, _, _ = env.step(torques)
    assert not terminated.any()
    single: Any = gymnasium.make("Pendulum-v1").unwrapped
    for index, state in enumerate(states.double().numpy()):
        single.reset(seed=0)
        single.state = state
        expected, reward, *_ = single.step(torques[index].numpy())
        assert observed[index].numpy() == pytest.approx(expected, abs=1e-5)
        assert rewards[index].item() == pytest.approx(reward, abs=1e-4)


@pytest.mark.parametrize(
    ("env", "bounds"),
    [(TensorCartPole(4096), (0.05,) * 4), (TensorPendulum(4096), (math.pi, 1.0))],
)
def test_episodes_start_as_those_of_gymnasium(env: Any, bounds: tuple[float, ...]) -> None:
    env.reset(seed=3)
    first = env._state
    limits = torch.tensor(bounds)
    assert (first.abs() <= limits).all()
    # Uniform: from one end to the other, with the mean in the middle.
    assert (first.max(0).values / limits).tolist() == pytest.approx([1] * len(bounds), abs=0.01)
    assert (first.min(0).values / limits).tolist() == pytest.approx([-1] * len(bounds), abs=0.01)
    assert (first.mean(0) / limits).tolist() == pytest.approx([0] * len(bounds), abs=0.05)
    env.reset(seed=3)
    assert env._state.equal(first)
    env.reset()
    assert not env._state.equal(first)


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_episodes_end_at_their_longest_and_start_anew(autoreset: str) -> None:
    env = TensorPendulum(2, max_episode_steps=3, autoreset=autoreset)
    env.reset(seed=0)
    ended, paid = [], []
    for _ in range(8):
        _, rewards, terminated, truncated, infos = env.step(torch.ones(2, 1))
        assert not terminated.any()
        assert ("final_obs" in infos) == (autoreset == "same_step")
        ended.append(truncated.all().item())
        paid.append(rewards.ne(0).all().item())
    if autoreset == "same_step":
        assert ended == [False, False, True] * 2 + [False, False]
        assert all(paid)
    else:
        # The step that resets is none: it has no reward and no end.
        assert ended == [False, False, True, False] * 2
        assert paid == [True, True, True, False] * 2
