"""How runs over several processes end by signals: real process groups, as of a terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rlplug.runs.signals import Interrupts
from rlplug.scale.cluster import _sigterm_kept
from tests.scale_runs import PPO, as_torchrun_starts, command_of

COMMAND = [
    *("-m", "rlplug", "run", "--algo", "ppo", "--env", "CartPole-v1", "--steps", "10000000"),
    *(f"--set={name}={str(value).lower()}" for name, value in PPO.items()),
]
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]

RAY = ["--scale=ray", "--runners=2", "--set=scale.runner_cpus=0.25"]


@pytest.mark.parametrize(
    ("command", "number", "code"),
    [
        ([*COMMAND, "--learners=2"], signal.SIGINT, 130),
        # torchrun has an exit code of its own, and tells its processes of Ctrl-C once more.
        ([*TORCHRUN, *COMMAND], signal.SIGINT, 1),
        ([*COMMAND, *RAY], signal.SIGTERM, 143),
    ],
)
def test_a_signal_ends_all_processes_with_a_checkpoint(
    store_root: Path,
    command: list[str],
    number: signal.Signals,
    code: int,
) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=environment,
    )
    try:
        deadline = time.monotonic() + 120
        while not list(store_root.glob("work/*/checkpoints/step-*")):
            assert run.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        processes = psutil.Process(run.pid).children(recursive=True)
        started = [f"{one.name()} {command_of(one)}" for one in processes if one.is_running()]
        assert [one for one in started if "rlplug" in one or "ray::Runner" in one]
        # A terminal sends Ctrl-C to all processes; `kill` sends SIGTERM to one.
        (os.killpg if number == signal.SIGINT else os.kill)(run.pid, number)
        _, err = run.communicate(timeout=30)
    finally:
        run.kill()
    assert run.returncode == code
    said = err.decode()
    assert "resume it: rlplug resume " in said
    (step,) = {
        line.partition("checkpoint of step ")[2].rstrip(".")
        for line in said.splitlines()
        if "checkpoint of step" in line
    }
    assert list(store_root.glob(f"work/*/checkpoints/step-{int(step.replace(',', '')):012d}"))
    _, left = psutil.wait_procs(processes, timeout=5)
    assert not left


def test_sigterm_that_comes_while_ray_starts_is_not_lost() -> None:
    came: list[int] = []

    def handler(number: int, frame: object) -> None:
        came.append(number)

    def start() -> None:
        # As ray.init does.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
        signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(SystemExit), _sigterm_kept():
            start()
        assert came == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_ctrl_c_that_torchrun_repeats_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    as_torchrun_starts(monkeypatch, 2)
    with Interrupts() as interrupts:
        interrupts.check()
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        assert interrupts.poll() == (signal.SIGINT, False)
        assert not interrupts.at_once
