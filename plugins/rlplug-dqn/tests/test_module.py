"""The module: what its targets stand for, how it explores, and what it knows of masks."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from gymnasium import spaces
from rlplug_dqn import DQNConfig, DQNModule
from rlplug_dqn.exploration import Exploration
from rlplug_dqn.losses import td_targets
from torch import Tensor, nn, tensor

from rlplug import ActInput, Batch
from rlplug.nn import NoisyLinear, QuantileHead

LINE = spaces.Box(-10, 10, (2,), numpy.float32)
THREE = spaces.Discrete(3)


def made(space: Any = LINE, actions: Any = THREE, **options: Any) -> DQNModule:
    torch.manual_seed(0)
    return DQNModule(space, actions, DQNConfig(**{"net_arch": (8,), **options}), seed=3)


def set_values(network: nn.Module, values: list[float]) -> None:
    """Let the network give the same outputs whatever it sees."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        list(network.parameters())[-1].copy_(tensor(values))


def rows(**columns: Any) -> Batch:
    """Three rows: one that goes on, a truncated one, a terminated one."""
    given = {
        "observations": torch.zeros(3, 2),
        "next_observations": torch.zeros(3, 2),
        "actions": tensor([0, 1, 2]),
        "rewards": torch.ones(3),
        "terminated": tensor([False, False, True]),
        "truncated": tensor([False, True, False]),
        "discounts": torch.full((3,), 0.5),
    }
    return Batch({**given, **columns})


def as_list(targets: Any) -> list[Any]:
    return torch.as_tensor(targets).tolist()


def test_targets_are_the_best_values_of_the_target_network() -> None:
    module = made()
    set_values(module.network, [9.0, 0.0, 0.0])
    set_values(module.target.model, [2.0, 4.0, 3.0])
    assert as_list(td_targets(module, rows())) == [3.0, 3.0, 1.0]


def test_double_targets_take_the_action_that_the_network_prefers() -> None:
    module = made(double=True)
    set_values(module.network, [9.0, 0.0, 0.0])
    set_values(module.target.model, [2.0, 4.0, 3.0])
    # The network prefers action 0, which the target values 2: 1 + 0.5 * 2.
    assert as_list(td_targets(module, rows())) == [2.0, 2.0, 1.0]


@pytest.mark.parametrize("double", [False, True])
def test_targets_look_at_allowed_actions_only(double: bool) -> None:
    module = made(double=double)
    set_values(module.network, [2.0, 4.0, 3.0])
    set_values(module.target.model, [2.0, 4.0, 3.0])
    mask = tensor([[True, False, True], [True, False, False], [False, False, False]])
    targets = td_targets(module, rows(next_action_mask=mask))
    assert as_list(targets) == [1 + 0.5 * 3, 1 + 0.5 * 2, 1.0]


def test_without_discounts_the_option_gamma_holds() -> None:
    module = made()
    set_values(module.target.model, [4.0, 0.0, 0.0])
    targets = td_targets(module, rows().without(frozenset(["discounts"])), 0.25)
    assert as_list(targets) == [2.0, 2.0, 1.0]


def test_quantile_targets_are_quantiles_of_the_best_action() -> None:
    module = made(quantile=True, n_quantiles=2)
    assert isinstance(module.target.model.head, QuantileHead)
    # Means 1, 3 and 2: the second action's quantiles are 0 and 6.
    set_values(module.target.model, [1.0, 1.0, 0.0, 6.0, 2.0, 2.0])
    assert as_list(td_targets(module, rows())) == [[1.0, 4.0], [1.0, 4.0], [1.0, 1.0]]


@pytest.mark.parametrize(
    ("step", "epsilon"),
    # From 1 to 0.1 over a fifth of 1,000 steps: half of the way at step 100.
    [(0, 1.0), (100, 0.55), (200, 0.1), (999, 0.1)],
)
def test_epsilon_falls_in_a_line_and_stays(step: int, epsilon: float) -> None:
    config = DQNConfig(exploration_fraction=0.2, exploration_final_eps=0.1, learning_starts=0)
    assert Exploration.of(config).epsilon(step, 1_000) == pytest.approx(epsilon)


def test_before_learning_starts_all_actions_are_random() -> None:
    # As in Stable-Baselines3, whatever epsilon is set to; it counts from step 0 all the same.
    config = DQNConfig(
        exploration_fraction=0.5,
        exploration_initial_eps=0.6,
        exploration_final_eps=0.0,
        learning_starts=200,
    )
    epsilon = Exploration.of(config).epsilon
    assert [epsilon(step, 1_000) for step in (0, 199)] == [1.0, 1.0]
    assert epsilon(250, 1_000) == pytest.approx(0.3)


@pytest.mark.parametrize("count", [1, 500])
def test_exploration_is_random_as_often_as_epsilon_says(count: int) -> None:
    module = made(
        exploration_fraction=0.5,
        exploration_initial_eps=1.0,
        exploration_final_eps=0.3,
        learning_starts=0,
    )
    set_values(module.network, [1.0, 0.0, 0.0])
    random = numpy.random.default_rng(0)
    act = ActInput(numpy.zeros((count, 2), numpy.float32), random=random, timestep=90, steps=100)
    taken = numpy.concatenate(
        [module.forward_exploration(act).actions for _ in range(6_000 // count)]
    )
    # 0.3 of the actions are random, a third of which is the best one by chance.
    shares = numpy.bincount(taken, minlength=3) / len(taken)
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.02)


def test_actions_are_counted_from_where_the_space_begins() -> None:
    module = made(actions=spaces.Discrete(3, start=5))
    set_values(module.network, [1.0, 9.0, 0.0])
    act = ActInput(numpy.zeros((2, 2), numpy.float32), random=numpy.random.default_rng(0))
    assert module.forward_inference(act).actions.tolist() == [6, 6]
    explored = [module.forward_exploration(act).actions for _ in range(50)]
    assert set(numpy.concatenate(explored).tolist()) == {5, 6, 7}
    assert module.indices(tensor([5, 7])).tolist() == [0, 2]


def test_noise_explores_and_inference_has_none() -> None:
    module = made(noisy=True, exploration_initial_eps=0.0, exploration_final_eps=0.0)
    assert any(isinstance(part, NoisyLinear) for part in module.network.modules())
    random = numpy.random.default_rng(0)
    seen = numpy.ones((1, 2), numpy.float32)
    act = ActInput(seen, random=random)
    explored = {int(module.forward_exploration(act).actions[0]) for _ in range(100)}
    assert len(explored) > 1
    assert len({int(module.forward_inference(act).actions[0]) for _ in range(100)}) == 1


def test_noise_of_updates_depends_on_seed_and_count_alone() -> None:
    def noises(module: DQNModule) -> list[Tensor]:
        return [part.noise_in.clone() for part in module.modules() if isinstance(part, NoisyLinear)]

    first, second = made(noisy=True), made(noisy=True)
    first.reset_noise()
    before = noises(first)
    second.load_state_dict(first.state_dict())
    first.reset_noise()
    second.reset_noise()
    assert all(torch.equal(a, b) for a, b in zip(noises(first), noises(second), strict=True))
    assert not torch.equal(before[0], noises(first)[0])
    # The target network has noise of its own.
    half = len(before) // 2
    assert not torch.equal(before[0], before[half])
