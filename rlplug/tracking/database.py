"""The SQLite database of a store: created whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shlex
import sqlite3
from pathlib import Path

from rlplug.durable import sync_folder
from rlplug.errors import RequestError

__all__ = ["prepare_database"]

_UNFINISHED_TABLE = "_alembic_tmp_"
"""Begins the names of tables that a migration makes and removes again."""


def prepare_database(file: Path) -> None:
    """Create the database if there is none; raise if it is one whose creation was interrupted.

    The caller holds the lock of the folder. MLflow's migrations take seconds, and a kill amid them
    leaves a database that cannot be used: they are made beside it.
    """
    for leftover in file.parent.glob(f"{file.name}.creating-*"):
        with contextlib.suppress(OSError):
            leftover.unlink()
    # Looking whether it can be opened creates an empty one.
    if file.exists() and file.stat().st_size:
        _check_whole(file)
        return
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    partial = file.with_name(f"{file.name}.creating-{os.getpid()}")
    try:
        artifacts = (file.parent / "artifacts").as_uri()
        SqlAlchemyStore(f"sqlite:///{partial}", artifacts).engine.dispose()  # type: ignore[no-untyped-call] # in mlflow
        with partial.open("rb") as content:
            os.fsync(content.fileno())
        partial.replace(file)
        sync_folder(file.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def _check_whole(file: Path) -> None:
    try:
        with contextlib.closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            unfinished = any(name.startswith(_UNFINISHED_TABLE) for name in tables)
            if not unfinished and (
                "experiments" not in tables or _has(database, "alembic_version")
            ):
                return
            holds_runs = "runs" in tables and _has(database, "runs")
    except sqlite3.Error:
        return  # a busy one; MLflow waits, or says what it is
    if holds_runs:
        raise RequestError(
            f"the database {file} cannot be used: its upgrade was interrupted.",
            "try: the copy that was made before `mlflow db upgrade`",
        )
    broken = shlex.quote(f"{file}.broken")
    raise RequestError(
        f"the database {file} cannot be used: its creation was interrupted. It holds no runs.",
        f"try: mv {shlex.quote(str(file))} {broken}",
    )


def _has(database: sqlite3.Connection, table: str) -> bool:
    """Whether the table exists and has a row."""
    try:
        return database.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() is not None
    except sqlite3.OperationalError:
        return False
