"""PPO beside what a person would pick instead: environment steps per second of whole trainings.

python benchmarks/ppo.py --setup          one environment per peer, below .benchenvs/
python benchmarks/ppo.py                  everything; --only cartpole, --quick

Every measurement is a process of its own with one thread; peers take turns, rounds are repeated,
and ratios are medians over rounds of those within a round. Settings are in peers/ppo_settings.py.
Of a compiled run the first updates are left out: how long compiling takes is shown beside.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from peers.installed import Peer

HERE = Path(__file__).parent
ROOT = HERE.parent


@dataclass(frozen=True)
class Runner:
    """Who trains, for how many steps, and with what else on the command line."""

    name: str
    peer: Peer
    steps: int
    more: tuple[str, ...] = ()


@dataclass(frozen=True)
class Figure:
    """At least `factor` times the rate of the fastest of some runners."""

    ours: str
    factor: float
    others: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """One environment, who trains there, and what is asked for."""

    part: str
    title: str
    runners: Sequence[Runner]
    figures: Sequence[Figure]


def main() -> None:
    """Install the peers, or measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--setup", action="store_true", help="make the peers' environments")
    parser.add_argument("--only", choices=[table.part for table in TABLES])
    parser.add_argument("--quick", action="store_true", help="fewer steps, one round")
    parser.add_argument("--repeat", type=int, default=5, help="rounds in which all take turns")
    parser.add_argument("--without", nargs="+", default=[], metavar="NAME", help="who sits out")
    said = parser.parse_args()
    if said.setup:
        for peer in (RLPLUG, SB3, RLLIB):
            peer.install()
        return
    for table in TABLES:
        if said.only in (None, table.part):
            runners = [runner for runner in table.runners if runner.name not in said.without]
            table = replace(table, runners=runners)
            _compare(table, said.quick, 1 if said.quick else said.repeat)


def _compare(table: Table, quick: bool, repeat: int) -> None:
    found: dict[str, list[dict[str, Any]]] = {}
    missing: dict[str, str] = {}
    for turn in range(repeat):
        for runner in table.runners:
            if runner.name in missing:
                continue
            print(f"\r{table.part}: turn {turn + 1} of {repeat}, {runner.name:<32}", end="")
            answer = _asked(runner, table.part, quick)
            if isinstance(answer, str):
                missing[runner.name] = answer
            else:
                found.setdefault(runner.name, []).append(answer)
    print(f"\r{'':<70}\r{table.title} (medians of {repeat})")
    print(f"  {'':<30}{'version':>12}{'steps':>11}{'per CPU s':>11}{'per s':>10}")
    for name, answers in found.items():
        line = f"  {name:<30}{answers[0]['version']:>12}{answers[0]['steps']:>11,}"
        line += f"{_median(answers, 'cpu'):>11,.0f}{_median(answers, 'wall'):>10,.0f}"
        warming = answers[0].get("warming", 0.0)
        print(line + (f"   compiled in {warming:.0f} s" if warming > 1 else ""))
    for name, why in missing.items():
        print(f"  {name:<30}{why}")
    for figure in table.figures:
        _judge(figure, found)
    print(flush=True)


def _judge(figure: Figure, found: Mapping[str, list[dict[str, Any]]]) -> None:
    others = [name for name in figure.others if name in found]
    if figure.ours not in found or not others:
        return
    fastest = max(others, key=lambda name: _median(found[name], "cpu"))
    pairs = zip(found[figure.ours], found[fastest], strict=True)
    ratios = [_rate(ours, "cpu") / _rate(other, "cpu") for ours, other in pairs]
    ratio = statistics.median(ratios)
    met = "yes" if ratio >= figure.factor else "NO"
    each = ", ".join(f"{one:.2f}" for one in ratios)
    print(f"  {figure.ours}: {figure.factor:g} x {fastest}: {met}, {ratio:.2f} x   {each}")


