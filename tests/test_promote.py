"""The best model in `rlplug show`, `rlplug promote`, and policies of MLflow's model registry."""

from __future__ import annotations

import hashlib
import json
import re
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


def best_of(outcome: Outcome) -> tuple[int, str | None]:
    best = facts(outcome)["best_checkpoint"]
    return best["step"], best["model_uri"]


def test_show_tells_the_best_checkpoint_its_model_and_what_to_do_with_them(
    store_root: Path, rlplug: Cli
) -> None:
    folder = trained()
    scores = {
        manifest["step"]: manifest["evaluation"]["eval/return_mean"]
        for manifest in map(
            json.loads, map(Path.read_text, folder.glob("checkpoints/*/manifest.json"))
        )
    }
    step, model = best_of(rlplug("show", "last", "--json"))
    assert scores[step] == max(scores.values())
    assert model == f"models:/{known_models(folder)[f'step-{step:012d}']}"
    shown, run = rlplug("show", "last").out, f"{folder.name[:8]}@{step}"
    for line in (f'rlplug.load("{run}")', f"rlplug serve {run}", f"best model  {model}"):
        assert line in shown
    assert package.load(run).step == step


@pytest.mark.long
def test_best_of_an_environment_or_a_group_is_its_best_run(store_root: Path, rlplug: Cli) -> None:
    runs = [package.run("means", steps=200, seed=seed, options=EVALUATED) for seed in (0, 1, 2)]
    best = max(runs, key=lambda run: run.best[1] if run.best else 0.0)
    group = json.loads((best.folder / "run.json").read_text())["about"]["group"]
    for name in ("best:LinearBandit-v0", group):
        found = facts(rlplug("show", name, "--json"))
        assert best.best is not None
        assert (found["run_id"], found["return"]) == (best.run_id, best.best[1])


def test_a_run_without_evaluations_or_without_mlflow_has_no_model(
    store_root: Path, rlplug: Cli
) -> None:
    for tracked in (True, False):
        package.run("means", steps=100, options={"tracking.enabled": tracked})
        shown = rlplug("show", "last").out
        assert "best model  not in MLflow" in shown
        assert best_of(rlplug("show", "last", "--json")) == (100, None)


def test_promote_registers_once_and_moves_the_alias(client: MlflowClient, rlplug: Cli) -> None:
    folder = trained()
    steps = sorted(int(one.name[5:]) for one in folder.glob("checkpoints/step-*"))
    said = [rlplug("promote", f"{folder.name}@{step}", "arms").out for step in (*steps, steps[0])]
    versions = [re.findall(r"arms, version (\d)", one) for one in said]
    assert versions == [["1"], ["2"], ["1"]]
    assert "moved" not in said[0]
    assert "champion, moved from version 1" in said[1]
    assert "which was registered before" in said[2]
    assert said[2].endswith("next: rlplug serve models:/arms@champion\n")
    assert "moved" not in rlplug("promote", f"{folder.name}@{steps[0]}", "arms").out
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
    assert [done["version"], done["before"], done["step"]] == ["2", "1", 200]
    assert done["run_id"] == folder.name
    assert str(client.get_model_version_by_alias("arms", "champion").version) == "2"
    refused = rlplug("promote", "models:/arms@nobody", "arms")
    assert refused.code == 2
    assert "there is no model 'models:/arms@nobody'" in refused.err
    refused = rlplug("show", "models:/arms@champion")
    assert refused.code == 2
    assert "'models:/arms@champion'" in refused.err


def test_promote_logs_the_model_of_a_checkpoint_that_was_not_evaluated(
    client: MlflowClient, rlplug: Cli
) -> None:
    folder = package.run("means", steps=100).folder
    assert known_models(folder) == {}
    assert rlplug("promote", "last", "arms").code == 0
    policy = package.load("models:/arms@champion")
    assert policy.step == 100
    assert f"models:/{known_models(folder)['step-000000000100']}" in rlplug("show", "last").out


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
    assert (first["version"], second["version"], second["before"]) == ("1", "2", "1")
    rows = numpy.random.default_rng(0).normal(size=(9, 8))
    expected = package.load(f"{folder.name}@200").predict(rows).tolist()
    # On another machine.
    monkeypatch.setenv("RLPLUG_HOME", str(tmp_path / "elsewhere"))
    policy = package.load("models:/served@champion")
    assert policy.step == 200
    assert policy.predict(rows).tolist() == expected
    told = rlplug("eval", "models:/served@champion", "--episodes", "3")
    assert (told.code, "not saved" in told.err) == (0, False)
    scores = {one.key for one in client.get_logged_model(models["step-000000000200"]).metrics}
    assert "later_eval/return_mean" in scores
    assert "later_eval/return_mean" in client.get_run(folder.name).data.metrics
    assert client.list_artifacts(folder.name, "evaluations")
    third = facts(rlplug("promote", f"{folder.name}@100", "served", "--json"))
    assert (third["version"], third["before"]) == ("1", "2")


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
    used = facts(rlplug("runs", "--sizes", "--json"))
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
