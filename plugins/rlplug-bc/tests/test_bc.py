"""Behaviour cloning: its loss by hand, what it imitates, and what it refuses."""

from __future__ import annotations

import math
from pathlib import Path

import numpy
import pytest
import torch
from gymnasium import spaces
from rlplug_bc.losses import bc_loss

import rlplug
from rlplug import ActInput, Batch
from rlplug.errors import RequestError
from rlplug.nn import make_distribution

pytestmark = pytest.mark.usefixtures("home")

OFF = {"tracking.enabled": False}


def test_the_loss_is_the_negative_log_likelihood() -> None:
    distribution = make_distribution(spaces.Discrete(2))
    # Probabilities of 3/4 and 1/4, and of 1/2 and 1/2.
    parameters = torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0]])
    batch = Batch({"actions": torch.tensor([0, 1])})
    loss = bc_loss(distribution, parameters, batch, 0.0, None)
    assert float(loss.value) == pytest.approx((math.log(4 / 3) + math.log(2)) / 2)
    weighted = Batch({"actions": torch.tensor([0, 1]), "weights": torch.tensor([2.0, 0.0])})
    loss = bc_loss(distribution, parameters, weighted, 0.0, None)
    assert float(loss.value) == pytest.approx(math.log(4 / 3))
    entropic = bc_loss(
        distribution, parameters[1:], Batch({"actions": torch.tensor([1])}), 0.5, None
    )
    assert float(entropic.value) == pytest.approx(math.log(2) - 0.5 * math.log(2))


def test_it_learns_the_shares_of_actions(tmp_path: Path) -> None:
    """In one context three of four choices were 1, in the other none."""
    context = numpy.repeat(numpy.eye(2), 4, axis=0)
    numpy.savez(
        tmp_path / "log.npz",
        context=context,
        action=[1, 1, 1, 0, 0, 0, 0, 0],
        reward=numpy.zeros(8),
    )
    options = {**OFF, "learning_rate": 0.01, "batch_size": 8}
    result = rlplug.run("bc", data=tmp_path / "log.npz", steps=4000, options=options)
    act = ActInput(
        numpy.eye(2).repeat(2000, 0), random=numpy.random.default_rng(0), wants_log_prob=True
    )
    acted = result.module.forward_exploration(act)
    assert acted.actions[:2000].mean() == pytest.approx(0.75, abs=0.04)
    assert acted.actions[2000:].mean() < 0.03
    there = acted.actions[:2000] == 1
    assert numpy.exp(acted.extras["log_prob"][:2000][there]).mean() == pytest.approx(0.75, abs=0.03)


def test_it_imitates_continuous_actions(tmp_path: Path) -> None:
    random = numpy.random.default_rng(0)
    context = random.uniform(-1, 1, (2000, 2))
    actions = numpy.stack([context[:, 0], context[:, 0] + context[:, 1]], axis=1)
    numpy.savez(tmp_path / "log.npz", context=context, action=actions, reward=numpy.zeros(2000))
    options = {**OFF, "learning_rate": 0.003}
    result = rlplug.run("bc", data=tmp_path / "log.npz", steps=60_000, options=options)
    seen = random.uniform(-1, 1, (200, 2))
    chosen = rlplug.load(result.folder).predict(seen.astype(numpy.float32))
    wanted = numpy.stack([seen[:, 0], seen[:, 0] + seen[:, 1]], axis=1)
    assert abs(chosen - wanted).mean() < 0.05


def test_without_a_log_there_is_nothing_to_imitate() -> None:
    with pytest.raises(RequestError, match="learns from a log only") as raised:
        rlplug.run("bc", "CartPole-v1", options=OFF)
    assert "--data FILE" in str(raised.value)
