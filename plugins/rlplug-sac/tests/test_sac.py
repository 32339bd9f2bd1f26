"""SAC and TD3: targets and losses by hand, how they act, and runs."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy
import pytest
import torch
from gymnasium import spaces
from rlplug_sac import SAC, TD3, SACConfig, SACModule, TD3Config, TD3Module
from rlplug_sac.actions import BoxActions
from rlplug_sac.losses import (
    critic_loss,
    expected_values,
    sac_loss,
    sac_targets,
    smoothed,
    td3_loss,
    td3_targets,
)
from torch import Tensor, nn, tensor

import rlplug
from rlplug import ActInput, Batch, Loss, UnsupportedSpaceError, build_learner, run
from rlplug.config.strict import structure
from rlplug.learner import Learner
from rlplug.runs.evaluate import evaluate

pytestmark = pytest.mark.usefixtures("home")

# -- losses ----------------------------------------------------------------------------------------


LINE = spaces.Box(-10, 10, (2,), numpy.float32)
ONE = spaces.Box(-1, 1, (1,), numpy.float32)
THREE = spaces.Discrete(3)
SAC_OPTIMIZERS = ("critic", "actor", "temperature")

AT_0 = 0.5 * math.log(2 * math.pi)
"""Minus the log-density of a standard normal number at 0, where tanh has the slope 1."""


def constant(network: nn.Module, values: list[float]) -> None:
    """Let a network give the same outputs whatever it sees."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        list(network.parameters())[-1].copy_(tensor(values))


def made(space: Any = ONE, **options: Any) -> SACModule:
    """A policy of mean 0 and deviation 1, or of equal chances; critics that say 2 and 1."""
    module = SACModule(LINE, space, SACConfig(**{"net_arch": (4,), **options}))
    width = 1 if space is ONE else 3
    constant(module.actor, [0.0] * (2 if space is ONE else 3))
    constant(module.critics.first, [2.0] * width)
    constant(module.critics.second, [1.0] * width)
    module.target.copy()
    return module


def linear(module: TD3Module) -> None:
    """Let both critics value an action by itself, the second one by 1 more."""
    with torch.no_grad():
        for offset, head in enumerate((module.critics.first, module.critics.second)):
            constant(head, [0.0])
            into, out = head.advantage[0], head.advantage[-1]
            # A hidden unit of action + 2 is never cut off by ReLU.
            into.weight[0, -1], into.bias[0] = 1.0, 2.0
            out.weight[0, 0], out.bias[0] = 1.0, -2.0 + offset
    module.critics_target.copy()


def made_td3(**options: Any) -> TD3Module:
    """An actor that always says 0, and critics that say what the action is."""
    module = TD3Module(LINE, ONE, TD3Config(**{"net_arch": (4,), **options}))
    constant(module.actor, [0.0])
    module.actor_target.copy()
    linear(module)
    return module


def rows(**columns: Any) -> Batch:
    """Three rows: one that goes on, a truncated one, a terminated one."""
    given = {
        "observations": torch.zeros(3, 2),
        "next_observations": torch.zeros(3, 2),
        "actions": torch.zeros(3, 1),
        "rewards": torch.ones(3),
        "terminated": tensor([False, False, True]),
        "truncated": tensor([False, True, False]),
        "discounts": torch.full((3,), 0.5),
        "targets": torch.full((3,), 4.0),
        "noise": torch.zeros(3, 1),
    }
    return Batch({**given, **columns})


def loss_of(module: SACModule, batch: Batch, optimizers: tuple[str, ...] = SAC_OPTIMIZERS) -> Loss:
    return sac_loss(module, batch, module.forward_train(batch), optimizers)


def parts_of(loss: Loss | None) -> dict[str, Any]:
    """The loss of each optimizer."""
    assert loss is not None
    assert isinstance(loss.value, dict)
    return {name: part.item() for name, part in loss.value.items()}


def test_targets_add_the_lower_value_and_the_entropy_and_end_where_episodes_terminate() -> None:
    module = made(ent_coef=0.5)
    targets = sac_targets(module, rows(), 0.99, torch.zeros(3, 1))
    on = 1 + 0.5 * (1 + 0.5 * AT_0)
    assert targets.tolist() == pytest.approx([on, on, 1.0])


