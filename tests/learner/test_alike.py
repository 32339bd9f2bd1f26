"""Modules of equal architecture that cannot share their code are updated one by one."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any

import attrs
import numpy
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils.parametrizations import weight_norm
from torch.optim import Adam

from rlplug import Batch, Loss, Module

IDS = ("a", "b", "c", "d")
Both = Callable[..., tuple[Any, Any]]


class Net(Module):
    """A body, an activation and a head."""

    def __init__(self, act: Any = torch.tanh) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 5), nn.Linear(5, 2)
        self.act = act

    def forward_train(self, batch: Any) -> Any:
        return {"out": self.head(self.act(self.body(batch["x"])))}


def numbered(kind: Callable[[int], Any]) -> Callable[[Any, str], Any]:
    """A `build` hook that gives each module another number."""
    return lambda self, module_id: kind(IDS.index(module_id))


def mean_square(self: Any, fwd_out: Any) -> Any:
    return fwd_out["out"].pow(2).mean()


@pytest.fixture
def both(make: Any) -> Both:
    """Two learners of four modules: one updates them one by one, the other together if it can."""

    def learners(**known: Any) -> tuple[Any, Any]:
        settings = {
            "ids": IDS,
            "build": lambda self: Net(),
            "configure_optimizers_for_module": lambda self, module: Adam(module.parameters(), 0.05),
            "compute_loss_for_module": mean_square,
            **known,
        }
        return tuple(make(**settings, learning={"join_from": n}) for n in (0, 4))  # type: ignore[return-value] # two

    return learners


def batches(**columns: Any) -> dict[str, Batch]:
    generator = torch.Generator().manual_seed(1)
    return {
        name: Batch({"x": torch.randn(6, 3, generator=generator), **columns.get(name, {})})
        for name in IDS
    }


def assert_equal_updates(
    learners: tuple[Any, Any],
    change: Callable[[Any], Any] | None = None,
    rows: Callable[[], dict[str, Batch]] = batches,
) -> None:
    """Five updates give the same; before the third one, something is changed."""
    for step in range(5):
        found = []
        for learner in learners:
            if step == 2 and change is not None:
                change(learner)
            found.append(learner.update(rows(), timestep=step))
        for name in IDS:
            mine, its = (float(one[name]["loss"]) for one in found)
            assert its == pytest.approx(mine, abs=1e-5)
    for name in IDS:
        mine, its = (learner.modules[name].state_dict() for learner in learners)
        for key, value in mine.items():
            torch.testing.assert_close(its[key], value, atol=1e-5, rtol=0)


def together(learner: Any) -> bool:
    """Whether all modules are updated together."""
    engines = learner._engines.vmap_groups.engines
    return [len(one.updates) for one in engines if one.works] == [len(IDS)]


def test_alike_modules_are_updated_together(both: Both) -> None:
    learners = both()
    assert_equal_updates(learners)
    assert together(learners[1])


# -- what a module is made of ----------------------------------------------------------------------


class Frozen(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body.requires_grad_(False)


class Masked(Net):
    def __init__(self) -> None:
        super().__init__()
        self.body.weight.register_hook(lambda gradient: gradient * 0)


class Normed(Net):
    def __init__(self) -> None:
        super().__init__()
        weight_norm(self.body)


@pytest.mark.parametrize("kind", [Frozen, Masked, Normed])
def test_layers_that_are_trained_otherwise_are_left_as_they_are(both: Both, kind: Any) -> None:
    learners = both(build=lambda self: kind())
    assert_equal_updates(learners)
    assert not together(learners[1])


@attrs.frozen
class Gain:
    by: float

    def __call__(self, rows: Any) -> Any:
        return rows * self.by


class Slotted:
    __slots__ = ("by",)

    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, rows: Any) -> Any:
        return rows * self.by


def scaled(rows: Any, by: float) -> Any:
    return rows * by


def scaling(by: float) -> Any:
    return lambda rows: rows * by


class OwnState(Net):
    """Says nothing of its gain."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.gain = number + 1.0

    def forward_train(self, batch: Any) -> Any:
        return {"out": super().forward_train(batch)["out"] * self.gain}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "gain": 1.0}


