"""Two learners of one run, in two processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy
import pytest
import torch
import torch.distributed as dist

from rlplug import ALL_MODULES, Acted, ActInput, Algorithm, Batch, Loss, Module
from rlplug.errors import RequestError
from rlplug.hooks.calls import HookCalls
from rlplug.learner import Learner
from rlplug.learner.distributed import ProcessGroup
from rlplug.registry import Participant, describe
from rlplug.sampling.log import OfflineEvaluation
from tests.warm import Warm


class Weight(Module):
    """One weight, whose gradient is the mean of x."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([2.0]))

    def forward_train(self, batch: Any) -> Any:
        return {"out": (batch["x"] * self.weight).mean()}


class Mean(Algorithm):
    """Skips a batch of zeros; stops where x is 9."""

    def build(self) -> Weight:
        return Weight()

    def configure_optimizers_for_module(self, module: Any) -> Any:
        return torch.optim.SGD(module.parameters(), lr=1.0)

    def compute_loss_for_module(self, fwd_out: Any, batch: Any) -> Any:
        if not batch["x"].any():
            return None
        return Loss(fwd_out["out"], stop=(batch["x"] == 9).any())

    def additional_update(self, batch: Any, learner: Any) -> Any:
        (total,) = learner.all_reduce([batch["x"].sum()])
        return {"total": total}


def learner() -> Learner:
    plugin = Mean()
    space = gymnasium.spaces.Box(-1, 1, (1,))
    made = Learner(
        HookCalls(Participant(describe("mean", Mean), plugin, plugin.config)),
        {"default": (space, space)},
        seed=0,
    )
    made.build()
    return made


ROUNDS = (
    ((1.0, 1.0), (0.5, 0.5)),  # both have a gradient: their mean is 0.75
    ((0.0,), (0.25,)),  # the first has none: the second's alone
    ((0.0,), (0.0,)),  # nobody has one
    ((9.0,), (1.0,)),  # the first asks for the end of the epochs
)


def move_as_one(rank: int, folder: Path) -> None:
    """Learn from rounds of rows; it writes what it saw."""
    made = learner()
    seen = []
    for step, both in enumerate(ROUNDS):
        rows = Batch({"x": torch.tensor(both[rank])})
        metrics = made.update({"default": rows}, timestep=step)["default"]
        weight = made.modules["default"].weight.item()
        seen.append(f"{weight} {float(metrics['total'])}")
    seen.append(f"{made.world_size} {made.all_reduce([torch.tensor(float(rank))], 'max')[0]}")
    folder.joinpath(f"seen{rank}").write_text("\n".join(seen))


def one_of_two(rank: int, where: str) -> None:
    """What each process does, one after the other: starting them takes longer than all of it."""
    folder = Path(where)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    move_as_one(rank, folder)
    for check in KINDS:
        average(rank, folder, check)
    evaluate(rank, folder)
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Path:
    """What two processes wrote, each with its rank."""
    folder = tmp_path_factory.mktemp("two")
    code = "import sys, test_process_group as t; t.one_of_two(int(sys.argv[1]), sys.argv[2])"
    here = [Path(__file__).parent]
    both = [warm.start(str(rank), str(folder), code=code, paths=here) for rank in (0, 1)]
    assert [one.wait(120) for one in both] == [0, 0], [one.err for one in both]
    return folder


def test_two_learners_move_as_one(folder: Path) -> None:
    expected = ["1.25 3.0", "1.0 0.25", "1.0 0.0", "1.0 10.0", "2 1.0"]
    for rank in (0, 1):
        assert Path(folder, f"seen{rank}").read_text().splitlines() == expected


def average(rank: int, folder: Path, check: str) -> None:
    """Update once with rows that differ between the learners; it writes the weight."""
    space = gymnasium.spaces.Box(-1, 1, (1,))
    kind = KINDS[check]
    ids = ("a", "b") if check == "shared" else ("default",)
    plugin = kind()
    made = Learner(
        HookCalls(Participant(describe("kind", kind), plugin, plugin.config)),
        dict.fromkeys(ids, (space, space)),
        seed=0,
    )
    made.build()
    rows = Batch({"x": torch.tensor([(1.0, 5.0)[rank]])})
    made.update(dict.fromkeys(ids, rows), timestep=1)
    module = made.modules[ids[0]]
    weight = module.encoder.weight if check == "shared" else module.weight
    folder.joinpath(f"{check}{rank}").write_text(f"{weight.item():.4f}")


