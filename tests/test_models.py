"""Models in MLflow: one for each evaluated checkpoint, with its scores, and none twice."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import gymnasium
import numpy
import pytest
from gymnasium import spaces

from rlplug import Acted, Algorithm, Module, resume, run
from rlplug.feeds import Stream
from rlplug.tracking.location import RunFolder
from rlplug.tracking.server import free_port
from rlplug.tracking.status import known_models
from rlplug.tracking.sync import Synced, sync_run
from tests.proxy import Gate, Proxy

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel

    from tests.conftest import Outcome
    from tests.warm import Warm

Cli = Callable[..., "Outcome"]


class Hall(gymnasium.Env[Any, Any]):
    """One step, whose reward is the action."""

    observation_space = spaces.Box(-1, 1, (2,), numpy.float32)
    action_space = spaces.Discrete(1000)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return numpy.zeros(2, numpy.float32), {}

    def step(self, action: Any) -> Any:
        return numpy.zeros(2, numpy.float32), float(action), True, False, {}


class Rising(Module):
    """Is better at every step, up to step 60, and worse from then on."""

    def forward_exploration(self, act: Any) -> Acted:
        step = act.timestep
        return Acted(numpy.full(len(act.observations), step if step <= 60 else 5))

    forward_inference = forward_exploration


class Rises(Algorithm):
    """Learns nothing."""

    def feed(self) -> Stream:
        return Stream()

    def build(self) -> Module:
        return Rising()

    def configure_optimizers_for_module(self) -> None:
        return None

    def additional_update(self) -> None:
        return None


OPTIONS = {"evaluation.episodes": 2, "evaluation.every": 20, "checkpoint.every": 20}
KEPT = ["step-000000000060", "step-000000000080", "step-000000000100"]
"""The best one, and the two last ones."""


def train(**options: Any) -> Path:
    return run(Rises, Hall, steps=100, options={**OPTIONS, **options}).folder


@pytest.fixture
def client(store_root: Path) -> MlflowClient:
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{store_root / 'mlflow.db'}")


def models_in(client: MlflowClient, folder: Path) -> list[LoggedModel]:
    """Those of a run, best first."""
    facts = json.loads((folder / "run.json").read_text())
    found = client.search_logged_models(
        [facts["experiment_id"]],
        f"source_run_id = '{facts.get('tracked_id') or folder.name}'",
        order_by=[{"field_name": "metrics.eval/return_mean", "ascending": False}],
    )
    return list(found)


def named(model: LoggedModel) -> str:
    return str(model.tags["rlplug.checkpoint"])


def place(model: LoggedModel) -> Path:
    return Path(model.artifact_location.removeprefix("file://"))


def assert_each_once(client: MlflowClient, folder: Path, kept: list[str] = KEPT) -> None:
    """Every evaluated checkpoint has one complete model, told once, and no score is there twice."""
    models = models_in(client, folder)
    assert sorted(named(one) for one in models) == kept
    assert {str(one.status) for one in models} == {"READY"}
    assert known_models(folder) == {named(one): one.model_id for one in models}
    tracked = client.get_run(models[0].source_run_id)
    told = [one.model_id for one in tracked.outputs.model_outputs]
    assert sorted(one for one in told if one in {each.model_id for each in models}) == sorted(
        one.model_id for one in models
    )
    points = client.get_metric_history(tracked.info.run_id, "eval/return_mean")
    assert sorted(one.step for one in points) == sorted({one.step for one in points})
    for model in models:
        (score,) = [one for one in model.metrics if one.key == "eval/return_mean"]
        assert score.step == int(model.params["step"])
        files = client.list_logged_model_artifacts(model.model_id, "checkpoint")
        assert "checkpoint/manifest.json" in {one.path for one in files}


def test_evaluated_checkpoints_are_models_that_are_ranked_by_their_scores(
    client: MlflowClient,
) -> None:
    folder = train()
    models = models_in(client, folder)
    assert_each_once(client, folder)
    best = models[0]
    assert named(best) == KEPT[0]
    assert best.params["step"] == "60"
    assert best.params["algorithm"] == "rises"
    assert best.name == "rises-s0-step-000000060"
    scores = {one.key: one.value for one in best.metrics}
    assert scores["eval/return_mean"] == 60.0
    assert "eval/episodes" not in scores
    assert f"`rlplug promote {folder.name[:8]}@60 NAME`" in best.tags["mlflow.note.content"]
    # The column `Logged from` of the table.
    assert best.tags["mlflow.source.name"] == "60 at step 60"


def test_a_model_takes_no_space_for_the_weights_and_leaves_out_what_only_training_needs(
    client: MlflowClient,
) -> None:
    folder = train()
    own = {one.stat().st_ino for one in folder.rglob("*") if one.is_file()}
    for model in models_in(client, folder):
        files = [one for one in (place(model) / "checkpoint").rglob("*") if one.is_file()]
        assert {one.stat().st_ino for one in files} <= own
        assert {one.relative_to(place(model)).parts[1] for one in files} == {
            "manifest.json",
            "config.toml",
            "policy",
        }
        assert sum(one.stat().st_size for one in place(model).iterdir() if one.is_file()) < 10_000


def test_models_of_deleted_checkpoints_are_deleted_with_their_files(client: MlflowClient) -> None:
    folder = train()
    before = {one.model_id for one in models_in(client, folder)}
    resume(folder, steps=160, algorithm=Rises, env=Hall)
    models = models_in(client, folder)
    kept = {one.model_id for one in models}
    assert [len(before), len(before & kept), len(kept)] == [3, 1, 3]
    root = place(models[0]).parent.parent
    left = {one.relative_to(root).parts[0] for one in root.rglob("*") if one.is_file()}
    assert left == kept


def test_a_registered_model_stays_when_its_checkpoint_is_deleted(
    client: MlflowClient, rlplug: Cli
) -> None:
    folder = train()
    assert rlplug("promote", f"{folder.name}@80", "hall").code == 0
    resume(folder, steps=160, algorithm=Rises, env=Hall)
    assert not (folder / "checkpoints" / KEPT[1]).exists()
    version = client.get_model_version_by_alias("hall", "champion")
    assert (Path(version.source.removeprefix("file://")) / "checkpoint" / "policy").is_dir()
    assert KEPT[1] in {named(one) for one in models_in(client, folder)}


def synced(folder: Path) -> Synced:
    run = RunFolder.read(folder)
    assert run is not None
    return sync_run(run, print)


def test_a_resumed_run_and_two_syncs_log_no_model_twice(client: MlflowClient) -> None:
    folder = train()
    before = {one.model_id for one in models_in(client, folder)}
    for _ in range(2):
        assert not synced(folder).missing
    assert {one.model_id for one in models_in(client, folder)} == before
    resume(folder, steps=120, algorithm=Rises, env=Hall)
    kept = [KEPT[0], KEPT[2], "step-000000000120"]
    assert_each_once(client, folder, kept)


def test_a_checkpoint_that_was_written_anew_has_a_new_model(client: MlflowClient) -> None:
    folder = train()
    models = {named(one): one for one in models_in(client, folder)}
    for name, changed in ((KEPT[2], True), (KEPT[1], False)):
        manifest = folder / "checkpoints" / name / "manifest.json"
        facts = json.loads(manifest.read_text())
        if changed:
            manifest.write_text(json.dumps({**facts, "state_digest": "of another course"}))
    synced(folder)
    now = {named(one): one for one in models_in(client, folder)}
    assert now[KEPT[1]].model_id == models[KEPT[1]].model_id
    assert now[KEPT[2]].model_id != models[KEPT[2]].model_id
    assert not place(models[KEPT[2]]).exists()


def take_another_course(folder: Path, *, every: int) -> None:
    """Damage the last checkpoint, and train on to step 120 from the one before."""
    (folder / "checkpoints" / KEPT[2] / "manifest.json").write_text("damaged")
    resume(
        folder,
        steps=120,
        algorithm=Rises,
        env=Hall,
        options={"evaluation.every": every, "checkpoint.every": every},
        allow_drift=True,
    )


def test_models_of_a_course_that_the_run_does_not_take_are_deleted(client: MlflowClient) -> None:
    folder = train()
    take_another_course(folder, every=120)
    assert (folder / "checkpoints" / f"set-aside-{KEPT[2]}").is_dir()
    assert_each_once(client, folder, [KEPT[0], KEPT[1], "step-000000000120"])


def test_an_evaluation_at_a_step_that_was_passed_before_is_a_score_too(
    client: MlflowClient,
) -> None:
    folder = train()
    take_another_course(folder, every=30)
    # It goes on from 80: at 90, nothing is reported again of what is known up to 100.
    assert_each_once(client, folder, [KEPT[0], "step-000000000090", "step-000000000120"])


KILLED = """
import os, signal, sys
from mlflow import MlflowClient
from rlplug import resume, run
from tests.test_models import OPTIONS, Hall, Rises

