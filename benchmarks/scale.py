"""What several processes cost and bring: `python benchmarks/scale.py [PART…]`.

Runs on Ray start a local cluster; figures are of training alone, without the start of processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy
import psutil
from peers.process_tree import Clock

import rlplug
from rlplug.config.sources import Setting
from rlplug.registry import Registry
from rlplug.runs.life import Run
from rlplug.runs.prepare import prepare
from rlplug.runs.request import Request

PPO = {
    "num_envs": 1,
    "n_steps": 128,
    "batch_size": 128,
    "n_epochs": 1,
    "evaluation.episodes": 0,
    "tracking.enabled": False,
}


class Sleeping(gymnasium.Env[Any, Any]):
    """Each step sleeps; episodes have 100 steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, seconds: float = 0.001) -> None:
        self._seconds = seconds
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """The first observation."""
        super().reset(seed=seed)
        self._steps = 0
        return numpy.zeros(4, numpy.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Sleep."""
        if self._seconds:
            time.sleep(self._seconds)
        self._steps += 1
        return numpy.zeros(4, numpy.float32), 1.0, self._steps == 100, False, {}


def seconds(steps: int, options: dict[str, Any], env: str = "scale:Sleeping") -> float:
    """Seconds of training."""
    result = rlplug.run("ppo", env, steps=steps, options={**PPO, **options})
    return result.metrics["time/seconds"]


def ray_options(runners: int) -> dict[str, Any]:
    return {"scale.engine": "ray", "scale.runners": runners, "scale.runner_cpus": 0.1}


def overhead() -> None:
    """Ray with one runner beside this process, for the same work."""
    ratios = []
    for _ in range(3):
        local = seconds(1280, {"env.seconds": 0.001})
        ray = seconds(1280, {"env.seconds": 0.001, **ray_options(1)})
        ratios.append(ray / local)
        print(f"  local {local:.2f} s, ray {ray:.2f} s: {ratios[-1]:.3f} ×")
    print(f"overhead of Ray at 128 steps of 1 ms: {100 * (numpy.median(ratios) - 1):.1f} %")


def sleep() -> None:
    """Eight runners beside one, with environments that sleep for 10 ms."""
    one = seconds(640, {"env.seconds": 0.01, **ray_options(1)})
    eight = seconds(5120, {"env.seconds": 0.01, "num_envs": 8, **ray_options(8)})
    print(f"8 runners against 1 at 10 ms per step: {8 * one / eight:.2f} × the steps per second")


def rounds() -> None:
    """What one collection costs beside its steps: messages, the object store, joining."""
    for runners in (1, 2, 4, 8):
        updates = 200
        options = {"env.seconds": 0.0, "num_envs": 8, "n_steps": 8, "batch_size": 64}
        local = seconds(64 * updates, options)
        ray = seconds(64 * updates, {**options, **ray_options(runners)})
        print(
            f"  {runners} runners: {1e3 * ray / updates:.2f} ms per collection and update, "
            f"in this process {1e3 * local / updates:.2f} ms"
        )


def weights() -> None:
    """10 MB of weights to 4 runners through the object store, until all have read them."""
    from rlplug.config.sections import ScaleSection
    from rlplug.scale.cluster import connected

    class Reader:
        def read(self, state: dict[str, Any]) -> float:
            return float(sum(one.copy()[0] for one in state.values()))

    with connected(ScaleSection(engine="ray", runners=4, runner_cpus=0.1)) as ray:
        actors = [ray.remote(num_cpus=0.1)(Reader).remote() for _ in range(4)]
        state = {str(index): numpy.ones(262_144, numpy.float32) for index in range(10)}
        taken = []
        for _ in range(20):
            began = time.perf_counter()
            reference = ray.put(state)
            ray.get([one.read.remote(reference) for one in actors])
            taken.append(time.perf_counter() - began)
    median, worst = numpy.median(taken[1:]), max(taken[1:])
    print(f"10 MB of weights to 4 runners: {1e3 * median:.1f} ms (at most {1e3 * worst:.1f})")


def learners() -> None:
    """Two learners, a process of one thread each, beside one: by wall and CPU time."""
    steps = 3 * 4096
    options: dict[str, Any] = {
        **PPO,
        "num_envs": 64,
        "n_steps": 64,
        "batch_size": 4096,
        "n_epochs": 10,
    }
    options |= {"net_arch": [1024, 1024], "compute.num_threads": 1}
    walls, cpus, by_torchrun = [], [], []
    for _ in range(3):
        found = []
        for count in (1, 2):
            load, clock = quiet_load(), Clock()
            flags = {"run": {"algorithm": "ppo", "env": "CartPole-v1", "steps": steps}}
            said = {**options, "scale.learners": count}
            settings = tuple(Setting(name, value) for name, value in said.items())
            prepared = prepare(Request(flags=flags, settings=settings), Registry.installed())
            Run(prepared=prepared, listeners=(Training(clock),)).carry_out()
            found.append(clock)
            print(
                f"  {count} learner(s): {clock.wall:.1f} s, {clock.cpu:.1f} CPU s "
                f"(load before: {load:.2f})",
                flush=True,
            )
        one, two = found
        load = quiet_load()
        started = torchrun_seconds(steps, options)
        print(f"  2 learners of torchrun: {started:.1f} s (load before: {load:.2f})", flush=True)
        walls.append(one.wall / two.wall)
        cpus.append(two.cpu / one.cpu)
        by_torchrun.append(one.wall / started)
    print(
        f"2 learners against 1: {numpy.median(walls):.2f} × as fast, started by torchrun "
        f"{numpy.median(by_torchrun):.2f} ×; {numpy.median(cpus):.2f} × the CPU time"
    )


def quiet_load(most: float = 0.2, patience: float = 60.0) -> float:
    """Cores that are busy, once they are fewer than `most`, or after so many seconds."""
    deadline = time.monotonic() + patience
    while True:
        busy: float = psutil.cpu_percent(interval=2) / 100 * (psutil.cpu_count() or 1)
        if busy < most or time.monotonic() > deadline:
            return busy


def torchrun_seconds(steps: int, options: dict[str, Any]) -> float:
    """Seconds of training by two learners that torchrun starts."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    command = ["run", "--algo", "ppo", "--env", "CartPole-v1", "--steps", str(steps), "--json"]
    done = subprocess.run(
        [
            *(sys.executable, *launcher, "-m", "rlplug", *command),
            *(f"--set={name}={json.dumps(value)}" for name, value in options.items()),
        ],
        text=True,
        capture_output=True,
        check=True,
    )
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("{")]
    told: float = json.loads(line)["metrics"]["time/seconds"]
    return told


