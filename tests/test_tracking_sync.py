"""The way of a run to MLflow: outages, hanging servers and full disks lose and end nothing."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from mlflow import MlflowClient

import rlplug as library
from rlplug.checkpoint import checkpoints_in
from rlplug.config.sections import RunConfig, RunSection, TrackingSection
from rlplug.errors import RequestError
from rlplug.plugin import NoOptions
from rlplug.tracking import Tracking, open_tracking
from rlplug.tracking.journal import read_journal
from rlplug.tracking.location import RunFolder, runs_folder
from rlplug.tracking.reading import recorded_runs
from rlplug.tracking.resolve import resolve_one
from rlplug.tracking.status import RunStatus
from tests.proxy import Gate, Proxy
from tests.warm import Warm

if TYPE_CHECKING:
    from tests.conftest import Outcome

Command = Callable[..., "Outcome"]

OFFLINE = "--set tracking.offline_ok=true"


@pytest.fixture
def port(served: str) -> int:
    return urlsplit(served).port or 0


@pytest.fixture
def proxy(port: int) -> Iterator[Proxy]:
    proxy = Proxy(port)
    yield proxy
    proxy.close()


@pytest.fixture
def gate(port: int) -> Iterator[Gate]:
    gate = Gate(port)
    yield gate
    gate.close()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RLPLUG_HOME", str(tmp_path / "runs"))
    return tmp_path / "runs"


def start(root: Path, said: list[str], **tracking: Any) -> Tracking:
    config = RunConfig(
        run=RunSection(algorithm="none", steps=40),
        algorithm=NoOptions(),
        tracking=TrackingSection(git_diff=False, **tracking),
    )
    return open_tracking(config, environment="Nowhere-v0", root=root, warn=said.append)


def points(uri: str, run_id: str, name: str = "a") -> list[int]:
    return sorted(one.step for one in MlflowClient(uri).get_metric_history(run_id, name))


def journaled(folder: Path) -> list[int]:
    return [report.step for report in read_journal(folder / "metrics.jsonl")]


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def with_files(tracking: Tracking) -> None:
    """A checkpoint and a module, as a run saves them."""
    checkpoint = tracking.folder / "checkpoints" / "step-000000000020"
    (checkpoint / "policy").mkdir(parents=True)
    for name in ("policy/a.safetensors", "config.toml", "manifest.json"):
        (checkpoint / name).write_text(name)
    (tracking.folder / "module.safetensors").write_text("module")


# -- while all is well ---------------------------------------------------------------------------


def test_everything_reported_is_in_the_journal_and_once_in_mlflow(
    rlplug: Command, served: str, root: Path, synced: list[int]
) -> None:
    said: list[str] = []
    tracking = start(root, said, uri=served)
    metrics = {f"m{number}": 0.0 for number in range(10)}
    for step in range(250):
        metrics["a"] = float(step)
        tracking.listener.metrics_reported(step, metrics)
        if step == 100:
            # Parts of it are on their way when the rest is reported.
            tracking.listener.checkpoint_saved(step)
    tracking.write_journal()
    assert (tracking.folder / "metrics.jsonl").stat().st_ino in synced
    with_files(tracking)
    tracking.close("FINISHED")
    assert points(served, tracking.run_id) == points(served, tracking.run_id, "m9")
    assert points(served, tracking.run_id) == journaled(tracking.folder) == list(range(250))
    assert (said, tracking.missing, tracking.lost) == ([], "", 0)
    assert "rlplug.pending_upload" not in MlflowClient(served).get_run(tracking.run_id).data.tags
    where, look = tracking.describe()
    assert tracking.run_id in where
    assert f"{served}/#/experiments/" in look
    assert ": nothing uploaded." in rlplug("runs", "sync", tracking.run_id).out


def test_a_run_in_progress_is_not_synced(rlplug: Command, served: str, root: Path) -> None:
    tracking = start(root, [], uri=served)
    told = rlplug("runs", "sync", tracking.run_id)
    assert told.code == 2
    assert f"run {tracking.run_id} is in progress (pid {os.getpid()} on " in told.err
    tracking.close("FINISHED")


def test_artifacts_on_the_same_disk_take_no_space_and_survive_the_folder(
    store_root: Path,
) -> None:
    tracking = start(store_root, [])
    with_files(tracking)
    tracking.close("FINISHED")
    client = MlflowClient(f"sqlite:///{store_root / 'mlflow.db'}")
    place = Path(client.get_run(tracking.run_id).info.artifact_uri.removeprefix("file://"))
    own = {file.stat().st_ino for file in tracking.folder.rglob("*")}
    there = [file for file in place.rglob("*") if file.is_file()]
    assert {"manifest.json", "config.toml", "run.log"} < {file.name for file in there}
    assert {file.stat().st_ino for file in there} <= own
    shutil.rmtree(tracking.folder)
    assert all(file.stat().st_size for file in there)


def test_on_another_disk_artifacts_are_copies(store_root: Path) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == store_root.stat().st_dev:
        pytest.skip("needs a second file system")
    elsewhere = memory / f"rlplug-test-{os.getpid()}"
    client = MlflowClient(f"sqlite:///{store_root / 'mlflow.db'}")
    client.create_experiment("elsewhere", elsewhere.as_uri())
    try:
        tracking = start(store_root, [], experiment="elsewhere")
        with_files(tracking)
        tracking.close("FINISHED")
        module = elsewhere / tracking.run_id / "artifacts" / "module" / "module.safetensors"
        assert module.read_text() == "module"
    finally:
        shutil.rmtree(elsewhere, ignore_errors=True)


# -- a server that is away, fails or hangs -------------------------------------------------------


def test_a_server_that_fails_for_a_while_loses_no_point(gate: Gate, root: Path) -> None:
    said: list[str] = []
    tracking = start(root, said, uri=gate.uri)
    gate.code = 500
    tracking.listener.metrics_reported(1, {"a": 1.0})
    tracking.listener.checkpoint_saved(1)
    wait_for(lambda: said)
    gate.code = 0
    tracking.listener.metrics_reported(2, {"a": 2.0})
    tracking.listener.checkpoint_saved(2)
    wait_for(lambda: len(said) == 2)
    tracking.close("FINISHED")
    assert "MLflow does not take metrics" in said[0]
    assert said[1:] == ["MLflow is reachable again; all metrics are uploaded."]
    assert points(gate.uri, tracking.run_id) == [1, 2]


def test_a_server_that_fails_at_the_end_leaves_a_run_that_sync_completes(
    rlplug: Command, gate: Gate, root: Path
) -> None:
    said: list[str] = []
    tracking = start(root, said, uri=gate.uri)
    gate.code = 500
    tracking.listener.metrics_reported(1, {"a": 1.0})
    tracking.listener.checkpoint_saved(1)
    wait_for(lambda: said)
    tracking.close("FINISHED")
    assert f"To upload: rlplug runs sync {tracking.run_id}" in said[-1]
    gate.code = 0
    assert rlplug("runs", "sync").code == 0
    run = MlflowClient(gate.uri).get_run(tracking.run_id)
    assert (run.info.status, run.data.metrics["a"]) == ("FINISHED", 1.0)


def test_a_hanging_server_holds_a_run_for_seconds_and_sync_uploads_the_rest(
    rlplug: Command, served: str, proxy: Proxy, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlplug.tracking.writer.SILENT_SECONDS", 2.0)
    said: list[str] = []
    tracking = start(root, said, uri=proxy.uri)
    tracking.listener.metrics_reported(10, {"a": 1.0})
    tracking.listener.checkpoint_saved(10)
    client = MlflowClient(served)
    wait_for(lambda: client.list_artifacts(tracking.run_id, "logs"))
    proxy.hangs.set()
    tracking.listener.metrics_reported(20, {"a": 1.0, "b": 2.0})
    # This one is sent, and no answer comes.
    tracking.listener.checkpoint_saved(20)
    wait_for(proxy.waiting.is_set)
    tracking.listener.metrics_reported(30, {"a": 1.0, "b": 2.0})
    with_files(tracking)
    tracking.listener.run_finished(30)
    before = time.monotonic()
    tracking.close()
    # 2, and what a loaded machine may add.
    assert time.monotonic() - before < 8
    command = f"rlplug runs sync {tracking.run_id}"
    # The log and the ranking of checkpoints, too.
    found = re.fullmatch(
        r"not in MLflow: 4 metric values and (\d) files. To upload: (.*)", said[-1]
    )
    assert found is not None
    assert found[2] == command
    assert tracking.describe()[-1].endswith(f": {command}")
    assert journaled(tracking.folder) == [10, 20, 30]
    status = RunStatus.read(tracking.folder)
    assert status is not None
    assert (status.status, status.pending) == ("FINISHED", True)

    away = rlplug("runs", "sync")
    assert away.code == 1
    assert "does not answer" in away.err
    proxy.hangs.clear()
    told = rlplug("runs", "sync")
    assert (told.code, told.err) == (0, "")
    assert f"run {tracking.run_id} ({tracking.run_name}): 4 metric values and " in told.out
    run = client.get_run(tracking.run_id)
    assert run.info.status == "FINISHED"
    assert "rlplug.pending_upload" not in run.data.tags
    assert points(served, tracking.run_id) == [10, 20, 30]
    there = {one.path for one in client.list_artifacts(tracking.run_id)}
    assert {"checkpoints", "module", "config", "logs"} <= there
    assert rlplug("runs", "sync").out.startswith(f"everything in {root} is in MLflow.\n")


@pytest.mark.parametrize(("code", "path"), [(500, "/api"), (503, "/"), (0, "")])
def test_a_server_that_fails_at_the_start_is_refused_with_the_option_to_go_on(
    gate: Gate, root: Path, code: int, path: str
) -> None:
    gate.code, gate.path = code, path
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = gate.uri if code else f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(RequestError) as refused:
            start(root, [], uri=uri)
    assert OFFLINE in refused.value.hints[0]
    assert not list(root.glob("work/*/run.json"))


def test_a_run_that_is_deleted_in_mlflow_takes_no_more_which_is_said_once(store_root: Path) -> None:
    said: list[str] = []
    tracking = start(store_root, said)
    MlflowClient(f"sqlite:///{store_root / 'mlflow.db'}").delete_run(tracking.run_id)
    for step in range(10):
        tracking.listener.metrics_reported(step, {"a": 1.0})
        tracking.listener.checkpoint_saved(step)
    wait_for(lambda: said)
    tracking.close("FINISHED")
    assert "MLflow does not take metrics or files" in said[0]
    assert said[1].startswith("not in MLflow: 10 metric values and 2 files.")
    assert len(said) == 2
    assert len(journaled(tracking.folder)) == 10


def test_artifacts_that_cannot_be_written_cost_no_metric_and_no_status(
    store_root: Path, tmp_path: Path
) -> None:
    client = MlflowClient(f"sqlite:///{store_root / 'mlflow.db'}")
    # Also the superuser can make no folder below a file.
    (tmp_path / "file").write_text("")
    client.create_experiment("refused", (tmp_path / "file" / "artifacts").as_uri())
    said: list[str] = []
    tracking = start(store_root, said, experiment="refused")
    tracking.listener.metrics_reported(40, {"a": 1.0})
    tracking.listener.checkpoint_saved(40)
    wait_for(lambda: said)
    tracking.close("FINISHED")
    run = client.get_run(tracking.run_id)
    assert (run.info.status, run.data.metrics["a"]) == ("FINISHED", 1.0)
    assert run.data.tags["rlplug.pending_upload"] == "true"
    assert re.search("not in MLflow: . files. To upload: ", said[-1])


# -- a server that is away from the start, or when a run goes on ---------------------------------


class Away:
    """A server that is away until `back` is called."""

    def __init__(self, port: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self._own = taken.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self._own}"
        self._port = port
        self._proxy: Proxy | None = None

    def back(self) -> None:
        self._proxy = Proxy(self._port, self._own)

    def go(self) -> None:
        if self._proxy is not None:
            self._proxy.close()


@pytest.fixture
def away(port: int, root: Path, installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Away]:
    server = Away(port)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", root.parent.name)
    yield server
    server.go()


OPTIONS = {"checkpoint.every": 200, "evaluation.episodes": 0}


def tracked(folder: Path) -> str:
    run = RunFolder.read(folder)
    assert run is not None
    return run.id_in_mlflow


def test_a_run_that_started_during_an_outage_is_created_with_all_it_has_by_sync(
    away: Away, served: str, rlplug: Command, caplog: pytest.LogCaptureFixture
) -> None:
    client = MlflowClient(served)
    with pytest.raises(RequestError, match=r"--set tracking\.offline_ok=true"):
        library.run("means", steps=1_000)
    assert not [one for one in runs_folder().glob("work/*") if one.is_dir()]
    options = {**OPTIONS, "tracking.offline_ok": True, "checkpoint.keep": 2}
    result = library.run("means", steps=1_000, options=options, tags={"team": "blue"})
    command = f"rlplug runs sync {result.run_id}"
    (warned,) = [one for one in caplog.messages if "does not answer" in one]
    assert warned.endswith(
        f"The run goes on without it, and is kept in {result.folder} until: {command}"
    )
    missing = result.where[-1].removeprefix("not in MLflow: ").partition(":")[0]
    assert re.fullmatch(r"[\d,]{3,} metric values and \d\d files", missing)
    refused = rlplug("runs", "sync", result.run_id)
    assert refused.code == 1
    assert "does not answer" in refused.err

    away.back()
    told = rlplug("runs", "sync")
    assert (told.code, told.err) == (0, "")
    run = client.get_run(tracked(result.folder))
    assert run.info.run_id != result.run_id
    assert f"it was created in MLflow as run {run.info.run_id}." in told.out
    assert f"{missing} uploaded" in told.out
    assert run.info.status == "FINISHED"
    assert run.data.params["run.steps"] == "1000"
    tags = run.data.tags
    assert (tags["rlplug.local_id"], tags["team"]) == (result.run_id, "blue")
    assert "rlplug.plugins" in tags
    assert "rlplug.pending_upload" not in tags
    # In the time that it really took.
    assert run.info.end_time - run.info.start_time < 60_000
    steps = points(served, run.info.run_id, "time/updates")
    assert steps[-1] == 1_000
    assert len(set(steps)) == len(steps)
    there = [one.path for one in client.list_artifacts(run.info.run_id, "checkpoints")]
    mine = [f"checkpoints/{one.name}" for one in checkpoints_in(result.folder / "checkpoints")]
    # The ranking of checkpoints is beside them.
    assert there == ["checkpoints/README.md", *mine]
    assert rlplug("runs", "sync").out.startswith("everything in ")
    # Both ids name the run.
    for name in (result.run_id, run.info.run_id, run.info.run_id[:8]):
        assert resolve_one(name).run_id == result.run_id
    listed = rlplug("runs", "--json").out.splitlines()
    assert sum(result.run_id in one for one in listed) == 1


def test_a_run_goes_on_during_an_outage_and_no_point_is_twice_or_missing_after_a_sync(
    away: Away, served: str, rlplug: Command, caplog: pytest.LogCaptureFixture
) -> None:
    client = MlflowClient(served)
    away.back()
    with pytest.raises(ArithmeticError, match="planted"):
        library.run("means", steps=1_000, options={**OPTIONS, "fail_at": 500})
    away.go()
    (folder,) = (one for one in (runs_folder() / "work").glob("*/") if one.is_dir())
    known = points(served, folder.name, "time/updates")
    refused = rlplug("resume", "last", "--set", "fail_at=0", "--allow-drift")
    assert refused.code == 2
    assert OFFLINE in refused.err
    # Which is no drift.
    more = ("--set", "fail_at=0", "--allow-drift", "--set", "tracking.offline_ok=true", "--json")
    done = rlplug("resume", "last", *more)
    assert (done.code, json.loads(done.out)["step"]) == (0, 1_000)
    assert caplog.text.count("does not answer") == 1
    assert client.get_run(folder.name).info.status == "FAILED"
    away.back()
    told = rlplug("runs", "sync")
    assert (told.code, told.err) == (0, "")
    run = client.get_run(folder.name)
    assert run.info.status == "FINISHED"
    assert run.data.tags["rlplug.attempt"] == "2"
    assert run.data.tags["rlplug.resumed_from_step"] == "400"
    assert "rlplug.error" not in run.data.tags
    assert list(json.loads(run.data.tags["rlplug.param_drift"])) == ["algorithm.fail_at"]
    steps = points(served, folder.name, "time/updates")
    assert steps[-1] == 1_000
    assert len(set(steps)) == len(steps) > len(known)


def test_a_run_that_started_during_an_outage_is_created_when_it_is_resumed_after_it(
    away: Away, served: str, rlplug: Command
) -> None:
    options = {**OPTIONS, "tracking.offline_ok": True, "fail_at": 500}
    with pytest.raises(ArithmeticError, match="planted"):
        library.run("means", steps=1_000, options=options)
    (folder,) = (one for one in (runs_folder() / "work").glob("*/") if one.is_dir())
    away.back()
    done = rlplug("resume", "last", "--set", "fail_at=0", "--allow-drift", "--quiet", "--json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["run_id"] == folder.name
    run = MlflowClient(served).get_run(tracked(folder))
    assert run.info.status == "FINISHED"
    steps = points(served, run.info.run_id, "time/updates")
    assert (steps[0], steps[-1]) == (4, 1_000)
    assert len(set(steps)) == len(steps)
    assert rlplug("runs", "sync").out.startswith("everything in ")


# -- disks ---------------------------------------------------------------------------------------


def test_a_journal_that_can_be_written_again_gets_what_was_kept_in_memory(store_root: Path) -> None:
    said: list[str] = []
    tracking = start(store_root, said)
    journal, aside = tracking.folder / "metrics.jsonl", tracking.folder / "aside"
    journal.rename(aside)
    tracking.listener.metrics_reported(1, {"a": 1.0})
    wait_for(lambda: said)
    assert f"{journal} cannot be written" in said[0]
    aside.rename(journal)
    tracking.listener.metrics_reported(2, {"a": 2.0})
    wait_for(lambda: len(said) == 2)
    tracking.close("FINISHED")
    assert said[1:] == [f"the journal {journal} is writable again; nothing is lost."]
    assert journaled(tracking.folder) == [1, 2]
    assert points(f"sqlite:///{store_root / 'mlflow.db'}", tracking.run_id) == [1, 2]
    assert (tracking.lost, tracking.missing) == (0, "")


@pytest.mark.parametrize("enabled", [True, False])
def test_of_a_deleted_journal_nothing_is_called_kept(enabled: bool, store_root: Path) -> None:
    said: list[str] = []
    tracking = start(store_root, said, enabled=enabled)
    tracking.listener.metrics_reported(10, {"a": 1.0, "b": 2.0})
    journal = tracking.folder / "metrics.jsonl"
    wait_for(journal.read_bytes)
    journal.unlink()
    if enabled:
        (store_root / "mlflow.db").unlink()
    tracking.listener.metrics_reported(20, {"a": 1.0})
    tracking.close("FINISHED")
    assert any(f"{journal} cannot be written" in line for line in said)
    assert any(line.startswith("3 metric values are lost") for line in said)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a file system is not permitted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("enabled", [True, False])
def test_a_full_disk_at_the_end_loses_no_status_and_what_is_lost_is_said(
    enabled: bool, small_disk: Path, tmp_path: Path, empty_store: Path
) -> None:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    said: list[str] = []
    root = small_disk / "runs"
    tracking = start(root, said, uri=uri, enabled=enabled)
    tracking.listener.metrics_reported(10, {"a": 1.0})
    tracking.write_journal()
    ballast = (small_disk / "ballast").open("wb", buffering=0)
    with ballast, contextlib.suppress(OSError):
        while ballast.write(b"\0" * 4096) == 4096:
            pass
    for step in range(20, 2020):
        tracking.listener.metrics_reported(step, {"a": 1.0, "b": 2.0})
    tracking.listener.run_finished(2020)
    tracking.close()
    assert "metrics.jsonl cannot be written (No space left on device)" in said[0]
    status = RunStatus.read(tracking.folder)
    assert status is not None
    assert (status.status, status.step) == ("FINISHED", 2020)
    if enabled:
        assert MlflowClient(uri).get_run(tracking.run_id).info.status == "FINISHED"
        assert points(uri, tracking.run_id) == [10, *range(20, 2020)]
        assert not any("lost" in line for line in said)
    else:
        assert any(line.startswith("4,000 metric values are lost") for line in said)
    (small_disk / "ballast").unlink()
    (row,) = recorded_runs(root)
    assert row.status == "FINISHED"


# -- two hosts -----------------------------------------------------------------------------------

ON_A_HOST = """
import ctypes, json, socket, sys
CLONE_NEWUTS = 0x04000000
assert ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUTS) == 0, ctypes.get_errno()
socket.sethostname(sys.argv[3])
from pathlib import Path
from rlplug.config.sections import RunConfig, RunSection, TrackingSection
from rlplug.plugin import NoOptions
from rlplug.tracking import open_tracking
config = RunConfig(
    run=RunSection(algorithm="none"),
    algorithm=NoOptions(),
    tracking=TrackingSection(uri=sys.argv[1], git_diff=False),
)
tracking = open_tracking(config, environment="Shared-v0", root=Path(sys.argv[2]))
tracking.listener.metrics_reported(1, {"a": 1.0})
tracking.close("FINISHED")
print(json.dumps([tracking.run_id, socket.gethostname()]))
"""


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "--uts", "true"], capture_output=True).returncode != 0,
    reason="a second host name needs the permission for it",
)
def test_two_hosts_write_one_experiment_at_once(served: str, tmp_path: Path, warm: Warm) -> None:
    environ = {key: value for key, value in os.environ.items() if "MLFLOW" not in key}
    running = [
        warm.start(served, str(tmp_path / host), host, code=ON_A_HOST, environ=environ)
        for host in ("host-one", "host-two")
    ]
    answers = [one.communicate(timeout=120) for one in running]
    assert [one.returncode for one in running] == [0, 0], answers
    made = dict(json.loads(out) for out, _ in answers)
    client = MlflowClient(served)
    runs = {run_id: client.get_run(run_id) for run_id in made}
    assert {run_id: run.data.tags["rlplug.host"] for run_id, run in runs.items()} == made
    assert len({run.info.experiment_id for run in runs.values()}) == 1
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
