"""The commands, options and metrics of docs/workers.md are those that there are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest

import rlplug as rl
from rlplug.config.sections import SamplingSection

if TYPE_CHECKING:
    from tests.conftest import Outcome

Command = Callable[..., "Outcome"]
PAGE = (Path(__file__).parent.parent / "docs" / "workers.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
LINES = [re.split(r"\s{3,}", line)[0] for block in BLOCKS for line in block.splitlines()]
SETTINGS = [line for line in LINES if line.startswith("--set")]
WORKERS = ["--set", "sampling.backend=workers", "--set", "sampling.num_envs=16"]


@pytest.mark.parametrize("line", SETTINGS)
def test_every_option_of_the_page_is_accepted(line: str, rlplug: Command, home: Path) -> None:
    given = shlex.split(line)
    for option, value in zip(WORKERS[::2], WORKERS[1::2], strict=True):
        if value.split("=")[0] not in line:
            given += [option, value]
    done = rlplug("run", "--algo", "ppo", "--env", "CartPole-v1", *given, "--dry-run")
    assert done.code == 0, done.err


def test_the_first_command_of_the_page_is_accepted(rlplug: Command, home: Path) -> None:
    command, _ = [line for line in LINES if line.startswith("rlplug")]
    given = shlex.split(command.replace("my_package:Robot-v0", "CartPole-v1"))[1:]
    done = rlplug(*given, "--dry-run")
    assert done.code == 0, done.err


def test_every_option_named_in_the_text_exists() -> None:
    named = set(re.findall(r"sampling\.(\w+)", PAGE)) - {"py"}
    fields = set(attrs.fields_dict(SamplingSection))
    assert named <= fields
    assert fields - set(re.findall(r"\w+", PAGE)) == set()


def test_a_run_with_workers_reports_the_metrics_of_the_page(home: Path) -> None:
    metrics: set[str] = set()
    for row in re.findall(r"^\| (`.*`) \|", PAGE.split("## Metrics")[1], re.M):
        first, *others = re.findall(r"`([^`]+)`", row)
        metrics |= {first, *(first.rsplit("_", 1)[0] + other for other in others)}
    assert len(metrics) == 7
    result = rl.run(
        "linucb",
        "LinearBandit-v0",
        steps=256,
        options={
            "tracking.enabled": False,
            "sampling.backend": "workers",
            "sampling.num_workers": 2,
            "sampling.num_envs": 8,
            "sampling.min_batch_size": 4,
        },
    )
    sizes = {name for name in result.metrics if name.startswith("sampling/batches_of_")}
    assert sizes <= {"sampling/batches_of_4", "sampling/batches_of_8"}
    assert metrics - {"sampling/batches_of_4"} <= set(result.metrics)
