"""Several seeds in real processes: how they run, fail and go on, and what is recorded."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import pytest

import rlplug as api
from rlplug.review.record import RunRecord
from rlplug.runs.seeds.results import SeedsFailedError
from rlplug.tracking.recorded import recorded_runs
from tests.warm import Forked, Warm

if TYPE_CHECKING:
    from tests.conftest import Outcome

Command = Callable[..., "Outcome"]

OFFLINE = ("--set", "tracking.enabled=false")
ENDLESS = ("run", "--algo", "linucb", "--steps", "1000000", *OFFLINE)

FRAIL = '''
import os
from rlplug import hookimpl
from rlplug_linucb.algorithm import LinUCB

class Frail(LinUCB):
    """LinUCB that fails with one seed."""
    @hookimpl
    def run_started(self, run):
        if os.environ.get("FRAIL") == str(run.config.run.seed):
            raise ArithmeticError("planted")
'''


def runs_of(home: Path) -> dict[int, RunRecord]:
    return {run.about.seed: run for run in recorded_runs(home)}


def until(reached: Callable[[], Any], process: Forked | None = None) -> None:
    while not reached():
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.02)


def training(home: Path, number: int) -> Callable[[], bool]:
    """Whether so many runs have metrics on disk."""
    return lambda: (
        number == sum(bool(file.stat().st_size) for file in home.glob("work/*/metrics.jsonl"))
    )


def checkpoints(run: RunRecord) -> list[Path]:
    assert run.folder is not None
    return list(run.folder.glob("checkpoints/step-*/manifest.json"))


def test_each_seed_is_the_run_that_it_would_be_alone_and_their_lines_of_json_end_with_a_summary(
    rlplug: Command, home: Path
) -> None:
    options = ("--algo", "a2c", "--env", "CartPole-v1", "--steps", "600", *OFFLINE)
    done = rlplug("run", *options, "--seeds", "1,2", "--json", "--quiet")
    assert (done.code, done.err) == (0, "")
    *lines, summary = map(json.loads, done.out.splitlines())
    assert [(one["seed"], one["status"], one["step"]) for one in lines] == [
        (1, "FINISHED", 600),
        (2, "FINISHED", 600),
    ]
    assert summary["seeds"] == [1, 2]
    means = [one["best"]["return_mean"] for one in lines]
    assert summary["measures"]["best_return"]["mean"]["estimate"] == sum(means) / 2
    alone = rlplug("run", *options, "--seed", "2", "--json")
    assert json.loads(alone.out)["best"] == lines[1]["best"]
    groups = {run.about.group for run in recorded_runs(home)}
    assert groups == {summary["group"]}
    assert summary["folder"] == str(home / "groups" / summary["group"])
    names = {file.name for file in (home / "groups" / summary["group"]).iterdir()}
    assert names >= {
        "summary.json",
        "summary.md",
        "band.png",
        "report.html",
        "seeds.json",
        "config.toml",
    }


def test_a_seed_that_fails_takes_no_other_with_it_and_goes_on_with_its_group(
    rlplug: Command, home: Path, another_site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "frail.py").write_text(FRAIL)
    info = tmp_path / "rlplug_frail-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: rlplug-frail\nVersion: 0.1.0\nRequires-Dist: rlplug\n"
    )
    (info / "entry_points.txt").write_text("[rlplug.algorithms]\nfrail = frail:Frail\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FRAIL", "1")
    failed = rlplug("run", "--algo", "frail", "--steps", "200", "--seeds", "0-1", *OFFLINE)
    assert failed.code == 1
    assert {seed: run.status for seed, run in runs_of(home).items()} == {
        0: "FINISHED",
        1: "FAILED",
    }
    assert failed.err.count("seed 1: rlplug: error: ArithmeticError: planted") == 1
    assert "seed 1: ArithmeticError: planted" in failed.out
    assert "1 of 2 seeds" in failed.out
    monkeypatch.delenv("FRAIL")
    group = runs_of(home)[1].about.group
    assert f"rlplug resume {group}" in failed.out
    resumed = rlplug("resume", group)
    assert resumed.code == 0, resumed.err
    assert "2 seeds" in resumed.out
    assert [run.status for run in recorded_runs(home)] == ["FINISHED"] * 2
    nothing = rlplug("resume", group)
    assert nothing.code == 2
    assert "all seeds of group" in nothing.err


@pytest.mark.parametrize("goes_on", [False, pytest.param(True, marks=pytest.mark.long)])
def test_ctrl_c_and_the_end_of_the_parent_leave_checkpoints_and_the_group_goes_on(
    warm: Warm, home: Path, goes_on: bool
) -> None:
    first = warm.start(*ENDLESS, "--seeds", "2", "--jobs", "1")
    until(training(home, 1), first)
    first.send_signal(signal.SIGINT)
    out, err = first.communicate(timeout=60)
    assert first.returncode == 130
    assert "interrupted; of seed 0 there is a checkpoint" in err
    assert "not started" in out
    runs = runs_of(home)
    assert {seed: run.status for seed, run in runs.items()} == {0: "KILLED"}
    assert checkpoints(runs[0])
    if not goes_on:
        return
    second = warm.start("resume", runs[0].about.group, "--jobs", "2")
    until(training(home, 2), second)
    until(lambda: runs_of(home)[0].step > runs[0].step, second)
    # Nobody is left who could tell its processes to end.
    second.kill()
    second.communicate()
    until(lambda: [run.status for run in recorded_runs(home)] == ["KILLED"] * 2)
    assert all(checkpoints(run) for run in runs_of(home).values())


def test_a_second_signal_ends_the_seeds_at_once(warm: Warm, home: Path) -> None:
    process = warm.start(*ENDLESS, "--seeds", "1", "--quiet")
    until(training(home, 1), process)
    # In this order they are handled also where both are there before the first one is.
    process.send_signal(signal.SIGINT)
    time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert {run.status for run in recorded_runs(home)} == {"KILLED"}


def test_what_is_wrong_with_the_request_is_said_once_and_no_seed_has_a_run(
    rlplug: Command, home: Path
) -> None:
    refused = rlplug("run", "--algo", "linucb", "--seeds", "4", "--jobs", "1", "--set", "alpha=x")
    assert refused.code == 2
    assert refused.err.count("rlplug: error: ") == 1
    assert "\n  algorithm.alpha   expected float" in refused.err
    assert not (home / "work").exists()


@pytest.mark.long
def test_with_a_name_each_seed_goes_on_or_starts(rlplug: Command, home: Path) -> None:
    options = ("--algo", "linucb", "--steps", "200", *OFFLINE)
    one = rlplug("run", *options, "--seed", "0", "--resume-or-start", "night-s0", "--json")
    done = rlplug("run", *options, "--seeds", "2", "--resume-or-start", "night", "--json")
    assert (one.code, done.code) == (0, 0)
    first, second, summary = map(json.loads, done.out.splitlines())
    assert first["run_id"] == json.loads(one.out)["run_id"]
    assert {run.name for run in recorded_runs(home)} == {"night-s0", "night-s1"}
    assert second["status"] == "FINISHED"
    assert summary["seeds"] == [0, 1]
    assert done.err.startswith("linucb, seeds 0-1: ")
    # All have finished: there is the summary alone to make.
    again = rlplug("run", *options, "--seeds", "2", "--resume-or-start", "night", "--json")
    assert again.code == 0
    *lines, summed = map(json.loads, again.out.splitlines())
    assert [one["run_id"] for one in lines] == [first["run_id"], second["run_id"]]
    assert (summed["group"], summed["seeds"]) == (summary["group"], [0, 1])


@pytest.mark.long
def test_python_gets_a_sequence_of_records_whose_policies_can_be_loaded(home: Path) -> None:
    results = api.run(
        "linucb", steps=200, seeds=range(2), options={"alpha": 0.5, "tracking.enabled": False}
    )
    assert [run.about.seed for run in results] == [0, 1]
    assert results.measures == ("reward", "regret")
    low, high = sorted(results.values("regret"))
    assert low <= results.mean("regret").low <= results.iqm("regret").high <= high
    assert repr(results).startswith(f"RunResults of {results.group}:\nseed")
    (line,) = results.plot().axes[0].lines
    assert line.get_label() == "linucb (2 runs)"
    policy = results[1].load()
    assert policy.predict([[0.0] * 8]) is not None


def test_what_no_other_process_could_import_runs_in_order_here_and_is_recorded(
    store_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from mlflow import MlflowClient

    results = api.run(
        "a2c",
        lambda: gymnasium.make("CartPole-v1"),
        steps=600,
        seeds=2,
        options={"evaluation.episodes": 2},
    )
    assert "one after another in this process, because of the environment" in caplog.text
    assert [run.about.seed for run in results] == [0, 1]
    assert repr(results).startswith(f"RunResults of {results.group}:\nseed")
    (line,) = results.plot().axes[0].lines
    assert line.get_label() == "a2c (2 runs)"
    assert results[1].load().predict([[0.0] * 4]) is not None
    client = MlflowClient(f"sqlite:///{store_root / 'mlflow.db'}")
    found = client.search_runs(
        [results[0].experiment_id], f"tags.`rlplug.group` = '{results.group}'"
    )
    members = [run.data.tags for run in found if run.data.tags["rlplug.kind"] == "run"]
    assert [tags["rlplug.rerunnable"] for tags in members] == ["false", "false"]
    kinds = {run.info.run_id: run.data.tags["rlplug.kind"] for run in found}
    assert kinds == {**{run.run_id: "run" for run in results}, results.run_id: "summary"}
    summary = client.get_run(results.run_id)
    assert summary.info.status == "FINISHED"
    note = summary.data.tags["mlflow.note.content"].splitlines()
    assert note[2:4] == ["| &emsp;| mean&emsp;| interquartile mean&emsp;|", "| --- | ---: | ---: |"]
    measured = summary.data.metrics
    assert measured["summary/best_return_mean"] == results.mean().estimate
    assert measured["summary/iqm_low"] == results.iqm().low
    artifacts = {one.path for one in client.list_artifacts(results.run_id)}
    assert artifacts >= {"summary.json", "summary.md", "band.png", "report.html"}
    # It is no run of the runs folder: neither listed, nor `last`.
    assert {run.run_id for run in recorded_runs(store_root)} == {run.run_id for run in results}


def test_a_seed_that_fails_in_python_is_raised_with_the_results_of_the_others(
    home: Path,
) -> None:
    def make() -> gymnasium.Env[Any, Any]:
        if results_so_far(home):
            raise ArithmeticError("planted")
        return gymnasium.make("CartPole-v1")

    options = {"tracking.enabled": False, "evaluation.episodes": 0}
    with pytest.raises(SeedsFailedError, match="1 of 2 seeds failed") as error:
        api.run("a2c", make, steps=600, seeds=2, options=options)
    assert "seed 1: " in str(error.value)
    assert [run.status for run in error.value.results] == ["FINISHED", "FAILED"]


def results_so_far(home: Path) -> int:
    return sum(run.status == "FINISHED" for run in recorded_runs(home))


OBEYING = """
import os, signal, sys
from rlplug.cli.seed_run import SeedRun
ended = []
if sys.argv[1] == "handled":
    signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
SeedRun(None, {}).obey(sys.stdin.buffer)
os.write(1, b"to stdout")
os.write(2, b"to stderr")
os._exit(ended[0])
"""


@pytest.mark.parametrize(
    ("signals", "handled", "code"),
    [
        # Only the end of the parent, which ends a run as SIGTERM would: nobody reads what it says.
        ([], "handled", signal.SIGTERM),
        # Before there is a run, a signal ends the process, but for the one that saves.
        ([], "", 128 + signal.SIGTERM),
        ([signal.SIGUSR1], "handled", signal.SIGTERM),
        ([signal.SIGHUP], "handled", 128 + signal.SIGHUP),
    ],
)
def test_a_process_of_a_seed_obeys_signals_and_outlives_its_parent_in_silence(
    signals: list[int], handled: str, code: int
) -> None:
    orders = "".join(json.dumps({"signal": one, "again": False}) + "\n" for one in signals)
    done = subprocess.run(
        [sys.executable, "-c", OBEYING, handled], input=orders, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