@pytest.mark.parametrize(
    "build",
    [
        lambda n: Net((torch.relu, torch.tanh)[n % 2]),
        lambda n: Net((nn.functional.relu, nn.functional.elu)[n % 2]),
        lambda n: Net(scaling(n + 1.0)),
        lambda n: Net(functools.partial(scaled, by=n + 1.0)),
        lambda n: Net(Gain(n + 1.0)),
        lambda n: Net(Slotted(n + 1.0)),
        lambda n: Net(Gain(n + 1.0).__call__),
        lambda n: OwnState(n),
        lambda n: type("Net", (Net,), {"factor": n})(),
    ],
)
def test_modules_that_differ_in_what_they_hold_are_not_taken_for_one(
    both: Both, build: Any
) -> None:
    learners = both(build=numbered(build))
    assert_equal_updates(learners)
    assert not together(learners[1])


def test_equal_functions_and_values_are_no_difference(both: Both) -> None:
    class Valued(Net):
        def __init__(self) -> None:
            super().__init__(nn.functional.elu)
            self.sizes, self.gain, self.kind = (3, 5, 2), Gain(2.0), nn.Linear

        def forward_train(self, batch: Any) -> Any:
            return {"out": self.gain(super().forward_train(batch)["out"])}

    learners = both(build=lambda self: Valued())
    assert_equal_updates(learners)
    assert together(learners[1])


# -- what a hook does that is not the same for all -------------------------------------------------


def with_a_penalty(self: Any, module: Any, fwd_out: Any) -> Any:
    trained = [param for param in module.parameters() if param.requires_grad]
    return mean_square(self, fwd_out) + 0.1 * sum(param.pow(2).sum() for param in trained)


def by_module(self: Any, module: Any, fwd_out: Any) -> Any:
    return mean_square(self, fwd_out) * self.gains[id(module)]


def with_a_draw(self: Any, fwd_out: Any) -> Any:
    return mean_square(self, fwd_out) * float(numpy.random.uniform(0.5, 2.0))


@pytest.mark.parametrize("hook", [with_a_penalty, by_module, with_a_draw])
def test_hooks_that_are_not_the_same_for_all_are_called_for_each(both: Both, hook: Any) -> None:
    learners = both(compute_loss_for_module=hook)
    for learner in learners:
        plugin = learner.calls.algorithm.plugin
        plugin.gains = {id(one): n + 1.0 for n, one in enumerate(learner.modules.values())}
    losses = []
    for learner in learners:
        numpy.random.seed(0)
        found = [learner.update(batches(), timestep=n, num_iters=3) for n in range(3)]
        losses.append([float(one[name]["loss"]) for one in found for name in IDS])
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
    assert not together(learners[1])


def test_columns_that_are_written_to_are_those_of_the_batch(both: Both) -> None:
    class Halving(Net):
        def forward_train(self, batch: Any) -> Any:
            batch["x"].mul_(0.5)
            return super().forward_train({"x": batch["x"].clone()})

    learners = both(build=lambda self: Halving())
    losses = []
    for learner in learners:
        found = [learner.update(batches(), timestep=n, num_iters=3) for n in range(3)]
        losses.append([float(one[name]["loss"]) for one in found for name in IDS])
    assert losses[1] == pytest.approx(losses[0], abs=1e-6)


class Sized(Net):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.space = spaces.Discrete(number + 2)

    def forward_train(self, batch: Any) -> Any:
        return {"out": super().forward_train(batch)["out"] / int(self.space.n)}


def test_spaces_of_other_sizes_are_a_difference(both: Both) -> None:
    learners = both(build=numbered(Sized))
    assert_equal_updates(learners)
    assert not together(learners[1])


# -- what is changed on the way --------------------------------------------------------------------


