"""State: complete, readable by itself, and refused where it does not fit."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import numpy
import pytest
import torch
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ReduceLROnPlateau

from rlplug import Batch, Module
from rlplug.config import Schedule
from rlplug.errors import PluginError, RequestError


def sgd(self: Any, module: Any, config: Any) -> Any:
    return SGD(module.parameters(), lr=config.learning_rate)


class Net(Module):
    """Two networks and dropout, so that every generator takes part."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.actor = torch.nn.Sequential(
            torch.nn.Linear(3, width), torch.nn.Dropout(0.3), torch.nn.Linear(width, 1)
        )
        self.critic = torch.nn.Linear(3, 1)

    def forward_train(self, batch: Any) -> Any:
        return {"a": self.actor(batch["x"]), "v": self.critic(batch["x"])}


def optimizers(self: Any, module: Any) -> Any:
    actor = Adam(module.actor.parameters(), 0.01, fused=True)
    critic = SGD(module.critic.parameters(), 0.1, momentum=0.9)
    plateau = ReduceLROnPlateau(critic, patience=1, factor=0.5)
    return {
        "actor": {"optimizer": actor},
        "critic": {
            "optimizer": critic,
            "lr_scheduler": {
                "scheduler": plateau,
                "monitor": "loss",
                "interval": "step",
                "frequency": 5,
            },
        },
    }


def loss(self: Any, fwd_out: Any) -> Any:
    return (fwd_out["a"] - 1).pow(2).mean() * self.weight + (
        fwd_out["v"] + numpy.random.rand() + random.random()
    ).pow(2).mean()


def additional(self: Any) -> None:
    self.weight *= 1.5


SETTINGS: dict[str, Any] = {
    "weight": 1.0,
    "build": lambda self: Net(),
    "configure_optimizers_for_module": optimizers,
    "compute_loss_for_module": loss,
    "additional_update": additional,
    "save_state": lambda self: {"weight": self.weight},
    "load_state": lambda self, state: setattr(self, "weight", state["weight"]),
    "addons": {
        "curious": {
            "build_extra": lambda self: torch.nn.Linear(3, 1),
            "configure_optimizers_for_module": lambda self, extra: Adam(extra.parameters(), 0.1),
            "compute_loss_for_module": lambda self, extra, batch: extra(batch["x"]).pow(2).mean(),
        }
    },
    "learning": {"max_grad_norm": 0.5},
}


def go_on(learner: Any, updates: int) -> None:
    rows = Batch({"x": torch.randn(12, 3, generator=torch.Generator().manual_seed(5))})
    for _ in range(updates):
        learner.update_from_batch(rows, num_iters=2, minibatch_size=5)


def everything(learner: Any) -> dict[str, Any]:
    found = {name: value.clone() for name, value in learner.modules["default"].state_dict().items()}
    found.update(learner.extra["default"]["curious"].state_dict())
    for name, optimizer in learner.get_optimizers_for_module():
        for index, state in optimizer.state_dict()["state"].items():
            found.update({f"{name}/{index}/{key}": value for key, value in state.items()})
        found[f"{name}/lr"] = optimizer.param_groups[0]["lr"]
    found["weight"] = learner.calls.algorithm.plugin.weight
    found["timestep"] = learner.timestep
    found["updates"] = learner.updates
    return found


def test_state_saved_in_the_middle_and_loaded_elsewhere_goes_on_bit_for_bit(
    make: Any, tmp_path: Any
) -> None:
    first = make(**SETTINGS)
    go_on(first, 4)
    first.save_state(tmp_path / "saved")
    go_on(first, 4)
    second = make(**SETTINGS, seed=9)
    go_on(second, 1)
    second.load_state(tmp_path / "saved")
    go_on(second, 4)
    mine, other = everything(first), everything(second)
    assert mine.keys() == other.keys()
    for name, value in mine.items():
        same = torch.equal(value, other[name]) if torch.is_tensor(value) else value == other[name]
        assert same, name
    assert mine["critic/lr"] < 0.1
    assert mine["weight"] == 1.5**8


def test_a_plugin_attribute_that_changes_without_save_state_is_found(make: Any) -> None:
    known = {**SETTINGS, "save_state": None, "load_state": None}
    with pytest.raises(PluginError, match="changed its attribute 'weight' during an update"):
        go_on(make(**known), 1)


