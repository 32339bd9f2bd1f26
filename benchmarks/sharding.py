"""Memory and time of learners, with averaged gradients and sharded by FSDP2.

`python benchmarks/sharding.py [--learners 2] [--layers 3] [--width 2048]`: each way in processes of
its own, since memory that was freed does not always go back to the system.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from gymnasium import spaces

from rlplug import Batch
from rlplug.runs.build_learner import build_learner

PARTS = ("network.*body.hidden.*",)
WAYS = {
    "ddp": None,
    "fsdp": {},
    "fsdp, fsdp_parts": {"parts": PARTS},
    "fsdp, fsdp_parts, fsdp_reshard = false": {"parts": PARTS, "reshard": False},
}
ROWS, MINIBATCHES, UPDATES = 256, 4, 5


def rows(rank: int, update: int) -> Batch:
    """What one learner has collected."""
    generator = torch.Generator().manual_seed(1000 * update + rank)
    seen = torch.randn(ROWS, 4, generator=generator)
    ended = torch.zeros(ROWS, dtype=torch.bool)
    return Batch(
        {
            "observations": seen,
            "actions": torch.randint(2, (ROWS,), generator=generator),
            "rewards": torch.randn(ROWS, generator=generator),
            "terminated": ended,
            "truncated": ended,
            "fragments": torch.tensor([[0, ROWS]]),
            "final_observations": seen[:1],
        }
    )


def megabytes(name: str) -> int:
    """A line of the kernel's account of this process."""
    (line,) = [
        one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith(name)
    ]
    return int(line.split()[1]) // 1024


def one_way(way: str, net_arch: list[int]) -> None:
    """A learner in this process, as one of all."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    options = {"compute.arrays": "off", "net_arch": net_arch, "ortho_init": False}
    box = spaces.Box(-1, 1, (4,))
    learner = build_learner("ppo", box, spaces.Discrete(2), options=options, seed=1)
    params = sum(one.numel() for one in learner.modules["default"].parameters())
    without = megabytes("VmRSS") - params * 4 // 2**20
    how = WAYS[way]
    if how is not None:
        learner.shard(**how)
    seconds = []
    for update in range(UPDATES + 1):
        began, cpu = time.perf_counter(), time.process_time()
        batches = {"default": rows(rank, update)}
        learner.update(batches, timestep=update, minibatch_size=ROWS // MINIBATCHES)
        seconds.append((time.perf_counter() - began, time.process_time() - cpu))
    walls, cpus = (statistics.median(one) for one in zip(*seconds[1:], strict=True))
    peak = megabytes("VmHWM") - without
    print(
        f"{way}: learner {rank}: weights {params * 4 / 2**20:.0f} MB; at most {peak} MB; "
        f"an update {walls:.2f} s, {cpus:.2f} CPU s; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    dist.destroy_process_group()


def main() -> None:
    """Every way, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--way", choices=WAYS, default="")
    parser.add_argument("--learners", type=int, default=2)
    asked = parser.parse_args()
    if asked.way:
        one_way(asked.way, [asked.width] * asked.layers)
        return
    for way in WAYS:
        launcher = ["-m", "torch.distributed.run", "--standalone"]
        size = [f"--nproc-per-node={asked.learners}", __file__, "--way", way]
        shape = ["--layers", str(asked.layers), "--width", str(asked.width)]
        subprocess.run([sys.executable, *launcher, *size, *shape], check=True)


if __name__ == "__main__":
    main()
