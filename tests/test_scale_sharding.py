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


def test_a_sharded_run_equals_one_that_is_not_and_goes_on_with_two_learners_and_with_one(
    store_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ddp = ppo(steps=4096, **TWO, **{"run.max_updates": 4})
    part = ppo(steps=4096, **SHARDED, **{"run.max_updates": 2})

    def resumed(updates: int, **options: Any) -> rlplug.RunResult:
        options["run.max_updates"] = updates
        return rlplug.resume(part.run_id, options=options, allow_drift=True)

    rest = resumed(4)
    assert not [one for one in caplog.messages if "anew" in one]
    # 4 updates of 32 steps of all 4 environments.
    assert (ddp.step, part.step, rest.step) == (512, 256, 512)
    assert largest_difference(ddp.module, part.module) > 1e-3
    assert largest_difference(ddp.module, rest.module) < 1e-6
    alone = resumed(5, **{"scale.learners": 1})
    assert (alone.step, alone.status) == (640, "FINISHED")
    assert largest_difference(rest.module, alone.module) > 1e-4


@pytest.mark.long
def test_a_run_that_went_on_with_one_learner_is_sharded_again(store_root: Path) -> None:
    steps: list[int] = []
    run = ppo(steps=4096, **SHARDED, **{"run.max_updates": 2})
    for updates, learners in ((3, 1), (4, 2)):
        options = {"run.max_updates": updates, "scale.learners": learners}
        run = rlplug.resume(run.run_id, options=options, allow_drift=True)
        steps.append(run.step)
    assert (steps, run.status) == ([384, 512], "FINISHED")


def test_what_cannot_be_sharded_is_refused_before_the_first_step(store_root: Path) -> None:
    options = {"num_envs": 2, "scale.learners": 2, "scale.parallel": "fsdp"}
    with pytest.raises(RequestError, match="there are 2 optimizers"):
        rlplug.run("td3", "Pendulum-v1", options=options)
    assert not list(store_root.glob("work/*"))
    assert not [one for one in psutil.Process().children() if "learner" in command_of(one)]
