"""A run in a real MLflow store: what is recorded, how it ends, and what is refused before it."""

from __future__ import annotations

import json
import os
import shutil
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
    EvaluationSection,
    RunConfig,
    RunSection,
    TrackingSection,
)
from rlplug.errors import RequestError
from rlplug.hooks.events import RunInfo
from rlplug.registry import FoundPlugin, Participant
from rlplug.tracking import Tracking, open_tracking
from rlplug.tracking.journal import read_journal
from rlplug.tracking.location import check_writable
from rlplug.tracking.provenance import git_state
from tests.warm import Warm

if TYPE_CHECKING:
    from mlflow import MlflowClient


@attrs.frozen(kw_only=True)
class Options:
    alpha: float = option(1.0, "Width.")
    net_arch: tuple[int, ...] = option((64, 64), "Sizes.")


@pytest.fixture
def root(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RLPLUG_HOME", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "all runs"
    folder.mkdir()
    shutil.copy(empty_store, folder / "mlflow.db")
    return folder


def config_of(seed: int = 0, alpha: float = 1.0, **tracking: object) -> RunConfig:
    return RunConfig(
        run=RunSection(algorithm="linucb", env="LinearBandit-v0", seed=seed, steps=40),
        algorithm=Options(alpha=alpha),
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


@pytest.mark.usefixtures("curves")
def test_a_finished_run_has_its_metrics_picture_config_and_summary(
    opened: Opened, client: MlflowClient, root: Path
) -> None:
    tracking = opened()
    for step in (10, 20, 40):
        metrics = {"rollout/reward_mean": step / 40, "rollout/regret_total": 3.0}
        tracking.listener.metrics_reported(step, metrics)
        assert tracking.listener.step == step
    tracking.listener.evaluation_finished(40, {"eval/return_mean": 0.75})
    tracking.listener.run_finished(40)
    tracking.close()

    run = client.get_run(tracking.run_id)
    assert run.info.status == "FINISHED"
    assert history(client, tracking.run_id, "rollout/reward_mean") == [
        (10, 0.25),
        (20, 0.5),
        (40, 1.0),
    ]
    assert history(client, tracking.run_id, "eval/return_mean") == [(40, 0.75)]
    picture = (tracking.folder / "plots" / "learning_curve.png").read_bytes()
    assert picture[:4] == b"\x89PNG"
    # Panels of the reward and of the regret, each 5.4 inches wide, at 130 pixels per inch.
    assert int.from_bytes(picture[16:20], "big") == round((1.2 + 2 * 5.4) * 130)
    for path in ("plots/learning_curve.png", "config/config.toml"):
        assert Path(client.download_artifacts(tracking.run_id, path, str(root))).stat().st_size
    note = run.data.tags["mlflow.note.content"]
    assert "finished after 40 of 40 environment steps" in note
    assert "- reward: 1\n- total regret: 3\n" in note
    assert run.data.tags["rlplug.stop_reason"] == "finished"


def test_params_are_the_resolved_options_by_dotted_path(
    opened: Opened, client: MlflowClient
) -> None:
    params = client.get_run(opened().run_id).data.params
    assert params["algorithm.alpha"] == "1.0"
    assert params["algorithm.net_arch"] == "[64, 64]"
    assert params["env.arms"] == "4"
    assert params["run.seed"] == "0"
    assert params["tracking.uri"] == ""


def test_a_full_disk_is_found_by_writing_through_to_it(root: Path, synced: list[int]) -> None:
    check_writable(root)
    assert synced


def test_tags_tell_who_what_and_from_where(
    opened: Opened, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/opt/bin/rlplug", "run", "--algo", "linucb"])
    tracking = opened(config_of(seed=3, tags={"team": "ads"}))
    tracking.close("FINISHED")
    tags = client.get_run(tracking.run_id).data.tags
    assert tags["team"] == "ads"
    assert tags["rlplug.seed"] == "3"
    assert tags["rlplug.host"] == os.uname().nodename
    assert tags["mlflow.source.name"] == "rlplug run --algo linucb"
    assert tags["rlplug.plugins"] == "linucb 0.1.0 (rlplug-linucb)"


def test_the_git_commit_is_that_of_the_folder_and_says_if_files_were_changed(
    tmp_path: Path,
) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=me", "-c", "user.email=me@here"]
        command = ["git", *who, *arguments]
        return subprocess.run(
            command, cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    assert git_state(tmp_path) == {}
    git("init", "--initial-branch", "trunk")
    assert git_state(tmp_path) == {}
    (tmp_path / "run.toml").write_text("")
    git("add", "run.toml")
    git("commit", "--message", "Start")
    commit = git("rev-parse", "HEAD")
    clean = {"commit": commit, "branch": "trunk", "changed": "false", "origin": ""}
    assert git_state(tmp_path) == clean
    (tmp_path / "run.toml").write_text("seed = 1")
    assert git_state(tmp_path) == {**clean, "changed": "true"}


def test_seeds_share_a_group_and_other_options_do_not(opened: Opened, client: MlflowClient) -> None:
    configs = (config_of(seed=0), config_of(seed=1), config_of(seed=0, alpha=2.0))
    tags = [client.get_run(opened(config).run_id).data.tags for config in configs]
    first, second, third = (tag["rlplug.group"] for tag in tags)
    assert first == second != third
    assert first.startswith("linucb-LinearBandit-v0-")


def test_experiment_and_name_are_readable_and_a_taken_name_is_numbered(
    opened: Opened, client: MlflowClient, root: Path
) -> None:
    first, second, third = opened(), opened(), opened()
    names = [client.get_run(one.run_id).info.run_name for one in (first, second, third)]
    assert names == [
        "linucb-LinearBandit-v0-s0",
        "linucb-LinearBandit-v0-s0-2",
        "linucb-LinearBandit-v0-s0-3",
    ]
    experiment = client.get_experiment_by_name("rlplug/LinearBandit-v0")
    assert experiment is not None
    place = (root / "artifacts" / "rlplug-LinearBandit-v0").as_uri()
    assert experiment.artifact_location == place
    state = json.loads(experiment.tags["mlflow.sharedViewState.rlplug-by-seed"])
    assert state["orderByKey"] == "metrics.`eval/best_return_mean`"


def test_the_view_has_the_results_that_runs_have(opened: Opened, client: MlflowClient) -> None:
    def columns() -> set[str]:
        (experiment,) = client.search_experiments(filter_string="name LIKE 'rlplug/%'")
        state = json.loads(experiment.tags["mlflow.sharedViewState.rlplug-by-seed"])
        return set(state["selectedColumns"])

    opened(attrs.evolve(config_of(), evaluation=EvaluationSection(episodes=0)))
    assert {"metrics.`rollout/reward_mean`", "metrics.`rollout/regret_total`"} < columns()
    opened()
    # A later run without evaluations leaves those of the others in sight.
    opened(attrs.evolve(config_of(), evaluation=EvaluationSection(episodes=0)))
    assert columns() == {
        "metrics.`eval/best_return_mean`",
        "metrics.`eval/best_step`",
        "metrics.`eval/return_mean`",
        "params.`run.steps`",
        "tags.`rlplug.algo`",
        "tags.`rlplug.options`",
    }


def test_a_given_name_and_experiment_are_taken_as_they_are(
    opened: Opened, client: MlflowClient
) -> None:
    config = config_of(run_name="it's mine", experiment="try outs")
    for tracking in (opened(config), opened(config)):
        run = client.get_run(tracking.run_id)
        assert run.info.run_name == "it's mine"
        assert client.get_experiment(run.info.experiment_id).name == "try outs"


def test_mlflow_s_own_variable_names_the_experiment(
    opened: Opened, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "from the environment")
    run = client.get_run(opened().run_id)
    assert client.get_experiment(run.info.experiment_id).name == "from the environment"


def test_the_environments_are_the_run_s_datasets(opened: Opened, client: MlflowClient) -> None:
    inputs = client.get_run(opened().run_id).inputs
    assert inputs is not None
    by_context = {one.tags[0].value: one.dataset for one in inputs.dataset_inputs}
    assert set(by_context) == {"train", "eval"}
    training, evaluation = by_context["train"], by_context["eval"]
    assert training.name == "LinearBandit-v0"
    assert json.loads(training.source) == {"id": "LinearBandit-v0", "arms": 4}
    assert evaluation.name == "LinearBandit-v0-eval"
    assert json.loads(evaluation.source) == {
        "id": "LinearBandit-v0",
        "arms": 4,
        "episodes": 10,
        "parallel": 10,
        "max_episode_steps": 1_000_000,
        "run_seed": 0,
    }
    assert training.digest != evaluation.digest


def test_a_run_that_fails_is_failed_and_says_why(
    opened: Opened, client: MlflowClient, root: Path
) -> None:
    tracking = opened()
    tracking.listener.metrics_reported(10, {"rollout/reward_mean": 0.5})
    try:
        raise ValueError("feature 2 of row 3 is NaN")
    except ValueError as error:
        tracking.listener.run_failed(10, error)
    tracking.close()
    run = client.get_run(tracking.run_id)
    assert run.info.status == "FAILED"
    assert run.data.tags["rlplug.error"] == "ValueError: feature 2 of row 3 is NaN"
    trace = Path(client.download_artifacts(tracking.run_id, "logs/traceback.txt", str(root)))
    assert "in test_a_run_that_fails_is_failed_and_says_why" in trace.read_text()
    assert history(client, tracking.run_id, "rollout/reward_mean") == [(10, 0.5)]


def test_of_a_long_error_the_last_twenty_lines_are_recorded(
    opened: Opened, client: MlflowClient
) -> None:
    tracking = opened()
    tracking.listener.run_failed(10, ValueError("\n".join(f"line {n}" for n in range(30)) + "\n"))
    tracking.close()
    lines = client.get_run(tracking.run_id).data.tags["rlplug.error"].split("\n")
    assert lines == [f"line {n}" for n in range(10, 30)]


def test_an_interrupted_run_is_killed_and_keeps_what_it_had(
    opened: Opened, client: MlflowClient
) -> None:
    tracking = opened()
    tracking.listener.metrics_reported(10, {"rollout/reward_mean": 0.5})
    tracking.listener.run_failed(10, KeyboardInterrupt())
    tracking.close()
    run = client.get_run(tracking.run_id)
    assert run.info.status == "KILLED"
    assert run.data.tags["rlplug.stop_reason"] == "interrupted"
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


def test_where_the_run_is_and_what_to_type_next(opened: Opened, root: Path) -> None:
    tracking = opened()
    where, then = tracking.describe()
    assert tracking.run_id in where
    assert str(tracking.folder) in where
    assert then == f"look at it: RLPLUG_HOME='{root}' rlplug ui"


# -- processes of their own ----------------------------------------------------------------------

SCRIPT = """
import sys, time
from rlplug.config.sections import RunConfig, RunSection, TrackingSection
from rlplug.plugin import NoOptions
from rlplug.tracking import open_tracking
config = RunConfig(
    run=RunSection(algorithm="none", seed=int(sys.argv[1])),
    algorithm=NoOptions(),
    tracking=TrackingSection(enabled=sys.argv[2] == "on"),
)
tracking = open_tracking(config, environment="Nowhere-v0")
for step in range(1, 11):
    tracking.listener.metrics_reported(step, {"a": float(step)})
if sys.argv[3] == "hang":
    print(tracking.folder, flush=True)
    time.sleep(600)
tracking.listener.run_finished(10)
tracking.close()
print(tracking.folder, "mlflow" in sys.modules, flush=True)
"""


def spawn(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "RLPLUG_HOME": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )


def test_tracking_switched_off_keeps_the_journal_and_never_imports_mlflow(tmp_path: Path) -> None:
    process = spawn(tmp_path, "0", "off", "go")
    said, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    folder, imported = said.split()
    assert imported == "False"
    assert len(list(read_journal(Path(folder) / "metrics.jsonl"))) == 10
    assert not (tmp_path / "mlflow.db").exists()


def test_a_process_that_is_killed_leaves_its_journal(tmp_path: Path, warm: Warm) -> None:
    environ = {**os.environ, "RLPLUG_HOME": str(tmp_path)}
    process = warm.start("0", "off", "hang", code=SCRIPT, environ=environ)
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


# -- refused before the first step ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "found", "advice"),
    [
        ("./mlruns", "'./mlruns' is not the URI", "try: sqlite:////absolute"),
        ("file:///data/mlruns", "is not the URI", "try: sqlite:////absolute"),
        ("sqlite://", "is not the URI", "try: sqlite:////absolute"),
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


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("these are notes, and no database, " * 10)
    with pytest.raises(RequestError, match="file is not a database"):
        open_tracking(config_of(), environment="X-v0", root=tmp_path)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RequestError, match=r"is not writable: Not a directory") as refused:
        open_tracking(config_of(), environment="X-v0", root=tmp_path / "file" / "runs")
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
