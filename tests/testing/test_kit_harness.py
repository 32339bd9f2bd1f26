"""Harnesses of the kit: what they train, copy and isolate, and the order of add-ons in them."""

from __future__ import annotations

import random
import threading
from functools import partial
from typing import Any

import numpy
import pytest
import torch

from rlplug import AddOn, Batch
from rlplug.errors import RequestError
from rlplug.testing import Subject
from rlplug.testing.algorithms import PolicyGradient, QLearning
from rlplug.testing.cases import CASES
from rlplug.testing.harness import (
    GlobalGenerators,
    changed_generators,
    make_harness,
    participant_of,
)
from rlplug.testing.lockstep import Lockstep


class First(AddOn):
    """Does nothing."""


class Second(AddOn):
    """Does nothing, either."""


class Third(AddOn):
    """Nor does this."""


@pytest.mark.parametrize(
    ("draw", "names"),
    [
        (lambda: torch.rand(1), ["torch"]),
        (lambda: numpy.random.random(), ["numpy.random"]),
        (lambda: random.random(), ["random"]),
        (lambda: torch.manual_seed(torch.initial_seed() + 1), ["torch", "torch.manual_seed"]),
        (lambda: None, []),
    ],
)
def test_generators_that_were_drawn_from_are_named_and_set_back(draw: Any, names: Any) -> None:
    torch.manual_seed(3)
    random.seed(3)
    numpy.random.seed(3)

    def state() -> Any:
        return torch.get_rng_state().tolist(), random.getstate(), numpy.random.get_state()[2]

    before = state()
    with changed_generators() as changed:
        draw()
    assert changed == names
    assert state() == before


def test_generators_of_a_harness_are_its_own() -> None:
    torch.manual_seed(3)
    outside = torch.get_rng_state()
    one, other = GlobalGenerators(5), GlobalGenerators(5)
    found = []
    for generators in (one, one, other, other):
        with generators():
            found.append(float(torch.rand(1)))
        assert torch.equal(torch.get_rng_state(), outside)
    assert found[0] != found[1]
    assert found[:2] == found[2:]
    one.reseed(5)
    with one():
        assert float(torch.rand(1)) == found[0]
    noted = GlobalGenerators(5, "in there")
    with pytest.raises(ZeroDivisionError) as raised, noted():
        raise ZeroDivisionError
    assert raised.value.__notes__ == ["in there"]
    assert torch.equal(torch.get_rng_state(), outside)


def test_training_counts_steps_and_changes_weights() -> None:
    harness = make_harness(Subject.of(QLearning))
    before, state = harness.weights(), harness.state()
    assert "random" not in state
    assert len(harness.train(2, steps=3)) == 2
    assert harness.timestep == 2 * 3 * 4
    assert len(harness.train_as_a_run(3)) == 3
    assert harness.timestep == 2 * 3 * 4 + 3 * 8 * 4
    after = harness.weights()
    assert set(after) == {"default"}
    assert not torch.equal(after["default"]["q.0.bias"], before["default"]["q.0.bias"])
    # Copies.
    after["default"]["q.0.bias"] += 1
    assert not torch.equal(after["default"]["q.0.bias"], harness.weights()["default"]["q.0.bias"])
    assert set(harness.parameters()) == {"q.0.weight", "q.0.bias", "q.2.weight", "q.2.bias"}
    assert harness.collect(5)["default"].rows == 20
    two = make_harness(Subject.of(QLearning), {"a": CASES[0], "b": CASES[0]})
    assert {name.partition(".")[0] for name in two.parameters()} == {"a", "b"}
    batches = two.collect(2)
    two.update(batches)
    assert two.timestep == 16


def test_gradients_are_of_prepared_batches() -> None:
    harness = make_harness(Subject.of(PolicyGradient))
    batch = harness.collect()["default"]
    prepared = harness.prepare(batch)
    assert {"targets", "advantages"} <= set(prepared)
    one, other = harness.gradients(batch), harness.gradients_of(prepared)
    assert one is not None
    assert other is not None
    assert all(torch.equal(one[param], other[param]) for param in one)
    assert set(one) == set(harness.parameters().values())
    lacking = Batch({name: batch[name] for name in batch if name != "rewards"})
    with pytest.raises(KeyError):
        harness.gradients_of(lacking)


def test_seeds_of_a_subject_are_far_from_each_other() -> None:
    def bias(**arguments: Any) -> Any:
        seed = arguments.pop("of", 0)
        return make_harness(Subject.of(QLearning, seed=seed), **arguments).seed

    assert bias() == 0
    assert bias(seed=3) == 3
    assert bias(of=2, seed=3) == 2003


def test_add_ons_take_part_in_the_order_that_is_asked_for() -> None:
    before, after = participant_of(Second), participant_of(Third)
    harness = make_harness(Subject.of(First), before=[before], after=[after], algorithm=QLearning)
    names = [one.found.name for one in harness.calls.participants]
    assert names == ["qlearning", "second", "first", "third"]
    harness = make_harness(Subject.of(QLearning), before=[before], after=[after])
    names = [one.found.name for one in harness.calls.participants]
    assert names == ["qlearning", "second", "third"]


@pytest.mark.parametrize("together", [0, 1])
@pytest.mark.parametrize("alone", [0, 1])
def test_a_learner_that_combines_alone_is_told_so_and_waits_for_nobody(
    alone: int, together: int
) -> None:
    lockstep = Lockstep()
    given: list[Any] = []

    def task(rank: int) -> None:
        for number in range(together + (rank == alone)):
            given.append(lockstep.exchange(rank, (rank, number)))

    def run() -> None:
        try:
            lockstep.run([partial(task, rank) for rank in (0, 1)])
        except RequestError as error:
            given.append(str(error))

    # So that a test that would wait for ever ends.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    *both, said = given
    assert both == [[(0, 0), (1, 0)]] * 2 * together
    assert said.startswith("one of two learners combined numbers, and the other one did not.")
