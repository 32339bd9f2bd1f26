"""Learning and judging from logs: speed and memory.

python benchmarks/bandits.py --setup      the peers' environments
python benchmarks/offline.py              everything; --only learn|estimate, --quick

learn:     LinUCB (disjoint, 20 arms, contexts of 50) from a Parquet file, beside MABWiser.
estimate:  all estimators with 200 bootstrap samples on 1,000,000 rows, beside Open Bandit Pipeline.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy
from peers.installed import PEERS

HERE = Path(__file__).parent
ARMS, DIM = 20, 50


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--only", choices=("learn", "estimate"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--peers", help="an interpreter that has obp and mabwiser")
    said = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if said.only in (None, "learn"):
            learn(Path(folder), 500_000 if said.quick else 5_000_000, said.repeat, said.peers)
        if said.only in (None, "estimate"):
            estimate(Path(folder), 100_000 if said.quick else 1_000_000, said.repeat, said.peers)


def python_of(name: str, given: str | None) -> str:
    """The interpreter of a peer."""
    return given or str(next(one for one in PEERS if one.name == name).python)


def child(python: str, script: str, *arguments: str) -> dict[str, Any]:
    """What a script prints, with one thread."""
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    command = [python, str(HERE / "peers" / script), *arguments]
    environment = {**os.environ, **threads}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{script} failed:\n{done.stderr[-2000:]}")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def learn(folder: Path, rows: int, repeat: int, peers: str | None) -> None:
    """LinUCB from a file, beside MABWiser."""
    file = folder / "log.parquet"
    write_log(file, rows)
    print(f"\nlearn: LinUCB, {ARMS} arms, contexts of {DIM}, {rows:,} rows of float32, Parquet")
    found: dict[str, list[dict[str, Any]]] = {"rlplug": [], "MABWiser": []}
    scripts = {"rlplug": "offline_rlplug.py", "MABWiser": "offline_mab_wiser.py"}
    for _ in range(repeat):
        for name in found:
            python = sys.executable if name == "rlplug" else python_of(name, peers)
            found[name].append(child(python, scripts[name], str(file)))
    for name, runs in found.items():
        rates = [one["rows"] / one["cpu_seconds"] for one in runs]
        peak = max(one["peak_mb"] for one in runs)
        print(
            f"  {name:<10} {statistics.median(rates):>12,.0f} rows per CPU second "
            f"({min(rates):,.0f} to {max(rates):,.0f}), peak {peak:,.0f} MB, "
            f"sum of |theta| {runs[0]['theta']:.6f}"
        )


def write_log(file: Path, rows: int, levels: int = 0) -> None:
    """A log of uniform choices, written in row groups.

    With `levels`, arms are text, and the first three columns categories with as many levels.
    """
    import pyarrow
    from pyarrow import parquet

    random = numpy.random.default_rng(0)
    theta = random.standard_normal((ARMS, DIM)).astype(numpy.float32)
    writer = None
    for start in range(0, rows, 131_072):
        n = min(131_072, rows - start)
        contexts = random.standard_normal((n, DIM), dtype=numpy.float32)
        actions = random.integers(0, ARMS, n)
        rewards = numpy.einsum("nd,nd->n", contexts, theta[actions]).astype(float)
        columns: dict[str, Any] = {f"context_{one}": contexts[:, one] for one in range(DIM)}
        columns |= {"action": actions, "reward": rewards, "propensity": numpy.full(n, 1 / ARMS)}
        texts = ["action"]
        if levels:
            texts += [f"context_{one}" for one in range(3)]
            columns["action"] = numpy.array([f"arm_{arm}" for arm in range(ARMS)])[actions]
            named = numpy.array([f"level_{level}" for level in range(levels)])
            columns |= {name: named[random.integers(0, levels, n)] for name in texts[1:]}
        table = pyarrow.table(columns)
        writer = writer or parquet.ParquetWriter(file, table.schema, use_dictionary=texts)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def estimate(folder: Path, rows: int, repeat: int, peers: str | None) -> None:
    """All estimators, beside Open Bandit Pipeline's."""
    from rlplug.ope import Choices, judge

    random = numpy.random.default_rng(0)
    arms = 10
    probabilities = random.dirichlet(numpy.ones(arms), rows)
    actions = (probabilities.cumsum(1) > random.random((rows, 1))).argmax(1)
    every = numpy.arange(rows)
    wanted = random.integers(0, arms, rows)
    policy = numpy.eye(arms)[wanted]
    q = random.random((rows, arms))
    rewards = (random.random(rows) < q[every, actions]).astype(float)
    arrays = {
        "rewards": rewards,
        "actions": actions,
        "propensities": probabilities[every, actions],
        "policy": policy,
        "q": q,
    }
    numpy.savez(folder / "rows.npz", **arrays)
    choices = Choices(
        rewards=rewards,
        propensities=arrays["propensities"],
        probabilities=policy[every, actions],
        q_logged=q[every, actions],
        q_policy=q[every, wanted],
        mrdr_q_logged=q[every, actions],
        mrdr_q_policy=q[every, wanted],
        unseen=numpy.zeros(rows),
    )
    print(f"\nestimate: {rows:,} rows, 200 bootstrap samples")
    mine, theirs = [], []
    for _ in range(repeat):
        began = time.process_time()
        found = judge(choices, samples=200)
        mine.append(time.process_time() - began)
        python = python_of("Open Bandit Pipeline", peers)
        told = child(python, "offline_open_bandit.py", str(folder / "rows.npz"), "200")
        theirs.append(told["cpu_seconds"])
    one, other = statistics.median(mine), statistics.median(theirs)
    print(f"  rlplug                {one:.2f} CPU seconds, {len(found.estimates)} estimators")
    print(f"  Open Bandit Pipeline  {other:.2f} CPU seconds, {len(told['values'])} estimators")
    print(f"  {other / one:.1f} times as fast")


if __name__ == "__main__":
    main()
