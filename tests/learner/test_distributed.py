"""Learners of one run in two processes: how they move as one, and what they exchange.

Both processes go through all cases, one after the other: starting them takes longer than all of it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from torch.optim import LBFGS, SGD

from rlplug import Acted, ActInput, Batch, Loss, Module
from rlplug.errors import PluginError
from rlplug.learner import distributed
from rlplug.sampling.log import OfflineEvaluation
from tests.learner.small import batch, make, numbers, pair, sharing, unit, weights
from tests.learner.test_losses import Embedded
from tests.warm import Warm

Work = Callable[[int], Any]
CASES: dict[str, tuple[Work, list[Any]]] = {}


def case(first: Any, second: Any = None) -> Callable[[Work], Work]:
    """What is done in both processes, and what that gives in both of them or in each."""

    def add(work: Work) -> Work:
        CASES[work.__name__] = work, [first, first if second is None else second]
        return work

    return add


def learn(learner: Any, rank: int, *both: Any, **how: Any) -> Any:
    """Update with the rows of a rank in column x: the results of the module `default`."""
    rows = dict.fromkeys(learner.modules, batch(*both[rank]))
    return learner.update(rows, timestep=1, **how)["default"]


def mean_or_nothing(self: Any, fwd_out: Any, batch: Any) -> Any:
    """No loss for zeros; the end of the epochs at 9."""
    if not batch["x"].any():
        return None
    return Loss(fwd_out["out"].mean(), stop=(batch["x"] == 9).any())


UNIT = {"optimizers": unit, "loss": mean_or_nothing}


# -- updates -------------------------------------------------------------------------------------


@case([0.0, -0.5, -1.0, -1.0])
def both_move_by_the_mean_of_the_gradients_that_there_are(rank: int) -> Any:
    learner = make(**UNIT)
    found = []
    # Both have a gradient, or one, or none.
    for both in (([1.0, 1.0], [3.0]), ([0.0], [0.5]), ([0.5], [0.0]), ([0.0], [0.0])):
        learn(learner, rank, *both)
        found.append(weights(learner)[0])
    return found


@case([2.0, 10.0, 2.0, 10.0, 1.0])
def where_one_stops_both_stop_before_the_step(rank: int) -> Any:
    learner = make(**UNIT)
    told = []
    for both in (([9.0], [1.0]), ([1.0], [9.0])):
        metrics = learn(learner, rank, *both, num_iters=3)
        # Both looked at one minibatch: 2 times 9, and 2 times 1.
        told += [weights(learner)[0], float(metrics["loss"])]
    learn(learner, rank, [1.0], [1.0])
    return [*told, weights(learner)[0]]


@case([-2.0, -5.5])
def one_that_has_fewer_minibatches_joins_in_all_steps(rank: int) -> Any:
    learner = make(**UNIT)
    found = []
    # The mean of 1 and 3, and then twice the 1 of the first alone; and the other way round.
    for both in (([1.0, 1.0, 1.0], [3.0]), ([1.0], [2.0, 2.0])):
        learn(learner, rank, *both, minibatch_size=1)
        found.append(weights(learner)[0])
    return found


@case({"loss": 4.0, "x": 2.0, "large": 7.0, "grad_norm": 2.0, "learning_rate": 1.0})
def metrics_are_the_means_over_the_learners_that_have_them(rank: int) -> Any:
    def loss(self: Any, fwd_out: Any, batch: Any) -> Any:
        only = {"large": 7} if batch["x"].max() > 2 else {}
        return Loss(fwd_out["out"].mean(), metrics={"x": batch["x"].mean(), **only})

    learner = make(**{**UNIT, "loss": loss})
    return numbers(learn(learner, rank, [1.0], [3.0]))


@case([[1.5, 0.5], [0.5, 0.5]])
def optimizers_act_where_one_learner_has_a_loss_for_them(rank: int) -> Any:
    def loss(self: Any, fwd_out: Any, batch: Any) -> Any:
        name, out = ("one", "out") if batch["x"].mean() < 2 else ("two", "second")
        return Loss({name: fwd_out[out].mean()})

    learner = make(optimizers=pair, loss=loss)
    # Each gradient is the sum of one and none, over two learners.
    learn(learner, rank, [1.0], [3.0])
    first = weights(learner)
    learn(learner, rank, [1.0], [1.0])
    return [first, weights(learner)]


@case([[0.5, 0.75], [0.5, 0.75], [0.3125, 0.6875], [0.3125, 0.6875]])
def what_modules_share_moves_by_the_mean_of_the_learners_that_have_a_loss(rank: int) -> Any:
    settings = {**sharing("default", "b", rate=0.125), "loss": mean_or_nothing}
    learner = make(**settings)
    module, found = learner.modules["default"], []
    # Two modules times the mean of x, 2, times an eighth; nothing; then heads of 0.75, one
    # learner: twice 0.75 times an eighth; and a stop.
    for both in (([1.0], [3.0]), ([0.0], [0.0]), ([0.0], [1.0]), ([9.0], [1.0])):
        learn(learner, rank, *both)
        found.append([module.encoder.weight.item(), module.weight.item()])
    return found


@case(3.0)
def every_evaluation_of_lbfgs_is_averaged(rank: int) -> Any:
    def loss(self: Any, module: Any, batch: Any) -> Any:
        return (module.weight - batch["x"]).pow(2).sum() + module.other.pow(2).sum()

    def lbfgs(self: Any, module: Any) -> Any:
        return LBFGS(module.parameters(), lr=1.0, line_search_fn="strong_wolfe")

    learner = make(optimizers=lbfgs, loss=loss)
    learn(learner, rank, [1.0], [5.0])
    # The sum of both losses is least at the mean of 1 and 5; each alone would stop at its own.
    return round(weights(learner)[0], 3)


@case("'embedding.weight' of module 'default' is sparse")
def several_learners_refuse_sparse_gradients(rank: int) -> Any:
    learner = make(
        build=lambda self: Embedded(sparse=True),
        optimizers=lambda self, module: SGD(module.parameters(), lr=0.5),
    )
    rows = {"default": Batch({"symbols": torch.tensor([0, 1])})}
    with pytest.raises(PluginError) as raised:
        learner.update(rows, timestep=1)
    told = "'embedding.weight' of module 'default' is sparse"
    return told if told in str(raised.value) else str(raised.value)


# -- what is exchanged ---------------------------------------------------------------------------


@case(
    {
        "sum": [[[3.0, 6.0]], 21, [0.0]],
        "max": [[[2.0, 4.0]], 11, [0.5]],
        "mean": [[[1.5, 3.0]], [0.0]],
        "own": 2,
    }
)
def tensors_of_all_types_and_shapes_are_combined_at_once(rank: int) -> Any:
    totals: list[Any] = []

    def additional(self: Any, learner: Any) -> None:
        given = [torch.tensor([[1.0, 2.0]]) * (rank + 1), torch.tensor(10 + rank)]
        given.append(torch.tensor([0.5]) - rank)
        for op in ("sum", "max", "mean"):
            chosen = given[::2] if op == "mean" else given
            totals.append([each.tolist() for each in learner.all_reduce(chosen, op)])
        assert (given[1].item(), learner.all_reduce([])) == (10 + rank, [])

    learner = make(finish=additional)
    learn(learner, rank, [1.0], [1.0])
    return dict(zip(("sum", "max", "mean"), totals, strict=True)) | {"own": learner.world_size}


@case([[0, 1000], [0, 1], [1, 2], "for 0"], [[0, 1000], [], [1, 2], {"for": 1}])
def objects_of_any_size_are_exchanged(rank: int) -> Any:
    mine = {"rank": rank, "text": "x" * (1000 * rank)}
    gathered = distributed.all_gather(mine, check=lambda: None)
    assert gathered == distributed.all_gather(mine)
    return [
        [len(each["text"]) for each in gathered],
        [each["rank"] for each in distributed.gather(mine)],
        distributed.broadcast([1, 2] if rank == 0 else None),
        distributed.scatter(["for 0", {"for": 1}] if rank == 0 else ()),
    ]


class Second(Module):
    """Always chooses arm 1."""

    def forward_inference(self, act: ActInput) -> Acted:
        return Acted(numpy.ones(len(act.observations), numpy.int64))


def logged(rank: int, rows: int) -> dict[str, Any]:
    """Rows of two or three arms, other ones for each rank."""
    random = numpy.random.default_rng(rank)
    actions = random.integers(0, 2, rows)
    mask = numpy.ones((rows, 3), bool)
    mask[:, 2] = random.integers(0, 2, rows) if rank else False
    return {
        "observations": numpy.zeros((rows, 1)),
        "action_mask": mask,
        "actions": actions,
        "rewards": actions + random.standard_normal(rows),
        "propensity": random.uniform(0.2, 0.8, rows),
    }


def evaluation(**more: Any) -> OfflineEvaluation:
    return OfflineEvaluation(
        Second(), random=numpy.random.default_rng(0), explores=False, critical_weight=50.0, **more
    )


def weighed(rank: int) -> Any:
    """Each weighs its rows; in the second window, rank 0 has none."""
    learner = make()
    mine = evaluation(learners=learner.world_size, reduce=learner.all_reduce)
    told = []
    for rows in ((30, 40), (0, 20)):
        # The weight since the copy was made is that of all: both weigh, perhaps nothing.
        mine.weigh(logged(rank, rows[rank]), 0, 3)
        told.append(mine.take_metrics())
    return told


# -- the processes -------------------------------------------------------------------------------


def main(rank: int, where: str) -> None:
    """What each process does."""
    folder = Path(where)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    told: dict[str, Any] = {name: work(rank) for name, (work, _) in CASES.items()}
    told["weighed"] = weighed(rank)
    if rank == 0:
        told["noticed"] = notice_that_the_other_is_gone(folder)
    folder.joinpath(f"{rank}.json").write_text(json.dumps(told))
    while rank == 1 and not folder.joinpath("0.json").exists():
        # It never answers again.
        time.sleep(0.05)
    os._exit(0)


def notice_that_the_other_is_gone(folder: Path) -> Any:
    """Which of the waits end, and after how many seconds; the other lives, and does not answer."""
    began = time.monotonic()

    def check() -> None:
        raise dist.DistError("gone")

    noticed = []
    for wait in (distributed.all_gather, distributed.gather):
        try:
            wait("x" * 10_000_000, check=check)
        except dist.DistError:
            noticed.append(wait.__name__)
    return [noticed, time.monotonic() - began]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> list[Any]:
    """What both processes saw."""
    folder = tmp_path_factory.mktemp("two")
    code = "import sys, tests.learner.test_distributed as t; t.main(int(sys.argv[1]), sys.argv[2])"
    paths = [Path(__file__).parents[2]]
    both = [warm.start(str(rank), str(folder), code=code, paths=paths) for rank in (0, 1)]
    assert [process.wait(120) for process in both] == [0, 0], [process.err for process in both]
    return [json.loads(folder.joinpath(f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("name", CASES)
def test_two_learners_move_as_one(name: str, told: list[Any]) -> None:
    _, expected = CASES[name]
    assert [each[name] for each in told] == expected


def test_the_dead_are_not_waited_for(told: list[Any]) -> None:
    noticed, seconds = told[0]["noticed"]
    assert noticed == ["all_gather", "gather"]
    assert seconds < 10


def test_offline_evaluation_sums_over_learners(told: list[Any]) -> None:
    found = [each["weighed"] for each in told]
    single = evaluation()
    parts = [logged(0, 30), logged(1, 40)]
    single.weigh({name: numpy.concatenate([one[name] for one in parts]) for name in parts[0]}, 0, 3)
    first = single.take_metrics()
    for rank, rows in ((0, 30), (1, 40)):
        alone = evaluation()
        alone.weigh(logged(rank, rows), 0, 3)
        local = alone.take_metrics()
        for name, value in first.items():
            assert found[rank][0][name] == pytest.approx(value), name
            key = name.replace("ope/", "ope/local/")
            if key in found[rank][0]:
                assert found[rank][0][key] == pytest.approx(local[name]), key
        assert found[rank][0]["ope/local/accepted_fraction"] > 0
    assert (first["ope/slate_size_min"], first["ope/slate_size_max"]) == (2, 3)
    single.weigh(logged(1, 20), 0, 3)
    second = single.take_metrics()
    for rank in (0, 1):
        for name, value in second.items():
            assert found[rank][1][name] == pytest.approx(value), name
    # The 70 rows of both are more than 50: the copy was renewed by both.
    assert second["ope/renewed"] == 1
    assert "ope/local/accepted_fraction" not in found[0][1]
