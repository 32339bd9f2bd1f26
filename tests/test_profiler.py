"""Profiles of runs: traces and tables, and what they must not change."""

from __future__ import annotations

import gzip
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import torch

import rlplug as rl
from rlplug.config.sections import ProfilerSection
from tests.test_resume_exact import points

if TYPE_CHECKING:
    from tests.conftest import Outcome

Command = Callable[..., "Outcome"]
QUICK = {"tracking.enabled": False, "evaluation.episodes": 0, "sampling.num_envs": 1}
PROFILED = {**QUICK, "profiler.enabled": True}
PAGE = (Path(__file__).parent.parent / "docs" / "profiling.md").read_text(encoding="utf-8")


def test_traces_are_of_the_iterations_that_were_asked_for(home: Path) -> None:
    schedule = {"skip_first": 1, "wait": 1, "warmup": 1, "active": 2, "repeat": 2}
    options = {f"profiler.{name}": value for name, value in schedule.items()}
    result = rl.run("a2c", "CartPole-v1", steps=400, options={**PROFILED, **options, "n_steps": 16})
    # Iterations of 16 steps: 1 + (1 + 1 + 2) are over at step 80, four more at step 144.
    assert [file.name for file in result.profile] == [
        f"step-{step:012d}.{suffix}" for step in (80, 144) for suffix in ("txt", "json.gz")
    ]
    assert result.profile[0].read_text().count("Self CPU time total") == 1


def test_a_profile_changes_nothing_that_is_learned(home: Path) -> None:
    settings = {**QUICK, "learning_starts": 100}
    one, other = (
        rl.run("dqn", "CartPole-v1", steps=400, seed=3, options={**settings, **more})
        for more in ({}, {"profiler.enabled": True, "profiler.with_stack": True})
    )
    assert points(one.folder) == points(other.folder)
    there = other.module.state_dict()
    for name, tensor in one.module.state_dict().items():
        assert torch.equal(tensor, there[name]), name


def test_a_trace_that_torch_cannot_sum_up_does_not_end_the_run(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise RecursionError("maximum recursion depth exceeded")

    monkeypatch.setattr(torch.profiler.profile, "key_averages", fail)
    result = rl.run("a2c", "CartPole-v1", steps=400, options={**PROFILED, "n_steps": 16})
    assert result.step == 400
    assert not result.profile
    (said,) = caplog.messages
    assert "no trace at step" in said


def test_iterations_without_updates_count_with_the_next_that_has_some(home: Path) -> None:
    options = {"learning_starts": 200, "train_freq": 4, "profiler.skip_first": 0}
    result = rl.run("dqn", "CartPole-v1", steps=400, options={**PROFILED, **options})
    # The first update warms up, three more are traced, four steps apart.
    assert result.profile[1].name == "step-000000000216.json.gz"


def test_a_profile_that_did_not_begin_is_told(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    result = rl.run("a2c", "CartPole-v1", steps=16, options={**PROFILED, "n_steps": 16})
    assert result.profile == ()
    assert "nothing was profiled" in caplog.text


def test_the_flag_prints_and_uploads_the_files_also_after_a_resume(
    home: Path, store_root: Path, rlplug: Command
) -> None:
    settings = ["--set", "n_steps=16", "--set", "num_envs=1", "--set", "evaluation.episodes=0"]
    done = rlplug("run", "--algo", "a2c", "--env", "CartPole-v1", "--steps", "160", *settings)
    assert done.code == 0, done.err
    (run,) = rl.runs()
    done = rlplug("resume", run.run_id, "--steps", "400", "--profile")
    assert done.code == 0, done.err
    # Three iterations of 16 steps are not traced, then three are.
    assert re.findall(r"^profile +.*/(\S+)$", done.out, re.MULTILINE) == [
        "step-000000000256.txt",
        "step-000000000256.json.gz",
    ]
    there = list((store_root / "artifacts").rglob("artifacts/profile/*"))
    assert sorted(one.suffix for one in there) == [".gz", ".txt"]


def test_each_option_of_the_profiler_does_what_it_says(home: Path) -> None:
    named = ("record_shapes", "profile_memory", "with_stack", "with_flops")
    options = {f"profiler.{name}": True for name in named}
    options |= {"profiler.active": 1, "profiler.table_size": 4, "compute.arrays": "off"}
    more = {"n_steps": 16, "batch_size": 16, "n_epochs": 1}
    result = rl.run("ppo", "CartPole-v1", steps=160, options={**PROFILED, **more, **options})
    file, trace = result.profile
    table = file.read_text()
    first, last = [at for at, line in enumerate(table.splitlines()) if line.startswith("---")][1:3]
    assert last - first == 1 + 4
    assert all(word in table for word in ("Input Shapes", "CPU Mem", "FLOPs"))
    events: list[Any] = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert any("Input Dims" in str(one.get("args")) for one in events)
    assert any(one.get("cat") == "python_function" for one in events)
    assert any(one["name"] == "[memory]" for one in events)


def test_a_trace_that_cannot_be_written_is_told_and_the_run_goes_on(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class InTheWay(rl.AddOn):
        """Leaves a file where the folder would be."""

        def run_started(self, run: Any) -> None:
            (run.folder / "profile").write_text("")

    short = {"profiler.active": 1, "profiler.skip_first": 0}
    result = rl.run("linucb", steps=4, addons=[InTheWay()], options={**PROFILED, **short})
    assert (result.status, result.step, result.profile) == ("FINISHED", 4, ())
    assert caplog.messages[0].startswith("rlplug: no trace at step 2: [")


def test_the_page_names_every_option_and_its_commands_are_accepted(
    rlplug: Command, home: Path
) -> None:
    for name in attrs.fields_dict(ProfilerSection):
        assert f"profiler.{name}" in PAGE
    command = ["run", "--algo", "ppo", "--env", "CartPole-v1", "--steps", "200000"]
    settings = [
        re.split(r"\s{3,}", line)[0] for line in PAGE.splitlines() if line.startswith("--set")
    ]
    done = rlplug(*command, *shlex.split(" ".join(dict.fromkeys(settings))), "--dry-run")
    assert done.code == 0, done.err