def test_frozen_and_added_modules_come_back_with_the_state(
    make: Any, batch: Any, tmp_path: Any
) -> None:
    learner = make()
    learner.add_module("rival", like="default", trainable=False)
    learner.modules_to_train = {"default"}
    learner.save_state(tmp_path)
    fresh = make()
    fresh.load_state(tmp_path)
    assert list(fresh.modules) == ["default", "rival"]
    assert not fresh.can_module_be_updated("rival", batch(1.0))
    assert fresh.modules_to_train == {"default"}


def test_turns_go_on_where_they_were(make: Any, batch: Any) -> None:
    def ring(self: Any, module: Any) -> Any:
        return (
            {"optimizer": SGD([module.weight], lr=1.0), "frequency": 2},
            {"optimizer": SGD([module.other], lr=1.0), "frequency": 1},
        )

    def both(self: Any, fwd_out: Any) -> Any:
        return fwd_out["out"].sum() + fwd_out["second"].sum()

    learner = make(configure_optimizers_for_module=ring, compute_loss_for_module=both)
    learner.update({"default": batch(0.5)}, timestep=1, num_iters=2)
    fresh = make(configure_optimizers_for_module=ring, compute_loss_for_module=both)
    fresh.set_state(learner.get_state())
    fresh.update({"default": batch(0.5)}, timestep=2)
    assert fresh.modules["default"].other.item() == 1.5
    assert fresh.modules["default"].weight.item() == 1.0


def test_a_state_in_memory_stays_what_it_was(make: Any) -> None:
    learner, fresh = make(**SETTINGS), make(**SETTINGS)
    go_on(learner, 1)
    saved = learner.get_state()
    then = copy.deepcopy(everything(learner))
    go_on(learner, 1)
    fresh.set_state(saved)
    for name, value in everything(fresh).items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(then[name])), name


def test_how_long_an_optimizer_has_waited_for_a_loss_is_remembered(make: Any, batch: Any) -> None:
    def pair(self: Any, module: Any) -> Any:
        return {"used": SGD([module.weight], lr=0.0), "idle": SGD([module.other], lr=0.0)}

    learner, fresh = (make(configure_optimizers_for_module=pair) for _ in range(2))
    learner.update({"default": batch(1.0)}, timestep=1, num_iters=600)
    fresh.set_state(learner.get_state())
    fresh.update({"default": batch(1.0)}, timestep=2, num_iters=399)
    with pytest.raises(PluginError, match=r"optimizer 'idle' .* got no loss in 1000 minibatches"):
        fresh.update({"default": batch(1.0)}, timestep=3)


def test_weights_travel_as_numpy_arrays(make: Any) -> None:
    learner, other = make(), make()
    weights = learner.get_module_state()
    assert isinstance(weights["default"]["weight"], numpy.ndarray)
    weights["default"]["weight"][:] = 7
    other.set_module_state(weights)
    assert other.modules["default"].weight.item() == 7.0
    assert learner.modules["default"].weight.item() == 2.0


def test_state_of_another_shape_is_refused(make: Any) -> None:
    wide = make(**{**SETTINGS, "build": lambda self: Net(8)})
    with pytest.raises(RequestError, match=r"size mismatch for actor\.0\.weight"):
        make(**SETTINGS).set_state(wide.get_state())


@pytest.mark.parametrize("part", ["modules", "extra", "optimizers"])
def test_a_state_that_is_refused_changes_nothing(make: Any, part: str) -> None:
    learner, fresh = make(**SETTINGS, ids=("default", "b")), make(**SETTINGS, ids=("default", "b"))
    learner.update_from_batch(Batch({"x": torch.ones(4, 3)}))
    saved = learner.get_state()
    saved[part]["b"] = {}
    then = copy.deepcopy(everything(fresh))
    with pytest.raises(RequestError, match="module 'b'"):
        fresh.set_state(saved)
    for name, value in everything(fresh).items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(then[name])), name


def test_state_of_another_plugin_version_is_refused(make: Any) -> None:
    state = make().get_state()
    state["plugins"]["alg"] = "rlplug-alg 9.0"
    with pytest.raises(RequestError, match=r"plugin 'alg' as rlplug-alg 9\.0") as raised:
        make().set_state(state)
    assert "pip install rlplug-alg==9.0" in str(raised.value)


def test_state_with_other_optimizers_is_refused(make: Any) -> None:
    def named(self: Any, module: Any) -> Any:
        return {"mine": SGD(module.parameters(), lr=1.0)}

    state = make(configure_optimizers_for_module=named).get_state()
    with pytest.raises(
        RequestError, match=r"has optimizers \['mine'\] in the state, \['default'\] here"
    ):
        make().set_state(state)


