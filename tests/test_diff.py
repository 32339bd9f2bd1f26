"""`rlplug diff`: what differs between two runs, from their folders and from MLflow alone."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import rlplug as package
from rlplug.cli import main

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


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_on_a_narrow_terminal_values_are_cut_at_their_ends_and_names_in_the_middle(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = ({"alpha": 0.123456}, {"alpha": 0.654321, "sampling.num_envs": 2})
    made = [{"tracking.enabled": False, **one} for one in values]
    ids = [package.run("linucb", steps=20, options=one).run_id for one in made]

    def shown(columns: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr("sys.stdout", terminal := Terminal())
        with pytest.raises(SystemExit) as left:
            main(["diff", *ids])
        assert left.value.code == 0
        return terminal.getvalue().splitlines()[3:]

    assert shown(62) == [
        "part     name               A                 B",
        "options  algorithm.alpha    0.123456 (--set)  0.654321 (--set)",
        "options  sampling.num_envs  1                 2 (--set)",
    ]
    assert shown(53)[1:] == [
        "options  algorithm.alpha   0.123456 (-…  0.654321 (-…",
        "options  sampling…um_envs  1             2 (--set)",
    ]
    assert shown(52)[1:] == [
        "algorithm.alpha    0.123456 (--set)  0.654321 (--se…",
        "sampling.num_envs  1                 2 (--set)",
    ]
    assert shown(44) == shown(20)
    assert shown(20)[1:] == [
        "algorithm.alpha   0.123456 (-…  0.654321 (-…",
        "sampling…um_envs  1             2 (--set)",
    ]
