"""Runs with environments in worker processes: equal numbers, resume, endings, and bad options."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import rlplug as rl
from tests.test_resume_exact import points, resumed_equals
from tests.warm import Forked, Warm

IN_WORKERS = {"sampling.backend": "workers", "sampling.num_workers": 2}
LOCK_STEP = {**IN_WORKERS, "sampling.force_sync": True}


CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "ppo": ("CartPole-v1", 512, {"n_steps": 64, "n_epochs": 4}),
    "a2c": ("CartPole-v1", 400, {"gae_lambda": 0.9}),
    "dqn": ("CartPole-v1", 300, {"learning_starts": 100}),
    "rainbow": ("CartPole-v1", 300, {"learning_starts": 100}),
    "linucb": ("LinearBandit-v0", 300, {}),
}


@pytest.mark.parametrize(
    "algorithm",
    [*("ppo", "dqn"), *(pytest.param(name, marks=pytest.mark.long) for name in ("a2c", "rainbow"))],
)
def test_lock_step_gives_the_results_of_one_process(home: Path, algorithm: str) -> None:
    env, steps, options = CASES[algorithm]
    settings = {
        "tracking.enabled": False,
        "num_envs": 4,
        "sampling.vectorization": "sync",
        "evaluation.episodes": 2,
        **options,
    }
    one, other = (
        rl.run(algorithm, env, steps=steps, seed=2, options={**settings, **more})
        for more in ({}, LOCK_STEP)
    )
    expected = {key: str(values) for key, values in points(one.folder).items()}
    found = {
        key: str(values)
        for key, values in points(other.folder).items()
        if not key[1].startswith("sampling/")
    }
    assert found == expected
    there = other.module.state_dict()
    for name, tensor in one.module.state_dict().items():
        assert torch.equal(torch.as_tensor(tensor), torch.as_tensor(there[name])), name


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("ppo", {"n_steps": 64, "n_epochs": 4, "memory": "lstm", "truncated_bptt": 16}),
        ("dqn", {"learning_starts": 200, "frame_stack": 3}),
    ],
)
def test_a_run_in_lock_step_resumes_exactly(
    home: Path, algorithm: str, options: dict[str, Any]
) -> None:
    settings = {"num_envs": 4, "evaluation.episodes": 0, **LOCK_STEP, **options}
    resumed_equals(home, algorithm, "CartPole-v1", steps=768, every=256, at=400, options=settings)


def test_the_generators_of_workers_go_on_where_they_were(home: Path) -> None:
    settings = {"num_envs": 4, "n_steps": 64, "evaluation.episodes": 0, **LOCK_STEP}
    env = "tests.worker_games:DrawsAll-v0"
    resumed_equals(home, "ppo", env, steps=1024, every=256, at=600, options=settings)


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("ppo", {"n_steps": 64}),
        pytest.param(
            "ppo", {"sampling.num_epoch_samples": 300, "batch_size": 50}, marks=pytest.mark.long
        ),
        pytest.param(
            "ppo",
            {"sampling.num_epoch_samples": 300, "memory": "lstm", "truncated_bptt": 16},
            marks=pytest.mark.long,
        ),
        ("ppo", {"sampling.num_epoch_samples": 300, "memory": "gru", "advantages": "vtrace"}),
        pytest.param("a2c", {"sampling.num_epoch_samples": 12}, marks=pytest.mark.long),
        pytest.param("dqn", {"learning_starts": 100}, marks=pytest.mark.long),
        ("rainbow", {"learning_starts": 100, "sampling.max_staleness": 2}),
        ("linucb", {}),
    ],
    ids=str,
)
def test_workers_that_do_not_wait_train_and_resume(
    home: Path, algorithm: str, options: dict[str, Any]
) -> None:
    env = "LinearBandit-v0" if algorithm == "linucb" else "CartPole-v1"
    settings = {"tracking.enabled": False, "num_envs": 4, "evaluation.episodes": 0}
    settings |= {**IN_WORKERS, **options}
    settings |= {"n_epochs": 2} if algorithm == "ppo" else {}
    result = rl.run(algorithm, env, steps=600, seed=2, options=settings)
    assert (result.status, result.step >= 600) == ("FINISHED", True)
    assert result.metrics["sampling/batch_size_max"] <= 4
    resumed = rl.resume(result.run_id, steps=1200)
    assert (resumed.status, resumed.step >= 1200) == ("FINISHED", True)
    saved = {step for step, name in points(resumed.folder) if name == "sampling/batch_size_max"}
    twice = [key for key, values in points(resumed.folder).items() if len(values) > 1]
    assert (len(saved) > 1, twice) == (True, [])


@pytest.mark.parametrize(
    ("steps", "earned", "options"),
    [
        # Random actions give 22.
        (10_000, 66, {"n_steps": 64, "evaluation.every": 0}),
        pytest.param(20_000, 150, {}, marks=pytest.mark.long),
    ],
)
def test_ppo_learns_cartpole_from_workers_that_do_not_wait(
    home: Path, steps: int, earned: int, options: dict[str, Any]
) -> None:
    settings = {"tracking.enabled": False, "num_envs": 8, **IN_WORKERS, **options}
    result = rl.run("ppo", "CartPole-v1", steps=steps, seed=1, options=settings)
    assert result.best is not None
    assert result.best[1] > earned


# -- bad options --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("min_batch_size=3", "max_batch_size=2"), "min_batch_size = 3 is above max_batch_size"),
        (("min_batch_size=5",), "min_batch_size = 5 is above num_envs = 4"),
        (("num_workers=9",), "num_workers = 9 is above num_envs = 4"),
        (("num_workers=2", "envs_per_worker=3"), "num_workers × envs_per_worker = 6 is not num_"),
        (("num_workers=4", "envs_per_worker=2"), "num_workers × envs_per_worker = 8 is not num_"),
        (("max_wait_time=-1",), "max_wait_time"),
        (
            ("num_epoch_samples=5", "min_trajectory_length=6"),
            "min_trajectory_length = 6 is above num_epoch_samples = 5",
        ),
        (
            ("max_trajectory_length=5", "min_trajectory_length=6"),
            "min_trajectory_length = 6 is above max_trajectory_length = 5",
        ),
        (("force_sync=true", "max_staleness=2"), "max_staleness would have no effect with force_"),
        (("vectorization=native",), "vectorization = 'native' is for backend = 'in_process'"),
        (("backend=in_process", "max_wait_time=1"), "max_wait_time would have no effect with back"),
        (("backend=threads",), "backend"),
        (("num_epoch_samples=20", "min_trajectory_length=200", "n_steps=16"), "num_epoch_samples"),
        (("min_trajectory_length=200",), "min_trajectory_length = 200 is above the 16 steps"),
        (("num_epoch_samples=8",), "batch_size = 32 is larger than the rollout"),
    ],
    ids=str,
)
def test_options_that_cannot_be_are_refused(
    rlplug: Callable[..., Any], home: Path, options: tuple[str, ...], problem: str
) -> None:
    given = {"backend": "workers", "num_envs": "4"}
    given |= dict(one.split("=") for one in options)
    given.pop("n_steps", None)
    settings = [part for name, one in given.items() for part in ("--set", f"sampling.{name}={one}")]
    done = rlplug(
        *("run", "--algo", "ppo", "--env", "CartPole-v1", "--steps", "256"),
        *("--set", "n_steps=16", "--set", "batch_size=32", "--set", "tracking.enabled=false"),
        *settings,
    )
    assert (done.code, "Traceback" in done.err) == (2, False)
    assert problem in done.err
    assert not list(home.glob("work/*"))


def test_single_steps_have_no_trajectories_to_leave_out(
    rlplug: Callable[..., Any], home: Path
) -> None:
    done = rlplug(
        *("run", "--algo", "dqn", "--env", "CartPole-v1", "--steps", "256"),
        *("--set", "sampling.min_trajectory_length=2", "--set", "learning_starts=25"),
    )
    assert done.code == 2
    assert "sampling.min_trajectory_length = 2 is for rollouts" in done.err


def test_no_wait_is_a_wait_of_zero(home: Path) -> None:
    settings = {
        "tracking.enabled": False,
        "num_envs": 2,
        "n_steps": 32,
        "batch_size": 64,
        **IN_WORKERS,
    }
    more = {"sampling.max_wait_time": 0, "sampling.min_batch_size": 2}
    assert rl.run("ppo", "CartPole-v1", steps=128, options={**settings, **more}).step == 128


def test_episodes_are_cut_off_and_bootstrapped_after_so_many_steps(home: Path) -> None:
    settings = {
        "tracking.enabled": False,
        "evaluation.episodes": 0,
        "n_steps": 64,
        "sampling.max_trajectory_length": 5,
    }
    for more in ({}, {"num_envs": 4, **IN_WORKERS}):
        result = rl.run("ppo", "CartPole-v1", steps=512, options={**settings, **more})
        # A pole falls after eight steps at the earliest.
        assert result.metrics["rollout/length_mean"] == 5


# -- endings ------------------------------------------------------------------------------------


@pytest.fixture
def start(tmp_path: Path, warm: Warm) -> Callable[..., Forked]:
    """Start a run with workers in a process of its own."""

    def starting(*, wait: bool = True) -> Forked:
        settings = {**IN_WORKERS, "tracking.enabled": "false", "num_envs": 4, "n_steps": 64}
        process = warm.start(
            # Ten times as long, metrics would be written ten times as late.
            *("run", "--algo", "ppo", "--env", "CartPole-v1", "--steps", "1000000"),
            *(f"--set={name}={value}" for name, value in settings.items()),
            environ={**os.environ, "RLPLUG_HOME": str(tmp_path / "runs")},
            new_session=True,
        )
        while wait and not any(
            one.stat().st_size for one in tmp_path.glob("runs/work/*/metrics.jsonl")
        ):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        return process

    return starting


def family(session: int) -> list[int]:
    """The processes of a session that are not ended."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(status.parent.name))
    return found