def staleness() -> None:
    """PPO on CartPole, with the newest weights and with those of four collections ago."""
    options = {
        **{name: value for name, value in PPO.items() if name != "evaluation.episodes"},
        **ray_options(1),
        "num_envs": 8,
        "n_steps": 32,
        "batch_size": 256,
        "n_epochs": 10,
        "learning_rate": 0.001,
        "evaluation.every": 10_000,
        "evaluation.episodes": 20,
    }
    for ahead, advantages in ((0, "gae"), (4, "gae"), (4, "vtrace")):
        found = []
        for seed in range(1, 6):
            more = {"scale.max_staleness": ahead, "algorithm.advantages": advantages}
            ran = rlplug.run(
                "ppo", "CartPole-v1", steps=50_000, seed=seed, options={**options, **more}
            )
            found.append((ran.metrics["rollout/return_mean"], ran.metrics["eval/return_mean"]))
        sampled, greedy = (sum(column) / len(found) for column in zip(*found, strict=True))
        print(
            f"max_staleness={ahead} advantages={advantages}: mean return at 50,000 steps "
            f"{sampled:.0f} sampled, {greedy:.0f} greedy; by seed "
            + " ".join(f"{one:.0f}/{other:.0f}" for one, other in found),
            flush=True,
        )


class Training:
    """A listener that times what lies between the first step and the last."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def run_started(self) -> None:
        """All processes are there."""
        self._clock.start()

    def run_finished(self) -> None:
        """After the last update."""
        self._clock.stop()


def rllib() -> None:
    """PPO with two runners beside RLlib's, by environment steps per CPU second of all processes.

    RLlib needs an environment of its own: python benchmarks/ppo.py --setup.
    """
    peers = Path(__file__).parent / "peers"
    ratios = []
    for turn in range(3):
        found = {}
        for name, python, steps in (
            ("rlplug", Path(sys.executable), 102_400),
            ("rllib", peers.parent.parent / ".benchenvs" / "ppo_rllib" / "bin" / "python", 10_240),
        ):
            command = [str(python), str(peers / f"scale_{name}.py")]
            done = subprocess.run(
                [*command, f"--steps={steps}", "--runners=2"],
                text=True,
                capture_output=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                check=True,
            )
            (line,) = [one for one in done.stdout.splitlines() if one.startswith("{")]
            told = json.loads(line)
            found[name] = told["steps"] / told["cpu"]
            print(
                f"  {name} {told['version']}: {found[name]:,.0f} steps per CPU second, "
                f"{told['steps'] / told['wall']:,.0f} per second ({told['processes']} processes)"
            )
        ratios.append(found["rlplug"] / found["rllib"])
        print(f"  turn {turn + 1}: {ratios[-1]:.2f} ×")
    print(f"rlplug beside RLlib, 2 runners each: {numpy.median(ratios):.2f} × per CPU second")


if __name__ == "__main__":
    os.environ.setdefault("RLPLUG_HOME", tempfile.mkdtemp())
    parts = {
        "overhead": overhead,
        "weights": weights,
        "sleep": sleep,
        "rounds": rounds,
        "learners": learners,
        "staleness": staleness,
        "rllib": rllib,
    }
    for name in sys.argv[1:] or parts:
        parts[name]()
