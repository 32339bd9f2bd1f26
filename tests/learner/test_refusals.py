"""What a learner refuses: by name, with an error of its own, and without being changed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torch.optim import SGD

import rlplug
from rlplug import ALL_MODULES, Batch, Loss
from rlplug.config.schedule import Schedule
from rlplug.errors import RequestError
from rlplug.trees import pack
from tests.learner.test_compute import net_settings

OBSERVATIONS, ACTIONS = Box(-1.0, 1.0, (4,)), Discrete(2)


def build(**how: Any) -> Any:
    return rlplug.build_learner("dqn", OBSERVATIONS, ACTIONS, seed=1, **how)


def sample(rows: int, **columns: Any) -> Batch:
    drawn = numpy.random.default_rng(rows)
    return Batch(
        {
            "observations": drawn.random((rows, 4), dtype=numpy.float32),
            "next_observations": drawn.random((rows, 4), dtype=numpy.float32),
            "actions": drawn.integers(2, size=rows),
            "rewards": drawn.random(rows, dtype=numpy.float32),
            "terminated": numpy.zeros(rows, bool),
            "truncated": numpy.zeros(rows, bool),
            **columns,
        }
    )


def said(call: Callable[[], object]) -> str:
    """The message of the error with which a call is refused."""
    with pytest.raises(RequestError) as raised:
        call()
    return str(raised.value)


# -- updates that fail ---------------------------------------------------------------------------


@pytest.mark.parametrize("hook", ["compute_loss_for_module", "additional_update"])
def test_an_update_that_fails_in_a_hook_leaves_the_timestep(
    make: Any, batch: Any, hook: str
) -> None:
    seen: list[int] = []

    def fail(self: Any, learner: Any) -> None:
        seen.append(learner.timestep)
        raise ZeroDivisionError

    learner = make(**{hook: fail})
    with pytest.raises(ZeroDivisionError):
        learner.update({"default": batch(1.0)}, timestep=7)
    # The hook itself runs at the step of the update.
    assert (seen, learner.timestep) == ([7], 0)
    if hook == "additional_update":
        with pytest.raises(ZeroDivisionError):
            learner.additional_update({"default": batch(1.0)}, timestep=9)
        assert (seen, learner.timestep) == ([7, 9], 0)


def test_schedules_stay_where_they_were_when_an_update_fails(make: Any, batch: Any) -> None:
    def loss(self: Any, fwd_out: Any, batch: Any, config: Any) -> Any:
        if "bad" in batch:
            raise ZeroDivisionError
        return (fwd_out["out"] * config.scale).mean()

    learner = make(compute_loss_for_module=loss, options={"scale": Schedule([[0, 1.0], [10, 5.0]])})
    with pytest.raises(ZeroDivisionError):
        learner.update({"default": batch(1.0, bad=torch.ones(1))}, timestep=10)
    assert learner.calls.config_of("alg", "default").scale == 1.0


def test_results_of_an_update_that_failed_are_not_told_with_the_next_ones(
    make: Any, batch: Any
) -> None:
    answers = iter(["loss", None, "failure", "loss"])

    def loss(self: Any, fwd_out: Any) -> Any:
        answer = next(answers)
        if answer == "failure":
            raise ZeroDivisionError
        return fwd_out["out"].mean() if answer else None

    learner = make(compute_loss_for_module=loss)
    with pytest.raises(ZeroDivisionError):
        learner.update({"default": batch(1.0)}, timestep=1, num_iters=3)
    weight = learner.modules["default"].weight.item()
    assert weight == pytest.approx(1.9)
    results = learner.update({"default": batch(2.0)}, timestep=1)["default"]
    assert results["loss"].item() == pytest.approx(2 * weight)
    assert "skipped" not in results


# -- states of modules of other spaces -----------------------------------------------------------

WIDE = Box(-2.0, 1.0, (6,))


@pytest.mark.parametrize("through", ["memory", "a folder"])
def test_modules_of_other_spaces_are_rebuilt_with_those_of_the_state(
    tmp_path: Any, through: str
) -> None:
    wide = rlplug.build_learner("dqn", WIDE, Discrete(3), options={"net_arch": [8]})
    saved = wide.get_state()
    learner = build()
    assert "size mismatch" in said(lambda: learner.set_state(saved))
    assert learner.spaces["default"] == (OBSERVATIONS, ACTIONS)
    if through == "memory":
        learner.set_state(saved, rebuild=True)
    else:
        wide.save_state(tmp_path)
        learner.load_state(tmp_path, rebuild=True)
    assert learner.spaces["default"] == (WIDE, Discrete(3))
    there, here = wide.get_module_state()["default"], learner.get_module_state()["default"]
    assert all(numpy.array_equal(there[name], here[name]) for name in {**there, **here})
    # Whoever saves it again saves the spaces that it has now.
    rlplug.build_learner("dqn", WIDE, Discrete(3), options={"net_arch": [8]}).set_state(
        learner.get_state()
    )


def test_modules_that_only_a_state_has_come_with_their_own_spaces_and_options() -> None:
    first = build()
    first.add_module("wide", (WIDE, Discrete(3)), options={"net_arch": [8], "gamma": 0.5})
    first.add_module("frozen", like="default", trainable=False)
    first.modules_to_train = {"wide"}
    learner = build()
    learner.set_state(first.get_state())
    assert list(learner.modules) == ["default", "wide", "frozen"]
    assert learner.spaces["wide"] == (WIDE, Discrete(3))
    assert learner.calls.config_of("dqn", "wide").gamma == 0.5
    assert not learner.can_module_be_updated("frozen")
    there, here = first.get_module_state(), learner.get_module_state()
    for module_id, weights in there.items():
        assert all(numpy.array_equal(weights[name], here[module_id][name]) for name in weights)
    # What cannot be added is not left half added.
    for part in ("optimizers", "modules"):
        saved = first.get_state()
        saved[part]["wide"] = {"default": {}}
        learner = build()
        said(partial(learner.set_state, saved))
        assert list(learner.modules) == list(learner.spaces) == ["default"]
        assert learner.calls.overrides("wide") == {}


def test_a_rebuilt_module_is_trained_as_before() -> None:
    wide = rlplug.build_learner("dqn", WIDE, ACTIONS)
    wide.modules_to_train = lambda module_id, batch: True
    saved = wide.get_state()
    learner = build()
    chosen: Any = lambda module_id, batch: True  # noqa: E731
    learner.modules_to_train = chosen
    learner.set_state(saved, rebuild=True)
    assert learner.modules_to_train is chosen


# -- states that are damaged ---------------------------------------------------------------------


def unchanged(learner: Any, state: Any, **how: Any) -> str:
    """The message with which a state is refused, which changes nothing."""
    before = learner.get_state()
    message = said(lambda: learner.set_state(state, **how))
    assert digest(learner.get_state()) == digest(before)
    return message


def digest(state: Any) -> bytes:
    tensors: dict[str, torch.Tensor] = {}
    plain = repr(pack(state, tensors))
    return plain.encode() + b"".join(one.numpy().tobytes() for one in tensors.values())


def other_state(make: Any) -> Any:
    """A state whose weights, counters and generators are others than those of a new learner."""
    learner = make(seed=5)
    learner.generator()
    learner.update({"default": Batch({"x": torch.ones(3)})}, timestep=3)
    return learner.get_state()


REQUIRED = (
    *("modules_to_train", "frozen", "modules", "extra", "optimizers", "stages"),
    *("counters", "scaler", "plugin_states", "random", "plugins"),
)


def damage(*path: Any, value: Any = None) -> Callable[[Any], None]:
    """Puts a value in place of what is there; no value deletes it."""

    def change(saved: Any) -> None:
        *parents, last = path
        for one in parents:
            saved = saved[one]
        if value is None:
            del saved[last]
        else:
            saved[last] = value

    change.__name__ = ".".join(map(str, path))
    return change


def test_a_module_with_a_state_of_its_own_that_cannot_load_it_is_named(make: Any) -> None:
    class Counter:
        n = 0

        def state_dict(self) -> dict[str, Any]:
            return {"n": self.n}

        def load_state_dict(self, state: Any) -> None:
            self.n = -1
            self.n = state["n"]

    learner = make(modules={"counter": Counter()})
    saved = learner.get_state()
    saved["modules"]["counter"] = {}
    assert "the state does not fit module 'counter': KeyError: 'n'" in unchanged(learner, saved)
    saved = learner.get_state()
    saved["modules"]["counter"] = {"n": 5}
    learner.set_state(saved)
    assert learner.modules["counter"].n == 5


def test_options_given_before_a_learner_was_built_stay_when_a_state_is_refused(make: Any) -> None:
    saved = make().get_state()
    del saved["stages"]
    learner = make(built=False)
    learner.set_options("default", {"scale": 3.0})
    said(lambda: learner.set_state(saved))
    assert learner.calls.config_of("alg", "default").scale == 3.0


# -- one result per minibatch --------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 2])
def test_minibatches_without_a_loss_have_a_result_without_one(
    make: Any, batch: Any, accumulate: int
) -> None:
    answers = iter([None, "loss", "loss", None] * 3)

    def loss(self: Any, fwd_out: Any) -> Any:
        return fwd_out["out"].mean() if next(answers) else None

    learner = make(compute_loss_for_module=loss, learning={"accumulate": accumulate})
    how: dict[str, Any] = {"minibatch_size": 1, "timestep": 1}
    rows = {"default": batch(*[1.0] * 4)}
    results = learner.update_from_batch(rows, reduce_fn=None, **how)
    assert ["loss" in one["default"] for one in results] == [False, True, True, False]
    assert results[0] == {"default": {}}
    # Averages are over those that have a loss.
    whole = learner.update_from_batch(rows, **how)["default"]
    assert whole["skipped"] == 2
    assert whole["loss"] == pytest.approx(1.75, abs=0.051)
    told = learner.update_from_batch(
        rows, reduce_fn=lambda parts: {"default": {"minibatches": len(parts)}}, **how
    )
    assert told["default"]["minibatches"] == 4


def test_an_optimizer_in_turn_may_be_the_first_with_a_loss(make: Any, batch: Any) -> None:
    def pair(self: Any, module: Any) -> Any:
        sgd = torch.optim.SGD
        return {"one": sgd([module.weight], lr=1.0), "two": sgd([module.other], lr=1.0)}

    def loss(self: Any, fwd_out: Any, optimizers: Any) -> Any:
        return Loss({"two": fwd_out["second"].mean()}) if optimizers == ("two",) else None

    learner = make(
        configure_optimizers_for_module=pair,
        compute_loss_for_module=loss,
        learning={"optimizers": "in_turn"},
    )
    results = learner.update_from_batch({"default": batch(1.0)}, reduce_fn=None, num_iters=2)
    assert [float(one["default"]["loss"]) for one in results] == [2.0, 1.0]


# -- which modules are trained -------------------------------------------------------------------


def test_modules_to_train_may_be_given_before_the_learner_is_built(make: Any, batch: Any) -> None:
    learner = make(ids=("a", "b"), modules={"c": object()}, built=False)
    learner.modules_to_train = ["b", "c"]
    learner.build()
    results = learner.update({"a": batch(1.0), "b": batch(1.0)}, timestep=1)
    assert "a" not in results
    assert "b" in results


@pytest.mark.parametrize(
    "mine", [{"a"}, None, lambda module_id, batch: True], ids=["some", "all", "a function"]
)
def test_a_state_of_a_learner_with_a_function_leaves_which_modules_are_trained(
    make: Any, tmp_path: Any, mine: Any
) -> None:
    saved = make(ids=("a", "b"))
    saved.modules_to_train = lambda module_id, batch: False
    saved.save_state(tmp_path)
    learner = make(ids=("a", "b"))
    learner.modules_to_train = mine
    learner.load_state(tmp_path)
    assert learner.modules_to_train is mine
    saved.modules_to_train = {"b"}
    learner.set_state(saved.get_state())
    assert learner.modules_to_train == {"b"}


# -- folders that are damaged --------------------------------------------------------------------


# -- arguments that are none ---------------------------------------------------------------------


def without(column: str) -> Batch:
    return sample(4).without(frozenset((column,)))


WRONG_CALLS: dict[str, tuple[Callable[[Any], object], str]] = {
    "update of a list": (
        lambda learner: learner.update([sample(4)], timestep=1),
        "batches must be a mapping from module ids to Batches, got a list.",
    ),
    "update of a batch": (
        lambda learner: learner.update(sample(4), timestep=1),
        "batches must be a mapping from module ids to Batches, got one Batch.",
    ),
    "update of None": (
        lambda learner: learner.update_from_batch(None),
        "batches must be a mapping from module ids to Batches, got a NoneType.",
    ),
    "update of columns": (
        lambda learner: learner.update({"default": dict(sample(4))}, timestep=1),
        "'default' is a dict.",
    ),
    "additional update of columns": (
        lambda learner: learner.additional_update({"default": {}}, timestep=1),
        "'default' is a dict.",
    ),
    "prepare columns": (
        lambda learner: learner.prepare_batches({"default": {}}),
        "'default' is a dict.",
    ),
    "update of another id": (
        lambda learner: learner.update({3: sample(4)}, timestep=1),
        "the learner has no module 3.",
    ),
    "no rewards": (
        lambda learner: learner.update_from_batch(without("rewards")),
        "the batch has no column 'rewards'.\n  it has: observations, next_observations, actions,",
    ),
    "wide observations": (
        lambda learner: learner.update_from_batch(
            sample(4, observations=numpy.ones((4, 6), numpy.float32))
        ),
        "'observations' of the batch for module 'default' is of shape (6,), its space has (4,).",
    ),
    "wide next observations": (
        lambda learner: learner.update_from_batch(sample(4, next_observations=torch.ones((4, 6)))),
        "'next_observations' of the batch for module 'default' is of shape (6,), its space has",
    ),
    "no result of reduce_fn": (
        lambda learner: learner.update_from_batch(sample(4), reduce_fn=lambda parts: None),
        "reduce_fn gave None, not metrics by module id.",
    ),
    "a number of reduce_fn": (
        lambda learner: learner.update_from_batch(sample(4), reduce_fn=lambda parts: {"a": 1}),
        "reduce_fn gave {'a': 1}, not metrics by module id.",
    ),
    "no states of optimizers": (
        lambda learner: learner.set_optimizer_state(None),
        "the states of optimizers are a NoneType, not a mapping.",
    ),
    "no states of optimizers of a module": (
        lambda learner: learner.set_optimizer_state({"default": None}),
        "that of the optimizers of module 'default' is a NoneType, not a mapping.",
    ),
    "no state of an optimizer": (
        lambda learner: learner.set_optimizer_state({"default": {"default": None}}),
        "that of optimizer 'default' of module 'default' is none of torch.",
    ),
    "no weights": (
        lambda learner: learner.set_module_state(None),
        "the weights are a NoneType, not a mapping.",
    ),
    "no weights of a module": (
        lambda learner: learner.set_module_state({"default": None}),
        "the weights of module 'default' are a NoneType, not a mapping.",
    ),
    "no state": (lambda learner: learner.set_state(None), "not a NoneType."),
    "no folder": (lambda learner: learner.load_state(None), "the folder of a state is a NoneType"),
    "a number to save to": (
        lambda learner: learner.save_state(3),
        "the folder of a state is a int",
    ),
    "a number as an id": (
        lambda learner: learner.add_module(1, (OBSERVATIONS, ACTIONS)),
        "the id of a module is a text that is not empty, got 1.\n  try: '1'",
    ),
    "weights of a text": (
        lambda learner: learner.get_module_state("default"),
        "module_ids is the text 'default'.\n  try: module_ids = {'default'}",
    ),
    "weights of a number": (
        lambda learner: learner.get_module_state(3),
        "module_ids is a int.\n  give the ids of modules, or None for all torch modules",
    ),
    "states of optimizers of a text": (
        lambda learner: learner.get_optimizer_state("default"),
        "module_ids is the text 'default'.",
    ),
    "additional update of a text": (
        lambda learner: learner.additional_update(
            {"default": sample(4)}, timestep=0, module_ids="default"
        ),
        "module_ids is the text 'default'.",
    ),
    "outputs of None": (
        lambda learner: learner.forward_train(None),
        "batches must be a mapping from module ids to Batches, got a NoneType.",
    ),
    "losses of no outputs": (
        lambda learner: learner.compute_loss(None, {"default": sample(4)}),
        "the outputs of modules are a NoneType, not a mapping.",
    ),
    "losses of other outputs": (
        lambda learner: learner.compute_loss({}, {"default": sample(4)}),
        "there is no output of module 'default'.",
    ),
    "gradients of None": (
        lambda learner: learner.compute_gradients(None),
        "the losses are a NoneType, not a mapping.\n  give what compute_loss gave",
    ),
    "gradients of no loss": (
        lambda learner: learner.compute_gradients({}),
        "there is no loss to compute gradients of.",
    ),
    "gradients of a number": (
        lambda learner: learner.compute_gradients({"default": 3.0}),
        "the loss of module 'default' is a float, not a tensor.",
    ),
    "no gradients to postprocess": (
        lambda learner: learner.postprocess_gradients(None),
        "the gradients are a NoneType, not a mapping.\n  give what compute_gradients gave",
    ),
    "gradients by name": (
        lambda learner: learner.postprocess_gradients({"weight": 3.0}),
        "gradients are tensors by parameter, found a float of a str.",
    ),
    "no gradients of a module": (
        lambda learner: learner.postprocess_gradients_for_module("default", None),
        "the gradients are a NoneType, not a mapping.",
    ),
    "gradients of another module": (
        lambda learner: learner.postprocess_gradients_for_module("z", {}),
        "the learner has no module 'z'.",
    ),
    "no gradients to apply": (
        lambda learner: learner.apply_gradients(None),
        "the gradients are a NoneType, not a mapping.",
    ),
    "no optimizer": (
        lambda learner: learner.register_optimizer("default", "second", None),
        "optimizer 'second' is a NoneType, not a torch optimizer.",
    ),
    "no metrics": (
        lambda learner: learner.register_metrics("default", None),
        "the metrics are a NoneType, not a mapping.\n  give {name: value}",
    ),
    "no settings of optimizers": (
        lambda learner: learner.set_optimizer_settings(None),
        "the settings of optimizers are a NoneType, not a mapping.",
    ),
    "one space": (
        lambda learner: learner.add_module("a", OBSERVATIONS),
        "module 'a' needs an observation space and an action space, got Box(",
    ),
}


def test_observations_of_a_dict_are_checked_part_by_part(make: Any) -> None:
    space = Dict(a=Box(-1, 1, (2,)), action_mask=Box(0, 1, (3,)))
    learner = make(modules={}, built=False)
    learner.spaces["default"] = (space, ACTIONS)
    learner.build()

    def rows(**parts: int) -> Any:
        observations = {name: torch.ones(3, width) for name, width in parts.items()}
        return {"default": Batch({"x": torch.ones(3), "observations": observations})}

    # What the module does not get, nobody looks at.
    learner.update_from_batch(rows(a=2), timestep=1)
    learner.update_from_batch(rows(a=2, action_mask=1), timestep=1)
    message = said(lambda: learner.update_from_batch(rows(a=3), timestep=2))
    assert "'observations' of the batch for module 'default' is with 'a' of shape (3,)" in message
    assert learner.timestep == 1


def test_a_missing_column_is_a_key_error_as_of_any_mapping() -> None:
    rows = sample(3)
    for call in (lambda: rows["reward"], lambda: rows.array("reward")):
        with pytest.raises(KeyError, match=r"^the batch has no column 'reward'\.\n  it has: obs"):
            call()
    assert rows.get("reward") is None
    assert rows.get("reward", 3) == 3
    assert rows.get("rewards") is rows["rewards"]
    assert "reward" not in rows


def test_a_seed_is_given_once_in_any_of_both_ways() -> None:
    message = said(lambda: build(options={"run.seed": 5}))
    assert "run.seed   is the same option as 'seed': set one" in message
    by_option = rlplug.build_learner("dqn", OBSERVATIONS, ACTIONS, options={"run.seed": 5})
    by_name = rlplug.build_learner("dqn", OBSERVATIONS, ACTIONS, seed=5)
    none = rlplug.build_learner("dqn", OBSERVATIONS, ACTIONS)
    zero = rlplug.build_learner("dqn", OBSERVATIONS, ACTIONS, seed=0)
    weights = [
        one.get_module_state()["default"]["network.body.hidden.0.weight"].tolist()
        for one in (by_option, by_name, none, zero)
    ]
    assert weights[0] == weights[1] != weights[2] == weights[3]
    for seed in (-1, "x", 1.5):
        wrong = partial(rlplug.build_learner, "dqn", OBSERVATIONS, ACTIONS, seed=seed)
        assert "run.seed" in said(wrong)


def test_only_add_module_takes_what_is_no_torch_module(make: Any, batch: Any) -> None:
    class Dice:
        """Acts, and learns nothing."""

    def prepare(self: Any, module: Any, batch: Any) -> Any:
        return {"doubled": 2 * module.weight.detach() * batch["x"]}

    assert "which is not an rlplug.Module" in said(lambda: make(build=lambda self: Dice()))
    learner = make(prepare_batch=prepare)
    dice = learner.add_module("dice", module=Dice())
    assert learner.modules["dice"] is dice
    results = learner.update({"default": batch(1.0), "dice": batch(1.0)}, timestep=1)
    assert "loss" in results["default"]
    assert "dice" not in learner.get_state()["modules"]
    learner.set_state(make().get_state())
    assert learner.modules["dice"] is dice


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_a_schedule_of_learning_rates_that_is_past_its_end_says_so(
    make: Any, batch: Any, interval: str
) -> None:
    def cycle(self: Any, module: Any) -> Any:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=3)
        return [optimizer], [{"scheduler": scheduler, "interval": interval}]

    learner = make(configure_optimizers_for_module=cycle)
    learner.update({"default": batch(1.0)}, timestep=2, num_iters=2)
    with pytest.raises(ValueError, match="total steps is 3"):
        learner.update({"default": batch(1.0)}, timestep=4, num_iters=2)
    assert learner.timestep == 2


def test_a_module_that_nothing_trains_is_told_once(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def optimizers(self: Any, module_id: str, module: Any) -> Any:
        # Nothing is shared: it is never asked for.
        return SGD(module.parameters(), 0.1) if module_id == ALL_MODULES else None

    settings = {**net_settings(), "configure_optimizers_for_module": optimizers}
    rows = Batch({"x": torch.ones(4, 4)})
    learner = make(**settings)
    for step in range(2):
        learner.update({"default": rows}, timestep=step)
    (told,) = [record.getMessage() for record in caplog.records]
    assert "nothing trains module 'default': plugin 'alg' returned no optimizer" in told
    # One that has an optimizer, has nothing to train, or is no matter of the loss, is not told.
    caplog.clear()
    make(**net_settings()).update({"default": rows}, timestep=0)
    frozen = make(**settings)
    frozen.modules["default"].requires_grad_(False)
    frozen.update({"default": rows}, timestep=0)
    make(**{**settings, "compute_loss_for_module": None}).update({"default": rows}, timestep=0)
    assert not caplog.records


# -- columns of a batch --------------------------------------------------------------------------


@pytest.mark.parametrize("to_column", [numpy.asarray, torch.as_tensor])
@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("rewards", numpy.ones((4, 1), numpy.float32)),
        ("terminated", numpy.zeros((4, 1), bool)),
        ("truncated", numpy.zeros((4, 1), bool)),
        ("weights", numpy.ones((4, 1), numpy.float32)),
        ("discounts", numpy.ones((4, 1), numpy.float32)),
        ("actions", numpy.zeros((4, 1), int)),
    ],
)
def test_a_column_vector_is_refused_where_each_row_has_one_number(
    name: str, column: Any, to_column: Any
) -> None:
    learner, rows = build(), sample(4, **{name: to_column(column)})
    message = said(partial(learner.update_from_batch, rows))
    assert message.startswith(f"{name!r} of the batch for module 'default' has shape (4, 1), ")
    assert message.endswith(f"{name}[:, 0]")
    assert (learner.updates, learner.timestep) == (0, 0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("arrays", ["auto", "off"])
def test_gradients_end_at_the_columns_of_a_batch(arrays: str, dtype: str) -> None:
    encoder = torch.nn.Linear(4, 4)
    seen = encoder(torch.ones(4, 4))
    learner = build(options={"compute.arrays": arrays, "compute.dtype": dtype})
    learner.update_from_batch(sample(4, observations=seen), num_iters=2)
    assert encoder.weight.grad is None
    assert seen.requires_grad
