"""What is called by hand, and what a run asks of its learners between updates."""

from __future__ import annotations

import os
import random
import sys
from typing import Any

import gymnasium
import numpy
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ExponentialLR

from rlplug import ALL_MODULES, Batch, Module
from rlplug.config import Schedule
from rlplug.config.sections import ComputeSection
from rlplug.errors import PluginError, RequestError, UnsupportedSpaceError
from rlplug.learner import device
from rlplug.learner.optimizers import Optimizers, RegisteredOptimizer

LARGE = nn.ParameterList([nn.Parameter(torch.empty(1_000_000))])


class Head(Module):
    """A weight of its own behind a layer that others hold as well."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.weight = nn.Parameter(torch.ones(1))

    def forward_train(self, batch: Any) -> Any:
        return {"out": self.layer(batch["x"][:, None])[:, 0] * self.weight}


def sharing(momentum: float = 0.5) -> dict[str, Any]:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)

    def optimizers(self: Any, module_id: str, module: Any) -> Any:
        params = module.parameters() if module_id == ALL_MODULES else [module.weight]
        return SGD(params, lr=0.25, momentum=momentum)

    return {
        "ids": ("a", "b"),
        "build": lambda self: Head(layer),
        "configure_optimizers_for_module": optimizers,
    }


# -- optimizers ----------------------------------------------------------------------------------


def test_settings_of_optimizers_are_kept_but_rates_of_schedulers(make: Any, batch: Any) -> None:
    def optimizers(self: Any, module: Any, module_id: str) -> Any:
        if module_id == "b":
            fast: Any = {"params": [module.other], "lr": 0.5}
            return SGD([{"params": [module.weight]}, fast], lr=0.1)
        falling = SGD(module.parameters(), lr=1.0, momentum=0.9)
        return {"optimizer": falling, "lr_scheduler": ExponentialLR(falling, 0.5)}

    learner, other = (
        make(ids=("a", "b"), configure_optimizers_for_module=optimizers) for _ in range(2)
    )
    learner.update({"a": batch(0.0)}, timestep=1)
    saved = learner.get_state()
    (a,), (first, second) = (other.get_optimizer(one).param_groups for one in ("a", "b"))
    a["lr"], a["momentum"], first["lr"], second["lr"] = 7.0, 0.0, 0.25, 0.125
    other.set_state(saved, keep_settings=True)
    other.update({"b": batch(1.0)}, timestep=1)
    assert other.modules["b"].weight.item() == 2 - 0.25
    (a,), (first, second) = (other.get_optimizer(one).param_groups for one in ("a", "b"))
    assert (a["lr"], a["momentum"], second["lr"]) == (0.5, 0.0, 0.125)
    other.set_state(saved)
    assert other.get_optimizer("a").param_groups[0]["momentum"] == 0.9
    assert [one["lr"] for one in other.get_optimizer("b").param_groups] == [0.1, 0.5]


def test_a_schedule_goes_on_over_settings_that_were_set(make: Any, batch: Any) -> None:
    known = {"options": {"learning_rate": Schedule([[0, 1.0], [10, 0.0]])}}
    learner = make(**known)
    learner.update({"default": batch(0.0)}, timestep=5)
    saved = learner.get_state()
    learner.get_optimizer().param_groups[0]["lr"] = 7.0
    learner.set_state(saved, keep_settings=True)
    assert learner.get_optimizer().param_groups[0]["lr"] == 0.5


def test_states_of_shared_optimizers_travel_with_those_of_modules(make: Any, batch: Any) -> None:
    both = {"a": batch(1.0), "b": batch(1.0)}
    learner, other = make(**sharing()), make(**sharing())
    learner.update(both, timestep=1)
    saved = learner.get_optimizer_state()
    assert list(saved) == ["a", "b", ALL_MODULES]
    other.set_optimizer_state(saved)
    layer = other.modules["a"].layer.weight
    other.update(both, timestep=1)
    # A gradient of 1 of each module, and half of the last step's.
    assert layer.item() == 1 - 0.25 * (2 + 0.5 * 2)
    only = learner.get_optimizer_state([ALL_MODULES])
    assert list(only) == [ALL_MODULES]
    moved = only[ALL_MODULES]["default"]["state"][0]["momentum_buffer"]
    moved.fill_(100.0)
    assert (
        learner.get_optimizer_state()[ALL_MODULES]["default"]["state"][0]["momentum_buffer"].item()
        == 2.0
    )


def test_optimizers_are_listed_found_and_removed_by_module_and_name() -> None:
    registry = Optimizers()
    params = [nn.Parameter(torch.ones(1)) for _ in range(3)]
    for (module_id, name), param in zip((("m", "x"), ("m", "y"), ("n", "x")), params, strict=True):
        registry.add(RegisteredOptimizer(module_id, name, "alg", SGD([param], lr=1.0)))
    assert [one.name for one in registry.of("m")] == ["x", "y"]
    with pytest.raises(Exception, match="in two optimizers: 'x' of module 'm' and 'z'"):
        registry.add(RegisteredOptimizer("m", "z", "alg", SGD([params[0]], lr=1.0)))
    registry.remove("m")
    assert [(one.module_id, one.name) for one in registry] == [("n", "x")]
    assert registry.get("n", "x").params == [params[2]]
    # What it held is free again.
    registry.add(RegisteredOptimizer("m", "z", "alg", SGD([params[0]], lr=1.0)))


def test_an_adam_by_default_is_fused_and_has_the_addons_beside(make: Any) -> None:
    extra = {
        "build_extra": lambda self: nn.Linear(1, 1),
        "configure_optimizers_for_module": lambda self, extra: SGD(extra.parameters(), lr=0.5),
    }
    learner = make(configure_optimizers_for_module=None, addons={"more": extra})
    found = dict(learner.get_optimizers_for_module())
    assert [type(one) for one in found.values()] == [Adam, SGD]
    assert found["default"].param_groups[0]["fused"]
    owners = [one.plugin for one in learner.optimizers.of("default")]
    assert (list(found), owners) == (["default", "more"], ["alg", "more"])


# -- modules -------------------------------------------------------------------------------------


def test_spaces_that_an_algorithm_does_not_support_add_no_module(make: Any) -> None:
    def supports(self: Any, observation_space: Any, action_space: Any) -> Any:
        ok = isinstance(action_space, gymnasium.spaces.Box)
        return None if ok else "it acts in Boxes."

    learner = make(supports=supports)
    box, discrete = learner.spaces["default"][0], gymnasium.spaces.Discrete(2)
    with pytest.raises(UnsupportedSpaceError, match="cannot have module 'new': it acts in Boxes"):
        learner.add_module("new", (box, discrete))
    learner.add_module("new", (box, box))
    assert list(learner.modules) == ["default", "new"]
    assert list(learner.spaces) == ["default", "new"]


def test_a_module_without_spaces_is_one_that_is_given(make: Any, batch: Any) -> None:
    learner = make()
    with pytest.raises(RequestError, match="module 'new' needs its spaces"):
        learner.add_module("new")
    with pytest.raises(RequestError, match="has a module 'default' already"):
        learner.add_module("default", learner.spaces["default"])
    layer = nn.Linear(1, 1)
    given = learner.add_module("new", module=Head(layer))
    assert given is learner.modules["new"]
    assert given.layer is layer
    assert "new" in learner.update({"new": batch(1.0)}, timestep=1)


def test_a_module_that_would_share_what_another_ones_optimizer_moves_is_refused(make: Any) -> None:
    layer = nn.Linear(1, 1)
    learner = make(build=lambda self: Head(layer))
    with pytest.raises(PluginError, match="in two optimizers: 'default' of module 'default' and"):
        learner.add_module("new", learner.spaces["default"])
    assert list(learner.modules) == ["default"]
    assert not learner.members["default"].shared


@pytest.mark.parametrize("registered", [False, True])
def test_an_optimizer_for_all_modules_over_what_one_has_alone_is_refused(
    make: Any, registered: bool
) -> None:
    def optimizers(self: Any, module_id: str, module: Any, learner: Any) -> Any:
        if module_id != ALL_MODULES or registered:
            return None
        return SGD([*module.parameters(), learner.modules["a"].weight], lr=0.1)

    settings = {**sharing(), "configure_optimizers_for_module": optimizers}
    told = r"for module '.*' holds 'weight' of module 'a', which no other module shares\."
    if not registered:
        with pytest.raises(PluginError, match=told):
            make(**settings)
        return
    learner = make(**settings)
    module = learner.modules["a"]
    optimizer = SGD([module.layer.weight, module.weight], lr=0.1)
    with pytest.raises(PluginError, match=told) as refused:
        learner.register_optimizer(ALL_MODULES, "both", optimizer)
    assert refused.value.hints == ("optimize it where module_id is 'a'",)


def test_a_module_without_optimizers_has_no_gradients(make: Any) -> None:
    learner = make(configure_optimizers_for_module=lambda self: None)
    assert learner.postprocess_gradients_for_module("default", {}) == {}


def test_hooks_that_work_in_place_leave_the_callers_gradients_alone(make: Any, batch: Any) -> None:
    def double(self: Any, gradients: Any) -> None:
        for gradient in gradients.values():
            gradient.mul_(2)

    learner = make(postprocess_gradients=double)
    rows = {"default": batch(1.0)}
    gradients = learner.compute_gradients(learner.compute_loss(learner.forward_train(rows), rows))
    before = {param: gradient.clone() for param, gradient in gradients.items()}
    by_module = learner.postprocess_gradients_for_module("default", gradients)
    for changed in (by_module, learner.postprocess_gradients(gradients)):
        assert changed.keys() == before.keys()
        for param, gradient in before.items():
            assert torch.equal(gradients[param], gradient)
            assert torch.equal(changed[param], 2 * gradient)
            assert gradient.abs().sum() > 0


def test_losses_by_hand_leave_out_modules_that_have_none(make: Any, batch: Any) -> None:
    def loss(self: Any, fwd_out: Any, module_id: str) -> Any:
        return None if module_id == "b" else fwd_out["out"].mean()

    learner = make(ids=("a", "b", "c"), compute_loss_for_module=loss)
    rows = {"a": batch(1.0), "b": batch(1.0), "c": batch(2.0)}
    losses = learner.compute_loss(learner.forward_train(rows), rows)
    assert {name: value.item() for name, value in losses.items()} == {
        "a": 2.0,
        "c": 4.0,
        ALL_MODULES: 6.0,
    }
    none = {"b": rows["b"]}
    assert learner.compute_loss(learner.forward_train(none), none) == {}


# -- state ---------------------------------------------------------------------------------------


def test_a_function_that_chooses_modules_stays_where_the_state_has_none(make: Any) -> None:
    learner = make(ids=("a", "b"))
    saved = learner.get_state()
    chosen: Any = lambda module_id, batch: True  # noqa: E731
    learner.modules_to_train = chosen
    assert learner.get_state()["modules_to_train"] is None
    learner.set_state(saved)
    assert learner.modules_to_train is chosen
    saved["modules_to_train"] = ["b"]
    learner.set_state(saved)
    assert learner.modules_to_train == {"b"}


def test_a_module_with_a_state_of_its_own_may_save_other_names_each_time(make: Any) -> None:
    class Diary:
        """Keeps what it is told."""

        def __init__(self) -> None:
            self.days: dict[str, Any] = {}

        def state_dict(self) -> dict[str, Any]:
            return dict(self.days)

        def load_state_dict(self, state: Any) -> None:
            self.days = dict(state)

    one, other = (make(modules={"diary": Diary()}) for _ in range(2))
    one.modules["diary"].days["monday"] = torch.ones(2)
    other.set_state(one.get_state())
    assert list(other.modules["diary"].days) == ["monday"]


def drawn(learner: Any) -> list[Any]:
    """One number of each generator."""
    return [
        torch.rand(1, generator=learner.generator()).item(),
        torch.rand(1, generator=learner.trained["default"].shuffler).item(),
        torch.rand(1).item(),
        float(numpy.random.random()),
        random.random(),
    ]


def test_all_generators_of_a_learner_are_told_and_put_back(make: Any) -> None:
    learner = make()
    learner.generator()
    saved = learner.get_generators()
    first, second = drawn(learner), drawn(learner)
    assert all(one != other for one, other in zip(first, second, strict=True))
    learner.set_generators(saved)
    assert drawn(learner) == first


def test_digests_tell_weights_apart_and_leave_out_what_each_learner_keeps(make: Any) -> None:
    class Normed(Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(1)
            self.register_buffer("mean", torch.zeros(1))

        def forward_train(self, batch: Any) -> Any:
            return {"out": self.norm(batch["x"][:, None])}

    extra = {"build_extra": lambda self: nn.BatchNorm1d(1)}
    learner = make(build=lambda self: Normed(), addons={"more": extra})
    before = learner.weight_digests()
    norms = ("norm.weight", "norm.bias")
    assert list(before) == [
        *(f"default: {name}" for name in ("mean", *norms)),
        *(f"default, more: {name}" for name in ("weight", "bias")),
    ]
    with torch.no_grad():
        learner.modules["default"].norm.running_mean += 1
        learner.extra["default"]["more"].weight += 1
    after = learner.weight_digests()
    assert [name for name in before if before[name] != after[name]] == ["default, more: weight"]


# -- device --------------------------------------------------------------------------------------


def test_large_networks_go_to_cuda_where_it_is_and_small_ones_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    section = ComputeSection()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    large = device.choose_device(section, [LARGE])
    assert (large.device, large.reason) == (torch.device("cuda", 3), "CUDA is available")
    small = device.choose_device(section, [nn.Linear(2, 2)])
    assert small.device == torch.device("cpu")
    assert small.reason == "small networks are faster here than over CUDA"
    asked = device.choose_device(ComputeSection(device="cuda:1"), [nn.Linear(2, 2)])
    assert (asked.device, asked.reason) == (torch.device("cuda", 1), "as asked for")
    with pytest.raises(RequestError, match="there are 2 CUDA devices, counted from 0"):
        device.choose_device(ComputeSection(device="cuda:2"))
    assert device.device_for_environments(section) == "cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device.device_for_environments(section) == "cpu"
    assert device.device_for_environments(ComputeSection(device="cuda:1")) == "cuda:1"
    assert device.choose_device(section, [LARGE]).reason == "CUDA is not available"


def test_mps_has_no_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert device.choose_device(ComputeSection(device="mps")).device.type == "mps"
    with pytest.raises(RequestError, match=r"it has no compute\.dtype 'float64'"):
        device.choose_device(ComputeSection(device="mps", dtype="float64"))


def test_determinism_on_cuda_has_its_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    with device.settings_kept():
        section = ComputeSection(deterministic="strict")
        device.apply_compute(ComputeSection(), torch.device("cpu"), small=True)
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
        device.apply_compute(section, torch.device("cpu"), small=True)
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.benchmark
    left = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    assert left == (False, True)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")


def test_optimizers_answer_the_compiler_only_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    asked = [getattr(torch.optim.Optimizer, name).__wrapped__ for name in device._NEVER_COMPILED]

    def answers() -> list[Any]:
        return [getattr(one, device._ANSWER, None) for one in asked]

    before = [one.__dict__.pop(device._ANSWER, None) for one in asked]
    try:
        with device.without_compiler():
            assert answers() == asked
            with device.without_compiler():
                assert answers() == asked
            # The inner one does not take the answer of the outer one back.
            assert answers() == asked
        assert answers() == [None] * 4
        monkeypatch.setitem(sys.modules, "torch._dynamo", device)
        with device.without_compiler():
            assert answers() == [None] * 4
    finally:
        for one, answer in zip(asked, before, strict=True):
            if answer is not None:
                setattr(one, device._ANSWER, answer)


def test_fragments_go_into_a_compiled_update_only_for_modules_with_memory() -> None:
    from rlplug.learner.compiled import _columns

    rows = Batch({"x": torch.ones(2), "fragments": torch.tensor([[0, 2]])})
    assert list(_columns(rows, sequences=False)) == ["x"]
    assert list(_columns(rows, sequences=True)) == ["x", "fragments"]


def test_an_additional_update_of_a_module_without_a_batch_is_refused(make: Any, batch: Any) -> None:
    learner = make(ids=("a", "b"), additional_update=lambda self: {"seen": 1.0})
    found = learner.additional_update({"b": batch(1.0)}, timestep=1, module_ids=["b"])
    assert found == {"b": {"seen": 1.0}}
    with pytest.raises(KeyError, match="a"):
        learner.additional_update({"b": batch(1.0)}, timestep=2, module_ids=["a"])
    assert learner.timestep == 1
