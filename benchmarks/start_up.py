"""What starting and ending cost: commands that must be instant, and a run of ten steps.

python benchmarks/start_up.py [--rounds 7]

First, what a person who reads the way of a run has to read: the files of rlplug with functions that
run between Enter and the first step of PPO, and these functions, without what only imports run.

Beside each other in one table, as medians of runs that take turns: the imports that a run cannot do
without, an MlflowClient that opens the store, and the run, untracked and tracked. Its ten steps
take a few milliseconds, which are not taken off.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

BASE = "import click, rich.console, rich.table, attrs, pluggy"
INSTANT = {
    "base imports": ["-c", BASE],
    "rlplug --help": ["-m", "rlplug", "--help"],
    "rlplug version": ["-m", "rlplug", "version"],
    "rlplug plugins list": ["-m", "rlplug", "plugins", "list"],
    "rlplug plugins hooks": ["-m", "rlplug", "plugins", "hooks"],
}
TEN_STEPS = ["-m", "rlplug", "run", "--algo", "linucb", "--steps", "10"]
UNTRACKED = [*TEN_STEPS, "--set", "tracking.enabled=false"]
UNTIL_FIRST_STEP = """
import sys, threading
from gymnasium.envs.classic_control import cartpole
functions = set()
def note(frame, event, argument):
    code = frame.f_code
    if event != "call" or "/rlplug/" not in code.co_filename or code.co_name.startswith("<"):
        return
    caller = frame
    while caller is not None:
        if caller.f_code.co_name == "<module>" and caller.f_globals["__name__"] != "__main__":
            return
        caller = caller.f_back
    # The bodies of classes are no functions.
    if code.co_flags & 2:
        functions.add((code.co_filename, code.co_qualname))
def step(*arguments):
    sys.setprofile(None)
    files = {file for file, _ in functions}
    print(f"{len(functions)} functions in {len(files)} files of rlplug before the first step")
    modules = sum(name.startswith("rlplug.") for name in sys.modules)
    print(f"{modules} modules of rlplug are imported")
    sys.exit(0)
cartpole.CartPoleEnv.step = cartpole.CartPoleVectorEnv.step = step
threading.setprofile(note)
sys.setprofile(note)
sys.argv = ["rlplug", "run", "--algo", "ppo", "--env", "CartPole-v1", "--quiet"]
import rlplug.cli
rlplug.cli.main()
"""
IMPORTS = "torch, gymnasium, matplotlib.figure"
PROGRESS = re.compile(r" *\d+%")
TICKS = os.sysconf("SC_CLK_TCK")


class Took(NamedTuple):
    """Seconds of one process."""

    cpu: float
    wall: float
    said: float = 0.0
    """CPU until the first line."""
    first: float = 0.0
    """Until the first line of progress."""
    end: float = 0.0
    """From the last line of progress to the end."""
    end_cpu: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds: int = parser.parse_args().rounds
    _instant(2 * rounds)
    with tempfile.TemporaryDirectory() as folder:
        _count(Path(folder))
        _runs(rounds, Path(folder))


def _count(home: Path) -> None:
    environment = {**os.environ, "RLPLUG_HOME": str(home)}
    command = [sys.executable, "-c", UNTIL_FIRST_STEP]
    subprocess.run(command, env=environment, stderr=subprocess.DEVNULL, check=False)


def _instant(rounds: int) -> None:
    took = _in_turns(INSTANT, rounds, os.environ)
    base = took["base imports"].cpu
    print(f"{'':<34}{'CPU ms':>8}{'ratio':>8}   (medians of {rounds} interleaved runs)")
    for name, median in took.items():
        print(f"{name:<34}{median.cpu * 1e3:>8.0f}{median.cpu / base:>8.2f}")


def _runs(rounds: int, home: Path) -> None:
    environment = {**os.environ, "RLPLUG_HOME": str(home)}
    # The first run creates the store.
    _took(TEN_STEPS, environment)
    opening = f"from mlflow import MlflowClient; MlflowClient('sqlite:///{home / 'mlflow.db'}')"
    took = _in_turns(
        {
            "import torch, gymnasium": ["-c", "import torch, gymnasium"],
            f"import {IMPORTS}": ["-c", f"import {IMPORTS}"],
            "MlflowClient opens the store": ["-c", opening],
            "ten steps of linucb, untracked": UNTRACKED,
            "ten steps of linucb, tracked": TEN_STEPS,
        },
        rounds,
        environment,
    )
    print(f"\n{'':<42}{'CPU s':>8}{'wall s':>8}   (medians of {rounds} interleaved runs)")
    for name, median in took.items():
        print(f"{name:<42}{median.cpu:>8.2f}{median.wall:>8.2f}")
    two, imports, client, untracked, tracked = took.values()
    print(
        f"\nCPU of a run, untracked, to the imports           {untracked.cpu / imports.cpu:.2f}"
        f"\nCPU of a run, tracked, to imports and client      "
        f"{tracked.cpu / (imports.cpu + client.cpu):.2f}"
        f"\nCPU until the first line, untracked               {untracked.said:.2f} s"
        f"\nfirst progress, untracked, to torch and gymnasium {untracked.first / two.wall:.2f}"
        f"\nfrom the last report to the end, untracked        {_ending(untracked)}"
        f"\nfrom the last report to the end, tracked          {_ending(tracked)}"
    )


def _ending(took: Took) -> str:
    return f"{took.end:.2f} s, {took.end_cpu:.2f} s CPU"


def _in_turns(
    commands: Mapping[str, Sequence[str]], rounds: int, environment: Mapping[str, str]
) -> dict[str, Took]:
    times: dict[str, list[Took]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, arguments in commands.items():
            times[name].append(_took(arguments, environment))
    return {
        name: Took(*(statistics.median(column) for column in zip(*rows, strict=True)))
        for name, rows in times.items()
    }


def _took(arguments: Sequence[str], environment: Mapping[str, str]) -> Took:
    before, started = os.times(), time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    said, progress = 0.0, list[tuple[float, float]]()
    assert process.stderr is not None
    for line in process.stderr:
        said = said or _cpu_of(process.pid)
        if PROGRESS.match(line):
            progress.append((time.perf_counter(), _cpu_of(process.pid)))
    if process.wait():
        raise SystemExit(f"{' '.join(arguments)} failed with exit code {process.returncode}")
    ended, after = time.perf_counter(), os.times()
    cpu = after.children_user + after.children_system
    cpu -= before.children_user + before.children_system
    if not progress:
        return Took(cpu, ended - started)
    (first, _), (last, last_cpu) = progress[0], progress[-1]
    return Took(cpu, ended - started, said, first - started, ended - last, cpu - last_cpu)


def _cpu_of(pid: int) -> float:
    """CPU seconds of a process so far; 0 where there is no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


if __name__ == "__main__":
    main()
