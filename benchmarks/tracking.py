"""What tracking costs: python benchmarks/tracking.py [--only PART] [--seconds 120] [--rate 2.7]

opening: a store, from the first import of MLflow on. reports: one report, a steady stream of
reports, closing; the CPU of the stream is that of the whole process, whose main thread only sleeps
between reports, and is given as a share of one core. loop: PPO on CartPole for minutes, with what
its threads for tracking take of the CPU time of the process, and its training thread of the wall
time. together: four runs that start at the same moment in an empty folder. ui: seconds until
`rlplug ui` is ready, and the memory of its processes. pyfunc: one prediction of a model that
MLflow loaded. Run it where nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import rlplug
from rlplug import AddOn
from rlplug.config.sections import RunConfig, RunSection
from rlplug.hooks.events import RunInfo
from rlplug.plugin import NoOptions
from rlplug.tracking import Tracking, open_tracking

METRICS = tuple(f"train/metric_{index}" for index in range(10))
ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", choices=("opening", "reports", "loop", "together", "ui", "pyfunc")
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="length of stream and loop")
    parser.add_argument("--rate", type=float, default=2.7, help="reports per second")
    parser.add_argument("--opening", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.opening is not None:
        _report_opening(options.opening)
        return
    parts: dict[str, Callable[[], None]] = {
        "opening": _opening,
        "reports": lambda: _reports(options.seconds, options.rate),
        "loop": lambda: _loop(options.seconds),
        "together": _together,
        "ui": _ui,
        "pyfunc": _pyfunc,
    }
    for name, part in parts.items():
        if options.only in (None, name):
            part()


def _reports(seconds: float, rate: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tracking = _opened(Path(folder))
        print(f"\none report of {len(METRICS)} metrics: {_one_report(tracking):.1f} µs (median)")
        wall, cpu = _timed(lambda: tracking.close("FINISHED"))
        print(f"closing with 3,200 points and a picture: {wall:.2f} s wall, {cpu:.2f} s CPU")
        tracking = _opened(Path(folder))
        share = _steady(tracking, seconds, rate)
        print(
            f"{rate} reports/s x {len(METRICS)} metrics for {seconds:.0f} s: "
            f"{share:.2%} of one core"
        )
        tracking.close("FINISHED")


class Clocks(AddOn):
    """The CPU time of the process and of its threads, from the first update on."""

    def __init__(self) -> None:
        self.first: dict[str, float] = {}
        self.last: dict[str, float] = {}
        self.metrics = 0

    def update_finished(self) -> None:
        now = {"wall": time.perf_counter(), "process": time.process_time()}
        for thread in threading.enumerate():
            if thread.ident is not None and thread is not threading.main_thread():
                clock = time.pthread_getcpuclockid(thread.ident)
                now[thread.name] = time.clock_gettime(clock)
        self.first = self.first or now
        self.last = now

    def metrics_reported(self, step: int, metrics: Mapping[str, float]) -> None:
        self.metrics = len(metrics)

    def save_state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: Any) -> None:
        """Nothing is kept."""


def _loop(seconds: float) -> None:
    """PPO on CartPole, for about so many seconds."""
    clocks = Clocks()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RLPLUG_HOME"] = folder
        result = rlplug.run(
            "ppo",
            "CartPole-v1",
            steps=10**9,
            options={"run.max_minutes": seconds / 60, "evaluation.every": 200_000},
            addons=[clocks],
        )
    passed = {name: end - clocks.first.get(name, 0.0) for name, end in clocks.last.items()}
    tracking = sum(spent for name, spent in passed.items() if name.startswith("rlplug-"))
    held = result.time_split["track"] / sum(result.time_split.values())
    print(
        f"\nPPO on CartPole, {result.step:,} steps in {passed['wall']:.0f} s, "
        f"{clocks.metrics} metrics a report:\n"
        f"  threads for tracking: {tracking:.2f} s of {passed['process']:.1f} s of CPU, "
        f"{tracking / passed['process']:.2%}\n"
        f"  training thread: {held:.2%} of the wall time"
    )


def _together() -> None:
    """Four processes that find no store."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rlplug", "run", "--algo", "linucb", "--steps", "500"]
        runs = [
            subprocess.Popen(
                [*command, "--quiet", "--seed", str(seed)],
                env={**os.environ, "RLPLUG_HOME": folder},
            )
            for seed in range(4)
        ]
        codes = [run.wait() for run in runs]
        listed = subprocess.run(
            [sys.executable, "-m", "rlplug", "runs", "--json"],
            env={**os.environ, "RLPLUG_HOME": folder},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    finished = sum(json.loads(line)["status"] == "FINISHED" for line in listed.splitlines())
    print(f"\nfour runs at the same moment: exit codes {codes}, {finished} finished in MLflow")


def _ui() -> None:
    """Of a store with a run; memory is what its processes share counted once (PSS)."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "RLPLUG_HOME": folder}
        run = [sys.executable, "-m", "rlplug", "run", "--algo", "linucb", "--steps", "500"]
        subprocess.run([*run, "--quiet"], env=environ, check=True)
        started = time.perf_counter()
        server = subprocess.Popen(
            [sys.executable, "-m", "rlplug", "ui"],
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert server.stdout is not None
        said = next(line for line in server.stdout if "http://" in line)
        ready = time.perf_counter() - started
        memory = sum(map(_memory, _with_children(server.pid)))
        # A shell that starts this in the background has it ignore SIGINT.
        server.send_signal(signal.SIGTERM)
        server.wait()
    print(f"\nui ready after {ready:.1f} s, {memory / 2**20:.0f} MiB: {said.strip()}")


def _pyfunc() -> None:
    """Of a run's best checkpoint, one observation at a time."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RLPLUG_HOME"] = folder
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        print()
        for algorithm, env in (("linucb", "LinearBandit-v0"), ("ppo", "CartPole-v1")):
            run = rlplug.run(algorithm, env, steps=2_048, options={"evaluation.episodes": 2})
            command = [sys.executable, "-m", "rlplug", "show", run.run_id, "--json"]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            import mlflow

            model = mlflow.pyfunc.load_model(json.loads(said)["model_uri"])
            example = rlplug.load(run.run_id).observation_space.sample()[None]
            times = [_timed(lambda: model.predict(example))[0] for _ in range(500)]
            print(f"pyfunc of {algorithm}: {statistics.median(times) * 1e3:.2f} ms a prediction")


def _with_children(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    children = [int(one) for task in tasks for one in task.read_text().split()]
    return [process, *(found for one in children for found in _with_children(one))]


def _memory(process: int) -> int:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def _opening() -> None:
    """In processes of their own, for importing mlflow is most of it."""
    print(f"opening, medians of {ROUNDS}:        wall      CPU")
    rows: dict[str, list[tuple[float, float]]] = {"empty folder": [], "existing store": []}
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            for kind in rows:
                command = [sys.executable, __file__, "--opening", folder]
                said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                wall, cpu = map(float, said.split())
                rows[kind].append((wall, cpu))
    for kind, times in rows.items():
        wall, cpu = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"  {kind:<26}{wall:>6.2f} s {cpu:>6.2f} s")


def _report_opening(folder: Path) -> None:
    made: list[Tracking] = []
    wall, cpu = _timed(lambda: made.append(_opened(folder)))
    made[0].close("FINISHED")
    print(wall, cpu)


def _opened(folder: Path) -> Tracking:
    config = RunConfig(run=RunSection(algorithm="none"), algorithm=NoOptions())
    tracking = open_tracking(config, environment="Nowhere-v0", root=folder)
    tracking.listener.run_started(
        RunInfo(
            run_id=tracking.run_id,
            folder=tracking.folder,
            config=config,
            participants=(),
            hook_order={},
            environment="Nowhere-v0",
            steps=100_000,
            progress=lambda: 0,
        )
    )
    return tracking


def _one_report(tracking: Tracking) -> float:
    times = []
    for step in range(1, 321):
        metrics = dict.fromkeys(METRICS, float(step))
        started = time.perf_counter()
        tracking.listener.metrics_reported(step, metrics)
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6


def _steady(tracking: Tracking, seconds: float, rate: float) -> float:
    started, cpu = time.perf_counter(), time.process_time()
    for step in range(1, int(seconds * rate) + 1):
        time.sleep(max(0.0, started + step / rate - time.perf_counter()))
        tracking.listener.metrics_reported(step, dict.fromkeys(METRICS, float(step)))
    return (time.process_time() - cpu) / (time.perf_counter() - started)


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    started, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started, time.process_time() - cpu


if __name__ == "__main__":
    main()
