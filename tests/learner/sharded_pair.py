"""Two learners that are sharded by FSDP2, in a process each: `sharded_pair.py RANK STORE OUT`.

FSDP2 knows one process group per process: threads would not do. Each case writes what it found;
test_sharding.py says what it should be.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gymnasium import spaces
from torch import nn

from rlplug import Algorithm, Batch, Loss, Module, hookimpl
from rlplug.errors import PluginError
from rlplug.learner import Learner
from rlplug.runs.build_learner import build_learner
from rlplug.scale.ranks import is_broken_connection

SEEN, CHOICES = spaces.Box(-1, 1, (4,)), spaces.Discrete(2)
ROWS = 12


class Net(Module):
    """Rows that do not divide evenly, and one that only the first learner has."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
        self.idle = nn.Linear(1, 1)
        self.register_buffer("count", torch.zeros(1))

    def forward_train(self, batch: Batch) -> Mapping[str, torch.Tensor]:
        return {"out": self.layers(batch["observations"]).squeeze(1)}


class Plain(Algorithm):
    """No loss for rewards of 0; the end of the epochs at 9."""

    @hookimpl
    def build(self) -> Net:
        return Net()

    @hookimpl
    def configure_optimizers_for_module(self, module: Net) -> torch.optim.Optimizer:
        return torch.optim.SGD(module.layers.parameters(), lr=0.5, momentum=0.9)

    @hookimpl
    def compute_loss_for_module(self, batch: Batch, fwd_out: Any) -> Any:
        rewards = batch["rewards"]
        if not rewards.any():
            return None
        return Loss(((fwd_out["out"] - rewards) ** 2).mean(), stop=(rewards == 9).any())


class Writes(Plain):
    """Changes a weight by itself."""

    @hookimpl
    def additional_update(self, module: Net) -> None:
        with torch.no_grad():
            module.idle.weight.mul_(2.0)


class Replaces(Plain):
    """Puts another buffer in place of one."""

    @hookimpl
    def additional_update(self, module: Net) -> None:
        module.count = module.count + 1


class Aside(Plain):
    """Computes its loss without what forward_train returned."""

    @hookimpl
    def compute_loss_for_module(self, module: Net, batch: Batch) -> Any:
        return (module.layers[0].weight ** 2).sum()


