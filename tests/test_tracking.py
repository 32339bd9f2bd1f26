"""A run in a real MLflow store: what is recorded, how it ends, and what is refused before it."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest

from rlplug.config.option import option
from rlplug.config.sections import (
    EnvSection,
    RunConfig,
    RunSection,
    TrackingSection,
)
from rlplug.errors import RequestError
from rlplug.hooks.events import RunInfo
from rlplug.registry import FoundPlugin, Participant
from rlplug.tracking import Tracking, open_tracking
from rlplug.tracking.journal import read_journal
from tests.warm import Warm

if TYPE_CHECKING:
    from mlflow import MlflowClient


@attrs.frozen(kw_only=True)
class Options:
    alpha: float = option(1.0, "Width.")
    net_arch: tuple[int, ...] = option((64, 64), "Sizes.")
    table: str = option("", "A long text.")


@pytest.fixture
def root(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RLPLUG_HOME", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "all runs"
    folder.mkdir()
    shutil.copy(empty_store, folder / "mlflow.db")
    return folder


def config_of(seed: int = 0, alpha: float = 1.0, table: str = "", **tracking: object) -> RunConfig:
    return RunConfig(
        run=RunSection(algorithm="linucb", env="LinearBandit-v0", seed=seed, steps=40),
        algorithm=Options(alpha=alpha, table=table),
        env=EnvSection(arguments={"arms": 4}),
        tracking=TrackingSection(**tracking),  # type: ignore[arg-type]
    )


def info_of(tracking: Tracking, config: RunConfig) -> RunInfo:
    plugin = FoundPlugin(
        kind="algorithm", name="linucb", target="a:b", distribution="rlplug-linucb", version="0.1.0"
    )
    return RunInfo(
        run_id=tracking.run_id,
        folder=tracking.folder,
        config=config,
        participants=(Participant(plugin, object()),),
        hook_order={"build": ["linucb"]},
        environment="LinearBandit-v0",
        steps=40,
        progress=lambda: 0,
    )


Opened = Callable[..., Tracking]


@pytest.fixture
def opened(root: Path) -> Iterator[Opened]:
    """Open the tracking of a run that has started; it is closed at the latest with the test."""
    made: list[Tracking] = []

    def start(config: RunConfig | None = None) -> Tracking:
        config = config or config_of()
        made.append(open_tracking(config, environment="LinearBandit-v0", root=root))
        made[-1].listener.run_started(info_of(made[-1], config))
        return made[-1]

    yield start
    for tracking in made:
        tracking.close("FAILED")


@pytest.fixture
def client(root: Path) -> MlflowClient:
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{root / 'mlflow.db'}")


def history(client: MlflowClient, run_id: str, name: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in client.get_metric_history(run_id, name)]


# -- what is recorded ----------------------------------------------------------------------------


@pytest.mark.usefixtures("curves")
def test_a_finished_run_has_its_metrics_picture_config_and_description(
    opened: Opened, client: MlflowClient, root: Path
) -> None:
    tracking = opened()
    for step in (10, 20, 40):
        metrics = {"rollout/reward_mean": step / 40, "rollout/regret_total": 3.0}
        tracking.listener.metrics_reported(step, metrics)
    tracking.listener.evaluation_finished(40, {"eval/return_mean": 0.75})
    tracking.listener.run_finished(40)
    tracking.close()

    run = client.get_run(tracking.run_id)
    assert (run.info.status, run.data.tags["rlplug.stop_reason"]) == ("FINISHED", "finished")
    points = [(10, 0.25), (20, 0.5), (40, 1.0)]
    assert history(client, tracking.run_id, "rollout/reward_mean") == points
    assert history(client, tracking.run_id, "eval/return_mean") == [(40, 0.75)]
    assert (tracking.folder / "plots" / "learning_curve.png").read_bytes()[:4] == b"\x89PNG"
    for path in ("plots/learning_curve.png", "config/config.toml", "report.html"):
        assert Path(client.download_artifacts(tracking.run_id, path, str(root))).stat().st_size
    note = run.data.tags["mlflow.note.content"]
    assert "finished after 40 of 40 environment steps" in note
    assert "- rollout/reward_mean: 1\n- rollout/regret_total: 3\n" in note


def test_params_and_tags_say_what_was_run_by_whom_and_from_where(
    opened: Opened, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/opt/bin/rlplug", "run", "--algo", "linucb"])
    text = "0123456789" * 1000
    tracking = opened(config_of(seed=3, table=text, tags={"team": "ads"}))
    data = client.get_run(tracking.run_id).data
    assert data.params["algorithm.alpha"] == "1.0"
    assert data.params["algorithm.net_arch"] == "[64, 64]"
    assert data.params["env.arms"] == "4"
    assert data.params["run.seed"] == "3"
    # Cut in MLflow, and whole in the config.
    assert len(data.params["algorithm.table"]) == 6000
    assert text in (tracking.folder / "config.toml").read_text()
    tracking.close("FINISHED")
    tags = client.get_run(tracking.run_id).data.tags
    assert tags["team"] == "ads"
    assert tags["rlplug.seed"] == "3"
    assert tags["rlplug.host"] == os.uname().nodename
    assert tags["mlflow.source.name"] == "rlplug run --algo linucb"
    assert tags["rlplug.plugins"] == "linucb 0.1.0 (rlplug-linucb)"


def test_seeds_share_a_group_and_other_options_do_not_and_a_taken_name_is_numbered(
    opened: Opened, client: MlflowClient, root: Path
) -> None:
    configs = (config_of(seed=0), config_of(seed=1), config_of(seed=0, alpha=2.0))
    runs = [client.get_run(opened(config).run_id) for config in configs]
    first, second, third = (run.data.tags["rlplug.group"] for run in runs)
    assert first == second != third
    names = [f"linucb-LinearBandit-v0-{end}" for end in ("s0", "s1", "s0-2")]
    assert [run.info.run_name for run in runs] == names
    experiment = client.get_experiment_by_name("rlplug/LinearBandit-v0")
    assert experiment is not None
    place = (root / "artifacts" / "rlplug-LinearBandit-v0").as_uri()
    assert experiment.artifact_location == place
    for _ in range(2):
        run = client.get_run(opened(config_of(run_name="it's mine", experiment="tries")).run_id)
        assert run.info.run_name == "it's mine"
        assert client.get_experiment(run.info.experiment_id).name == "tries"


def test_names_and_numbers_that_mlflow_refuses_are_recorded_as_valid_ones(
    opened: Opened, client: MlflowClient
) -> None:
    tracking = opened()
    names = ["ok", "a//b", "../up", "train/σ²", "q[0]=best?", "x" * 400, "", "/"]
    values = (1.0, math.nan, math.inf, -math.inf, 2.0, 3.0, 4.0, 5.0)
    for step, (name, value) in enumerate(zip(names, values, strict=True)):
        tracking.listener.metrics_reported(step, {name: 1.0, "loss": value})
    tracking.close("FINISHED")
    run = client.get_run(tracking.run_id)
    wanted = {"ok", "a/b", "up", "train/σ²", "q_0__best_", "x" * 250, "unnamed"}
    assert wanted <= set(run.data.metrics)
    points = dict(history(client, tracking.run_id, "loss"))
    assert [step for step, value in points.items() if math.isnan(value)] == [1, 2, 3]
    assert (run.data.metrics["train/nonfinite"], len(points)) == (3, 8)
    assert run.data.tags["rlplug.nonfinite_step"] == "1"


# -- how it ends ---------------------------------------------------------------------------------


def test_a_run_that_fails_is_failed_and_says_why(
    opened: Opened, client: MlflowClient, root: Path
) -> None:
    tracking = opened()
    tracking.listener.metrics_reported(10, {"rollout/reward_mean": 0.5})
    try:
        raise ValueError("\n".join(["it is NaN", *(f"line {n}" for n in range(30))]))
    except ValueError as error:
        tracking.listener.run_failed(10, error)
    tracking.close()
    run = client.get_run(tracking.run_id)
    assert run.info.status == "FAILED"
    # The last twenty lines.
    assert run.data.tags["rlplug.error"].split("\n") == [f"line {n}" for n in range(10, 30)]
    trace = Path(client.download_artifacts(tracking.run_id, "logs/traceback.txt", str(root)))
    assert "in test_a_run_that_fails_is_failed_and_says_why" in trace.read_text()
    assert history(client, tracking.run_id, "rollout/reward_mean") == [(10, 0.5)]


def test_an_interrupted_run_is_killed_and_keeps_what_it_had(
    opened: Opened, client: MlflowClient
) -> None:
    tracking = opened()
    tracking.listener.metrics_reported(10, {"rollout/reward_mean": 0.5})
    tracking.listener.run_failed(10, KeyboardInterrupt())
    tracking.close()
    run = client.get_run(tracking.run_id)
    assert (run.info.status, run.data.tags["rlplug.stop_reason"]) == ("KILLED", "interrupted")
    assert "rlplug.error" not in run.data.tags
    assert history(client, tracking.run_id, "rollout/reward_mean") == [(10, 0.5)]


def test_an_error_before_the_first_step_leaves_no_run_that_seems_to_go_on(
    root: Path, client: MlflowClient
) -> None:
    tracking = open_tracking(config_of(), environment="LinearBandit-v0", root=root)
    with pytest.raises(ZeroDivisionError), tracking:
        raise ZeroDivisionError("in build")
    run = client.get_run(tracking.run_id)
    assert run.info.status == "FAILED"
    assert run.data.tags["rlplug.error"] == "ZeroDivisionError: in build"
    assert tracking.run_id in tracking.describe()[0]
    assert tracking.describe()[1] == f"look at it: RLPLUG_HOME='{root}' rlplug ui"


def test_the_log_has_the_start_the_warnings_the_end_and_what_followed(root: Path) -> None:
    def start(**more: object) -> Tracking:
        return open_tracking(config_of(enabled=False), environment="N-v0", root=root, **more)  # type: ignore[arg-type]

    def words() -> list[str]:
        lines = (tracking.folder / "logs" / "run.log").read_text().splitlines()
        return [line.partition(" ")[2] for line in lines]

    tracking = start()
    logging.getLogger("rlplug").warning("rlplug: no %s", "video")
    tracking.listener.run_finished(40)
    tracking.close()
    run = f"run {tracking.run_id}"
    started, warning, ended = words()
    assert started.startswith(f"INFO {run} (linucb-N-v0-s0) started: ")
    assert warning == "WARNING rlplug: no video"
    assert ended == f"INFO {run} ended at step 40: FINISHED"
    start(resume=tracking.folder, step=40).close("KILLED")
    assert " continued at step 40, attempt 2: " in words()[3]
    # A log that is closed hears nothing more.
    logging.getLogger("rlplug").warning("later")
    assert len(words()) == 5


# -- processes of their own ----------------------------------------------------------------------

SCRIPT = """
import logging, sys, time
from rlplug.config.sections import RunConfig, RunSection, TrackingSection
from rlplug.plugin import NoOptions
from rlplug.tracking import open_tracking
config = RunConfig(
    run=RunSection(algorithm="none"),
    algorithm=NoOptions(),
    tracking=TrackingSection(enabled=sys.argv[1] == "on"),
)
tracking = open_tracking(config, environment="Nowhere-v0")
for step in range(1, 11):
    tracking.listener.metrics_reported(step, {"a": float(step)})
