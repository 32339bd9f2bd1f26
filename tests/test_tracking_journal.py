"""The journal: what is reported is on disk, and can be read whatever happened to the writer."""

from __future__ import annotations

import contextlib
import math
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlplug.tracking.journal import (
    Journal,
    Recorded,
    Report,
    acknowledge,
    acknowledged,
    metric_name,
    read_journal,
    unsent,
)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path)
    yield opened
    opened.close()


def test_what_is_appended_is_read_again_from_any_end(
    journal: Journal, tmp_path: Path, synced: list[int]
) -> None:
    reports = [Report(10, 1_000, {"a/x": 1.5}), Report(20, 2_000, {"a/x": 2.5, "b": -1.0})]
    journal.append(reports)
    assert list(read_journal(journal.path)) == reports
    middle = len(reports[0].line())
    assert list(read_journal(journal.path, middle)) == [reports[1]]
    assert list(unsent(tmp_path, middle)) == [(reports[1].rows(), journal.path.stat().st_size)]
    assert synced == []
    journal.sync()
    assert synced == [journal.path.stat().st_ino]


def test_a_request_has_as_many_rows_as_fit_and_a_wide_report_alone(
    journal: Journal, tmp_path: Path
) -> None:
    widths = (600, 400, 1, 1_500, 1)
    journal.append(
        [Report(step, 0, {f"m{n}": 0.0 for n in range(n)}) for step, n in enumerate(widths)]
    )
    assert [len(rows) for rows, _ in unsent(tmp_path, 0)] == [1_000, 1, 1_500, 1]


def test_a_number_that_is_not_finite_is_nan_and_valid_json(journal: Journal) -> None:
    report = Report.of(1, 0.0, {"up": math.inf, "down": -math.inf, "gap": math.nan, "ok": 3})
    assert report.nonfinite == 3
    journal.append([report])
    assert b'"up":null,"down":null,"gap":null,"ok":3.0' in journal.path.read_bytes()
    (read,) = read_journal(journal.path)
    assert math.isnan(read.metrics["up"])


def test_half_a_line_is_left_out_and_not_acknowledged_until_it_is_whole(
    journal: Journal, tmp_path: Path
) -> None:
    whole, later = Report(1, 5, {"a": 1.0}), Report(3, 7, {"a": 3.0})
    journal.append([whole])
    path = tmp_path / "metrics.jsonl"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b'{"step":2,"time":6,"met')
    assert list(unsent(tmp_path, 0)) == [(whole.rows(), size)]
    with contextlib.closing(Journal(tmp_path)) as again:
        again.append([later])
    assert list(read_journal(path)) == [whole, later]
    assert list(unsent(tmp_path, size)) == [(later.rows(), path.stat().st_size)]
    for written, read in (("7", 7), ("10000", 0), ("12x", 0)):
        (tmp_path / "metrics.acked").write_text(written)
        assert acknowledged(tmp_path) == read
    acknowledge(tmp_path, 8)
    assert acknowledged(tmp_path) == 8


def test_a_write_that_fails_halfway_leaves_nothing_and_the_next_follows_what_was_whole(
    journal: Journal,
) -> None:
    first, lost, next_one = (Report(step, 0, {"a": float(step)}) for step in (1, 2, 3))
    journal.append([first])
    middle = journal.path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A disk with room for a part of the line.
    resource.setrlimit(resource.RLIMIT_FSIZE, (middle + 9, hard))
    try:
        with pytest.raises(OSError, match="No space left"):
            journal.append([lost])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert journal.path.stat().st_size == middle
    journal.append([next_one])
    assert list(read_journal(journal.path)) == [first, next_one]
    journal.path.unlink()
    with pytest.raises(FileNotFoundError, match="it was deleted"):
        journal.append([lost])


def test_what_was_recorded_is_known_when_a_run_goes_on(journal: Journal) -> None:
    journal.append(
        [
            Report(10, 0, {"a": 1.0, "b": 1.0}),
            Report(30, 0, {"a": 1.0, "train/nonfinite": 2.0}),
            Report(20, 0, {"a": 1.0, "train/nonfinite": 5.0}),
        ]
    )
    found = Recorded.read(journal.path)
    assert found.marks == {"a": 30, "b": 10, "train/nonfinite": 30}
    assert (found.nonfinite, found.first_nonfinite_step) == (5, 30)


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("rollout/reward_mean", "rollout/reward_mean"),
        ("a=b[0]", "a_b_0_"),
        ("/lead//double/../up/./x", "lead/double/up/x"),
        ("", "unnamed"),
        ("x" * 300, "x" * 250),
    ],
)
def test_metric_names_become_names_that_mlflow_takes(given: str, stored: str) -> None:
    assert metric_name(given) == stored
