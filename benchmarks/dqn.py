"""DQN beside what a person would pick instead: whole runs, and the learner alone.

python benchmarks/dqn.py --setup     one environment per peer, below .benchenvs/
python benchmarks/dqn.py             everything; --only run, --quick

CartPole-v1, network 120-84, batch 128, buffer 10,000, an update every 10 steps, one environment,
unless a part says otherwise.
Every measurement is a process of its own with one thread. Peers take turns, each between two of
rlplug's own, whose mean it is compared with: so the clock of a machine may drift. Rounds are
repeated, and medians are shown. All have Huber's loss and clip.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.installed import NUMPY, Peer

HERE = Path(__file__).parent

RLPLUG = Peer("rlplug", "dqn_rlplug")
TORCH = ("torch==2.13.0", "gymnasium==1.4.0", NUMPY)
SB3 = Peer("Stable-Baselines3", "dqn_sb3", ("stable-baselines3==2.9.2", *TORCH))
PEERS = (RLPLUG, SB3)


@dataclass(frozen=True)
class Part:
    """Something to measure with every peer."""

    name: str
    title: str
    arguments: tuple[str, ...]
    count: int
    quick_count: int
    target: float = 0.0
    """How many times as fast as SB3; 0: not asked for."""


PARTS = (
    Part(
        "run",
        "Whole runs: environment steps",
        ("run",),
        *(50_000, 10_000),
        4.2,
    ),
    Part(
        "frozenlake",
        "The same on FrozenLake-v1: 16 one-hot states",
        ("run", "--env=FrozenLake-v1"),
        *(20_000, 10_000),
        2.5,
    ),
    Part(
        "256-256",
        "CartPole-v1 with 256-256",
        ("run", "--net-arch", "256", "256"),
        *(20_000, 10_000),
        2.4,
    ),
    Part(
        "learn",
        "The learner alone, drawing included: updates of 128 rows",
        ("learn", "--batch=128"),
        *(3_000, 500),
        2.0,
    ),
    Part(
        "learn-32",
        "The same: updates of 32 rows",
        ("learn", "--batch=32"),
        *(3_000, 500),
    ),
)


def main() -> None:
    """Install the peers, or measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--setup", action="store_true", help="make the peers' environments")
    parser.add_argument("--only", choices=[part.name for part in PARTS])
    parser.add_argument("--quick", action="store_true", help="short runs, one repetition")
    parser.add_argument("--repeat", type=int, default=5, help="rounds in which all take turns")
    parser.add_argument(
        "--without", choices=[peer.name for peer in PEERS], action="append", default=[]
    )
    said = parser.parse_args()
    if said.setup:
        for peer in PEERS:
            peer.install()
        return
    for part in PARTS:
        if said.only in (None, part.name):
            compare(part, part.quick_count if said.quick else part.count, said)


def compare(part: Part, count: int, said: argparse.Namespace) -> None:
    """Measure all peers in turns, and print what came out."""
    repeat = 1 if said.quick else said.repeat
    found: dict[str, list[dict[str, Any]]] = {RLPLUG.name: []}
    ratios: dict[str, list[float]] = {}
    missing: dict[str, str] = {}
    for turn in range(repeat):

        def measured(peer: Peer, turn: int = turn) -> dict[str, Any]:
            print(f"\r{part.name}: turn {turn + 1} of {repeat}, {peer.name:<24}", end="")
            asked = [*part.arguments, f"--count={count}", f"--seed={turn + 1}"]
            answer = peer.why_missing() or ask(peer, asked)
            if isinstance(answer, str):
                missing[peer.name] = answer.replace("bandits.py", "dqn.py")
                return {}
            found.setdefault(peer.name, []).append(answer)
            return answer

        before = measured(RLPLUG)
        for peer in PEERS[1:]:
            if peer.name in missing or peer.name in said.without:
                continue
            theirs, after = measured(peer), measured(RLPLUG)
            if before and theirs and after:
                ours = (before["cpu"] + after["cpu"]) / 2
                ratios.setdefault(peer.name, []).append(theirs["cpu"] / ours)
            before = after
    print(f"\r{'':<60}\r{part.title} ({count:,} each, medians of {repeat})")
    print(f"  {'':<20}{'version':>12}{'per CPU s':>12}{'per s':>10}{'rlplug is':>12}")
    medians = {name: statistics.median(each) for name, each in ratios.items()}
    for name, answers in found.items():
        if answers:
            line = f"  {name:<20}{answers[0]['version']:>12}{rate(answers, 'cpu'):>12,.0f}"
            line += f"{rate(answers, 'wall'):>10,.0f}{medians.get(name, 1):>10.2f} x"
            each = ", ".join(f"{ratio:.2f}" for ratio in ratios.get(name, []))
            print(f"{line}   {each}".rstrip())
    for name, why in missing.items():
        print(f"  {name:<20}{why}")
    if part.target and SB3.name in medians:
        ratio = medians[SB3.name]
        met = "yes" if ratio >= part.target else "NO"
        print(f"  {part.target:g} x {SB3.name}: {met}, {ratio:.2f} x")
    print(flush=True)


def rate(answers: Sequence[dict[str, Any]], clock: str) -> float:
    """The median number per second of one clock."""
    return float(statistics.median(one["count"] / one[clock] for one in answers))


def ask(peer: Peer, arguments: Sequence[str]) -> dict[str, Any] | str:
    """What the peer's script measured, or why it did not."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, **dict.fromkeys(names, "1"), "PYTHONWARNINGS": "ignore"}
        environ["RLPLUG_HOME"] = folder
        command = [str(peer.python), str(HERE / "peers" / f"{peer.script}.py"), *arguments]
        done = subprocess.run(command, text=True, capture_output=True, env=environ, check=False)
    if done.returncode == 0:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer
    return "failed: " + (done.stderr.strip().splitlines() or ["no output"])[-1]


if __name__ == "__main__":
    main()