def _asked(runner: Runner, part: str, quick: bool) -> dict[str, Any] | str:
    """What the peer's script measured, or why it did not."""
    why = runner.peer.why_missing()
    if why:
        return why.replace("bandits.py", "ppo.py")
    steps = runner.steps // 4 if quick else runner.steps
    script = HERE / "peers" / f"{runner.peer.script}.py"
    command = [str(runner.peer.python), str(script), part, f"--steps={steps}", *runner.more]
    done = subprocess.run(command, text=True, capture_output=True, env=_one_thread(), check=False)
    if done.returncode == 0:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer
    return "failed: " + (done.stderr.strip().splitlines() or ["no output"])[-1]


def _one_thread() -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(names, "1"), "PYTHONWARNINGS": "ignore"}


def _rate(answer: Mapping[str, Any], clock: str) -> float:
    return float(answer["steps"] / answer[clock])


def _median(answers: Sequence[Mapping[str, Any]], clock: str) -> float:
    return statistics.median(_rate(one, clock) for one in answers)


TORCH = "torch==2.13.0"
ENVIRONMENTS = ("gymnasium[mujoco]==1.4.0", "ale-py==0.12.1", "opencv-python-headless>=4.8")
PLUGIN = ROOT / "plugins" / "rlplug-ppo"
RLPLUG = Peer("rlplug", "ppo_rlplug", (TORCH, *ENVIRONMENTS, "-e", str(ROOT), "-e", str(PLUGIN)))
SB3 = Peer("SB3", "ppo_sb3", ("stable-baselines3==2.9.2", TORCH, *ENVIRONMENTS))
RLLIB = Peer("RLlib", "ppo_rllib", ("ray[rllib]==2.60.0", TORCH))
NATIVE = ("--vectorization=native",)


def _beside_sb3(part: str, title: str, steps: tuple[int, int], factor: float) -> Table:
    """rlplug and SB3 at equal settings, with `steps` for each."""
    runners = (Runner("rlplug", RLPLUG, steps[0]), Runner("SB3", SB3, steps[1]))
    return Table(part, title, runners, (Figure("rlplug", factor, ("SB3",)),))


TABLES = (
    Table(
        "cartpole",
        "CartPole-v1, 8 x 128 steps, 4 epochs x 4 minibatches, 64-64 tanh",
        (
            Runner("rlplug", RLPLUG, 102_400),
            Runner("SB3", SB3, 30_720),
            Runner("RLlib", RLLIB, 20_480),
            Runner("rlplug, native", RLPLUG, 102_400, NATIVE),
            Runner("rlplug, native, compiled", RLPLUG, 204_800, (*NATIVE, "--compile")),
            Runner("rlplug, 1,024 native", RLPLUG, 1_310_720, (*NATIVE, "--num-envs=1024")),
        ),
        (
            Figure("rlplug", 4.0, ("SB3",)),
            Figure("rlplug", 6.0, ("RLlib",)),
            Figure("rlplug, native, compiled", 3.5, ("SB3",)),
            Figure("rlplug, 1,024 native", 12.0, ("SB3",)),
        ),
    ),
    _beside_sb3("relu", "The same with ReLU", (102_400, 40_960), 2.5),
    _beside_sb3("256-256", "The same with 256-256 tanh", (81_920, 40_960), 2.5),
    _beside_sb3("taxi", "The same on Taxi-v4: 500 one-hot states", (81_920, 40_960), 2.7),
    _beside_sb3("blackjack", "The same on Blackjack-v1: a Tuple", (81_920, 40_960), 2.7),
    _beside_sb3("pong", "ALE/Pong-v5, one encoder for policy and value", (2_048, 2_048), 1.08),
    _beside_sb3(
        "pendulum",
        "Pendulum-v1 with the settings of SB3: 2,048 steps, 10 epochs of minibatches of 64",
        (20_480, 20_480),
        2.0,
    ),
    _beside_sb3("halfcheetah", "HalfCheetah-v5 with the settings of SB3", (20_480, 20_480), 2.0),
)

if __name__ == "__main__":
    main()
