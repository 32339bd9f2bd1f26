"""Runs of a tracking server alone: listed, shown, compared and removed, also in progress."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import rlplug as package
from rlplug.config.sections import RunConfig, RunSection, TrackingSection
from rlplug.plugin import NoOptions
from rlplug.tracking import Tracking, open_tracking

if TYPE_CHECKING:
    from tests.conftest import Outcome

Cli = Callable[..., "Outcome"]


def started(uri: str, root: Path, seed: int, alpha: float, score: float) -> Tracking:
    """A run with one evaluation and a checkpoint, in progress."""
    config = RunConfig(
        run=RunSection(algorithm="none", steps=40, seed=seed),
        algorithm=NoOptions(),
        tracking=TrackingSection(uri=uri),
    )
    run = open_tracking(
        config,
        environment=f"Hall-{root.parent.name}",
        chosen={"algorithm.alpha": alpha, "run.steps": 40},
        root=root,
    )
    for step in (10, 20):
        values = {"eval/return_mean": score * step / 20, "eval/best_step": float(step)}
        values["eval/best_return_mean"] = values["eval/return_mean"]
        run.listener.evaluation_finished(step, values)
    file = run.folder / "checkpoints" / "step-000000000020" / "manifest.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    run.listener.checkpoint_saved(20)
    return run


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: str) -> Path:
    """The runs folder of another machine, which has none of the runs."""
    folder = tmp_path / "here"
    monkeypatch.setenv("RLPLUG_HOME", str(folder))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", served)
    return folder


def test_runs_of_a_server_are_listed_shown_compared_and_removed_also_in_progress(
    served: str, home: Path, tmp_path: Path, rlplug: Cli
) -> None:
    there = tmp_path / "there"
    ended = started(served, there, 0, 1.0, 80.0)
    ended.close("FINISHED")
    running = started(served, there, 1, 2.0, 90.0)
    _wait_until_uploaded(served, running.run_id)
    # Their folders are not on this machine.
    there.rename(tmp_path / "gone")
    env = f"Hall-{tmp_path.name}"
    try:
        rows = [json.loads(row) for row in rlplug("runs", "--env", env, "--json").out.splitlines()]
        assert [row["status"] for row in rows] == ["RUNNING", "FINISHED"]
        assert (rows[1]["best"], rows[1]["folder"]) == ({"step": 20, "return_mean": 80.0}, None)
        assert rows[1]["options"] == {"algorithm.alpha": "1.0", "run.steps": "40"}

        shown = rlplug("show", f"best:{env}").out
        assert running.run_id in shown
        assert "RUNNING at step 20 of 40" in shown
        assert "20 (90, best, last)" in shown
        assert f"{served}/#/experiments/" in shown
        page = f"/runs/{running.run_id}?"
        assert page in rlplug("ui", running.run_name).out
        printed = rlplug("show", ended.run_name, "--metrics", "eval/return_mean").out
        assert printed == "step,eval/return_mean\n10,40.0\n20,80.0\n"

        told = rlplug("compare", ended.run_id[:8], running.run_id[:8])
        assert ["algorithm.alpha", "1.0", "2.0"] in [row.split() for row in told.out.splitlines()]
        assert (home / "compare.png").is_file()

        (run,) = package.runs(env=env, status="running")
        assert run.history()["eval/return_mean"].values.tolist() == [45.0, 90.0]

        refused = rlplug("runs", "rm", running.run_id, "--yes")
        assert (refused.code, "is in progress" in refused.err) == (2, True)
        removed = rlplug("runs", "rm", ended.run_id, "--yes")
        assert (removed.code, removed.err) == (0, "")
        assert len(rlplug("runs", "--env", env, "--json").out.splitlines()) == 1
    finally:
        (tmp_path / "gone").rename(there)
        running.close("FINISHED")


def _wait_until_uploaded(uri: str, run_id: str) -> None:
    from mlflow import MlflowClient

    for _ in range(150):
        if MlflowClient(uri).list_artifacts(run_id, "checkpoints/step-000000000020"):
            return
        time.sleep(0.2)
    raise AssertionError("nothing was uploaded")


def test_runs_of_the_folder_are_listed_when_the_server_does_not_answer(
    tmp_path: Path, rlplug: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLPLUG_HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    nothing = rlplug("runs")
    assert nothing.code == 2
    assert "http://127.0.0.1:9 does not answer" in nothing.err
    result = package.run("linucb", steps=20, options={"tracking.enabled": False})
    listed = rlplug("runs")
    assert listed.code == 0
    assert result.run_id[:8] in listed.out
    assert "does not answer" in listed.err
    assert f"These are the runs in {tmp_path} alone." in listed.err
    assert result.run_id in rlplug("show", "best:LinearBandit-v0").out
