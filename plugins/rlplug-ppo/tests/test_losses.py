"""Losses worked by hand."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from gymnasium import spaces
from rlplug_ppo import ActorCriticModule, PPOConfig, losses

from rlplug import Batch

BOX = spaces.Box(-1, 1, (3,))
ROWS = 64


def test_the_surrogate_by_hand() -> None:
    ratio = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.0], requires_grad=True)
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0])
    loss = losses.clipped_surrogate(ratio, advantages, 0.2)
    # The smaller of ratio·A and clipped·A: 1.2, -1.5, 0.5, -0.8, 2.
    assert loss.item() == pytest.approx(-(1.2 - 1.5 + 0.5 - 0.8 + 2.0) / 5)
    loss.backward()
    # Where the range limits a gain nothing pulls; where it would hide a loss everything does.
    assert ratio.grad is not None
    assert ratio.grad.tolist() == pytest.approx([0.0, 0.2, -0.2, 0.0, -0.4])


def test_value_clipping_by_hand() -> None:
    values = torch.tensor([3.0, 1.2, 3.0], requires_grad=True)
    returns, old = torch.tensor([2.0, 1.0, 4.0]), torch.tensor([1.0, 1.0, 1.0])
    loss = losses.value_loss(values, returns, old, 0.5)
    # Held values 1.5, 1.2, 1.5 have errors 0.25, 0.04, 6.25; free ones 1, 0.04, 1.
    assert loss.item() == pytest.approx((1 + 0.04 + 6.25) / 3)
    loss.backward()
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([2 / 3, 0.4 / 3, 0.0])
    assert losses.value_loss(values, returns, old, 0.0).item() == pytest.approx(2.04 / 3)


def test_advantages_are_brought_to_mean_0_and_deviation_1() -> None:
    found = losses.normalised(torch.tensor([1.0, 2.0, 3.0]))
    assert found.tolist() == pytest.approx([-1.0, 0.0, 1.0])
    alone = torch.tensor([5.0])
    assert losses.normalised(alone).tolist() == [5.0]


def made(space: spaces.Space[Any], seed: int = 0, **options: Any) -> ActorCriticModule:
    torch.manual_seed(seed)
    module = ActorCriticModule(BOX, space, PPOConfig(**options))
    with torch.no_grad():
        for param in module.parameters():
            param += 0.3 * torch.randn_like(param)
    return module


def minibatch(module: ActorCriticModule, *, masked: bool = False, seed: int = 0) -> Batch:
    random = numpy.random.default_rng(seed)
    observations = random.uniform(-1, 1, (ROWS, 3)).astype(numpy.float32)
    parameters, _ = module.network.act(observations)
    mask = None
    if masked:
        mask = random.random((ROWS, parameters.shape[1])) < 0.6
        mask[:, 0] = True
    actions = module.distribution.sample(parameters, random, mask)
    columns = {
        "observations": observations,
        "actions": actions,
        **({} if mask is None else {"action_mask": mask}),
    }
    for name, scale in (("advantages", 1), ("returns", 2), ("values", 1), ("log_prob", 0.5)):
        columns[name] = (scale * random.standard_normal(ROWS)).astype(numpy.float32)
    columns["log_prob"] -= 1
    return Batch(columns)


def test_an_update_ends_where_the_policy_has_moved_too_far() -> None:
    module = made(spaces.Discrete(3))
    batch = minibatch(module)
    out = module.forward_train(batch)
    moved = float(losses.ppo_loss(module, PPOConfig(), batch, out).metrics["approx_kl"])
    for target, stops in ((moved / 2, True), (moved, False)):
        loss = losses.ppo_loss(module, PPOConfig(target_kl=target), batch, out)
        assert loss.stop is not None
        assert bool(loss.stop) is stops
        assert float(loss.metrics["kl_stopped"]) == float(stops)
    assert losses.ppo_loss(module, PPOConfig(), batch, out).stop is None


def test_the_penalty_weighs_the_divergence_from_the_old_policy() -> None:
    module = made(spaces.Discrete(2), kl_coef=0.5)
    module.kl_coef.fill_(0.5)
    batch = minibatch(module).with_columns({"parameters": torch.zeros(ROWS, 2)})
    logits = torch.tensor([[1.0, 0.0]]).repeat(ROWS, 1).requires_grad_()
    out = {"parameters": logits, "values": torch.zeros(ROWS, requires_grad=True)}
    loss = losses.ppo_loss(module, PPOConfig(kl_coef=0.2), batch, out)
    chance = float(torch.tensor(1.0).sigmoid())
    expected = 0.5 * numpy.log(0.5 / chance) + 0.5 * numpy.log(0.5 / (1 - chance))
    assert float(loss.metrics["kl"].detach()) == pytest.approx(expected, abs=1e-6)
    assert float(loss.terms["kl_penalty"].detach()) == pytest.approx(0.5 * expected, abs=1e-6)
