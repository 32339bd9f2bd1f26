"""What is said of a store that fails: one line, the reason, no trace."""

import contextlib
import logging
import sqlite3

import pytest

from rlplug.tracking.store import StoreUnreachableError, translated


def fill_a_database() -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.execute("create table numbers (value)")
        database.execute("pragma max_page_count = 2")
        database.execute("insert into numbers values (zeroblob(100000))")


def fill_a_wrapped_database() -> None:
    with translated():
        try:
            fill_a_database()
        except sqlite3.OperationalError as error:
            raise ValueError("(raised as a result of autoflush)") from error


def test_a_full_database_is_called_full_however_deep_the_error_was_wrapped() -> None:
    with pytest.raises(StoreUnreachableError, match=r"^database or disk is full$"):
        fill_a_wrapped_database()


def test_the_trace_that_mlflow_logs_of_a_database_is_heard_only_outside(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = logging.getLogger("mlflow.store.db.utils")
    logger.addHandler(caplog.handler)
    try:
        with translated():
            logger.error("inside")
        logger.error("outside")
    finally:
        logger.removeHandler(caplog.handler)
    assert {record.message for record in caplog.records} == {"outside"}
