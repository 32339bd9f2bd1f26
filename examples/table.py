"""A labeled table as a bandit: learn which offer suits a customer from one offer at a time.

python examples/table.py
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import numpy

from rlplug import ActInput, run
from rlplug.bandits import load_table

OFFERS = ("phone", "family", "travel")
ROWS = 1_500


def write_customers(path: Path) -> None:
    """Write a table of customers and the offer that each would accept."""
    random = numpy.random.default_rng(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "children", "nights_abroad", "offer"])
        for _ in range(ROWS):
            age, children, nights = random.integers(18, 80), random.poisson(1.0), random.poisson(4)
            pull = [(60 - age) / 15, 1.5 * children, 0.5 * nights]
            best = int(numpy.argmax(pull + random.gumbel(0.0, 0.3, 3)))
            writer.writerow([age, children, nights, OFFERS[best]])


def main() -> None:
    """Train for two passes over the table, then predict for two customers."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "customers.csv"
        write_customers(path)
        table = load_table(str(path), label="offer").preprocessed("unit")
        taken = {alpha: share_taken(path, alpha) for alpha in (0.0, 0.5)}
        result = run(
            "linucb",
            "ClassificationBandit-v0",
            steps=2 * ROWS,
            seed=1,
            options=options(path, alpha=0.5),
        )
    chosen = result.module.forward_inference(ActInput(table.features)).actions
    print(f"offers: {', '.join(table.classes)}; customers: {len(table.labels):,}")
    print(f"taken at random: {1 / len(table.classes):.0%}")
    for alpha, share in taken.items():
        print(f"taken in the first pass, alpha {alpha}: {share:.0%}")
    print(f"right for all customers after two passes: {(chosen == table.labels).mean():.0%}")


def share_taken(path: Path, alpha: float) -> float:
    """The acceptance rate of LinUCB during one pass over the table."""
    result = run(
        "linucb", "ClassificationBandit-v0", steps=ROWS, seed=1, options=options(path, alpha=alpha)
    )
    # The right offer has reward 1, so reward and regret add up to 1.
    return 1.0 - result.metrics["rollout/regret_total"] / result.step


def options(path: Path, alpha: float) -> dict[str, object]:
    """As on the command line: `--set alpha=… --set env.table=…`."""
    return {
        "alpha": alpha,
        "env.table": str(path),
        "env.label": "offer",
        "tracking.enabled": False,
    }


if __name__ == "__main__":
    main()
