"""What arrays gain over torch: the learner's update with compute.arrays = "auto" beside "off".

python benchmarks/arrays.py                   the policy gradient of docs/hooks.md, and the sizes
python benchmarks/arrays.py --only guide      that policy gradient, on 64 rows
python benchmarks/arrays.py --only ppo        sizes of networks, minibatches of 64; --env, --sizes
python benchmarks/arrays.py --only dqn        the same, updates of 128 rows

Both are whole runs of which only `Learner.update` is timed, in turns, with one thread; shown are
medians of CPU time. The sizes are measured with the limit lifted up to which "auto" takes arrays:
it belongs where the ratio falls below 1.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import torch

from rlplug import run
from rlplug.config.sections import ComputeSection
from rlplug.learner import Learner

LIMIT = ("rlplug.learner.arrays", "LARGEST_MINIBATCH")
"""Module and name of the constant that is the limit."""

GUIDE_TARGET = 1.4
SIZES = (32, 64, 96, 128, 192, 256, 384, 512)
WARM_UPDATES = 2
"""They choose between arrays and torch, and fill caches."""
QUIET = {"tracking.enabled": False, "evaluation.episodes": 0, "checkpoint.minutes": 0}
PPO = {"n_steps": 128, "batch_size": 64, "n_epochs": 4, "sampling.num_envs": 8}
DQN = {"batch_size": 128, "train_freq": 4, "learning_starts": 200}

Choice = tuple[Any, str, int, Mapping[str, Any]]
"""Algorithm, environment, steps and options of a run."""


def main() -> None:
    """Measure the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--only", choices=["guide", "ppo", "dqn"])
    parser.add_argument("--env", default="CartPole-v1", help="of the sizes")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--repeat", type=int, default=5, help="rounds in which both take turns")
    said = parser.parse_args()
    torch.set_num_threads(1)
    if not can_choose():
        print("rlplug here has no option compute.arrays: it is measured as it is, beside nothing")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RLPLUG_HOME"] = folder
        if said.only in (None, "guide"):
            guide(Path(folder), said.repeat)
        with lifted():
            if said.only in (None, "ppo"):
                sweep("PPO, minibatches of 64", ppo, said)
            if said.only in (None, "dqn"):
                sweep("DQN, updates of 128 rows", dqn, said)


def guide(folder: Path, repeat: int) -> None:
    """The first algorithm of docs/hooks.md, as it is written there."""
    algorithm = documented(folder).Softmax
    choice: Choice = (algorithm, "LinearBandit-v0", 64 * 500, {"sampling.num_envs": 64})
    found, parameters = compared(choice, repeat)
    header("The policy gradient of docs/hooks.md, updates of 64 rows")
    ratio = show("as written", parameters, found, 1)
    if ratio is not None:
        met = "yes" if ratio >= GUIDE_TARGET else "NO"
        print(f"  {GUIDE_TARGET:g} x torch: {met}, {ratio:.2f} x")


def sweep(title: str, chosen: Any, said: argparse.Namespace) -> None:
    """Networks of two equal layers from narrow to wide."""
    header(f"{title}, {said.env}")
    for size in said.sizes:
        choice, minibatches = chosen(said.env, size)
        found, parameters = compared(choice, said.repeat)
        show(f"{size}-{size}", parameters, found, minibatches)


def ppo(env: str, size: int) -> tuple[Choice, int]:
    """Rollouts of 1,024 rows, 64 minibatches each."""
    return ("ppo", env, 6 * 1024, {**PPO, "net_arch": [size, size]}), 64


def dqn(env: str, size: int) -> tuple[Choice, int]:
    """One minibatch each."""
    return ("dqn", env, 1_000, {**DQN, "net_arch": [size, size]}), 1


def compared(choice: Choice, repeat: int) -> tuple[dict[str, list[float]], int]:
    """Median CPU seconds of an update in each round, for both, and the number of parameters."""
    engines = ("auto", "off") if can_choose() else ("auto",)
    found: dict[str, list[float]] = {engine: [] for engine in engines}
    for seed in range(1, repeat + 1):
        for engine in engines:
            seconds, parameters = timed(choice, engine, seed)
            found[engine].append(seconds)
    return found, parameters


def timed(choice: Choice, engine: str, seed: int) -> tuple[float, int]:
    """One run: median CPU seconds of an update, and the number of parameters."""
    algorithm, env, steps, options = choice
    options = {**QUIET, **options}
    if can_choose():
        options["compute.arrays"] = engine
    seconds: list[float] = []
    parameters = 0
    update = Learner.update

    def clocked(learner: Learner, *arguments: Any, **named: Any) -> Any:
        nonlocal parameters
        start = time.process_time()
        results = update(learner, *arguments, **named)
        seconds.append(time.process_time() - start)
        parameters = sum(param.numel() for param in learner.modules["default"].parameters())
        return results

    Learner.update = clocked  # type: ignore[method-assign, assignment]
    try:
        run(algorithm, env, steps=steps, seed=seed, options=options)
    finally:
        Learner.update = update  # type: ignore[method-assign]
    return statistics.median(seconds[WARM_UPDATES:]), parameters


def can_choose() -> bool:
    """Whether this rlplug lets one choose between arrays and torch."""
    return "arrays" in attrs.fields_dict(ComputeSection)


@contextmanager
def lifted() -> Iterator[None]:
    """Let "auto" take arrays for networks of any size."""
    name, constant = LIMIT
    module = importlib.import_module(name)
    if not hasattr(module, constant):
        print(f"{name} has no {constant}: no limit is lifted")
        yield
        return
    before = getattr(module, constant)
    setattr(module, constant, sys.maxsize)
    try:
        yield
    finally:
        setattr(module, constant, before)


def documented(folder: Path) -> ModuleType:
    """The package of the guide."""
    text = (Path(__file__).parent.parent / "docs" / "hooks.md").read_text(encoding="utf-8")
    block = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    (folder / "rlplug_softmax.py").write_text(block, encoding="utf-8")
    sys.path.insert(0, str(folder))
    return importlib.import_module("rlplug_softmax")


def header(title: str) -> None:
    """The names of the columns."""
    print(f"\n{title} (CPU µs per minibatch)")
    print(f"  {'':<14}{'parameters':>12}{'auto':>10}{'off':>10}{'off/auto':>10}")


def show(
    name: str, parameters: int, found: Mapping[str, Sequence[float]], minibatches: int
) -> float | None:
    """One line; gives back how many times as fast arrays are."""
    line = f"  {name:<14}{parameters:>12,}"
    for seconds in found.values():
        line += f"{statistics.median(seconds) / minibatches * 1e6:>10.0f}"
    if "off" not in found:
        print(line, flush=True)
        return None
    ratios = [off / auto for auto, off in zip(found["auto"], found["off"], strict=True)]
    ratio = statistics.median(ratios)
    each = ", ".join(f"{one:.2f}" for one in ratios)
    print(f"{line}{ratio:>8.2f} x   {each}", flush=True)
    return ratio


if __name__ == "__main__":
    main()
