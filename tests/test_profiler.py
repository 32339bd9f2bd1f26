"""Profiles of runs: traces with the phases of the loop, tables, and what they must not change."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv

import rlplug as rl
from rlplug.config.sections import ProfilerSection
from rlplug.metrics import TIME_PARTS
from rlplug.runs import profiler
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


def test_phases_lie_inside_of_each_other_and_add_up_to_the_iterations(home: Path) -> None:
    options = {"n_steps": 64, "sampling.num_envs": 4}
    result = rl.run("ppo", "CartPole-v1", steps=2048, options={**PROFILED, **options})
    profile = profiled(result)
    assert tuple(profile.seconds) == TIME_PARTS
    parts = {name: profile.seconds[name] for name in ("step", "act", "prepare", "learn", "track")}
    assert min(parts.values()) > 0
    assert 0 < sum(profile.learning.values()) < profile.seconds["learn"]
    whole = [one["dur"] for one in events(profile.files[1]) if "ProfilerStep" in one["name"]]
    total = sum(profile.seconds.values())
    # Microseconds; what lies between the phases is little.
    assert total <= sum(whole) / 1e6 < 2 * total


def test_the_speed_of_a_run_is_without_the_time_of_writing_its_profile(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[dict[str, float]] = []

    class Watcher(rl.AddOn):
        """Keeps what is reported."""

        def metrics_reported(self, metrics: Any) -> None:
            reports.append(dict(metrics))

    collected = profiler.Profiler.collected

    def slow(self: Any, step: int, updates: int) -> None:
        collected(self, step, updates)
        time.sleep(0.05)

    monkeypatch.setattr(profiler.Profiler, "collected", slow)
    options = {"n_steps": 32, "n_epochs": 1, "batch_size": 32, "profiler.active": 2}
    rl.run("ppo", "CartPole-v1", steps=640, addons=[Watcher()], options={**PROFILED, **options})
    # All of the run was reported: twenty iterations.
    counted = sum(32 / one["time/steps_per_second"] for one in reports)
    assert len(reports) == 20
    assert counted < reports[-1]["time/seconds"] - 19 * 0.05


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


@pytest.mark.parametrize(
    ("algorithm", "env"), [("linucb", "LinearBandit-v0"), ("rainbow", "CartPole-v1")]
)
def test_other_feeds_have_their_phases_too(home: Path, algorithm: str, env: str) -> None:
    options = {} if algorithm == "linucb" else {"learning_starts": 50}
    result = rl.run(algorithm, env, steps=200, options={**PROFILED, **options})
    found = count(profiled(result).files[1])
    assert {"rlplug: collect", "rlplug: act", "rlplug: step", "rlplug: learn"} <= set(found)
    assert found["rlplug: prepare"] >= found["rlplug: learn"]


def test_workers_have_their_phases_too(home: Path) -> None:
    options = {"sampling.backend": "workers", "sampling.num_envs": 2, "sampling.num_workers": 1}
    result = rl.run(
        "ppo",
        "CartPole-v1",
        steps=640,
        options={**PROFILED, **options, "n_steps": 32, "batch_size": 32},
    )
    found = count(profiled(result).files[1])
    assert found["rlplug: step"] >= found["rlplug: act"] >= 3 * 32


def test_each_option_of_the_profiler_does_what_it_says(home: Path) -> None:
    def of(**options: Any) -> tuple[str, list[dict[str, Any]]]:
        named = {f"profiler.{name}": value for name, value in options.items()}
        more = {"n_steps": 16, "batch_size": 16, "n_epochs": 1, "compute.arrays": "off"}
        result = rl.run("ppo", "CartPole-v1", steps=160, options={**PROFILED, **more, **named})
        table, trace = profiled(result).files[-2:]
        return table.read_text(), events(trace)

    table, trace = of(table_size=4, active=1)
    first, last = [at for at, line in enumerate(table.splitlines()) if line.startswith("---")][1:3]
    assert last - first == 1 + 4
    assert not any("Input Dims" in str(one.get("args")) for one in trace)
    over = threading.Event()

    def wait() -> None:
        while not over.wait(0.01):
            pass

    threading.Thread(target=wait, daemon=True).start()
    try:
        table, trace = of(
            active=1, record_shapes=True, profile_memory=True, with_stack=True, with_flops=True
        )
    finally:
        over.set()
    assert "of _thread.lock" not in table
    assert "Input Shapes" in table
    assert "CPU Mem" in table
    assert "FLOPs" in table
    assert any("Input Dims" in str(one.get("args")) for one in trace)
    assert any(one.get("cat") == "python_function" for one in trace)
    assert any(one["name"] == "[memory]" for one in trace)


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


@pytest.mark.long
def test_a_trace_of_python_calls_is_short_however_many_iterations_it_was_to_have(
    home: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiler, "STACK_SECONDS", 0.02)
    options = {"profiler.active": 2000, "n_steps": 16, "profiler.repeat": 2}
    for stack in (False, True):
        result = rl.run(
            "a2c",
            "CartPole-v1",
            steps=640,
            options={**PROFILED, **options, "profiler.with_stack": stack},
        )
        if not stack:
            # 40 iterations but the first three.
            assert profiled(result).iterations == 37
            assert "ended after" not in caplog.text
    assert profiled(result).iterations < 30
    assert len(profiled(result).files) == 4
    assert len(re.findall(r"a trace ended after \d+ of 2,000 iterations", caplog.text)) == 2
    assert not list(result.folder.rglob(".writing*"))


def test_a_run_that_ends_before_its_trace_writes_what_it_has(home: Path) -> None:
    settings = {**PROFILED, "n_steps": 16, "profiler.active": 50}
    result = rl.run("a2c", "CartPole-v1", steps=80, options=settings)
    assert profiled(result).iterations == 2
    assert profiled(result).files[1].name == "step-000000000080.json.gz"


class Broken(CartPoleEnv):
    """Cannot be reset."""

    def reset(self, **given: Any) -> Any:
        raise ArithmeticError("planted")


def test_a_trace_that_cannot_be_written_is_told_and_the_run_goes_on(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("rlplug.runs.profiler._export", fails)
    short = {"profiler.active": 1, "profiler.skip_first": 0, "profiler.warmup": 0}
    result = rl.run("linucb", steps=4, options={**PROFILED, **short})
    assert (result.status, result.step) == ("FINISHED", 4)
    assert caplog.messages == ["rlplug: no trace at step 1: the disk is full"]
    assert (profiled(result).files, profiled(result).iterations) == ((), 1)


def test_a_run_that_fails_before_its_first_iteration_raises_what_it_would_without_a_profile(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(rl.RlplugError, match="failed in reset after 0 steps"):
        rl.run("a2c", Broken, steps=800, options=PROFILED)
    (said,) = (one.getMessage() for one in caplog.records)
    assert said.startswith("rlplug: nothing was profiled: there were 0 iterations with updates")


def test_a_profile_that_cannot_begin_is_refused(home: Path) -> None:
    with pytest.raises(rl.RequestError, match="at most 3 iterations") as refused:
        rl.run(
            "ppo", "CartPole-v1", steps=96, options={**PROFILED, "n_steps": 32, "batch_size": 32}
        )
    assert "--set profiler.skip_first=0" in str(refused.value)
    assert not list(home.rglob("profile"))


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
    _, printed = done.out.split("profile of 3 iterations, ")
    shares = dict(re.findall(r"^  (\w+) .* (\d+)%$", printed, re.M))
    assert {"step", "act", "prepare", "learn", "track"} <= set(shares)
    assert sum(map(int, shares.values())) in range(97, 104)
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


def test_a_run_that_was_started_with_a_profile_goes_on_with_one(home: Path) -> None:
    options = {**PROFILED, "n_steps": 16}
    result = rl.run("a2c", "CartPole-v1", steps=160, options=options)
    resumed = rl.resume(result.run_id, steps=320)
    names = sorted(one.name for one in (resumed.folder / "profile").glob("*.gz"))
    assert names == ["step-000000000096.json.gz", "step-000000000256.json.gz"]


def test_without_the_flag_nothing_of_the_profiler_is_imported_or_called(home: Path) -> None:
    result = rl.run("a2c", "CartPole-v1", steps=100, options=QUICK)
    assert result.profile is None
    assert not (result.folder / "profile").exists()
    assert result.as_json()["profile"] is None


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


def test_the_page_names_every_option_and_every_part_of_the_time() -> None:
    for name in attrs.fields_dict(ProfilerSection):
        assert f"profiler.{name}" in PAGE
    parts = re.findall(r"^\| `(\w+)` \|", PAGE, re.M)
    assert tuple(parts) == TIME_PARTS
    assert numpy.all([f"rlplug: {one}" in PAGE.replace("\n", " ") for one in _MARKED])


_MARKED = ("collect", "act", "step", "prepare", "learn", "gradients", "optimizer", "evaluate")
