"""`rlplug ope`: what tracked policies would have earned on a log, with a table and a plot."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pytest
from mlflow.tracking import MlflowClient
from pyarrow import parquet

import rlplug as library

pytestmark = pytest.mark.usefixtures("store_root")

THETA = numpy.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])


def logged(path: Path, rows: int, seed: int) -> Path:
    """Rows of three arms, logged with propensities of 0.5, 0.3 and 0.2."""
    random = numpy.random.default_rng(seed)
    contexts = random.standard_normal((rows, 2))
    propensities = numpy.array([0.5, 0.3, 0.2])
    actions = random.choice(3, rows, p=propensities)
    rewards = (contexts * THETA[actions]).sum(1) + 0.1 * random.standard_normal(rows)
    table = {
        "x0": contexts[:, 0],
        "x1": contexts[:, 1],
        "arm": actions,
        "gain": rewards,
        "p": propensities[actions],
    }
    parquet.write_table(pyarrow.table(table), path)
    return path


COLUMNS = {
    "data.context": "x*",
    "data.action": "arm",
    "data.reward": "gain",
    "data.propensity": "p",
}


@pytest.fixture
def runs(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """A run that learned from 2000 rows, and one that learned from rewards turned around.

    They are in MLflow for the test that looks there.
    """
    tracked = request.node.name.endswith("by_the_same_rows")
    options: dict[str, Any] = {**COLUMNS, "tracking.enabled": tracked}
    # These matter in training alone.
    options |= {"offline_evaluation": "all", "max_importance_weight": 5.0}
    train = logged(tmp_path / "train.parquet", 2000, 0)
    good = library.run("linucb", data=train, options=options)
    table = parquet.read_table(train).to_pandas()
    table["gain"] *= -1
    table.to_parquet(tmp_path / "reversed.parquet")
    bad = library.run("linucb", data=tmp_path / "reversed.parquet", options=options)
    return good, bad


def test_two_policies_are_judged_by_the_same_rows(
    tmp_path: Path, runs: tuple[Any, Any], rlplug: Callable[..., Any], store_root: Path
) -> None:
    good, bad = runs
    held = logged(tmp_path / "held.parquet", 4000, 1)
    # The columns are those that the run was trained with.
    done = rlplug("ope", good.run_id, "--data", str(held), "--against", bad.run_id, "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    one, other = told["runs"]
    # The best of three arms earns the largest of x, y and −x − y: a normal integral.
    random = numpy.random.default_rng(9)
    truth = (random.standard_normal((10**6, 2)) @ THETA.T).max(1).mean()
    for name in ("dr", "sndr", "switch_dr", "mrdr", "dm"):
        found = one["estimates"][name]
        assert found["low"] - 0.02 < truth < found["high"] + 0.02, name
        assert other["estimates"][name]["high"] < 0 < found["low"]
        difference = told["differences"][name]
        assert difference["value"] == pytest.approx(
            found["value"] - other["estimates"][name]["value"]
        )
        assert difference["low"] > 1
    assert one["rows"] == 4000
    assert 800 < one["matches"] < 2000
    (said,) = one["warnings"]
    assert said.startswith("Replay is biased: the log chose with probabilities of 0.2 to 0.5")
    table = (good.folder / "ope").glob("*.csv")
    assert next(table).read_text().startswith("run,step,estimator,value,low,high")
    client = MlflowClient(f"sqlite:///{store_root / 'mlflow.db'}")
    run = client.get_run(good.run_id)
    assert run.data.metrics["ope/dr"] == pytest.approx(one["estimates"]["dr"]["value"])
    names = sorted(Path(one.path).suffix for one in client.list_artifacts(good.run_id, "ope"))
    assert names == [".csv", ".json", ".png"]


def test_the_table_names_what_it_rests_on(
    tmp_path: Path, runs: tuple[Any, Any], rlplug: Callable[..., Any]
) -> None:
    good, _ = runs
    held = logged(tmp_path / "held.parquet", 500, 1)
    done = rlplug("ope", good.run_id, "--data", str(held), "--no-record", "--samples", "50")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[1].startswith("log held: 500 rows, whose own policy earned ")
    assert lines[3].split() == ["estimator", "value", "95", "%", "interval"]
    assert [line.split()[0] for line in lines[4:8]] == ["Replay", "Direct", "IPS", "SNIPS"]
    assert "rows that agree" in done.out
    again = rlplug("ope", good.run_id, "--data", str(tmp_path / "train.parquet"), "--no-record")
    assert "the policy learned from this very log: estimates are too high" in again.err


def test_what_cannot_be_judged_is_refused(
    tmp_path: Path, runs: tuple[Any, Any], rlplug: Callable[..., Any]
) -> None:
    good, _ = runs
    table = parquet.read_table(logged(tmp_path / "held.parquet", 300, 1))
    parquet.write_table(table.drop(["p"]), tmp_path / "bare.parquet")
    bare = ("ope", good.run_id, "--data", str(tmp_path / "bare.parquet"), "--no-record")
    refused = rlplug(*bare, "--set", "propensity=propensity")
    assert refused.code == 2
    assert "log 'bare' has no propensities" in refused.err
    assert rlplug(*bare, "--set", "propensity=propensity", "--assume-uniform").code == 0
    more = rlplug(
        "ope", good.run_id, "--data", str(tmp_path / "held.parquet"), "--set", "num_arms=4"
    )
    assert more.code == 2
    assert "chooses among Discrete with 3 values, log 'held' has Discrete with 4 values" in more.err
    fewer = rlplug(
        "ope", good.run_id, "--data", str(tmp_path / "held.parquet"), "--set", "context=x0"
    )
    assert fewer.code == 2
    assert f"run {good.run_id} sees Box of shape (2,)" in fewer.err
    assert "log 'held' has Box of shape (1,)" in fewer.err
    assert "try: --set context=PATTERN for the columns that it was trained on" in fewer.err
    wrong = rlplug("ope", good.run_id, "--data", str(tmp_path / "held.parquet"), "--set", "armz=3")
    assert wrong.code == 2
    assert "the options of --set" in wrong.err
    assert "see: rlplug options data" in wrong.err


def test_a_log_that_never_chose_what_the_policy_wants_is_told(
    tmp_path: Path, runs: tuple[Any, Any], rlplug: Callable[..., Any]
) -> None:
    good, _ = runs
    held = parquet.read_table(logged(tmp_path / "held.parquet", 400, 1)).to_pandas()
    held = held[held.arm == 2]
    # There, arm 2 is the worst.
    held[["x0", "x1"]] = 1.0
    held.to_parquet(tmp_path / "other.parquet")
    done = rlplug("ope", good.run_id, "--data", str(tmp_path / "other.parquet"), "--no-record")
    assert done.code == 0
    assert "never chose what this policy wants" in done.err
    replay = next(line for line in done.out.splitlines() if line.startswith("Replay"))
    assert replay.split() == ["Replay", "–", "–"]