class Holding(Net):
    """Holds what can be changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.listed, self.table = [1.0], {"gain": 1.0}
        self.array, self.tensor = numpy.ones(2, numpy.float32), torch.ones(2)
        self.object = collections.UserDict(gain=1.0)

    def forward_train(self, batch: Any) -> Any:
        gain = self.listed[0] * self.table["gain"] * self.object["gain"]
        gains = torch.as_tensor(self.array) * self.tensor * gain
        return {"out": super().forward_train(batch)["out"] * gains}


@pytest.mark.parametrize(
    "change",
    [
        lambda module: module.listed.__setitem__(0, 3.0),
        lambda module: module.table.update(gain=3.0),
        lambda module: module.array.fill(3.0),
        lambda module: module.tensor.fill_(3.0),
        lambda module: module.object.update(gain=3.0),
    ],
)
def test_what_a_module_holds_may_be_changed_in_place(both: Both, change: Any) -> None:
    learners = both(build=lambda self: Holding())
    assert_equal_updates(learners, lambda learner: change(learner.modules["c"]))


class Halved(Net):
    def forward_train(self, batch: Any) -> Any:
        return {"out": super().forward_train(batch)["out"] / 2}


def zeroed(module: Any, *gradients: Any) -> Any:
    return tuple(None if one is None else one * 0 for one in gradients[0])


@pytest.mark.parametrize(
    "change",
    [
        lambda module: module.body.requires_grad_(False),
        lambda module: module.body.weight.register_hook(lambda gradient: gradient * 0),
        lambda module: module.body.register_forward_hook(lambda layer, given, out: out * 2),
        lambda module: module.body.register_forward_pre_hook(lambda layer, given: given[0] * 2),
        lambda module: module.head.register_full_backward_hook(zeroed),
        lambda module: module.head.register_full_backward_pre_hook(zeroed),
        lambda module: setattr(module, "act", torch.relu),
        lambda module: setattr(module, "__class__", Halved),
        lambda module: setattr(module.body, "forward", lambda rows: torch.zeros(len(rows), 5)),
    ],
)
@pytest.mark.parametrize("which", [("c",), IDS])
def test_modules_may_be_changed_between_two_updates(both: Both, change: Any, which: Any) -> None:
    learners = both()
    assert_equal_updates(learners, lambda learner: [change(learner.modules[n]) for n in which])
    assert not together(learners[1]) or which == IDS


def test_hooks_of_all_modules_there_are_are_called(both: Both) -> None:
    learners = both()

    def doubled(layer: Any, given: Any, out: Any) -> Any:
        return out * 2 if isinstance(layer, nn.Linear) else None

    handles = [register_module_forward_hook(doubled)]
    try:
        assert_equal_updates(learners, lambda learner: [one.remove() for one in handles])
    finally:
        handles[0].remove()


def test_columns_of_other_dtypes_are_not_made_the_same(both: Both) -> None:
    def inverted(self: Any, fwd_out: Any, batch: Any) -> Any:
        return (fwd_out["out"][:, 0] * ~batch["flag"]).mean()

    def rows() -> dict[str, Batch]:
        flags = {name: {"flag": torch.ones(6, dtype=torch.bool)} for name in IDS}
        return batches(**{**flags, "b": {"flag": torch.ones(6, dtype=torch.int64)}})

    assert_equal_updates(both(compute_loss_for_module=inverted), rows=rows)


def test_modules_that_change_in_every_update_are_updated_one_by_one_in_the_end(
    both: Both, calls: Any
) -> None:
    class Annealed(Net):
        gain = 1.0

        def forward_train(self, batch: Any) -> Any:
            calls.count += 1
            return {"out": super().forward_train(batch)["out"] * self.gain}

    _, learner = both(build=lambda self: Annealed())
    counts = []
    for step in range(12):
        calls.count = 0
        for module in learner.modules.values():
            module.gain = 1 / (step + 1)
        learner.update(batches(), timestep=step)
        counts.append(calls.count)
    # Compared with torch each time, but not for ever.
    assert counts == [5] * 10 + [4] * 2


def test_modules_that_are_absent_for_a_while_stay_together(both: Both) -> None:
    ids = tuple("abcde")
    learners = both(ids=ids)
    for step in range(30):
        present = [name for name in ids if name != ids[step % 5]]
        rows = {name: Batch({"x": torch.full((6, 3), step / 30)}) for name in present}
        for learner in learners:
            learner.update(rows, timestep=step)
    assert together(learners[1])
    for name in ids:
        mine, its = (learner.modules[name].state_dict() for learner in learners)
        for key, value in mine.items():
            torch.testing.assert_close(its[key], value, atol=1e-5, rtol=0)


# -- what code counts and keeps --------------------------------------------------------------------


class Counting(Net):
    """Counts its forward passes, and keeps what they gave."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: list[int] = []
        self.count = torch.zeros(1)
        self.calls, self.last = 0, torch.zeros(0)
        self.generator = torch.Generator().manual_seed(0)

    def forward_train(self, batch: Any) -> Any:
        self.calls += 1
        self.listed.append(1)
        self.count += 1
        out = super().forward_train(batch)["out"]
        self.last = out.detach()
        return {"out": out * torch.rand(1, generator=self.generator)}


