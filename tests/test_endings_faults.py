"""What ends a run in its own process: signals at chosen moments, exceptions, `close()`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy
import pytest

from rlplug import AddOn, RunFailedError, run
from rlplug.cli.outcome import finish
from rlplug.runs.result import RunInterrupted

pytestmark = pytest.mark.usefixtures("home", "installed")

OFF = {"tracking.enabled": False}


class Steady(gymnasium.Env[Any, Any]):
    """Arm 1 pays 1, arm 0 nothing."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), numpy.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return numpy.zeros(1), {}

    def step(self, action: Any) -> Any:
        return numpy.zeros(1), float(action), True, False, {}


def kill(*names: str) -> None:
    """Send signals to this process, one after the other."""
    for name in names:
        os.kill(os.getpid(), getattr(signal, name))


class Then(AddOn):
    """Does something in an event, once: from a step on, or whenever the event comes."""

    def __init__(self, event: str, do: Callable[[], None], step: int = 0) -> None:
        super().__init__(None)
        self.event, self.do, self.at, self.done = event, do, step, False
        self.heard: list[str] = []

    def _hear(self, event: str, step: int) -> None:
        self.heard.append(event)
        if event == self.event and step >= self.at and not self.done:
            self.done = True
            self.do()

    def update_finished(self, step: int) -> None:
        self._hear("update_finished", step)

    def metrics_reported(self, step: int) -> None:
        self._hear("metrics_reported", step)

    def evaluation_finished(self, step: int) -> None:
        self._hear("evaluation_finished", step)

    def checkpoint_saved(self, step: int) -> None:
        self._hear("checkpoint_saved", step)

    def run_finished(self, step: int) -> None:
        self._hear("run_finished", step)

    def run_failed(self, step: int) -> None:
        self._hear("run_failed", step)


class Also(Then):
    """Another one."""


class Last(Then):
    """A third one."""


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """Nobody else writes to the database."""
    database = sqlite3.connect(home / "mlflow.db", isolation_level=None)
    database.execute("begin immediate")
    try:
        yield
    finally:
        database.execute("commit")
        database.close()


def statuses(home: Path) -> list[str]:
    """The status of each run in MLflow, which is also the one on disk."""
    with sqlite3.connect(home / "mlflow.db") as database:
        rows = list(database.execute("select run_uuid, status from runs"))
    assert rows == [(run_id, status_of(home / "work" / run_id)) for run_id, _ in rows]
    return [status for _, status in rows]


def status_of(folder: Path) -> str:
    return str(json.loads((folder / "status.json").read_text())["status"])


# -- signals ------------------------------------------------------------------------------------


def test_sigusr1_saves_a_checkpoint_after_the_update_and_that_the_run_goes_on_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asks = Then("update_finished", lambda: kill("SIGUSR1"), step=33)
    result = run("means", Steady, steps=100, addons=[asks], options=OFF)
    assert (result.status, result.step) == ("FINISHED", 100)
    # It came in mid-update; the one at 100 is the end of the run.
    assert result.checkpoints == (33, 100)
    said = "rlplug: checkpoint of step 33 saved, as SIGUSR1 asked for; the run goes on."
    assert caplog.messages == [said]


@pytest.mark.parametrize(
    ("event", "names", "code"),
    [
        ("update_finished", ("SIGINT", "SIGINT"), 130),
        ("evaluation_finished", ("SIGTERM", "SIGINT"), 143),
        ("checkpoint_saved", ("SIGHUP", "SIGTERM", "SIGTERM", "SIGINT"), 129),
    ],
)
def test_a_second_signal_ends_the_run_at_once_wherever_it_is_and_its_status_is_set(
    home: Path, event: str, names: tuple[str, ...], code: int
) -> None:
    twice = Then(event, lambda: kill(*names), step=20)
    options = {"evaluation.every": 20, "evaluation.episodes": 1}
    with pytest.raises(RunInterrupted) as raised:
        run("means", Steady, steps=100_000, addons=[twice], options=options)
    assert (raised.value.exit_code, raised.value.at_once) == (code, True)
    result = raised.value.result
    assert result.status == "KILLED"
    assert statuses(home) == ["KILLED"]
    # An update may have been left half done: it is not saved.
    assert (20 in result.checkpoints) == (event == "checkpoint_saved")
    assert twice.heard[-1] == "run_failed"


