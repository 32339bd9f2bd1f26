"""`rlplug runs`: what it shows of each run, which runs, in which order, on narrow terminals."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import rlplug as package
from rlplug.cli.runs.listing import columns_of
from rlplug.cli.table import Column, table_lines
from rlplug.quantities import format_age, format_number
from rlplug.review.record import RunAbout, RunRecord, select, sort
from rlplug.tracking.reading import recorded_runs

if TYPE_CHECKING:
    from tests.conftest import Outcome

Cli = Callable[..., "Outcome"]
NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


def record(name: str, best: float | None = None, **more: Any) -> RunRecord:
    about = RunAbout(
        algorithm=more.pop("algorithm", "ppo"),
        env=more.pop("env", "CartPole-v1"),
        steps=more.pop("steps", 1000),
        options=more.pop("options", {}),
    )
    given = {"run_id": f"{name:0<32}", "status": "FINISHED", "step": 1000, **more}
    if best is not None:
        given = {"best": (500, best), "latest": {"eval/return_mean": best - 1}, **given}
    return RunRecord(name=name, about=about, **given)


def table(runs: Sequence[RunRecord], width: int | None) -> list[str]:
    return list(table_lines(columns_of(runs, now=NOW), width))


def test_a_run_is_listed_with_its_best_evaluation_and_the_options_that_differ(home: Path) -> None:
    options = {"tracking.enabled": False, "evaluation.episodes": 2, "evaluation.every": 40}
    result = package.run("a2c", "CartPole-v1", steps=200, options=options)
    runs = recorded_runs(home)
    heading, row = table(runs, None)
    assert heading.split()[:4] == ["run", "name", "status", "step"]
    assert result.best is not None
    step, value = result.best
    assert f"{format_number(value)} @ {step:,}" in row
    assert "evaluation.every=40 evaluation.episodes=2" in row


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_no_line_of_the_table_is_wider_than_the_terminal(width: int) -> None:
    runs = [
        record("ppo-CartPole-v1-with-a-very-long-name-s0", 433.4, options={"a.alpha": "2" * 80}),
        record("ppo-CartPole-v1-s1", None, status="FAILED", reason="process died", step=3),
    ]
    lines = table(runs, width)
    assert max(map(len, lines)) <= width
    assert all(run.run_id[:8] in line for run, line in zip(runs, lines[1:], strict=True))
    assert "FAILED (process died)" in lines[2]


def test_a_name_is_shortened_in_its_middle_and_columns_are_left_out_by_rank() -> None:
    columns = [
        Column(heading="name", cells=["ppo-CartPole-v1-s0"], shortest=9),
        Column(heading="score", cells=["500"], rank=1, right=True),
        Column(heading="options", cells=["alpha=2"], rank=2),
    ]
    assert list(table_lines(columns, 17)) == ["name        score", "ppo-C…1-s0    500"]
    assert list(table_lines(columns, 9)) == ["name", "ppo-…1-s0"]


def test_a_run_that_has_not_finished_shows_how_far_it_is_in_percent() -> None:
    running = record("a", status="RUNNING", step=340, steps=1000)
    assert "34%  340" in table([running], None)[1]
    assert "%" not in table([record("b")], None)[1]


def test_algorithm_and_environment_are_columns_where_names_do_not_tell_them() -> None:
    named, own = record("ppo-CartPole-v1-s0"), record("monday")
    assert "env" not in table([named], None)[0].split()
    assert "env" in table([named, own], None)[0].split()


def test_runs_are_chosen_by_environment_algorithm_status_and_time() -> None:
    yesterday = record("a", started="2026-11-22T12:00:00+0000", env="Acrobot-v1")
    today = record("b", started="2026-11-23T11:00:00+0000", status="FAILED", algorithm="dqn")
    runs = [today, yesterday]
    assert select(runs, env="acrobot*") == [yesterday]
    assert select(runs, algo="DQN") == [today]
    assert select(runs, status=["failed", "killed"]) == [today]
    assert select(runs, since=NOW - timedelta(hours=2)) == [today]
    assert select(runs, since=NOW - timedelta(days=2)) == runs


def test_the_best_are_first_in_each_environment_and_what_is_no_number_last() -> None:
    runs = [
        record("none"),
        record("low", 1.0),
        record("nan", float("nan")),
        record("high", 2.0),
        record("other", 9.0, env="Acrobot-v1"),
    ]
    names = [run.name for run in sort(runs, "best")]
    assert names == ["other", "high", "low", "none", "nan"]


def test_filters_are_options_of_the_command(home: Path, rlplug: Cli) -> None:
    for env, seed in (("LinearBandit-v0", 0), ("LinearBandit-v0", 1), ("FeatureBandit-v0", 0)):
        package.run("linucb", env, steps=40, seed=seed, options={"tracking.enabled": False})
    rows = rlplug("runs", "--env", "LinearBandit-v0", "--since", "1h", "--json").out.splitlines()
    assert [json.loads(row)["seed"] for row in rows] == [1, 0]
    assert len(rlplug("runs", "--status", "finished").out.splitlines()) == 4
    limited = rlplug("runs", "--limit", "1").out.splitlines()
    assert len(limited) == 3
    assert limited[-1] == "and 2 more"
    empty = rlplug("runs", "--env", "LinearBandit-v1")
    assert "none of the 3 runs" in empty.out
    assert "did you mean 'LinearBandit-v0'?" in empty.out
    wrong = rlplug("runs", "--since", "yesterday")
    assert wrong.code == 2
    assert "try: 2d, 12h, 2026-11-01" in wrong.err


def test_an_evaluation_far_from_the_end_of_a_long_journal_is_found(home: Path) -> None:
    options = {"tracking.enabled": False, "evaluation.episodes": 1, "evaluation.every": 10**6}
    result = package.run("a2c", "CartPole-v1", steps=60, options=options)
    journal = result.folder / "metrics.jsonl"
    with journal.open("a") as file:
        for step in range(100, 400):
            values = {f"train/{number}": 0.5 for number in range(20)}
            file.write(json.dumps({"step": step, "time": 0, "metrics": values}) + "\n")
        file.write('{"step":400,"time":0,"metrics":{"eval/best_step":')
    (run,) = recorded_runs(home)
    assert run.best == result.best
    assert run.step == 399


def test_listing_runs_imports_nothing_heavy(home: Path) -> None:
    package.run("linucb", steps=20, options={"tracking.enabled": False})
    code = (
        "import sys\n"
        "from rlplug.cli import main\n"
        "try:\n    main(['runs'])\n"
        "except SystemExit as left:\n    assert left.code == 0\n"
        "print(sorted({'torch', 'mlflow', 'numpy', 'gymnasium', 'rich'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (-1183.2, "-1,183"),
        (999.96, "1,000"),
        (0.52014, "0.5201"),
        (3e-5, "3e-05"),
        (float("nan"), "nan"),
        (None, ""),
    ],
)
def test_numbers_have_four_digits_and_seldom_an_exponent(value: float | None, shown: str) -> None:
    assert format_number(value) == shown


def test_times_are_shown_as_how_long_ago_and_after_two_weeks_as_days() -> None:
    assert format_age("2026-11-23T11:59:30+0000", NOW) == "just now"
    assert format_age("2026-11-23T09:30:00+0000", NOW) == "2 h ago"
    assert format_age("2026-11-20T09:30:00+0000", NOW) == "3 d ago"
    assert format_age("2026-10-20T12:00:00+0000", NOW) == "2026-10-20"
    assert format_age("", NOW) == ""
