"""What a learner refuses: by name, with an error of its own, and without being changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn
from torch.optim import LBFGS, SGD, Adam
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

import rlplug
from rlplug import ALL_MODULES, Batch, Loss
from rlplug.config.schedule import Schedule
from rlplug.errors import PluginError, RequestError
from tests.learner.small import batch, make, pair, sharing, update
from tests.learner.test_losses import Embedded

OBSERVATIONS, ACTIONS = SPACES = Box(-1.0, 1.0, (4,)), Discrete(2)


def build(**how: Any) -> Any:
    return rlplug.build_learner("dqn", OBSERVATIONS, ACTIONS, **{"seed": 1, **how})


def sample(rows: int, **columns: Any) -> Batch:
    drawn = numpy.random.default_rng(rows)
    known = {
        "observations": drawn.random((rows, 4), dtype=numpy.float32),
        "next_observations": drawn.random((rows, 4), dtype=numpy.float32),
        "actions": drawn.integers(2, size=rows),
        "rewards": drawn.random(rows, dtype=numpy.float32),
        "terminated": numpy.zeros(rows, bool),
        "truncated": numpy.zeros(rows, bool),
    }
    return Batch({**known, **columns})


# -- optimizers that a learner is not built with -------------------------------------------------


def plateau(**config: Any) -> Any:
    def optimizers(self: Any, module: Any) -> Any:
        optimizer = SGD([module.weight], lr=0.1)
        known = {"scheduler": ReduceLROnPlateau(optimizer), "monitor": "loss"}
        return {"optimizer": optimizer, "lr_scheduler": {**known, **config}}

    return optimizers


def same_rate(self: Any, module: Any) -> Any:
    made = {}
    for name, param in (("gen", module.weight), ("dis", module.other)):
        optimizer = SGD([param], lr=0.1)
        scheduler = {"scheduler": ReduceLROnPlateau(optimizer), "monitor": "loss", "name": "rate"}
        made[name] = {"optimizer": optimizer, "lr_scheduler": scheduler}
    return made


def schedule_and_scheduler(self: Any, module: Any, config: Any) -> Any:
    optimizer = SGD(module.parameters(), lr=config.learning_rate)
    return {"optimizer": optimizer, "lr_scheduler": StepLR(optimizer, 1)}


def registers_twice(self: Any, module_id: Any, module: Any, learner: Any) -> Any:
    learner.register_optimizer(module_id, "mine", SGD([module.weight], lr=1.0))
    return {"mine": SGD([module.other], lr=1.0)}


def registers_for_all(self: Any, module: Any, learner: Any) -> None:
    learner.register_optimizer(ALL_MODULES, "both", SGD(module.parameters(), lr=0.1))


def all_and_one(self: Any, module_id: str, module: Any, learner: Any) -> Any:
    if module_id != ALL_MODULES:
        return None
    return SGD([*module.parameters(), learner.modules["a"].weight], lr=0.1)


def two(first: Any, second: Any) -> Any:
    """The hook that gives these optimizers, one for each weight."""
    return lambda self, module: [first([module.weight]), second([module.other])]


def over(*chosen: str) -> Any:
    """The hook that gives an optimizer for each of these parameters of the module."""
    return lambda self, module: [SGD([getattr(module, name)], lr=1.0) for name in chosen]


def all_of(self: Any, module: Any) -> Any:
    return SGD(module.parameters(), lr=1.0)


def strange(self: Any) -> Any:
    return SGD([nn.Parameter(torch.zeros(3))], lr=1.0)


GREEDY = {"addons": {"greedy": {"optimizers": over("weight")}}}
FALLING = {"options": {"learning_rate": Schedule([(0, 1.0), (10, 0.0)])}}
APART = {"ids": ("a", "b")}

OPTIMIZERS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "two lists": (over("weight", "weight"), {}, "in two optimizers: '0' of module 'default' and"),
    "LBFGS beside": (two(LBFGS, SGD), {}, "LBFGS, which must act alone"),
    "shared": (all_of, sharing(), r"what modules share, where module_id is rlplug\.ALL_MODULES"),
    "an add-on's": (over("other"), GREEDY, "'weight', which belongs to 'alg'"),
    "from elsewhere": (strange, {}, r"shape \(3,\) that is neither in the module"),
    "one name": (registers_twice, {}, "two optimizers of one name, .* 'mine' and 'mine'"),
    "nobody shares": (registers_for_all, APART, "'both' .* no two modules share a parameter"),
    "what one has alone": (all_and_one, sharing(), "that is neither in the module"),
    "no scheduler": (plateau(scheduler=ReduceLROnPlateau), {}, "needs a 'scheduler', found <class"),
    "one rate": (same_rate, {}, r"report 'learning_rate/rate': 'gen' and 'dis'"),
    "a schedule and a scheduler": (schedule_and_scheduler, FALLING, "schedule of env.* StepLR"),
}


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_optimizers_that_would_not_do_what_they_seem_to_are_refused(case: str) -> None:
    hook, settings, told = OPTIMIZERS[case]
    with pytest.raises(PluginError, match=told):
        make(**{**settings, "optimizers": hook})


def owned(learner: Any, module_id: str) -> Any:
    return learner.get_optimizers_for_module(module_id)


def test_a_refused_optimizer_leaves_the_learner_as_it_was() -> None:
    hooks = {**sharing(), "optimizers": lambda self: None}
    learner = make(**hooks)
    module = learner.modules["a"]
    apart = make(ids=("a", "b"))
    stranger = SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    own = SGD([apart.modules["a"].weight], lr=1.0)
    both = SGD([module.encoder.weight, module.weight], lr=0.1)
    for target, module_id, optimizer, told in (
        (learner, "a", stranger, "neither in the module nor in an extra"),
        (learner, "defalt", stranger, "has no module 'defalt'"),
        (learner, ALL_MODULES, both, "neither in the module nor in an extra"),
        (apart, ALL_MODULES, own, "under the id of the module"),
        (make(built=False), ALL_MODULES, stranger, "no two modules share a parameter"),
    ):
        with pytest.raises((PluginError, RequestError)) as raised:
            target.register_optimizer(module_id, "mine", optimizer)
        assert told in str(raised.value)
        names = [name for each in ("a", ALL_MODULES) for name, _ in owned(target, each)]
        assert "mine" not in names


# -- losses and gradients that are refused in an update -----------------------------------------


def loss_of(value: Callable[[Any], Any], **hooks: Any) -> dict[str, Any]:
    return {"loss": lambda self, fwd_out: value(fwd_out), **hooks}


def gradient(value: Any, name: str = "weight") -> dict[str, Any]:
    def hook(self: Any, gradients: Any) -> None:
        gradients[name] = value
        if value is ...:
            del gradients[name]

    return {"gradients": hook}


def terms(value: float, **sums: float) -> dict[str, Any]:
    def loss(self: Any, module: Any) -> Any:
        nothing = module.weight.sum() * 0
        return Loss(nothing + value, terms={name: nothing + part for name, part in sums.items()})

    reads = {"gradients": lambda self, term_gradients: None}
    return {"loss": loss, **reads}


CANNOT_STEP = {
    "build": lambda self: Embedded(sparse=True),
    "optimizers": lambda self, module: Adam(module.parameters(), 0.1),
    "prepare": lambda self, batch: {"symbols": batch["x"].long()},
}


NAMED = {"optimizers": pair}


def mean(**parts: Any) -> dict[str, Any]:
    """The mean, with other parts of a loss."""
    return loss_of(lambda out: Loss(out["out"].mean(), **parts))


UPDATES: dict[str, tuple[Any, str]] = {
    "a loss of rows": (loss_of(lambda out: out["out"]), r"shape \(2,\), not one number"),
    "a loss of nothing": (loss_of(lambda out: torch.zeros(())), "connected to no parameter"),
    "a number": (loss_of(lambda out: 3.0), "gave float as its loss"),
    "a number in a loss": (loss_of(lambda out: Loss(3.0)), "is float"),  # type: ignore[arg-type]
    "a complex loss": (loss_of(lambda out: out["out"].mean() * 1j), "'alg' is complex"),
    "no values": (loss_of(lambda out: Loss({})), "without any value"),
    "a dict": (loss_of(lambda out: {"los": out["out"]}), "gave dict as its loss"),
    "an unknown name": (loss_of(lambda out: Loss({"critc": out["out"].sum()})), "'critc'"),
    "an optimizer 0": (loss_of(lambda out: Loss({0: out["out"].sum()})), "optimizer 0, which does"),
    "named rows": (loss_of(lambda out: Loss({"one": out["out"]}), **NAMED), r"'one' .*\(2,\)"),
    "named nothing": (loss_of(lambda out: Loss({"one": torch.zeros(())}), **NAMED), "no parameter"),
    "a named number": (loss_of(lambda out: Loss({"one": 3.0}), **NAMED), "'one' .* is float"),
    "a term": (mean(terms={"one": 1.0}), "term 'one' of the loss .* is float"),
    "metrics": (mean(metrics=[1]), "the metrics of the loss of plugin 'alg' are list"),
    "a metric": (mean(metrics={"name": "Ada"}), r"metric 'name' of plugin 'alg' is str\."),
    "a late metric": ({"finish": lambda self: {"name": "Ada"}}, "metric 'name' .* str"),
    "a stop of text": (mean(stop="no"), "the stop of the loss of plugin 'alg' is "),
    "a stop of rows": (mean(stop=torch.tensor([True, False])), "the stop of the loss of .* is "),
    "terms": (terms(4.0, a=2.0), "add up to 2, the loss is 4"),
    "terms, nearly": (terms(1000.0, a=1001.5), "the terms of the loss .* add up to"),
    "terms of nothing": (terms(0.0, a=1.5e-5), "the terms of the loss .* add up to"),
    "no gradient": (gradient(...), "plugin 'alg' let the gradient of 'weight' vanish"),
    "another's gradient": (gradient(torch.zeros(1), "spy.weight"), r"a gradient to 'spy\.weight'"),
    "None as a gradient": (gradient(None), "'alg' gave 'weight' the gradient NoneType"),
    "a shape": (gradient(torch.zeros(3)), r"float32 of shape \(3,\), not float32 of shape \(1,\)"),
    "a format": (gradient(torch.zeros(1).double()), r"float64 of shape \(1,\), not float32"),
    "sparse": ({**CANNOT_STEP, **mean()}, "(?s)sparse gradient.*SparseAdam"),
}


@pytest.mark.parametrize("case", UPDATES)
def test_what_plugins_give_and_nothing_can_be_learned_from_is_refused(case: str) -> None:
    hooks, told = UPDATES[case]
    with pytest.raises((PluginError, RuntimeError), match=told):
        update(make(**hooks), 1.0, 2.0)


# -- calls ---------------------------------------------------------------------------------------


def updated(learner: Any, **columns: Any) -> None:
    learner.update_from_batch(sample(4, **columns))


NO_REWARDS = sample(4).without(frozenset(("rewards",)))
WIDE = torch.ones((4, 6))
BATCHES = {"default": sample(4)}

CALLS: dict[str, tuple[Callable[[Any], object], str]] = {
    # What is called, and what the message names.
    "an unknown id": (lambda it: it.update({"defualt": NO_REWARDS}, timestep=1), "mean 'default'"),
    "nobody": (lambda it: it.additional_update(BATCHES, timestep=5, module_ids=["no"]), "'no'"),
    "no batch": (lambda it: it.additional_update({}, timestep=5, module_ids=["default"]), "'def"),
    "no rewards": (lambda it: it.update_from_batch(NO_REWARDS), "no column 'rewards'.\n  it has:"),
    "fewer rewards": (lambda it: updated(it, rewards=torch.ones(2)), "(2,), not of 4 rows"),
    "wide": (lambda it: updated(it, observations=WIDE), "of shape (6,), its space has (4,)"),
    "wide next": (lambda it: updated(it, next_observations=WIDE), "'next_observations' of the bat"),
    "weights of nobody": (lambda it: it.set_module_state({"nobody": {}}), "nobody"),
    "all as an id": (lambda it: it.add_module(ALL_MODULES, SPACES), "no module can be called"),
    "an id that is taken": (lambda it: it.add_module("default", SPACES), "'default'"),
    "no spaces": (lambda it: it.add_module("a"), "'a'"),
    "gradients of nobody": (lambda it: it.postprocess_gradients_for_module("z", {}), "'z'"),
    "strange gradients": (lambda it: it.apply_gradients(STRANGE), "no optimizer of the learner"),
    "a metric of nobody": (lambda it: it.register_metric("defualt", "a", 3), "'defualt'"),
    "the least": (lambda it: it.all_reduce([torch.ones(2)], "min"), "'min'"),
}
STRANGE = {nn.Parameter(torch.ones(1)): torch.ones(1)}


@pytest.fixture(scope="module")
def dqn() -> Any:
    """One learner for all calls that are refused: none of them changes it."""
    return build()


@pytest.mark.parametrize("case", CALLS)
def test_wrong_calls_are_refused_and_change_nothing(case: str, dqn: Any) -> None:
    call, told = CALLS[case]
    before = dqn.weight_digests(), dqn.updates, dqn.timestep, list(dqn.modules)
    with pytest.raises((RequestError, KeyError)) as raised:
        call(dqn)
    assert told in str(raised.value)
    assert (dqn.weight_digests(), dqn.updates, dqn.timestep, list(dqn.modules)) == before


@pytest.mark.parametrize("to_column", [numpy.asarray, torch.as_tensor])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *(("terminated", bool), ("truncated", bool), ("actions", int)),
        *((name, numpy.float32) for name in ("rewards", "weights", "discounts")),
    ],
)
def test_a_column_vector_is_refused_where_each_row_has_one_number(
    name: str, dtype: Any, to_column: Any, dqn: Any
) -> None:
    rows = sample(4, **{name: to_column(numpy.zeros((4, 1), dtype))})
    with pytest.raises(RequestError) as raised:
        dqn.update_from_batch(rows)
    message = str(raised.value)
    assert message.startswith(f"{name!r} of the batch for module 'default' has shape (4, 1), ")
    assert message.endswith(f"{name}[:, 0]")
    assert (dqn.updates, dqn.timestep) == (0, 0)


# -- building ------------------------------------------------------------------------------------


def test_a_learner_that_is_not_built_says_so() -> None:
    with pytest.raises(RequestError, match=r"none: call build\(\) first"):
        make(built=False).update({"default": batch(1.0)}, timestep=1)


def test_a_module_of_a_plugin_is_an_rlplug_module() -> None:
    with pytest.raises(PluginError, match=r"which is not an rlplug\.Module"):
        make(build=lambda self: object())
