"""`rlplug tune`: what is refused, how trials are chosen, pruned and gone on with, what is left."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy
import pytest

import rlplug as api
from rlplug.config.tune_section import TuneSection
from rlplug.errors import ConfigError, RequestError
from rlplug.registry import Registry
from rlplug.review.record import RunAbout, RunRecord
from rlplug.runs.recorded import RecordedRun
from rlplug.runs.request import Request
from rlplug.runs.tuning.asked import TuneRequest
from rlplug.runs.tuning.plan import TrialsPlan
from rlplug.runs.tuning.results import StudyInterrupted
from rlplug.runs.tuning.space import Range, read_space
from rlplug.runs.tuning.study import Proposal, Study
from rlplug.runs.tuning.summary import StudySummary, TrialRow
from rlplug.tracking.recorded import recorded_runs
from tests.warm import Forked, Warm

if TYPE_CHECKING:
    from tests.conftest import Outcome

Command = Callable[..., "Outcome"]

OFFLINE = ("--set", "tracking.enabled=false")
ALPHA = ("--space", "alpha={low=0.1,high=2.0}")


def asked(**section: Any) -> TuneRequest:
    request = Request(flags={"run": {"algorithm": "linucb", "steps": 200}})
    values = {"space": {"alpha": {"low": 0.1, "high": 2.0}}, **section}
    return TuneRequest.of(request, values, Registry.installed())


# -- what is asked for --------------------------------------------------------------------------


def test_a_study_is_the_same_wherever_it_runs_and_is_recorded() -> None:
    def name(**sections: Any) -> str:
        flags = {"run": {"algorithm": "linucb", "steps": 200}, **sections}
        space = {"space": {"alpha": {"low": 0.1, "high": 2.0}}}
        return TuneRequest.of(Request(flags=flags), space, Registry.installed()).default_name

    elsewhere = {
        "tracking": {"enabled": False, "experiment": "other"},
        "scale": {"engine": "ray"},
    }
    assert name() == name(**elsewhere)
    assert name() != name(algorithm={"l2_lambda": 2.0})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3, "expected { low = 0.1, high = 1.0 } or { choices = [1, 2] }, got 3"),
        ({"low": 2, "high": 1}, "low = 2 is greater than high = 1"),
        ({"low": 1, "high": 1}, "low and high are both 1"),
        ({"low": 0.0, "high": 1.0, "log": True}, "low = 0.0 must be greater than 0 with log"),
        ({"low": 0, "high": 9, "step": 0}, "step = 0 must be greater than 0"),
        ({"low": 1, "high": 9, "step": 2, "log": True}, "step and log are both given"),
        ({"low": 1}, "high missing"),
        ({"low": "a", "high": float("inf")}, "low must be a finite number, got 'a'"),
        ({"low": 1, "high": 2, "logg": True}, "unknown key 'logg', did you mean 'log'?"),
        ({"choices": []}, "choices is empty"),
        ({"choices": 3}, "choices must be a list, got 3"),
        ({"choices": [[64], [64]]}, "the choice [64] is given 2 times"),
        ({"choices": [1, 2], "low": 1}, "choices and low are both given"),
    ],
)
def test_a_range_that_is_none_is_answered_with_what_is_wrong(given: Any, said: str) -> None:
    _, problems = read_space({"x": given})
    assert [one.path for one in problems][:1] == ["tune.space.x"]
    assert said in problems[0].message


def test_options_are_searched_by_a_path_or_in_tables_and_lists_have_labels() -> None:
    space = {
        "sampling": {"num_envs": {"choices": [4, 8]}},
        "net_arch": {"choices": [[64, 64], [16]]},
        "n_epochs": {"low": 3, "high": 20},
    }
    ranges, problems = read_space(space)
    assert problems == []
    assert [one.name for one in ranges] == ["sampling.num_envs", "net_arch", "n_epochs"]
    assert ranges[1].labels == {"[64, 64]": [64, 64], "[16]": [16]}
    assert ranges[1].value("[16]") == [16]
    assert [one.as_toml() for one in ranges[1:]] == [space["net_arch"], space["n_epochs"]]


def test_whole_ends_of_an_option_with_decimals_are_searched_in_decimals() -> None:
    (one,) = asked(space={"alpha": {"low": 0, "high": 2}}).ranges
    assert one.ends == (0.0, 2.0)
    assert all(type(end) is float for end in one.ends)
    run = {"algorithm": "ppo", "env": "CartPole-v1", "steps": 200, "addons": ["rnd"]}
    whole = {"low": 1, "high": 2}
    space = {
        "addons.rnd.coef": whole,
        "learner.max_grad_norm": whole,
        "addons.rnd.out_features": whole,
        "sampling.num_envs": whole,
    }
    request = TuneRequest.of(Request(flags={"run": run}), {"space": space}, Registry.installed())
    ends = {one.name: one.ends for one in request.ranges}
    assert list(ends) == list(space)
    assert [type(end) for both in ends.values() for end in both] == [*[float] * 4, *[int] * 4]


def test_regret_is_minimized_and_what_else_is_maximized() -> None:
    assert not TuneSection(metric="rollout/regret_total").maximizes
    assert TuneSection().maximizes
    assert TuneSection(metric="rollout/regret_total", direction="maximize").maximizes


def test_all_that_is_wrong_is_said_at_once_before_anything_is_run(
    rlplug: Command, home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "tune.toml"
    file.write_text(
        """
        [run]
        algorithm = "linucb"
        [tune]
        trials = 0
        sampler = "tpee"
        pruner_options = { n_startup = 1 }
        [tune.space]
        alpha = { low = -1.0, high = 1.0 }
        alfa = { low = 1, high = 2 }
        l2_lambda = { low = 2.0, high = 1.0 }
        "run.seed" = { choices = [1, 2] }
        """
    )
    refused = rlplug("tune", "--config", str(file), "--set", "discount=2.0")
    assert (refused.code, refused.out) == (2, "")
    problems = [" ".join(line.split()) for line in refused.err.splitlines()]
    for said in (
        "tune.trials must be at least 1, got 0",
        "tune.space.l2_lambda low = 2.0 is greater than high = 1.0",
        "tune.space.alfa unknown option, did you mean 'alpha'?",
        "tune.space.alpha -1.0: must be at least 0, got -1.0",
        "tune.space.run.seed cannot be searched: seeds are no options to search",
        "algorithm.discount must be",
    ):
        assert sum(one.startswith(said) for one in problems) == 1, (said, problems)
    assert not (home / "work").exists()
    assert not (home / "optuna.db").exists()


@pytest.mark.parametrize(
    ("twice", "named"),
    [
        (("--trials", "1", "--set", "tune.trials=2"), "tune.trials"),
        (("--seeds", "2", "--set", "tune.seeds=3"), "tune.seeds"),
        (("--metric", "eval/x", "--set", "tune.metric=eval/y"), "tune.metric"),
        (("--set", "tune.seed=1", "--set", "tune.seed=2"), "tune.seed"),
        (("--set", "tune.space.alpha={low=0.5,high=2.0}"), "tune.space.alpha"),
        (
            ("--space", "run.env={choices=['a']}", "--set", "tune.space.run.env={choices=['b']}"),
            "tune.space.run.env",
        ),
    ],
)
def test_options_of_a_study_that_are_given_twice_are_refused(
    rlplug: Command, home: Path, twice: tuple[str, ...], named: str
) -> None:
    space = "--space", "alpha={low=0.1,high=1.0}"
    refused = rlplug("tune", "--algo", "linucb", *space, *twice)
    assert (refused.code, refused.out) == (2, "")
    lines = [" ".join(line.split()) for line in refused.err.splitlines()]
    assert lines.count(f"{named} is given twice: set it once") == 1
    assert not (home / "work").exists()


def problems(**section: Any) -> str:
    with pytest.raises(ConfigError) as error:
        asked(**section)
    assert error.value.exit_code == 2
    return str(error.value)


def test_samplers_and_pruners_that_optuna_does_not_have_are_refused() -> None:
    assert "unknown sampler 'tpee', did you mean 'tpe'?" in problems(sampler="tpee")
    assert "unknown pruner 'x', there are: median, percentile" in problems(pruner="x")
    said = problems(sampler_options={"n_startup": 1}, pruner_options={"n_warmup_step": 1})
    assert "TPESampler has no such argument, did you mean 'n_startup_trials'?" in said
    assert "MedianPruner has no such argument, did you mean 'n_warmup_steps'?" in said
    assert "percentile" in problems(pruner="percentile")
    assert "'grid' needs choices, or low, high, step" in problems(sampler="grid")


def test_an_option_that_is_searched_and_set_or_searched_twice_is_refused() -> None:
    both = {"alpha": {"low": 0.1, "high": 1}, "algorithm.alpha": {"low": 0.1, "high": 1}}
    assert "is also set, by tune.space.alpha: one of the two" in problems(space=both)
    steps = {"run.steps": {"choices": [100, 200]}}
    assert "is also set, by steps: one of the two" in problems(space=steps)
    assert "tune.space   is empty" in problems(space={})


def test_a_pruner_that_was_asked_for_needs_evaluations() -> None:
    assert "there is no evaluation before the end of a trial" in problems(pruner="median")
    said = problems(pruner="median", metric="rollout/regret_total")
    assert "prunes on evaluations, and rollout/regret_total is not of them" in said


def test_without_optuna_the_message_says_what_to_install(
    rlplug: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    refused = rlplug("tune", "--algo", "linucb", *ALPHA)
    assert refused.code == 2
    assert "pip install 'rlplug[tune]'" in refused.err


def test_a_command_that_trains_imports_neither_optuna_nor_ray(warm: Warm) -> None:
    check = (
        "import sys, rlplug.runs.run, rlplug.cli.main, rlplug.runs.seeds.several;"
        "sys.exit(any(one in sys.modules for one in ('optuna', 'ray')))"
    )
    assert warm.start(code=check).wait() == 0


def test_the_file_of_a_study_is_also_that_of_a_run(
    rlplug: Command, home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "tune.toml"
    file.write_text('[run]\nalgorithm = "linucb"\n[tune.space]\nalpha = { choices = [1, 2] }\n')
    assert rlplug("run", "--config", str(file), "--dry-run").code == 0


@pytest.mark.parametrize(
    "given", [("--steps", "9"), ("--set", "alpha=1.0"), ("--profile",), ("--trust",)]
)
def test_a_study_is_resumed_as_it_is(rlplug: Command, home: Path, given: tuple[str, ...]) -> None:
    file = home / "groups" / "mine" / "study.json"
    file.parent.mkdir(parents=True)
    file.write_text("not JSON")
    refused = rlplug("resume", "mine", "--jobs", "2", *given)
    assert (refused.code, refused.out) == (2, "")
    assert f"goes on as it is; {given[0]} does not fit.\n  try: rlplug resume mine" in refused.err
    unreadable = rlplug("resume", "mine", "--jobs", "2", "--quiet", "--json")
    assert (unreadable.code, unreadable.out) == (2, "")
    assert f"{file} cannot be read." in unreadable.err


# -- the study ------------------------------------------------------------------------------------


def study(home: Path, ranges: list[Range], **section: Any) -> Study:
    return Study("s", home, TuneSection(**section), ranges)


def test_all_combinations_are_tried_once_and_values_come_back_from_the_database(
    home: Path,
) -> None:
    ranges = [Range(name="net", choices=([16], [64, 64])), Range(name="n", low=1, high=3)]
    tried = study(home, ranges, sampler="grid")
    for index in range(6):
        number = tried.ask().number
        assert number == index
        tried.tell(number, "COMPLETE", float(index))
    again = study(home, ranges, sampler="grid")
    found = {(str(one.values["net"]), one.values["n"]) for one in again.trials}
    assert found == {(net, n) for net in ("[16]", "[64, 64]") for n in (1, 2, 3)}
    assert again.best is not None
    assert (again.best.number, again.best.score) == (5, 5.0)
    (choices, _) = ranges
    combined = asked(sampler="grid", space={"alpha": choices_of([0.5, 1.0, 2.0])})
    assert (combined.section.trials, choices.ends) == (3, ([16], [64, 64]))


def choices_of(values: list[float]) -> dict[str, Any]:
    return {"choices": values}


def test_the_folder_of_a_study_is_made_with_those_above_it(home: Path) -> None:
    below = home / "of" / "two"
    assert study(below, [Range(name="x", low=1, high=3)]).ask().number == 0
    assert study(below, [Range(name="x", low=1, high=3)]).ask().number == 1


def test_a_trial_below_the_median_of_the_others_at_its_step_is_pruned(home: Path) -> None:
    ranges = [Range(name="x", low=0.0, high=1.0, is_float=True)]
    tried = study(home, ranges, pruner_options={"n_startup_trials": 2})
    for value in (10.0, 20.0):
        number = tried.ask().number
        assert not tried.report(number, 100, value)
        tried.tell(number, "COMPLETE", value)
    below, above = tried.ask().number, tried.ask().number
    assert tried.report(below, 100, 14.9)
    assert not tried.report(above, 100, 15.1)
    tried.tell(below, "PRUNED")
    assert [(one.status, one.score) for one in tried.trials][2] == ("PRUNED", 14.9)


def test_a_study_that_goes_on_does_not_propose_the_same_again(home: Path) -> None:
    ranges = [Range(name="x", low=0.0, high=1.0, is_float=True)]
    first, second = (study(home, ranges, sampler="random").ask() for _ in range(2))
    assert first.values != second.values
    assert [one.status for one in study(home, ranges).trials] == ["RUNNING"] * 2


@pytest.mark.long
def test_importance_is_that_of_the_option_that_makes_the_difference(home: Path) -> None:
    ranges = [
        Range(name=name, low=0.0, high=1.0, is_float=True) for name in ("matters", "does_not")
    ]
    tried = study(home, ranges, sampler="random")
    assert tried.importances() == {}
    for _ in range(30):
        one = tried.ask()
        tried.tell(one.number, "COMPLETE", one.values["matters"])
    found = tried.importances()
    assert next(iter(found)) == "matters"
    assert found["matters"] > 0.8
    assert sum(found.values()) == pytest.approx(1.0)


def test_the_first_seed_decides_whether_the_others_of_a_trial_are_run(home: Path) -> None:
    whole = asked(
        seeds=3,
        trials=2,
        pruner="threshold",
        pruner_options={"lower": 0.0},
        metric="eval/return_mean",
        space={"alpha": {"low": 0.1, "high": 2.0}, "evaluation.episodes": {"choices": [1, 2]}},
    )
    tried = Study("s", home, whole.section, whole.ranges)
    plan = TrialsPlan(tried, whole, "s", home)
    first, other = plan.take(), plan.take()
    assert first is not None
    assert other is not None
    assert [one.name for one in plan.states] == ["trial 0-s0", "trial 1-s0"]
    assert plan.take() is None
    assert plan.evaluated(first, 20, {"eval/return_mean": 1.0}) == ""
    reason = plan.evaluated(other, 20, {"eval/return_mean": -1.0})
    assert reason == "pruned: eval/return_mean = -1 at step 20, by Optuna's threshold pruner"
    first.status = other.status = "finished"
    plan.ended(other)
    assert plan.states[1].status == "pruned"
    plan.ended(first)
    assert [one.name for one in plan.states[2:]] == ["trial 0-s1", "trial 0-s2"]
    assert [one.part["asks"] for one in plan.states] == [True, True, False, False]
    assert [one.status for one in tried.trials] == ["RUNNING", "PRUNED"]


def test_a_trial_is_told_to_optuna_by_how_its_runs_ended_and_by_their_mean(home: Path) -> None:
    metric = "rollout/reward_mean"
    off = {"tracking.enabled": False}
    one, two = (api.run("linucb", steps=20, seed=seed, options=off) for seed in (0, 1))
    scores = [run.latest[metric] for run in recorded_runs(home)]
    whole = asked(seeds=2, trials=5, pruner="none", metric=metric)
    tried = Study("s", home, whole.section, whole.ranges)
    plan = TrialsPlan(tried, whole, "s", home)
    ends: list[tuple[list[tuple[str, Path | None]], str]] = [
        ([("finished", one.folder), ("finished", two.folder)], "COMPLETE"),
        # What is not recorded has no score.
        ([("finished", one.folder), ("finished", None)], "FAIL"),
        ([("finished", one.folder), ("failed", two.folder)], "FAIL"),
        ([("failed", one.folder)], "FAIL"),
        ([("finished", one.folder), ("interrupted", two.folder)], "RUNNING"),
    ]
    for runs, told in ends:
        for status, folder in runs:
            state = plan.take()
            assert state is not None
            assert state.part["asks"] is False
            state.status, state.folder = status, folder
            plan.ended(state)
        assert tried.trials[-1].status == told
    assert plan.take() is None
    assert [one.number for one in tried.trials] == list(range(5))
    assert [one.score for one in tried.trials] == [pytest.approx(sum(scores) / 2), *[None] * 4]


# -- in processes ---------------------------------------------------------------------------------


def mean_reward(run: RecordedRun) -> float:
    """Over all steps."""
    steps, rewards = run.history()["rollout/reward_mean"]
    return float((rewards * numpy.diff(steps, prepend=0)).sum() / steps[-1])


@pytest.mark.parametrize("seeds", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_study_has_a_run_per_seed_and_trial_and_the_same_command_goes_on_with_it(
    rlplug: Command, store_root: Path, seeds: int
) -> None:
    from mlflow import MlflowClient

    command = ("tune", "--algo", "linucb", "--steps", "200", "--seeds", f"{seeds}", *ALPHA)
    done = rlplug(*command, "--trials", "1", "--json", "--quiet")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    runs = {run.run_id: run for run in recorded_runs(store_root)}
    (trial,) = found["trials"]
    assert set(trial["runs"]) == {str(seed) for seed in range(seeds)}
    # Of equally long runs; the reward of the last report is another number.
    rewards = [mean_reward(one) for one in api.runs(root=store_root)]
    assert trial["score"] == pytest.approx(sum(rewards) / seeds)
    assert {run.about.group for run in runs.values()} == {found["study"]}
    assert {run.about.trial for run in runs.values()} == {"0"}
    assert {run.about.options["algorithm.alpha"] for run in runs.values()} == {
        str(trial["options"]["alpha"])
    }
    more = json.loads(rlplug(*command, "--trials", "2", "--json", "--quiet").out)
    assert more["trials"][0] == trial
    assert len(recorded_runs(store_root)) == 2 * seeds
    same = json.loads(rlplug("resume", found["study"], "--json", "--quiet").out)
    assert same["trials"] == more["trials"]
    best = max(more["trials"], key=lambda one: one["score"])
    assert same["best"]["trial"] == best["trial"]
    names = {one.name for one in Path(more["folder"]).iterdir()}
    assert names >= {"best.toml", "config.toml", "history.png", "study.json", "summary.json"}
    again = rlplug("run", "--config", f"{more['folder']}/best.toml", "--dry-run")
    assert f"alpha = {best['options']['alpha']}" in again.out
    client = MlflowClient(f"sqlite:///{store_root / 'mlflow.db'}")
    summary = client.get_run(more["summary_run_id"])
    assert summary.data.metrics["summary/best"] == best["score"]
    assert summary.data.tags["rlplug.kind"] == "summary"
    assert len(client.get_metric_history(summary.info.run_id, "trials/score")) == 2
    tags = client.get_run(best["runs"]["0"]).data.tags
    assert (tags["rlplug.group"], tags["rlplug.trial"]) == (more["study"], str(best["trial"]))
    other = rlplug(*command, "--study", more["study"], "--set", "l2_lambda=2.0")
    assert other.code == 2
    assert "was started with other options: algorithm.l2_lambda was 1.0, and is 2.0" in other.err


@pytest.mark.long
@pytest.mark.parametrize("trials", [1, 2])
def test_in_python_a_study_gives_its_best_trial_and_the_same_call_goes_on(
    home: Path, trials: int
) -> None:
    space = {"alpha": {"choices": [0.5, 1.0]}}
    options = {"tracking.enabled": False, "tune.sampler": "grid", "tune.trials": trials}
    found = api.tune("linucb", steps=200, space=space, options=options)
    assert [one.status for one in found.trials] == ["finished"] * trials
    tried = {one.options["alpha"] for one in found.trials}
    assert len(tried) == trials
    assert tried <= {0.5, 1.0}
    assert found.best is not None
    assert found.best.score == max(one.score or 0.0 for one in found.trials)
    assert found.best.score == pytest.approx(mean_reward(found.best.runs[0]))
    assert found.best.runs[0].load().predict([[0.0] * 8]) is not None
    again = api.tune("linucb", steps=200, space=space, options=options)
    assert again.trials == found.trials
    # What a shell says of a program that this signal ended.
    interrupted = StudyInterrupted(again, signal.SIGTERM)
    assert (interrupted.result, interrupted.exit_code) == (again, 143)
    assert str(interrupted) == f"interrupted; to go on: rlplug resume {again.study}"
    with pytest.raises(RequestError, match="NoSuch"):
        api.tune("linucb", "NoSuch-v0", space=space, options=options)


def test_a_pruned_trial_ends_at_its_evaluation_and_says_so(rlplug: Command, home: Path) -> None:
    done = rlplug(
        *("tune", "--algo", "a2c", "--env", "CartPole-v1", "--steps", "2000", "--trials", "1"),
        *("--space", "gamma={low=0.9,high=0.99}", "--pruner", "threshold", *OFFLINE),
        *("--set", "tune.pruner_options={lower=1e9}"),
    )
    # Without a finished trial there is no best one.
    assert done.code == 1, done.err
    assert "1 trial: 1 pruned" in done.out
    (run,) = recorded_runs(home)
    assert run.status == "FINISHED"
    assert run.reason.startswith("pruned: eval/return_mean = ")
    assert run.shown_status == "FINISHED (pruned)"
    assert 200 <= run.step < 400
    assert run.folder is not None
    assert list(run.folder.glob("checkpoints/step-*"))


@pytest.mark.long
def test_a_trial_whose_study_was_killed_goes_on_and_ctrl_c_keeps_what_there_is(
    home: Path, warm: Warm
) -> None:
    options = ("--algo", "linucb", "--steps", "1000000", "--study", "long", *OFFLINE, *ALPHA)

    def started() -> Forked:
        return warm.start("tune", *options, "--jobs", "1")

    first = started()
    until(lambda: [one.step > 0 for one in recorded_runs(home)] == [True], first)
    first.kill()
    first.communicate()
    until(lambda: [one.status for one in recorded_runs(home)] == ["KILLED"])
    before = recorded_runs(home)[0]
    second = started()
    until(lambda: recorded_runs(home)[0].step > before.step, second)
    second.send_signal(signal.SIGINT)
    out, err = second.communicate(timeout=60)
    assert second.returncode == 130, err
    assert "go on with it: the same command, or" in err
    assert "1 trial: 1 interrupted" in out
    assert [one.run_id for one in recorded_runs(home)] == [before.run_id]


def until(reached: Callable[[], Any], process: Forked | None = None) -> None:
    deadline = time.monotonic() + 120
    while not reached():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.long
def test_what_every_trial_would_be_refused_for_is_said_once_and_leaves_no_study(
    rlplug: Command, home: Path
) -> None:
    refused = rlplug("tune", "--algo", "linucb", "--env", "NoSuch-v0", *ALPHA, *OFFLINE)
    assert refused.code == 2
    assert refused.err.count("rlplug: error: ") == 1
    assert "NoSuch" in refused.err
    assert not list((home / "groups").glob("*"))


# -- the summary ----------------------------------------------------------------------------------


def row(number: int, status: str, score: float | None) -> TrialRow:
    run = RunRecord(
        run_id=f"{number}" * 32,
        name="",
        about=RunAbout(algorithm="ppo", env="E"),
        status="FINISHED",
        step=600,
        best=(400, score or 0.0),
    )
    proposal = Proposal(
        number=number, values={"net_arch": [16], "a.lr": 0.00123456}, status=status, score=score
    )
    return TrialRow(proposal=proposal, runs=(run,))


def of(maximizes: bool) -> StudySummary:
    trials = (
        row(0, "COMPLETE", 5.0),
        row(1, "PRUNED", 99.0),
        row(2, "COMPLETE", 7.0),
        row(3, "FAIL", None),
        row(4, "COMPLETE", 6.0),
    )
    return StudySummary(
        study="s", metric="", maximizes=maximizes, trials=trials, importances={"a.lr": 1.0}
    )


def test_the_best_trial_has_finished_and_stands_first() -> None:
    assert [one.proposal.number for one in of(True).ranked] == [2, 4, 0, 1, 3]
    assert [one.proposal.number for one in of(False).ranked] == [0, 4, 2, 1, 3]
    assert of(True).best_so_far == {0: 5.0, 2: 7.0, 4: 7.0}
    assert of(False).best_so_far == {0: 5.0, 2: 5.0, 4: 5.0}
    assert of(True).counts == "5 trials: 3 finished, 1 pruned, 1 failed"
    assert of(True).metrics["summary/best"] == 7.0


def test_why_trials_failed_is_told_below_the_table() -> None:
    study = of(True)
    failed = attrs.evolve(study.trials[3], error="the weights are not finite")
    told = attrs.evolve(study, trials=(*study.trials[:3], failed, study.trials[4])).markdown()
    assert told.endswith("\n\n- trial 3: the weights are not finite\n")
    assert "- trial" not in study.markdown()


def test_the_table_of_trials_fits_into_the_terminal() -> None:
    lines = list(of(True).lines(100))
    assert lines[0].split() == [
        *("trial", "status", "best", "return", "steps", "net_arch", "lr", "run")
    ]
    assert lines[1].split() == ["2", "finished", "7", "600", "[16]", "0.001235", "22222222"]
    assert max(map(len, of(True).lines(45))) <= 45
