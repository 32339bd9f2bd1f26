"""Targets and losses on arrays have the numbers and gradients that they have in torch."""

from __future__ import annotations

import itertools
from typing import Any

import numpy
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from rlplug_dqn import DQNConfig, DQNModule
from rlplug_dqn.losses import dqn_loss, td_targets
from torch import Tensor

from rlplug import Batch, Loss

arrays = pytest.importorskip("rlplug.nn.arrays.array")
Tape = pytest.importorskip("rlplug.nn.arrays.tape").Tape

SEEN = spaces.Box(-1, 1, (4,), numpy.float32)
TABLE = spaces.Tuple((spaces.Discrete(32), spaces.Discrete(2)))
ROWS = 32


def made(space: Any = SEEN, start: int = 0, **options: Any) -> DQNModule:
    torch.manual_seed(0)
    config = DQNConfig(**{"net_arch": (16, 8), **options})
    module = DQNModule(space, spaces.Discrete(3, start=start), config).double()
    # The target differs from the network, so that none can stand for the other.
    with torch.no_grad():
        for parameter in module.target.parameters():
            parameter.mul_(1.5)
    return module


def experience(module: DQNModule, space: Any = SEEN, *, weighted: bool = False) -> Batch:
    random = numpy.random.default_rng(0)
    observed = batch_space(space, ROWS)
    observed.seed(0)
    columns = {
        "observations": observed.sample(),
        "next_observations": observed.sample(),
        "actions": random.integers(3, size=ROWS) + module.first_action,
        "rewards": random.standard_normal(ROWS) * 3,
        "terminated": random.random(ROWS) < 0.3,
        "truncated": random.random(ROWS) < 0.3,
        "discounts": numpy.where(random.random(ROWS) < 0.5, 0.99, 0.97),
        "indices": numpy.arange(ROWS),
    }
    if weighted:
        columns["weights"] = random.random(ROWS)
        columns["next_action_mask"] = masks = random.random((ROWS, 3)) < 0.7
        masks[:, 0] = True
    return Batch(columns).to(torch.device("cpu"), torch.float64)


def loss_of(module: DQNModule, config: DQNConfig, batch: Any) -> Loss:
    with torch.no_grad():
        batch = batch.with_columns({"targets": td_targets(module, batch)})
    return dqn_loss(module, config, batch, module.forward_train(batch))


def in_torch(module: DQNModule, config: DQNConfig, batch: Batch) -> tuple[Loss, tuple[Tensor, ...]]:
    loss = loss_of(module, config, batch)
    return loss, torch.autograd.grad(loss.value, list(module.network.parameters()))  # type: ignore[arg-type] # a tensor


def check_alike(module: DQNModule, config: DQNConfig, batch: Batch) -> None:
    plain, wanted = in_torch(module, config, batch)
    tape = Tape(list(module.network.parameters()))
    found = loss_of(module, config, tape.batch(batch))
    assert isinstance(found.value, arrays.Array)
    tape.backward(found.value)
    torch.testing.assert_close(arrays.unwrap(found.value).detach(), plain.value.detach())  # type: ignore[union-attr] # a tensor
    for one, other in zip(tape.gradients, wanted, strict=True):
        torch.testing.assert_close(one, other)
    priority = arrays.unwrap(found.rows["priority"].detach())
    torch.testing.assert_close(priority, plain.rows["priority"].detach())
    for name, value in plain.metrics.items():
        assert float(found.metrics[name]) == pytest.approx(value.item()), name


CASES = list(itertools.product(("huber", "mse"), ("relu", "tanh"), (False, True), (False, True)))


@pytest.mark.parametrize(("loss", "activation", "double", "weighted"), CASES)
def test_arrays_give_what_torch_gives(
    loss: str, activation: str, double: bool, weighted: bool
) -> None:
    options: Any = {"loss": loss, "activation": activation, "double": double}
    module = made(**options)
    check_alike(module, DQNConfig(**options), experience(module, weighted=weighted))


@pytest.mark.parametrize(
    "options",
    [
        {"dueling": True},
        {"dueling": True, "double": True},
        {"distributional": True, "v_min": -4.0, "v_max": 4.0},
        {"quantile": True, "n_quantiles": 16, "double": True},
    ],
    ids=str,
)
def test_so_do_other_heads(options: dict[str, Any]) -> None:
    module = made(**options)
    check_alike(module, DQNConfig(**options), experience(module, weighted=True))


@pytest.mark.parametrize("space", [spaces.Discrete(16), TABLE], ids=str)
def test_so_do_observations_and_actions_of_other_kinds(space: Any) -> None:
    module = made(space, start=5)
    check_alike(module, DQNConfig(), experience(module, space))


def test_the_way_back_can_be_gone_twice_and_weighed() -> None:
    module = made()
    tape = Tape(list(module.network.parameters()))
    loss = loss_of(module, DQNConfig(), tape.batch(experience(module)))
    tape.backward(loss.value)
    once = [gradient.clone() for gradient in tape.gradients]
    tape.backward(loss.value, weight=2.0)
    for first, second in zip(once, tape.gradients, strict=True):
        torch.testing.assert_close(2 * first, second)
