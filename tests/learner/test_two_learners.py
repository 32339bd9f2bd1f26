"""Two learners of one run in two threads of this process, over gloo: how they move as one."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.optim import SGD

from rlplug import ALL_MODULES, Batch, Loss, Module
from rlplug.learner import distributed
from rlplug.learner.distributed import ProcessGroup
from rlplug.nn.arrays import FrozenWeights

C10D: Any = torch._C._distributed_c10d


def groups_of_two() -> list[Any]:
    """What `init_process_group` would make, for both ranks in one process."""
    store = C10D.HashStore()
    gloo = C10D.ProcessGroup.BackendType.GLOO
    found: list[Any] = [None, None]

    def meet(rank: int) -> None:
        group = found[rank] = C10D.ProcessGroup(store, rank, 2)
        group._set_default_backend(gloo)
        group._register_backend(torch.device("cpu"), gloo, C10D.ProcessGroupGloo(store, rank, 2))
        group._set_group_name("two")

    in_threads(meet)
    return found


def in_threads(work: Callable[[int], Any]) -> list[Any]:
    """What it returns for rank 0 and for rank 1; an error of one of them is raised."""
    found: list[Any] = [None, None]
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            found[rank] = work(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads)
    return found


@pytest.fixture
def groups() -> Any:
    """Two process groups that have met."""
    world = dist.distributed_c10d._world
    made = groups_of_two()
    for one in made:
        world.pg_map[one] = ("gloo", None)  # type: ignore[assignment] # the store is not asked
        world.pg_group_ranks[one] = {0: 0, 1: 1}
    yield made
    for one in made:
        del world.pg_map[one], world.pg_group_ranks[one]


@pytest.fixture
def two(groups: Any, make: Any) -> Any:
    """`two(**settings)`: two learners of one run; `two.update(rows of both)` updates them."""

    def learners(**settings: Any) -> list[Any]:
        return [make(**settings, process_group=ProcessGroup(one)) for one in groups]

    return learners


def update(learners: list[Any], *rows: list[float], **how: Any) -> list[Any]:
    """The results of one update of both, each with its own column x."""

    def one(rank: int) -> Any:
        batch = Batch({"x": torch.tensor(rows[rank])})
        ids = list(learners[rank].modules)
        return learners[rank].update(dict.fromkeys(ids, batch), timestep=1, **how)

    return in_threads(one)


def weights(learners: list[Any], name: str = "weight") -> list[float]:
    return [round(getattr(one.modules["default"], name).item(), 5) for one in learners]


def unit(self: Any, module: Any) -> Any:
    return SGD(module.parameters(), lr=1.0)


def mean_or_nothing(self: Any, fwd_out: Any, batch: Any) -> Any:
    """No loss for zeros; the end of the epochs at 9."""
    if not batch["x"].any():
        return None
    return Loss(fwd_out["out"].mean(), stop=(batch["x"] == 9).any())


UNIT = {"configure_optimizers_for_module": unit, "compute_loss_for_module": mean_or_nothing}


@pytest.mark.parametrize(
    ("rows", "after"),
    [
        # Both have a gradient: their mean is 2.
        (([1.0, 1.0], [3.0]), 0.0),
        # One has none: the other's alone.
        (([0.0], [0.5]), 1.5),
        (([0.5], [0.0]), 1.5),
        (([0.0], [0.0]), 2.0),
    ],
    ids=str,
)
def test_both_move_by_the_mean_of_the_gradients_that_there_are(
    two: Any, rows: Any, after: float
) -> None:
    learners = two(**UNIT)
    update(learners, *rows)
    assert weights(learners) == [after, after]
    assert [one.world_size for one in learners] == [2, 2]


@pytest.mark.parametrize("rows", [([9.0], [1.0]), ([1.0], [9.0])], ids=str)
def test_where_one_stops_both_stop_before_the_step(two: Any, rows: Any) -> None:
    learners = two(**UNIT)
    results = update(learners, *rows, num_iters=3)
    assert weights(learners) == [2.0, 2.0]
    # Both looked at one minibatch: 2 times 9, and 2 times 1.
    assert [float(one["default"]["loss"]) for one in results] == [10.0, 10.0]
    update(learners, [1.0], [1.0])
    assert weights(learners) == [1.0, 1.0]


def test_one_that_has_fewer_minibatches_joins_in_all_steps(two: Any) -> None:
    learners = two(**UNIT)
    update(learners, [1.0, 1.0, 1.0], [3.0], minibatch_size=1)
    # The mean of 1 and 3, and then twice the 1 of the first alone.
    assert weights(learners) == [-2.0, -2.0]
    update(learners, [1.0], [2.0, 2.0], minibatch_size=1)
    assert weights(learners) == [-5.5, -5.5]


def test_metrics_are_the_means_over_the_learners_that_have_them(two: Any) -> None:
    def loss(self: Any, fwd_out: Any, batch: Any) -> Any:
        if not batch["x"].any():
            return None
        only = {"large": 7} if batch["x"].max() > 2 else {}
        return Loss(fwd_out["out"].mean(), metrics={"x": batch["x"].mean(), **only})

    learners = two(**{**UNIT, "compute_loss_for_module": loss})
    first, second = update(learners, [1.0], [3.0])
    for results in (first, second):
        found = {name: float(value) for name, value in results["default"].items()}
        assert found == {"loss": 4.0, "x": 2.0, "large": 7.0, "grad_norm": 2.0, "learning_rate": 1}
        assert results[ALL_MODULES]["steps_trained"] == 1


def test_a_norm_is_reported_by_those_that_had_a_loss(two: Any) -> None:
    learners = two(**UNIT, learning={"cycle_minibatches": False})
    results = update(learners, [2.0], [4.0, 4.0], minibatch_size=1)
    # The first saw one step of 3; the second that one, and one of 4 by itself.
    assert [float(one["default"]["grad_norm"]) for one in results] == [(3 + 3.5) / 2] * 2


def test_optimizers_act_where_one_learner_has_a_loss_for_them(two: Any) -> None:
    def pair(self: Any, module: Any) -> Any:
        return {"one": SGD([module.weight], lr=1.0), "two": SGD([module.other], lr=1.0)}

    def loss(self: Any, fwd_out: Any, batch: Any) -> Any:
        name, out = ("one", "out") if batch["x"].mean() < 2 else ("two", "second")
        return Loss({name: fwd_out[out].mean()})

    learners = two(configure_optimizers_for_module=pair, compute_loss_for_module=loss)
    update(learners, [1.0], [3.0])
    # Each gradient is the sum of one and none, over two learners.
    assert weights(learners) == [1.5, 1.5]
    assert weights(learners, "other") == [0.5, 0.5]
    update(learners, [1.0], [1.0])
    assert weights(learners) == [0.5, 0.5]
    assert weights(learners, "other") == [0.5, 0.5]


class Head(Module):
    """Behind an encoder that several modules hold."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward_train(self, batch: Any) -> Any:
        return {"out": self.encoder(batch["x"][:, None])[:, 0] * self.weight}