def rows(seed: int, count: int = ROWS) -> Batch:
    """What this learner has collected; another one has other rows."""
    generator = torch.Generator().manual_seed(2 * seed + dist.get_rank())
    seen = torch.randn(count, 4, generator=generator)
    return Batch(
        {
            "observations": seen,
            "actions": torch.randint(2, (count,), generator=generator),
            "rewards": torch.randn(count, generator=generator),
            "terminated": torch.zeros(count, dtype=torch.bool),
            "truncated": torch.zeros(count, dtype=torch.bool),
            "next_observations": seen.roll(1, 0),
            "discounts": torch.full((count,), 0.9),
            "fragments": torch.tensor([[0, count // 2], [count // 2, count]]),
            "final_observations": seen[:2],
        }
    )


def pair(
    algorithm: Any, parts: tuple[str, ...] = (), *, reshard: bool = True, **options: Any
) -> list[Learner]:
    """The same learner twice: with averaged gradients, and sharded."""
    options = {"compute.arrays": "off", **options}
    made = [build_learner(algorithm, SEEN, CHOICES, options=options, seed=1) for _ in range(2)]
    made[1].shard(parts, reshard=reshard)
    return made


def updated(learners: list[Learner], batches: list[Batch], **how: Any) -> dict[str, Any]:
    """How far the two are from each other after these updates, and weights from their start."""
    params = dict(learners[1].modules["default"].named_parameters())
    start = {name: one.detach().clone() for name, one in params.items()}
    for step, batch in enumerate(batches, start=1):
        results = [
            one.update({"default": batch}, timestep=10 * step, **how)["default"] for one in learners
        ]
    ddp, fsdp = results
    return {
        "weights": difference(*map(weights, learners)),
        "optimizer": difference(*map(optimizer_state, learners)),
        "metrics": {name: [float(ddp[name]), float(fsdp[name])] for name in ddp},
        "moved": difference(start, params),
        "same names": list(ddp) == list(fsdp),
    }


def weights(learner: Learner) -> dict[str, Any]:
    return learner.modules["default"].state_dict()


def optimizer_state(learner: Learner) -> dict[str, Any]:
    (state,) = learner.get_optimizer_state(["default"])["default"].values()
    return {
        f"{index}: {key}": value
        for index, values in state["state"].items()
        for key, value in values.items()
        if isinstance(value, torch.Tensor)
    }


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    assert one.keys() == other.keys()
    return max((float((one[name] - other[name]).abs().max()) for name in one), default=0.0)


def dqn(**options: Any) -> dict[str, Any]:
    learners = pair("dqn", ("network.body.hidden.*",), net_arch=[5, 3], **options)
    return updated(learners, [rows(seed) for seed in range(4)])


def ppo(**options: Any) -> dict[str, Any]:
    learners = pair("ppo", ("network.value_head",), reshard=False, net_arch=[5, 3], **options)
    return updated(learners, [rows(1), rows(2)], num_iters=2, minibatch_size=6)


def without_a_loss() -> dict[str, Any]:
    """In the second update, the first learner has none; in the third, nobody has."""
    batches = [rows(1), rows(2), rows(3)]
    nothing = torch.zeros(ROWS)
    if dist.get_rank() == 0:
        batches[1] = batches[1].with_columns({"rewards": nothing})
    batches[2] = batches[2].with_columns({"rewards": nothing})
    learners = pair(Plain)
    return {
        "second": updated(learners, batches[:2]),
        "third": updated(learners, batches[2:]),
    }


def stopped_by_one() -> dict[str, Any]:
    """The second learner stops both before the step; then they go on."""
    batches = [rows(1), rows(2)]
    if dist.get_rank() == 1:
        batches[0] = batches[0].with_columns({"rewards": torch.full((ROWS,), 9.0)})
    learners = pair(Plain, ("layers.*",))
    return {
        "stopped": updated(learners, batches[:1], num_iters=3),
        "after": updated(learners, batches[1:], num_iters=3),
    }


def fewer_minibatches() -> dict[str, Any]:
    """The first learner has three of them, the second one."""
    count = 6 if dist.get_rank() == 0 else 2
    return updated(pair(Plain), [rows(1, count), rows(2, count)], minibatch_size=2)


def begun_from_a_state() -> dict[str, Any]:
    """One is sharded after an update with whole weights, whose momentum it goes on with."""
    options = {"compute.arrays": "off"}
    learners = [build_learner(Plain, SEEN, CHOICES, options=options, seed=1) for _ in range(2)]
    for one in learners:
        one.update({"default": rows(1)}, timestep=1)
    learners[1].shard()
    return updated(learners, [rows(2)])


def said(algorithm: Any) -> list[str]:
    """Why it cannot go on, at the latest in the second update."""
    _, learner = pair(algorithm)
    try:
        for step in (1, 2):
            learner.update({"default": rows(step)}, timestep=step)
    except PluginError as error:
        return [str(error)]
    return []


def sharded_parts() -> list[list[str]]:
    """The parts that are sharded by themselves: none, those of a pattern, target networks."""
    from torch.distributed.fsdp import FSDPModule

    learners = [pair(Plain)[1], pair(Plain, ("*.0", "idle"))[1]]
    learners.append(pair("dqn", ("network.*.hidden.0",), net_arch=[5, 3])[1])
    modules = [learner.sharding.module for learner in learners if learner.sharding is not None]
    return [
        [name for name, part in module.named_modules() if isinstance(part, FSDPModule)]
        for module in modules
    ]


CASES: dict[str, Callable[[], Any]] = {
    "polyak": lambda: dqn(tau=0.1, **{"learner.norm_type": float("inf")}),
    "fixed": lambda: dqn(target_update_interval=20, **{"learner.clip_by": "norm"}),
    "noisy": lambda: dqn(noisy=True, **{"learner.clip_by": "value", "learner.max_grad_norm": 0.01}),
    "ppo": ppo,
    "ppo in bf16": lambda: ppo(**{"compute.precision": "bf16"}),
    "without a loss": without_a_loss,
    "stopped by one": stopped_by_one,
    "fewer minibatches": fewer_minibatches,
    "begun from a state": begun_from_a_state,
    "parts": sharded_parts,
    "writes": lambda: said(Writes),
    "replaces": lambda: said(Replaces),
    "aside": lambda: said(Aside),
}


def death_of_the_other() -> str:
    """What the first learner raises when the second one dies before an update of both."""
    _, learner = pair(Plain, ("layers.*",))
    if dist.get_rank() == 1:
        return ""
    learner.process_group.check = refuse_lost
    try:
        learner.update({"default": rows(1)}, timestep=1)
    except RuntimeError as error:
        return "broken" if is_broken_connection(error) else str(error)
    return "none"


def refuse_lost() -> None:
    """As that of a run, once the process of a learner is gone."""
    raise dist.DistError("the process of a learner has ended")


def main(rank: str, store: str, out: str) -> None:
    """Go through all cases as one of two."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
    found = {name: case() for name, case in CASES.items()}
    # Last: nobody is left after it.
    found["death"] = death_of_the_other()
    Path(out).write_text(json.dumps(found))
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