def named_memory(processes: list[int]) -> set[str]:
    """Names of the shared memory that these processes have mapped."""
    names: set[str] = set()
    mapped = 0
    for pid in processes:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if "/pym-" in line:
                mapped += 1
                names |= set() if line.endswith("(deleted)") else {line.split()[-1]}
    assert mapped
    return names


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc")
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGKILL", -9)])
def test_nothing_is_left_of_workers_when_a_run_ends(
    start: Callable[..., Forked], name: str, code: int
) -> None:
    run = start()
    processes = family(run.pid)
    # The run, two workers, and what starts them.
    assert len(processes) >= 4
    # Nobody has to delete it.
    assert named_memory(processes) == set()
    if name == "SIGINT":
        # As a terminal does: to all of them.
        os.killpg(run.pid, signal.SIGINT)
    else:
        os.kill(run.pid, signal.SIGKILL)
    _, said = run.communicate(timeout=60)
    assert run.returncode == code
    deadline = time.monotonic() + 30
    while family(run.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert family(run.pid) == []
    if name == "SIGINT":
        assert "resume it: rlplug resume" in said


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_ctrl_c_while_workers_start_shows_no_traceback(start: Callable[..., Forked]) -> None:
    run = start(wait=False)
    while not any(b"forkserver" in command_line(pid) for pid in family(run.pid)):
        assert run.poll() is None, run.communicate()
        time.sleep(0.01)
    # It imports what workers need, for a second or more.
    time.sleep(0.3)
    os.killpg(run.pid, signal.SIGINT)
    _, said = run.communicate(timeout=60)
    assert (run.returncode, "Traceback" in said) == (130, False), said


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_a_run_whose_worker_is_killed_ends_and_names_the_environment(
    rlplug: Callable[..., Any], home: Path
) -> None:
    def kill() -> None:
        deadline = time.monotonic() + 120
        while not any('"step"' in one.read_text() for one in home.glob("work/*/metrics.jsonl")):
            if time.monotonic() > deadline:
                return
            time.sleep(0.02)
        # What starts them is a child of this process, and they are its children.
        here = psutil.Process()
        forked = set(here.children(recursive=True)) - set(here.children())
        max(filter(is_forked, forked), key=lambda one: one.create_time()).kill()

    killer = threading.Thread(target=kill)
    killer.start()
    done = rlplug(
        *("run", "--algo", "ppo", "--env", "CartPole-v1", "--steps", "500000"),
        *("--set", "tracking.enabled=false", "--set", "num_envs=4", "--set", "n_steps=64"),
        *("--set", "evaluation.episodes=0"),
        *(part for name, one in IN_WORKERS.items() for part in ("--set", f"{name}={one}")),
    )
    killer.join()
    assert done.code == 1
    assert "environment 'CartPole-v1' (" in done.err, done.err
    assert "its worker process was killed by signal 9" in done.err, done.err
    assert "Traceback" not in done.err


def is_forked(process: psutil.Process) -> bool:
    return b"forkserver" in command_line(process.pid)
