"""The way of a report: into the journal, into requests, and out of the list once MLflow has it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rlplug.tracking.journal import Journal, Recorded, Report, Row, read_journal, recorded_in
from rlplug.tracking.queued import QueuedReports
from rlplug.tracking.status import (
    HEARTBEAT,
    Pending,
    RunStatus,
    add_tags,
    beat,
    end_heartbeat,
    forget_tags,
    kept_tags,
    milliseconds,
    now,
)
from rlplug.tracking.writer import Writer


class Rows:
    """A store that keeps what it is sent, by request."""

    def __init__(self, most: int = 10**9, sent: Callable[[], None] = lambda: None) -> None:
        self.requests: list[list[Row]] = []
        self.most = most
        self.sent = sent

    def log_rows(self, rows: Sequence[Row]) -> None:
        self.sent()
        self.requests.append(list(rows))

    def is_active(self) -> bool:
        return True

    def beat(self) -> None:
        """Nothing needs to know it here."""


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path)
    yield journal
    journal.close()


def queue(
    journal: Journal, recorded: Recorded | None = None, *, uploads: bool = True
) -> tuple[QueuedReports, list[str]]:
    """Queued reports, and what they warn of."""
    said: list[str] = []
    return QueuedReports(journal, recorded or Recorded(), said.append, uploads=uploads), said


def test_a_report_has_the_time_in_milliseconds_and_whole_steps() -> None:
    report = Report.of(7.0, 12.3456, {"a": "2", "b": "no number", "c": None, "d": 10**400})  # type: ignore[arg-type]
    assert (report.step, report.time, report.metrics["a"]) == (7, 12_345, 2.0)
    assert report.nonfinite == 3
    assert report.rows()[0] == ("a", 2.0, 12_345, 7)


def test_what_was_recorded_is_known_when_a_run_goes_on(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    ends = journal.append(
        [
            Report(10, 0, {"a": 1.0, "b": 1.0}),
            Report(30, 0, {"a": 1.0, "train/nonfinite": 2.0}),
            Report(20, 0, {"a": 1.0, "train/nonfinite": 5.0}),
        ]
    )
    found = recorded_in(journal.path, ends[0], {"b": 99, "c": 4})
    assert found.marks == {"a": 30, "b": 99, "c": 4, "train/nonfinite": 30}
    assert (found.nonfinite, found.first_nonfinite_step) == (5, 30)
    assert [(report.step, end) for report, end in found.unsent] == [(30, ends[1]), (20, ends[2])]
    assert recorded_in(journal.path, ends[2], {}).unsent == ()
    # Cut off: what was sent before cannot be told from what was not.
    assert len(recorded_in(journal.path, ends[2] + 1, {}).unsent) == 3
    assert recorded_in(journal.path, ends[2] - 1, {}).unsent[0][0].step == 20
    journal.close()


def test_opening_a_whole_journal_again_adds_no_byte_to_it(tmp_path: Path) -> None:
    first = Journal(tmp_path)
    (end,) = first.append([Report(1, 0, {"a": 1.0})])
    first.close()
    first.close()
    again = Journal(tmp_path)
    assert again.path.stat().st_size == end
    assert again.append([]) == []
    assert again.append([Report(2, 0, {"a": 1.0})])[0] == again.path.stat().st_size
    again.close()


def test_points_that_are_gone_from_a_journal_are_counted(journal: Journal) -> None:
    first, _ = journal.append([Report(1, 0, {"a": 1.0, "b": 2.0}), Report(2, 0, {"a": 1.0})])
    assert (journal.points_missing(), journal.points_unsent()) == (0, 3)
    journal.acknowledge(first)
    assert (journal.points_unsent(), journal.is_in_place) == (1, True)
    assert journal.read_lines() == set(journal.path.read_bytes().splitlines(keepends=True))
    content = journal.path.read_bytes()
    journal.path.write_bytes(content[:first])
    assert journal.points_missing() == 1
    journal.path.unlink()
    assert (journal.points_missing(), journal.points_unsent()) == (3, 0)
    assert (journal.read_lines(), journal.is_in_place) == (set(), False)
    journal.path.write_bytes(content * 2)
    assert journal.points_missing() == 0
    assert not journal.is_in_place
    with pytest.raises(FileNotFoundError, match="another file is in its place"):
        journal.append([Report(3, 0, {"a": 1.0})])


def test_an_acknowledged_offset_that_is_damaged_is_zero(journal: Journal, tmp_path: Path) -> None:
    (tmp_path / "metrics.acked").write_text("12x")
    assert journal.acknowledged == 0
    journal.acknowledge(7)
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["metrics.acked", "metrics.jsonl"]


def test_a_report_of_more_than_a_request_holds_is_sent_alone_and_whole(journal: Journal) -> None:
    reports, _ = queue(journal)
    wide = {f"m{number}": 0.0 for number in range(1_500)}
    for step, metrics in ((1, {"a": 1.0}), (2, wide), (3, {"a": 1.0})):
        reports.put(step, metrics)
    reports.take()
    batches = []
    while batch := reports.next_batch():
        batches.append([one.report.step for one in batch])
        reports.acknowledge(batch)
    assert batches == [[1], [2], [3]]


def test_a_request_is_filled_up_to_a_thousand_rows(journal: Journal) -> None:
    reports, _ = queue(journal)
    for step, rows in enumerate((600, 400, 1)):
        reports.put(step, {f"m{number}": 0.0 for number in range(rows)})
    reports.take()
    assert [one.report.step for one in reports.next_batch()] == [0, 1]


def test_what_is_acknowledged_is_the_last_of_a_batch(journal: Journal) -> None:
    reports, _ = queue(journal)
    for step in range(4):
        reports.put(step, {"a": 1.0, "b": 1.0})
    reports.take()
    assert reports.points_unsent == 8
    reports.acknowledge(reports.next_batch()[:3])
    assert reports.points_unsent == 2
    lines = journal.path.read_bytes().splitlines(keepends=True)
    assert journal.acknowledged == sum(map(len, lines[:3]))
    assert reports.points_lost() == 0


def test_what_is_not_uploaded_is_not_kept_in_memory_and_lost_only_with_the_file(
    journal: Journal,
) -> None:
    reports, _ = queue(journal, uploads=False)
    reports.put(1, {"a": 1.0, "b": 1.0})
    reports.take()
    assert (reports.points_unsent, reports.points_lost()) == (0, 0)
    journal.path.unlink()
    reports.put(2, {"a": 1.0})
    reports.take()
    assert reports.points_lost() == 3


def test_points_that_are_lost_are_those_that_neither_mlflow_nor_the_file_has(
    journal: Journal,
) -> None:
    reports, said = queue(journal)
    reports.put(1, {"a": 1.0})
    reports.put(2, {"a": 1.0, "b": 1.0})
    reports.take()
    reports.acknowledge(reports.next_batch()[:1])
    journal.path.unlink()
    assert reports.points_lost() == 2
    reports.put(3, {"a": 1.0, "b": 1.0, "c": 1.0})
    reports.take()
    reports.take()
    assert reports.points_lost() == 5
    assert reports.disk_failed
    assert len(said) == 1
    assert "cannot be written" in said[0]


def test_a_journal_that_can_be_written_again_gets_what_was_kept_and_that_is_said(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path)
    reports, said = queue(journal)
    aside = tmp_path / "aside"
    journal.path.rename(aside)
    reports.put(1, {"a": 1.0})
    reports.take()
    aside.rename(journal.path)
    reports.put(2, {"a": 1.0})
    reports.take()
    assert [one.step for one in read_journal(journal.path)] == [1, 2]
    assert not reports.disk_failed
    assert len(said) == 2
    assert said[1] == f"the journal {journal.path} is writable again; nothing is lost."
    journal.close()


def test_what_was_recorded_before_is_left_out_by_name_and_step(journal: Journal) -> None:
    recorded = Recorded(marks={"a": 10, "train/nonfinite": 10}, nonfinite=3, first_nonfinite_step=5)
    reports, _ = queue(journal, recorded)
    reports.put(10, {"a": 1.0, "b": math.nan})
    reports.put(10, {"a": 1.0})
    reports.put(11, {"a": 1.0})
    reports.take()
    first, second = read_journal(journal.path)
    assert (first.step, list(first.metrics)) == (10, ["b"])
    assert second.metrics == {"a": 1.0, "train/nonfinite": 4.0}
    assert reports.first_nonfinite_step == 5


def test_what_was_not_sent_before_is_sent_first(journal: Journal) -> None:
    (end,) = journal.append([Report(1, 0, {"a": 1.0})])
    recorded = Recorded(unsent=((Report(1, 0, {"a": 1.0}), end),))
    reports, _ = queue(journal, recorded)
    reports.put(2, {"a": 2.0})
    reports.take()
    assert [one.report.step for one in reports.next_batch()] == [1, 2]
    without, _ = queue(journal, recorded, uploads=False)
    assert without.points_unsent == 0


def test_the_journal_is_on_the_disk_before_mlflow_is_sent_what_is_in_it(
    journal: Journal, synced: list[int]
) -> None:
    before: list[int] = []
    store = Rows(sent=lambda: before.append(len(synced)))
    writer = Writer(journal, store, print)
    writer.start()
    writer.put(1, {"a": 1.0})
    writer.close(lambda: None, seconds=10)
    assert before[0] == 1
    assert synced[0] == journal.path.stat().st_ino


def test_what_is_written_now_is_on_the_disk(journal: Journal, synced: list[int]) -> None:
    writer = Writer(journal, None, print)
    writer.put(1, {"a": 1.0})
    writer.write_now()
    assert [one.step for one in read_journal(journal.path)] == [1]
    assert synced == [journal.path.stat().st_ino]


def test_files_that_are_to_be_uploaded_are_counted_apart_from_tags(
    journal: Journal, tmp_path: Path
) -> None:
    writer = Writer(journal, Rows(), print)
    there, gone = tmp_path / "there", tmp_path / "gone"
    there.touch()
    writer.do(lambda: None)
    writer.do(lambda: None, files=[there, there, gone])
    assert writer.pending == Pending(points=0, artifacts=2, tags=1)


def test_an_abandoned_writer_does_one_job_more_and_uploads_nothing(
    journal: Journal, tmp_path: Path
) -> None:
    store, done = Rows(), list[str]()
    writer = Writer(journal, store, print)
    writer.do(lambda: done.append("queued"))
    writer.put(1, {"a": 1.0})
    writer.abandon(lambda: done.append("last"), seconds=5.0)
    assert done == ["last"]
    assert store.requests == []
    assert [one.step for one in read_journal(journal.path)] == [1]
    assert writer.pending.tags == 1
    writer.start()
    while not writer.has_ended:
        time.sleep(0.01)
    assert done == ["last"]
    assert store.requests == []


@pytest.mark.parametrize(
    ("pending", "shown"),
    [
        (Pending(points=1), "1 metric value"),
        (Pending(points=1_200, artifacts=1), "1,200 metric values and 1 file"),
        (Pending(artifacts=2, tags=3), "2 files"),
        (Pending(tags=1), "the final status and tags"),
    ],
)
def test_what_is_pending_is_told_in_words(pending: Pending, shown: str) -> None:
    assert pending
    assert pending.shown == shown
    assert not Pending()


def test_a_status_is_read_as_it_was_written_and_only_whole(tmp_path: Path) -> None:
    status = RunStatus(
        status="KILLED",
        step=7,
        stop_reason="interrupted",
        started="s",
        ended="e",
        attempt=3,
        pending=Pending(points=1, artifacts=2, tags=3),
    )
    status.write(tmp_path)
    assert RunStatus.read(tmp_path) == status
    assert not (tmp_path / HEARTBEAT).exists()
    RunStatus().write(tmp_path)
    assert RunStatus.read(tmp_path) == RunStatus(status="RUNNING", step=0, attempt=1)
    assert (tmp_path / HEARTBEAT).exists()
    os.utime(tmp_path / HEARTBEAT, (5.0, 5.0))
    beat(tmp_path)
    assert time.time() - (tmp_path / HEARTBEAT).stat().st_mtime < 60
    end_heartbeat(tmp_path)
    end_heartbeat(tmp_path)
    assert not (tmp_path / HEARTBEAT).exists()
    for damaged in ("", "[" * 100_000, "{}", "[]", '{"status": "RUNNING"}'):
        (tmp_path / "status.json").write_text(damaged)
        assert RunStatus.read(tmp_path) is None


def test_on_a_full_disk_a_status_takes_the_place_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RunStatus(stop_reason="long" * 20).write(tmp_path)
    # No second file can be made beside the first one.
    (tmp_path / f"status.json.new-{os.getpid()}").mkdir()
    RunStatus(status="FAILED", step=3).write(tmp_path)
    assert RunStatus.read(tmp_path) == RunStatus(status="FAILED", step=3)


def test_tags_are_kept_replaced_and_forgotten_by_name(tmp_path: Path) -> None:
    assert kept_tags(tmp_path) == {}
    add_tags(tmp_path, {"a": "1", "b": "2"})
    add_tags(tmp_path, {"b": "3", "c": "4"})
    assert kept_tags(tmp_path) == {"a": "1", "b": "3", "c": "4"}
    before = (tmp_path / "tags.json").stat().st_ino
    forget_tags(tmp_path, {"d"})
    assert (tmp_path / "tags.json").stat().st_ino == before
    forget_tags(tmp_path, {"a", "c"})
    assert kept_tags(tmp_path) == {"b": "3"}
    for damaged in ("[1]", "{", "[" * 100_000):
        (tmp_path / "tags.json").write_text(damaged)
        assert kept_tags(tmp_path) == {}


def test_times_are_written_with_their_zone_and_read_in_milliseconds() -> None:
    moment = datetime(2026, 11, 23, 5, 0, 7, tzinfo=UTC).timestamp()
    assert milliseconds(now(moment)) == moment * 1000
    assert milliseconds("2026-11-23T05:00:07+0000") == moment * 1000
    assert milliseconds("2026-11-23T06:00:07+0100") == moment * 1000
    assert milliseconds("yesterday") is None
    assert abs((milliseconds(now()) or 0) - time.time() * 1000) < 60_000
