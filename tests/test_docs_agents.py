"""What docs/agents.md shows runs as it is written there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy

import rlplug as library

if TYPE_CHECKING:
    from tests.conftest import Outcome

Command = Callable[..., "Outcome"]
PAGE = (Path(__file__).parent.parent / "docs" / "agents.md").read_text(encoding="utf-8")


def test_the_config_of_the_page_runs(rlplug: Command, store_root: Path, tmp_path: Path) -> None:
    shown, *_ = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "run.toml"
    file.write_text(shown)
    quick = ("--set", "n_steps=32", "--set", "evaluation.episodes=2")
    done = rlplug("run", "--config", str(file), "--steps", "256", *quick, "--quiet")
    assert done.code == 0, done.err
    names = set(library.load("last").predict({"agent_0": numpy.zeros(10, numpy.float32)}))
    assert names == {"agent_0"}


def test_the_commands_of_the_page_are_accepted(rlplug: Command, home: Path) -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("rlplug run")]
    for line in lines:
        done = rlplug(*line.split()[1:], "--dry-run")
        assert done.code == 0, done.err


def test_the_metrics_of_the_page_are_reported(home: Path) -> None:
    quiet = {"tracking.enabled": False, "n_steps": 32, "batch_size": 32, "evaluation.episodes": 2}
    sections = {"modules.one.agents": "agent_0", "modules.two.agents": "agent_1"}
    league = {"league.every": 256}
    env = "examples.agent_tasks:Meeting"
    run = library.run("ppo", env, steps=256, options={**quiet, **sections, **league})
    for name in re.findall(r"^\| `([^`]*)`", PAGE, re.MULTILINE):
        own = name.replace("agents/NAME", "agents/agent_0").replace("NAME", "one")
        assert own in run.metrics, own
