"""Which states fit a learner, what comes back with them, and how changed attributes are found."""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.optim import SGD

from rlplug import ALL_MODULES, Batch, Module
from rlplug.errors import PluginError, RequestError
from rlplug.learner.state import digest
from rlplug.seeding import random_state, set_random_state


def refused(learner: Any, saved: Any, **how: Any) -> str:
    with pytest.raises(RequestError) as raised:
        learner.set_state(saved, **how)
    return raised.value.message


def test_a_state_of_another_format_is_refused(make: Any) -> None:
    saved = make().get_state()
    for other in (saved["format"] + 1, None):
        said = f"the state has format {other!r}, this rlplug reads {saved['format']}."
        assert refused(make(), {**saved, "format": other}) == said
    del saved["format"]
    assert "the state has format None" in refused(make(), saved)


def test_a_state_with_more_or_fewer_plugins_says_what_to_do(make: Any) -> None:
    alone = make()
    with_addon = make(addons={"watch": {"update_finished": lambda self: None}})
    with pytest.raises(RequestError, match="plugin 'watch' as absent, here it is") as raised:
        with_addon.set_state(alone.get_state())
    assert raised.value.hints == ("take part without 'watch'",)
    with pytest.raises(RequestError, match=r"'watch' as .*, here it is absent\.") as raised:
        alone.set_state(with_addon.get_state())
    assert raised.value.hints == ("take part with the plugin 'watch' of the program that saved it",)
    saved = with_addon.get_state()
    saved["plugins"]["watch"] = "rlplug-watch 0.2.0"
    with pytest.raises(RequestError) as raised:
        alone.set_state(saved)
    assert raised.value.hints == ("try: pip install rlplug-watch==0.2.0",)


