"""`rlplug show`: one run on one screen, as JSON, its metrics as CSV, and its report opened."""

from __future__ import annotations

import csv
import io
import json
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import pytest

import rlplug as package
from rlplug.cli import main
from rlplug.review.history import Series, sparkline

if TYPE_CHECKING:
    from tests.conftest import Outcome

Cli = Callable[..., "Outcome"]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def result(home: Path) -> package.RunResult:
    options = {"tracking.enabled": False, "evaluation.episodes": 2, "evaluation.every": 100}
    return package.run("a2c", "CartPole-v1", steps=400, seed=3, options=options)


def test_a_run_is_shown_with_what_it_is_its_results_and_what_to_do_next(
    result: package.RunResult, rlplug: Cli
) -> None:
    lines = rlplug("show", "last").out.splitlines()
    rows = {line[:13].strip(): line[13:] for line in lines if line[:1].strip()}
    assert lines[0] == f"a2c-CartPole-v1-s3  {result.run_id}"
    assert lines[1].startswith("a2c on CartPole-v1, seed 3: FINISHED at step 400 of 400, took ")
    assert result.best is not None
    assert rows["best"] == f"{result.best[1]:.4g} at step {result.best[0]} (evaluation)"
    assert rows["options"] == "evaluation.every=100  evaluation.episodes=2"
    assert rows["plugins"].startswith("a2c ")
    assert "400 (" in rows["checkpoints"]
    assert "best" in rows["checkpoints"]
    assert "last" in rows["checkpoints"]
    assert "return_mean " in rows["eval"]
    assert rows["files"] == str(result.folder)
    assert rows["train on"] == f"rlplug resume {result.run_id[:8]} --steps 800"
    assert len(lines) < 40
    to_copy = (str(result.folder), "started by")
    assert all(len(line) <= 100 or any(one in line for one in to_copy) for line in lines)


def test_on_60_columns_ids_and_paths_are_whole_and_the_report_is_opened_by_a_command(
    result: package.RunResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(result.folder.parent.parent.parent)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout", shown := Terminal())
    for command in ("show", "best"):
        with pytest.raises(SystemExit):
            main([command, "last"])
    lines = shown.getvalue().splitlines()
    folder = f"runs/work/{result.run_id}"
    assert f"files        {folder}" in lines
    assert f"report       rlplug show {result.run_id[:8]} --open" in lines
    assert f"run          {result.run_id}" in lines
    at = lines.index("checkpoint")
    assert lines[at + 1].startswith(f"  {folder}/checkpoints/step-0")
    # The command of these tests, which may be short or long.
    at = next(index for index, line in enumerate(lines) if line.startswith("started by"))
    started_by = lines[at : at + 2]
    assert all(len(line) <= 60 for line in lines if folder not in line and line not in started_by)


def test_a_run_is_shown_as_json(result: package.RunResult, rlplug: Cli) -> None:
    facts = json.loads(rlplug("show", "last", "--json").out)
    assert facts["run_id"] == result.run_id
    assert facts["metrics"]["eval/episodes"] == 2
    assert [one["step"] for one in facts["checkpoints"]] == list(result.checkpoints)
    assert facts["checkpoints"][-1]["marks"][-1] == "last"


def test_metrics_are_printed_as_csv_with_empty_cells(
    result: package.RunResult, rlplug: Cli
) -> None:
    printed = rlplug("show", "last", "--metrics", "eval/return_m??n", "--metrics", "train/loss")
    rows = list(csv.DictReader(printed.out.splitlines()))
    evaluated = {int(row["step"]): row["eval/return_mean"] for row in rows}
    assert {step for step, value in evaluated.items() if value} == {120, 200, 320, 400}
    assert any(row["train/loss"] for row in rows)
    wrong = rlplug("show", "last", "--metrics", "evl/return_mean")
    assert wrong.code == 2
    assert "Did you mean 'eval/return_mean'?" in wrong.err


def test_the_report_is_opened_or_the_picture_and_the_path_is_printed(
    result: package.RunResult, rlplug: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda uri: bool(opened.append(uri)) or True)
    report = result.folder / "report.html"
    report.write_text("<html></html>")
    assert rlplug("show", "last", "--open").out == f"opened {report}\n"
    assert opened == [report.as_uri()]
    report.unlink()
    monkeypatch.setattr(webbrowser, "open", lambda uri: False)
    picture = result.folder / "plots" / "learning_curve.png"
    assert rlplug("show", "last", "--open").out == (f"no browser was found here; open {picture}\n")
    picture.unlink()
    assert "neither report.html nor" in rlplug("show", "last", "--open").err


def series(steps: list[int], values: list[float]) -> Series:
    return Series(numpy.array(steps, float), numpy.array(values))


def test_a_curve_of_letters_rises_with_its_values_and_leaves_gaps() -> None:
    assert sparkline(series([0, 1, 2, 3], [0.0, 1.0, 2.0, 7.0]), 4) == "▁▂▃█"
    assert sparkline(series([0, 10], [1.0, 1.0]), 10) == "▁▁"
    assert sparkline(series([0, 1, 90, 100], [0.0, 1.0, 1.0, 1.0]), 4) == "▁  █"
    assert sparkline(series([0], [float("nan")]), 4) == ""
