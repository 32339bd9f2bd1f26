"""Which states of optimizers fit: those of the same kind, whose moments have the right shapes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from rlplug import Module
from rlplug.errors import PluginError, RequestError


class Row(Module):
    """A row of weights, of which each learner has as many as it is told."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.row = nn.Parameter(torch.ones(size))

    def forward_train(self, batch: Any) -> Any:
        return {"out": batch["x"] * self.row.sum(), "second": batch["x"]}


def learner(make: Any, kind: str = "Adam", size: int = 3, **settings: Any) -> Any:
    """A learner with one optimizer of torch, which has made its first step."""

    def optimizer(self: Any, module: Any) -> Any:
        return getattr(torch.optim, kind)(module.parameters(), lr=0.1, **settings)

    return make(build=lambda self: Row(size), configure_optimizers_for_module=optimizer)


def stepped(one: Any, batch: Any) -> Any:
    one.update({"default": batch(1.0, 2.0)}, timestep=1)
    return one


def moments(one: Any) -> Any:
    return copy.deepcopy(one.get_optimizer_state())


@pytest.mark.parametrize("settings", [{}, {"fused": True}, {"amsgrad": True}])
@pytest.mark.parametrize("size", [2, 40])
def test_moments_of_another_shape_are_refused(
    make: Any, batch: Any, settings: Any, size: int
) -> None:
    other = stepped(learner(make, size=size, **settings), batch)
    one = stepped(learner(make, **settings), batch)
    before = moments(one)
    with pytest.raises(RequestError) as raised:
        one.set_optimizer_state(moments(other))
    said = f"of optimizer 'default' of module 'default' has shape ({size},) there, (3,) here"
    assert said in raised.value.message
    assert str(moments(one)) == str(before)
    saved = one.get_state()
    saved["optimizers"] = other.get_state()["optimizers"]
    with pytest.raises(RequestError, match="has shape"):
        learner(make, **settings).set_state(saved)


@pytest.mark.parametrize("damage", ["gone", None, [], {}, 3, torch.ones(2)])
@pytest.mark.parametrize("name", ["step", "exp_avg"])
def test_moments_that_are_none_are_refused(make: Any, batch: Any, name: str, damage: Any) -> None:
    one = stepped(learner(make), batch)
    saved = moments(one)
    if damage == "gone":
        del saved["default"]["default"]["state"][0][name]
    else:
        saved["default"]["default"]["state"][0][name] = damage
    with pytest.raises(RequestError, match=f"'{name}'.* there"):
        one.set_optimizer_state(saved)


KINDS = ("Adam", "AdamW", "Adamax", "RAdam", "NAdam", "SGD", "RMSprop", "Adagrad", "Adadelta")


@pytest.mark.parametrize("here", KINDS)
@pytest.mark.parametrize("there", KINDS)
def test_only_states_of_the_same_kind_are_loaded(
    make: Any, batch: Any, there: str, here: str
) -> None:
    saved = stepped(learner(make, there), batch).get_state()
    one = learner(make, here)
    if there == here:
        one.set_state(saved)
        stepped(one, batch)
        return
    with pytest.raises(RequestError, match="optimizer 'default' of module 'default'"):
        one.set_state(saved)
    assert one.modules["default"].row.tolist() == [1.0, 1.0, 1.0]


def test_moments_that_only_some_settings_have_are_expected_of_those(make: Any, batch: Any) -> None:
    with_momentum = stepped(learner(make, "SGD", momentum=0.9), batch)
    plain = learner(make, "SGD")
    plain.set_optimizer_state(moments(with_momentum))
    # As in torch, the settings come with the state.
    assert plain.get_optimizer().param_groups[0]["momentum"] == 0.9
    saved = moments(with_momentum)
    saved["default"]["default"]["state"][0]["momentum_buffer"] = torch.ones(7)
    with pytest.raises(RequestError, match=r"'momentum_buffer' .* shape \(7,\) there, \(3,\) here"):
        plain.set_optimizer_state(saved)


def test_states_before_the_first_step_are_loaded(make: Any, batch: Any) -> None:
    one = stepped(learner(make), batch)
    one.set_optimizer_state(moments(learner(make)))
    assert not one.get_optimizer().state


def test_weights_are_refused_before_those_of_another_module_are_loaded(make: Any) -> None:
    one = make(ids=("a", "b"))
    weights = one.get_module_state()
    weights["a"]["weight"] += 5
    weights["b"]["weight"] = torch.zeros(7)
    with pytest.raises(RequestError, match="of module 'b' has shape"):
        one.set_module_state(weights)
    assert one.modules["a"].weight.tolist() == [2.0]


def test_an_update_refused_for_what_is_not_saved_is_refused_again(make: Any, batch: Any) -> None:
    def counting(self: Any, fwd_out: Any) -> Any:
        self.count = getattr(self, "count", 0) + 1
        return fwd_out["out"].mean()

    one = make(compute_loss_for_module=counting)
    for _ in range(2):
        with pytest.raises(PluginError, match="changed its attribute 'count'"):
            one.update({"default": batch(1.0)}, timestep=50)
        assert (one.timestep, one.updates) == (0, 0)
