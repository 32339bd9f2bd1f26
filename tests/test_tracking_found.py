"""What is recorded of a run is found again: URIs, folders, locks, details, records of MLflow."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from rlplug.errors import RequestError
from rlplug.review.record import RunAbout
from rlplug.tracking.details import read_details, read_history
from rlplug.tracking.disk import usage_of
from rlplug.tracking.location import (
    RunFolder,
    UnreachableError,
    check_reachable,
    check_writable,
    runs_folder,
    tracking_uri,
)
from rlplug.tracking.reading import tracked_runs
from rlplug.tracking.record import command_line
from rlplug.tracking.resolve import resolve, resolve_one
from rlplug.tracking.status import RunLock, RunStatus, end_dead, name_lock, now, status_now
from rlplug.tracking.sync import files_of_run, remove_leftovers

if TYPE_CHECKING:
    from tests.conftest import Outcome

DAY = "2026-11-23T05:00:0{}+0000"
NOBODY = "~no-such-user/runs"
REFUSED = "begins with the home folder of a user that does not exist"


def run_in(home: Path, run_id: str, name: str = "walk", second: int = 0, **more: Any) -> Path:
    """The folder of a run that was recorded without MLflow."""
    folder = home / "work" / run_id
    folder.mkdir(parents=True)
    facts = {"run_name": name, "started": DAY.format(second), **more}
    (folder / "run.json").write_text(json.dumps(facts))
    return folder


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set the variables that say where runs are, and no others."""

    def set_to(**variables: str) -> None:
        names = ("TRACKING_URI", "TRACKING_USERNAME", "TRACKING_PASSWORD", "TRACKING_TOKEN")
        for name in ("RLPLUG_HOME", *(f"MLFLOW_{name}" for name in names)):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_to


# -- URIs and folders ------------------------------------------------------------------------------


