"""Objects that learners exchange, and learners that die meanwhile: two real processes."""

from __future__ import annotations

import datetime
import json
import os
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

from rlplug.learner import distributed
from tests.warm import Warm

DEAD = 0.5
"""Seconds after which the second process is said to be gone, in which it never answers."""


def exchanging(rank: int, folder: str) -> None:
    """Exchange objects of several sizes, then wait for one who does not come any more."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    mine = {"rank": rank, "text": "x" * (1000 * rank)}
    told: list[Any] = [
        [len(one["text"]) for one in distributed.all_gather(mine)],
        [one["rank"] for one in distributed.gather(mine)],
        distributed.broadcast([1, 2] if rank == 0 else None),
        distributed.scatter(["for 0", {"for": 1}] if rank == 0 else ()),
    ]
    if rank == 1:
        Path(folder, "1.json").write_text(json.dumps([told, []]))
        while not Path(folder, "0.json").exists():
            time.sleep(0.05)
        os._exit(0)
    distributed._POLL = datetime.timedelta(seconds=0.1)  # type: ignore[misc]
    began = time.monotonic()

    def check() -> None:
        if time.monotonic() - began > DEAD:
            raise dist.DistError("gone")

    noticed = []
    for wait in (distributed.all_gather, distributed.gather, distributed.broadcast):
        try:
            # What is broadcast does not wait for those who get it, if it is short.
            wait("x" * 10_000_000, check=check)
        except dist.DistError:
            noticed.append(wait.__name__)
    Path(folder, "0.json").write_text(json.dumps([told, noticed, time.monotonic() - began]))
    os._exit(0)


def test_objects_of_any_size_are_exchanged_and_the_dead_are_not_waited_for(
    tmp_path: Path, warm: Warm
) -> None:
    code = "import sys, test_exchanged_objects as t; t.exchanging(int(sys.argv[1]), sys.argv[2])"
    here = [Path(__file__).parent]
    both = [warm.start(str(rank), str(tmp_path), code=code, paths=here) for rank in (0, 1)]
    assert [one.wait(60) for one in both] == [0, 0], [one.err for one in both]
    told, noticed, seconds = json.loads((tmp_path / "0.json").read_text())
    assert told == [[0, 1000], [0, 1], [1, 2], "for 0"]
    assert json.loads((tmp_path / "1.json").read_text())[0] == [
        [0, 1000],
        [],
        [1, 2],
        {"for": 1},
    ]
    assert {"all_gather", "gather"} <= set(noticed)
    assert seconds < 10
