"""`rlplug compare`: options that differ, scores with intervals, a plot, what cannot be compared."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy
import pytest

import rlplug as package
from rlplug.review.comparison import Compared, differing, measure_of, paired
from rlplug.review.record import RunAbout, RunRecord
from rlplug.tracking.location import runs_folder
from rlplug.tracking.reading import recorded_runs

if TYPE_CHECKING:
    from tests.conftest import Outcome

Cli = Callable[..., "Outcome"]


def record(run_id: str, best: float | None, last: float, **about: Any) -> RunRecord:
    evaluated = {} if best is None else {"eval/best_return_mean": best, "eval/best_step": 10.0}
    return RunRecord(
        run_id=run_id,
        name=f"run {run_id}",
        about=RunAbout(**{"env": "Hall-v0", "algorithm": "walk", **about}),
        status="FINISHED",
        latest={"rollout/return_mean": last, **evaluated},
    )


def bandits(alpha: float, seeds: range, env: str = "LinearBandit-v0") -> str:
    options = {"tracking.enabled": False, "alpha": alpha}
    for seed in seeds:
        package.run("linucb", env, steps=300, seed=seed, options=options)
    return recorded_runs(runs_folder())[0].about.group


def test_groups_are_compared_by_their_options_scores_and_intervals(home: Path, rlplug: Cli) -> None:
    first, second = bandits(0.1, range(3)), bandits(3.0, range(3))
    told = rlplug("compare", first, second)
    assert (told.code, told.err) == (0, "")
    lines = told.out.splitlines()
    assert lines[0] == "by rollout/reward_mean"
    assert lines[1].split()[:5] == ["run", "runs", "mean", "IQM", "[95%]"]
    assert lines[2].split()[:3] == ["A", first, "3"]
    assert "probability that a run of B is better than one of A: " in told.out
    assert ["algorithm.alpha", "0.1", "3.0"] in [line.split() for line in lines]
    plot = home / "compare.png"
    assert f"curves: {plot}" in lines
    assert lines[-1] in (f"next: rlplug show {first}", f"next: rlplug show {second}")
    assert plot.read_bytes().startswith(b"\x89PNG")
    plot.unlink()
    facts = json.loads(rlplug("compare", first, second, "--json").out)
    scores = facts["compared"][0]["scores"]
    assert facts["compared"][0]["mean"]["estimate"] == pytest.approx(numpy.mean(scores))
    assert facts["options"] == {"algorithm.alpha": ["0.1", "3.0"]}
    assert not plot.exists()
    told = rlplug("compare", first, second, "--json", "--plot", str(plot))
    assert told.err == f"curves: {plot}\n"


def test_one_group_is_compared_run_by_run_and_one_run_is_refused(home: Path, rlplug: Cli) -> None:
    group = bandits(1.0, range(2))
    lines = rlplug("compare", group, "--plot", str(home / "a.png")).out.splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["A", "B", "C"]
    assert lines[4].split()[1:3] == [group, "2"]
    for alone in (rlplug("compare", "last"), rlplug("compare", "last", "last")):
        assert alone.code == 2
        assert "'last' is one run" in alone.err


def test_results_in_different_environments_have_a_table_each_and_no_plot(
    home: Path, rlplug: Cli
) -> None:
    first, second = bandits(1.0, range(2)), bandits(0.1, range(2))
    other = bandits(1.0, range(2), "FeatureBandit-v0")
    told = rlplug("compare", first, other, second)
    assert (told.code, told.err) == (0, "")
    tables = [table.splitlines() for table in told.out.split("\n\n")]
    assert [table[0] for table in tables[1:3]] == ["LinearBandit-v0", "FeatureBandit-v0"]
    assert [row.split()[:2] for row in tables[1][2:4]] == [["A", first], ["C", second]]
    assert "probability that a run of C is better than one of A: " in tables[1][4]
    assert [row.split()[:2] for row in tables[2][2:]] == [["B", other]]
    assert tables[3][0].split() == ["option", "A", "B", "C"]
    assert not (home / "compare.png").exists()
    rows = json.loads(rlplug("compare", first, other, second, "--json").out)["compared"]
    assert [row["better_than_first"] is None for row in rows] == [True, True, False]
    refused = rlplug("compare", first, other, "--plot", str(home / "a.png"))
    assert (refused.code, refused.out) == (2, "")
    assert "--plot" in refused.err


def test_all_that_differs_between_two_runs_is_named_also_where_only_mlflow_has_them(
    store_root: Path, rlplug: Cli
) -> None:
    first = package.run("linucb", steps=20, options={"alpha": 0.5}).run_id
    second = package.run("lints", steps=20, seed=3, options={"tracking.run_name": "other"}).run_id
    told = rlplug("compare", first, second, "--full")
    lines = [line.split() for line in told.out.splitlines()]
    assert ["options", "run.seed", "0", "3"] in [line[:4] for line in lines]
    here = rlplug("compare", first, second, "--full", "--json").out
    found = {(row["part"], row["name"]): row for row in json.loads(here)}
    assert found["options", "algorithm.alpha"]["value_b"] == "none"
    assert found["plugins", "linucb"]["value_b"] == "none"
    assert "nothing that is recorded differs" in rlplug("compare", first, first, "--full").out
    shutil.move(store_root / "work", store_root / "elsewhere")
    assert rlplug("compare", first, second, "--full", "--json").out == here
    shutil.move(store_root / "elsewhere", store_root / "work")
    (store_root / "work" / first / "provenance.json").unlink()
    for runs in ((first, second), (first,)):
        assert rlplug("compare", *runs, "--full").code == 2


def test_groups_are_compared_seed_by_seed_where_both_have_finished() -> None:
    whole = [record(f"a{seed}", best, 1.0, seed=seed) for seed, best in enumerate((3, 110, 5))]
    without = [record(f"b{seed}", best, 1.0, seed=seed) for seed, best in enumerate((1, 100))]
    without.append(attrs.evolve(record("c", 0.0, 0.0, seed=2), status="KILLED"))
    of = paired(Compared(label="a", runs=whole), Compared(label="b", runs=without))
    found = of["eval/best_return_mean"]
    assert (found.seeds, found.differences) == ([0, 1], [2.0, 10.0])
    # Seeds differ by a hundred, pairs by eight.
    assert (found.mean.estimate, found.mean.low, found.mean.high) == (6.0, 2.0, 10.0)


def test_runs_are_compared_by_what_all_of_them_have() -> None:
    evaluated, other = record("a", 9.0, 1.0), record("b", None, 2.0)
    assert measure_of([evaluated]) == "eval/best_return_mean"
    assert measure_of([evaluated, other]) == "rollout/return_mean"
    assert measure_of([evaluated], "last") == "rollout/return_mean"
    one, two = (Compared(label="", runs=runs) for runs in ([evaluated], [evaluated, other]))
    assert two.scores("rollout/return_mean") == [1.0, 2.0]
    assert one.improvement(two, "rollout/return_mean") is None
    improvement = two.improvement(two, "rollout/return_mean")
    assert improvement is not None
    assert improvement.estimate == 0.5
    assert (one.mean("none"), one.iqm("none")) == (None, None)


def test_options_that_are_the_same_in_all_are_left_out() -> None:
    first = Compared(label="a", runs=[record("a", 1.0, 0.0, options={"alpha": "1", "beta": "2"})])
    second = Compared(label="b", runs=[record("b", 1.0, 0.0, options={"alpha": "1"}, seed=4)])
    assert differing([first, second]) == {"seed": ["0", "4"], "beta": ["2", "(default)"]}