def test_what_modules_share_moves_by_the_mean_of_the_learners_that_have_a_loss(
    groups: Any, make: Any
) -> None:
    def optimizers(self: Any, module_id: str, module: Any) -> Any:
        params = module.parameters() if module_id == ALL_MODULES else [module.weight]
        return SGD(params, lr=0.125)

    def learner(group: Any) -> Any:
        encoder = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.ones_(encoder.weight)
        return make(
            ids=("default", "b"),
            build=lambda self: Head(encoder),
            configure_optimizers_for_module=optimizers,
            compute_loss_for_module=mean_or_nothing,
            process_group=ProcessGroup(group),
        )

    learners = [learner(group) for group in groups]
    update(learners, [1.0], [3.0])
    # Two modules times the mean of x, 2, times an eighth.
    assert [one.modules["b"].encoder.weight.item() for one in learners] == [0.5, 0.5]
    assert weights(learners) == [0.75, 0.75]
    update(learners, [0.0], [0.0])
    assert [one.modules["b"].encoder.weight.item() for one in learners] == [0.5, 0.5]
    update(learners, [0.0], [1.0])
    # Heads of 0.75, one learner: twice 0.75 times an eighth.
    assert [one.modules["b"].encoder.weight.item() for one in learners] == [0.3125] * 2
    update(learners, [9.0], [1.0])
    assert [one.modules["b"].encoder.weight.item() for one in learners] == [0.3125] * 2