class Head(Module):
    """A weight of its own behind a layer that others may hold as well."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.weight = nn.Parameter(torch.ones(1))

    def forward_train(self, batch: Any) -> Any:
        return {"out": self.layer(batch["x"][:, None])[:, 0] * self.weight}


def sharing(momentum: float = 0.0) -> dict[str, Any]:
    layer = nn.Linear(1, 1)

    def optimizers(self: Any, module_id: str, module: Any) -> Any:
        if module_id != ALL_MODULES:
            return SGD([module.weight], lr=1.0)
        return {"shared" if momentum else "plain": SGD(module.parameters(), 1.0, momentum)}

    return {
        "ids": ("a", "b"),
        "build": lambda self: Head(layer),
        "configure_optimizers_for_module": optimizers,
    }


def test_optimizers_of_shared_parameters_are_compared_as_well(make: Any) -> None:
    saved = make(**sharing()).get_state()
    make(**sharing()).set_state(saved)
    said = refused(make(**sharing(0.9)), saved)
    assert f"module {ALL_MODULES!r} has optimizers ['plain'] in the state, ['shared'] here" in said


def test_optimizers_of_what_modules_share_need_modules_that_share_it(make: Any) -> None:
    both = make(**sharing())
    both.remove_module("b")
    said = refused(make(**{**sharing(), "ids": ("a",)}), both.get_state())
    assert f"has optimizers for {ALL_MODULES!r}, which has none here" in said


def test_only_modules_that_do_not_fit_are_rebuilt(make: Any) -> None:
    class Wide(Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))

        def forward_train(self, batch: Any) -> Any:
            return {"out": batch["x"] * self.weight.sum()}

    known = {"ids": ("a", "b"), "build": lambda self, config: Wide(int(config.scale))}
    learner, saved = make(**known), make(**known)
    spaces = saved.spaces["b"]
    saved.remove_module("b")
    saved.add_module("b", spaces, options={"scale": 3.0}, trainable=False)
    a, b = learner.modules["a"], learner.modules["b"]
    learner.set_state(saved.get_state(), rebuild=True)
    assert learner.modules["a"] is a
    assert learner.modules["b"] is not b
    assert learner.modules["b"].weight.shape == (3,)
    assert not learner.members["b"].trainable
    assert learner.calls.overrides("b")["alg"].scale == 3.0


def test_the_generator_of_a_module_goes_on_where_it_was(make: Any) -> None:
    learner = make(ids=("a", "b"))
    drawn = [torch.rand(3, generator=learner.generator(one)).tolist() for one in ("a", "b", "a")]
    assert len({tuple(one) for one in drawn}) == 3
    saved = learner.get_state()
    then = torch.rand(3, generator=learner.generator("a"))
    other = make(ids=("a", "b"), seed=5)
    assert torch.rand(3, generator=other.generator("a")).tolist() != drawn[0]
    other.set_state(saved)
    assert torch.equal(torch.rand(3, generator=other.generator("a")), then)
    again = make(ids=("a", "b"))
    assert torch.rand(3, generator=again.generator("a")).tolist() == drawn[0]


def test_global_generators_are_put_back() -> None:
    def drawn() -> list[float]:
        return [
            float(torch.rand(1)),
            float(numpy.random.random()),
            # A second normal number is kept for the next call.
            float(numpy.random.normal()),
            random.random(),
        ]

    before = random_state(torch.device("cpu"))
    first = drawn()
    saved = random_state(torch.device("cpu"))
    second = drawn()
    set_random_state(saved)
    assert drawn() == second
    set_random_state(before)
    assert drawn() == first
    assert first != second


def test_states_and_weights_of_unknown_modules_are_refused(make: Any) -> None:
    learner = make()
    for call in (
        lambda: learner.get_optimizer_state(["nobody"]),
        lambda: learner.set_optimizer_state({"nobody": {"default": {}}}),
        lambda: learner.get_module_state(["nobody"]),
        lambda: learner.set_module_state({"nobody": {}}),
        lambda: learner.postprocess_gradients_for_module("nobody", {}),
    ):
        with pytest.raises((RequestError, KeyError), match="nobody"):
            call()


# -- gradients by hand --------------------------------------------------------------------------


def test_gradients_by_hand_are_those_of_the_losses_given(make: Any, batch: Any) -> None:
    def double(self: Any, gradients: Any) -> None:
        for gradient in gradients.values():
            gradient.mul_(2)

    learner = make(ids=("a", "b"), addons={"double": {"postprocess_gradients": double}})
    batches = {"a": batch(3.0), "b": batch(5.0)}
    forward = learner.forward_train(batches)
    losses = {one: learner.compute_loss_for_module(one, forward[one], batches[one]) for one in "ab"}
    gradients = learner.compute_gradients(losses)
    weights = {one: learner.modules[one].weight for one in "ab"}
    assert {one: gradients[weights[one]].item() for one in "ab"} == {"a": 3.0, "b": 5.0}
    assert learner.modules["a"].other not in gradients
    changed = learner.postprocess_gradients_for_module("b", gradients)
    assert [(key is weights["b"], float(value)) for key, value in changed.items()] == [(True, 10)]
    with pytest.raises(RequestError, match="that no optimizer of the learner holds"):
        learner.apply_gradients({nn.Parameter(torch.ones(1)): torch.ones(1)})


def test_learners_combine_tensors_by_operations_that_there_are(make: Any) -> None:
    learner = make()
    values = [torch.ones(2), torch.ones(1)]
    for op in ("sum", "mean", "max"):
        assert [one.tolist() for one in learner.all_reduce(values, op)] == [[1.0, 1.0], [1.0]]
    with pytest.raises(RequestError, match="all_reduce cannot 'min'") as raised:
        learner.all_reduce(values, "min")
    assert raised.value.hints == ("it can: sum, mean, max",)


# -- what plugins keep in their attributes ------------------------------------------------------


class Holds:
    def __init__(self, value: Any) -> None:
        self.value = value


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        ("1", b"1"),
        (None, "None"),
        (1j, 2j),
        (torch.zeros(2), torch.ones(2)),
        (torch.zeros(2), torch.zeros(2, 1)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int32)),
        (torch.zeros(1), nn.Parameter(torch.zeros(1))),
        (numpy.zeros(2), numpy.ones(2)),
        (numpy.zeros(2), numpy.zeros((2, 1))),
        (numpy.zeros(2), numpy.zeros(2, numpy.int64)),
        (numpy.arange(4).reshape(2, 2), numpy.arange(4).reshape(2, 2).T),
        (generator(0), generator(1)),
        (numpy.random.default_rng(0), numpy.random.default_rng(1)),
        (nn.Linear(1, 1), nn.Linear(1, 1)),
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, OrderedDict({"a": 1})),
        ([1, 2], [2, 1]),
        ([1, 2], (1, 2)),
        ([[1], 2], [[1, 2]]),
        ({1, 2}, {1, 3}),
        ({1, 2}, frozenset((1, 2))),
        (Holds(1), Holds(2)),
        (Holds([Holds({"a": 1})]), Holds([Holds({"a": 2})])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_differ_have_another_digest(one: Any, other: Any) -> None:
    assert digest(one) != digest(other)
    assert digest(one) == digest(one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.ones(2, 2).T, torch.ones(2, 2)),
        (torch.arange(4)[::2], torch.tensor([0, 2])),
        (numpy.arange(4)[::2], numpy.array([0, 2])),
        ({3, 1, 2}, {1, 2, 3}),
        (generator(3), generator(3)),
        (numpy.random.default_rng(3), numpy.random.default_rng(3)),
        (Holds([1.5]), Holds([1.5])),
        # What is a matter of code, not of state.
        (Holds(print), Holds(len)),
        (Holds(int), Holds(float)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_are_alike_have_the_same_digest(one: Any, other: Any) -> None:
    assert digest(one) == digest(other)


def test_a_digest_ends_where_objects_hold_themselves() -> None:
    one, other = Holds(1), Holds(1)
    one.value, other.value = other, one
    assert digest(one) == digest(other)
    # Nine levels: what is eight below is not looked at any more.
    deep: list[Any] = [1]
    deeper: list[Any] = [2]
    for _ in range(8):
        deep, deeper = [deep], [deeper]
    assert digest(deep) == digest(deeper)
    assert digest(deep[0]) != digest(deeper[0])


@pytest.mark.parametrize("kept", [[0], {"a": 0}, Holds(0)], ids=["list", "dict", "object"])
def test_what_changes_inside_an_attribute_is_found(make: Any, kept: Any) -> None:
    def change(self: Any) -> None:
        if isinstance(self.kept, Holds):
            self.kept.value += 1
        else:
            self.kept[next(iter(self.kept))] = 5

    def build(self: Any) -> Module:
        self.kept = kept
        return Head(nn.Linear(1, 1))

    learner = make(build=build, additional_update=change)
    with pytest.raises(PluginError, match="changed its attribute 'kept'"):
        learner.update({"default": Batch({"x": torch.ones(1)})}, timestep=1)