@pytest.mark.parametrize("name", ["state.json", "tensors-*.safetensors"])
def test_a_truncated_file_is_refused(make: Any, tmp_path: Any, name: str) -> None:
    make().save_state(tmp_path)
    (path,) = tmp_path.glob(name)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(RequestError, match="cannot be read"):
        make().load_state(tmp_path)


def test_a_folder_without_state_is_refused(make: Any, tmp_path: Any) -> None:
    with pytest.raises(RequestError, match="there is no saved state"):
        make().load_state(tmp_path / "elsewhere")


def test_a_state_is_saved_in_the_home_folder_that_is_meant(
    make: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(elsewhere)
    learner = make()
    learner.save_state("~/mine")
    learner.load_state("~/mine")
    assert (home / "mine" / "state.json").is_file()
    for call in (learner.save_state, learner.load_state):
        with pytest.raises(RequestError, match="'~nobody-here/x' begins with the home folder of a"):
            call("~nobody-here/x")
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("file", "File exists"),
        ("file/below", "Not a directory"),
        ("a" * 5000, "File name too long"),
        ("a\0b", "null byte"),
    ],
    ids=["file", "below", "long", "null"],
)
def test_where_no_state_can_be_is_told(make: Any, tmp_path: Any, place: str, reason: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RequestError, match=reason) as told:
        make().save_state(f"{tmp_path}/{place}")
    assert f"the state cannot be saved in {tmp_path}/{place}: " in str(told.value)
    with pytest.raises(RequestError) as told:
        make().load_state(f"{tmp_path}/{place}")
    assert f"saved state {'at ' if 'file' in place else ''}{tmp_path}/{place}" in str(told.value)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_second_save_replaces_the_first_and_leaves_nothing_behind(
    make: Any, batch: Any, tmp_path: Any
) -> None:
    learner = make()
    learner.save_state(tmp_path)
    learner.update({"default": batch(1.0)}, timestep=1)
    learner.save_state(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    index = json.loads((tmp_path / "state.json").read_text())
    assert (tmp_path / index["tensors"]).exists()
    fresh = make()
    fresh.load_state(tmp_path)
    assert fresh.modules["default"].weight.item() == learner.modules["default"].weight.item()


def test_plugin_state_that_cannot_be_written_is_refused_by_its_place(
    make: Any, tmp_path: Any
) -> None:
    learner = make(save_state=lambda self: {"parts": [object()]})
    with pytest.raises(RequestError, match="state at plugin_states/alg/parts/0 is object"):
        learner.save_state(tmp_path)


def test_a_state_without_a_module_names_it_and_changes_nothing(make: Any, batch: Any) -> None:
    alone, both = make(ids=("a",)), make(ids=("a", "b"))
    alone.update({"a": batch(1.0)}, timestep=7)
    with pytest.raises(RequestError, match="has no module 'b'") as raised:
        both.set_state(alone.get_state())
    assert "remove_module('b')" in str(raised.value)
    assert both.timestep == 0
    assert both.modules["a"].weight.item() == 2.0
    assert list(both.modules) == ["a", "b"]


def test_all_modules_are_trained_again_by_a_state_that_trained_all(make: Any) -> None:
    learner = make(ids=("a", "b"))
    saved = learner.get_state()
    learner.modules_to_train = {"a"}
    learner.set_state(saved)
    assert learner.modules_to_train is None


def test_options_of_one_module_come_back_with_the_state(
    make: Any, batch: Any, tmp_path: Any
) -> None:
    def scaled(self: Any, fwd_out: Any, config: Any) -> Any:
        return fwd_out["out"].mean() * config.scale

    learner = make(ids=("a", "b"), compute_loss_for_module=scaled)
    learner.set_options("b", {"scale": 10.0})
    learner.save_state(tmp_path)
    fresh = make(ids=("a", "b"), compute_loss_for_module=scaled)
    fresh.set_options("a", {"scale": 7.0})
    fresh.load_state(tmp_path)
    found = fresh.update({"a": batch(1.0), "b": batch(1.0)}, timestep=1)
    assert [float(found[name]["loss"]) for name in ("a", "b")] == [2.0, 20.0]


def test_the_state_of_an_adam_is_refused_by_an_sgd(make: Any, batch: Any) -> None:
    def adam(self: Any, module: Any) -> Any:
        return torch.optim.Adam(module.parameters(), lr=0.1)

    learner, other = make(configure_optimizers_for_module=adam), make()
    learner.update({"default": batch(1.0)}, timestep=1)
    with pytest.raises(RequestError, match="for module 'default' is a SGD here"):
        other.set_state(learner.get_state())
    with pytest.raises(RequestError, match="is a SGD here"):
        other.set_optimizer_state(learner.get_optimizer_state())
    assert other.timestep == 0


def test_states_of_optimizers_travel_by_themselves(make: Any, batch: Any) -> None:
    def momentum(self: Any, module: Any) -> Any:
        return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)

    learner, other = (make(configure_optimizers_for_module=momentum) for _ in range(2))
    learner.update({"default": batch(1.0)}, timestep=1)
    other.set_optimizer_state(learner.get_optimizer_state(["default"]))
    other.update({"default": batch(1.0)}, timestep=1)
    # The second step of momentum 0.9 on a gradient of 1 is 1.9 long.
    assert other.modules["default"].weight.item() == pytest.approx(2 - 0.19)


