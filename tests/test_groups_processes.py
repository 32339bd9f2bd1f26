"""Groups in real processes: how their runs begin, fail and go on, and what is recorded."""

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
import numpy
import pytest

import rlplug as api
from rlplug.errors import RequestError
from rlplug.review.record import RunRecord
from rlplug.runs.groups.result import GroupFailedError, GroupInterrupted
from rlplug.runs.recorded import RecordedRun
from rlplug.tracking.reading import recorded_runs
from tests.warm import Forked, Warm

if TYPE_CHECKING:
    from tests.conftest import Outcome

Command = Callable[..., "Outcome"]

OFFLINE = ("--set", "tracking.enabled=false")
ENDLESS = ("run", "--algo", "linucb", "--steps", "1000000", *OFFLINE)
ALPHA = ("--space", "alpha={low=0.1,high=2.0}")
PRUNED = (
    *("tune", "--algo", "a2c", "--env", "CartPole-v1", "--steps", "2000", "--trials", "1"),
    *("--space", "gamma={low=0.9,high=0.99}", "--pruner", "threshold", *OFFLINE),
    *("--set", "tune.pruner_options={lower=1e9}"),
)

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
    deadline = time.monotonic() + 120
    while not reached():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def training(home: Path, number: int) -> Callable[[], bool]:
    """Whether so many runs have metrics on disk."""
    return lambda: (
        number == sum(bool(file.stat().st_size) for file in home.glob("work/*/metrics.jsonl"))
    )


def checkpoints(run: RunRecord) -> list[Path]:
    assert run.folder is not None
    return list(run.folder.glob("checkpoints/step-*/manifest.json"))


# -- seeds ----------------------------------------------------------------------------------------


def test_each_seed_is_the_run_that_it_would_be_alone_and_their_lines_of_json_end_with_a_summary(
    rlplug: Command, home: Path
) -> None:
    options = ("--algo", "a2c", "--env", "CartPole-v1", "--steps", "600", *OFFLINE)
    done = rlplug("run", *options, "--seeds", "1,2", "--json", "--quiet")
    assert (done.code, done.err) == (0, "")
    *lines, summary = map(json.loads, done.out.splitlines())
    assert [(run["seed"], run["status"], run["step"]) for run in lines] == [
        (1, "FINISHED", 600),
        (2, "FINISHED", 600),
    ]
    means = [run["best"]["return_mean"] for run in lines]
    assert summary["measures"]["best_return"]["mean"]["estimate"] == sum(means) / 2
    # What chose the best run is not all that is known of it.
    assert summary["best"] == max(lines, key=lambda run: run["best"]["return_mean"])
    assert summary["played"]["episodes"] == 100
    alone = rlplug("run", *options, "--seed", "2", "--json")
    assert json.loads(alone.out)["best"] == lines[1]["best"]
    # Options, plugins and where they come from are those of a run of its own.
    grouped, single = (
        json.loads((run.folder / "provenance.json").read_text())
        for run in recorded_runs(home)
        if run.about.seed == 2 and run.folder is not None
    )
    assert {name: option["value"] for name, option in grouped["options"].items()} == {
        name: option["value"] for name, option in single["options"].items()
    }
    assert {run.about.group for run in recorded_runs(home)} == {summary["group"]}
    assert summary["folder"] == str(home / "groups" / summary["group"])
    names = {file.name for file in (home / "groups" / summary["group"]).iterdir()}
    assert names >= {"summary.json", "summary.md", "band.png", "group.json", "config.toml"}


def test_a_seed_that_fails_stops_no_other_and_goes_on_with_its_group(
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
    assert failed.err.count("ArithmeticError: planted") == 1
    assert "seed 1: ArithmeticError: planted" in failed.out
    assert "1 of 2 seeds" in failed.out
    monkeypatch.delenv("FRAIL")
    group = runs_of(home)[1].about.group
    assert f"rlplug resume {group}" in failed.out
    resumed = rlplug("resume", group)
    assert resumed.code == 0, resumed.err
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
    assert "runs with a checkpoint: seed 0" in err
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


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="there is no such signal")
def test_a_checkpoint_that_is_asked_for_is_one_of_every_seed(warm: Warm, home: Path) -> None:
    options = ("--algo", "linucb", "--steps", "20000000", *OFFLINE)
    process = warm.start("run", *options, "--seeds", "1", "--quiet")
    until(training(home, 1), process)
    assert not checkpoints(runs_of(home)[0])
    process.send_signal(signal.SIGUSR1)
    until(lambda: checkpoints(runs_of(home)[0]), process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)


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


