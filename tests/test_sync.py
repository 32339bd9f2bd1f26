"""What an outage left behind is said, kept on disk, and uploaded by `rlplug runs sync`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rlplug.config.sections import RunConfig, RunSection, TrackingSection
from rlplug.plugin import NoOptions
from rlplug.tracking import Tracking, open_tracking, writer
from rlplug.tracking.journal import read_journal
from rlplug.tracking.status import RunStatus
from rlplug.tracking.writer import SILENT_SECONDS
from tests.proxy import Proxy

if TYPE_CHECKING:
    from tests.conftest import Outcome

Command = Callable[..., "Outcome"]


@pytest.fixture
def proxy(served: str) -> Iterator[Proxy]:
    proxy = Proxy(int(served.rpartition(":")[2]))
    yield proxy
    proxy.close()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RLPLUG_HOME", str(tmp_path / "runs"))
    return tmp_path / "runs"


def start(uri: str, root: Path, said: list[str]) -> Tracking:
    config = RunConfig(
        run=RunSection(algorithm="none", steps=40),
        algorithm=NoOptions(),
        tracking=TrackingSection(uri=uri),
    )
    return open_tracking(config, environment="Nowhere-v0", root=root, warn=said.append)


def with_files(tracking: Tracking) -> None:
    """A checkpoint and a module, as a run saves them."""
    checkpoint = tracking.folder / "checkpoints" / "step-000000000020"
    (checkpoint / "policy").mkdir(parents=True)
    for name in ("policy/a.safetensors", "config.toml", "manifest.json"):
        (checkpoint / name).write_text(name)
    module = tracking.folder / "module.safetensors"
    module.write_text("module")


def test_a_hanging_server_holds_a_run_for_15_seconds_at_most_and_sync_uploads_the_rest(
    rlplug: Command, served: str, proxy: Proxy, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    # Drawing may count for half of it.
    assert SILENT_SECONDS * 1.5 == 15
    monkeypatch.setattr("rlplug.tracking.writer.SILENT_SECONDS", 2.0)
    said: list[str] = []
    tracking = start(proxy.uri, root, said)
    tracking.listener.metrics_reported(10, {"a": 1.0})
    tracking.listener.checkpoint_saved(10)
    client = MlflowClient(served)
    while not client.list_artifacts(tracking.run_id, "logs"):
        time.sleep(0.05)
    proxy.hangs.set()
    for step in (20, 30):
        tracking.listener.metrics_reported(step, {"a": 1.0, "b": 2.0})
    with_files(tracking)
    tracking.listener.run_finished(30)
    before = time.monotonic()
    tracking.close()
    # 3, and what a loaded machine may add.
    assert time.monotonic() - before < 8

    command = f"rlplug runs sync {tracking.run_id}"
    journal = tracking.folder / "metrics.jsonl"
    # The run's log is the fifth file.
    assert said[-1] == f"not in MLflow: 4 metric values and 5 files. To upload: {command}"
    assert tracking.describe()[-1].endswith(f": {command}")
    assert sum(len(report.metrics) for report in read_journal(journal)) == 5
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
    steps = [one.step for one in client.get_metric_history(tracking.run_id, "a")]
    assert steps == [10, 20, 30]
    there = {one.path for one in client.list_artifacts(tracking.run_id)}
    assert {"checkpoints", "module", "config", "logs"} <= there
    names = client.list_artifacts(tracking.run_id, "checkpoints/step-000000000020")
    assert sorted(one.path.rpartition("/")[2] for one in names) == [
        "config.toml",
        "manifest.json",
        "policy",
    ]
    status = RunStatus.read(tracking.folder)
    assert status is not None
    assert not status.pending
    assert rlplug("runs", "sync").out == f"everything in {root} is in MLflow.\n"


def test_a_run_that_mlflow_has_as_a_whole_has_nothing_pending(
    rlplug: Command, served: str, root: Path
) -> None:
    from mlflow import MlflowClient

    said: list[str] = []
    tracking = start(served, root, said)
    tracking.listener.metrics_reported(10, {"a": 1.0})
    with_files(tracking)
    tracking.close("FINISHED")
    assert said == []
    assert not tracking.missing
    tags = MlflowClient(served).get_run(tracking.run_id).data.tags
    assert "rlplug.pending_upload" not in tags
    assert len(tracking.describe()) == 2
    assert ": nothing uploaded." in rlplug("runs", "sync", tracking.run_id).out


def test_a_run_in_progress_is_not_synced(rlplug: Command, served: str, root: Path) -> None:
    tracking = start(served, root, [])
    told = rlplug("runs", "sync", tracking.run_id)
    assert told.code == 2
    assert f"run {tracking.run_id} is in progress (pid " in told.err
    tracking.close("FINISHED")


@pytest.mark.parametrize("enabled", [True, False])
def test_of_a_deleted_journal_nothing_is_called_kept(
    enabled: bool, root: Path, store_root: Path
) -> None:
    said: list[str] = []
    config = RunConfig(
        run=RunSection(algorithm="none", steps=40),
        algorithm=NoOptions(),
        tracking=TrackingSection(enabled=enabled),
    )
    tracking = open_tracking(config, environment="Nowhere-v0", root=store_root, warn=said.append)
    tracking.listener.metrics_reported(10, {"a": 1.0, "b": 2.0})
    journal = tracking.folder / "metrics.jsonl"
    while not journal.read_bytes():
        time.sleep(0.01)
    journal.unlink()
    if enabled:
        (store_root / "mlflow.db").unlink()
    tracking.listener.metrics_reported(20, {"a": 1.0})
    tracking.close("FINISHED")
    assert any(f"{journal} cannot be written" in line for line in said)
    assert any(line.startswith("3 metric values are lost") for line in said)
    assert not any("The values are in" in line for line in said)


def test_what_was_reported_while_a_request_hung_is_in_the_journal_when_the_run_has_closed(
    proxy: Proxy, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # How long an answer is really waited for is seen above.
    monkeypatch.setattr(writer, "SILENT_SECONDS", 2.0)
    tracking = start(proxy.uri, root, [])
    proxy.hangs.set()
    # This one is sent, and no answer comes.
    tracking.listener.metrics_reported(10, {"a": 1.0})
    tracking.listener.checkpoint_saved(10)
    while not proxy.waiting.is_set():
        time.sleep(0.05)
    tracking.listener.metrics_reported(20, {"a": 2.0})
    tracking.listener.run_finished(20)
    tracking.close()
    steps = [report.step for report in read_journal(tracking.folder / "metrics.jsonl")]
    assert steps == [10, 20]
    assert (tracking.folder / "logs" / "run.log").is_file()