def test_gradients_by_term_are_averaged_over_the_learners_that_have_terms(two: Any) -> None:
    def loss(self: Any, fwd_out: Any, batch: Any) -> Any:
        if not batch["x"].any():
            return None
        once = fwd_out["out"].mean()
        return Loss(3 * once, terms={"once": once, "twice": 2 * once})

    seen: list[Any] = []

    def look(self: Any, term_gradients: Any) -> None:
        seen.append({term: one["weight"].item() for term, one in term_gradients.items()})

    learners = two(
        configure_optimizers_for_module=unit,
        compute_loss_for_module=loss,
        postprocess_gradients=look,
    )
    update(learners, [1.0], [3.0])
    assert seen == [{"once": 2.0, "twice": 4.0}] * 2
    seen.clear()
    update(learners, [0.0], [3.0])
    assert seen == [{"once": 3.0, "twice": 6.0}] * 2
    assert weights(learners) == [2 - 6 - 9] * 2


def test_learners_in_threads_leave_the_scopes_of_other_threads_alone() -> None:
    barrier = threading.Barrier(2)
    scopes: dict[str, Any] = {}

    def enter_first_and_leave_first(rank: int) -> None:
        if rank == 1:
            barrier.wait(10)
        with FrozenWeights():
            scopes[f"inside {rank}"] = FrozenWeights.scope.now
            if rank == 0:
                barrier.wait(10)
            # Both are inside.
            barrier.wait(10)
            if rank == 1:
                barrier.wait(10)
        scopes[f"outside {rank}"] = FrozenWeights.scope.now
        if rank == 0:
            barrier.wait(10)

    in_threads(enter_first_and_leave_first)
    assert scopes["inside 0"] is not scopes["inside 1"]
    assert (scopes["outside 0"], scopes["outside 1"]) == (None, None)
    with FrozenWeights():
        outer: Any = FrozenWeights.scope.now
        assert outer is not None
        with FrozenWeights():
            assert FrozenWeights.scope.now is not outer
        assert FrozenWeights.scope.now is outer


def test_tensors_of_all_types_and_shapes_are_combined_at_once(groups: Any) -> None:
    def combined(rank: int) -> Any:
        group = ProcessGroup(groups[rank])
        given = [
            torch.tensor([[1.0, 2.0]]) * (rank + 1),
            torch.tensor(10 + rank),
            torch.tensor([0.5]) - rank,
        ]
        found = {op: [one.tolist() for one in group.all_reduce(given, op)] for op in ("sum", "max")}
        found["mean"] = [one.tolist() for one in group.all_reduce([given[0], given[2]], "mean")]
        assert given[1].item() == 10 + rank
        return found, group.most(3 - rank), group.gather(rank), group.all_reduce([])

    expected = {
        "sum": [[[3.0, 6.0]], 21, [0.0]],
        "max": [[[2.0, 4.0]], 11, [0.5]],
        "mean": [[[1.5, 3.0]], [0.0]],
    }
    assert in_threads(combined) == [(expected, 3, [0, 1], [])] * 2


@pytest.mark.parametrize("watched", [False, True])
def test_objects_of_any_size_are_gathered(groups: Any, watched: bool) -> None:
    check = (lambda: None) if watched else None

    def gathered(rank: int) -> Any:
        mine = {"rank": rank, "text": "x" * (1000 * rank)}
        return distributed.all_gather(mine, group=groups[rank], check=check)

    both = [{"rank": 0, "text": ""}, {"rank": 1, "text": "x" * 1000}]
    assert in_threads(gathered) == [both, both]


@pytest.mark.parametrize("comes", [True, False])
def test_what_the_dead_had_sent_still_arrives_and_the_rest_is_not_waited_for(
    groups: Any, monkeypatch: pytest.MonkeyPatch, comes: bool
) -> None:
    monkeypatch.setattr(distributed, "_POLL", datetime.timedelta(seconds=0.2))
    asked = []

    def check() -> None:
        asked.append(time.monotonic())
        raise dist.DistError("gone")

    def exchanged(rank: int) -> Any:
        work = dist.all_reduce(torch.ones(1), group=groups[rank], async_op=True)
        return distributed.wait_for(work, check)

    def late(rank: int) -> Any:
        if rank == 1:
            if not comes:
                return None
            # After the first look at it, before the last.
            time.sleep(0.3)
        return exchanged(rank) if rank == 0 else dist.all_reduce(torch.ones(1), group=groups[1])

    if comes:
        in_threads(late)
    else:
        with pytest.raises(dist.DistError, match="gone"):
            in_threads(late)
    assert len(asked) == 1


def test_an_error_that_is_no_timeout_is_raised_at_once() -> None:
    def check() -> None:
        raise AssertionError("nobody is looked after")

    # This kind of work cannot be waited for with a limit, and says so.
    work = C10D._create_work_from_future(torch.futures.Future())
    with pytest.raises(RuntimeError, match="not implemented"):
        distributed.wait_for(work, check)
