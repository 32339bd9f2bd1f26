"""`rlplug best`, `rlplug promote`, and policies that are loaded from MLflow's model registry."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest

import rlplug as package
from rlplug.errors import RequestError
from rlplug.tracking.model_registry import fetch_model
from rlplug.tracking.status import RunLock, known_models

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from tests.conftest import Outcome

Cli = Callable[..., "Outcome"]
EVALUATED = {"evaluation.every": 100, "evaluation.episodes": 2, "checkpoint.every": 100}

pytestmark = pytest.mark.usefixtures("installed")


@pytest.fixture
def client(store_root: Path) -> MlflowClient:
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{store_root / 'mlflow.db'}")


def trained(steps: int = 200, **options: Any) -> Path:
    return package.run("means", steps=steps, options={**EVALUATED, **options}).folder


def facts(outcome: Outcome) -> dict[str, Any]:
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert isinstance(found, dict)
    return found


def test_best_tells_score_step_folder_and_model_and_what_to_do_with_them(
    store_root: Path, rlplug: Cli
) -> None:
    folder = trained()
    found = facts(rlplug("best", "last", "--json"))
    path = Path(found["checkpoint"])
    manifest = json.loads((path / "manifest.json").read_text())
    assert found["score"] == manifest["evaluation"]["eval/return_mean"]
    assert found["score"] == max(
        json.loads(one.read_text())["evaluation"]["eval/return_mean"]
        for one in folder.glob("checkpoints/*/manifest.json")
    )
    assert found["step"] == manifest["step"]
    assert found["model_uri"] == f"models:/{known_models(folder)[path.name]}"
    shown = rlplug("best", "last").out
    run = f"{folder.name[:8]}@{found['step']}"
    for line in (
        str(path),
        found["model_uri"],
        f'rlplug.load("{run}")',
        f"rlplug serve {run}",
        f"rlplug promote {run} NAME",
        f"MLFLOW_TRACKING_URI=sqlite:///{store_root / 'mlflow.db'} "
        f"mlflow models serve -m {found['model_uri']} --env-manager local",
    ):
        assert line in shown
    assert package.load(run).step == found["step"]


@pytest.mark.long
def test_best_of_an_environment_or_a_group_is_that_of_its_best_run(
    store_root: Path, rlplug: Cli
) -> None:
    scores = {}
    for seed in (0, 1, 2):
        done = package.run("means", steps=200, seed=seed, options=EVALUATED)
        assert done.best is not None
        scores[done.run_id] = done.best[1]
    best = max(scores, key=lambda run: scores[run])
    for name in ("best:LinearBandit-v0", json.loads(group_of(store_root, best))):
        found = facts(rlplug("best", name, "--json"))
        assert (found["run_id"], found["score"]) == (best, scores[best])


def group_of(root: Path, run: str) -> str:
    about = json.loads((root / "work" / run / "run.json").read_text())["about"]
    return json.dumps(about["group"])


def test_best_of_a_run_without_evaluations_or_without_mlflow_says_so(
    store_root: Path, rlplug: Cli
) -> None:
    package.run("means", steps=100)
    shown = rlplug("best", "last").out
    assert "the last checkpoint; there was no evaluation" in shown
    assert "none in MLflow yet; rlplug promote logs it" in shown
    assert "mlflow models serve" not in shown
    assert facts(rlplug("best", "last", "--json"))["score"] is None
    package.run("means", steps=100, options={"tracking.enabled": False})
    assert "none: the run was started without MLflow" in rlplug("best", "last").out


def test_promote_registers_once_and_moves_the_alias(client: MlflowClient, rlplug: Cli) -> None:
    folder = trained()
    steps = sorted(int(one.name[5:]) for one in folder.glob("checkpoints/step-*"))
    said = [rlplug("promote", f"{folder.name}@{step}", "arms").out for step in (*steps, steps[0])]
    assert "arms, version 1\n" in said[0]
    assert "champion, new" in said[0]
    assert "arms, version 2\n" in said[1]
    assert "champion, moved from version 1" in said[1]
    assert "arms, version 1 (was registered before)" in said[2]
    assert "champion, moved from version 2" in said[2]
    assert 'rlplug.load("models:/arms@champion")' in said[2]
    again = rlplug("promote", f"{folder.name}@{steps[0]}", "arms").out
    assert "champion, as before" in again
    other = facts(
        rlplug("promote", f"{folder.name}@{steps[1]}", "arms", "--alias", "next", "--json")
    )
    assert [other["version"], other["alias"], other["step"]] == ["2", "next", steps[1]]
    model = client.get_registered_model("arms")
    assert {name: str(version) for name, version in model.aliases.items()} == {
        "champion": "1",
        "next": "2",
    }
    assert len(client.search_model_versions("name = 'arms'")) == 2
    version = client.get_model_version("arms", "1")
    assert version.run_id == folder.name
    assert f" at step {steps[0]} of run {folder.name}" in version.description
    logged = client.get_logged_model(known_models(folder)[f"step-{steps[0]:012d}"])
    versions = json.loads(logged.tags["mlflow.modelVersions"])
    assert [[one["name"], str(one["version"])] for one in versions] == [["arms", "1"]]


def test_a_challenger_becomes_the_champion_also_without_the_folder_of_its_run(
    client: MlflowClient, rlplug: Cli
) -> None:
    folder = trained()
    rlplug("promote", f"{folder.name}@100", "arms")
    rlplug("promote", f"{folder.name}@200", "arms", "--alias", "challenger")
    shutil.rmtree(folder)
    done = facts(rlplug("promote", "models:/arms@challenger", "arms", "--json"))
    assert [done["version"], done["alias_before"], done["step"]] == ["2", "1", 200]
    assert done["run_id"] == folder.name
    assert str(client.get_model_version_by_alias("arms", "champion").version) == "2"
    refused = rlplug("promote", "models:/arms@nobody", "arms")
    assert refused.code == 2
    assert "there is no model 'models:/arms@nobody'" in refused.err
    refused = rlplug("best", "models:/arms@champion")
    assert refused.code == 2
    assert "is a model, which has one checkpoint" in refused.err


def test_promote_logs_the_model_of_a_checkpoint_that_was_not_evaluated(
    client: MlflowClient, rlplug: Cli
) -> None:
    folder = package.run("means", steps=100).folder
    assert known_models(folder) == {}
    assert rlplug("promote", "last", "arms").code == 0
    policy = package.load("models:/arms@champion")
    assert policy.step == 100
    assert f"models:/{known_models(folder)['step-000000000100']}" in rlplug("best", "last").out


def test_a_policy_is_loaded_by_alias_version_or_id(store_root: Path, rlplug: Cli) -> None:
    folder = trained()
    promoted = facts(rlplug("promote", "last", "arms", "--json"))
    rows = numpy.random.default_rng(0).normal(size=(9, 8))
    expected = package.load(folder).predict(rows).tolist()
    for uri in ("models:/arms@champion", "models:/arms/1", f"models:/{promoted['model_id']}"):
        policy = package.load(uri)
        assert policy.predict(rows).tolist() == expected
        # The same checkpoint in the folder of its run.
        assert policy.path is not None
        assert policy.path.parent == folder / "checkpoints"
    evaluated = facts(rlplug("eval", "models:/arms@champion", "--episodes", "5", "--json"))
    assert (evaluated["run_id"], evaluated["step"]) == (folder.name, promoted["step"])
    assert Path(evaluated["recorded"]).parent == folder / "evaluations"
    # Without the folder of the run, it is downloaded, once.
    shutil.rmtree(folder)
    for _ in range(2):
        policy = package.load("models:/arms@champion")
        assert policy.predict(rows).tolist() == expected
        assert policy.path is not None
        assert policy.path.is_relative_to(store_root / "fetched" / "models")
        assert not (policy.path / "training").exists()
    again = rlplug("eval", "models:/arms@champion", "--episodes", "5", "--json")
    for name in ("eval/return_mean", "eval/length_mean"):
        assert facts(again)["metrics"][name] == evaluated["metrics"][name]


def test_a_model_whose_files_were_damaged_is_refused(store_root: Path, rlplug: Cli) -> None:
    folder = trained()
    rlplug("promote", "last", "arms")
    shutil.rmtree(folder)
    path = fetch_model("models:/arms@champion", store_root)
    (weights,) = (path / "policy").glob("tensors-*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(RequestError, match="does not match its digest"):
        package.load("models:/arms@champion")


def test_everything_works_through_a_server(
    served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rlplug: Cli
) -> None:
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", served)
    monkeypatch.setenv("RLPLUG_HOME", str(tmp_path / "runs"))
    folder = trained(**{"tracking.experiment": "served"})
    models = known_models(folder)
    assert set(models) == {one.name for one in (folder / "checkpoints").glob("step-*")}
    client = MlflowClient(served)
    found = client.get_logged_model(models["step-000000000200"])
    assert str(found.status) == "READY"
    assert "eval/return_mean" in {one.key for one in found.metrics}
    first = facts(rlplug("promote", "last@100", "served", "--json"))
    second = facts(rlplug("promote", "last@200", "served", "--json"))
    assert (first["version"], second["version"], second["alias_before"]) == ("1", "2", "1")
    rows = numpy.random.default_rng(0).normal(size=(9, 8))
    expected = package.load(f"{folder.name}@200").predict(rows).tolist()
    # On another machine.
    monkeypatch.setenv("RLPLUG_HOME", str(tmp_path / "elsewhere"))
    policy = package.load("models:/served@champion")
    assert policy.step == 200
    assert policy.predict(rows).tolist() == expected
    told = rlplug("eval", "models:/served@champion", "--episodes", "3")
    assert (told.code, "not recorded" in told.err) == (0, False)
    scores = {one.key for one in client.get_logged_model(models["step-000000000200"]).metrics}
    assert "later_eval/return_mean" in scores
    assert "later_eval/return_mean" in client.get_run(folder.name).data.metrics
    assert client.list_artifacts(folder.name, "evaluations")
    best = facts(rlplug("best", folder.name, "--json"))
    assert best["model_id"] == models[f"step-{best['step']:012d}"]
    third = facts(rlplug("promote", f"{folder.name}@100", "served", "--json"))
    assert (third["version"], third["alias_before"]) == ("1", "2")


def test_a_model_that_another_host_trained_imports_no_code_unless_it_is_trusted(
    store_root: Path, rlplug: Cli
) -> None:
    folder = package.run("ppo", "CartPole-v1", steps=256, options={"n_steps": 32}).folder
    rlplug("promote", "last", "pole")
    (config,) = store_root.glob("artifacts/*/models/*/artifacts/checkpoint/config.toml")
    text = config.read_text().replace('encoder = "auto"', 'encoder = "evil.module:Encoder"')
    manifest = json.loads(config.with_name("manifest.json").read_text())
    manifest["files"]["config.toml"] = hashlib.sha256(text.encode()).hexdigest()
    shutil.rmtree(folder)
    config.write_text(text)
    config.with_name("manifest.json").write_text(json.dumps(manifest))
    for command in (["eval", "--episodes", "1"], ["serve", "--port", "0"]):
        refused = rlplug(command[0], "models:/pole@champion", *command[1:])
        assert refused.code == 2
        assert "encoder = 'evil.module:Encoder'" in refused.err
        assert "try: --trust" in refused.err
    trusted = rlplug("eval", "models:/pole@champion", "--episodes", "1", "--trust")
    assert trusted.code == 2
    assert "evil" in trusted.err


NO_MODELS = (
    ("models:/arms@nobody", "there is no model 'models:/arms@nobody' in MLflow at sqlite:///"),
    ("models:/arms/7", "there is no model 'models:/arms/7'"),
    ("models:/other@champion", "there is no model"),
    ("models:/m-0123456789abcdef0123456789abcdef", "there is no model"),
    ("models:/arms", "'models:/arms' is not the URI of a model"),
    ("models:", "'models:' is not the URI of a model"),
)


def test_models_that_are_not_there_are_refused(store_root: Path, rlplug: Cli) -> None:
    package.run("means", steps=100)
    rlplug("promote", "last", "arms")
    for uri, said in NO_MODELS:
        refused = rlplug("eval", uri)
        assert refused.code == 2
        assert said in refused.err


def test_a_model_that_is_incomplete_or_not_of_rlplug_is_refused(
    client: MlflowClient, rlplug: Cli, tmp_path: Path
) -> None:
    experiment = client.create_experiment("other", (tmp_path / "other").as_uri())
    pending = client.create_logged_model(experiment, "half")
    assert "is incomplete: PENDING" in rlplug("eval", f"models:/{pending.model_id}").err
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "MLmodel").write_text("{}")
    client.log_model_artifacts(pending.model_id, str(tmp_path / "files"))
    client.finalize_logged_model(pending.model_id, "READY")
    assert "has no checkpoint of rlplug" in rlplug("eval", f"models:/{pending.model_id}").err
    client.create_registered_model("foreign")
    client.create_model_version("foreign", (tmp_path / "other").as_uri())
    refused = rlplug("eval", "models:/foreign/1")
    assert "has no checkpoint of rlplug" in refused.err


def test_a_model_names_no_folder_outside_of_the_runs_folder(
    client: MlflowClient, rlplug: Cli, store_root: Path
) -> None:
    folder = trained()
    promoted = facts(rlplug("promote", "last", "arms", "--json"))
    shutil.rmtree(folder)
    tags = {"rlplug.checkpoint": "../../../../../step-1"}
    client.set_logged_model_tags(promoted["model_id"], tags)
    path = fetch_model("models:/arms@champion", store_root)
    assert path.resolve().is_relative_to(store_root / "fetched" / "models")


def test_a_run_with_a_registered_model_is_not_removed_until_the_version_is_deleted(
    client: MlflowClient, rlplug: Cli, store_root: Path
) -> None:
    folder = trained()
    assert rlplug("promote", "last", "arms").code == 0
    used = facts(rlplug("runs", "du", "--json"))
    assert used["artifacts"] > 0
    refused = rlplug("runs", "rm", folder.name, "--yes")
    assert refused.code != 0
    assert "has a model that is registered: arms version 1" in refused.err
    assert (folder / "checkpoints").is_dir()
    client.delete_model_version("arms", "1")
    assert rlplug("runs", "rm", folder.name, "--yes").code == 0
    assert not folder.exists()
    assert not list(store_root.glob("artifacts/*/models/*/*/*"))


def test_later_evaluations_are_scores_of_the_model(client: MlflowClient, rlplug: Cli) -> None:
    folder = trained()
    assert rlplug("eval", f"{folder.name}@200", "--episodes", "7").code == 0
    model = client.get_logged_model(known_models(folder)["step-000000000200"])
    assert {"eval/return_mean", "later_eval/return_mean"} <= {one.key for one in model.metrics}


def test_a_model_has_no_other_checkpoint(store_root: Path, rlplug: Cli) -> None:
    refused = rlplug("eval", "models:/arms@champion", "--checkpoint", "last")
    assert refused.code == 2
    assert "is a model, which has no checkpoint 'last'" in refused.err


def test_promote_refuses_what_it_cannot_register(client: MlflowClient, rlplug: Cli) -> None:
    package.run("means", steps=100, options={"tracking.enabled": False})
    refused = rlplug("promote", "last", "arms")
    assert refused.code == 2
    assert "is not in MLflow" in refused.err
    folder = package.run("means", steps=100).folder
    for name, alias, said in (
        ("a/b", "champion", "'a/b' cannot be the name of a registered model"),
        ("it's", "champion", "cannot be the name"),
        ("arms", "latest", "'latest' cannot be an alias of a registered model"),
        ("arms", "v3", "'v3' cannot be an alias"),
        ("arms", "a b", "'a b' cannot be an alias"),
    ):
        refused = rlplug("promote", "last", name, "--alias", alias)
        assert refused.code == 2
        assert said in refused.err
        assert "try: letters, digits, - and _" in refused.err
    assert client.search_registered_models() == []
    with RunLock.take(package.run("means", steps=100).folder):
        refused = rlplug("promote", "last", "arms")
        assert "try: again when its run has uploaded it" in refused.err
    (folder / "signature.json").unlink()
    refused = rlplug("promote", folder.name, "arms")
    assert refused.code == 2
    assert "is not a model in MLflow" in refused.err
