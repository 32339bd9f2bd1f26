"""What is recorded of a run is found again: URIs, folders, names, options, records of MLflow."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from rlplug.config.option import option
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
from rlplug.tracking.status import (
    RunLock,
    end_dead,
    is_stale,
    name_lock,
    remove_half_written,
    status_now,
)
from rlplug.tracking.record import command_line
from rlplug.tracking.reading import read_record
from rlplug.tracking.resolve import resolve, resolve_one
from rlplug.tracking.reading import tracked_runs, tracked_values
from rlplug.tracking.status import RunStatus, now
from rlplug.tracking.sync import remove_leftovers

if TYPE_CHECKING:
    from mlflow import MlflowClient

DAY = "2026-11-23T05:00:0{}+0000"


def run_in(home: Path, run_id: str, name: str = "walk", second: int = 0, **more: Any) -> Path:
    """The folder of a run that was recorded without MLflow."""
    folder = home / "work" / run_id
    folder.mkdir(parents=True)
    facts = {"run_name": name, "started": DAY.format(second), **more}
    (folder / "run.json").write_text(json.dumps(facts))
    return folder


# -- URIs and folders ------------------------------------------------------------------------------


def test_the_runs_folder_is_the_argument_else_the_variable_else_one_here(tmp_path: Path) -> None:
    environ = {"RLPLUG_HOME": str(tmp_path / "home")}
    assert runs_folder(tmp_path / "given", environ) == tmp_path / "given"
    assert runs_folder(None, environ) == tmp_path / "home"
    assert runs_folder(None, {"RLPLUG_HOME": ""}) == Path("rlplug_runs").absolute()


def test_the_tracking_uri_is_the_option_else_the_variable_else_a_database_there(
    tmp_path: Path,
) -> None:
    environ = {"MLFLOW_TRACKING_URI": " http://b:5000/ "}
    assert tracking_uri("https://a/mlflow//", tmp_path, environ) == "https://a/mlflow"
    assert tracking_uri("", tmp_path, environ) == "http://b:5000"
    assert tracking_uri("", tmp_path, {}) == f"sqlite:///{tmp_path}/mlflow.db"


def test_a_database_is_found_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tracking_uri("sqlite:///a/b.db", tmp_path, {}) == f"sqlite:///{tmp_path}/a/b.db"


def test_a_masked_uri_is_completed_from_the_variable_of_the_same_place() -> None:
    root, masked = Path("/nowhere"), "http://***@host/"
    whole = {"MLFLOW_TRACKING_URI": "http://me:pw@host"}
    assert tracking_uri(masked, root, whole) == "http://me:pw@host"
    login = {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "pw"}
    assert tracking_uri(masked, root, login) == "http://host"
    assert tracking_uri(masked, root, {"MLFLOW_TRACKING_TOKEN": "t"}) == "http://host"
    elsewhere = {"MLFLOW_TRACKING_URI": "http://me:pw@other"}
    for environ in (elsewhere, {"MLFLOW_TRACKING_USERNAME": "me"}, {}):
        with pytest.raises(RequestError, match="without its password") as raised:
            tracking_uri(masked, root, environ)
        assert "MLFLOW_TRACKING_USERNAME and" in raised.value.hints[0]
    for uri in ("postgresql://***@host/db", "http://***@host/?token=***"):
        with pytest.raises(RequestError, match="without its password") as raised:
            tracking_uri(uri, root, login)
        assert "MLFLOW_TRACKING_USERNAME" not in raised.value.hints[0]
    with pytest.raises(RequestError, match="without its password"):
        tracking_uri("", root, {"MLFLOW_TRACKING_URI": "http://***@host"})


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


def test_a_database_server_is_away_if_its_port_is_closed() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        check_reachable(f"postgresql+psycopg2://me:pw@127.0.0.1:{port}/db")
    with pytest.raises(UnreachableError) as raised:
        check_reachable(f"postgresql://me:pw@127.0.0.1:{port}/db")
    assert f"postgresql://***@127.0.0.1:{port}/db does not answer" in str(raised.value)
    check_reachable("postgresql:///db?host=/run/postgresql")
    check_reachable("databricks")


def test_a_runs_folder_is_tried_by_writing_and_nothing_is_left_there(
    tmp_path: Path, synced: list[int]
) -> None:
    check_writable(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").rglob("*")) == [tmp_path / "a" / "b" / "work"]
    assert synced
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match="is not writable"):
        check_writable(tmp_path / "file")


def test_a_run_is_asked_for_where_it_was_recorded_unless_that_is_gone(tmp_path: Path) -> None:
    there = tmp_path / "there.db"
    there.touch()
    own, server = f"sqlite:///{there}", {"MLFLOW_TRACKING_URI": "http://me:pw@host"}
    by_default = f"sqlite:///{tmp_path / 'mlflow.db'}"

    def uri(recorded: str, option: str = "", environ: Mapping[str, str] | None = None) -> str:
        name = f"r{len(list(tmp_path.glob('work/*')))}"
        run = RunFolder.read(run_in(tmp_path, name, uri=recorded))
        assert run is not None
        return run.tracking_uri(option, environ or {})

    assert uri(own) == own
    assert uri(own, environ=server) == own
    assert uri(own, option="http://other") == "http://other"
    assert uri("") == by_default
    assert uri(f"{own}x") == by_default
    assert uri("http://gone") == "http://gone"
    assert uri("http://***@host", environ=server) == "http://me:pw@host"
    with pytest.raises(RequestError, match="without its password"):
        uri("http://***@host")


# -- what is recorded of a run ---------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Options:
    alpha: float = option(1.0, "Width.")
    text: str = option("", "Anything.")


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


# -- errors of MLflow ------------------------------------------------------------------------------


# -- locks and what is left of killed processes ----------------------------------------------------


def test_a_name_is_taken_by_one_process_and_free_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLPLUG_HOME", str(tmp_path / "new"))
    with (
        name_lock("a"),
        name_lock("b"),
        pytest.raises(RequestError, match="'a' is in progress"),
        name_lock("a"),
    ):
        pytest.fail("it is held")
    with name_lock("a"):
        pass


@pytest.mark.parametrize(
    "name",
    [
        "checkpoints/.unfinished-step-1",
        "checkpoints/README.md.new-1",
        "plots/curve.png.new-1",
        "videos/.new-1",
        "profile/.writing-1",
        "replay/.unfinished-1",
        ".unfinished-model",
        "status.json.new-1",
        "module.tmp",
        "metrics.acked.new",
    ],
)
def test_what_a_killed_process_was_writing_is_removed_and_nothing_else(
    tmp_path: Path, name: str
) -> None:
    kept = tmp_path / name.replace(".unfinished-", "step-").replace(".new", "").replace(
        ".writing", "a"
    ).replace(".tmp", ".pt")
    for path in (tmp_path / name, kept):
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    remove_half_written(tmp_path)
    assert not (tmp_path / name).exists()
    assert kept.exists() or kept == tmp_path / name


def test_leftovers_are_removed_only_after_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, young = time.time() - 3_660, time.time() - 3_540
    places = ("work/.probe-{}", "work/.coming-{}", "fetched/{}/.coming")
    for age, at in (("old", old), ("young", young)):
        for place in places:
            path = tmp_path / place.format(age)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            os.utime(path, (at, at))
    (tmp_path / "work" / "no-run").mkdir()
    (tmp_path / "work" / "no-run" / "config.toml").touch()
    whole = run_in(tmp_path, "run")
    remove_leftovers(tmp_path)
    left = [(tmp_path / place.format(age)).exists() for place in places for age in ("old", "young")]
    assert left == [False, True] * 3
    assert (tmp_path / "work" / "no-run").is_dir()
    really = time.time
    monkeypatch.setattr(time, "time", lambda: really() + 3_700)
    held = tmp_path / "work" / "held"
    held.mkdir()
    with RunLock.take(held):
        remove_leftovers(tmp_path)
        assert held.is_dir()
    remove_leftovers(tmp_path)
    assert not held.exists()
    assert not (tmp_path / "work" / "no-run").exists()
    assert whole.is_dir()


def test_a_run_of_another_host_is_stale_after_a_quarter_of_an_hour(tmp_path: Path) -> None:
    folder = run_in(tmp_path, "r")
    assert not is_stale(folder)
    RunStatus().write(folder)
    (folder / "run.lock.json").write_text('{"host": "elsewhere", "pid": 3}')
    for age, stale in ((895, False), (905, True)):
        at = time.time() - age
        os.utime(folder / "heartbeat", (at, at))
        assert is_stale(folder) is stale
        run = RunFolder.read(folder)
        assert run is not None
        assert read_record(run).status == ("stale" if stale else "RUNNING")
    (folder / "run.lock.json").write_text(json.dumps({"host": socket.gethostname(), "pid": 3}))
    assert not is_stale(folder)


def test_a_run_that_died_ended_at_its_last_sign_of_life_and_highest_step(tmp_path: Path) -> None:
    folder = run_in(tmp_path, "r")
    RunStatus(step=3, started="s", attempt=2).write(folder)
    lines = [json.dumps({"step": step, "time": 0, "metrics": {}}) for step in (5, 9, 7)]
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    os.utime(folder / "heartbeat", (1_000.0, 1_000.0))
    os.utime(folder / "metrics.jsonl", (2_000.0, 2_000.0))
    read = status_now(folder)
    assert read is not None
    assert (read.status, read.ended) == ("FAILED", now(2_000.0))
    with RunLock.take(folder):
        assert status_now(folder) == RunStatus.read(folder)
        status, died = end_dead(folder)
        assert died
        assert status == attrs.evolve(read, step=9)
        assert RunStatus.read(folder) == status
        assert not (folder / "heartbeat").exists()
        assert end_dead(folder) == (status, False)


# -- runs by what they are called ------------------------------------------------------------------


def test_of_many_that_are_meant_five_are_listed(home: Path) -> None:
    for number in range(7):
        run_in(home, f"abcd{number}", second=number)
    with pytest.raises(RequestError) as raised:
        resolve("walk")
    assert [hint.partition(" ")[0] for hint in raised.value.hints[:5]] == [
        f"abcd{number}" for number in (6, 5, 4, 3, 2)
    ]
    assert raised.value.hints[5:] == ("and 2 more", "try: the full id of one")
    with pytest.raises(RequestError) as raised:
        resolve("nothing like it")
    assert len(raised.value.hints) == 6
    for number in (0, 1):
        (home / "work" / f"abcd{number}" / "run.json").unlink()
    with pytest.raises(RequestError) as raised:
        resolve("walk")
    assert len(raised.value.hints) == 6


@pytest.fixture
def client(store_root: Path) -> MlflowClient:
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{store_root / 'mlflow.db'}")


def test_runs_of_mlflow_are_read_from_their_tags_params_and_metrics(
    client: MlflowClient, store_root: Path
) -> None:
    experiment = client.create_experiment("e")

    def create(name: str, at: int, **tags: str) -> str:
        named = {f"rlplug.{tag}": value for tag, value in tags.items()}
        run = client.create_run(experiment, at, {"rlplug.kind": "run", **named}, name)
        return str(run.info.run_id)

    old = create("old", 1_000, heartbeat=now(time.time() - 930))
    create("young", 2_000, heartbeat=now(time.time() - 870))
    whole = create(
        "whole",
        3_000,
        algo="ppo",
        env="E-v0",
        seed="3",
        group="g",
        steps="50",
        options="a=1 b.c=x y=2 gone=[1, 2]",
        stop_reason="finished",
        stopped_at_step="9",
        pending_upload="true",
        root=str(store_root),
    )
    client.create_run(experiment, 4_000, {"rlplug.kind": "summary"}, "not a run")
    run_in(store_root, whole)
    for param, text in (("algorithm.a", "1.0"), ("b.c", "x y=2"), ("env.aa", "0")):
        client.log_param(whole, param, text)
    for name, value, step in (
        ("eval/best_return_mean", 7.0, 20),
        ("eval/best_step", 10.0, 20),
        ("loss", 0.5, 21),
        ("loss", 0.25, 22),
    ):
        client.log_metric(whole, name, value, 5, step)
    client.set_terminated(whole, "FINISHED", 5_000)
    uri = f"sqlite:///{store_root / 'mlflow.db'}"
    found = tracked_runs(uri)
    assert [run.name for run in found] == ["whole", "young", "old"]
    run = found[0]
    assert run.about == RunAbout(
        algorithm="ppo",
        env="E-v0",
        seed=3,
        group="g",
        steps=50,
        options={"algorithm.a": "1.0", "b.c": "x y=2", "y": "2", "gone": "[1, 2]"},
    )
    assert (run.status, run.reason, run.step) == ("FINISHED", "finished", 22)
    assert (run.started, run.ended) == (now(3.0), now(5.0))
    assert (run.best, run.latest["loss"], run.pending) == ((10, 7.0), 0.25, True)
    assert (run.folder, run.uri) == (store_root / "work" / whole, uri)
    assert (found[1].status, found[2].status, found[2].ended) == ("RUNNING", "stale", "")
    assert (found[1].pending, found[1].folder, found[1].step) == (False, None, 0)
    assert [run.name for run in tracked_runs(uri, most=1)] == ["whole"]
    assert [run.name for run in tracked_runs(uri, "attributes.run_name = 'old'")] == ["old"]
    assert tracked_runs(f"{uri}x") == []
    values = list(tracked_values(uri, whole, ["loss", "none"]))
    assert values == [(21, {"loss": 0.5}), (22, {"loss": 0.25})]
    assert len(list(tracked_values(uri, whole))) == 4
    assert resolve_one(old[:8]).name == "old"
    with pytest.raises(RequestError, match="there is no run"):
        resolve(old[:3])


# -- details, sizes, views -------------------------------------------------------------------------


def checkpoint_of(folder: Path, step: int, **facts: Any) -> None:
    place = folder / "checkpoints" / f"step-{step:09d}"
    place.mkdir(parents=True)
    (place / "manifest.json").write_text(json.dumps({"step": step, **facts}))


def test_the_details_of_a_run_are_its_curves_checkpoints_plugins_and_command(home: Path) -> None:
    folder = run_in(home, "r", command="rlplug run --algo ppo")
    reports: list[tuple[int, dict[str, float]]] = [
        (10, {"eval/return_mean": 5.0, "loss": 1.0}),
        (20, {"eval/return_mean": 4.0, "eval/best_return_mean": 5.0, "eval/best_step": 10.0}),
    ]
    lines = [json.dumps({"step": step, "time": 0, "metrics": one}) for step, one in reports]
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    checkpoint_of(folder, 10, plugins={"ppo": "rlplug-ppo 0.0"})
    checkpoint_of(folder, 20, finite=False, plugins={"ppo": "rlplug-ppo 0.1", "b": "b 2"})
    checkpoint_of(folder, 15, finite=True)
    (folder / "checkpoints" / "step-000000030").mkdir()
    (folder / "checkpoints" / "step-000000030" / "manifest.json").write_text("[]")
    run = resolve_one(str(folder))
    details = read_details(run)
    assert [(one.step, one.score, list(one.marks)) for one in details.checkpoints] == [
        (10, 5.0, ["best"]),
        (15, None, []),
        (20, 4.0, ["last", "not finite"]),
    ]
    assert list(details.plugins) == ["ppo (rlplug-ppo 0.1)", "b (b 2)"]
    assert details.command == "rlplug run --algo ppo"
    assert list(read_history(run, ["loss"])) == ["loss"]
    assert len(read_history(run)) == 4
    tags = {"rlplug.plugins": "ppo 1 (x),  b 2 (y), "}
    (folder / "tags.json").write_text(json.dumps(tags))
    assert list(read_details(run).plugins) == ["ppo 1 (x)", "b 2 (y)"]


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
