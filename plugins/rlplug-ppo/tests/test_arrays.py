"""Losses and rollouts on arrays have the numbers and gradients that they have in torch."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from rlplug_ppo import A2CConfig, ActorCriticModule, PPOConfig, losses
from rlplug_ppo.advantages import evaluate_rollout

from rlplug import Batch, Loss

arrays = pytest.importorskip("rlplug.nn.arrays.array")
Tape = pytest.importorskip("rlplug.nn.arrays.tape").Tape

BOX = spaces.Box(-1, 1, (3,))
TABLE = spaces.Tuple((spaces.Discrete(32), spaces.Discrete(11), spaces.Discrete(2)))
ROWS = 64


def made(observation_space: Any, action_space: Any, **options: Any) -> ActorCriticModule:
    torch.manual_seed(0)
    module = ActorCriticModule(observation_space, action_space, PPOConfig(**options))
    with torch.no_grad():
        for param in module.parameters():
            param += 0.3 * torch.randn_like(param)
    return module


def minibatch(module: ActorCriticModule, space: Any, *, masked: bool = False) -> Batch:
    random = numpy.random.default_rng(0)
    observed = batch_space(space, ROWS)
    observed.seed(0)
    observations = observed.sample()
    parameters, _ = module.network.act(observations)
    columns = {"observations": observations}
    if masked:
        columns["action_mask"] = mask = random.random(parameters.shape) < 0.6
        mask[:, 0] = True
    columns["actions"] = module.distribution.sample(parameters, random, columns.get("action_mask"))
    columns["parameters"] = parameters + 0.1 * random.standard_normal(parameters.shape)
    for name, scale in (("advantages", 1), ("returns", 2), ("values", 1), ("log_prob", 0.5)):
        columns[name] = (scale * random.standard_normal(ROWS)).astype(numpy.float32)
    columns["log_prob"] -= 1
    return Batch(columns).to(torch.device("cpu"), torch.float32)


def loss_of(module: ActorCriticModule, config: Any, batch: Any) -> Loss:
    loss = losses.ppo_loss if isinstance(config, PPOConfig) else losses.a2c_loss
    return loss(module, config, batch, module.forward_train(batch))


ACTIONS = [
    spaces.Discrete(2),
    spaces.Discrete(5, start=3),
    spaces.Box(-1, 1, (2,)),
    spaces.Box(-1, 1, (2, 2)),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary(3),
]


@pytest.mark.parametrize("space", ACTIONS, ids=str)
@pytest.mark.parametrize("observed", [BOX, spaces.Discrete(16), TABLE], ids=["box", "one", "tuple"])
@pytest.mark.parametrize(
    "config",
    [
        PPOConfig(),
        PPOConfig(ent_coef=0.02, clip_range_vf=0.3, normalize_advantage=False, target_kl=0.1),
        PPOConfig(kl_coef=0.2),
        A2CConfig(ent_coef=0.02),
        A2CConfig(normalize_advantage=True),
    ],
    ids=["plain", "everything", "penalty", "a2c", "a2c normalised"],
)
def test_arrays_have_the_losses_metrics_and_gradients_of_torch(
    space: Any, observed: Any, config: PPOConfig | A2CConfig
) -> None:
    module = made(observed, space)
    masked = isinstance(space, spaces.Discrete) and space.n == 5
    batch = minibatch(module, observed, masked=masked)
    params = list(module.parameters())
    traced = loss_of(module, config, batch)
    expected = torch.autograd.grad(traced.value, params)  # type: ignore[arg-type] # a tensor
    tape = Tape(params)
    found = loss_of(module, config, tape.batch(batch))
    assert isinstance(found.value, arrays.Array)
    tape.backward(found.value)
    torch.testing.assert_close(arrays.unwrap(found.value), traced.value.detach())  # type: ignore[union-attr] # a tensor
    for one, other in zip(tape.gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert set(found.metrics) == set(traced.metrics)
    for name, value in traced.metrics.items():
        assert float(found.metrics[name]) == pytest.approx(float(value.detach()), abs=1e-5)
    assert (found.stop is None) == (traced.stop is None)
    assert bool(found.stop) == bool(traced.stop)
    assert list(found.terms) == list(traced.terms)


@pytest.mark.parametrize("options", [{"squash": True}, {"state_dependent_std": True}], ids=str)
def test_other_policies_for_boxes_have_the_gradients_of_torch(options: Any) -> None:
    module = made(BOX, ACTIONS[2], **options)
    # Standard deviations of several units: in float32 the rounding would be seen.
    batch = minibatch(module, BOX).to(torch.device("cpu"), torch.float64)
    params = list(module.double().parameters())
    value = loss_of(module, PPOConfig(ent_coef=0.02), batch).value
    expected = torch.autograd.grad(value, params)  # type: ignore[arg-type] # a tensor
    tape = Tape(params)
    tape.backward(loss_of(module, PPOConfig(ent_coef=0.02), tape.batch(batch)).value)
    for one, other in zip(tape.gradients, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("space", ACTIONS, ids=str)
@pytest.mark.parametrize("observed", [BOX, TABLE], ids=["box", "tuple"])
@pytest.mark.parametrize(
    "options",
    [{"bootstrap_truncated": True}, {"bootstrap_truncated": False, "truncation": (0.9, 0.7)}],
    ids=["gae", "vtrace"],
)
def test_a_rollout_is_evaluated_alike(space: Any, observed: Any, options: Any) -> None:
    module = made(observed, space)
    random = numpy.random.default_rng(1)
    finals = batch_space(observed, 3)
    finals.seed(1)
    batch = minibatch(module, observed)
    rows = ("observations", "actions", *(["log_prob"] if "truncation" in options else []))
    rollout = Batch(
        {
            **{name: batch[name] for name in rows},
            "rewards": random.standard_normal(ROWS),
            "terminated": numpy.arange(ROWS) == 9,
            "truncated": numpy.arange(ROWS) == 39,
            "fragments": numpy.array([[0, 10], [10, 40], [40, ROWS]]),
            "final_observations": finals.sample(),
        }
    ).to(torch.device("cpu"), torch.float32)
    window: dict[str, Any] = {"gamma": 0.99, "gae_lambda": 0.9, **options}
    with torch.no_grad():
        expected = evaluate_rollout(module, rollout, **window)
        tape = Tape(list(module.parameters()))
        found = evaluate_rollout(module, tape.batch(rollout), **window)
    assert set(found) == set(expected)
    for name, column in expected.items():
        assert isinstance(found[name], arrays.Array)
        torch.testing.assert_close(arrays.unwrap(found[name]), column, rtol=1e-4, atol=1e-5)