def test_folder_and_uri_are_given_else_of_a_variable_else_here(
    tmp_path: Path, environ: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environ(RLPLUG_HOME="~/runs", MLFLOW_TRACKING_URI=" http://b:5000/ ", HOME="/home/somebody")
    assert runs_folder(tmp_path / "given") == tmp_path / "given"
    assert runs_folder() == Path("/home/somebody/runs")
    assert tracking_uri("https://a/mlflow//", tmp_path) == "https://a/mlflow"
    assert tracking_uri("", tmp_path) == "http://b:5000"
    environ(RLPLUG_HOME="")
    assert runs_folder() == tmp_path / "rlplug_runs"
    assert tracking_uri("", tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    assert tracking_uri("sqlite:///a/b.db", Path("/x")) == f"sqlite:///{tmp_path}/a/b.db"


@pytest.mark.parametrize("command", ["run --algo linucb --steps 9", "eval x", "ui"])
def test_a_folder_of_nobody_is_refused_by_every_command(
    rlplug: Callable[..., Outcome], environ: Callable[..., None], command: str
) -> None:
    environ(RLPLUG_HOME=NOBODY)
    done = rlplug(*command.split())
    assert (done.code, done.out) == (2, "")
    assert f"RLPLUG_HOME {NOBODY!r} {REFUSED}.\n  try: an absolute path" in done.err
    environ(MLFLOW_TRACKING_URI=f"sqlite:///{NOBODY}.db")
    with pytest.raises(RequestError, match=f"MLFLOW_TRACKING_URI '{NOBODY}.db' {REFUSED}"):
        tracking_uri("", Path.cwd())


@pytest.mark.parametrize(
    ("command", "source"),
    [
        ("run --algo linucb --save-episodes FOLDER", "--save-episodes"),
        ("run --algo linucb --set sampling.record=FOLDER", "sampling.record:"),
        ("run --algo linucb --config FOLDER", "--config"),
        ("run --algo linucb --data FOLDER", "data.files:"),
        ("run --algo linucb --data FOLDER --set data.format=obd", "data.files:"),
        ("run --algo linucb --env ClassificationBandit-v0 --set env.table=FOLDER", "env.table"),
        ("export last -o FOLDER", "--output"),
        ("compare last --plot FOLDER", "--plot"),
    ],
)
def test_every_path_of_nobody_is_refused_before_it_is_used(
    rlplug: Callable[..., Outcome], command: str, source: str
) -> None:
    done = rlplug(*command.replace("FOLDER", NOBODY).split())
    assert (done.code, done.out) == (2, "")
    assert f"{source} {NOBODY!r} {REFUSED}.\n  try: an absolute path" in done.err


@pytest.fixture
def answers() -> Iterator[tuple[str, list[int], list[str]]]:
    """A server, the codes that it answers with, and the paths that it was asked for."""
    codes, paths = [200], list[str]()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(f"{self.path} {self.headers['Host']}")
            self.send_response(codes[0])
            self.end_headers()

        def log_message(self, *of: object) -> None:
            """Says nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"127.0.0.1:{server.server_port}", codes, paths
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_server_answers_if_it_says_anything_but_that_another_one_is_away(
    answers: tuple[str, list[int], list[str]],
) -> None:
    host, codes, paths = answers
    for codes[0] in (200, 401, 404, 500):
        check_reachable(f"http://{host}")
    for codes[0] in (502, 503, 504):
        with pytest.raises(UnreachableError, match="does not answer"):
            check_reachable(f"http://{host}")
    codes[0] = 200
    # A password is not sent with a question that needs none.
    check_reachable(f"http://me:pw@{host}/under")
    assert {paths[0], paths[-1]} == {f"/health {host}", f"/under/health {host}"}
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        check_reachable(f"postgresql+psycopg2://me:pw@127.0.0.1:{port}/db")
    with pytest.raises(UnreachableError, match=r"postgresql://\*\*\*@127.0.0.1:.* does not answer"):
        check_reachable(f"postgresql://me:pw@127.0.0.1:{port}/db")


def test_a_runs_folder_is_tried_by_writing_through_and_nothing_is_left_there(
    tmp_path: Path, synced: list[int]
) -> None:
    check_writable(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").rglob("*")) == [tmp_path / "a" / "b" / "work"]
    assert synced


def test_a_run_is_asked_for_where_it_was_recorded_unless_that_is_gone(
    tmp_path: Path, environ: Callable[..., None]
) -> None:
    there = tmp_path / "there.db"
    there.touch()
    own, server = f"sqlite:///{there}", "http://me:pw@host"
    by_default = f"sqlite:///{tmp_path / 'mlflow.db'}"
    for number, (recorded, option, variable, found) in enumerate(
        (
            (own, "", "", own),
            (own, "", server, own),
            (own, "http://other", "", "http://other"),
            ("", "", "", by_default),
            (f"{own}x", "", "", by_default),
            ("http://gone", "", "", "http://gone"),
            ("http://***@host", "", server, server),
        )
    ):
        environ(**({"MLFLOW_TRACKING_URI": variable} if variable else {}))
        run = RunFolder.read(run_in(tmp_path, str(number), uri=recorded))
        assert run is not None
        assert run.tracking_uri(option) == found


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        (["/bin/rlplug", "run", "a b"], "rlplug run 'a b'"),
        (["/lib/rlplug/__main__.py", "run"], "rlplug run"),
        (["", "x"], "python x"),
        (["my.py", "--uri", "http://me:pw@host"], "my.py --uri 'http://***@host'"),
    ],
)
def test_a_command_line_is_one_to_type_again(typed: list[str], shown: str) -> None:
    assert command_line(typed) == shown


# -- locks and what is left of killed processes ----------------------------------------------------


def test_a_name_is_taken_by_one_process_and_free_again(
    tmp_path: Path, environ: Callable[..., None]
) -> None:
    environ(RLPLUG_HOME=str(tmp_path / "new"))
    taken = pytest.raises(RequestError, match="'a' is in progress")
    with name_lock("a"), name_lock("b"), taken, name_lock("a"):
        pytest.fail("it is held")
    with name_lock("a"):
        pass


def test_a_process_that_is_killed_while_it_tries_the_folder_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; "
        "from rlplug.tracking.location import check_writable; "
        "os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL); "
        "check_writable(Path(sys.argv[1]))"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [*(tmp_path / "work").iterdir()] == []


def test_leftovers_are_removed_only_after_an_hour(tmp_path: Path) -> None:
    now = time.time()
    whole = run_in(tmp_path, "run")
    for age, seconds in (("old", 3_660), ("young", 3_540)):
        for path in (tmp_path / "work" / f"{name}-{age}" for name in (".coming", "half")):
            path.mkdir()
            os.utime(path, (now - seconds, now - seconds))
    os.utime(whole, (0, 0))
    remove_leftovers(tmp_path)
    left = {path.name for path in (tmp_path / "work").iterdir()}
    assert left == {".coming-young", "half-young", "run"}


def test_a_run_that_died_ended_at_its_last_sign_of_life_and_highest_step(tmp_path: Path) -> None:
    folder = run_in(tmp_path, "r")
    RunStatus(step=3, started="s", attempt=2).write(folder)
    lines = [json.dumps({"step": step, "time": 0, "metrics": {}}) for step in (5, 9, 7)]
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    os.utime(folder / "metrics.jsonl", (2_000.0, 2_000.0))
    read = status_now(folder)
    assert read is not None
    assert (read.status, read.ended) == ("FAILED", now(2_000.0))
    with RunLock.take(folder):
        assert status_now(folder) == RunStatus.read(folder)
        os.utime(folder / "run.lock.json", (1_000.0, 1_000.0))
        status, died = end_dead(folder)
        assert died
        assert status == attrs.evolve(read, step=9)
        assert end_dead(folder) == (status, False)


def test_a_status_is_read_as_it_was_written_and_only_whole(tmp_path: Path) -> None:
    status = RunStatus(
        status="KILLED", step=7, stop_reason="i", started="s", ended="e", attempt=3, pending=True
    )
    status.write(tmp_path)
    assert RunStatus.read(tmp_path) == status
    # On a full disk, no second file can be made beside the first one.
    (tmp_path / f"status.json.new-{os.getpid()}").mkdir()
    RunStatus(status="FAILED", step=3).write(tmp_path)
    assert RunStatus.read(tmp_path) == RunStatus(status="FAILED", step=3)
    whole = json.loads((tmp_path / "status.json").read_text())
    for text in ("", "[" * 100_000, "{}", "[]", json.dumps({**whole, "step": "7"})):
        (tmp_path / "status.json").write_text(text)
        assert RunStatus.read(tmp_path) is None


def test_what_is_just_being_written_is_not_uploaded(tmp_path: Path) -> None:
    for folder, name in (("checkpoints", "README.md"), ("plots", "learning_curve.png")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).touch()
        # As `write_durably` and `save_png` call them until they are complete.
        (tmp_path / folder / f"{name}.new-77").touch()
    found = {file.artifact for file in files_of_run(tmp_path)}
    assert found == {"checkpoints/README.md", "plots/learning_curve.png"}


# -- records of folders and of MLflow --------------------------------------------------------------


def test_of_many_that_are_meant_five_are_listed(home: Path) -> None:
    for number in range(7):
        run_in(home, f"abcd{number}", second=number)
    with pytest.raises(RequestError) as raised:
        resolve("walk")
    assert [hint.partition(" ")[0] for hint in raised.value.hints[:5]] == [
        f"abcd{number}" for number in (6, 5, 4, 3, 2)
    ]
    assert raised.value.hints[5:] == ("and 2 more", "try: the full id of one")


def test_runs_of_mlflow_are_read_from_their_tags_and_metrics(store_root: Path) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{store_root / 'mlflow.db'}")
    experiment, moment = client.create_experiment("e"), int(time.time() * 1000)

    def create(name: str, at: int, **tags: str) -> str:
        named = {f"rlplug.{tag}": value for tag, value in tags.items()}
        run = client.create_run(experiment, at, {"rlplug.kind": "run", **named}, name)
        return str(run.info.run_id)

    about = RunAbout(
        algorithm="ppo", env="E-v0", seed=3, group="g", steps=50, options={"algorithm.a": "1.0"}
    )
    old = create("old", moment - 930_000)
    create("young", moment - 870_000)
    whole = create(
        "whole",
        moment,
        about=json.dumps(attrs.asdict(about)),
        stop_reason="finished",
        stopped_at_step="9",
        pending_upload="true",
        root=str(store_root),
    )
    client.create_run(experiment, moment, {"rlplug.kind": "summary"}, "not a run")
    run_in(store_root, whole)
    for name, value, step in (
        ("eval/best_return_mean", 7.0, 20),
        ("eval/best_step", 10.0, 20),
        ("loss", 0.5, 21),
        ("loss", 0.25, 22),
    ):
        client.log_metric(whole, name, value, 5, step)
    client.set_terminated(whole, "FINISHED", moment + 2_000)
    uri = f"sqlite:///{store_root / 'mlflow.db'}"
    run, young, past = tracked_runs(uri)
    assert (run.name, young.name, past.name) == ("whole", "young", "old")
    assert run.about == about
    assert (run.status, run.reason, run.step) == ("FINISHED", "finished", 22)
    assert (run.started, run.ended) == (now(moment / 1000), now(moment / 1000 + 2))
    assert (run.best, run.latest["loss"], run.pending) == ((10, 7.0), 0.25, True)
    assert (run.folder, run.uri) == (store_root / "work" / whole, uri)
    assert (young.status, past.status, past.ended) == ("RUNNING", "stale", "")
    assert (young.pending, young.folder, young.step) == (False, None, 0)
    assert [run.name for run in tracked_runs(uri, most=1)] == ["whole"]
    assert [run.name for run in tracked_runs(uri, "attributes.run_name = 'old'")] == ["old"]
    assert tracked_runs(f"{uri}x") == []
    elsewhere = attrs.evolve(run, folder=None)
    assert read_history(elsewhere, ["loss", "none"])["loss"].values.tolist() == [0.5, 0.25]
    assert len(read_history(elsewhere)) == 3
    assert resolve_one(old[:8]).name == "old"
    with pytest.raises(RequestError, match="there is no run"):
        resolve(old[:3])


def test_the_details_of_a_run_are_its_curves_checkpoints_plugins_and_command(home: Path) -> None:
    folder = run_in(home, "r", command="rlplug run --algo ppo")
    reports: list[tuple[int, dict[str, float]]] = [
        (10, {"eval/return_mean": 5.0, "loss": 1.0}),
        (20, {"eval/return_mean": 4.0, "eval/best_return_mean": 5.0, "eval/best_step": 10.0}),
    ]
    lines = [json.dumps({"step": step, "time": 0, "metrics": one}) for step, one in reports]
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    for step, facts in ((10, {}), (20, {"finite": False}), (15, {"finite": True})):
        place = folder / "checkpoints" / f"step-{step:09d}"
        place.mkdir(parents=True)
        (place / "manifest.json").write_text(json.dumps({"step": step, **facts}))
    (folder / "tags.json").write_text('{"rlplug.plugins": "ppo 1 (x),  b 2 (y), "}')
    run = resolve_one(str(folder))
    details = read_details(run)
    assert [(one.step, one.score, list(one.marks)) for one in details.checkpoints] == [
        (10, 5.0, ["best"]),
        (15, None, []),
        (20, 4.0, ["last", "not finite"]),
    ]
    assert list(details.plugins) == ["ppo 1 (x)", "b 2 (y)"]
    assert details.command == "rlplug run --algo ppo"
    assert list(read_history(run, ["loss"])) == ["loss"]
    assert len(read_history(run)) == 4


def test_what_a_run_takes_on_the_disk_is_counted_once_and_by_its_parts(home: Path) -> None:
    folder = run_in(home, "r")
    size = (folder / "run.json").stat().st_size
    for name, content in (
        ("checkpoints/a/x", "1" * 10),
        ("videos/v", "2" * 20),
        ("deep/replay", ""),
    ):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(content)
    (folder / "models.json").write_text('{"step-1": "m-1"}')
    copies = home / "artifacts" / "e" / "r" / "checkpoints"
    copies.mkdir(parents=True)
    os.link(folder / "checkpoints" / "a" / "x", copies / "x")
    (copies / "y").write_text("3" * 30)
    for place in ("artifacts/e/models/m-1", "artifacts/e/models/m-2", "fetched/r"):
        (home / place).mkdir(parents=True)
        (home / place / "z").write_text("4" * 40)
    found = usage_of(resolve_one(str(folder)), home)
    assert found.parts == {
        "checkpoints": 10,
        "replay": 0,
        "videos": 20,
        "artifacts": 110,
        "other": size + len('{"step-1": "m-1"}'),
    }
    assert found.total == sum(found.parts.values())
