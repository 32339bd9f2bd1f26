"""Learning and judging from logs: speed, memory, agreement and coverage.

python benchmarks/bandits.py --setup      the peers' environments
python benchmarks/offline.py              everything; --only learn|estimate|agree|cover, --quick

learn:     LinUCB (disjoint, 20 arms, contexts of 50) from a Parquet file, beside MABWiser.
estimate:  all estimators with 200 bootstrap samples on 1,000,000 rows, beside Open Bandit Pipeline.
agree:     the estimators on the data that Open Bandit Pipeline ships.
cover:     how often the true value lies in the 95 % interval, of 300 logs.
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
    parser.add_argument("--only", choices=("learn", "estimate", "agree", "cover"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--peers", help="an interpreter that has obp and mabwiser")
    said = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if said.only in (None, "learn"):
            learn(Path(folder), 500_000 if said.quick else 5_000_000, said.repeat, said.peers)
        if said.only in (None, "estimate"):
            estimate(Path(folder), 100_000 if said.quick else 1_000_000, said.repeat, said.peers)
        if said.only in (None, "agree"):
            agree(Path(folder), said.peers)
        if said.only in (None, "cover"):
            cover(50 if said.quick else 300)


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


def write_log(file: Path, rows: int) -> None:
    """A log of uniform choices, written in row groups."""
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
        columns = {f"context_{one}": contexts[:, one] for one in range(DIM)}
        table = pyarrow.table(
            {**columns, "action": actions, "reward": rewards, "propensity": numpy.full(n, 1 / ARMS)}
        )
        writer = writer or parquet.ParquetWriter(file, table.schema, use_dictionary=["action"])
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
        told = child(python, "offline_open_bandit.py", "speed", str(folder / "rows.npz"), "200")
        theirs.append(told["cpu_seconds"])
    one, other = statistics.median(mine), statistics.median(theirs)
    print(f"  rlplug                {one:.2f} CPU seconds, {len(found.estimates)} estimators")
    print(f"  Open Bandit Pipeline  {other:.2f} CPU seconds, {len(told['values'])} estimators")
    print(f"  {other / one:.1f} times as fast")


def agree(folder: Path, peers: str | None) -> None:
    """The estimators on the data that Open Bandit Pipeline ships, and the reader of its layout."""
    from rlplug import ope
    from rlplug.config.data_section import DataSection
    from rlplug.logs import Log

    python = python_of("Open Bandit Pipeline", peers)
    data = child(python, "offline_open_bandit.py", "agreement", str(folder))["data"]
    print("\nagree: largest difference from Open Bandit Pipeline on its data set")
    for behavior in ("random", "bts"):
        given = dict(numpy.load(folder / f"{behavior}.npz"))
        theirs = json.loads((folder / f"{behavior}.json").read_text())
        every, actions, r = numpy.arange(len(given["rewards"])), given["actions"], given["rewards"]
        policy, q, robust = given["policy"], given["q"], given["mrdr_q"]
        w = ope.importance_weights(policy[every, actions], given["propensities"])
        model = q[every, actions], (policy * q).sum(1)
        mine = {
            "replay": ope.replay(r, policy[every, actions] == 1),
            "dm": ope.dm(model[1]),
            "ips": ope.ips(r, w),
            "snips": ope.snips(r, w),
            "dr": ope.dr(r, w, *model),
            "sndr": ope.sndr(r, w, *model),
            "switch_dr": ope.switch_dr(r, w, *model, threshold=10.0),
            "mrdr": ope.dr(r, w, robust[every, actions], (policy * robust).sum(1)),
        }
        worst = max(abs(mine[name].value - theirs[name]) for name in theirs)
        log = Log.open(DataSection(files=(f"{data}/{behavior}/all",), format="obd"))
        rows = log.whole()
        same = all(
            numpy.array_equal(numpy.sort(rows[here]), numpy.sort(given[there]))
            for here, there in (
                ("action", "actions"),
                ("reward", "rewards"),
                ("propensity", "propensities"),
                ("position", "position"),
            )
        ) and numpy.array_equal(rows["context"].sum(0), given["context"].sum(0))
        print(f"  {behavior:<7} {worst:.1e} over {', '.join(theirs)}; same rows read: {same}")


def cover(repetitions: int) -> None:
    """How often the true value lies in the interval."""
    from rlplug.ope import Choices, RewardModel, intervals, judge, mrdr_weights, replay

    names = ("replay", "dm", "ips", "snips", "dr", "sndr", "switch_dr", "mrdr", "snmrdr")
    held = dict.fromkeys(names, 0)
    n, dim, arms = 4000, 5, 4
    theta = numpy.random.default_rng(1).standard_normal((arms, dim))
    far = numpy.random.default_rng(2).standard_normal((2_000_000, dim))
    best = theta + 0.5 * numpy.random.default_rng(3).standard_normal(theta.shape)
    wanted = (far @ best.T).argmax(1)
    truth = float((far * theta[wanted]).sum(1).mean())
    for repetition in range(repetitions):
        random = numpy.random.default_rng(100 + repetition)
        x = random.standard_normal((n, dim))
        scores = numpy.exp(0.5 * x @ theta.T)
        probabilities = scores / scores.sum(1, keepdims=True)
        logged = (probabilities.cumsum(1) > random.random((n, 1))).argmax(1)
        every = numpy.arange(n)
        rewards = (x * theta[logged]).sum(1) + random.standard_normal(n)
        chosen, folds = (x @ best.T).argmax(1), every % 2
        p, matched = probabilities[every, logged], (logged == chosen).astype(float)
        plain, robust = (RewardModel(arms, featured=False) for _ in range(2))
        columns = {"context": x}
        plain.add(columns, logged, rewards, folds)
        shares = numpy.eye(arms)[chosen]
        plain.add_policy(columns, shares, folds)
        robust.add(columns, logged, rewards, folds, mrdr_weights(matched, p))
        choices = Choices(
            rewards=rewards,
            propensities=p,
            probabilities=matched,
            q_logged=plain.predict(columns, logged, folds),
            q_policy=plain.predict_policy(columns, shares, folds),
            mrdr_q_logged=robust.predict(columns, logged, folds),
            mrdr_q_policy=robust.predict_policy(columns, shares, folds),
            unseen=numpy.zeros(n),
            influence=plain.influence(columns, logged, rewards, folds),
        )
        found = judge(choices, samples=200, seed=repetition).estimates
        # Replay is for logs of a uniformly random policy.
        logged = random.integers(arms, size=n)
        rewards = (x * theta[logged]).sum(1) + random.standard_normal(n)
        uniform = {"replay": replay(rewards, logged == chosen)}
        found = {**found, **intervals(uniform, samples=200, seed=repetition)}
        for name in names:
            held[name] += found[name].low <= truth <= found[name].high
    print(f"\ncover: true value {truth:.4f} in the 95 % interval, of {repetitions} logs")
    for name in names:
        note = "   (of logs whose actions are uniformly random)" if name == "replay" else ""
        print(f"  {name:<10} {held[name] / repetitions:.1%}{note}")


if __name__ == "__main__":
    main()
