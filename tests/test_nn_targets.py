"""Target networks follow exactly when they should, and their clock survives."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from rlplug.errors import RequestError
from rlplug.nn import FixedTarget, PolyakTarget, TargetNetwork


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))


def change(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    model(torch.randn(8, 2))


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_a_fixed_target_is_copied_exactly_at_its_interval_buffers_included() -> None:
    model = network()
    target = FixedTarget(3).init(model)
    first = state(model)
    for update in range(1, 8):
        change(model)
        assert target.update() is (update % 3 == 0)
        if update % 3 == 0:
            first = state(model)
        assert same(state(target.model), first)
    assert state(target.model)["1.num_batches_tracked"].item() == 6


def test_a_fixed_target_in_steps_is_copied_by_the_first_update_beyond_each_multiple() -> None:
    target = FixedTarget(10, "step").init(network())
    assert [target.update(step) for step in (4, 8, 12, 16, 20, 45, 48)] == [
        False,
        False,
        True,
        False,
        True,
        True,
        False,
    ]


def test_a_polyak_target_moves_by_its_rate_and_copies_buffers() -> None:
    model = network()
    target = PolyakTarget(0.25).init(model)
    before = state(target.model)
    change(model)
    target.update()
    expected = 0.75 * before["0.weight"] + 0.25 * model.state_dict()["0.weight"]
    torch.testing.assert_close(state(target.model)["0.weight"], expected)
    for buffer in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(state(target.model)[buffer], model.state_dict()[buffer])
    copied = PolyakTarget(1.0, update_frequency=2).init(model)
    change(model)
    assert [copied.update() for _ in range(4)] == [False, True, False, True]
    assert same(state(copied.model), state(model))


@pytest.mark.parametrize("target", [FixedTarget(2), PolyakTarget(0.1)])
def test_a_target_has_no_gradients_and_is_not_trained(target: TargetNetwork) -> None:
    target.init(nn.Linear(2, 2))
    assert not target(torch.ones(1, 2)).requires_grad
    assert not any(parameter.requires_grad for parameter in target.parameters())


class Pair(nn.Module):
    """A network and its target in one module, as a plugin has them."""

    def __init__(self) -> None:
        super().__init__()
        self.q = network()
        self.target = FixedTarget(3).init(self.q)


def test_the_network_is_saved_once_and_the_target_and_its_clock_with_it() -> None:
    names = set(Pair().state_dict())
    assert {"q.0.weight", "target.model.0.weight", "target.clock"} <= names
    assert not any("source" in name for name in names)


def test_a_resumed_target_copies_when_it_would_have() -> None:
    pair, resumed = Pair(), Pair()
    pair.target.update()
    pair.target.update()
    resumed.target.update()
    resumed.load_state_dict(pair.state_dict())
    assert resumed.target.update() is True
    assert same(state(resumed.target.model), state(resumed.q))


def test_a_copy_of_a_module_has_a_target_that_follows_the_copy() -> None:
    pair = Pair()
    other = copy.deepcopy(pair)
    change(other.q)
    other.target.copy()
    assert same(state(other.target.model), state(other.q))
    assert not same(state(pair.target.model), state(other.q))


def test_a_target_in_steps_is_not_updated_without_a_timestep() -> None:
    with pytest.raises(RequestError, match="without a timestep"):
        FixedTarget(1, "step").init(network()).update()