def test_a_second_signal_while_the_first_is_answered_ends_the_run_at_once(home: Path) -> None:
    first = Then("update_finished", lambda: kill("SIGTERM"), step=20)
    second = Also("run_failed", lambda: kill("SIGINT"))
    with pytest.raises(RunInterrupted) as raised:
        run("means", Steady, steps=100, addons=[first, second])
    assert (raised.value.exit_code, raised.value.at_once) == (143, True)
    assert raised.value.result.checkpoints == (20,)
    assert statuses(home) == ["KILLED"]
    assert [one.heard.count("run_failed") for one in (first, second)] == [1, 1]
    # What came before the first signal is in the journal.
    lines = (raised.value.result.folder / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] == 20


def test_two_signals_while_a_complete_run_is_closed_leave_it_finished(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    is_locked = threading.Event()

    def send() -> None:
        # MLflow cannot write until both signals are there.
        with locked(home):
            is_locked.set()
            while not any(status_of(one) == "FINISHED" for one in (home / "work").iterdir()):
                time.sleep(0.001)
            kill("SIGTERM")
            time.sleep(0.1)
            kill("SIGTERM")

    sender = threading.Thread(target=send)

    def lock() -> None:
        sender.start()
        # Otherwise the run may be over before.
        assert is_locked.wait(60)

    with pytest.raises(RunInterrupted) as raised:
        run("means", Steady, steps=100, addons=[Then("run_finished", lock)])
    sender.join()
    assert raised.value.exit_code == 143
    result = raised.value.result
    assert (result.status, result.step, result.checkpoints) == ("FINISHED", 100, (100,))
    # The second signal does not wait for MLflow: what is missing there is said.
    assert status_of(result.folder) == "FINISHED"
    assert f"rlplug runs sync {result.run_id}" in caplog.text


def test_two_signals_while_environments_are_closed_end_a_complete_run_at_once(home: Path) -> None:
    class Late(Steady):
        def close(self) -> None:
            if any(status_of(one) == "FINISHED" for one in home.glob("work/*")):
                kill("SIGTERM", "SIGTERM")

    with pytest.raises(RunInterrupted) as raised:
        run("means", Late, steps=50, options=OFF)
    assert (raised.value.exit_code, raised.value.at_once) == (143, True)
    result = raised.value.result
    assert (result.status, result.step, result.checkpoints) == ("FINISHED", 50, (50,))


def test_a_signal_before_the_first_update_ends_the_run_at_once(home: Path) -> None:
    class Slow(Steady):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            # Before, a probe is reset.
            if list(home.glob("work/*")):
                kill("SIGTERM")
                raise AssertionError("the run goes on")
            return super().reset(seed=seed)

    with pytest.raises(RunInterrupted) as raised:
        run("means", Slow, steps=50)
    assert (raised.value.exit_code, raised.value.result.step) == (143, 0)
    assert statuses(home) == ["KILLED"]


def test_other_code_that_catches_a_second_signal_does_not_keep_the_run_from_ending() -> None:
    def swallow() -> None:
        with pytest.raises(KeyboardInterrupt):
            kill("SIGINT", "SIGINT")
        raise ValueError("something else")

    catches = Then("update_finished", swallow, step=20)
    with pytest.raises(RunInterrupted) as raised:
        run("means", Steady, steps=100, addons=[catches], options=OFF)
    assert raised.value.result.status == "KILLED"


# -- what raises --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (SystemExit(0), RunFailedError),
        (MemoryError("planted"), MemoryError),
        (RecursionError("planted"), RecursionError),
    ],
)
def test_whatever_a_plugin_raises_the_run_is_failed_with_its_traceback(
    home: Path, raised: BaseException, kind: type[Exception]
) -> None:
    def fail() -> None:
        raise raised

    fails = Then("update_finished", fail, step=20)
    with pytest.raises(kind) as caught:
        run("means", Steady, steps=100, addons=[fails])
    notes = caught.value.__notes__
    assert notes[0] == "raised in hook 'update_finished' of add-on 'then' (not installed)"
    assert notes[1] == "recorded up to step 20; there is no checkpoint:"
    assert statuses(home) == ["FAILED"]
    (file,) = home.glob("artifacts/*/*/artifacts/logs/traceback.txt")
    assert "in fail\n" in file.read_text()


