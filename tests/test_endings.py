"""How runs end: real processes, real signals, and what is on disk and in MLflow afterwards."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import attrs
import pytest
from safetensors.numpy import load_file

ENDLESS = ("--steps", "1000000")


@attrs.frozen
class Process:
    """`rlplug run` in a process of its own."""

    popen: subprocess.Popen[str]
    home: Path

    @property
    def err(self) -> IO[str]:
        assert self.popen.stderr is not None
        return self.popen.stderr

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
def start(site: Path, tmp_path: Path) -> Iterator[Start]:
    """Start `rlplug run` with options: `start("--algo", "means")`."""
    processes: list[subprocess.Popen[str]] = []

    def starting(*options: str, **more: str) -> Process:
        paths = [str(site), str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
        process = subprocess.Popen(
            [sys.executable, "-m", "rlplug", "run", *options],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={
                "PYTHONPATH": os.pathsep.join(paths),
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "RLPLUG_HOME": str(tmp_path / "runs"),
                **more,
            },
        )
        processes.append(process)
        return Process(process, tmp_path / "runs")

    yield starting
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


# -- the first signal ---------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_ends_the_run_between_updates_with_a_checkpoint_and_its_own_exit_code(
    start: Start, name: str, code: int
) -> None:
    run = start("--algo", "means", "--json", *ENDLESS)
    run.trains()
    run.popen.send_signal(getattr(signal, name))
    out, said = run.popen.communicate(timeout=60)
    assert run.popen.returncode == code
    assert run.statuses == ["KILLED"]
    (step,) = run.checkpoints
    assert f"rlplug: interrupted at step {step:,}; checkpoint of step {step:,}.\n" in said
    assert said.endswith(f"\nresume it: rlplug resume {run.folder.name}\n")
    assert load_file(run.folder / "module.safetensors")["counts"].sum() == step
    result = json.loads(out)
    assert (result["status"], result["checkpoint"], result["step"]) == ("KILLED", step, step)
    last = (run.folder / "metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["step"] == step
