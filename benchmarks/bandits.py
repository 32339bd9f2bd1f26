"""LinUCB beside what a person would pick instead: speed, memory and regret.

python benchmarks/bandits.py --setup      one environment per peer, below .benchenvs/
python benchmarks/bandits.py              everything; --only fixed, --quick

Every measurement is a process of its own with one thread; peers take turns, rounds are repeated,
and medians are shown. Peers that know a width and a ridge are given 1 and 1.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.installed import PEERS, PLAIN, RLPLUG, Peer

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Part:
    """Something to measure with every peer that can."""

    name: str
    title: str
    arms: int
    features: int
    rounds: int
    quick_rounds: int
    target: Callable[[Mapping[str, float]], str]


def main() -> None:
    """Install the peers, or measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--setup", action="store_true", help="make the peers' environments")
    parser.add_argument("--only", choices=[*(part.name for part in PARTS), "run"])
    parser.add_argument("--quick", action="store_true", help="small problems, one repetition")
    parser.add_argument("--repeat", type=int, default=5, help="rounds in which all take turns")
    parser.add_argument("--seed", type=int, default=0)
    said = parser.parse_args()
    if said.setup:
        for peer in PEERS:
            peer.install()
        return
    repeat = 1 if said.quick else said.repeat
    for part in PARTS:
        if said.only in (None, part.name):
            _compare(part, said.quick, repeat, said.seed)
    if said.only in (None, "run"):
        _rates(said.quick, repeat, said.seed)


def _compare(part: Part, quick: bool, repeat: int, seed: int) -> None:
    rounds = part.quick_rounds if quick else part.rounds
    sizes = [f"--rounds={rounds}", f"--arms={part.arms}", f"--features={part.features}"]
    found: dict[str, list[dict[str, Any]]] = {}
    missing: dict[str, str] = {}
    for turn in range(repeat):
        for peer in PEERS:
            if peer.name in missing:
                continue
            answer = peer.why_missing() or _asked(peer, [part.name, *sizes, f"--seed={seed}"])
            if isinstance(answer, str):
                missing[peer.name] = answer
                found.pop(peer.name, None)
            else:
                found.setdefault(peer.name, []).append(answer)
                print(f"\r{part.name}: turn {turn + 1} of {repeat}, {peer.name:<24}", end="")
    print(f"\r{'':<60}\r{part.title} ({rounds:,} rows, medians of {repeat})")
    _table(found)
    for name, why in missing.items():
        print(f"  {name:<22}{why}")
    if RLPLUG.name in found:
        ratios = {name: _ratio(found[RLPLUG.name], answers) for name, answers in found.items()}
        print(f"  {part.target(ratios)}\n", flush=True)


def _table(found: Mapping[str, list[dict[str, Any]]]) -> None:
    memory = any("megabytes" in one for answers in found.values() for one in answers)
    head = f"  {'':<22}{'version':>9}{'per CPU s':>12}{'per s':>12}{'regret':>9}{'rlplug is':>11}"
    print(head + (f"{'rows':>11}{'more MB':>9}" if memory else ""))
    ours = found.get(RLPLUG.name)
    for name, answers in found.items():
        line = f"  {name:<22}{answers[0]['version']:>9}{_median(answers, 'steps', 'cpu'):>12,.0f}"
        line += f"{_median(answers, 'steps', 'wall'):>12,.0f}{answers[0]['regret']:>9.4f}"
        line += f"{_ratio(ours, answers):>9.2f} x" if ours else f"{'':>11}"
        if memory:
            line += f"{answers[0]['steps']:>11,}{_median(answers, 'megabytes'):>9,.0f}"
        print(line)


def _rates(quick: bool, repeat: int, seed: int) -> None:
    """Whole runs, in turns: the loop's rate, and what opening and closing cost beside it."""
    print("Through rlplug.run: 20 arms, 50 features, tracking off (medians of", f"{repeat})")
    print(f"  {'environments':>12}{'steps':>11}{'steps/s':>12}{'regret':>9}{'around it, s':>14}")
    sizes = {1: 30_000, 32: 300_000, 1024: 2_000_000}
    found: dict[int, list[dict[str, Any]]] = {num_envs: [] for num_envs in sizes}
    for _ in range(repeat):
        for num_envs, steps in sizes.items():
            steps = steps // 10 if quick else steps
            arguments = [f"--num-envs={num_envs}", f"--steps={steps}", f"--seed={seed}"]
            found[num_envs].append(_own(arguments))
    for num_envs, answers in found.items():
        rate, around = _median(answers, "steps", "wall"), _median(answers, "around")
        line = f"  {num_envs:>12,}{answers[0]['steps']:>11,}{rate:>12,.0f}"
        print(f"{line}{answers[0]['regret']:>9.4f}{around:>14.2f}")
    print(flush=True)


def _asked(peer: Peer, arguments: Iterable[str]) -> dict[str, Any] | str:
    """What the peer's script measured, or why it did not."""
    command = [str(peer.python), str(HERE / "peers" / f"{peer.script}.py"), *arguments]
    done = subprocess.run(command, text=True, capture_output=True, env=_one_thread(), check=False)
    if done.returncode == 0:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer
    if done.returncode == 3:
        return "has nothing for this"
    return "failed: " + (done.stderr.strip().splitlines() or ["no output"])[-1]


def _own(arguments: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HERE / "peers" / "rlplug_run.py"), *arguments]
        environ = {**_one_thread(), "RLPLUG_HOME": folder}
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE, env=environ, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _one_thread() -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {**os.environ, **dict.fromkeys(names, "1"), "PYTHONWARNINGS": "ignore"}


def _median(answers: list[dict[str, Any]], above: str, below: str = "") -> float:
    return float(statistics.median(one[above] / (one[below] if below else 1.0) for one in answers))


def _ratio(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> float:
    """How many times faster, by CPU time: taken within each turn, as the machine's speed drifts."""
    pairs = zip(ours, theirs, strict=True)
    return float(
        statistics.median(
            (one["steps"] / one["cpu"]) / (other["steps"] / other["cpu"]) for one, other in pairs
        )
    )


def _met(kept: bool) -> str:
    return "yes" if kept else "NO"


def _against_fastest(factor: float) -> Callable[[Mapping[str, float]], str]:
    """At least `factor` times the fastest peer."""

    def judged(ratios: Mapping[str, float]) -> str:
        peers = {name: ratio for name, ratio in ratios.items() if name not in OURS}
        if not peers:
            return "no peer was measured"
        fastest = min(peers, key=peers.__getitem__)
        met = _met(peers[fastest] >= factor)
        return f"{factor:g} x the fastest peer ({fastest}): {met}, {peers[fastest]:.2f} x"

    return judged


def _against_plain(ratios: Mapping[str, float]) -> str:
    ratio = ratios[PLAIN.name]
    return f"0.8 x plain NumPy: {_met(ratio >= 0.8)}, {ratio:.2f} x"


OURS = {RLPLUG.name, PLAIN.name}
PARTS = (
    Part(
        "fixed",
        "One decision and one update at a time: disjoint, 20 arms x 50 features",
        *(20, 50, 3_000, 1_000),
        _against_fastest(4.0),
    ),
    Part(
        "featured",
        "One decision and one update at a time: joint, 20 arms with 100 features each",
        *(20, 100, 1_500, 300),
        _against_plain,
    ),
    Part(
        "logged",
        "Fitting a log and deciding once: disjoint, 20 arms x 50 features",
        *(20, 50, 1_000_000, 100_000),
        _against_fastest(1.0),
    ),
)

if __name__ == "__main__":
    main()