class Minimum(Mean):
    """Finds the x that is nearest to the weight, by LBFGS."""

    def configure_optimizers_for_module(self, module: Any) -> Any:
        return torch.optim.LBFGS(module.parameters(), lr=1.0, line_search_fn="strong_wolfe")

    def compute_loss_for_module(self, module: Any, batch: Any) -> Any:
        return (module.weight - batch["x"]).pow(2).sum()


class Parts(Mean):
    """Moves by the gradients of two terms, x and 2 x, and nothing else."""

    def compute_loss_for_module(self, fwd_out: Any) -> Any:
        once = fwd_out["out"]
        return Loss(3 * once, terms={"once": once, "twice": 2 * once})

    def postprocess_gradients(self, gradients: Any, term_gradients: Any) -> None:
        gradients["weight"] = term_gradients["once"]["weight"] + term_gradients["twice"]["weight"]


class Head(Module):
    """Behind an encoder that both modules hold."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = torch.nn.Parameter(torch.ones(1))

    def forward_train(self, batch: Any) -> Any:
        return {"out": self.encoder(batch["x"][:, None]) * self.head}


class Sharing(Mean):
    """Two modules over one encoder, whose weight is 1 at first."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.ones_(self.encoder.weight)

    def build(self) -> Any:
        return Head(self.encoder)

    def configure_optimizers_for_module(self, module_id: Any, module: Any) -> Any:
        params = module.parameters() if module_id == ALL_MODULES else [module.head]
        return torch.optim.SGD(params, lr=0.01)

    def compute_loss_for_module(self, fwd_out: Any) -> Any:
        return fwd_out["out"].sum()

    def save_state(self) -> Any:
        return {}

    def load_state(self, state: Any) -> None:
        return


KINDS: dict[str, type[Mean]] = {"lbfgs": Minimum, "terms": Parts, "shared": Sharing}


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        # The sum of both losses is least at the mean of 1 and 5; each alone would stop at its own.
        ("lbfgs", "3.0000"),
        # Two modules times the mean of x, 3, at a rate of 0.01.
        ("shared", "0.9400"),
        # From 2, by once and twice the mean of x, at a rate of 1.
        ("terms", "-7.0000"),
    ],
)
def test_every_evaluation_and_every_parameter_is_averaged_over_learners(
    folder: Path, check: str, expected: str
) -> None:
    assert [Path(folder, f"{check}{rank}").read_text() for rank in (0, 1)] == [expected] * 2


def test_one_learner_alone_gets_its_own_tensors_back() -> None:
    tensors = [torch.ones(2), torch.zeros(1)]
    assert ProcessGroup().all_reduce(tensors) == tensors
    with pytest.raises(RequestError, match="cannot 'min'"):
        ProcessGroup().all_reduce(tensors, "min")


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


def evaluate(rank: int, folder: Path) -> None:
    """Each weighs its rows; in the second window, rank 0 has none."""
    group = ProcessGroup()
    mine = evaluation(learners=group.size, reduce=group.all_reduce)
    told = []
    for rows in ((30, 40), (0, 20)):
        # The weight since the copy was made is that of all: both weigh, perhaps nothing.
        mine.weigh(logged(rank, rows[rank]), 0, 3)
        told.append(mine.take_metrics())
    folder.joinpath(f"told{rank}.json").write_text(json.dumps(told))


def test_offline_evaluation_sums_over_learners(folder: Path) -> None:
    told = [json.loads(Path(folder, f"told{rank}.json").read_text()) for rank in (0, 1)]
    single = evaluation()
    parts = [logged(0, 30), logged(1, 40)]
    single.weigh({name: numpy.concatenate([one[name] for one in parts]) for name in parts[0]}, 0, 3)
    first = single.take_metrics()
    for index, (rank, rows) in enumerate(((0, 30), (1, 40))):
        alone = evaluation()
        alone.weigh(logged(rank, rows), 0, 3)
        local = alone.take_metrics()
        for name, value in first.items():
            assert told[rank][0][name] == pytest.approx(value), name
            key = name.replace("ope/", "ope/local/")
            if key in told[rank][0]:
                assert told[rank][0][key] == pytest.approx(local[name]), key
        assert told[index][0]["ope/local/accepted_fraction"] > 0
    assert (first["ope/slate_size_min"], first["ope/slate_size_max"]) == (2, 3)
    single.weigh(logged(1, 20), 0, 3)
    second = single.take_metrics()
    for rank in (0, 1):
        for name, value in second.items():
            assert told[rank][1][name] == pytest.approx(value), name
    # The 70 rows of both are more than 50: the copy was renewed by both.
    assert second["ope/renewed"] == 1
    assert "ope/local/accepted_fraction" not in told[0][1]
