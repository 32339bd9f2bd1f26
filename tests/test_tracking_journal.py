"""The journal: what is reported is on disk, and can be read whatever happened to the writer."""

import contextlib
import math
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlplug.tracking.journal import Journal, Report, metric_name, read_journal

Open = Callable[[], Journal]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Open the journal of one folder, as often as asked, and close them all."""
    with contextlib.ExitStack() as stack:

        def open_journal() -> Journal:
            journal = Journal(tmp_path)
            stack.callback(close, journal)
            return journal

        def close(journal: Journal) -> None:
            # A device cannot be synced, and says so.
            with contextlib.suppress(OSError):
                journal.close()

        yield open_journal


def test_what_is_appended_is_read_again(opened: Open) -> None:
    journal = opened()
    reports = [Report(10, 1_000, {"a/x": 1.5}), Report(20, 2_000, {"a/x": 2.5, "b": -1.0})]
    journal.append(reports)
    assert list(read_journal(journal.path)) == reports


def test_ends_are_byte_offsets_to_read_on_from(opened: Open) -> None:
    journal = opened()
    first, second = Report(1, 0, {"a": 1.0}), Report(2, 0, {"a": 2.0})
    middle, end = journal.append([first, second])
    assert list(read_journal(journal.path, middle)) == [second]
    assert end == journal.path.stat().st_size


def test_a_number_that_is_not_finite_is_nan_and_valid_json(opened: Open) -> None:
    journal = opened()
    report = Report.of(1, 0.0, {"up": math.inf, "down": -math.inf, "gap": math.nan, "ok": 3})
    assert report.nonfinite == 3
    journal.append([report])
    assert b'"up":null,"down":null,"gap":null,"ok":3.0' in journal.path.read_bytes()
    (read,) = read_journal(journal.path)
    assert math.isnan(read.metrics["up"])
    assert read.metrics["ok"] == 3.0


def test_half_a_line_of_a_killed_process_is_left_out_and_spoils_nothing(
    tmp_path: Path, opened: Open
) -> None:
    whole = Report(1, 5, {"a": 1.0})
    opened().append([whole])
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + b'{"step":2,"time":6,"met')
    later = Report(3, 7, {"a": 3.0})
    opened().append([later])
    assert list(read_journal(path)) == [whole, later]


def test_the_acknowledged_offset_survives(opened: Open) -> None:
    journal = opened()
    assert journal.acknowledged == 0
    journal.acknowledge(42)
    assert opened().acknowledged == 42


def test_a_full_disk_raises_and_leaves_nothing_behind(tmp_path: Path, opened: Open) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    journal = opened()
    with pytest.raises(OSError, match="No space left"):
        journal.append([Report(1, 0, {"a": 1.0})])


def test_a_write_that_fails_halfway_leaves_nothing_and_the_next_follows_what_was_whole(
    opened: Open,
) -> None:
    first, lost, next_one = (Report(step, 0, {"a": float(step)}) for step in (1, 2, 3))
    opened().append([first])
    journal = opened()
    (middle,) = journal.append([first])
    assert middle == journal.path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A disk with room for a part of the line.
    resource.setrlimit(resource.RLIMIT_FSIZE, (middle + 9, hard))
    try:
        with pytest.raises(OSError, match="No space left"):
            journal.append([lost])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert journal.path.stat().st_size == middle
    (end,) = journal.append([next_one])
    assert list(read_journal(journal.path)) == [first, first, next_one]
    assert list(read_journal(journal.path, middle)) == [next_one]
    assert end == journal.path.stat().st_size


def test_points_are_missing_that_were_written_and_are_gone(tmp_path: Path) -> None:
    with contextlib.closing(Journal(tmp_path)) as journal:
        middle, _ = journal.append([Report(1, 0, {"a": 1.0, "b": 2.0}), Report(2, 0, {"a": 3.0})])
        assert (journal.points_missing(), journal.points_unsent()) == (0, 3)
        journal.acknowledge(middle)
        assert (journal.points_missing(), journal.points_unsent()) == (0, 1)
        os.truncate(journal.path, middle)
        assert journal.points_missing() == 1
    # Those of an earlier process are counted, too.
    with contextlib.closing(Journal(tmp_path)) as journal:
        assert journal.points_missing() == 0
        journal.append([Report(3, 0, {"a": 4.0})])
        os.truncate(journal.path, 0)
        assert journal.points_missing() == 3


def test_a_journal_is_on_the_disk_when_it_is_closed(tmp_path: Path, synced: list[int]) -> None:
    journal = Journal(tmp_path)
    journal.append([Report(1, 0, {"a": 1.0})])
    assert synced == []
    journal.close()
    assert synced == [journal.path.stat().st_ino]


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
