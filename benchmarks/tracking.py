"""What tracking costs a run: opening, one report, a steady stream of reports, closing.

python benchmarks/tracking.py [--seconds 120] [--rate 2.7]

Run it where nothing else runs. The CPU of the steady stream is that of the whole process, whose
main thread only sleeps between reports; it is given as a share of one core.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rlplug.config.sections import RunConfig, RunSection
from rlplug.hooks.events import RunInfo
from rlplug.plugin import NoOptions
from rlplug.tracking import Tracking, open_tracking

METRICS = tuple(f"train/metric_{index}" for index in range(10))
ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="length of the steady stream")
    parser.add_argument("--rate", type=float, default=2.7, help="reports per second")
    parser.add_argument("--opening", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.opening is not None:
        _report_opening(options.opening)
        return
    _opening()
    with tempfile.TemporaryDirectory() as folder:
        tracking = _opened(Path(folder))
        print(f"\none report of {len(METRICS)} metrics: {_one_report(tracking):.1f} µs (median)")
        wall, cpu = _timed(lambda: tracking.close("FINISHED"))
        print(f"closing with 3,200 points and a picture: {wall:.2f} s wall, {cpu:.2f} s CPU")
        tracking = _opened(Path(folder))
        share = _steady(tracking, options.seconds, options.rate)
        print(
            f"{options.rate} reports/s x {len(METRICS)} metrics for {options.seconds:.0f} s: "
            f"{share:.2%} of one core"
        )
        tracking.close("FINISHED")


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