def test_a_plugin_that_fails_when_it_is_told_of_a_failure_hides_neither(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ArithmeticError("planted")

    def fail_again() -> None:
        raise ValueError("again")

    first = Then("update_finished", fail, step=20)
    second, third = Also("run_failed", fail_again), Last("", fail)
    with pytest.raises(ArithmeticError, match="planted"):
        run("means", Steady, steps=100, addons=[first, second, third], options=OFF)
    assert "a plugin failed at the end of the run (ValueError: again)" in caplog.text
    assert third.heard[-1] == "run_failed"
    (folder,) = (home / "work").iterdir()
    assert status_of(folder) == "FAILED"
    assert "planted" in (folder / "logs" / "traceback.txt").read_text()


def test_environments_whose_close_raises_take_no_result_away(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    closed = []

    class Stuck(Steady):
        def close(self) -> None:
            closed.append(self)
            raise OSError("stuck")

    options = {**OFF, "num_envs": 2, "evaluation.episodes": 1}
    result = run("means", Stuck, steps=50, options=options)
    assert (result.status, result.step) == ("FINISHED", 50)
    assert result.metrics["eval/return_mean"] == 1.0
    said = [one for one in caplog.messages if "could not be closed" in one]
    assert set(said) == {"rlplug: environment 'Stuck' could not be closed (OSError: stuck)."}
    # One for the probe, two for training, one for evaluation; each once.
    assert len({id(one) for one in closed}) == len(closed) == 4
    assert "Traceback" not in capfd.readouterr().err


# -- true words ---------------------------------------------------------------------------------


def without_checkpoints(folder: Path) -> None:
    shutil.rmtree(folder / "checkpoints")
    (folder / "checkpoints").touch()


def with_checkpoints_alone(folder: Path) -> None:
    gone = folder.rename(folder.parent.parent / "gone")
    folder.mkdir()
    (gone / "checkpoints").rename(folder / "checkpoints")


def without_a_journal(folder: Path) -> None:
    (folder / "metrics.jsonl").unlink()


@pytest.mark.parametrize(
    ("event", "harm", "said"),
    [
        (
            "update_finished",
            without_checkpoints,
            "there is no checkpoint, and it",
        ),
        (
            "run_finished",
            with_checkpoints_alone,
            "its folder was deleted, and it",
        ),
        ("update_finished", without_a_journal, r"[\d,]+ metric values are lost"),
    ],
)
def test_a_run_that_is_not_whole_on_the_disk_exits_with_1(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    event: str,
    harm: Callable[[Path], None],
    said: str,
) -> None:
    harms = Then(event, lambda: harm(next(home.glob("work/*"))))
    carry_out = partial(run, "means", Steady, steps=100, addons=[harms], options=OFF)
    assert finish(carry_out, quiet=True, as_json=False) == 1
    assert re.search(f"the run is not complete on disk: {said}", capsys.readouterr().err)


@pytest.mark.parametrize("ends", ["at its end", "by an error", "by a signal"])
def test_after_the_runs_folder_was_deleted_nothing_in_it_is_called_kept(
    ends: str, home: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        if ends == "by an error":
            raise ArithmeticError("planted")
        if ends == "by a signal":
            kill("SIGTERM")

    def delete() -> None:
        # Moved first: it is written into meanwhile.
        shutil.rmtree(home.rename(home.with_name("gone")), ignore_errors=True)

    deletes = Then("update_finished", delete, step=50)
    fails = Also("update_finished", fail, step=150)
    options = {"checkpoint.every": 40, "evaluation.every": 100, "evaluation.episodes": 1}
    carry_out = partial(run, "means", Steady, steps=200, addons=[deletes, fails], options=options)
    said = []
    try:
        assert finish(carry_out, quiet=False, as_json=False) != 0
    except ArithmeticError as error:
        said += error.__notes__
    said += [*caplog.messages, *capsys.readouterr()]
    text = "\n".join(said)
    assert "whose folder is gone" in text
    assert "values are lost" in text
    for word in ("kept in /", "values are in", "rlplug runs sync", "rlplug resume", "look at it"):
        assert word not in text
