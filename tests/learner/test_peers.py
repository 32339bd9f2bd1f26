"""Two learners of one run, in two processes."""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
import torch.distributed as dist

from rlplug import Algorithm, Batch, Loss, Module
from rlplug.errors import RequestError
from rlplug.hooks.calls import HookCalls
from rlplug.learner import Learner
from rlplug.learner.peers import Peers
from rlplug.registry import Participant, describe


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


def one_of_two(rank: int, folder: str) -> None:
    """What each process does; it writes what it saw."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    made = learner()
    seen = []
    for step, both in enumerate(ROUNDS):
        rows = Batch({"x": torch.tensor(both[rank])})
        metrics = made.update({"default": rows}, timestep=step)["default"]
        weight = made.modules["default"].weight.item()
        seen.append(f"{weight} {float(metrics['total'])}")
    seen.append(f"{made.world_size} {made.all_reduce([torch.tensor(float(rank))], 'max')[0]}")
    Path(folder, f"seen{rank}").write_text("\n".join(seen))
    dist.destroy_process_group()


def test_two_learners_move_as_one(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    sys.path.insert(0, os.path.dirname(__file__))
    try:
        processes = [
            context.Process(target=one_of_two, args=(rank, str(tmp_path))) for rank in (0, 1)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
    finally:
        sys.path.remove(os.path.dirname(__file__))
    expected = ["1.25 3.0", "1.0 0.25", "1.0 0.0", "1.0 10.0", "2 1.0"]
    for rank in (0, 1):
        assert Path(tmp_path, f"seen{rank}").read_text().splitlines() == expected


def test_one_learner_alone_gets_its_own_tensors_back() -> None:
    tensors = [torch.ones(2), torch.zeros(1)]
    assert Peers().all_reduce(tensors) == tensors
    with pytest.raises(RequestError, match="cannot 'min'"):
        Peers().all_reduce(tensors, "min")
