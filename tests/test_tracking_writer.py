"""The writer: it takes metrics at once, loses none, and says each trouble once."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from rlplug.tracking.failures import StoreRefusedError, StoreUnreachableError
from rlplug.tracking.journal import Journal, Row, read_journal
from rlplug.tracking.writer import Writer


class Memory:
    """A store in memory that can be away, and that refuses negative steps."""

    def __init__(self) -> None:
        self.rows: set[Row] = set()
        self.requests = 0
        self.largest = 0
        """Rows of the largest request."""
        self.away = False
        self.deleted = False
        self.asked = threading.Event()

    def log_rows(self, rows: Sequence[Row]) -> None:
        self.requests += 1
        self.largest = max(self.largest, len(rows))
        self.asked.set()
        if self.away:
            raise StoreUnreachableError("connection refused")
        if self.deleted or any(step < 0 for _, _, _, step in rows):
            raise StoreRefusedError("no")
        self.rows.update(rows)

    def is_active(self) -> bool:
        return not self.deleted

    def beat(self) -> None:
        """Nothing needs to know it here."""

    def values(self) -> list[tuple[int, str, float]]:
        return sorted((step, name, value) for name, value, _, step in self.rows)


@pytest.fixture
def store() -> Memory:
    return Memory()


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path)
    yield journal
    journal.close()


@pytest.fixture
def writer(journal: Journal, store: Memory, warnings: list[str]) -> Writer:
    writer = Writer(journal, store, warnings.append)
    writer.start()
    return writer


def close(writer: Writer, finish: Callable[[], None] = lambda: None) -> None:
    writer.close(finish, seconds=10)


def test_everything_put_is_in_the_journal_and_in_the_store(
    writer: Writer, store: Memory, journal: Journal
) -> None:
    writer.put(1, {"a": 1.0})
    writer.put(2, {"a": 2.0, "b": 3.0})
    close(writer)
    assert store.values() == [(1, "a", 1.0), (2, "a", 2.0), (2, "b", 3.0)]
    assert [report.step for report in read_journal(journal.path)] == [1, 2]
    assert journal.acknowledged == journal.path.stat().st_size
    assert writer.pending.points == 0


def test_a_mapping_that_changes_after_it_was_put_changes_nothing(
    writer: Writer, store: Memory
) -> None:
    metrics = {"a": 1.0}
    writer.put(1, metrics)
    metrics["a"] = 9.0
    close(writer)
    assert store.values() == [(1, "a", 1.0)]


def test_rows_are_sent_in_batches_of_at_most_a_thousand(writer: Writer, store: Memory) -> None:
    for step in range(250):
        writer.put(step, {f"m{index}": 0.0 for index in range(10)})
    close(writer)
    assert len(store.rows) == 2_500
    assert (store.requests, store.largest) == (3, 1_000)


def test_what_is_put_while_an_upload_goes_on_is_not_lost_at_the_end(journal: Journal) -> None:
    class Slow(Memory):
        def log_rows(self, rows: Sequence[Row]) -> None:
            super().log_rows(rows)
            gate.wait(10)

    gate = threading.Event()
    store = Slow()
    writer = Writer(journal, store, print)
    writer.start()
    writer.put(1, {"a": 1.0})
    writer.upload_soon()
    assert store.asked.wait(10)
    writer.put(2, {"a": 2.0})
    # The writer is told to close in the middle of its upload.
    threading.Timer(0.05, gate.set).start()
    close(writer)
    assert store.values() == [(1, "a", 1.0), (2, "a", 2.0)]


def test_a_refused_row_is_left_out_with_one_warning_and_holds_up_no_other(
    writer: Writer, store: Memory, warnings: list[str]
) -> None:
    for step in (1, 2, -3, 4):
        writer.put(step, {"a": float(step)})
    close(writer)
    assert [step for step, _, _ in store.values()] == [1, 2, 4]
    assert warnings == ["MLflow refused a=-3.0 at step -3: no"]


def test_a_deleted_run_takes_no_more_metrics_and_is_told_once(
    writer: Writer, store: Memory, journal: Journal, warnings: list[str]
) -> None:
    store.deleted = True
    for step in range(10):
        writer.put(step, {"a": 1.0})
    close(writer)
    assert store.requests == 1
    assert len(warnings) == 1
    assert "accepts no more metrics" in warnings[0]
    assert len(list(read_journal(journal.path))) == 10


def test_an_outage_is_told_once_and_its_end_once_and_nothing_is_lost(
    writer: Writer, store: Memory, warnings: list[str]
) -> None:
    store.away = True
    for step in range(3):
        store.asked.clear()
        writer.put(step, {"a": 1.0})
        writer.upload_soon()
        assert store.asked.wait(10)
    store.away = False
    close(writer)
    assert [step for step, _, _ in store.values()] == [0, 1, 2]
    assert len(warnings) == 2
    assert "is unreachable (connection refused)" in warnings[0]
    assert "is reachable again" in warnings[1]


def test_a_store_that_stays_away_costs_one_more_attempt_at_the_end(
    writer: Writer, store: Memory, journal: Journal
) -> None:
    store.away = True
    writer.put(1, {"a": 1.0, "b": 2.0})
    writer.upload_soon()
    assert store.asked.wait(10)
    writer.do(lambda: None)
    close(writer)
    assert store.requests == 2
    assert writer.pending.points == 2
    assert writer.pending.tags == 1
    assert journal.acknowledged == 0
    assert len(list(read_journal(journal.path))) == 1


def test_numbers_that_are_not_finite_are_counted_from_then_on(
    writer: Writer, journal: Journal
) -> None:
    writer.put(1, {"a": 1.0})
    writer.put(2, {"a": float("nan"), "b": float("inf")})
    writer.put(3, {"a": 1.0})
    close(writer)
    counts = [report.metrics.get("train/nonfinite") for report in read_journal(journal.path)]
    assert counts == [None, 2.0, 2.0]
    assert writer.reports.first_nonfinite_step == 2


def test_a_full_disk_is_told_once_and_the_metrics_are_uploaded_all_the_same(
    tmp_path: Path, store: Memory, warnings: list[str]
) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    journal = Journal(tmp_path)
    writer = Writer(journal, store, warnings.append)
    writer.start()
    for step in range(3):
        store.asked.clear()
        writer.put(step, {"a": 1.0})
        writer.upload_soon()
        assert store.asked.wait(10)
    close(writer)
    assert len(store.rows) == 3
    assert len(warnings) == 1
    assert "No space left on device" in warnings[0]
    with pytest.raises(OSError, match="Invalid argument"):
        journal.close()


def test_metrics_that_neither_disk_nor_store_took_are_counted_as_lost(
    tmp_path: Path, store: Memory, warnings: list[str]
) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    journal = Journal(tmp_path)
    writer = Writer(journal, store, warnings.append)
    writer.start()
    writer.put(0, {"a": 1.0})
    store.asked.clear()
    writer.upload_soon()
    assert store.asked.wait(10)
    store.away = True
    writer.put(1, {"a": 1.0, "b": 2.0})
    # Time for one more attempt.
    writer.close(lambda: None, seconds=2)
    assert writer.pending.points == 2
    assert writer.reports.points_lost() == 2
    assert "kept in memory" in warnings[1]
    with pytest.raises(OSError, match="Invalid argument"):
        journal.close()


def test_what_the_writer_is_asked_to_do_follows_the_metrics_in_order(
    writer: Writer, store: Memory, warnings: list[str]
) -> None:
    done: list[object] = []

    def refused() -> None:
        raise StoreRefusedError("too long")

    writer.put(1, {"a": 1.0})
    writer.do(lambda: done.append(len(store.rows)))
    writer.do(refused)
    close(writer, finish=lambda: writer.do(lambda: done.append("last")))
    assert done == [1, "last"]
    assert warnings == ["MLflow refused a part of this run's record: too long."]