@pytest.mark.parametrize("wrong", [("--set", "alpha=x"), ("--env", "NoSuch-v0")])
def test_what_is_wrong_with_the_request_is_said_once_and_no_seed_has_a_run(
    rlplug: Command, home: Path, wrong: tuple[str, ...]
) -> None:
    refused = rlplug("run", "--algo", "linucb", "--seeds", "4", "--jobs", "1", *wrong)
    assert refused.code == 2
    assert refused.err.count("rlplug: error: ") == 1
    assert not (home / "work").exists()


@pytest.mark.long
def test_a_named_group_goes_on_and_starts_what_it_lacks(rlplug: Command, home: Path) -> None:
    line = ("run", "--algo", "linucb", "--steps", "200", "--name", "night", "--json", *OFFLINE)
    single, first = map(json.loads, rlplug(*line, "--seeds", "1").out.splitlines())
    assert first["group"] == "night"
    assert rlplug(*line, "--seeds", "2").code == 2
    done = rlplug(*line, "--seeds", "2", "--resume-existing")
    assert done.code == 0
    again, second, summary = map(json.loads, done.out.splitlines())
    assert again["run_id"] == single["run_id"]
    assert (summary["group"], second["seed"]) == ("night", 1)
    assert {run.name for run in recorded_runs(home)} == {"night-s0", "night-s1"}
    assert rlplug("show", "night", "--json").code == 0
    # All have finished: there is the summary alone to make.
    third = rlplug(*line, "--seeds", "2", "--resume-existing")
    *lines, _ = map(json.loads, third.out.splitlines())
    assert [run["run_id"] for run in lines] == [single["run_id"], second["run_id"]]


@pytest.mark.long
def test_python_gets_a_sequence_of_records_whose_policies_can_be_loaded(home: Path) -> None:
    options = {"alpha": 0.5, "tracking.enabled": False}
    results = api.run("linucb", steps=200, seeds=range(2), options=options)
    assert [run.about.seed for run in results] == [0, 1]
    assert results.measures == ("reward", "regret")
    low, high = sorted(results.values("regret"))
    assert low <= results.mean("regret").low <= results.iqm("regret").high <= high
    (line,) = results.plot().axes[0].lines
    assert line.get_label() == "linucb (2 runs)"
    assert results[1].load().predict([[0.0] * 8]) is not None


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
    assert repr(results).startswith(f"GroupResult of {results.group}:\nseed")
    (line,) = results.plot().axes[0].lines
    assert line.get_label() == "a2c (2 runs)"
    client = MlflowClient(f"sqlite:///{store_root / 'mlflow.db'}")
    found = client.search_runs(
        [results[0].experiment_id], f"tags.`rlplug.group` = '{results.group}'"
    )
    kinds = {run.info.run_id: run.data.tags["rlplug.kind"] for run in found}
    assert kinds == {**{run.run_id: "run" for run in results}, results.run_id: "summary"}
    parents = {run.data.tags.get("mlflow.parentRunId") for run in found}
    assert parents == {None, results.run_id}
    summary = client.get_run(results.run_id)
    assert summary.info.status == "FINISHED"
    assert "IQM [95%]" in summary.data.tags["mlflow.note.content"]
    measured = summary.data.metrics
    assert measured["summary/best_return_mean"] == results.mean().estimate
    assert measured["summary/iqm_low"] == results.iqm().low
    artifacts = {file.path for file in client.list_artifacts(results.run_id)}
    assert artifacts >= {"summary.json", "summary.md", "band.png"}
    # It is no run of the runs folder: neither listed, nor `last`.
    assert {run.run_id for run in recorded_runs(store_root)} == {run.run_id for run in results}


def test_a_seed_that_fails_in_python_is_raised_with_the_results_of_the_others(
    home: Path,
) -> None:
    def make() -> gymnasium.Env[Any, Any]:
        if any(run.status == "FINISHED" for run in recorded_runs(home)):
            raise ArithmeticError("planted")
        return gymnasium.make("CartPole-v1")

    options = {"tracking.enabled": False, "evaluation.episodes": 0}
    with pytest.raises(GroupFailedError, match="1 of 2 seeds failed") as error:
        api.run("a2c", make, steps=600, seeds=2, options=options)
    assert [run.status for run in error.value.result] == ["FINISHED", "FAILED"]


