"""One run whose files are damaged keeps nobody from seeing the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Outcome

Command = Callable[..., "Outcome"]

pytestmark = pytest.mark.usefixtures("installed")


@pytest.fixture
def two_runs(rlplug: Command, home: Path) -> tuple[Path, Path]:
    options = ("--set", "tracking.enabled=false", "--set", "evaluation.episodes=0", "--quiet")
    for seed in ("0", "1"):
        assert rlplug("run", "--algo", "means", "--steps", "40", "--seed", seed, *options).code == 0
    first, second = (home / "work").glob("*/")
    return first, second


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"step": "x", "time": 0, "metrics": {"a": 1}}',
        '{"step": 1e999, "time": 0, "metrics": {"a": 1}}',
        '{"step": 1, "time": 0, "metrics": {"a": %s}}' % ("9" * 400),
        '{"step": 1, "time": 0, "metrics": [1]}',
        "\x00\xff",
    ],
)
def test_a_bad_line_in_one_journal_is_passed_over(
    rlplug: Command, two_runs: tuple[Path, Path], line: str
) -> None:
    with (two_runs[0] / "metrics.jsonl").open("a") as journal:
        journal.write(f"{line}\n")
    done = rlplug("runs", "--json")
    assert (done.code, done.err) == (0, "")
    rows = [json.loads(row) for row in done.out.splitlines()]
    assert {row["run_id"]: row["step"] for row in rows} == {one.name: 40 for one in two_runs}


@pytest.mark.parametrize("file", ["run.json", "metrics.jsonl"])
def test_a_run_that_cannot_be_read_is_one_line_that_says_so(
    rlplug: Command, two_runs: tuple[Path, Path], file: str
) -> None:
    damaged, whole = two_runs
    if file == "run.json":
        (damaged / file).write_text("[" * 100_000)
    else:
        (damaged / file).unlink()
        (damaged / file).mkdir()
    done = rlplug("runs")
    assert (done.code, done.err) == (0, "")
    rows = {row[:8]: row for row in done.out.splitlines()}
    assert "unreadable" in rows[damaged.name[:8]]
    assert file in rows[damaged.name[:8]]
    assert "FINISHED" in rows[whole.name[:8]]
