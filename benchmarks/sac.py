"""SAC and TD3 beside those of Stable-Baselines3: environment steps per CPU second of whole runs.

python benchmarks/sac.py --setup     the peer's environment, below .benchenvs/
python benchmarks/sac.py             everything; --only sac-64, --quick

Pendulum-v1, one environment, a batch of 256 at every step; settings are in peers/sac_settings.py.
Every measurement is a process of its own with one thread. The peer runs between two runs of rlplug,
whose mean it is compared with: so the clock of a machine may drift. Rounds are repeated, and
medians are shown.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.installed import NUMPY, Peer

HERE = Path(__file__).parent

RLPLUG = Peer("rlplug", "sac_rlplug")
SB3 = Peer(
    "Stable-Baselines3",
    "sac_sb3",
    ("stable-baselines3==2.9.2", "torch==2.13.0", "gymnasium==1.4.0", NUMPY),
)


@dataclass(frozen=True)
class Part:
    """An algorithm with networks of one size."""

    name: str
    algorithm: str
    net_arch: tuple[int, ...]
    steps: int
    factor: float
    """How many times the peer's rate is asked for; 0: nothing is."""

    def arguments(self, steps: int, seed: int) -> list[str]:
        """The command line of a peer's script."""
        widths = [str(width) for width in self.net_arch]
        return [self.algorithm, f"--steps={steps}", f"--seed={seed}", "--net-arch", *widths]


PARTS = (
    Part("sac-64", "sac", (64, 64), 4_000, 1.5),
    Part("sac-256", "sac", (256, 256), 2_000, 1.3),
    Part("td3-64", "td3", (64, 64), 4_000, 0),
    Part("td3-256", "td3", (256, 256), 2_000, 0),
)


def main() -> None:
    """Install the peer, or measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--setup", action="store_true", help="make the peer's environment")
    parser.add_argument("--only", choices=[part.name for part in PARTS])
    parser.add_argument("--quick", action="store_true", help="short runs, one repetition")
    parser.add_argument("--repeat", type=int, default=5, help="rounds")
    said = parser.parse_args()
    if said.setup:
        SB3.install()
        return
    for part in PARTS:
        if said.only in (None, part.name):
            compare(part, quick=said.quick, repeat=1 if said.quick else said.repeat)


def compare(part: Part, *, quick: bool, repeat: int) -> None:
    """Measure in turns, and print what came out."""
    steps = part.steps // 4 if quick else part.steps
    found: dict[str, list[dict[str, Any]]] = {}
    ratios = []
    for seed in range(1, repeat + 1):
        before = ask(RLPLUG, part.arguments(steps, seed))
        theirs = ask(SB3, part.arguments(steps, seed))
        after = ask(RLPLUG, part.arguments(steps, seed))
        ratios.append(2 * theirs["cpu"] / (before["cpu"] + after["cpu"]))
        found.setdefault(RLPLUG.name, []).extend([before, after])
        found.setdefault(SB3.name, []).append(theirs)
    title = f"{part.algorithm}, {'-'.join(map(str, part.net_arch))}"
    print(f"{title} ({steps:,} steps each, medians of {repeat})")
    print(f"  {'':<20}{'version':>12}{'per CPU s':>12}{'per s':>10}")
    for name, answers in found.items():
        rates = [
            statistics.median(one["count"] / one[clock] for one in answers)
            for clock in ("cpu", "wall")
        ]
        print(f"  {name:<20}{answers[0]['version']:>12}{rates[0]:>12,.0f}{rates[1]:>10,.0f}")
    ratio = statistics.median(ratios)
    each = ", ".join(f"{one:.2f}" for one in ratios)
    met = (
        "" if not part.factor else f", {part.factor:g} x: {'yes' if ratio >= part.factor else 'NO'}"
    )
    print(f"  rlplug is {ratio:.2f} x{met}   {each}\n", flush=True)


def ask(peer: Peer, arguments: list[str]) -> dict[str, Any]:
    """What the peer's script measured."""
    why = peer.why_missing()
    if why:
        raise SystemExit(f"{peer.name} is {why.replace('bandits.py', 'sac.py')}")
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, **dict.fromkeys(names, "1"), "PYTHONWARNINGS": "ignore"}
        environ["RLPLUG_HOME"] = folder
        command = [str(peer.python), str(HERE / "peers" / f"{peer.script}.py"), *arguments]
        done = subprocess.run(command, text=True, capture_output=True, env=environ, check=False)
    if done.returncode:
        raise SystemExit(f"{peer.name} failed:\n{done.stderr.strip()}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


if __name__ == "__main__":
    main()