name, when = sys.argv[1:]
call = getattr(MlflowClient, name)
count = 0

def killing(self, *arguments, **given):
    global count
    count += name != "log_batch" or any(one.model_id for one in given.get("metrics", ()))
    if count == 2 and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    answer = call(self, *arguments, **given)
    if count == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer

folder = run(Rises, Hall, steps=40, options=OPTIONS).folder
setattr(MlflowClient, name, killing)
resume(folder, steps=100, algorithm=Rises, env=Hall)
"""


@pytest.mark.parametrize(
    ("call", "when"),
    [
        ("create_logged_model", "after"),
        pytest.param("log_batch", "after", marks=pytest.mark.long),
        pytest.param("log_outputs", "after", marks=pytest.mark.long),
        ("finalize_logged_model", "before"),
        pytest.param("delete_logged_model", "before", marks=pytest.mark.long),
    ],
)
def test_what_a_killed_process_left_is_completed_exactly_once(
    call: str, when: str, store_root: Path, client: MlflowClient, rlplug: Cli, warm: Warm
) -> None:
    done = warm.start(call, when, code=KILLED, cwd=Path(__file__).parent.parent)
    assert done.wait() == -signal.SIGKILL, done.err
    (folder,) = (store_root / "work").iterdir()
    if call in ("log_batch", "finalize_logged_model"):
        resume(folder, steps=120, algorithm=Rises, env=Hall)
        assert_each_once(client, folder, [KEPT[0], KEPT[2], "step-000000000120"])
    for _ in range(2):
        # Also where the process was killed before its end.
        assert rlplug("runs", "sync", folder.name).code == 0
    steps = sorted(one.name for one in (folder / "checkpoints").glob("step-*"))
    assert_each_once(client, folder, steps)


@pytest.mark.long
def test_models_that_an_outage_left_out_are_logged_by_sync_through_a_server(
    served: str, store_root: Path, monkeypatch: pytest.MonkeyPatch, rlplug: Cli
) -> None:
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    client, port = MlflowClient(served), urlsplit(served).port
    assert port is not None
    away = free_port("127.0.0.1", port + 1)
    uri = f"http://127.0.0.1:{away}"
    folder = train(**{"tracking.uri": uri, "tracking.offline_ok": True})
    assert known_models(folder) == {}
    proxy = Proxy(port, away)
    try:
        for _ in range(2):
            assert rlplug("runs", "sync", folder.name).code == 0
    finally:
        proxy.close()
    models = models_in(client, folder)
    assert sorted(named(one) for one in models) == KEPT
    assert {str(one.status) for one in models} == {"READY"}
    assert len(client.get_run(models[0].source_run_id).outputs.model_outputs) == 3
    listed = client.list_logged_model_artifacts(models[0].model_id)
    assert {"MLmodel", "checkpoint"} <= {one.path for one in listed}


@pytest.mark.parametrize(
    "call",
    [
        "create_logged_model",
        pytest.param("log_outputs", marks=pytest.mark.long),
        pytest.param("finalize_logged_model", marks=pytest.mark.long),
    ],
)
def test_a_request_whose_answer_is_lost_leaves_no_second_model(
    call: str, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient as Client

    really = getattr(Client, call)
    lost: list[Any] = []

    def lose(self: MlflowClient, *arguments: Any, **given: Any) -> Any:
        answer = really(self, *arguments, **given)
        if not lost:
            lost.append(answer)
            raise ConnectionResetError("the connection was reset")
        return answer

    monkeypatch.setattr(Client, call, lose)
    folder = train()
    assert len(lost) == 1
    assert_each_once(client, folder)


def test_a_server_without_models_costs_one_warning_and_nothing_else(
    served: str, store_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from mlflow import MlflowClient

    gate = Gate(urlsplit(served).port or 0)
    try:
        # As MLflow 2 answers.
        gate.path, gate.code = "/api/2.0/mlflow/logged-models", 404
        folder = train(**{"tracking.uri": gate.uri})
    finally:
        gate.close()
    (refused,) = [one for one in caplog.messages if "MLflow" in one]
    assert "refused models of this run" in refused
    run = MlflowClient(served).get_run(folder.name)
    assert run.info.status == "FINISHED"
    assert "rlplug.pending_upload" not in run.data.tags
    stored = MlflowClient(served).list_artifacts(folder.name, "checkpoints")
    kept = sorted(one.name for one in (folder / "checkpoints").glob("step-*"))
    assert sorted(Path(one.path).name for one in stored if one.is_dir) == kept


def test_a_server_that_fails_for_models_has_them_after_a_sync(
    served: str, store_root: Path, rlplug: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    gate = Gate(urlsplit(served).port or 0)
    try:
        gate.path, gate.code = "/api/2.0/mlflow/logged-models", 500
        folder = train(**{"tracking.uri": gate.uri})
        assert known_models(folder) == {}
        monkeypatch.setattr("rlplug.tracking.sync._LONGEST_WAIT", 2.0)
        told = rlplug("runs", "sync", folder.name)
        assert told.code == 1
        assert told.err.endswith("not in MLflow yet: models of its checkpoints.\n")
        # What has arrived before is not called missing where a later sync fails sooner.
        gate.path = "/api/2.0/mlflow/runs/log-batch"
        told = rlplug("runs", "sync", folder.name)
        assert told.err.endswith("not in MLflow yet: models of its checkpoints.\n")
        gate.code = 0
        assert rlplug("runs", "sync").code == 0
        assert_each_once(MlflowClient(served), folder)
        assert "is in MLflow" in rlplug("runs", "sync").out
    finally:
        gate.close()
