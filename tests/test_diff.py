"""`rlplug diff`: what differs between two runs, from their folders and from MLflow alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest

import rlplug as package
from rlplug.config.sections import LearnerSection, RunConfig, RunSection
from rlplug.plugin import NoOptions
from rlplug.tracking import open_tracking
from rlplug.tracking.facts import differences
from rlplug.tracking.resolve import resolve_one

if TYPE_CHECKING:
    from tests.conftest import Outcome

Cli = Callable[..., "Outcome"]


def tracked(root: Path, seed: int, norm: float) -> Path:
    config = RunConfig(
        run=RunSection(algorithm="none", steps=40, seed=seed),
        algorithm=NoOptions(),
        learner=LearnerSection(max_grad_norm=norm),
    )
    run = open_tracking(config, environment="Hall-v0", root=root)
    run.close("FINISHED")
    return run.folder


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
    assert ["options", "run.seed", "0", "3"] in [line.split() for line in lines]
    rows = rlplug("diff", "last", "lints-LinearBandit-v0-s3", "--json").out.splitlines()
    found = {(row["part"], row["name"]): row for row in map(json.loads, rows)}
    assert found["options", "algorithm.alpha"]["value_b"] == "none"
    assert found["plugins", "linucb"]["value_b"] == "none"
    assert found["plugins", "lints"]["value_a"] == "none"


def test_a_run_that_mlflow_alone_has_differs_in_the_same_things(store_root: Path) -> None:
    first, second = tracked(store_root, 0, 0.5), tracked(store_root, 0, 2.0)
    here = [resolve_one(folder.name) for folder in (first, second)]
    from_folders = differences(*here)
    assert [one[:2] for one in from_folders] == [("options", "learner.max_grad_norm")]
    from_mlflow = differences(*(attrs.evolve(run, folder=None) for run in here))
    assert from_mlflow == from_folders
    assert differences(here[0], attrs.evolve(here[0], folder=None)) == []


def test_folders_are_compared_when_mlflow_cannot_be_asked(
    store_root: Path, rlplug: Cli, caplog: pytest.LogCaptureFixture
) -> None:
    for seed in (0, 1):
        tracked(store_root, seed, 0.5)
    (store_root / "mlflow.db").write_text("no database")
    told = rlplug("diff", "none-Hall-v0-s0", "none-Hall-v0-s1")
    assert told.code == 0
    assert told.out.splitlines()[-1].split() == ["options", "run.seed", "0", "1"]
    assert "cannot be opened" in caplog.text
    assert "is not known" in caplog.text
