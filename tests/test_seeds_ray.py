"""Runs of seeds and trials that a Ray cluster carries out, each as a whole on some host."""

from __future__ import annotations

import json
import queue
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rlplug.config.scale_section import ScaleSection
from rlplug.config.sources import Setting
from rlplug.errors import RequestError
from rlplug.registry import Registry
from rlplug.runs.request import Request
from rlplug.runs.seeds.on_ray import Host
from rlplug.runs.seeds.placement import _refuse_database, _room, spread_by
from rlplug.runs.versions import installed_versions
from rlplug.tracking.recorded import recorded_runs

if TYPE_CHECKING:
    from tests.conftest import Outcome

Command = Callable[..., "Outcome"]

OFFLINE = ("--set", "tracking.enabled=false")
HALF = ("--scale", "ray", "--set", "scale.runner_cpus=0.5")


@pytest.mark.usefixtures("cluster")
def test_seeds_on_a_cluster_are_the_runs_that_they_would_be_here_and_their_group_knows_where(
    rlplug: Command, home: Path
) -> None:
    command = ("run", "--algo", "linucb", "--steps", "200", *OFFLINE, "--json", "--quiet")
    spread = rlplug(*command, "--seeds", "2", *HALF)
    assert spread.code == 0, spread.err
    first, second, summary = map(json.loads, spread.out.splitlines())
    alone = json.loads(rlplug(*command, "--seed", "1").out)
    assert second["regret"] == alone["metrics"]["rollout/regret_total"]
    assert first["regret"] != second["regret"]
    # Where they were run is no difference between them.
    assert {run.about.group for run in recorded_runs(home)} == {summary["group"]}
    assert not list(home.glob(".shared-*"))
    kept = json.loads((home / "groups" / summary["group"] / "seeds.json").read_text())
    assert (kept["scale"]["engine"], kept["scale"]["runner_cpus"]) == ("ray", 0.5)


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_trials_on_a_cluster_are_pruned_and_what_is_wrong_is_told_from_there(
    rlplug: Command, home: Path
) -> None:
    options = ("--algo", "a2c", "--env", "CartPole-v1", "--steps", "2000", "--trials", "1")
    space = ("--space", "gamma={low=0.9,high=0.99}", "--pruner", "threshold")
    done = rlplug(
        *("tune", *options, *space, *HALF, *OFFLINE, "--set", "tune.pruner_options={lower=1e9}")
    )
    assert done.code == 1, done.err
    assert "1 at a time on a Ray cluster, 1 thread each" in done.err
    assert "1 trial: 1 pruned" in done.out
    (run,) = recorded_runs(home)
    assert (run.step < 400, run.shown_status) == (True, "FINISHED (pruned)")


def host(job: dict[str, Any], home: Path, **more: Any) -> Host:
    plugins = [Registry.installed().find("algorithm", "linucb")]
    given = {
        "path": [],
        "folder": str(home.parent),
        "root": str(home),
        "environ": {"RLPLUG_HOME": str(home)},
        "plugins": [("algorithm", "linucb")],
        "versions": installed_versions(plugins),
        "token": "mark",
        "content": "x",
        "order": {"arguments": ["version"], "part": {}},
    }
    return Host("seed 0", {**given, **job, **more})


def test_a_host_without_a_plugin_with_another_version_or_another_folder_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path.cwd())
    home.mkdir(parents=True, exist_ok=True)
    here = socket.gethostname()
    missing = host({"plugins": [("algorithm", "no-such-plugin")]}, home).start()[1]
    assert missing.startswith(f"host {here}: ")
    assert "no-such-plugin" in missing
    older = host({"versions": {"plugin 'linucb'": "rlplug-linucb 0.0.1"}}, home).start()[1]
    assert f"is rlplug-linucb 0.1.0 on host {here}, but rlplug-linucb 0.0.1 where" in older
    elsewhere = host({}, home).start()[1]
    assert f"the runs folder {home} of the host that started the run is not on host" in elsewhere
    assert "try: RLPLUG_HOME=/a/folder/that/all/hosts/share" in elsewhere


def test_a_host_passes_on_what_the_process_says_and_how_it_ends(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path.cwd())
    home.mkdir(parents=True, exist_ok=True)
    (home / "mark").write_text("x")
    arguments = ["run", "--algo", "linucb", "--set", "alpha=x"]
    started = host({"path": sys.path, "order": {"arguments": arguments, "part": {}}}, home)
    assert started.start() == (socket.gethostname(), "")
    found: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    said: list[Any] = []
    while not said or said[-1]["kind"] != "ended":
        for one in started.events():
            found.put(one)
            said.append(one)
    assert said[-1] == {"name": "seed 0", "kind": "ended", "value": 2}
    assert any("alpha   expected float" in str(one["value"]) for one in said)


# -- where ----------------------------------------------------------------------------------------


def test_runs_are_spread_whole_unless_each_has_runners_or_learners(tmp_path: Path) -> None:
    ray = {"scale": {"engine": "ray"}}
    section = spread_by(Request(flags=ray, settings=(Setting("scale.runner_cpus", 2.0),)))
    assert section is not None
    assert section.runner_cpus == 2.0
    assert spread_by(Request()) is None
    assert spread_by(Request(flags={"scale": {"engine": "ray", "runners": 2}})) is None
    assert spread_by(Request(flags=ray, settings=(Setting("scale.learners", 2),))) is None
    file = tmp_path / "run.toml"
    file.write_text('[scale]\nengine = "ray"\naddress = "auto"\n')
    section = spread_by(Request(config=file))
    assert section is not None
    assert section.address == "auto"


def test_a_node_has_room_for_the_runs_whose_resources_it_has() -> None:
    node = {"CPU": 4.0, "GPU": 1.0}
    assert _room(node, ScaleSection(engine="ray")) == 4
    assert _room(node, ScaleSection(engine="ray", runner_cpus=0.1)) == 40
    assert _room(node, ScaleSection(engine="ray", runner_gpus=0.5)) == 2
    assert _room(node, ScaleSection(engine="ray", runner_resources={"big": 1.0})) == 0
    assert _room(node, ScaleSection(engine="ray", runner_cpus=0.0)) == 4


def test_several_hosts_do_not_write_into_one_database_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(RequestError, match="cannot be recorded in sqlite:///") as error:
        _refuse_database(Request(), home)
    assert "MLFLOW_TRACKING_URI=http://HOST:PORT" in str(error.value)
    _refuse_database(Request(settings=(Setting("tracking.enabled", False),)), home)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow.example:5000")
    _refuse_database(Request(), home)
