"""State: complete, readable by itself, and refused where it does not fit."""

from __future__ import annotations

import copy
import random
import re
from typing import Any

import numpy
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ReduceLROnPlateau

import rlplug
from rlplug import Module
from rlplug.errors import RequestError
from tests.learner.small import SPACES, batch, make, update


class Net(Module):
    """Two networks and dropout, so that every generator takes part."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        hidden = nn.Linear(1, width)
        self.actor = nn.Sequential(hidden, nn.Dropout(0.3), nn.Linear(width, 1))
        self.critic = nn.Linear(1, 1)

    def forward_train(self, batch: Any) -> Any:
        x = batch["x"][:, None]
        return {"a": self.actor(x), "v": self.critic(x)}


def optimizers(self: Any, module: Any) -> Any:
    critic = SGD(module.critic.parameters(), 0.1, momentum=0.9)
    plateau = ReduceLROnPlateau(critic, patience=1, factor=0.5)
    config = {"scheduler": plateau, "monitor": "loss", "interval": "step", "frequency": 5}
    return {
        "actor": {"optimizer": Adam(module.actor.parameters(), 0.01, fused=True)},
        "critic": {"optimizer": critic, "lr_scheduler": config},
    }


def loss(self: Any, fwd_out: Any) -> Any:
    drawn = numpy.random.rand() + random.random()
    actor = (fwd_out["a"] - 1).pow(2).mean() * self.weight
    return actor + (fwd_out["v"] + drawn).pow(2).mean()


def additional(self: Any) -> None:
    self.weight *= 1.5


SETTINGS: dict[str, Any] = {
    "weight": 1.0,
    "build": lambda self: Net(),
    "optimizers": optimizers,
    "loss": loss,
    "finish": additional,
    "save_state": lambda self: {"weight": self.weight},
    "load_state": lambda self, state: setattr(self, "weight", state["weight"]),
    "addons": {
        "curious": {
            "build_extra": lambda self: nn.Linear(1, 1),
            "optimizers": lambda self, extra: Adam(extra.parameters(), 0.1),
            "loss": lambda self, extra, batch: extra(batch["x"][:, None]).pow(2).mean(),
        }
    },
    "learning": {"max_grad_norm": 0.5},
}


def go_on(learner: Any, updates: int) -> None:
    rows = batch(*torch.randn(12, generator=torch.Generator().manual_seed(5)).tolist())
    for _ in range(updates):
        learner.update_from_batch(rows, num_iters=2, minibatch_size=5)


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """The parts of nested mappings and lists by their paths, tensors and arrays as lists."""
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list | tuple):
        parts = enumerate(value)
    else:
        return {path: value.tolist() if hasattr(value, "tolist") else value}
    return {key: part for name, each in parts for key, part in flat(each, f"{path}/{name}").items()}


def state_of(learner: Any) -> dict[str, Any]:
    return flat(learner.get_state())


def refused(learner: Any, saved: Any, **how: Any) -> str:
    """With what a state is refused, which changes nothing."""
    before = state_of(learner)
    with pytest.raises(RequestError) as raised:
        learner.set_state(saved, **how)
    assert state_of(learner) == before
    return str(raised.value)


# -- what goes on ---------------------------------------------------------------------------------


def test_state_saved_in_the_middle_and_loaded_elsewhere_goes_on_bit_for_bit(tmp_path: Any) -> None:
    first = make(**SETTINGS)
    go_on(first, 4)
    first.save_state(tmp_path / "saved")
    go_on(first, 4)
    second = make(**SETTINGS, seed=9)
    go_on(second, 1)
    second.load_state(tmp_path / "saved")
    go_on(second, 4)
    assert state_of(second) == state_of(first)
    assert second.get_optimizer("default", "critic").param_groups[0]["lr"] < 0.1
    assert second.get_state()["plugin_states"]["alg"]["weight"] == 1.5**8
    assert (second.timestep, second.updates) == (first.timestep, 8)


def test_a_state_in_memory_stays_what_it_was() -> None:
    learner, fresh = make(**SETTINGS), make(**SETTINGS)
    go_on(learner, 1)
    saved = learner.get_state()
    then = copy.deepcopy(flat(saved))
    go_on(learner, 1)
    assert flat(saved) == then
    fresh.set_state(saved)
    assert state_of(fresh) == then


def test_modules_come_back_with_the_state(tmp_path: Any) -> None:
    learner, fresh = make(), make()
    everything = learner.get_state()
    learner.add_module("rival", like="default", trainable=False)
    learner.modules_to_train = {"default"}
    learner.save_state(tmp_path)
    fresh.load_state(tmp_path)
    assert list(fresh.modules) == ["default", "rival"]
    assert not fresh.can_module_be_updated("rival")
    assert fresh.modules_to_train == {"default"}
    # A state that trained all brings that, too.
    fresh.remove_module("rival")
    fresh.set_state(everything)
    assert fresh.modules_to_train is None


def test_options_of_one_module_come_back_and_the_optimizers_that_read_them(tmp_path: Any) -> None:
    made = []

    def scaled(self: Any, fwd_out: Any, config: Any) -> Any:
        return fwd_out["out"].mean() * config.scale

    def optimizer(self: Any, module_id: str, module: Any, config: Any) -> Any:
        made.append(module_id)

        class Mine(SGD):
            """Another class in each call."""

        return Mine(module.parameters(), config.learning_rate)

    hooks = {"loss": scaled, "optimizers": optimizer}
    learner, fresh = (make(ids=("a", "b"), **hooks) for _ in "12")
    learner.set_options("b", {"scale": 10.0})
    fresh.set_options("a", {"scale": 7.0})
    learner.add_module("c", SPACES, options={"learning_rate": 0.5})
    fresh.add_module("c", SPACES)
    learner.save_state(tmp_path)
    asked = len(made)
    fresh.load_state(tmp_path)
    assert made[asked:] == ["a", "b", "c"]
    results = fresh.update(dict.fromkeys("abc", batch(1.0)), timestep=1)
    assert [float(results[name]["loss"]) for name in "abc"] == [2.0, 20.0, 2.0]
    assert [results[name]["learning_rate"] for name in "abc"] == [0.1, 0.1, 0.5]


def test_all_generators_of_a_learner_are_told_and_put_back() -> None:
    order: list[float] = []

    def loss(self: Any, batch: Any, fwd_out: Any) -> Any:
        order.append(batch["x"].item())
        return fwd_out["out"].mean()

    def draw(learner: Any) -> list[Any]:
        order.clear()
        update(learner, *range(50), minibatch_size=1)
        return [
            list(order),
            torch.rand(1, generator=learner.generator()).item(),
            torch.rand(1).item(),
            # A second normal number is kept for the next call.
            float(numpy.random.normal()),
            random.random(),
        ]

    learner = make(options={"learning_rate": 0.0}, loss=loss)
    learner.generator()
    saved = learner.get_generators()
    first, second = draw(learner), draw(learner)
    assert all(one != other for one, other in zip(first, second, strict=True))
    learner.set_generators(saved)
    assert draw(learner) == first


class Counter:
    """A module with a state of its own, which is more each time."""

    def __init__(self) -> None:
        self.days: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.days)

    def load_state_dict(self, state: Any) -> None:
        before, self.days = self.days, {}
        self.days = {"loaded": state["monday"], **before, **state}


class Dice:
    """Acts, and has nothing to save."""


def test_modules_that_are_no_torch_modules_are_left_out_or_bring_their_state() -> None:
    first, second = (make(modules={"dice": Dice(), "counter": Counter()}) for _ in range(2))
    first.modules["counter"].days["monday"] = torch.ones(2)
    second.set_state(first.get_state())
    assert list(second.modules["counter"].days) == ["loaded", "monday"]
    assert second.weight_digests() == first.weight_digests() != {}
    saved = first.get_state()
    saved["modules"]["counter"] = {}
    assert "the state does not fit module 'counter': KeyError: 'monday'" in refused(second, saved)
    told = refused(make(), first.get_state())
    assert "has module 'counter', which the learner lacks" in told
    assert "try: learner.add_module('counter', module=…) before" in told


# -- modules of other spaces and shapes ----------------------------------------------------------

WIDE = Box(-2.0, 1.0, (6,)), Discrete(3)
NARROW = Box(-1.0, 1.0, (4,)), Discrete(2)


def dqn(spaces: Any, **options: Any) -> Any:
    return rlplug.build_learner("dqn", *spaces, options={"net_arch": [8], **options}, seed=1)


def test_modules_that_only_a_state_has_come_with_their_own_spaces_and_options() -> None:
    first, learner = dqn(NARROW), dqn(NARROW)
    first.add_module("wide", WIDE, options={"net_arch": [5], "gamma": 0.5})
    first.add_module("frozen", like="default", trainable=False)
    first.modules_to_train = {"wide"}
    learner.set_state(first.get_state())
    assert list(learner.modules) == ["default", "wide", "frozen"]
    assert learner.spaces["wide"] == WIDE
    assert not learner.can_module_be_updated("frozen")
    assert learner.weight_digests() == first.weight_digests()
    assert state_of(learner) == state_of(first)
    # What cannot be added is not left half added.
    for part in ("optimizers", "modules"):
        saved = first.get_state()
        saved[part]["wide"] = {"default": {}}
        learner = dqn(NARROW)
        refused(learner, saved)
        assert list(learner.modules) == list(learner.spaces) == ["default"]


# -- states that do not fit ----------------------------------------------------------------------

WATCH = {"addons": {"watch": {"update_finished": lambda self: None}}}
EXTRA = {"addons": {"own": {"build_extra": lambda self: nn.Linear(1, 1)}}}
NO_LOSS = {"loss": lambda self: None}
NARROW_NET = {**NO_LOSS, "build": lambda self: Net(6)}
WIDE_NET = {**NO_LOSS, "build": lambda self: Net(8)}
ADAM = {"optimizers": None}
NAMED = {"optimizers": lambda self, module: {"mine": SGD(module.parameters(), 1.0)}}

MISFITS: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    # The settings of the learner and of the one that was saved, what was changed, what is told.
    "format": ({}, {}, {"format": 0}, "format 0"),
    "no format": ({}, {}, {"format": None}, "format None"),
    "shape": (WIDE_NET, NARROW_NET, {}, r"size mismatch for actor\.0\.weight"),
    "weights": ({}, {}, {"modules.default": {}}, "module 'default'"),
    "extra": (EXTRA, EXTRA, {"extra.default": {}}, "module 'default'"),
    "optimizers": ({}, {}, {"optimizers.default": {}}, "default"),
    "names of optimizers": ({}, NAMED, {}, "mine|default"),
    "kinds of optimizers": ({}, ADAM, {}, "SGD"),
    "a missing module": ({"ids": ("default", "b")}, {}, {}, r"has no module 'b'"),
    "another version": ({}, {}, {"plugins.alg": "rlplug-alg 9.0"}, r"'alg' \(rlplug-alg 9\.0\)"),
    "an absent add-on": (WATCH, {}, {}, "'alg' .*; here .*'watch' "),
    "an add-on of a program": ({}, WATCH, {}, "'watch' .*; here"),
    "an add-on": ({}, WATCH, {"plugins.watch": "rlplug-watch 0.2"}, r"rlplug-watch 0\.2"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(case: str) -> None:
    here, there, changes, told = MISFITS[case]
    learner = make(**there)
    update(learner, 1.0, step=7)
    saved = learner.get_state()
    for path, value in changes.items():
        *parents, last = path.split(".")
        (saved[parents[0]] if parents else saved)[last] = value
    assert re.search(told, refused(make(**here), saved))


# -- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["state.json", "tensors-*.safetensors"])
@pytest.mark.parametrize("damage", ["truncated", "a folder"])
def test_a_damaged_file_is_refused(tmp_path: Any, name: str, damage: str) -> None:
    make().save_state(tmp_path)
    (path,) = tmp_path.glob(name)
    content = path.read_bytes()
    path.unlink()
    if damage == "truncated":
        path.write_bytes(content[:-10])
    else:
        path.mkdir()
    with pytest.raises(RequestError, match="cannot be read"):
        make().load_state(tmp_path)
    with pytest.raises(RequestError, match="there is no saved state"):
        make().load_state(tmp_path / "elsewhere")
