"""How runs end: real processes, real signals, and what is on disk and in MLflow afterwards."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
from safetensors.numpy import load_file

from tests.warm import Forked, Warm

ENDLESS = ("--steps", "1000000")
OFFLINE = ("--set", "tracking.enabled=false")


@attrs.frozen
class Process:
    """`rlplug run` in a process of its own."""

    popen: subprocess.Popen[str] | Forked
    home: Path

    def wait_for(self, reached: Callable[[], object]) -> None:
        """Wait until something is there."""
        while not reached():
            assert self.popen.poll() is None, self.popen.communicate()
            time.sleep(0.01)

    def trains(self) -> None:
        """Wait until metrics are on disk."""
        runs = self.home / "work"
        self.wait_for(lambda: any(one.stat().st_size for one in runs.glob("*/metrics.jsonl")))

    def ends(self) -> str:
        """What it says on stderr until it ends."""
        return self.popen.communicate(timeout=60)[1]

    @property
    def folder(self) -> Path:
        (folder,) = (self.home / "work").iterdir()
        return folder

    @property
    def journal(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def status(self) -> str:
        return str(json.loads((self.folder / "status.json").read_text())["status"])

    @property
    def checkpoints(self) -> list[int]:
        found = self.folder.glob("checkpoints/step-*/manifest.json")
        return sorted(int(one.parent.name.removeprefix("step-")) for one in found)

    @property
    def statuses(self) -> list[str]:
        """The status of each run in MLflow, and beside it the one on disk."""
        with sqlite3.connect(self.home / "mlflow.db") as database:
            rows = list(database.execute("select run_uuid, status from runs"))
        local = {
            file.parent.name: json.loads(file.read_text())["status"]
            for file in self.home.glob("work/*/status.json")
        }
        assert local == dict(rows)
        return [status for _, status in rows]


Start = Callable[..., Process]


@pytest.fixture
def home(tmp_path: Path, empty_store: Path) -> Path:
    """The folder of runs, with a database."""
    (tmp_path / "runs").mkdir()
    shutil.copy(empty_store, tmp_path / "runs")
    return tmp_path / "runs"


def environ(home: Path) -> dict[str, str]:
    path = os.environ["PATH"]
    return {"PATH": path, "HOME": str(home.parent), "RLPLUG_HOME": str(home)}


@pytest.fixture
def started(site: Path, home: Path, warm: Warm) -> Start:
    """The same as `start` for tests that nothing of the start matters to."""

    def starting(*options: str, first: str = "") -> Process:
        folder = home.parent
        given: dict[str, Any] = {"cwd": folder, "environ": environ(home), "paths": [site, folder]}
        code = f"{first}; from rlplug.cli import main; main()" if first else ""
        return Process(warm.start("run", *options, code=code, **given), home)

    return starting


@pytest.fixture
def start(site: Path, home: Path, tmp_path: Path) -> Iterator[Start]:
    """Start `rlplug run` with options: `start("--algo", "means")`."""
    processes: list[subprocess.Popen[str]] = []

    def starting(*options: str, terminal: int | None = None) -> Process:
        paths = [str(site), str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
        process = subprocess.Popen(
            [sys.executable, "-m", "rlplug", "run", *options],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=None if terminal is None else partial(os.login_tty, terminal),
            text=True,
            cwd=tmp_path,
            env={**environ(home), "PYTHONPATH": os.pathsep.join(paths)},
        )
        processes.append(process)
        return Process(process, home)

    yield starting
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


# -- the first signal ---------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_ends_the_run_between_updates_with_a_checkpoint_and_its_own_exit_code(
    started: Start, name: str, code: int
) -> None:
    run = started("--algo", "means", "--json", *ENDLESS)
    run.trains()
    run.popen.send_signal(getattr(signal, name))
    out, said = run.popen.communicate(timeout=60)
    assert run.popen.returncode == code
    assert run.statuses == ["KILLED"]
    (step,) = run.checkpoints
    assert f"rlplug: interrupted at step {step:,}; checkpoint of step {step:,}.\n" in said
    assert said.endswith(f"\nnext: rlplug resume {run.folder.name}\n")
    assert load_file(run.folder / "module.safetensors")["counts"].sum() == step
    result = json.loads(out)
    assert (result["status"], result["checkpoint"], result["step"]) == ("KILLED", step, step)
    last = (run.folder / "metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["step"] == step


def test_nohup_keeps_a_run_from_ending_with_its_terminal(started: Start) -> None:
    ignores = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    run = started("--algo", "means", "--quiet", *OFFLINE, *ENDLESS, first=ignores)
    run.trains()
    run.popen.send_signal(signal.SIGHUP)
    written = run.journal.stat().st_size
    run.wait_for(lambda: run.journal.stat().st_size > written)
    run.popen.send_signal(signal.SIGTERM)
    run.ends()
    assert run.popen.returncode == 143


def test_a_run_whose_terminal_is_closed_is_saved(start: Start) -> None:
    master, slave = os.openpty()
    run = start("--algo", "means", *OFFLINE, *ENDLESS, terminal=slave)
    os.close(slave)
    run.trains()
    os.close(master)
    assert run.popen.wait(timeout=60) == 129
    assert len(run.checkpoints) == 1
    assert run.status == "KILLED"


# -- in start-up --------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_while_environments_are_made_ends_the_run_before_anything_is_recorded(
    started: Start, tmp_path: Path, name: str, code: int
) -> None:
    (tmp_path / "slow_envs.py").write_text(SLOW)
    run = started("--algo", "means", "--env", "slow_envs:Slow-v0")
    run.wait_for((tmp_path / "making").exists)
    run.popen.send_signal(getattr(signal, name))
    assert run.ends().split("\n") == [
        "preparing means on slow_envs:Slow-v0 …",
        "rlplug: interrupted",
        "",
    ]
    assert run.popen.returncode == code
    assert [one.name for one in run.home.iterdir()] == ["mlflow.db"]


SLOW = """
import pathlib, time
import gymnasium

