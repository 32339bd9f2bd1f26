"""`rlplug diff`: what differs between two runs, from their folders and from MLflow alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import rlplug as package

if TYPE_CHECKING:
    from tests.conftest import Outcome

Cli = Callable[..., "Outcome"]


def test_options_and_plugins_that_differ_are_named_with_both_values(
    store_root: Path, rlplug: Cli
) -> None:
    off = {"tracking.enabled": False}
    package.run("linucb", steps=20, options={**off, "alpha": 0.5})
    package.run("lints", steps=20, seed=3, options=off)
    package.run("linucb", steps=20, options={**off, "alpha": 0.5, "tracking.run_name": "again"})
    told = rlplug("diff", "linucb-LinearBandit-v0-s0", "last")
    assert told.out.splitlines()[-1] == "nothing that is recorded differs, but their results may."
    lines = rlplug("diff", "last", "lints-LinearBandit-v0-s3").out.splitlines()
    assert lines[0].endswith("  again")
    assert lines[3].split() == ["part", "name", "A", "B"]
    assert ["options", "run.seed", "0"] in [line.split()[:3] for line in lines]
    rows = rlplug("diff", "last", "lints-LinearBandit-v0-s3", "--json").out.splitlines()
    found = {(row["part"], row["name"]): row for row in map(json.loads, rows)}
    assert found["options", "algorithm.alpha"]["value_b"] == "none"
    assert found["plugins", "linucb"]["value_b"] == "none"
    assert found["plugins", "lints"]["value_a"] == "none"


def test_runs_that_mlflow_alone_has_differ_in_the_same_things(
    store_root: Path, rlplug: Cli
) -> None:
    ids = []
    for alpha in (0.5, 2.0):
        ids.append(package.run("linucb", steps=20, options={"alpha": alpha}).run_id)
    here = rlplug("diff", *ids, "--json").out
    assert [json.loads(row)["name"] for row in here.splitlines()] == ["algorithm.alpha"]
    shutil.move(store_root / "work", store_root / "elsewhere")
    there = rlplug("diff", *ids, "--json")
    assert (there.out, there.err) == (here, "")


def test_a_run_without_a_record_is_refused(store_root: Path, rlplug: Cli) -> None:
    options = {"tracking.enabled": False}
    result = package.run("linucb", steps=20, options=options)
    (result.folder / "provenance.json").unlink()
    told = rlplug("diff", "last", "last")
    assert told.code == 2
    assert "has no record of what it was made from" in told.err