def test_the_entropy_of_a_draw_has_the_correction_of_tanh() -> None:
    module = made(ent_coef=1.0)
    targets = sac_targets(module, rows(), 0.99, torch.full((3, 1), 0.5))
    density = math.exp(-0.125) / math.sqrt(2 * math.pi) / (1 - math.tanh(0.5) ** 2)
    assert targets[0].item() == pytest.approx(1 + 0.5 * (1 - math.log(density)))


def test_the_loss_of_the_critics_is_half_the_sum_of_their_squared_errors() -> None:
    assert critic_loss(tensor([2.0]), tensor([1.0]), tensor([4.0])).item() == 0.5 * (4 + 9)
    assert parts_of(loss_of(made(), rows()))["critic"] == pytest.approx(6.5)


def test_the_actor_is_rewarded_for_the_lower_value_and_for_entropy() -> None:
    parts = parts_of(loss_of(made(ent_coef=0.5), rows(), ("critic", "actor")))
    assert parts["actor"] == pytest.approx(-(1 + 0.5 * AT_0))


def test_the_loss_of_the_critics_does_not_move_the_actor() -> None:
    module = made()
    loss = loss_of(module, rows())
    assert isinstance(loss.value, dict)
    found = torch.autograd.grad(
        loss.value["critic"], list(module.actor.parameters()), allow_unused=True
    )
    assert all(gradient is None for gradient in found)


@pytest.mark.parametrize(("target", "sign"), [(AT_0 - 0.5, 0.5), (AT_0 + 0.5, -0.5)])
def test_the_temperature_falls_where_entropy_is_above_its_target_and_rises_below(
    target: float, sign: float
) -> None:
    module = made(target_entropy=target, ent_coef_init=math.e)
    loss = loss_of(module, rows())
    assert isinstance(loss.value, dict)
    (gradient,) = torch.autograd.grad(loss.value["temperature"], [module.log_ent_coef])
    # An optimizer goes against it. The loss is the logarithm, 1, times the excess.
    assert gradient.item() == pytest.approx(sign)
    assert loss.value["temperature"].item() == pytest.approx(sign)


def test_auto_aims_at_minus_one_for_each_number_of_an_action() -> None:
    space = spaces.Box(-1, 1, (2, 3), numpy.float32)
    module = SACModule(LINE, space, SACConfig(net_arch=(4,)))
    assert module.excess_entropy(tensor([-6.0, 0.0]), None).tolist() == [0.0, 6.0]


def test_auto_aims_at_a_share_of_the_largest_entropy_that_a_mask_allows() -> None:
    module = made(THREE)
    most = tensor([math.log(3), math.log(2), 0.0])
    assert (most - module.excess_entropy(most, None))[0].item() == pytest.approx(0.89 * math.log(3))
    mask = tensor([[1, 1, 1], [1, 0, 1], [0, 1, 0]], dtype=torch.int8)
    wanted = most - module.excess_entropy(most, mask)
    assert wanted.tolist() == pytest.approx([0.89 * math.log(3), 0.89 * math.log(2), 0.0])


def test_discrete_values_are_means_under_the_policy() -> None:
    module = SACModule(LINE, spaces.Discrete(2), SACConfig(net_arch=(4,)))
    logits = tensor([[0.0, math.log(3)]])
    values, entropy = expected_values(
        module, logits, tensor([[4.0, 2.0]]), tensor([[3.0, 5.0]]), None
    )
    assert values.item() == pytest.approx(0.25 * 3 + 0.75 * 2)
    assert entropy.item() == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75))


def test_discrete_targets_look_at_allowed_actions_only() -> None:
    module = made(THREE, ent_coef=1.0)
    mask = tensor([[True, True, True], [True, False, True], [False, True, False]])
    targets = sac_targets(module, rows(next_action_mask=mask), 0.99, None)
    wanted = [1 + 0.5 * (1 + math.log(3)), 1 + 0.5 * (1 + math.log(2)), 1.0]
    assert targets.tolist() == pytest.approx(wanted)


def test_the_noise_of_target_actions_is_scaled_and_clipped() -> None:
    noise = smoothed(tensor([0.5, 3.0, -9.0]), 0.2, 0.5)
    assert noise.tolist() == pytest.approx([0.1, 0.5, -0.5])


def test_td3_targets_take_the_lower_value_of_the_target_action_with_noise() -> None:
    noise = tensor([[0.25], [-0.5], [0.25]])
    targets = td3_targets(made_td3(), rows(), 0.99, noise)
    assert targets.tolist() == pytest.approx([1 + 0.5 * 0.25, 1 - 0.5 * 0.5, 1.0])