def test_what_a_forward_pass_counts_and_keeps_is_that_of_each_module(both: Both) -> None:
    learners = both(build=lambda self: Counting())
    assert_equal_updates(learners)
    for learner in learners:
        for module in learner.modules.values():
            assert module.calls == len(module.listed) == module.count.item() == 5
            assert module.last.shape == (6, 2)


TALLY = collections.Counter[str]()
SEEN = numpy.zeros(1)
LATE = 0


class Stats:
    updates = 0


def noted() -> None:
    Stats.updates += 1


def keeps_a_deque(self: Any, fwd_out: Any) -> Any:
    self.deque.append(1)
    return mean_square(self, fwd_out)


def counts_by_a_helper(self: Any, fwd_out: Any) -> Any:
    noted()
    return mean_square(self, fwd_out)


def tallies(self: Any, fwd_out: Any) -> Any:
    TALLY["updates"] += 1
    SEEN[0] += 1
    return mean_square(self, fwd_out)


def counts_late(self: Any, fwd_out: Any) -> Any:
    global LATE
    if self.warm:
        LATE += 1
        self.late += 1
        self.listed.append(1)
    return Loss(mean_square(self, fwd_out), metrics={"late": self.late})


@pytest.mark.parametrize("arrays", ["off", "auto"])
@pytest.mark.parametrize("ids", [IDS, ("a",), tuple("abcdefg")])
def test_hooks_are_called_once_for_each_module_and_update(make: Any, arrays: str, ids: Any) -> None:
    global LATE
    TALLY.clear()
    SEEN[0] = Stats.updates = LATE = 0
    deque: Any = collections.deque()
    attributes: dict[str, Any] = {"deque": deque, "warm": False, "late": 0, "listed": []}
    saved = {"save_state": lambda self: {}, "load_state": lambda self, state: None}
    for hook in (keeps_a_deque, counts_by_a_helper, tallies, counts_late):
        learner = make(
            ids=ids,
            build=lambda self: Net(),
            configure_optimizers_for_module=lambda self, module: Adam(module.parameters(), 0.05),
            compute_loss_for_module=hook,
            learning={"join_from": 4},
            compute={"arrays": arrays},
            **attributes,
            **saved,
        )
        for step in range(5):
            learner.calls.algorithm.plugin.warm = step >= 2
            rows = {name: Batch({"x": torch.ones(6, 3)}) for name in ids}
            learner.update(rows, timestep=step)
    assert len(deque) == TALLY["updates"] == SEEN[0] == Stats.updates == 5 * len(ids)
    plugin = learner.calls.algorithm.plugin
    assert LATE == plugin.late == len(plugin.listed) == 3 * len(ids)


def test_large_globals_that_hooks_read_are_not_looked_into(make: Any) -> None:
    read = []

    class Row(list[int]):
        """Notes that it is read."""

        def __iter__(self) -> Any:
            read.append(1)
            return super().__iter__()

    table = {n: Row([n]) for n in range(20_000)}
    learner = make(
        ids=IDS,
        build=lambda self: Net(),
        compute_loss_for_module=lambda self, fwd_out: mean_square(self, fwd_out) * len(table),
        configure_optimizers_for_module=lambda self, module: Adam(module.parameters(), 0.05),
        learning={"join_from": 4},
        compute={"arrays": "auto"},
    )
    for step in range(2):
        learner.update(batches(), timestep=step)
    assert len(read) == 0
