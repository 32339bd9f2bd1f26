"""Arguments by hand that a learner honours, or refuses by what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

import rlplug
from rlplug.errors import RequestError
from rlplug.optim.forms import read_forms

SPACES = OBSERVATIONS, ACTIONS = Box(-1.0, 1.0, (4,)), Discrete(2)
TWO = {"a": SPACES, "b": SPACES}


def build(**how: Any) -> Any:
    return rlplug.build_learner("dqn", OBSERVATIONS, ACTIONS, **how)


def said(call: Callable[[], object]) -> str:
    """The message of the error with which a call is refused."""
    with pytest.raises(RequestError) as raised:
        call()
    return str(raised.value)


# -- options of build_learner --------------------------------------------------------------------


@pytest.mark.parametrize(("given", "wanted"), [(["a"], {"a"}), (["*"], None), (["b*"], {"b"})])
def test_build_learner_honours_modules_to_train(given: list[str], wanted: Any) -> None:
    learner = rlplug.build_learner(
        "dqn", modules=TWO, options={"learner.modules_to_train": given, "net_arch": [4]}
    )
    assert learner.modules_to_train == wanted
    trained = [one for one in "ab" if learner.can_module_be_updated(one)]
    assert trained == sorted(wanted or "ab")


def test_build_learner_honours_options_of_single_modules() -> None:
    learner = rlplug.build_learner(
        "dqn", modules=TWO, options={"modules.a.learning_rate": 0.5, "net_arch": [4]}
    )
    rates = [learner.get_optimizer(one).param_groups[0]["lr"] for one in "ab"]
    assert rates[0] == 0.5 != rates[1]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("learner.modules_to_train", ["z"], "'z' is no module"),
        ("modules.z.gamma", 0.5, "options names module 'z', which is not built"),
        ("learner.on_divergence", "stop", "learner.on_divergence   is for runs"),
        ("learner.trace_hooks", True, "learner.trace_hooks   is for runs"),
    ],
)
def test_build_learner_refuses_options_without_effect(
    option: str, value: Any, message: str
) -> None:
    text = said(
        lambda: rlplug.build_learner("dqn", modules=TWO, options={option: value, "net_arch": [4]})
    )
    assert message in text
    assert "a, b" in text or "is for runs" in text


@pytest.mark.parametrize("addons", ["rnd", None, 3, {"rnd": {}}])
def test_addons_that_are_no_list_are_refused(addons: Any) -> None:
    text = said(lambda: build(addons=addons))
    assert f"addons must be a list of names or instances, got {addons!r}." in text
    assert ("try: addons=['rnd']" in text) == (addons == "rnd")


def test_a_seed_of_numpy_is_taken() -> None:
    assert build(seed=numpy.int64(3), options={"net_arch": [4]}).seed == 3


# -- options of one module -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (None, "are a NoneType, not a mapping"),
        ([], "are a list, not a mapping"),
        ("x", "are a str, not a mapping"),
        ({3: 1}, "are by name, found 3"),
    ],
)
def test_options_of_a_wrong_kind_are_refused_wherever_they_are_given(
    make: Any, options: Any, message: str
) -> None:
    learner = make()
    space = Box(-1, 1, (1,))
    assert message in said(lambda: learner.set_options("default", options))
    assert message in said(lambda: build(module_options={"default": options}))
    if options is not None:
        assert message in said(lambda: learner.add_module("q", (space, space), options=options))
        assert message in said(lambda: build(options=options))
    assert list(learner.modules) == ["default"]


@pytest.mark.parametrize("name", [3, [1]])
def test_options_of_a_plugin_by_no_name_are_refused(make: Any, name: Any) -> None:
    text = said(lambda: make().set_options("default", {}, name))
    assert f"plugin {name!r} takes no part here" in text


# -- truth values and counts ---------------------------------------------------------------------


@pytest.mark.parametrize("value", ["False", "no", 0, None])
def test_what_is_no_truth_value_is_refused(make: Any, value: Any, tmp_path: Any) -> None:
    learner = make()
    calls = {
        "trainable": lambda: learner.add_module("b", like="default", trainable=value),
        "rebuild": lambda: learner.set_state(learner.get_state(), rebuild=value),
    }
    for name, call in calls.items():
        assert f"{name} is {value!r}." in said(call)
    assert list(learner.modules) == ["default"]
    learner.save_state(tmp_path / "state")
    assert "rebuild is" in said(lambda: learner.load_state(tmp_path / "state", rebuild=value))


def test_truth_values_of_numpy_are_taken(make: Any) -> None:
    learner = make()
    learner.add_module("b", like="default", trainable=numpy.bool_(False))
    assert learner.members["b"].trainable is False


def test_counts_of_numpy_are_taken_for_a_frequency() -> None:
    param = nn.Parameter(torch.ones(1))
    optimizer = SGD([param], lr=0.1)
    scheduler = {"scheduler": StepLR(optimizer, 1), "frequency": numpy.int64(3)}
    (plan,) = read_forms(
        {"optimizer": optimizer, "frequency": numpy.int64(2), "lr_scheduler": scheduler}, "a test"
    )
    found = plan.frequency, plan.schedulers[0].every
    assert found == (2, 3)
    assert [type(one) for one in found] == [int, int]


# -- modules that are given ----------------------------------------------------------------------


class Dice:
    """A module that is none of torch."""

    def __init__(self) -> None:
        self.n = 0

    def state_dict(self) -> dict[str, int]:
        return {"n": self.n}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.n = state["n"]


def test_modules_that_compute_nothing_for_a_loss_are_refused_where_one_is_needed(
    make: Any, batch: Any
) -> None:
    learner = make()
    learner.add_module("dice", module=Dice())
    both = {"default": batch(1.0), "dice": batch(1.0)}
    assert "module 'dice' is a Dice, which has no forward_train" in said(
        lambda: learner.forward_train(both)
    )
    assert learner.update(both, timestep=1)["dice"] == {}
    learner.add_module("lin", module=nn.Linear(3, 1))
    before = learner.get_module_state()
    both["lin"] = batch(1.0)
    assert "module 'lin' is a Linear, which has no forward_train" in said(
        lambda: learner.update(both, timestep=9)
    )
    assert learner.timestep == 1
    assert all((one == before["default"][n]).all() for n, one in _weights(learner).items())
    # One that is not trained has no loss.
    learner.modules_to_train = {"default"}
    learner.update(both, timestep=9)


def _weights(learner: Any) -> Any:
    return learner.get_module_state(["default"])["default"]


def test_a_class_in_place_of_a_module_is_refused(make: Any) -> None:
    learner = make()
    assert "module 'cls' is the class Dice.\n  try: module=Dice(…)" in said(
        lambda: learner.add_module("cls", module=Dice)
    )
    assert "'cls' is the class Dice" in said(lambda: make(modules={"cls": Dice}))
    assert list(learner.modules) == ["default"]


def test_a_module_like_one_that_was_given_needs_its_spaces_and_its_kind(make: Any) -> None:
    learner = make()
    learner.add_module("dice", module=Dice())
    assert "module 'dice' has no spaces to build another one like it" in said(
        lambda: learner.add_module("d2", like="dice")
    )
    learner.add_module("d2", like="dice", module=Dice())
    text = said(lambda: learner.add_module("lin", like="default", module=nn.Linear(3, 1)))
    assert "module 'lin', a Linear, cannot be like 'default', a Weight" in text
    assert list(learner.modules) == ["default", "dice", "d2"]


# -- step by step --------------------------------------------------------------------------------


def test_losses_are_refused_by_what_they_are(make: Any, batch: Any) -> None:
    learner = make()
    batches = {"default": batch(1.0)}
    losses = learner.compute_loss(learner.forward_train(batches), batches)
    assert "no module 'zz'" in said(lambda: learner.compute_gradients({"zz": losses["default"]}))
    learner.compute_gradients(losses)


def test_gradients_of_the_same_losses_are_refused() -> None:
    learner = build(options={"net_arch": [4]})
    batches = learner.prepare_batches({"default": _rows()})
    losses = learner.compute_loss(learner.forward_train(batches), batches)
    gradients = learner.compute_gradients(losses)
    assert "were computed before" in said(lambda: learner.compute_gradients(losses))
    text = said(lambda: learner.filter_param_dict_for_optimizer(gradients, 3))
    assert "filtered for is a int, not a torch optimizer" in text
    text = said(lambda: learner.filter_param_dict_for_optimizer(3, learner.get_optimizer()))
    assert "gradients are a int, not a mapping" in text


def _rows() -> rlplug.Batch:
    columns = {name: numpy.ones((2, 4), "f") for name in ("observations", "next_observations")}
    columns |= {name: numpy.zeros(2, bool) for name in ("terminated", "truncated")}
    columns |= {"actions": numpy.zeros(2, int), "rewards": numpy.ones(2, "f")}
    return rlplug.Batch(columns)


def test_outputs_and_batches_of_a_wrong_kind_are_refused(make: Any, batch: Any) -> None:
    learner, batches = make(), {"default": batch(1.0)}
    told = "the outputs of module 'default' are a int, not a mapping"
    assert told in said(lambda: learner.compute_loss({"default": 3}, batches))
    fwd_out = learner.forward_train(batches)["default"]
    text = said(lambda: learner.compute_loss_for_module("default", fwd_out, 3))
    assert "'default' is a int" in text


def test_parameters_that_are_none_are_refused(make: Any) -> None:
    learner = make(configure_optimizers_for_module=lambda self: None)
    optimizer = SGD(learner.modules["default"].parameters(), lr=0.1)
    text = said(lambda: learner.register_optimizer("default", "n", optimizer, params=3))
    assert "optimizer 'n' of module 'default' was made from other parameters" in text


def test_functions_that_cannot_choose_modules_are_refused(make: Any, batch: Any) -> None:
    learner = make()

    def choose(by: Any) -> None:
        learner.modules_to_train = by

    text = said(lambda: choose(lambda module_id: True))
    assert "modules_to_train is a function that cannot be called with a module id and" in text
    assert learner.modules_to_train is None
    for answer in (numpy.ones(3), None, "no", torch.ones(2)):
        choose(lambda module_id, batch, answer=answer: answer)
        text = said(lambda: learner.update({"default": batch(1.0)}, timestep=3))
        assert "the function modules_to_train gave for module 'default' is" in text
    assert learner.timestep == 0
    for answer in (True, numpy.bool_(True), torch.tensor(True)):
        choose(lambda module_id, batch, answer=answer: answer)
        assert "loss" in learner.update({"default": batch(1.0)}, timestep=3)["default"]
