"""Modules of a learner: which learn, which share, how they come and go, and their own options."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy
import pytest
import torch
from torch import nn
from torch.optim import SGD

from rlplug import ALL_MODULES, Batch, Module
from rlplug.batch.episodes import Episode
from rlplug.errors import PluginError, RequestError, UnsupportedSpaceError
from rlplug.nn import FixedTarget, PolyakTarget, TargetNetwork
from tests.learner.small import BOX, SPACES, Head, batch, line, make, sharing, update, weights


class Dice:
    """Acts, and learns nothing."""

    def forward_exploration(self, act: Any) -> Any:
        return act


def scaled(self: Any, fwd_out: Any, config: Any) -> Any:
    return fwd_out["out"].mean() * config.scale


def losses(learner: Any, *ids: str) -> list[float]:
    """The losses of modules, each of a batch with a 1."""
    results = learner.update(dict.fromkeys(ids, batch(1.0)), timestep=1)
    return [round(float(results[name]["loss"]), 5) for name in ids]


# -- which are trained ---------------------------------------------------------------------------


def test_modules_to_train_may_be_ids_or_a_function_of_the_batch() -> None:
    learner = make(ids=("a", "b"))
    batches = {"a": batch(1.0), "b": batch(1.0, 1.0)}
    learner.modules_to_train = {"b"}
    assert set(learner.update(batches, timestep=1)) == {"b", ALL_MODULES}
    learner.modules_to_train = lambda module_id, batch: batch.rows == 1
    assert set(learner.update(batches, timestep=1)) == {"a", ALL_MODULES}
    assert set(batches) == {"a", "b"}


def test_a_module_without_optimizers_runs_no_forward_pass() -> None:
    class Closed(Module):
        def forward_train(self, batch: Any) -> Any:
            raise AssertionError("nobody needs it")

    learner = make(
        build=lambda self: Closed(),
        optimizers=lambda self: None,
        loss=None,
        finish=lambda self, batch, timestep: {"rows": batch.rows, "at": timestep},
    )
    assert update(learner, 1.0, 2.0, step=7) == {"rows": 2, "at": 7}


def test_a_module_that_nothing_trains_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    none = {"optimizers": lambda self: None}
    learner = make(**none)
    for step in range(2):
        update(learner, 1.0, step=step)
    (told,) = [record.getMessage() for record in caplog.records]
    assert "nothing trains module 'default': plugin 'alg' returned no optimizer" in told
    # One that has an optimizer, has nothing to train, or is no matter of the loss, is not told.
    caplog.clear()
    frozen = make(**none)
    frozen.modules["default"].requires_grad_(False)
    for silent in (make(), frozen, make(**none, loss=None)):
        update(silent, 1.0)
    assert not caplog.records


# -- batches -------------------------------------------------------------------------------------


def test_the_callers_batch_is_never_changed() -> None:
    rows = Batch({"x": numpy.ones(3), "y": numpy.zeros(3)})
    learner = make(prepare=lambda self, batch: {"x": batch["x"] * 2, "more": batch["x"]})
    metrics = learner.update({"default": rows}, timestep=1)["default"]
    assert float(metrics["loss"]) == 4.0
    assert list(rows) == ["x", "y"]
    assert rows.array("x").tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("learning", "counts"),
    [
        ({}, [6, 2]),
        ({"cycle_minibatches": True}, [6, 6]),
        ({"cycle_minibatches": True, "accumulate": 2}, [6, 6]),
    ],
)
def test_minibatches_of_a_smaller_module_cycle_where_that_is_asked_for(
    learning: Any, counts: list[int]
) -> None:
    seen: list[str] = []

    def loss(self: Any, module_id: str, fwd_out: Any) -> Any:
        seen.append(module_id)
        return fwd_out["out"].mean()

    learner = make(ids=("a", "b"), loss=loss, learning=learning)
    rows = {"a": batch(*[1.0] * 6), "b": batch(1.0, 1.0)}
    learner.update_from_batch(rows, minibatch_size=2, num_iters=2)
    assert [seen.count(name) for name in ("a", "b")] == counts
    # The rows of all modules are counted where no timestep is given.
    assert learner.timestep == 8


def test_episodes_are_learned_as_fragments_of_a_batch() -> None:
    """tests/test_batch.py has what becomes of them."""

    def episode(*values: float) -> Episode:
        column = numpy.array(values)[:, None]
        actions, rewards = numpy.arange(len(values) - 1), numpy.array(values[:-1])
        return Episode(
            observations=column[:-1], final_observation=column[-1], actions=actions, rewards=rewards
        )

    learner = make(prepare=lambda self, batch: {"x": batch["rewards"]})
    results = learner.update_from_episodes([episode(1.0, 2.0, 3.0), episode(7.0, 8.0)])
    assert float(results["default"]["loss"]) == pytest.approx(2 * (1 + 2 + 7) / 3)
    with pytest.raises(RequestError, match="has no steps"):
        make().update_from_episodes([episode(1.0)])


# -- coming and going ----------------------------------------------------------------------------


def test_modules_are_added_and_removed_in_mid_training() -> None:
    learner = make(addons={"more": {"build_extra": lambda self: nn.Linear(2, 2)}})
    update(learner, 1.0)
    learner.add_module("copy", like="default")
    assert weights(learner, "copy")[0] == 1.9
    extras = learner.extra
    assert torch.equal(extras["copy"]["more"].weight, extras["default"]["more"].weight)
    learner.update({"default": batch(1.0), "copy": batch(2.0)}, timestep=2)
    assert (weights(learner)[0], weights(learner, "copy")[0]) == (1.8, 1.7)
    learner.remove_module("copy")
    assert list(learner.modules) == list(learner.extra) == ["default"]
    with pytest.raises(KeyError, match="copy"):
        learner.get_optimizer("copy")


def test_spaces_that_an_algorithm_does_not_support_add_no_module() -> None:
    def supports(self: Any, observation_space: Any, action_space: Any) -> Any:
        return None if isinstance(action_space, gymnasium.spaces.Box) else "it acts in Boxes."

    learner = make(supports=supports)
    with pytest.raises(UnsupportedSpaceError, match="cannot have module 'new': it acts in Boxes"):
        learner.add_module("new", (BOX, gymnasium.spaces.Discrete(2)))
    assert list(learner.modules) == list(learner.spaces) == ["default"]


@pytest.mark.parametrize("where", ["build", "build_extra", "optimizers"])
def test_a_module_that_cannot_be_added_leaves_the_learner_as_it_was(where: str) -> None:
    broken = []
    answers = {
        "build": lambda module: Head(line()),
        "build_extra": lambda module: line(),
        "optimizers": lambda module: SGD(module.parameters(), lr=1.0),
    }

    def answer(module_id: str, module: Any = None) -> Any:
        if broken:
            raise ValueError(f"no {module_id}")
        return answers[where](module)

    def build(self: Any, module_id: str) -> Any:
        return answer(module_id)

    def after(self: Any, module_id: str, module: Any) -> Any:
        return answer(module_id, module)

    learner = make(**{where: build if where == "build" else after})
    broken.append(True)
    with pytest.raises(ValueError, match="no new"):
        learner.add_module("new", SPACES, options={"scale": 2.0})
    assert list(learner.modules) == list(learner.spaces) == list(learner.extra) == ["default"]
    assert learner.get_optimizers_for_module("new") == []
    broken.clear()
    learner.add_module("new", SPACES)
    before = learner.weight_digests()
    learner.update({"new": batch(1.0)}, timestep=1)
    assert learner.weight_digests() != before


# -- options of one module -----------------------------------------------------------------------


def test_options_of_one_module_are_in_force_from_the_next_update_on_and_go_with_it() -> None:
    learner = make(loss=scaled, options={"learning_rate": 0.0})
    learner.add_module("loud", like="default", options={"scale": 10.0})
    assert losses(learner, "default", "loud") == [2.0, 20.0]
    learner.set_options("loud", {"scale": 3.0})
    learner.add_module("copy", like="loud")
    learner.add_module("apart", SPACES)
    learner.set_options("copy", {"scale": 4.0})
    assert losses(learner, "default", "loud", "copy", "apart") == [2.0, 6.0, 8.0, 2.0]
    with pytest.raises(RequestError, match="did you mean 'scale'"):
        learner.set_options("loud", {"scael": 3.0})
    learner.modules_to_train = {"loud"}
    learner.remove_module("loud")
    assert learner.modules_to_train == set()
    learner.modules_to_train = None
    learner.add_module("loud", like="default")
    assert losses(learner, "loud") == [2.0]


def reads_scale(self: Any, module: Any, config: Any) -> Any:
    return SGD(module.parameters(), config.learning_rate, min(config.scale, 0.5))


@pytest.mark.parametrize(
    ("hooks", "options", "setting"),
    [
        ({}, {"learning_rate": 0.5}, "lr"),
        ({"optimizers": None}, {"learning_rate": 0.5}, "lr"),
        ({"optimizers": reads_scale}, {"scale": 0.25}, "momentum"),
    ],
)
def test_what_the_optimizers_of_a_module_were_made_with_is_refused(
    hooks: Any, options: Any, setting: str
) -> None:
    learner = make(ids=("a", "b"), **hooks)
    (name,) = options
    with pytest.raises(RequestError, match=f"made with '{name}'"):
        learner.set_options("a", options)
    # For a module that is not there yet nothing was made.
    learner.add_module("c", SPACES, options=options)
    assert learner.get_optimizer("c").param_groups[0][setting] == options[name]


# -- what modules share --------------------------------------------------------------------------


def test_a_shared_encoder_gets_the_gradients_of_both_modules() -> None:
    learner = make(**sharing())
    results = learner.update({"a": batch(0.25), "b": batch(0.5)}, timestep=1)
    encoder = learner.modules["a"].encoder.weight
    assert encoder is learner.modules["b"].encoder.weight
    assert encoder.item() == 1 - (0.25 + 0.5)
    assert [learner.modules[name].weight.item() for name in ("a", "b")] == [0.75, 0.5]
    assert float(results[ALL_MODULES]["grad_norm"]) == 0.75
    assert learner.get_optimizer(ALL_MODULES).param_groups[0]["params"] == [encoder]


def bodies(hook: Any, *ids: str, frozen: bool = False) -> Any:
    """Modules of the same first letter share a body."""
    layers = {name: line() for name in "xy"}
    layers["y"].requires_grad_(not frozen)
    return make(
        ids=ids or ("x1", "x2"),
        build=lambda self, module_id: Head(layers[module_id[0]]),
        optimizers=hook,
        loss=lambda self, fwd_out: fwd_out["out"].sum(),
    )


def optimize(self: Any, module_id: str, module: Any) -> Any:
    return SGD(module.parameters() if module_id == ALL_MODULES else [module.weight], lr=0.1)


def test_a_body_that_would_never_train_is_refused() -> None:
    learner = bodies(optimize)
    learner.add_module("x3", SPACES)
    learner.add_module("y1", SPACES)
    with pytest.raises(PluginError, match=r"module 'y1' shares 'encoder\.weight' with a module"):
        learner.add_module("y2", SPACES)
    assert list(learner.modules) == ["x1", "x2", "x3", "y1"]
    update(learner, 1.0)
    encoder = line()
    alone = make(build=lambda self: Head(encoder))
    with pytest.raises(PluginError, match=r"shares|which other modules share|'default'"):
        alone.add_module("new", SPACES)
    assert list(alone.modules) == ["default"]


# -- target networks -----------------------------------------------------------------------------


class Followed(Module):
    """One weight that starts at 2, and a target that follows it."""

    def __init__(self, target: TargetNetwork) -> None:
        super().__init__()
        self.line = line(2.0)
        self.other = nn.Parameter(torch.ones(1))
        self.target = target.init(self.line)

    def forward_train(self, batch: Any) -> Any:
        return {"out": self.line(batch["x"][:, None]), "second": batch["x"] * self.other}


def followed(target: Any, **known: Any) -> Any:
    hooks = {
        "build": lambda self: Followed(target()),
        "optimizers": lambda self, module: SGD([module.line.weight], lr=1.0),
    }
    return make(**{**hooks, **known})


def pair_of(learner: Any, module_id: str = "default") -> tuple[float, float]:
    module = learner.modules[module_id]
    return module.line.weight.item(), module.target.model.weight.item()


@pytest.mark.parametrize(
    ("target", "steps", "expected"),
    [
        # 2 - 1 = 1, and half of the way from 2 to 1.
        (lambda: PolyakTarget(0.5), (1, 2), [(1.0, 1.5), (0.0, 0.75)]),
        (lambda: FixedTarget(2), (1, 2, 3), [(1.0, 2.0), (0.0, 0.0), (-1.0, 0.0)]),
        # An interval in steps is met by the first update after it.
        (lambda: FixedTarget(10, "step"), (8, 12, 16), [(1.0, 2.0), (0.0, 0.0), (-1.0, 0.0)]),
    ],
)
def test_targets_follow_after_optimizer_steps(target: Any, steps: Any, expected: Any) -> None:
    learner = followed(target, ids=("a", "b", "c"))
    for step, each in zip(steps, expected, strict=True):
        update(learner, 1.0, step=step)
        assert [pair_of(learner, name) for name in "abc"] == [each] * 3
