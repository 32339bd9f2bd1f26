from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlplug.approximation import DummyWriter
from rlplug.errors import RequestError
from rlplug.tracking.location import runs_folder, tracking_uri

NOBODY = "~no-such-user/runs"
REFUSED = "begins with the home folder of a user that does not exist"


def test_a_folder_in_the_home_of_nobody_is_refused_with_where_it_was_named() -> None:
    with pytest.raises(RequestError, match=rf"RLPLUG_HOME '{NOBODY}' {REFUSED}"):
        runs_folder(environ={"RLPLUG_HOME": NOBODY})
    with pytest.raises(RequestError, match=rf"the runs folder '{NOBODY}' {REFUSED}"):
        runs_folder(Path(NOBODY))
    for option, environ, source in (
        (f"sqlite:///{NOBODY}.db", {}, "tracking.uri"),
        ("", {"MLFLOW_TRACKING_URI": f"sqlite:///{NOBODY}.db"}, "MLFLOW_TRACKING_URI"),
    ):
        with pytest.raises(RequestError, match=rf"{source} '{NOBODY}.db' {REFUSED}"):
            tracking_uri(option, Path.cwd(), environ)


def test_the_home_of_the_user_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert runs_folder(environ={"RLPLUG_HOME": "~/runs"}) == Path("/home/somebody/runs")


@pytest.mark.parametrize("command", ["run --algo linucb --steps 9", "eval x", "ui"])
def test_every_command_refuses_a_runs_folder_of_nobody(
    rlplug: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("RLPLUG_HOME", NOBODY)
    done = rlplug(*command.split())
    assert (done.code, done.out) == (2, "")
    assert REFUSED in done.err


@pytest.mark.parametrize(
    ("options", "source"),
    [
        ("--save-episodes FOLDER", "--save-episodes"),
        ("--set sampling.record=FOLDER", "sampling.record:"),
        ("--config FOLDER", "--config"),
        ("--data FOLDER", "data.files:"),
        ("--data FOLDER --set data.format=obd", "data.files:"),
        ("--env ClassificationBandit-v0 --set env.table=FOLDER", "env.table"),
    ],
)
def test_every_path_of_nobody_is_refused_before_the_run(
    rlplug: Callable[..., Any], options: str, source: str
) -> None:
    command = f"run --algo linucb --steps 9 {options.replace('FOLDER', NOBODY)}"
    done = rlplug(*command.split())
    assert (done.code, done.out) == (2, "")
    assert f"{source} {NOBODY!r} {REFUSED}.\n  try: an absolute path" in done.err


@pytest.mark.parametrize(
    ("command", "source"),
    [("export last -o FOLDER", "--output"), ("compare last --plot FOLDER", "--plot")],
)
def test_a_file_of_nobody_is_refused_before_it_is_written(
    rlplug: Callable[..., Any], command: str, source: str
) -> None:
    done = rlplug(*command.replace("FOLDER", NOBODY).split())
    assert (done.code, done.out) == (2, "")
    assert f"{source} {NOBODY!r} {REFUSED}.\n  try: an absolute path" in done.err


def test_a_writer_with_a_folder_of_nobody_is_refused() -> None:
    with pytest.raises(RequestError, match=rf"the log_dir of a DummyWriter {NOBODY!r} {REFUSED}"):
        DummyWriter(NOBODY)
