"""Targets and losses on arrays have the numbers and gradients that they have in torch."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from rlplug_sac import SACConfig, SACModule, TD3Config, TD3Module
from rlplug_sac.losses import sac_loss, sac_targets, td3_loss, td3_targets

from rlplug import Batch, Loss

arrays = pytest.importorskip("rlplug.nn.arrays.array")
Tape = pytest.importorskip("rlplug.nn.arrays.tape").Tape

SEEN = spaces.Box(-1, 1, (4,), numpy.float32)
TABLE = spaces.Tuple((spaces.Discrete(32), spaces.Discrete(2)))
UNIT = spaces.Box(-1, 1, (2,), numpy.float32)
WIDE = spaces.Box(-2, 6, (2,), numpy.float32)
FOUR = spaces.Discrete(4, start=2)
NAMES = ("critic", "actor", "temperature")
ROWS = 32


def sac(seen: Any, actions: Any, **options: Any) -> SACModule:
    torch.manual_seed(0)
    return SACModule(seen, actions, SACConfig(**{"net_arch": (16, 8), **options})).double()


def td3(seen: Any, actions: Any, **options: Any) -> TD3Module:
    torch.manual_seed(0)
    return TD3Module(seen, actions, TD3Config(**{"net_arch": (16, 8), **options})).double()


def experience(seen: Any, actions: Any, *, masked: bool = False) -> Batch:
    random = numpy.random.default_rng(0)
    observed, acted = batch_space(seen, ROWS), batch_space(actions, ROWS)
    observed.seed(0)
    acted.seed(0)
    columns = {
        "observations": observed.sample(),
        "next_observations": observed.sample(),
        "actions": acted.sample(),
        "rewards": random.standard_normal(ROWS) * 3,
        "terminated": random.random(ROWS) < 0.3,
        "truncated": random.random(ROWS) < 0.3,
        "discounts": numpy.where(random.random(ROWS) < 0.5, 0.99, 0.97),
        "noise": random.standard_normal((ROWS, 2)),
        "next_noise": random.standard_normal((ROWS, 2)),
    }
    if masked:
        for name in ("action_mask", "next_action_mask"):
            columns[name] = random.random((ROWS, 4)) < 0.6
            columns[name][:, 1] = True
    return Batch(columns).to(torch.device("cpu"), torch.float64)


def loss_of(module: Any, batch: Any) -> Loss:
    """The loss after `prepare_batch`, as the hooks compute it."""
    if isinstance(module, TD3Module):
        with torch.no_grad():
            targets = td3_targets(module, batch, 0.99, 0.1 * batch["next_noise"])
        batch = batch.with_columns({"targets": targets})
        loss = td3_loss(module, batch, module.forward_train(batch), NAMES)
        assert loss is not None
        return loss
    with torch.no_grad():
        noise = None if module.box is None else batch["next_noise"]
        batch = batch.with_columns({"targets": sac_targets(module, batch, 0.99, noise)})
    return sac_loss(module, batch, module.forward_train(batch), NAMES)


def check_alike(module: Any, batch: Batch) -> None:
    # The targets differ from the networks, so that none can stand for the other.
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "target" in name:
                parameter.mul_(1.5)
    params = [one for one in module.parameters() if one.requires_grad]
    places = {id(one): place for place, one in enumerate(params)}
    own = {"critic": list(module.critics.parameters()), "actor": list(module.actor.parameters())}
    if isinstance(module, SACModule) and module.log_ent_coef is not None:
        own["temperature"] = [module.log_ent_coef]
    plain: Any = loss_of(module, batch)
    tape = Tape(params)
    with tape:
        found: Any = loss_of(module, tape.batch(batch))
        assert plain.value.keys() == found.value.keys() == own.keys()
        for name, value in plain.value.items():
            assert isinstance(found.value[name], arrays.Array), name
            assert found.value[name].item() == pytest.approx(value.item()), name
            wanted = torch.autograd.grad(value, own[name], retain_graph=True)
            tape.backward(found.value[name], wanted=[places[id(one)] for one in own[name]])
            for param, theirs in zip(own[name], wanted, strict=True):
                torch.testing.assert_close(tape.gradients[places[id(param)]], theirs)
        for name, value in plain.metrics.items():
            assert float(found.metrics[name]) == pytest.approx(float(value)), name


@pytest.mark.parametrize("activation", ["relu", "tanh", "silu"])
@pytest.mark.parametrize("actions", [UNIT, WIDE], ids=["unit", "wide"])
@pytest.mark.parametrize("make", [sac, td3])
def test_arrays_give_what_torch_gives(make: Any, actions: Any, activation: str) -> None:
    options = {"policy_delay": 1} if make is td3 else {}
    module = make(SEEN, actions, activation=activation, **options)
    check_alike(module, experience(SEEN, actions))


@pytest.mark.parametrize("options", [{}, {"ent_coef": 0.3}, {"target_entropy": -7.5}], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_so_do_discrete_actions(options: dict[str, Any], masked: bool) -> None:
    check_alike(sac(SEEN, FOUR, **options), experience(SEEN, FOUR, masked=masked))


@pytest.mark.parametrize("make", [sac, td3])
def test_so_do_observations_of_other_kinds(make: Any) -> None:
    options = {"policy_delay": 1} if make is td3 else {}
    check_alike(make(TABLE, WIDE, **options), experience(TABLE, WIDE))