def test_the_actor_of_td3_climbs_the_first_critic() -> None:
    module = made_td3(policy_delay=1)
    batch = rows()
    loss = td3_loss(module, batch, module.forward_train(batch), ("critic", "actor"))
    assert parts_of(loss)["actor"] == pytest.approx(0.0)
    assert loss is not None
    assert isinstance(loss.value, dict)
    bias = list(module.actor.parameters())[-1]
    (gradient,) = torch.autograd.grad(loss.value["actor"], [bias])
    # The value rises by 1 with the action, and that by 1 with the input of tanh at 0.
    assert gradient.tolist() == pytest.approx([-1.0])


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_the_actor_is_left_out_of_the_losses_until_its_turn(delay: int) -> None:
    module = made_td3(policy_delay=delay)
    batch = rows()
    named = []
    for _ in range(6):
        loss = td3_loss(module, batch, module.forward_train(batch), ("critic", "actor"))
        named.append("actor" in parts_of(loss))
        module.actor_target.update()
        module.critics_target.update()
    assert named == [turn % delay == 0 for turn in range(1, 7)]


# -- module ----------------------------------------------------------------------------------------


WIDE = spaces.Box(numpy.array([[-2.0, 0.0]]), numpy.array([[2.0, 10.0]]), (1, 2), numpy.float64)
FIVE = spaces.Discrete(5, start=3)


def sac(space: Any = WIDE, **options: Any) -> SACModule:
    torch.manual_seed(0)
    return SACModule(LINE, space, SACConfig(**{"net_arch": (8,), **options}))


def td3(space: Any = WIDE, **options: Any) -> TD3Module:
    torch.manual_seed(0)
    return TD3Module(LINE, space, TD3Config(**{"net_arch": (8,), **options}))


def seen(rows: int = 200, timestep: int = 1_000, seed: int = 0, **more: Any) -> ActInput:
    random = numpy.random.default_rng(seed)
    observations = random.standard_normal((rows, 2), numpy.float32)
    return ActInput(observations, timestep=timestep, random=random, **more)


