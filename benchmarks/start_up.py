"""CPU time of commands that must be instant, against importing what they stand on.

python benchmarks/start_up.py
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

ROUNDS = 15
BASE = "import click, rich.console, rich.table, attrs, cattrs, pluggy"
COMMANDS = {
    "base imports": ["-c", BASE],
    "rlplug --help": ["-m", "rlplug", "--help"],
    "rlplug plugins list": ["-m", "rlplug", "plugins", "list"],
    "rlplug plugins hooks": ["-m", "rlplug", "plugins", "hooks"],
}


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):
        for name, arguments in COMMANDS.items():
            times[name].append(_cpu_seconds([sys.executable, *arguments]))
    base = statistics.median(times["base imports"])
    print(f"{'':<24}{'CPU ms':>8}{'ratio':>8}   (medians of {ROUNDS} interleaved runs)")
    for name, measured in times.items():
        median = statistics.median(measured)
        print(f"{name:<24}{median * 1e3:>8.0f}{median / base:>8.2f}")


def _cpu_seconds(command: list[str]) -> float:
    before = os.times()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    return (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )


if __name__ == "__main__":
    main()