def test_modules_that_are_no_torch_modules_are_left_out_or_bring_their_state(make: Any) -> None:
    class Dice:
        """Acts, and has nothing to save."""

    class Counter:
        """Has a state of its own."""

        n = 0

        def state_dict(self) -> dict[str, Any]:
            return {"n": self.n}

        def load_state_dict(self, state: Any) -> None:
            self.n = state["n"]

    first, second = (make(modules={"dice": Dice(), "counter": Counter()}) for _ in range(2))
    first.modules["counter"].n = 5
    second.set_state(first.get_state())
    assert second.modules["counter"].n == 5
    assert set(second.get_module_state()) == {"default"}
    assert second.weight_digests() == first.weight_digests() != {}
    without = make()
    without.set_optimizer_state(without.get_state()["optimizers"])
    before = without.weight_digests()
    with pytest.raises(RequestError, match="has module 'counter', which the learner lacks") as told:
        without.set_state(first.get_state())
    assert told.value.hints == ("try: learner.add_module('counter', module=…) before",)
    assert (without.weight_digests(), list(without.modules)) == (before, ["default"])
    with pytest.raises(RequestError, match="'dice' is a Dice"):
        second.get_module_state(["dice"])


def test_modules_of_another_shape_are_rebuilt_where_that_is_asked_for(
    make: Any, tmp_path: Any
) -> None:
    class Wide(Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(width))

        def forward_train(self, batch: Any) -> Any:
            return {"out": batch["x"] * self.weight.sum()}

    known = {"build": lambda self, config: Wide(int(config.scale))}
    saved = make(**known, options={"scale": 3.0})
    saved.save_state(tmp_path)
    learner = make(**known, options={"scale": 2.0})
    with pytest.raises(RequestError, match="size mismatch for weight"):
        learner.load_state(tmp_path)
    learner.load_state(tmp_path, rebuild=True)
    assert learner.modules["default"].weight.shape == (3,)
    learner.update({"default": Batch({"x": torch.ones(1)})}, timestep=1)
    assert learner.modules["default"].weight.sum().item() == pytest.approx(3 - 0.3)


@pytest.mark.parametrize("how", ["state", "optimizer state"])
def test_a_scheduled_learning_rate_goes_on_after_a_state_was_loaded(
    make: Any, batch: Any, how: str
) -> None:
    known = {
        "options": {"learning_rate": Schedule([[0, 0.5], [50, 0.0]])},
        "configure_optimizers_for_module": sgd,
    }
    learner, fresh = make(**known), make(**known)
    learner.update({"default": batch(1.0)}, timestep=20)
    if how == "state":
        fresh.set_state(learner.get_state())
    else:
        fresh.set_optimizer_state(learner.get_optimizer_state())
    for one in (learner, fresh):
        rates = [
            one.update({"default": batch(1.0)}, timestep=step)["default"]["learning_rate"]
            for step in (30, 40, 50)
        ]
        assert rates == pytest.approx([0.2, 0.1, 0.0])


@pytest.mark.parametrize("name", ["state.json", "tensors"])
def test_a_folder_in_place_of_a_file_is_refused(make: Any, tmp_path: Any, name: str) -> None:
    learner = make()
    learner.save_state(tmp_path)
    (path,) = tmp_path.glob(f"{name}*")
    path.unlink()
    path.mkdir()
    with pytest.raises(RequestError, match="cannot be read"):
        learner.load_state(tmp_path)