def last_bias(network: nn.Module, values: list[float]) -> None:
    """Let a network give the same outputs whatever it sees."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        list(network.parameters())[-1].copy_(tensor(values))


@pytest.mark.parametrize("make", [sac, td3])
def test_before_learning_starts_actions_are_uniform(make: Any) -> None:
    module = make(learning_starts=10)
    last_bias(module.actor, [9.0, 9.0, -3.0, -3.0] if make is sac else [9.0, 9.0])
    actions = module.forward_exploration(seen(20_000, timestep=9)).actions.reshape(-1, 2)
    assert actions.mean(0) == pytest.approx([0.0, 5.0], abs=0.1)
    # The deviation of uniform numbers is their range / √12.
    assert actions.std(0) == pytest.approx([4 / 12**0.5, 10 / 12**0.5], rel=0.02)
    after = module.forward_exploration(seen(200, timestep=10)).actions.reshape(-1, 2)
    assert after.mean(0) == pytest.approx([2.0, 10.0], rel=0.1)


def test_td3_explores_with_noise_of_the_deviation_asked_for() -> None:
    module = td3(action_noise=0.05)
    last_bias(module.actor, [0.0, 0.0])
    actions = module.forward_exploration(seen(20_000)).actions.reshape(-1, 2)
    # Of scaled actions: 2 and 5 in the units of the environment are 1.
    assert actions.std(0) == pytest.approx([0.05 * 2, 0.05 * 5], rel=0.02)
    assert actions.mean(0) == pytest.approx([0.0, 5.0], abs=0.02)


def test_td3_gives_its_actor_stretched_over_the_bounds() -> None:
    module = td3()
    last_bias(module.actor, [0.5, -0.5])
    action = module.forward_inference(seen(1)).actions[0, 0]
    assert action == pytest.approx([2 * numpy.tanh(0.5), 5 + 5 * numpy.tanh(-0.5)])


@pytest.mark.parametrize("timestep", [0, 1_000])
def test_discrete_actions_are_drawn_as_often_as_their_log_probabilities_say(timestep: int) -> None:
    module = sac(FIVE, learning_starts=10)
    last_bias(module.actor, numpy.log([1.0, 2.0, 3.0, 4.0, 5.0]).tolist())
    mask = numpy.tile(numpy.array([1, 0, 1, 1, 1], numpy.int8), (20_000, 1))
    act = seen(20_000, timestep=timestep, action_mask=mask, wants_log_prob=True)
    acted = module.forward_exploration(act)
    # Of 1, 3, 4 and 5, which add up to 13; at random, of four.
    said = [1 / 13, 0, 3 / 13, 4 / 13, 5 / 13] if timestep else [1 / 4, 0, 1 / 4, 1 / 4, 1 / 4]
    drawn = numpy.bincount(acted.actions - 3, minlength=5) / 20_000
    assert drawn == pytest.approx(said, abs=0.015)
    expected = numpy.array(said)[acted.actions - 3]
    assert numpy.exp(acted.extras["log_prob"]) == pytest.approx(expected, rel=1e-5)


def test_scaled_actions_lie_between_minus_one_and_one() -> None:
    box = BoxActions(WIDE)
    actions = tensor([[[-2.0, 0.0]], [[0.0, 5.0]], [[1.0, 10.0]]])
    assert box.scaled(actions).tolist() == [[-1.0, -1.0], [0.0, 0.0], [0.5, 1.0]]
    numpy.testing.assert_allclose(box.for_env(box.scaled(actions).numpy()), actions)
    assert box.for_env(numpy.zeros((1, 2))).dtype == numpy.float64


def test_a_fixed_coefficient_is_no_parameter() -> None:
    module = sac(ent_coef=0.25)
    assert module.log_ent_coef is None
    assert module.temperature().item() == 0.25
    assert sac(ent_coef_init=0.5).temperature().item() == pytest.approx(0.5)


def test_the_critics_share_an_encoder_and_nothing_else() -> None:
    image = spaces.Box(0, 255, (3, 40, 40), numpy.uint8)
    module = SACModule(image, WIDE, SACConfig(net_arch=(8,)))
    critics = module.critics
    encoders = {id(one) for one in critics.body.parameters()}
    heads = [{id(one) for one in head.parameters()} for head in (critics.first, critics.second)]
    assert encoders
    assert not heads[0] & heads[1]
    assert {id(one) for one in critics.parameters()} == encoders | heads[0] | heads[1]
    assert not {id(one) for one in module.actor.parameters()} & encoders


# -- updates ---------------------------------------------------------------------------------------


SEEN = spaces.Box(-1, 1, (4,), numpy.float32)
TWO = spaces.Box(-2, 2, (2,), numpy.float32)


def learner(kind: Any = SAC, actions: Any = TWO, **options: Any) -> Learner:
    return build_learner(kind, SEEN, actions, options={"net_arch": [16, 8], **options}, seed=0)


def experience(seed: int = 0, count: int = 32, actions: Any = TWO, **columns: Any) -> Batch:
    random = numpy.random.default_rng(seed)
    taken = random.integers(3, size=count)
    given = {
        "observations": random.standard_normal((count, 4), numpy.float32),
        "next_observations": random.standard_normal((count, 4), numpy.float32),
        "actions": taken if actions is THREE else random.uniform(-2, 2, (count, 2)).astype("f"),
        "rewards": random.standard_normal(count, numpy.float32),
        "terminated": random.random(count) < 0.3,
        "truncated": random.random(count) < 0.3,
        "discounts": numpy.full(count, 0.9, numpy.float32),
    }
    return Batch({**given, **columns})


def copied(network: nn.Module) -> list[Tensor]:
    return [one.detach().clone() for one in network.parameters()]


def moved(before: list[Tensor], network: nn.Module) -> bool:
    return any(not torch.equal(one, now) for one, now in zip(before, copied(network), strict=True))


def step(one: Learner, at: int = 1, **more: Any) -> dict[str, Any]:
    return dict(one.update({"default": experience(at, **more)}, timestep=at)["default"])


@pytest.mark.parametrize(
    ("options", "names"),
    [({}, ["critic", "actor", "temperature"]), ({"ent_coef": 0.2}, ["critic", "actor"])],
)
def test_every_optimizer_has_what_it_moves(options: dict[str, Any], names: list[str]) -> None:
    one = learner(learning_rate=0.02, **options)
    held = dict(one.get_optimizers_for_module("default"))
    assert list(held) == names
    assert {held[name].param_groups[0]["lr"] for name in names} == {0.02}
    module = one.modules["default"]
    parts = {"critic": module.critics, "actor": module.actor}
    for name, part in parts.items():
        assert list(map(id, held[name].param_groups[0]["params"])) == list(
            map(id, part.parameters())
        )


@pytest.mark.parametrize(("target", "falls"), [(-50.0, True), (50.0, False)])
def test_the_temperature_follows_the_entropy(target: float, falls: bool) -> None:
    one = learner(target_entropy=target, learning_rate=0.01)
    for at in range(1, 11):
        step(one, at)
    # Adam moves a logarithm of 0 by about its learning rate ten times.
    now = one.modules["default"].temperature().item()
    assert now == pytest.approx(numpy.exp(-0.1 if falls else 0.1), rel=1e-3)


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_actor_and_targets_of_td3_move_every_policy_delay_updates(delay: int) -> None:
    one = learner(TD3, policy_delay=delay, tau=0.25)
    module = one.modules["default"]
    parts = (module.critics, module.actor, module.actor_target.model, module.critics_target.model)
    found = []
    for at in range(1, 7):
        before = [copied(part) for part in parts]
        result = step(one, at)
        found.append([moved(old, part) for old, part in zip(before, parts, strict=True)])
        assert ("loss/actor" in result) == (at % delay == 0)
        assert "skipped" not in result
    assert found == [[True, *[at % delay == 0] * 3] for at in range(1, 7)]


@pytest.mark.parametrize("kind", [SAC, TD3])
def test_critics_get_nearer_to_targets_that_stand_still(kind: Any) -> None:
    one = learner(kind, learning_rate=0.01, tau=1e-9)
    terminated = numpy.ones(32, bool)
    losses = [
        float(
            one.update({"default": experience(terminated=terminated)}, timestep=at)["default"][
                "loss/critic"
            ]
        )
        for at in range(1, 151)
    ]
    assert losses[-1] < 0.1 * losses[0]


@pytest.mark.parametrize("kind", [SAC, TD3])
def test_optimizers_may_act_in_turn(kind: Any) -> None:
    one = learner(kind, **{"learner.optimizers": "in_turn"})
    module = one.modules["default"]
    before = [copied(module.critics), copied(module.actor)]
    for at in range(1, 4):
        found = step(one, at)
        assert numpy.isfinite(float(found["loss/critic"]))
    assert moved(before[0], module.critics)
    assert moved(before[1], module.actor)


# -- config ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"learning_rate": -1.0}, "must be at least 0"),
        ({"gamma": 1.1}, "must be between 0 and 1"),
        ({"gradient_steps": 0}, "at least 1, or -1 for one per environment step"),
        ({"tau": 0.0}, "must be greater than 0"),
        ({"tau": 1.1}, "must be at most 1"),
        ({"net_arch": []}, "must not be empty"),
        ({"net_arch": [0]}, "widths of at least 1"),
        ({"ent_coef": -0.1}, "must be at least 0"),
        ({"ent_coef": "auto_0.1"}, "expected float or 'auto'"),
        ({"ent_coef_init": 0.0}, "must be greater than 0"),
        ({"ent_coef": 0.2, "target_entropy": -1.0}, "target_entropy has no effect"),
        ({"ent_coef": 0.2, "ent_coef_init": 0.5}, "ent_coef_init has no effect"),
        (
            {"ent_coef": 0.2, "ent_coef_init": 0.5, "target_entropy": -1.0},
            "target_entropy has no effect with ent_coef = 0.2: leave one out ent_coef_init has",
        ),
        ({"target_update_interval": 0}, "must be at least 1"),
        ({"policy_delay": 2}, "unknown option"),
    ],
)
def test_what_is_wrong_for_sac_is_said(values: dict[str, Any], complaint: str) -> None:
    assert complaint in problems_of(SACConfig, values)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"policy_delay": 0}, "must be at least 1"),
        ({"policy_delay": 1.5}, "expected int"),
        ({"action_noise": -0.1}, "must be at least 0"),
        ({"target_policy_noise": -0.1}, "must be at least 0"),
        ({"target_noise_clip": -0.1}, "must be at least 0"),
        ({"ent_coef": 0.1}, "unknown option"),
    ],
)
def test_what_is_wrong_for_td3_is_said(values: dict[str, Any], complaint: str) -> None:
    assert complaint in problems_of(TD3Config, values)


def problems_of(config: type[Any], values: dict[str, Any]) -> str:
    made, problems = structure(config, values, "algorithm")
    assert made is None
    return " ".join(problem.message for problem in problems)


def test_defaults_are_those_of_stable_baselines3() -> None:
    sac, td3 = SACConfig(), TD3Config()
    for config, rate, widths in ((sac, 3e-4, (256, 256)), (td3, 1e-3, (400, 300))):
        assert (config.learning_rate, config.net_arch) == (rate, widths)
        assert (config.buffer_size, config.batch_size, config.learning_starts) == (10**6, 256, 100)
        assert (config.tau, config.gamma) == (0.005, 0.99)
        assert (config.train_freq, config.gradient_steps, config.n_step) == (1, 1, 1)
    assert (sac.ent_coef, sac.ent_coef_init, sac.target_entropy) == ("auto", 1.0, "auto")
    assert sac.target_update_interval == 1
    assert (td3.policy_delay, td3.target_policy_noise, td3.target_noise_clip) == (2, 0.2, 0.5)


# -- algorithm -------------------------------------------------------------------------------------


SMALL = {
    "tracking.enabled": False,
    "evaluation.episodes": 0,
    "net_arch": [16],
    "buffer_size": 1_000,
    "batch_size": 16,
}


def started(algorithm: str, env: Any = "Pendulum-v1", steps: int = 300, **options: Any) -> Any:
    return run(algorithm, env, steps=steps, seed=0, options={**SMALL, **options})


OBSERVED = spaces.Box(-1, 1, (3,), numpy.float32)


@pytest.mark.parametrize(
    ("kind", "space", "words"),
    [
        (SAC, spaces.MultiDiscrete([2, 3]), "it needs Box or Discrete actions, found MultiDis"),
        (TD3, spaces.Discrete(2), "it needs Box actions, found Discrete with 2 values"),
        (SAC, spaces.Box(-numpy.inf, 1, (2,)), "it needs actions with bounds on both sides"),
        (TD3, spaces.Box(-numpy.inf, numpy.inf, (2,)), "gymnasium.wrappers.RescaleAction"),
        (SAC, spaces.Box(0, 9, (2,), numpy.int64), "no distribution over a Box of whole numbers"),
        (TD3, spaces.Box(0, 9, (2,), numpy.int64), "no distribution over a Box of whole numbers"),
    ],
    ids=str,
)
def test_actions_without_a_policy_are_refused(kind: Any, space: Any, words: str) -> None:
    assert words in str(kind(kind.Config()).supports(OBSERVED, space))


def test_discrete_actions_are_refused_by_td3_before_the_first_step() -> None:
    with pytest.raises(UnsupportedSpaceError, match="needs Box actions, found Discrete"):
        started("td3", "CartPole-v1")


@pytest.mark.parametrize("algorithm", ["sac", "td3"])
def test_several_environments_and_n_step_returns_work(algorithm: str) -> None:
    options = {"sampling.num_envs": 4, "train_freq": 5, "gradient_steps": -1, "n_step": 3}
    # Each 5 steps of 4 environments bring 20 updates, from the sixth time on.
    assert started(algorithm, **options).metrics["time/updates"] == 200


@pytest.mark.parametrize(
    ("algorithm", "env"), [("sac", "Pendulum-v1"), ("sac", "CartPole-v1"), ("td3", "Pendulum-v1")]
)
def test_a_run_can_be_loaded_and_evaluated(algorithm: str, env: str) -> None:
    result = started(algorithm, env)
    played = evaluate(str(result.folder), checkpoint="last", episodes=2, seed=1)
    assert numpy.isfinite(played.metrics["eval/return_mean"])
    policy = rlplug.load(result.run_id)
    space = gymnasium.make(env).action_space
    observation, _ = gymnasium.make(env).reset(seed=0)
    assert policy.predict(observation) in space


# -- learning --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("algorithm", "steps"), [("sac", 5_000), ("td3", 7_000)])
@pytest.mark.long
def test_the_preset_for_pendulum_swings_it_up(algorithm: str, steps: int) -> None:
    options = {"run.preset": "pendulum", "tracking.enabled": False, "evaluation.every": 0}
    result = run(algorithm, steps=steps, seed=1, options=options)
    # Hanging down earns about -1,200, swinging up and staying there -150.
    assert result.metrics["eval/return_mean"] >= -400
