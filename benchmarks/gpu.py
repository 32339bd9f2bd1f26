"""Whether everything works on a GPU, and how fast: one command, one table.

python benchmarks/gpu.py                       all parts on CUDA, about a quarter of an hour
python benchmarks/gpu.py --only speed updates  some of them
python benchmarks/gpu.py --device cpu --short  the same code paths without a GPU; nothing is judged

learn      every shipped algorithm comes to its threshold, or to what it comes to on the CPU
precision  PPO learns with bf16 and with fp16
resume     a run is interrupted on the device, resumed on the CPU, and on the device again
waits      no step of an environment of tensors, and no minibatch, waits for the device
updates    PPO and DQN updates at small batches: compiled and with CUDA graphs at least 3 x eager
large      the update of a large network: bf16 at least 1.5 x fp32
speed      PPO on 4,096 environments of tensors: at least 300,000 steps per second
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import attrs
from gpu_timing import CART_POLE, PENDULUM, Setting, loop, seconds_per_minibatch

QUIET = {"tracking.enabled": False, "evaluation.every": 0}
PPO = {
    "num_envs": 64,
    "n_steps": 32,
    "batch_size": 512,
    "learning_rate": [[0, 2e-3], [80_000, 0.0]],
    "evaluation.episodes": 20,
}
DQN = {
    "num_envs": 8,
    "learning_rate": [[0, 1e-3], [40_000, 1e-5]],
    "batch_size": 128,
    "learning_starts": 1000,
    "train_freq": 2,
    "gradient_steps": 4,
    "double": True,
    "n_step": 3,
    "tau": 0.01,
    "exploration_fraction": 0.08,
    "evaluation.episodes": 20,
}
OFF_POLICY = {
    "num_envs": 4,
    "learning_rate": 1e-3,
    "learning_starts": 1000,
    "train_freq": 1,
    "evaluation.episodes": 20,
}
THRESHOLDS: dict[str, tuple[str, str, int, dict[str, Any], float]] = {
    "ppo": ("ppo", CART_POLE, 80_000, PPO, 475.0),
    "ppo, environments of arrays": ("ppo", "CartPole-v1", 60_000, PPO, 400.0),
    "a2c": (
        "a2c",
        CART_POLE,
        100_000,
        {"num_envs": 32, "n_steps": 8, "learning_rate": 2e-3, "evaluation.episodes": 20},
        195.0,
    ),
    "dqn": ("dqn", CART_POLE, 40_000, DQN, 200.0),
    "dqn, environments of arrays": ("dqn", "CartPole-v1", 40_000, DQN, 200.0),
    "rainbow": (
        "rainbow",
        CART_POLE,
        12_000,
        {
            "num_envs": 8,
            "learning_rate": 1e-3,
            "batch_size": 64,
            "buffer_size": 20_000,
            "learning_starts": 500,
            "train_freq": 1,
            "v_min": 0.0,
            "v_max": 100.0,
            "tau": 0.01,
            "evaluation.episodes": 20,
        },
        60.0,
    ),
    "sac": ("sac", PENDULUM, 6_000, {**OFF_POLICY, "gradient_steps": 4}, -400.0),
    "td3": ("td3", PENDULUM, 6_000, {**OFF_POLICY, "gradient_steps": 4}, -400.0),
    "vdn": ("vdn", "pettingzoo:mpe/simple_spread_v3", 20_000, {"evaluation.episodes": 20}, -24.0),
    "bc": ("bc", "CartPole-v1", 60_000, {"evaluation.episodes": 20}, 195.0),
}
"""Algorithm, environment, steps, options, and the mean return that is asked for."""


@attrs.frozen
class Result:
    """One line of the table."""

    part: str
    name: str
    value: float
    unit: str
    target: float | None = None
    at_most: bool = False
    note: str = ""

    @property
    def reached(self) -> bool:
        """Whether it is as good as asked for."""
        if self.target is None:
            return True
        return self.value <= self.target if self.at_most else self.value >= self.target


def run(
    setting: Setting, algorithm: str, env: str, steps: int, *, data: Any = None, **options: Any
) -> Any:
    """A run on the device, without tracking."""
    import rlplug

    chosen = {**QUIET, "compute.device": setting.device, **options}
    return rlplug.run(algorithm, env, data=data, steps=steps, seed=1, options=chosen)


def _balanced() -> str:
    """A log of CartPole-v1 of one that pushes towards where the pole falls."""
    import gymnasium
    import numpy

    env = gymnasium.make("CartPole-v1")
    rows: list[Any] = []
    seen, _ = env.reset(seed=0)
    while len(rows) < 5000:
        action = int(seen[2] + 0.5 * seen[3] > 0)
        after, reward, terminated, truncated, _ = env.step(action)
        rows.append((seen, action, reward, terminated, truncated))
        seen = env.reset()[0] if terminated or truncated else after
    names = ("context", "action", "reward", "terminated", "truncated")
    columns: dict[str, Any] = {
        name: numpy.stack(part) for name, part in zip(names, zip(*rows, strict=True), strict=True)
    }
    path = os.path.join(os.environ["RLPLUG_HOME"], "balanced.npz")
    numpy.savez(path, **columns)
    return path


# -- parts -------------------------------------------------------------------------------------


def learn(setting: Setting) -> Iterator[Result]:
    """Every shipped algorithm."""
    from rlplug.registry import ALGORITHM, Registry

    for name, (algorithm, env, steps, options, threshold) in THRESHOLDS.items():
        data = _balanced() if algorithm == "bc" else None
        found = run(setting, algorithm, env, setting.steps(steps), data=data, **options)
        value = found.metrics["eval/return_mean"]
        yield Result("learn", name, value, "return", None if setting.short else threshold)
    done = {algorithm for algorithm, *_ in THRESHOLDS.values()}
    for one in Registry.installed().of_kind(ALGORITHM):
        if one.name in done:
            continue
        rewards = [
            run(attrs.evolve(setting, device=device), one.name, "", 1000).metrics
            for device in ("cpu", setting.device)
        ]
        metric = "rollout/reward_mean"
        if metric not in rewards[0]:
            yield Result("learn", one.name, 0.0, "", note="reports no mean reward: only run")
            continue
        on_cpu, here = (found[metric] for found in rewards)
        # Rewards may be negative.
        least = on_cpu - 0.1 * max(abs(on_cpu), 0.1)
        yield Result("learn", one.name, here, "reward", least, note=f"on the CPU {on_cpu:.3g}")


def precision(setting: Setting) -> Iterator[Result]:
    """Mixed precision."""
    import rlplug

    for wanted in ("bf16", "fp16"):
        options = {**PPO, "compute.precision": wanted}
        try:
            found = run(setting, "ppo", CART_POLE, setting.steps(80_000), **options)
        except rlplug.RlplugError as error:
            yield Result("precision", wanted, 0.0, "return", note=str(error).splitlines()[0])
            continue
        value = found.metrics["eval/return_mean"]
        yield Result(
            "precision", f"ppo, {wanted}", value, "return", None if setting.short else 400.0
        )


def resume(setting: Setting) -> Iterator[Result]:
    """Checkpoints that move between devices."""
    import rlplug

    there = "cuda" if setting.device == "cpu" and _has_cuda() else "cpu"
    steps = 4096
    for algorithm, env in itertools.product(("ppo", "dqn"), (CART_POLE, "CartPole-v1")):
        options = PPO if algorithm == "ppo" else DQN
        made = run(setting, algorithm, env, steps, **{**options, "checkpoint.every": 1024})
        for number, device in enumerate((there, setting.device), 2):
            more = {"compute.device": device}
            made = rlplug.resume(made.run_id, steps=steps * number, options=more, allow_drift=True)
        where = "tensors" if env == CART_POLE else "arrays"
        name = f"{algorithm}, {where}: {setting.device}, {there}, {setting.device}"
        yield Result("resume", name, made.step, "steps", 3 * steps)


def waits(setting: Setting) -> Iterator[Result]:
    """What waits for the device, counted by torch itself."""
    import torch

    if setting.device == "cpu":
        yield Result("waits", "", 0.0, "", note="a CPU waits for nothing; tests count reads")
        return
    for algorithm in ("ppo", "dqn"):
        collect, update = loop(setting, algorithm)
        for _ in range(3):
            update(collect())
        for name, many in (("step of 64 environments", collect), ("minibatch", None)):
            taken = collect()
            torch.cuda.set_sync_debug_mode("warn")
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                if many is not None:
                    many()
                else:
                    update(taken)
            torch.cuda.set_sync_debug_mode("default")
            count = sum("synchronizing" in str(one.message) for one in told)
            per = 32 if algorithm == "ppo" else 1
            minibatches = 40 if algorithm == "ppo" else 4
            each = count / (per if many is not None else minibatches)
            # A rollout is read once per update.
            yield Result("waits", f"{algorithm}, per {name}", each, "", 0.9, at_most=True)


def updates(setting: Setting) -> Iterator[Result]:
    """Small updates: eager, compiled, with graphs."""
    ways: dict[str, dict[str, Any]] = {
        "eager": {"compute.arrays": "off"},
        "compile": {"compute.compile": True},
        "compile, cudagraphs": {"compute.compile": True, "compute.compile_backend": "cudagraphs"},
    }
    if setting.device == "cpu":
        ways["compile, cudagraphs"]["compute.compile_backend"] = "aot_eager"
    for algorithm, size in (("ppo", 64), ("dqn", 32)):
        times: dict[str, float] = {}
        for way, options in ways.items():
            try:
                times[way] = seconds_per_minibatch(setting, algorithm, size, **options)
            except Exception as error:
                note = f"{type(error).__name__}: {error}".splitlines()[0]
                yield Result("updates", f"{algorithm}, {way}", 0.0, "x", note=note)
        for way, seconds in times.items():
            note = f"{1e6 * seconds:,.0f} µs per minibatch of {size}"
            yield Result("updates", f"{algorithm}, {way}", times["eager"] / seconds, "x", note=note)
        best = max(times["eager"] / seconds for seconds in times.values())
        yield Result("updates", f"{algorithm}, the best of them", best, "x", 3.0)


def large(setting: Setting) -> Iterator[Result]:
    """A large network in bf16 and fp32."""
    width, rows = (256, 256) if setting.short else (4096, 16_384)
    options: dict[str, Any] = {"compute.arrays": "off", "net_arch": [width] * 3}
    variants: dict[str, dict[str, Any]] = {
        "fp32": {"compute.tf32": False},
        "tf32": {"compute.tf32": True},
        "bf16": {"compute.precision": "bf16"},
    }
    times = {
        name: seconds_per_minibatch(setting, "ppo", rows, number=10, **{**options, **more})
        for name, more in variants.items()
    }
    for name, seconds in times.items():
        note = f"{1e3 * seconds:,.2f} ms per minibatch of {rows:,}"
        target = 1.5 if name == "bf16" else None
        yield Result("large", f"ppo, {name}", times["fp32"] / seconds, "x fp32", target, note=note)


def speed(setting: Setting) -> Iterator[Result]:
    """PPO on many environments of tensors."""
    rows, steps = (256, 65_536) if setting.short else (4096, 8_388_608)
    variants: dict[str, dict[str, Any]] = {
        "eager": {"compute.arrays": "off"},
        "compile": {"compute.compile": True},
    }
    for name, more in variants.items():
        options = {
            "num_envs": rows,
            "n_steps": 32,
            "batch_size": rows * 8,
            "n_epochs": 4,
            "evaluation.episodes": 0,
            **more,
        }
        found = run(setting, "ppo", CART_POLE, steps, **options)
        # The last window of the run: without compilation and warm-up.
        value = found.metrics["time/steps_per_second"]
        yield Result("speed", f"ppo, {rows:,} rows, {name}", value, "steps/s", 300_000.0)


PARTS: dict[str, Callable[[Setting], Iterator[Result]]] = {
    one.__name__: one for one in (learn, precision, resume, waits, updates, large, speed)
}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu (nothing is judged)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--short", action="store_true", help="small numbers, to try the script")
    said = parser.parse_args()
    if said.device != "cpu" and not _has_cuda():
        sys.exit(
            "there is no CUDA device: nothing was measured.\n"
            "try: python benchmarks/gpu.py --device cpu --short, which runs the same code here"
        )
    setting, judged = Setting(said.device, said.short), said.device != "cpu" and not said.short
    print(f"{_described(said.device)}\n\n{'':10}{'':44}{'found':>12}{'':10}{'target':>12}")
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RLPLUG_HOME"] = folder
        for name in said.only:
            try:
                for result in PARTS[name](setting):
                    missed += _printed(result, judged=judged)
            except Exception as error:
                missed += 1
                print(f"{name:10}failed: {type(error).__name__}: {error}", flush=True)
    if judged or missed:
        print(f"\n{missed} missed" if missed else "\nall targets reached")
    sys.exit(1 if missed else 0)


def _printed(result: Result, *, judged: bool) -> bool:
    """Print a line; whether its target is missed."""
    bound = ""
    if result.target is not None:
        bound = f"{'≤' if result.at_most else '≥'} {result.target:,.4g}"
    missed = judged and not result.reached
    verdict = "MISSED" if missed else "ok" if judged and bound else ""
    line = f"{result.part:10}{result.name:44}{result.value:12,.4g} {result.unit:9}{bound:>12}"
    print(f"{line}  {verdict:8}{result.note}".rstrip(), flush=True)
    return missed


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _described(device: str) -> str:
    import torch

    name = "the CPU; nothing is judged"
    if device != "cpu":
        name = f"{torch.cuda.get_device_name(torch.device(device))}, CUDA {torch.version.cuda}"
    return f"{name}, torch {torch.__version__}"


if __name__ == "__main__":
    main()
