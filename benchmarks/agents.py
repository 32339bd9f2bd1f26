"""What several agents cost: agent steps per CPU second, and alike modules trained together.

python benchmarks/agents.py --setup    install RLlib, into an environment below .benchenvs/
python benchmarks/agents.py            all
python benchmarks/agents.py agents     8 agents with one module, and 8 environments of one agent
python benchmarks/agents.py modules    16 alike modules, together and one by one
python benchmarks/agents.py rllib      PPO of RLlib with the same settings, per CPU second
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from peers.installed import NUMPY, Peer
from peers.walkers import Many, One

import rlplug

QUIET = {"tracking.enabled": False, "evaluation.episodes": 0, "checkpoint.minutes": 0}
TORCH = {"compute.arrays": "off"}
RLLIB = Peer(
    "RLlib",
    "agents_rllib",
    (
        *("ray[rllib]==2.60.0", "torch==2.13.0", "pettingzoo==1.27.0", "mpe2==1.1.1", NUMPY),
        "pygame",
    ),
)
RLPLUG = Peer("rlplug", "agents_rlplug")


def rate(env: Any, steps: int, agents: int, **options: Any) -> float:
    """Agent steps per CPU second of a whole run, which has one thread."""
    began = time.process_time()
    run = rlplug.run("ppo", env, steps=steps, options={**QUIET, **options})
    return agents * run.step / (time.process_time() - began)


def agents(rounds: int = 3) -> None:
    """8 agents with one module in 8 environments, and 64 environments with one agent."""
    shared = {"n_steps": 64, "batch_size": 512}
    rate(One, 1000, 1, n_steps=64)
    ratios = []
    for _ in range(rounds):
        one = rate(One, 400_000, 1, **shared, **{"sampling.num_envs": 64})
        many = rate(Many, 50_000, 8, **shared, **{"sampling.num_envs": 8})
        print(
            f"  one agent {one:,.0f}, eight agents {many:,.0f} agent steps per CPU second",
            flush=True,
        )
        ratios.append(many / one)
    told = statistics.median(ratios)
    print(f"eight agents: {told:.2f} times the rate of one agent (wanted: 0.8)", flush=True)


def modules(count: int = 16, steps: int = 20_000) -> None:
    """Alike modules, of one agent each."""
    sections = {f"modules.m{index}.agents": f"walker_{index}" for index in range(count)}
    options = {**sections, "env.count": count, "n_steps": 128, "batch_size": 128}
    options["sampling.num_envs"] = 4
    rate(One, 1000, 1, n_steps=64)
    apart = rate(Many, steps, count, **options, **TORCH, **{"learner.join_from": 0})
    print(
        f"{count} modules one by one under torch: {apart:,.0f} agent steps per CPU second",
        flush=True,
    )
    for told, more in (("together with vmap", TORCH), ("as rlplug chooses", {})):
        found = rate(Many, steps, count, **options, **more)
        print(f"  {told}: {found:,.0f}, {found / apart:.1f} times (wanted: 2.5)", flush=True)


def rllib(rounds: int = 3) -> None:
    """Environment steps per CPU second of both, which take turns, each in a process of its own."""
    why = RLLIB.why_missing()
    if why:
        print(f"RLlib: {why}")
        return
    for env, ours, theirs in (("walkers", 60_000, 6_000), ("spread", 40_000, 8_000)):
        found: list[tuple[float, float]] = []
        for _ in range(rounds):
            found.append((per_cpu_second(RLPLUG, env, ours), per_cpu_second(RLLIB, env, theirs)))
            print("  {}: rlplug {:,.0f}, RLlib {:,.0f}".format(env, *found[-1]), flush=True)
        ratio = statistics.median(one / other for one, other in found)
        alone = per_cpu_second(RLPLUG, env, 5_000, "alone")
        print(
            f"{env}: {ratio:.1f} times RLlib's steps per CPU second (wanted: 4); "
            f"its environment alone takes {alone:,.0f} steps per CPU second",
            flush=True,
        )


def per_cpu_second(peer: Peer, env: str, steps: int, *more: str) -> float:
    """Environment steps per CPU second, of a process of its own."""
    script = Path(__file__).parent / "peers" / f"{peer.script}.py"
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [str(peer.python), str(script), env, str(steps), *more],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "RLPLUG_HOME": folder},
        )
    if done.returncode:
        raise SystemExit(f"{peer.name} failed:\n{done.stderr[-2000:]}")
    told = json.loads(done.stdout.strip().splitlines()[-1])
    return float(told["steps"] / told["seconds"])


if __name__ == "__main__":
    wanted = sys.argv[1:]
    if "--setup" in wanted:
        RLLIB.install()
        sys.exit()
    if not wanted or "agents" in wanted:
        agents()
    if not wanted or "modules" in wanted:
        modules()
    if not wanted or "rllib" in wanted:
        rllib()
