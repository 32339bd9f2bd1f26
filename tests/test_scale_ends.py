"""How runs over several processes end by signals: real process groups, as of a terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

import rlplug
from rlplug.runs.signals import Interrupted, Interrupts
from tests.scale_runs import PPO, as_torchrun_starts, command_of

COMMAND = [
    *("-m", "rlplug", "run", "--algo", "ppo", "--steps", "10000000"),
    *(f"--set={name}={str(value).lower()}" for name, value in PPO.items()),
]
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]

LOUD = """
import os
from pathlib import Path

from gymnasium.envs.classic_control import CartPoleEnv

class Loud(CartPoleEnv):
    def step(self, action):
        print("a step")
        try:
            Path(__file__).with_name("died").touch(exist_ok=False)
        except FileExistsError:
            return super().step(action)
        os.kill(os.getpid(), 9)

"""


def ended_by_signal(
    store_root: Path, command: list[str], number: signal.Signals, **environment: str
) -> tuple[int, str, str]:
    """The exit code and the output of a run that ends with a checkpoint and all its processes."""
    run = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
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
        out, said = run.communicate(timeout=30)
    finally:
        run.kill()
        run.communicate()
    assert "resume it: rlplug resume " in said
    (step,) = {
        line.partition("checkpoint of step ")[2].rstrip(".")
        for line in said.splitlines()
        if "checkpoint of step" in line
    }
    assert list(store_root.glob(f"work/*/checkpoints/step-{int(step.replace(',', '')):012d}"))
    _, left = psutil.wait_procs(processes, timeout=5)
    assert not left
    return run.returncode, out, said


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ([*COMMAND, "--env=CartPole-v1", "--learners=2"], 130),
        # torchrun has an exit code of its own, and tells its processes of Ctrl-C once more.
        pytest.param([*TORCHRUN, *COMMAND, "--env=CartPole-v1"], 1, marks=pytest.mark.long),
    ],
)
def test_ctrl_c_ends_all_processes_with_a_checkpoint(
    store_root: Path, command: list[str], code: int
) -> None:
    assert ended_by_signal(store_root, command, signal.SIGINT)[0] == code


def test_sigterm_ends_a_run_on_ray_and_with_json_nothing_else_is_printed(
    store_root: Path, tmp_path: Path
) -> None:
    """Neither by Ray nor by an environment, nor of one whose process dies."""
    (tmp_path / "loud_env.py").write_text(LOUD)
    command = [*COMMAND, "--env=loud_env:Loud", "--scale=ray", "--runners=1", "--json"]
    command += ["--set=scale.runner_cpus=0.25"]
    code, out, said = ended_by_signal(store_root, command, signal.SIGTERM, PYTHONPATH=str(tmp_path))
    assert code == 143
    told = json.loads(out)
    assert (told["status"], told["step"] > 0) == ("KILLED", True)
    assert told["metrics"]["sampling/restarts"] == 1.0
    assert "died and is replaced" in said
    for word in ("ray.io", "raylet", "(pid=", "INFO", "WARNING"):
        assert word not in said


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_sigterm_that_comes_in_a_call_of_ray_is_not_taken_for_ctrl_c(
    store_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray replaces what a handler raises in its calls, as while runners make environments."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "waiting_env.py").write_text(WAITING.format(tests=os.getpid()))

    def end() -> None:
        deadline = time.monotonic() + 60
        while not (tmp_path / "waiting").exists():
            if time.monotonic() > deadline:
                return
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    killer = threading.Thread(target=end)
    killer.start()
    options = {**PPO, "scale.engine": "ray", "scale.runner_cpus": 0.5}
    with pytest.raises(Interrupted) as raised:
        rlplug.run("ppo", "waiting_env:Waiting", options=options)
    killer.join()
    assert raised.value.exit_code == 143


WAITING = """
import os
import time
from pathlib import Path

from gymnasium.envs.classic_control import CartPoleEnv

class Waiting(CartPoleEnv):
    def __init__(self):
        super().__init__()
        if os.getpid() != {tests}:
            Path(__file__).with_name("waiting").touch()
            time.sleep(60)
"""


def test_ctrl_c_that_torchrun_repeats_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    as_torchrun_starts(monkeypatch, 2)
    with Interrupts() as interrupts:
        interrupts.check()
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        assert interrupts.poll() == (signal.SIGINT, False)
        assert not interrupts.at_once
