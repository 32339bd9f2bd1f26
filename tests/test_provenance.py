"""What a run was made from is recorded, and a run can be made like another."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from rlplug.registry import FoundPlugin
from rlplug.review.provenance import (
    OptionRecord,
    PluginRecord,
    Provenance,
    differences,
    read_provenance,
)
from rlplug.tracking.provenance import (
    git_state,
    plugin_record,
    working_diff,
)

if TYPE_CHECKING:
    from tests.conftest import Outcome

Command = Callable[..., "Outcome"]
RUN = ("run", "--algo", "linucb", "--steps", "40", "--set", "alpha=0.7", "--quiet")


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=me", "-c", "user.email=me@here", *arguments]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def repository(folder: Path) -> str:
    """A repository with one file and one commit."""
    folder.mkdir(exist_ok=True)
    git(folder, "init", "--initial-branch", "trunk")
    (folder / "run.toml").write_text("seed = 0\n")
    git(folder, "add", "run.toml")
    git(folder, "commit", "--message", "Start")
    return git(folder, "rev-parse", "HEAD")


def facts(**more: Any) -> Provenance:
    known: dict[str, Any] = {
        "options": {
            "algorithm.alpha": OptionRecord(value=1.0, default=1.0),
            "tracking.run_name": OptionRecord(value="one", default=""),
        },
        "plugins": (
            PluginRecord(
                name="linucb", distribution="rlplug-linucb", version="0.3.0", source_hash="a" * 64
            ),
        ),
        "hooks": {"build": ("linucb",)},
        "versions": {"torch": "2.6"},
        "code": {"commit": "b" * 40},
        "machine": {"host": "here"},
    }
    return Provenance(**{**known, **more})


def test_what_differs_is_named_part_by_part() -> None:
    other = facts(
        options={
            "algorithm.alpha": OptionRecord(value=2.0, default=1.0, origin="--set"),
            "tracking.run_name": OptionRecord(value="two", default=""),
        },
        plugins=(
            PluginRecord(
                name="linucb", distribution="rlplug-linucb", version="0.3.1", source_hash="c" * 64
            ),
            PluginRecord(name="ema", distribution="rlplug-ema", version="1.0"),
        ),
        hooks={"build": ("linucb", "ema")},
        versions={"torch": "2.7"},
        code={},
        machine={"host": "there"},
    )
    assert [one.shown for one in differences(facts(), other)] == [
        "options algorithm.alpha: 1.0 → 2.0",
        "plugins linucb: 0.3.0 (rlplug-linucb) → 0.3.1 (rlplug-linucb)",
        "plugins linucb source: aaaaaaaaaaaa → cccccccccccc",
        "plugins ema: none → 1.0 (rlplug-ema)",
        "hooks build: linucb → linucb, ema",
        "versions torch: 2.6 → 2.7",
        "code commit: bbbbbbbbbbbb → none",
        "machine host: here → there",
    ]
    assert differences(facts(), facts()) == []


def test_a_record_is_read_as_it_was_written_and_a_damaged_one_is_none(tmp_path: Path) -> None:
    file = tmp_path / "provenance.json"
    file.write_text(facts().to_json())
    assert read_provenance(tmp_path) == facts()
    for name in ("options", "plugins", "hooks", "versions", "code", "machine"):
        file.write_text(json.dumps({**json.loads(facts().to_json()), name: 3}))
        assert read_provenance(tmp_path) is None
    for text in ("{", "3", "[" * 100_000):
        file.write_text(text)
        assert read_provenance(tmp_path) is None
    file.unlink()
    assert read_provenance(tmp_path) is None


def test_a_plugin_passed_from_python_is_its_own_module_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "rlplug_passed_test"
    package.mkdir()
    (package / "__init__.py").write_text("class X: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = __import__(package.name)
    installed = FoundPlugin(
        kind="algorithm", name="mine", target=f"{package.name}:X", distribution="d", version="1"
    )
    passed = attrs.evolve(installed, loaded=module.X)
    alone = plugin_record(passed).source_hash
    assert plugin_record(installed).source_hash == alone
    # A program's other files are no part of a class in it, but all of an installed package is.
    other = package / "other.py"
    other.write_text("y = 1\n")
    assert plugin_record(passed).source_hash == alone
    hashes = [alone, plugin_record(installed).source_hash]
    other.write_text("y = 2\n")
    hashes.append(plugin_record(installed).source_hash)
    other.rename(package / "renamed.py")
    hashes.append(plugin_record(installed).source_hash)
    assert len(set(hashes)) == 4


def test_the_diff_of_the_working_folder_has_no_passwords(tmp_path: Path) -> None:
    repository(tmp_path)
    assert working_diff(tmp_path) == b""
    git(tmp_path, "remote", "add", "origin", "https://me:hunter2@host/x.git")
    (tmp_path / "run.toml").write_text("uri = 'http://me:hunter2@host/'\n")
    diff = working_diff(tmp_path).decode()
    assert "+uri = 'http://***@host/'" in diff
    state = git_state(tmp_path)
    assert state["branch"] == "trunk"
    assert (state["changed"], state["origin"]) == ("true", "https://***@host/x.git")
    assert git_state(Path("/")) == {}


@pytest.fixture
def started(
    rlplug: Command, store_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The folder of a run that was started in a repository with changes."""
    repository(tmp_path / "project")
    (tmp_path / "project" / "run.toml").write_text("seed = 1\n")
    monkeypatch.chdir(tmp_path / "project")
    outcome = rlplug(*RUN)
    assert outcome.code == 0, outcome.err
    (folder,) = (store_root / "work").iterdir()
    return folder


