"""DQN and Rainbow: targets and losses by hand, how they explore and learn, and what they refuse."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy
import pytest
import torch
from gymnasium import spaces
from rlplug_dqn import DQNConfig, DQNModule, RainbowConfig
from rlplug_dqn.exploration import Exploration
from rlplug_dqn.losses import (
    conservative_penalty,
    distributional_target,
    greedy_actions,
    quantile_huber,
    quantile_target,
    td_loss,
    td_target,
    td_targets,
)
from torch import Tensor, nn, tensor

from rlplug import ActInput, Batch, RequestError, UnsupportedSpaceError, build_learner, run
from rlplug.config.strict import structure
from rlplug.errors import PluginError
from rlplug.learner import Learner
from rlplug.nn import NoisyLinear, QuantileHead

# -- losses ----------------------------------------------------------------------------------------


REWARDS = tensor([1.0, 1.0, 1.0])
TERMINATED = tensor([False, False, True])
HALF = torch.full((3,), 0.5)


def test_one_step_targets_discount_what_follows_unless_the_episode_terminated() -> None:
    # The second row was truncated: 1 + 0.5 * 6. The third terminated: 1.
    values = tensor([4.0, 6.0, 8.0])
    assert td_target(REWARDS, HALF, TERMINATED, values).tolist() == [3.0, 4.0, 1.0]


def test_n_step_targets_discount_by_the_steps_that_were_taken() -> None:
    # Three steps of reward 1 at gamma 0.5 are 1.75, and what follows counts 0.125; an episode
    # truncated after two steps gives 1.5 and 0.25; one terminated after one step gives 1.
    rewards, discounts = tensor([1.75, 1.5, 1.0]), tensor([0.125, 0.25, 0.5])
    targets = td_target(rewards, discounts, TERMINATED, tensor([8.0, 8.0, 8.0]))
    assert targets.tolist() == [2.75, 3.5, 1.0]


def test_the_greedy_action_is_one_that_is_allowed() -> None:
    values = tensor([[1.0, 5.0, 3.0], [1.0, 5.0, 3.0]])
    assert greedy_actions(values, None).tolist() == [1, 1]
    assert greedy_actions(values, tensor([[True, False, True], [1, 0, 0]]).bool()).tolist() == [
        2,
        0,
    ]


def test_distributional_targets_move_all_chances_and_keep_them_on_the_atoms() -> None:
    # Atoms at 0, 1, 2; the chances are a quarter, a quarter and a half, the mean is 1.25.
    support = tensor([0.0, 1.0, 2.0])
    chances = tensor([[0.25, 0.25, 0.5]] * 3)
    targets = distributional_target(REWARDS, HALF, TERMINATED, chances, support)
    # 1 + 0.5 * (0, 1, 2) = 1, 1.5, 2: what lies at 1.5 goes to both sides, 0.125 each. So it is for
    # the truncated row. The terminated one is worth 1 for certain.
    assert targets.tolist() == [[0.0, 0.375, 0.625], [0.0, 0.375, 0.625], [0.0, 1.0, 0.0]]
    assert (targets @ support).tolist() == [1 + 0.5 * 1.25, 1 + 0.5 * 1.25, 1.0]


def test_quantile_targets_move_every_quantile() -> None:
    quantiles = tensor([[0.0, 4.0]] * 3)
    targets = quantile_target(REWARDS, HALF, TERMINATED, quantiles)
    assert targets.tolist() == [[1.0, 3.0], [1.0, 3.0], [1.0, 1.0]]


@pytest.mark.parametrize(
    ("kind", "losses"),
    [
        # 0.5 * 0.25 below the bend at 1, and 3 - 0.5 above it.
        ("huber", [0.125, 2.5]),
        ("mse", [0.25, 9.0]),
    ],
)
def test_losses_of_values_are_those_that_were_named(kind: str, losses: list[float]) -> None:
    assert td_loss(tensor([0.5, -3.0]), tensor([1.0, 0.0]), kind).tolist() == losses


def test_quantile_losses_weigh_errors_by_their_side() -> None:
    # One quantile at 0.75. The target lies 0.5 above: 0.75 * 0.125; then 3 below: 0.25 * 2.5.
    at = tensor([[0.0]])
    fractions = tensor([0.75])
    above = quantile_huber(at, tensor([[0.5]]), fractions)
    below = quantile_huber(at, tensor([[-3.0]]), fractions)
    assert above.item() == pytest.approx(0.75 * 0.125)
    assert below.item() == pytest.approx(0.25 * 2.5)
    # Averaged over targets, summed over quantiles.
    both = quantile_huber(tensor([[0.0, 0.0]]), tensor([[0.5, -3.0]]), tensor([0.75, 0.75]))
    assert both.item() == pytest.approx(2 * (above.item() + below.item()) / 2)


def test_no_gradient_flows_through_the_weights_of_quantile_losses() -> None:
    at = tensor([[0.0]], requires_grad=True, dtype=torch.float64)

    def loss(value: Any) -> Any:
        return quantile_huber(value, tensor([[0.4, -0.3]], dtype=torch.float64), tensor([0.9]))

    assert torch.autograd.gradcheck(loss, (at,))


def test_the_conservative_penalty_is_the_gap_to_all_allowed_actions() -> None:
    values = tensor([[0.0, 0.0], [math.log(3.0), 0.0]])
    penalties = conservative_penalty(values, tensor([0, 0]), None)
    assert penalties.tolist() == pytest.approx([math.log(2.0), math.log(4.0 / 3.0)])
    allowed = tensor([[True, False], [True, True]])
    masked = conservative_penalty(values, tensor([0, 0]), allowed)
    assert masked.tolist() == pytest.approx([0.0, math.log(4.0 / 3.0)])


# -- module ----------------------------------------------------------------------------------------


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


# -- updates ---------------------------------------------------------------------------------------


SEEN = spaces.Box(-1, 1, (4,), numpy.float32)


def learner(**options: Any) -> Learner:
    return build_learner("dqn", SEEN, THREE, options={"net_arch": [16, 8], **options}, seed=0)


def experience(seed: int = 0, count: int = 32, **columns: Any) -> Batch:
    random = numpy.random.default_rng(seed)
    given = {
        "observations": random.standard_normal((count, 4), numpy.float32),
        "next_observations": random.standard_normal((count, 4), numpy.float32),
        "actions": random.integers(3, size=count),
        "rewards": random.standard_normal(count, numpy.float32) * 3,
        "terminated": random.random(count) < 0.3,
        "truncated": random.random(count) < 0.3,
        "discounts": numpy.where(random.random(count) < 0.5, 0.99, 0.97).astype(numpy.float32),
    }
    return Batch({**given, **columns})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"loss": "mse", "double": True},
        {"dueling": True, "double": True},
        {"distributional": True, "v_min": -4.0, "v_max": 4.0},
        {"quantile": True, "n_quantiles": 16},
        {"noisy": True, "dueling": True, "distributional": True, "double": True},
    ],
    ids=str,
)
def test_every_variant_gets_nearer_to_targets_that_stand_still(options: dict[str, Any]) -> None:
    one = learner(target_update_interval=10**6, learning_rate=0.01, **options)
    batch = experience()
    losses = [
        float(one.update({"default": batch}, timestep=step)["default"]["loss"])
        for step in range(1, 151)
    ]
    best = float(torch.special.entr(torch.as_tensor(targets_of(one, batch))).sum(-1).mean())
    lowest = best if options.get("distributional") else 0.0
    assert sum(losses[-10:]) / 10 - lowest < 0.5 * (losses[0] - lowest)


def targets_of(one: Learner, batch: Batch) -> Any:
    return td_targets(one.modules["default"], batch)


def test_the_priority_of_a_row_is_how_far_its_value_is_off() -> None:
    one = learner()
    module = one.modules["default"]
    batch = experience(indices=numpy.arange(32))
    values = module.forward_train(batch)["q_values"].detach()
    taken = values.gather(1, batch["actions"][:, None])[:, 0]
    wanted = (taken - torch.as_tensor(td_targets(module, batch))).abs()
    one.update({"default": batch}, timestep=1)
    torch.testing.assert_close(one.rows["default"]["priority"], wanted)


def test_noise_is_drawn_for_every_update() -> None:
    one = learner(noisy=True)
    module = one.modules["default"]
    drawn = []
    for step in (1, 2, 3):
        one.update({"default": experience()}, timestep=step)
        drawn.append(module.network.body.hidden[0].noise_in.clone())
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])


def test_the_learning_rate_and_the_epsilon_of_adam_are_options() -> None:
    one = learner(learning_rate=0.03, adam_eps=1e-4)
    group = one.get_optimizer().param_groups[0]
    assert (group["lr"], group["eps"]) == (0.03, 1e-4)


# -- config ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"learning_rate": -1.0}, "must be at least 0"),
        ({"gamma": 1.1}, "must be between 0 and 1"),
        ({"gradient_steps": 0}, "at least 1, or -1 for one per environment step"),
        ({"gradient_steps": -2}, "at least 1, or -1"),
        ({"tau": 0.0}, "must be greater than 0"),
        ({"net_arch": []}, "must not be empty"),
        ({"net_arch": [0]}, "widths of at least 1"),
        ({"loss": "l1"}, "'huber', 'mse'"),
        ({"double": "yes"}, "expected bool"),
        ({"distributional": True, "quantile": True}, "choose one"),
        ({"v_min": 1.0, "v_max": 1.0}, "v_min must be less than v_max, got 1.0 and 1.0"),
        ({"distributional": True, "loss": "mse"}, "no effect with distributional"),
        ({"quantile": True, "loss": "mse"}, "no effect with quantile"),
        ({"quantile": True, "loss": "mse", "v_min": 10.0}, "got 10.0 and 10.0 loss has no effect"),
        ({"epsilon": 0.1}, "unknown option"),
    ],
)
def test_what_is_wrong_is_said(values: dict[str, Any], complaint: str) -> None:
    config, problems = structure(DQNConfig, values, "algorithm")
    assert config is None
    assert complaint in " ".join(problem.message for problem in problems)


def test_rainbow_has_the_settings_of_the_paper() -> None:
    config = RainbowConfig()
    assert (config.learning_rate, config.adam_eps, config.batch_size) == (6.25e-5, 1.5e-4, 32)
    # 80,000 and 32,000 frames, four to a step.
    assert (config.learning_starts, config.target_update_interval) == (20_000, 8_000)
    assert (config.n_step, config.priority_alpha, config.priority_beta) == (3, 0.5, 0.4)
    assert (config.n_atoms, config.v_min, config.v_max, config.noisy_sigma) == (51, -10, 10, 0.5)
    improvements = ("double", "dueling", "prioritized", "distributional", "noisy")
    assert all(getattr(config, name) for name in improvements)
    assert (config.exploration_initial_eps, config.exploration_final_eps) == (0.0, 0.0)


# -- algorithm -------------------------------------------------------------------------------------


SMALL = {
    "tracking.enabled": False,
    "evaluation.episodes": 0,
    "net_arch": [32],
    "learning_starts": 100,
    "buffer_size": 1_000,
    "batch_size": 16,
}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLPLUG_HOME", str(tmp_path))


def started(env: Any = "CartPole-v1", steps: int = 400, seed: int = 0, **options: Any) -> Any:
    return run("dqn", env, steps=steps, seed=seed, options={**SMALL, **options})


@pytest.mark.parametrize(
    ("env", "options", "error", "named"),
    [
        ("Pendulum-v1", {}, UnsupportedSpaceError, "needs Discrete actions, found Box"),
        ("CartPole-v1", {"buffer_size": 10}, RequestError, r"buffer_size = 10 .*batch_size = 16"),
        ("CartPole-v1", {"learning_starts": 400}, RequestError, "learning_starts"),
        ("CartPole-v1", {"run.preset": "cartpol"}, PluginError, "cartpole"),
    ],
)
def test_requests_that_cannot_work_are_refused_before_the_first_step(
    env: str, options: Any, error: Any, named: str
) -> None:
    with pytest.raises(error, match=named):
        started(env, **options)


def test_the_first_update_comes_after_learning_starts() -> None:
    # 400 steps, 100 of them before; then one update every four steps.
    result = started()
    assert result.step == 400
    assert result.metrics["time/updates"] == 75
    assert started(learning_starts=300).metrics["time/updates"] == 25


def test_with_several_environments_updates_come_per_steps_of_the_vector() -> None:
    # 400 steps are 100 of four environments; the first 100 steps are 25 of them, then 75 are left.
    several = {"sampling.num_envs": 4, "train_freq": 5}
    assert started(**several).metrics["time/updates"] == 15
    # As many updates as environment steps: 20 each time.
    all_of_them = started(**several, gradient_steps=-1)
    assert all_of_them.metrics["time/updates"] == 15 * 20


def test_gradients_are_clipped_at_ten_unless_told_otherwise() -> None:
    # Errors of 1,000 by the squared loss have gradients of that size.
    def env() -> Any:
        return gymnasium.wrappers.TransformReward(
            gymnasium.make("CartPole-v1"), lambda reward: 1_000 * float(reward)
        )

    metrics = started(env, loss="mse").metrics
    assert metrics["train/grad_norm"] > 10
    assert metrics["train/grad_norm_clipped"] == pytest.approx(10, rel=1e-3)
    assert "train/grad_norm_clipped" not in started(env, **{"learner.max_grad_norm": 0.0}).metrics


@pytest.mark.parametrize("earned", [195.0, pytest.param(450.0, marks=pytest.mark.long)])
def test_cart_pole_is_learned_with_the_preset(earned: float) -> None:
    """The seed and the threshold were fixed beforehand; all seeds: benchmarks/learn.py dqn."""
    result = run(
        "dqn",
        seed=1,
        options={
            "tracking.enabled": False,
            "run.preset": "cartpole",
            "evaluation.stop_at_return": earned,
        },
    )
    assert isinstance(result.module, DQNModule)
    assert result.metrics["eval/return_mean"] >= earned