def make(**arguments):
    pathlib.Path("making").touch()
    time.sleep(600)

gymnasium.register("Slow-v0", make)
"""


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(0.3, marks=pytest.mark.long),
        1.5,
        pytest.param(3.0, marks=pytest.mark.long),
        pytest.param(4.0, marks=pytest.mark.long),
    ],
)
def test_ctrl_c_at_any_moment_of_the_start_leaves_nothing_behind(
    start: Start, seconds: float
) -> None:
    run = start("--algo", "means", "--quiet", *ENDLESS)
    time.sleep(seconds)
    run.popen.send_signal(signal.SIGINT)
    said = run.ends()
    assert run.popen.returncode == 130
    assert "Traceback" not in said
    assert set(run.statuses) <= {"KILLED"}


def test_sigusr1_before_there_is_anything_to_save_does_not_end_a_run(start: Start) -> None:
    run = start("--algo", "means", "--steps", "100", "--set", "tracking.enabled=false")
    # This is said before torch and MLflow are imported.
    assert run.popen.stderr is not None
    assert run.popen.stderr.readline().startswith("preparing means")
    run.popen.send_signal(signal.SIGUSR1)
    run.ends()
    assert (run.popen.returncode, run.status) == (0, "FINISHED")


# -- a second signal ----------------------------------------------------------------------------


@pytest.mark.parametrize("trial", [0, 1, pytest.param(2, marks=pytest.mark.long)])
def test_a_second_signal_at_any_moment_leaves_no_run_in_progress(
    started: Start, trial: int
) -> None:
    random = Random(trial)
    names = random.choices([signal.SIGINT, signal.SIGTERM], k=2)
    run = started("--algo", "means", "--set", "checkpoint.every=1000", *ENDLESS)
    run.trains()
    for number, wait in zip(names, (1.0, 1.5), strict=True):
        time.sleep(random.uniform(0, wait))
        run.popen.send_signal(number)
    said = run.ends()
    # The second one may come when Python itself is ending.
    assert run.popen.returncode in (128 + names[0], -names[1])
    assert run.statuses == ["KILLED"]
    assert "Traceback" not in said
    assert f"run {run.folder.name} (means-LinearBandit-v0-s0)\nin runs/work/" in said
    step = run.checkpoints[-1]
    assert f"; checkpoint of step {step:,}.\n" in said
    # What is being deleted may be left; the next start of the run deletes it.
    left = [one.name for one in run.folder.rglob("*unfinished*")]
    assert [name for name in left if not name.endswith("-old")] == []


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129)])
@pytest.mark.parametrize("after", ["click", "torch", "mlflow"])
def test_a_signal_before_the_run_has_begun_ends_it_with_one_line(
    tmp_path: Path, name: str, code: int, after: str
) -> None:
    """Imports take seconds: each of them is early."""
    program = (
        "import os, signal, sys\n"
        "class Sends:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {after!r}:\n"
        f"            os.kill(os.getpid(), signal.{name})\n"
        "sys.meta_path.insert(0, Sends())\n"
        "from rlplug.cli import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", program, "run", "--algo", "linucb", "--steps", "100"]
    environ = {**os.environ, "RLPLUG_HOME": str(tmp_path)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    told = [line for line in done.stderr.splitlines() if line and not line.endswith("…")]
    # Parts of a run, which are made by then, are closed.
    said = "interrupted" if after == "mlflow" else f"ended by {name}"
    assert (done.returncode, told) == (code, [f"rlplug: {said}"])
    assert not list(tmp_path.glob("work/*"))


def test_gradients_that_were_not_finite_are_told_at_the_end(
    home: Path, rlplug: Callable[..., Any]
) -> None:
    settings = ("learning_rate=1e30", "n_steps=32", "batch_size=32", "compute.arrays=off")
    command = ["run", "--algo", "ppo", "--env", "CartPole-v1", "--steps", "1024", *OFFLINE]
    done = rlplug(*command, *(part for one in settings for part in ("--set", one)))
    assert done.code == 0
    assert re.search(r"^not finite +gradients in [1-9]\d* of 4 updates$", done.out, re.M), done.out