def test_a_run_records_what_it_was_made_from(started: Path, store_root: Path) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{store_root / 'mlflow.db'}")
    run = client.get_run(started.name)
    known = read_provenance(started)
    assert known is not None
    assert known.options["algorithm.alpha"] == OptionRecord(value=0.7, default=1.0, origin="--set")
    assert known.options["run.env"].origin == "default of linucb"
    assert known.options["learner.max_grad_norm"].origin == "default"
    (plugin,) = known.plugins
    assert plugin.distribution == "rlplug-linucb"
    assert len(plugin.source_hash) == 64
    assert known.hooks["build"] == ("linucb",)
    assert {"python", "torch", "gymnasium", "numpy", "mlflow", "rlplug source"} <= set(
        known.versions
    )
    assert set(known.machine) == {"host", "os", "cpu", "cores", "threads", "gpu"}
    assert known.code["branch"] == "trunk"
    assert known.code["changed"] == "true"
    begun = json.loads((started / "run.json").read_text())
    assert begun["plugins"][0]["source_hash"] == plugin.source_hash
    assert begun["hooks"]["build"] == ["linucb"]
    tags = run.data.tags
    assert tags["rlplug.plugins"] == f"linucb {plugin.version} (rlplug-linucb)"
    assert tags["mlflow.source.git.commit"] == known.code["commit"]
    assert tags["rlplug.git_dirty"] == "true"
    there = {one.path for one in client.list_artifacts(started.name, "config")}
    assert {"config/provenance.json", "config/working_tree.diff"} <= there
    assert "+seed = 1" in (started / "working_tree.diff").read_text()


def test_a_run_like_another_is_the_same_and_says_what_differs(
    started: Path, store_root: Path, rlplug: Command, caplog: pytest.LogCaptureFixture
) -> None:
    from mlflow import MlflowClient

    dry = rlplug("run", "--like", started.name[:8], "--dry-run")
    assert "alpha = 0.7" in dry.out
    outcome = rlplug("run", "--like", started.name[:8], "--seed", "1", "--quiet")
    assert outcome.code == 0, outcome.err
    said = [one.getMessage() for one in caplog.records]
    assert said == [f"rlplug: not as in run {started.name[:8]}: options run.seed: 0 → 1"]
    (new,) = (one for one in (store_root / "work").iterdir() if one != started)
    client = MlflowClient(f"sqlite:///{store_root / 'mlflow.db'}")
    before, after = client.get_run(started.name).data, client.get_run(new.name).data
    assert after.tags["rlplug.like"] == started.name
    assert after.tags["rlplug.like_differences"] == "1"
    assert after.tags["rlplug.group"] == before.tags["rlplug.group"]
    assert after.tags["rlplug.options"] == before.tags["rlplug.options"]
    known = read_provenance(new)
    assert known is not None
    assert known.options["algorithm.alpha"].origin == str(started / "config.toml")
    assert known.options["run.seed"].origin == "command line"
    assert "options run.seed: 0 → 1" in (new / "like.txt").read_text()
    changed = {name for name, value in after.params.items() if before.params.get(name) != value}
    assert changed == {"run.seed"}
    shutil.rmtree(started)
    dry = rlplug("run", "--like", started.name, "--dry-run")
    assert dry.code == 0, dry.err
    assert "alpha = 0.7" in dry.out
    fetched = store_root / "fetched" / started.name
    assert {one.name for one in fetched.iterdir()} == {"config.toml", "provenance.json"}


def test_what_cannot_be_the_same_is_refused(
    started: Path, rlplug: Command, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = rlplug("run", "--like", started.name, "--algo", "ppo")
    assert outcome.code == 2
    assert "--algo cannot be used with --like" in outcome.err
    config = started / "config.toml"
    text = config.read_text()
    config.write_text(text.replace('init_from = ""', 'init_from = "s3://***@bucket/run"'))
    outcome = rlplug("run", "--like", started.name, "--dry-run")
    assert outcome.code == 2
    assert "s3://***@bucket/run" in outcome.err
    # Where runs are recorded is that of the new run.
    config.write_text(text.replace('uri = ""', 'uri = "https://***@host"'))
    assert rlplug("run", "--like", started.name, "--dry-run").code == 0
    config.write_text(text)
    file = started / "provenance.json"
    file.write_text(file.read_text().replace("rlplug-linucb", "rlplug-other"))
    outcome = rlplug("run", "--like", started.name)
    assert outcome.code == 0
    assert "rlplug-other" in caplog.text