OBEYING = """
import os, signal, sys
from rlplug.cli.child import Link
ended = []
if sys.argv[1] == "handled":
    signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
Link(None).obey(sys.stdin.buffer)
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
def test_a_child_obeys_signals_and_outlives_its_parent_in_silence(
    signals: list[int], handled: str, code: int
) -> None:
    orders = "".join(json.dumps({"signal": number, "again": False}) + "\n" for number in signals)
    done = subprocess.run(
        [sys.executable, "-c", OBEYING, handled], input=orders, capture_output=True, text=True
    )
    said = "rlplug: ended by SIGHUP\n" if signal.SIGHUP in signals else ""
    assert (done.returncode, done.stdout, done.stderr) == (code, "", said)


def test_an_add_on_that_changes_nothing_makes_a_difference_of_exactly_0(
    rlplug: Command, home: Path
) -> None:
    flags = ["--algo", "linucb", "--steps", "300", *OFFLINE]
    done = rlplug("ablate", *flags, "--without", "ema", "--seeds", "1,2", "--json")
    assert (done.code, done.err) == (0, "")
    whole, without = json.loads(done.out)["compared"]
    # Two seeds are two runs.
    assert len(set(whole["scores"])) == 2
    assert without["scores"] == whole["scores"]
    assert set(without["differences"]) == {"rollout/reward_mean", "rollout/regret_total"}
    for difference in without["differences"].values():
        assert difference["seeds"] == [1, 2]
        assert difference["mean"] == {"estimate": 0.0, "low": 0.0, "high": 0.0}


# -- on a cluster ---------------------------------------------------------------------------------

HALF = ("--place", "ray", "--set", "scale.runner_cpus=0.5")


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
    kept = json.loads((home / "groups" / summary["group"] / "group.json").read_text())
    assert (kept["scale"]["engine"], kept["scale"]["runner_cpus"]) == ("ray", 0.5)


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_trials_on_a_cluster_are_pruned(rlplug: Command, home: Path) -> None:
    done = rlplug(*PRUNED, *HALF)
    assert done.code == 1, done.err
    assert "1 at a time on a Ray cluster, 1 thread each" in done.err
    (run,) = recorded_runs(home)
    assert (run.step < 400, run.shown_status) == (True, "FINISHED (pruned)")


# -- studies --------------------------------------------------------------------------------------


def mean_reward(run: RecordedRun) -> float:
    """Over all steps."""
    steps, rewards = run.history()["rollout/reward_mean"]
    return float((rewards * numpy.diff(steps, prepend=0)).sum() / steps[-1])


@pytest.mark.parametrize("seeds", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_study_has_a_run_per_seed_and_trial_and_its_name_goes_on_with_it(
    rlplug: Command, store_root: Path, seeds: int
) -> None:
    from mlflow import MlflowClient

    command = ("tune", "--algo", "linucb", "--steps", "200", "--seeds", f"{seeds}", *ALPHA)
    done = rlplug(*command, "--trials", "1", "--json", "--quiet")
    assert (done.code, done.err) == (0, "")
    trial, found = map(json.loads, done.out.splitlines())
    runs = {run.run_id: run for run in recorded_runs(store_root)}
    assert [run["seed"] for run in trial["runs"]] == list(range(seeds))
    # Of equally long runs; the reward of the last report is another number.
    rewards = [mean_reward(run) for run in api.runs(root=store_root)]
    assert trial["score"] == pytest.approx(sum(rewards) / seeds)
    assert {run.about.group for run in runs.values()} == {found["group"]}
    assert {run.about.trial for run in runs.values()} == {"0"}
    assert {run.about.options["algorithm.alpha"] for run in runs.values()} == {
        str(trial["options"]["alpha"])
    }
    going_on = (*command, "--name", found["group"], "--resume-existing")
    lines = rlplug(*going_on, "--trials", "2", "--json", "--quiet").out.splitlines()
    *trials, more = map(json.loads, lines)
    assert trials[0] == trial
    assert len(recorded_runs(store_root)) == 2 * seeds
    lines = rlplug("resume", found["group"], "--json", "--quiet").out.splitlines()
    *same_trials, same = map(json.loads, lines)
    assert same_trials == trials
    best = max(trials, key=lambda row: row["score"])
    assert same["best"]["trial"] == best["trial"]
    names = {file.name for file in Path(more["folder"]).iterdir()}
    assert names >= {"best.toml", "config.toml", "group.json", "summary.json"}
    again = rlplug("run", "--config", f"{more['folder']}/best.toml", "--dry-run")
    assert f"alpha = {best['options']['alpha']}" in again.out
    client = MlflowClient(f"sqlite:///{store_root / 'mlflow.db'}")
    summary = client.get_run(more["summary_run_id"])
    assert summary.data.metrics["summary/best"] == best["score"]
    assert len(client.get_metric_history(summary.info.run_id, "trials/score")) == 2
    nested = client.get_run(best["runs"][0]["run_id"]).data.tags["mlflow.parentRunId"]
    assert nested == more["summary_run_id"]
    tags = client.get_run(best["runs"][0]["run_id"]).data.tags
    assert (tags["rlplug.group"], tags["rlplug.trial"]) == (more["group"], str(best["trial"]))
    assert rlplug(*command, "--name", found["group"]).code == 2
    other = rlplug(*going_on, "--set", "l2_lambda=2.0")
    assert other.code == 2
    assert "algorithm.l2_lambda was 1.0, and is 2.0" in other.err


@pytest.mark.long
@pytest.mark.parametrize("trials", [1, 2])
def test_in_python_a_study_gives_its_best_trial_and_its_name_goes_on(
    home: Path, trials: int
) -> None:
    space = {"alpha": {"choices": [0.5, 1.0]}}
    options = {"tracking.enabled": False, "tune.sampler": "grid", "tune.trials": trials}
    found = api.tune("linucb", steps=200, space=space, options=options)
    assert [trial.status for trial in found.rows] == ["FINISHED"] * trials
    assert len({trial.options["alpha"] for trial in found.rows}) == trials
    assert found.best is not None
    assert found.best.score == max(trial.score or 0.0 for trial in found.rows)
    assert found.best.load().predict([[0.0] * 8]) is not None
    again = api.tune("linucb", steps=200, space=space, options=options, study=found.group)
    assert again.rows == found.rows
    # What a shell says of a program that this signal ended.
    interrupted = GroupInterrupted(again, signal.SIGTERM)
    assert (interrupted.result, interrupted.exit_code) == (again, 143)
    with pytest.raises(RequestError, match="NoSuch"):
        api.tune("linucb", "NoSuch-v0", space=space, options=options)


def test_a_pruned_trial_ends_at_its_evaluation_and_says_so(rlplug: Command, home: Path) -> None:
    done = rlplug(*PRUNED)
    # Without a finished trial there is no best one.
    assert done.code == 1, done.err
    assert "1 trial: 1 pruned" in done.out
    (run,) = recorded_runs(home)
    assert run.reason.startswith("pruned: eval/return_mean = ")
    assert run.shown_status == "FINISHED (pruned)"
    assert 200 <= run.step < 400
    assert checkpoints(run)


@pytest.mark.long
def test_a_trial_whose_study_was_killed_goes_on_and_ctrl_c_keeps_what_there_is(
    home: Path, warm: Warm
) -> None:
    name = ("--name", "long", "--resume-existing")
    options = ("--algo", "linucb", "--steps", "1000000", *name, *OFFLINE, *ALPHA)

    def started() -> Forked:
        return warm.start("tune", *options, "--jobs", "1")

    first = started()
    until(lambda: [run.step > 0 for run in recorded_runs(home)] == [True], first)
    first.kill()
    first.communicate()
    until(lambda: [run.status for run in recorded_runs(home)] == ["KILLED"])
    before = recorded_runs(home)[0]
    second = started()
    until(lambda: recorded_runs(home)[0].step > before.step, second)
    second.send_signal(signal.SIGINT)
    out, err = second.communicate(timeout=60)
    assert second.returncode == 130, err
    assert "rlplug resume long" in err
    assert "1 trial: 1 killed" in out
    assert [run.run_id for run in recorded_runs(home)] == [before.run_id]


@pytest.mark.long
def test_trials_of_contradicting_options_fail_and_the_others_go_on(
    rlplug: Command, home: Path
) -> None:
    space = ("--space", "sampling.max_trajectory_length={choices=[2,9]}")
    done = rlplug(
        *("tune", "--algo", "a2c", "--env", "CartPole-v1", "--steps", "300", "--trials", "2"),
        *("--set", "tune.sampler=grid", "--set", "sampling.min_trajectory_length=4"),
        *(*space, *OFFLINE, "--json", "--quiet"),
    )
    assert done.code == 0, done.err
    *trials, _ = map(json.loads, done.out.splitlines())
    assert {trial["status"] for trial in trials} == {"FINISHED", "FAILED"}


@pytest.mark.long
def test_what_every_trial_would_be_refused_for_is_said_once_and_leaves_no_study(
    rlplug: Command, home: Path
) -> None:
    refused = rlplug("tune", "--algo", "linucb", "--env", "NoSuch-v0", *ALPHA, *OFFLINE)
    assert refused.code == 2
    assert refused.err.count("rlplug: error: ") == 1
    assert not list((home / "groups").glob("*"))
