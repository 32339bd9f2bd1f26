"""Profiles of runs: traces with the phases of the loop, tables, and what they must not change."""

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


def events(file: Path) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    return read


def count(file: Path) -> dict[str, int]:
    """How often each of the phases of the loop was entered."""
    names = [one["name"] for one in events(file) if one.get("cat") == "user_annotation"]
    return {name: names.count(name) for name in set(names)}


def profiled(result: rl.RunResult) -> Any:
    assert result.profile is not None
    return result.profile


def test_a_trace_has_the_phases_of_as_many_iterations_as_asked_for(home: Path) -> None:
    options = {"n_steps": 32, "n_epochs": 2, "batch_size": 16, "profiler.active": 2}
    result = rl.run("ppo", "CartPole-v1", steps=320, options={**PROFILED, **options})
    table, trace = profiled(result).files
    # 32 steps at a time: two iterations are skipped, one warms up, two are traced.
    assert (trace.name, table.name) == ("step-000000000160.json.gz", "step-000000000160.txt")
    found = count(trace)
    assert {name: found[f"rlplug: {name}"] for name in ("collect", "act", "step", "learn")} == {
        "collect": 2,
        "act": 64,
        "step": 64,
        "learn": 2,
    }
    assert profiled(result).seconds["collect"] > profiled(result).seconds["step"] > 0
    # One table, of times of the CPU: nothing is computed elsewhere.
    assert table.read_text().count("Self CPU time total") == 1
    # Two epochs of two minibatches each.
    assert (found["rlplug: gradients"], found["rlplug: optimizer"]) == (8, 8)
    assert profiled(result).iterations == 2


def test_an_evaluation_is_a_phase_of_the_iteration_after_which_it_is(home: Path) -> None:
    options = {"n_steps": 32, "n_epochs": 1, "batch_size": 32, "profiler.active": 2}
    evaluated = {"evaluation.episodes": 1, "evaluation.every": 32}
    result = rl.run("ppo", "CartPole-v1", steps=320, options={**PROFILED, **options, **evaluated})
    _, trace = profiled(result).files
    assert count(trace)["rlplug: evaluate"] == 2
    assert profiled(result).seconds["evaluate"] > 0


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


def test_iterations_without_updates_count_with_the_next_that_has_some(home: Path) -> None:
    options = {"learning_starts": 200, "train_freq": 4, "profiler.skip_first": 0}
    result = rl.run("dqn", "CartPole-v1", steps=400, options={**PROFILED, **options})
    # The first update warms up, three more are traced, four steps apart.
    assert profiled(result).files[1].name == "step-000000000216.json.gz"


@pytest.mark.parametrize("engine", ["auto", "off"])
def test_the_phases_are_there_whatever_computes_gradients(home: Path, engine: str) -> None:
    options = {"n_steps": 32, "compute.arrays": engine}
    result = rl.run("a2c", "CartPole-v1", steps=320, options={**PROFILED, **options})
    assert result.engine.startswith("arrays" if engine == "auto" else "torch")
    table, trace = profiled(result).files
    assert count(trace)["rlplug: gradients"] == 3
    assert "rlplug: gradients" in table.read_text()


def test_traces_are_repeated_with_waits_between_them(home: Path) -> None:
    schedule = {"skip_first": 1, "wait": 1, "warmup": 1, "active": 2, "repeat": 2}
    options = {f"profiler.{name}": value for name, value in schedule.items()}
    settings = {**PROFILED, **options, "n_steps": 16}
    result = rl.run("a2c", "CartPole-v1", steps=400, options=settings)
    # Iterations of 16 steps: 1 + (1 + 1 + 2) are over at step 80, four more at step 144.
    names = [file.name for file in profiled(result).files]
    assert names == [
        f"step-{step:012d}.{suffix}" for step in (80, 144) for suffix in ("txt", "json.gz")
    ]
    assert profiled(result).iterations == 4


def test_a_run_that_ends_before_its_trace_writes_what_it_has(home: Path) -> None:
    settings = {**PROFILED, "n_steps": 16, "profiler.active": 50}
    result = rl.run("a2c", "CartPole-v1", steps=80, options=settings)
    assert profiled(result).iterations == 2
    assert profiled(result).files[1].name == "step-000000000080.json.gz"


