"""The main job beside NumPy: LinUCB on LinearBandit-v0, one environment, one row per update.

python benchmarks/main_job.py                     rates, and Python calls per step
python benchmarks/main_job.py --beside CHECKOUT   the same of another checkout, in turns
python benchmarks/main_job.py --calls             which functions a step calls, and how often

Rates are steps per CPU second of `rlplug.run` without and with tracking, and of a loop of fifteen
lines of NumPy on the same environment. Every measurement is a process of its own with one thread;
all take turns, and shown are medians. Start and end of a run are left out, as its clock does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium
import numpy

ROOT = Path(__file__).parent.parent
WARM, STEPS = 2_000, 20_000
WAYS = {"numpy": "NumPy loop", "run": "rlplug.run", "tracked": "with tracking"}
TARGETS = {"run": 0.6, "tracked": 0.5}
MOST_CALLS = 90


def numpy_loop(env: gymnasium.Env[Any, Any], steps: int, alpha: float = 1.0) -> None:
    """Li et al. 2010, disjoint arms, as a person would write it."""
    x, _ = env.reset(seed=0)
    arms, features = int(env.action_space.n), len(x)  # type: ignore[attr-defined] # a Discrete
    inverse = numpy.stack([numpy.eye(features)] * arms)
    b = numpy.zeros((arms, features))
    theta = numpy.zeros((arms, features))
    for _ in range(steps):
        products = inverse @ x
        spread = products @ x
        arm = int(numpy.argmax(theta @ x + alpha * numpy.sqrt(spread)))
        _, reward, *_ = env.step(arm)
        product = products[arm]
        inverse[arm] -= numpy.outer(product, product / (1.0 + spread[arm]))
        b[arm] += float(reward) * x
        theta[arm] = inverse[arm] @ b[arm]
        x, _ = env.reset()


def play(way: str, steps: int) -> float:
    """Run the main job for this many steps; returns the seconds of its loop."""
    if way == "numpy":
        start = time.perf_counter()
        numpy_loop(gymnasium.make("LinearBandit-v0"), steps)
        return time.perf_counter() - start
    from rlplug import run

    options = {"tracking.enabled": way == "tracked"}
    return run("linucb", "LinearBandit-v0", steps=steps, options=options).metrics["time/seconds"]


def rate(way: str) -> float:
    """Steps per CPU second, without what opening and closing takes."""
    play(way, WARM)
    wall, cpu = time.perf_counter(), time.process_time()
    loop = play(way, STEPS)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return STEPS / (cpu - (wall - loop))


def count_calls() -> Counter[str]:
    """How often each Python function is called in STEPS steps, and `isinstance` by rlplug."""
    counts: Counter[str] = Counter()

    def called(frame: FrameType, event: str, argument: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call":
            counts[f"{module}:{frame.f_code.co_qualname}"] += 1
        elif event == "c_call" and argument is isinstance and module.startswith("rlplug"):
            counts["isinstance"] += 1

    play("run", WARM)
    total: list[Counter[str]] = []
    for steps in (WARM, WARM + STEPS):
        counts.clear()
        sys.setprofile(called)
        play("run", steps)
        sys.setprofile(None)
        total.append(Counter(counts))
    total[1].subtract(total[0])
    return total[1]


def measured(checkout: Path, what: str) -> Any:
    """The answer of a process that imports rlplug and its plugins from a checkout."""
    sources = [checkout, *sorted(checkout.glob("plugins/*/"))]
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, sources)),
            "RLPLUG_HOME": folder,
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, __file__, "--measure", what]
        answer = subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True, cwd=folder
        )
    return json.loads(answer.stdout.splitlines()[-1])


def report(checkout: Path, rates: dict[str, list[float]], calls: Counter[str]) -> None:
    """Print rates beside the NumPy loop's, and calls per step."""
    print(checkout.resolve().name)
    for way, title in WAYS.items():
        ratio = statistics.median(
            ours / loop for ours, loop in zip(rates[way], rates["numpy"], strict=True)
        )
        target = f"  at least {TARGETS[way]}" if way in TARGETS else ""
        print(f"  {title:<16}{statistics.median(rates[way]):>9,.0f} steps/s{ratio:>7.2f}{target}")
    each = {name: count / STEPS for name, count in calls.items()}
    checks = each.pop("isinstance", 0.0)
    ours = sum(count for name, count in each.items() if name.startswith("rlplug"))
    print(f"  calls per step  {ours:>9.1f} of rlplug: at most {MOST_CALLS}", end="")
    print(f"; {sum(each.values()):.1f} of Python; isinstance {checks:.1f}\n")


def main() -> None:
    """Measure in turns, or answer as one of the measured processes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--beside", type=Path, help="another checkout")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--calls", action="store_true", help="print calls per step by function")
    parser.add_argument("--measure", choices=[*WAYS, "calls"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        import rlplug.bandits  # noqa: F401 # registers the environments

        what = arguments.measure
        print(json.dumps(count_calls() if what == "calls" else rate(what)))
        return
    checkouts = [ROOT] if arguments.beside is None else [ROOT, arguments.beside.absolute()]
    calls = {checkout: Counter(measured(checkout, "calls")) for checkout in checkouts}
    if arguments.calls:
        for name, count in calls[ROOT].most_common():
            if count >= STEPS // 100:
                print(f"{count / STEPS:8.2f}  {name}")
        return
    rates: dict[Path, dict[str, list[float]]] = {
        checkout: {way: [] for way in WAYS} for checkout in checkouts
    }
    for _ in range(arguments.repeat):
        for checkout in checkouts:
            for way in WAYS:
                rates[checkout][way].append(measured(checkout, way))
    for checkout in checkouts:
        report(checkout, rates[checkout], calls[checkout])


if __name__ == "__main__":
    main()