if sys.argv[2] == "hang":
    print(tracking.folder, flush=True)
    time.sleep(600)
logging.getLogger("rlplug").warning("shown %d time", 1)
tracking.listener.run_finished(10)
tracking.close()
print(tracking.folder, "mlflow" in sys.modules, flush=True)
"""


def test_tracking_switched_off_keeps_the_journal_and_never_imports_mlflow(tmp_path: Path) -> None:
    environ = {**os.environ, "RLPLUG_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, "off", "go"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    # Python's own way to show warnings is as before.
    assert done.stderr == "shown 1 time\n"
    folder, imported = done.stdout.split()
    assert imported == "False"
    assert len(list(read_journal(Path(folder) / "metrics.jsonl"))) == 10
    assert not (tmp_path / "mlflow.db").exists()


def test_a_process_that_is_killed_leaves_its_journal(tmp_path: Path, warm: Warm) -> None:
    environ = {**os.environ, "RLPLUG_HOME": str(tmp_path)}
    process = warm.start("off", "hang", code=SCRIPT, environ=environ)
    while not process.out.endswith("\n"):
        assert process.poll() is None, process.err
        time.sleep(0.01)
    journal = Path(process.out.strip()) / "metrics.jsonl"
    patience = time.monotonic() + 30
    while not journal.read_bytes().endswith(b"}\n") and time.monotonic() < patience:
        pass
    process.kill()
    process.wait()
    assert [report.step for report in read_journal(journal)] == list(range(1, 11))


OPEN = """
import sys
from pathlib import Path
from rlplug.config.sections import RunConfig, RunSection
from rlplug.plugin import NoOptions
from rlplug.tracking import open_tracking
config = RunConfig(run=RunSection(algorithm="none"), algorithm=NoOptions())
open_tracking(config, environment="Nowhere-v0", root=Path(sys.argv[1])).close("FINISHED")
"""


def test_a_process_that_is_killed_while_it_creates_the_database_breaks_nothing(
    root: Path, empty_store: Path, warm: Warm
) -> None:
    def unfinished() -> list[Path]:
        found = root.glob("mlflow.db.creating-*")
        return [one for one in found if not one.name.endswith("journal")]

    (root / "mlflow.db").unlink()
    child = warm.start(str(root), code=OPEN)
    try:
        # Amid the migrations: the file has half of its final size.
        half = empty_store.stat().st_size / 2
        while max((one.stat().st_size for one in unfinished()), default=0) < half:
            assert child.poll() is None, "the child was to be killed before it was done"
            time.sleep(0.002)
    finally:
        child.kill()
        child.wait()
    assert unfinished()
    assert not (root / "mlflow.db").exists()
    open_tracking(config_of(), environment="Nowhere-v0", root=root).close("FINISHED")
    assert unfinished() == []
    with contextlib.closing(sqlite3.connect(root / "mlflow.db")) as database:
        assert database.execute("SELECT status FROM runs").fetchall() == [("FINISHED",)]


def test_processes_that_start_together_in_an_empty_folder_all_succeed(
    root: Path, warm: Warm
) -> None:
    (root / "mlflow.db").unlink()
    children = [warm.start(str(root), code=OPEN) for _ in range(4)]
    assert [child.wait() for child in children] == [0] * 4
    with contextlib.closing(sqlite3.connect(root / "mlflow.db")) as database:
        names = {name for (name,) in database.execute("SELECT name FROM runs")}
    assert names == {f"none-Nowhere-v0-s0{end}" for end in ("", "-2", "-3", "-4")}


# -- refused before the first step ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "found", "advice"),
    [
        ("./mlruns", "'./mlruns' is not the URI", "try: sqlite:////absolute"),
        ("file:///data/mlruns", "is not the URI", "try: sqlite:////absolute"),
        ("gopher://x", "is not the URI", "try: sqlite:////absolute"),
        ("http://127.0.0.1:9", "does not answer", "try: start the server"),
        ("postgresql://u:hunter2@127.0.0.1:9/x", "postgresql://***@127.0.0.1:9/x", "try: start"),
    ],
)
def test_a_uri_that_cannot_be_used_is_refused_with_one_thing_to_do(
    tmp_path: Path, uri: str, found: str, advice: str
) -> None:
    with pytest.raises(RequestError) as refused:
        open_tracking(config_of(uri=uri), environment="X-v0", root=tmp_path)
    assert found in refused.value.message
    assert refused.value.hints[0].startswith(advice)
    assert "hunter2" not in str(refused.value)


def test_places_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("these are notes, and no database, " * 10)
    with pytest.raises(RequestError, match="file is not a database"):
        open_tracking(config_of(), environment="X-v0", root=tmp_path)
    assert not list(tmp_path.glob("work/*/run.json"))
    with pytest.raises(RequestError, match=r"is not writable: Not a directory") as refused:
        open_tracking(config_of(), environment="X-v0", root=tmp_path / "mlflow.db" / "runs")
    assert "RLPLUG_HOME=/another/folder" in refused.value.hints[0]


def test_a_full_disk_is_refused(tmp_path: Path) -> None:
    # A limit on the size of files fails a write as a full disk does.
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "from pathlib import Path\n"
        "from rlplug.tracking.location import check_writable\n"
        "from rlplug.errors import RequestError\n"
        "try: check_writable(Path(sys.argv[1]))\n"
        "except RequestError as error: print(error)\n"
    )
    command = [sys.executable, "-c", limited, str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"the runs folder {tmp_path} is not writable: File too large." in said
    assert list((tmp_path / "work").iterdir()) == []


def test_a_deleted_experiment_is_refused(opened: Opened, client: MlflowClient) -> None:
    run = client.get_run(opened().run_id)
    client.delete_experiment(run.info.experiment_id)
    with pytest.raises(RequestError, match="was deleted in MLflow") as refused:
        opened()
    assert "mlflow experiments restore" in refused.value.hints[0]