def test_a_profile_that_did_not_begin_is_told(
    home: Path, rlplug: Command, caplog: pytest.LogCaptureFixture
) -> None:
    # Nobody can know before the run that its last steps bring no update.
    settings = ["--set", "learning_starts=90", "--set", "train_freq=4", "--set", "batch_size=8"]
    done = rlplug(
        *("run", "--algo", "dqn", "--env", "CartPole-v1", "--steps", "100", "--profile"),
        *("--set", "tracking.enabled=false", "--set", "evaluation.episodes=0", *settings),
    )
    assert done.code == 0
    assert "nothing was profiled: there were 3 iterations with updates" in caplog.text
    assert "profile of" not in done.out


def test_the_flag_prints_where_the_time_went_and_uploads_the_files(
    home: Path, store_root: Path, rlplug: Command
) -> None:
    command = ["run", "--algo", "ppo", "--env", "CartPole-v1", "--steps", "640", "--profile"]
    done = rlplug(
        *command, "--set", "n_steps=8", "--set", "batch_size=32", "--set", "evaluation.episodes=0"
    )
    assert done.code == 0, done.err
    _, printed = done.out.split("profile of 3 iterations (slower than without it):")
    phases = set(re.findall(r"^  (\w+) ", printed, re.M))
    assert {"collect", "step", "act", "prepare", "learn", "gradients", "track"} <= phases
    assert "USDT" not in done.err
    run = rl.runs()[0]
    there = list((store_root / "artifacts").rglob("artifacts/profile/*"))
    assert sorted(one.suffix for one in there) == [".gz", ".txt"]
    assert run.run_id in str(there[0])


def test_a_resumed_run_is_profiled_without_drift(home: Path, rlplug: Command) -> None:
    settings = {**QUICK, "n_steps": 16}
    result = rl.run("a2c", "CartPole-v1", steps=160, options=settings)
    done = rlplug("resume", result.run_id, "--steps", "400", "--profile")
    assert done.code == 0, done.err
    names = sorted(one.name for one in (result.folder / "profile").iterdir())
    # Three of 16 steps are not traced, then three are.
    assert names == ["step-000000000256.json.gz", "step-000000000256.txt"]


def test_each_option_of_the_profiler_does_what_it_says(home: Path) -> None:
    named = ("record_shapes", "profile_memory", "with_stack", "with_flops")
    options = {f"profiler.{name}": True for name in named}
    options |= {"profiler.active": 1, "profiler.table_size": 4, "compute.arrays": "off"}
    more = {"n_steps": 16, "batch_size": 16, "n_epochs": 1}
    result = rl.run("ppo", "CartPole-v1", steps=160, options={**PROFILED, **more, **options})
    file, trace = profiled(result).files
    table = file.read_text()
    first, last = [at for at, line in enumerate(table.splitlines()) if line.startswith("---")][1:3]
    assert last - first == 1 + 4
    assert all(word in table for word in ("Input Shapes", "CPU Mem", "FLOPs"))
    found = events(trace)
    assert any("Input Dims" in str(one.get("args")) for one in found)
    assert any(one.get("cat") == "python_function" for one in found)
    assert any(one["name"] == "[memory]" for one in found)


def test_a_trace_that_cannot_be_written_is_told_and_the_run_goes_on(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class InTheWay(rl.AddOn):
        """Leaves a file where the folder would be."""

        def run_started(self, run: Any) -> None:
            (run.folder / "profile").write_text("")

    short = {"profiler.active": 1, "profiler.skip_first": 0}
    result = rl.run("linucb", steps=4, addons=[InTheWay()], options={**PROFILED, **short})
    assert (result.status, result.step) == ("FINISHED", 4)
    assert [one.partition(": [")[0] for one in caplog.messages] == ["rlplug: no trace at step 2"]
    assert (profiled(result).files, profiled(result).iterations) == ((), 1)


LINES = [
    re.split(r"\s{3,}", line)[0]
    for block in re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("--set")])
def test_every_option_of_the_page_is_accepted(line: str, rlplug: Command, home: Path) -> None:
    command = ["run", "--algo", "ppo", "--env", "CartPole-v1", "--steps", "200000"]
    done = rlplug(*command, *shlex.split(line), "--dry-run")
    assert done.code == 0, done.err


def test_the_page_names_every_option_and_phase() -> None:
    for name in attrs.fields_dict(ProfilerSection):
        assert f"profiler.{name}" in PAGE
    phases = ("collect", "act", "step", "prepare", "learn", "gradients", "optimizer", "evaluate")
    assert all(f"rlplug: {one}" in PAGE.replace("\n", " ") for one in phases)
