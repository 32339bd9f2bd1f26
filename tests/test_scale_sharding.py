"""Runs whose training state is sharded over two learners: real processes that meet over gloo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

import rlplug
from rlplug.errors import RequestError
from tests.scale_runs import command_of, largest_difference, ppo

TWO: dict[str, Any] = {"scale.learners": 2, "net_arch": [33, 17], "env.normalize_observation": True}
SHARDED: dict[str, Any] = {
    **TWO,
    "scale.parallel": "fsdp",
    "scale.fsdp_parts": ["network.*body.hidden.*"],
}


def resumed(run: rlplug.RunResult, updates: int, **options: Any) -> rlplug.RunResult:
    options["run.max_updates"] = updates
    return rlplug.resume(run.run_id, options=options, allow_drift=True)


def test_a_sharded_run_equals_one_that_is_not_and_goes_on_with_one_learner(
    store_root: Path,
) -> None:
    ddp = ppo(steps=4096, **TWO, **{"run.max_updates": 2})
    part = ppo(steps=4096, **SHARDED, **{"run.max_updates": 2})
    # 2 updates of 32 steps of all 4 environments.
    assert (ddp.step, part.step) == (256, 256)
    assert largest_difference(ddp.module, part.module) < 1e-6
    alone = resumed(part, 3, **{"scale.learners": 1})
    assert (alone.step, alone.status) == (384, "FINISHED")
    assert largest_difference(part.module, alone.module) > 1e-4


@pytest.mark.long
def test_a_sharded_run_goes_on_with_two_learners_and_after_one(
    store_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ddp = ppo(steps=4096, **TWO, **{"run.max_updates": 4})
    part = ppo(steps=4096, **SHARDED, **{"run.max_updates": 2})
    rest = resumed(part, 4)
    assert not [one for one in caplog.messages if "anew" in one]
    assert (ddp.step, part.step, rest.step) == (512, 256, 512)
    assert largest_difference(ddp.module, part.module) > 1e-3
    assert largest_difference(ddp.module, rest.module) < 1e-6
    alone = resumed(part, 5, **{"scale.learners": 1})
    again = resumed(part, 6, **{"scale.learners": 2})
    assert (alone.step, again.step, again.status) == (640, 768, "FINISHED")
    assert largest_difference(alone.module, again.module) > 1e-4


def test_what_cannot_be_sharded_is_refused_before_the_first_step(store_root: Path) -> None:
    options = {"num_envs": 2, "scale.learners": 2, "scale.parallel": "fsdp"}
    with pytest.raises(RequestError, match="there are 2 optimizers"):
        rlplug.run("td3", "Pendulum-v1", options=options)
    assert not list(store_root.glob("work/*"))
    assert not [one for one in psutil.Process().children() if "learner" in command_of(one)]
