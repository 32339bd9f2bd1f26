"""Signals at random moments: which status, exit code and files do they leave?

python benchmarks/endings.py                    20 runs; two signals while they train or are closed
python benchmarks/endings.py --trials 200 --seed 3
python benchmarks/endings.py --start            one Ctrl-C while the run starts
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

RUN = (sys.executable, "-m", "rlplug", "run", "--algo", "linucb", "--steps", "1000000")
SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 60.0


def main() -> None:
    """Print one line per trial, and how many went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", action="store_true", help="one Ctrl-C while the run starts")
    given = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "mlflow.db"
        create_store(store)
        for number in range(given.trials):
            chance = random.Random(f"{given.seed} {number}")
            home = Path(folder) / "runs"
            home.mkdir()
            shutil.copy(store, home)
            problems = list(in_start_up(home, chance) if given.start else twice(home, chance))
            wrong += bool(problems)
            print(f"{number:>4}  {'; '.join(problems) or 'right'}", flush=True)
            shutil.rmtree(home)
    print(f"{wrong} of {given.trials} went wrong")
    sys.exit(wrong > 0)


def create_store(file: Path) -> None:
    """An empty store, for which no trial has to wait."""
    code = f"import mlflow; mlflow.MlflowClient('sqlite:///{file}').search_experiments()"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def twice(home: Path, chance: random.Random) -> Iterator[str]:
    """Two signals while a run trains and is closed: what is wrong afterwards."""
    process = start(home, "--set", "checkpoint.every=1000")
    assert process.stderr is not None
    process.stderr.readline()
    first, second = chance.choices(SIGNALS, k=2)
    time.sleep(chance.uniform(0, 3))
    process.send_signal(first)
    time.sleep(chance.uniform(0, 3))
    process.send_signal(second)
    yield from wrong(process, home, code=128 + first, runs=1)


def in_start_up(home: Path, chance: random.Random) -> Iterator[str]:
    """One Ctrl-C while a run starts."""
    process = start(home)
    time.sleep(chance.uniform(0.05, 6))
    process.send_signal(signal.SIGINT)
    yield from wrong(process, home, code=130)


def start(home: Path, *options: str) -> subprocess.Popen[str]:
    """Start a run in this folder of runs."""
    return subprocess.Popen(
        [*RUN, *options],
        env={**os.environ, "RLPLUG_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def wrong(
    process: subprocess.Popen[str], home: Path, *, code: int, runs: int | None = None
) -> Iterator[str]:
    """What is wrong with the end of a process and with what it left."""
    _, said = process.communicate(timeout=PATIENCE)
    if process.returncode != code:
        yield f"exit code {process.returncode} instead of {code}"
    if "Traceback" in said:
        yield f"a traceback: {said}"
    with sqlite3.connect(home / "mlflow.db") as database:
        tracked = dict(database.execute("select run_uuid, status from runs"))
    local = {
        file.parent.name: json.loads(file.read_text())["status"]
        for file in home.glob("work/*/status.json")
    }
    if runs is not None and len(local) != runs:
        yield f"{len(local)} runs instead of {runs}"
    if set(local.values()) - {"KILLED"} or local != tracked:
        yield f"on disk {local}, in MLflow {tracked}"
    if len(local) != len(list(home.glob("work/*"))):
        yield "a folder without a status"


if __name__ == "__main__":
    main()
