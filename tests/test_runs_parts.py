"""The parts of runs, of several seeds and of studies, by themselves."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from rlplug import AddOn, Algorithm
from rlplug.config.sections import EvaluationSection, RunConfig, RunSection
from rlplug.config.sources import Setting
from rlplug.errors import ConfigError, RequestError
from rlplug.evaluation import BestTracker
from rlplug.plugin import NoOptions
from rlplug.registry import FoundPlugin, Registry
from rlplug.review.record import RunAbout, RunRecord
from rlplug.runs.inline_plugins import InlinePlugins
from rlplug.runs.limits import Limits, check_stop_when
from rlplug.runs.request import Request, find_plugins, layers_of
from rlplug.runs.seeds.ablation import Ablation
from rlplug.runs.seeds.arguments import arguments_of, name_of_seed, resume_arguments
from rlplug.runs.seeds.asked import Share, num_threads, parse_seeds, share
from rlplug.runs.seeds.files import write_each
from rlplug.runs.seeds.group import Group, find_group, is_study
from rlplug.runs.seeds.state import SeedState, signal_of
from rlplug.runs.seeds.summary import Summary
from rlplug.runs.signals import Interrupted, Interrupts
from rlplug.runs.tuning.plan import score_of, trial_runs
from rlplug.runs.tuning.space import read_space
from rlplug.runs.tuning.study import Proposal
from rlplug.runs.tuning.summary import StudySummary, TrialRow
from rlplug.runs.versions import installed_versions, refuse_other_versions
from rlplug.tracking.lock import RunLock


def config_of(evaluation: EvaluationSection | None = None, **run: Any) -> RunConfig:
    return RunConfig(
        run=RunSection(**{"algorithm": "none", "steps": 100, **run}),
        algorithm=NoOptions(),
        evaluation=evaluation or EvaluationSection(episodes=5, every=50),
    )


# -- limits ----------------------------------------------------------------------------------------


def test_a_limit_is_reached_at_its_number_and_not_before() -> None:
    limits = Limits(config_of(max_updates=10, max_minutes=2.0))
    assert limits.is_counting
    assert limits.reached(9, 119.9) == ""
    assert limits.reached(10, 0.0) == "10 updates (run.max_updates = 10)"
    assert limits.reached(9, 120.0) == "2 minutes (run.max_minutes = 2)"
    limits = Limits(config_of(max_episodes=3))
    limits.set_state({"episodes": 2})
    assert limits.reached(0, 0.0) == ""
    limits.set_state({"episodes": 3})
    assert limits.reached(0, 0.0) == "3 episodes (run.max_episodes = 3)"
    assert limits.get_state() == {"episodes": 3}
    without = Limits(config_of())
    assert not without.is_counting
    assert without.reached(10**9, 10.0**9) == ""
    assert without.reported({"a": 1.0}) == ""


def test_which_evaluation_was_the_best_is_part_of_the_state() -> None:
    section = EvaluationSection(episodes=5, every=50, patience=2)
    best, other = BestTracker(section), BestTracker(section)
    best.set_state({"best": 3.0, "best_step": 150, "without_better": 1})
    other.set_state(best.get_state())
    assert other.get_state() == {"best": 3.0, "best_step": 150, "without_better": 1}


def test_a_metric_an_evaluation_or_who_judges_it_ends_a_run() -> None:
    config = config_of(
        EvaluationSection(episodes=5, every=50, stop_at_return=9.0), stop_when="train/loss<0.5"
    )
    limits, best = Limits(config), BestTracker(config.evaluation)
    assert limits.reported({"train/loss": 0.5}) == ""
    assert limits.reported({"other": 0.1}) == ""
    assert (
        limits.reported({"train/loss": 0.4})
        == "train/loss = 0.4 (run.stop_when = 'train/loss<0.5')"
    )
    poor = {"eval/return_mean": 1.0}
    assert limits.evaluated(poor, best) == ""
    limits.judge = lambda metrics: "judged"
    assert limits.evaluated(poor, best) == "judged"
    assert limits.evaluated({**poor, "train/loss": 0.0}, best).startswith("train/loss = 0 ")
    assert limits.evaluated({"eval/return_mean": 9.0}, best).startswith("mean return 9 reached")


@pytest.mark.parametrize(
    ("evaluation", "stop_when", "said"),
    [
        (EvaluationSection(episodes=5, every=99), "eval/return_mean>3", ""),
        (EvaluationSection(episodes=5, every=100), "eval/return_mean>3", "no evaluation before"),
        (EvaluationSection(episodes=0, every=50), "eval/return_mean>3", "no evaluation before"),
        (EvaluationSection(episodes=5, every=0), "eval/return_mean>3", "no evaluation before"),
        (EvaluationSection(episodes=5, every=50), "eval/episodes_cut>3", ""),
        (EvaluationSection(episodes=5, every=50), "eval/retrn_mean>3", "did you mean"),
        (EvaluationSection(episodes=0, every=50), "train/loss<3", ""),
    ],
)
def test_a_condition_needs_an_evaluation_that_comes_before_the_end(
    evaluation: EvaluationSection, stop_when: str, said: str
) -> None:
    config = config_of(evaluation, stop_when=stop_when)
    if not said:
        check_stop_when(config)
        return
    with pytest.raises(ConfigError) as raised:
        check_stop_when(config)
    assert said in str(raised.value)
    if said == "no evaluation before":
        assert "--set evaluation.every=10" in raised.value.hints[-1]


# -- signals ---------------------------------------------------------------------------------------


def test_a_signal_has_the_exit_code_of_shells() -> None:
    assert (Interrupted(signal.SIGTERM).exit_code, Interrupted().exit_code) == (143, 130)
    assert Interrupted.of(KeyboardInterrupt()).number == signal.SIGINT
    own = Interrupted(signal.SIGHUP)
    assert Interrupted.of(own) is own


def send(number: int) -> None:
    """Send a signal to this process, and wait for what it raises."""
    os.kill(os.getpid(), number)
    time.sleep(1)


def test_the_first_signal_waits_for_a_check_and_the_second_does_not() -> None:
    before = {name: signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)}
    with Interrupts() as interrupts:
        interrupts.check()
        os.kill(os.getpid(), signal.SIGTERM)
        assert (interrupts.is_ending, interrupts.at_once) == (True, False)
        assert interrupts.poll() == (signal.SIGTERM, False)
        with pytest.raises(Interrupted) as raised:
            interrupts.check()
        assert raised.value.number == signal.SIGTERM
        with pytest.raises(Interrupted) as raised:
            send(signal.SIGINT)
        # What is told is the first one.
        assert (raised.value.number, interrupts.at_once) == (signal.SIGTERM, True)
        # A third one, while the second is answered, is not.
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.received().number == signal.SIGTERM
    assert {name: signal.getsignal(name) for name in before} == before


def test_a_signal_while_a_run_is_created_is_raised_after_that() -> None:
    with Interrupts() as interrupts:
        interrupts.hold()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            interrupts.release()
        assert interrupts.at_once
    with Interrupts() as interrupts:
        interrupts.hold()
        interrupts.release()
        with pytest.raises(Interrupted):
            send(signal.SIGTERM)


def test_a_checkpoint_is_asked_for_once_at_the_next_check() -> None:
    asked: list[int] = []
    with Interrupts() as interrupts:
        interrupts.checkpoint = lambda: asked.append(1)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert asked == []
        interrupts.check()
        interrupts.check()
        assert asked == [1]
        os.kill(os.getpid(), signal.SIGUSR1)
        assert interrupts.poll() == (0, True)
        assert interrupts.poll() == (0, False)
        assert not interrupts.is_ending


# -- requests --------------------------------------------------------------------------------------


class Walk(Algorithm):
    """Walks."""


class GradNoise(AddOn):
    """Noise."""


REGISTRY = Registry.of(walk=Walk, grad_noise=GradNoise)


def test_a_request_is_what_its_file_flags_and_settings_say_in_this_order(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[run]\nalgorithm = 'walk'\nsteps = 1\nseed = 1\n[tune]\ntrials = 3\n")
    request = Request(
        config=file,
        flags={"run": {"steps": 2, "addons": ["grad-noise"]}},
        settings=(Setting("run.seed", 3), Setting("alpha", 4)),
    )
    layers = layers_of(request)
    assert layers.values == {
        "run": {"algorithm": "walk", "steps": 2, "seed": 3, "addons": ["grad-noise"]}
    }
    assert layers.origins[("run", "seed")] == "--set"
    assert [one.name for one in find_plugins(layers, REGISTRY)] == ["walk", "grad-noise"]
    with pytest.raises(RequestError, match="no algorithm was named"):
        find_plugins(layers_of(Request()), REGISTRY)
    with pytest.raises(RequestError, match="no algorithm is installed"):
        find_plugins(layers_of(Request()), Registry(()))
    for wrong in ("a", [1]):
        with pytest.raises(ConfigError, match="expected list of str"):
            find_plugins(
                layers_of(Request(flags={"run": {"algorithm": "walk", "addons": wrong}})), REGISTRY
            )


def test_classes_are_named_after_themselves_and_installed_ones_as_they_are() -> None:
    inline = InlinePlugins.of(Walk, ["ema", GradNoise()], Registry(()))
    assert (inline.algorithm, inline.addons, inline.rerunnable) == (
        "walk",
        ("ema", "grad-noise"),
        False,
    )
    target = f"{Walk.__module__}:{Walk.__qualname__}"
    known = FoundPlugin(kind="algorithm", name="mine", target=target, distribution="d", version="1")
    other = attrs.evolve(known, name="walk", target="x:Y")
    inline = InlinePlugins.of(Walk, [], Registry((known, other)))
    assert (inline.algorithm, inline.rerunnable) == ("mine", True)
    assert [one.name for one in inline.registry.found] == ["mine", "walk"]
    shadowed = InlinePlugins.of(Walk, [], Registry((other,)))
    assert [one.target for one in shadowed.registry.found] == [target]


def test_versions_must_be_the_same_on_all_hosts() -> None:
    here = installed_versions(REGISTRY.found)
    assert here["Python"].count(".") == 1
    assert here["torch"].startswith("torch 2.")
    assert here["plugin 'walk'"] == "not installed"
    refuse_other_versions(here, {name: one for name, one in here.items() if name != "torch"})
    with pytest.raises(RequestError) as raised:
        refuse_other_versions(here, {**here, "torch": "torch 1"})
    assert f"{here['torch']} on host {socket.gethostname()}, but torch 1" in str(raised.value)
    with pytest.raises(RequestError, match="plugin 'x' is absent"):
        refuse_other_versions(here, {"plugin 'x'": "x 1"})


# -- several seeds ---------------------------------------------------------------------------------


def test_seeds_run_as_many_at_a_time_as_there_are_cores() -> None:
    request = Request()
    assert share(request, range(9), available=4) == Share(4, 1)
    assert share(request, range(2), available=8) == Share(2, 4)
    assert share(request, range(9), 3, available=8) == Share(3, 2)
    assert share(request, range(9), 16, available=2) == Share(9, 1)
    two = Request(settings=(Setting("num_threads", 2),))
    assert share(two, range(9), available=8) == Share(4, 2)
    assert share(two, range(9), available=1) == Share(1, 2)
    for given, threads in ((2, 2), (0, 0), ("x", 0), (True, 0), (-1, 0)):
        assert num_threads(Request(flags={"compute": {"num_threads": given}})) == threads
    assert num_threads(Request(settings=(Setting("compute.num_threads", 3),))) == 3


def test_a_process_that_is_given_fewer_threads_keeps_them() -> None:
    for given, wanted in (("2", "2"), ("3", "3"), ("4", "3"), ("0", "3"), ("", "3"), ("x", "3")):
        environ = Share(1, 3).environ({"OMP_NUM_THREADS": given, "A": "b"})
        assert environ == {"OMP_NUM_THREADS": wanted, "A": "b"}


def test_three_seeds_are_the_first_three() -> None:
    assert parse_seeds("3") == (0, 1, 2)


def test_a_request_becomes_arguments_again() -> None:
    request = Request(
        config=Path("a.toml"),
        flags={
            "run": {"algorithm": "walk", "addons": ["a", "b"]},
            "data": {"files": ["f"]},
            "scale": {"learners": 2},
            "sampling": {"record": "/r"},
            "tracking": {"tags": {"k": "v"}, "run_name": "mine"},
        },
        settings=(Setting("alpha", 0.5), Setting("name", "1"), Setting("text", "a b")),
    )
    assert arguments_of(request, 7) == (
        "run",
        *("--config", "a.toml", "--algo", "walk", "--with", "a", "--with", "b", "--seed", "7"),
        *("--data", "f", "--learners", "2", "--record", "/r/seed-7", "--tag", "k=v"),
        *("--resume-or-start", "mine-s7", "--set", "alpha=0.5", "--set", 'name="1"'),
        *("--set", "text=a b"),
    )
    assert name_of_seed("a", 3) == "a-s3"
    assert resume_arguments("r", Request()) == ("resume", "r")
    assert resume_arguments(
        "r", Request(settings=(Setting("a", 1),)), steps=9, allow_drift=True
    ) == ("resume", "r", "--steps", "9", "--set", "a=1", "--allow-drift")


def test_a_seed_goes_from_waiting_to_its_end_with_what_it_reported(tmp_path: Path) -> None:
    state = SeedState(seed=3)
    assert (state.name, state.has_begun, state.seconds_left, state.best) == (
        "seed 3",
        False,
        None,
        None,
    )
    assert state.record().status == "not started"
    state.status = "running"
    assert state.record().status == "RUNNING"
    state.report({"folder": str(tmp_path), "title": "t", "steps": 100, "step": 20})
    assert state.seconds_left is None
    state._since = time.monotonic() - 10
    state.report({"step": 60, "metrics": {"eval/best_return_mean": 2.0, "eval/best_step": 40.0}})
    state.report({"step": 40, "metrics": {}})
    assert (state.step, state.best, state.has_begun) == (60, (40, 2.0), True)
    assert state.seconds_left == pytest.approx(10.0, rel=0.1)
    state.report({"step": 120})
    assert [state.seconds_left, state.has_checkpoint] == [0.0, False]
    (tmp_path / "checkpoints" / "step-1").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-1" / "manifest.json").touch()
    assert state.has_checkpoint
    assert not state.line("progress")
    assert state.line("rlplug: error: it failed")
    assert state.line("  try: again")
    assert state.error == ["it failed", "  try: again"]
    assert state.line("rlplug: error: anew")
    assert state.error == ["anew"]
    assert state.order == {"arguments": (), "part": {}}


@pytest.mark.parametrize(
    ("code", "ending", "status", "error"),
    [
        (0, False, "finished", []),
        (1, False, "failed", ["its process ended with exit code 1."]),
        (128, True, "failed", ["its process ended with exit code 128."]),
        (130, True, "interrupted", []),
        (-15, True, "interrupted", []),
        (143, False, "failed", ["its process was ended by SIGTERM."]),
        (-9, False, "failed", ["its process was ended by SIGKILL."]),
    ],
)
def test_how_a_seed_ended_follows_from_its_exit_code(
    code: int, ending: bool, status: str, error: list[str]
) -> None:
    state = SeedState(seed=0, status="running")
    state.end(code, ending=ending)
    assert (state.status, state.error, state.code) == (status, error, code)
    assert (signal_of(3), signal_of(137), signal_of(-2)) == ("", "SIGKILL", "SIGINT")


def run_in(
    root: Path, run_id: str, seed: int, status: str = "FINISHED", second: int = 0, **about: Any
) -> Path:
    folder = root / "work" / run_id
    folder.mkdir(parents=True)
    described = {"algorithm": "walk", "env": "Hall-v0", "seed": seed, "group": "g", **about}
    started = f"2026-11-23T05:00:0{second}+0000"
    facts = {"run_name": run_id, "started": started, "about": described}
    (folder / "run.json").write_text(json.dumps(facts))
    state = {"status": status, "step": 9, "stop_reason": "", "started": started, "ended": ""}
    (folder / "status.json").write_text(json.dumps({**state, "attempt": 1, "pending": False}))
    (folder / "config.toml").write_text(f"# {run_id}")
    return folder


def test_a_group_has_the_newest_run_of_each_seed_and_those_that_were_asked_for(
    tmp_path: Path,
) -> None:
    first = run_in(tmp_path, "a", 2, "FAILED", second=1)
    run_in(tmp_path, "b", 2, "FINISHED", second=2)
    run_in(tmp_path, "c", 0, "KILLED", second=3)
    run_in(tmp_path, "d", 9, trial="1")
    run_in(tmp_path, "e", 8, group="other")
    group = find_group(tmp_path, "g")
    assert group is not None
    assert {seed: run.run_id for seed, run in group.runs.items()} == {0: "c", 2: "b"}
    assert list(group.runs) == [0, 2]
    assert list(group.asked) == [0, 2]
    group.ask([5, 1], first)
    group.keep(more=1)
    assert list(group.asked) == [0, 1, 2, 5]
    assert group.facts["more"] == 1
    assert group.config.read_text() == "# a"
    group.ask([6], tmp_path / "work" / "b")
    assert group.config.read_text() == "# a"
    left = {seed: None if run is None else run.run_id for seed, run in group.unfinished().items()}
    assert left == {0: "c", 1: None, 5: None, 6: None}
    assert group.section is None
    held = RunLock.take(tmp_path / "work" / "c")
    with pytest.raises(RequestError, match=r"run c \(seed 0\)"):
        group.refuse_in_progress()
    held.release()
    group.refuse_in_progress()
    group.refuse_in_progress()
    for damaged in ("[]", "{", '{"seeds": 3}', '{"seeds": [true, "x"]}'):
        (group.folder / "seeds.json").write_text(damaged)
        assert list(group.asked) == [0, 2]
    assert find_group(tmp_path, "none") is None
    assert find_group(tmp_path, "") is None
    assert not is_study(tmp_path, "g")
    (group.folder / "study.json").touch()
    assert [is_study(tmp_path, name) for name in ("g", "", "x/g")] == [True, False, False]
    assert Group(tmp_path, "x").folder == tmp_path / "groups" / "x"


def record(seed: int, best: float | None, **more: Any) -> RunRecord:
    values = {"status": "FINISHED", "step": 1_000, **more}
    return RunRecord(
        run_id=f"{seed}" * 10,
        name="",
        about=RunAbout(seed=seed),
        best=None if best is None else (400, best),
        **values,
    )


def test_a_summary_is_told_in_lines_markdown_html_and_json() -> None:
    failed = record(2, 9.0, status="FAILED", step=10)
    runs = (record(0, 1.0, latest={"eval/return_mean": 0.5}), record(1, 3.0), failed)
    summary = Summary(group="g", runs=runs, errors={2: "it <failed>"})
    assert list(summary.lines(100)) == [
        "seed    status  steps  best return  final return       run",
        "0     FINISHED  1,000      1 @ 400           0.5  00000000",
        "1     FINISHED  1,000      3 @ 400                11111111",
        "2       FAILED     10      9 @ 400                22222222",
        "seed 2: it <failed>",
        "",
        "2 of 3 seeds  mean [95%]  IQM [95%]",
        "best return     2 [1, 3]   2 [1, 3]",
    ]
    narrow = list(summary.lines(30))
    assert narrow[-4:] == [
        "2 of 3 seeds  mean [95%]",
        "best return     2 [1, 3]",
        "             IQM [95%]",
        "best return   2 [1, 3]",
    ]
    assert summary.seeds == "0-2"
    assert summary.metrics["summary/seeds"] == 3.0
    assert summary.metrics["summary/finished"] == 2.0
    assert summary.metrics["summary/iqm_high"] == 3.0
    assert "summary/final_return_mean" not in summary.metrics
    text = summary.markdown().splitlines()
    assert text[0] == "Over 2 of 3 seeds, with 95% bootstrap intervals:"
    assert text[2:5] == [
        "|  | mean | interquartile mean |",
        "| --- | ---: | ---: |",
        "| best return | 2 [1, 3] | 2 [1, 3] |",
    ]
    assert text[-1] == "- seed 2: it <failed>"
    assert "<p>seed 2: it &lt;failed&gt;</p>" in summary.html()
    facts = summary.as_json()
    assert (facts["finished"], facts["measures"]["best_return"]["values"]) == (2, (1.0, 3.0))
    assert facts["runs"][0] == {
        "seed": 0,
        "run_id": "0" * 10,
        "status": "FINISHED",
        "step": 1_000,
        "best": {"step": 400, "return_mean": 1.0},
        "final_return": 0.5,
        "error": "",
        "folder": "",
    }
    none = Summary(group="g", runs=(failed,))
    assert (none.measures, none.html()) == ((), "")
    assert len(list(none.lines(100))) == 2
    trained = record(0, None, latest={"rollout/return_mean": 4.0, "rollout/reward_mean": 1.0})
    assert [one.name for one in Summary(group="g", runs=(trained,)).measures] == ["train_return"]


def test_an_ablation_compares_the_seeds_that_finished_in_both() -> None:
    whole = Summary(group="w", runs=(record(0, 5.0), record(1, 7.0), record(2, 1.0)))
    without = Summary(
        group="o", runs=(record(0, 2.0), record(1, 9.0), record(2, 1.0, status="FAILED"))
    )
    ablation = Ablation(addon="ema", whole=whole, without=without)
    (difference,) = ablation.differences
    assert (difference.seeds, difference.values) == ((0, 1), (3.0, -2.0))
    assert difference.mean.estimate == 0.5
    lines = list(ablation.lines())
    assert lines[:4] == [
        "without ema: group o; with it: w",
        "seed  best return  without ema  difference",
        "0               5            2          +3",
        "1               7            9          -2",
    ]
    assert lines[4] == ""
    assert lines[5].split() == ["2", "pairs", "mean", "difference", "[95%]"]
    facts = ablation.as_json()
    assert facts["differences"]["best_return"]["with"] == (5.0, 7.0)
    assert facts["groups"] == {"with": "w", "without": "o"}
    empty = Ablation(addon="ema", whole=whole, without=Summary(group="o", runs=()))
    assert "nothing to compare" in list(empty.lines())[1]


def test_what_cannot_be_written_takes_no_other_file_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise ValueError("a broken font")

    files = {
        "a": lambda: (tmp_path / "a").touch(),
        "b": fails,
        "c": lambda: None,
        "d": lambda: (tmp_path / "d").touch(),
    }
    assert write_each(tmp_path, files) == [tmp_path / "a", tmp_path / "d"]
    assert "cannot be written: a broken font" in caplog.text


# -- studies ---------------------------------------------------------------------------------------


def test_ranges_are_whole_or_with_decimals_and_choices_have_labels() -> None:
    ranges, problems = read_space(
        {
            "a": {"low": 1, "high": 8, "log": True},
            "b": {"c": {"low": 0, "high": 1.0, "step": 0.5}},
            "d": {"choices": [[64], [64, 64], "x", 1]},
        }
    )
    assert problems == []
    whole, decimal, choices = ranges
    assert (whole.name, whole.ends, whole.value(3), whole.is_float) == ("a", (1, 8), 3, False)
    assert whole.as_toml() == {"low": 1, "high": 8, "log": True}
    assert (decimal.name, decimal.ends, decimal.is_float) == ("b.c", (0.0, 1.0), True)
    assert type(decimal.value(1)) is float
    assert decimal.as_toml() == {"low": 0.0, "high": 1.0, "step": 0.5}
    assert list(choices.labels) == ["[64]", "[64, 64]", "x", 1]
    assert choices.value("[64]") == [64]
    assert choices.ends == ([64], [64, 64], "x", 1)
    assert choices.as_toml() == {"choices": [[64], [64, 64], "x", 1]}


def trial(number: int, status: str, score: float | None, **values: Any) -> TrialRow:
    proposal = Proposal(number=number, values=values, status=status, score=score)
    run = record(number, score)
    return TrialRow(proposal=proposal, runs=(run,))


def test_trials_are_ranked_by_their_scores_then_by_how_they_ended() -> None:
    trials = (
        trial(0, "COMPLETE", 1.0, **{"algorithm.a": 0.5}),
        trial(1, "FAIL", None),
        trial(2, "PRUNED", 9.0),
        trial(3, "COMPLETE", 4.0, **{"algorithm.a": 0.25, "env.a": [1]}),
        trial(4, "RUNNING", None),
        trial(5, "COMPLETE", 2.0),
    )
    study = StudySummary(
        study="s", metric="", maximizes=True, trials=trials, importances={"algorithm.a": 0.75}
    )
    assert [one.proposal.number for one in study.ranked] == [3, 5, 0, 2, 1, 4]
    assert study.best is trials[3]
    assert trials[0].as_json()["step"] == 1_000
    assert attrs.evolve(trials[0], runs=()).as_json()["step"] == 0
    assert study.best_run is trials[3].runs[0]
    assert study.scores == {0: 1.0, 3: 4.0, 5: 2.0}
    assert study.best_so_far == {0: 1.0, 3: 4.0, 5: 4.0}
    assert study.label == "best return"
    assert study.counts == "6 trials: 3 finished, 1 pruned, 1 failed, 1 interrupted"
    assert study.metrics == {
        "summary/trials": 6.0,
        "summary/finished": 3.0,
        "summary/pruned": 1.0,
        "summary/failed": 1.0,
        "summary/best": 4.0,
        "summary/best_trial": 3.0,
        "importance/algorithm.a": 0.75,
    }
    lines = list(study.lines(200))
    assert lines[0].split() == [
        *("trial", "status", "best", "return", "steps", "algorithm.a", "env.a", "run")
    ]
    assert lines[1].split() == ["3", "finished", "4", "1,000", "0.25", "[1]", "33333333"]
    assert lines[-2:] == ["option       importance", "algorithm.a         75%"]
    assert "Best: trial 3, best return 4" in study.markdown()
    assert "algorithm.a = 0.25" in study.markdown()
    least = attrs.evolve(study, maximizes=False, metric="loss")
    assert [one.proposal.number for one in least.ranked][:3] == [0, 5, 3]
    assert least.best_so_far == {0: 1.0, 3: 1.0, 5: 1.0}
    assert (least.label, least.as_json()["direction"]) == ("loss", "minimize")
    none = attrs.evolve(study, trials=trials[1:3], importances={})
    assert (none.best, none.best_run, none.as_json()["best"]) == (None, None, None)
    assert "Best" not in none.markdown()
    many = attrs.evolve(study, trials=tuple(trial(n, "COMPLETE", 1.0) for n in range(16)))
    assert "… 1 more in summary.md" in list(many.lines(100))
    fifteen = attrs.evolve(study, trials=many.trials[:15])
    assert not any("more" in line for line in fifteen.lines(100))
    single = attrs.evolve(study, trials=trials[:1])
    assert single.counts == "1 trial: 1 finished"


def test_a_bandit_is_scored_by_its_mean_reward_over_all_steps(tmp_path: Path) -> None:
    folder = run_in(tmp_path, "a", 0)
    lines = [
        {"step": step, "time": 0, "metrics": {"rollout/reward_mean": value}}
        for step, value in ((10, 1.0), (40, 3.0))
    ]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    latest: Mapping[str, float] = {"rollout/reward_mean": 3.0, "loss": 2.0, "nan": math.nan}
    run = RunRecord(
        run_id="a", name="", about=RunAbout(), status="FINISHED", latest=latest, folder=folder
    )
    assert score_of(run, "") == pytest.approx((10 * 1.0 + 30 * 3.0) / 40)
    assert (score_of(run, "loss"), score_of(run, "nan"), score_of(run, "none")) == (2.0, None, None)
    assert score_of(attrs.evolve(run, best=(1, 5.0), latest={}), "") == 5.0


def test_the_runs_of_a_study_are_found_by_trial_and_seed(tmp_path: Path) -> None:
    run_in(tmp_path, "a", 0, trial="1", second=1)
    run_in(tmp_path, "b", 0, trial="1", second=2)
    run_in(tmp_path, "c", 1, trial="1", second=1)
    run_in(tmp_path, "d", 0, trial="2")
    run_in(tmp_path, "e", 0, trial="x")
    run_in(tmp_path, "f", 0, trial="1", group="other")
    found = trial_runs(tmp_path, "g")
    assert {
        number: {seed: run.run_id for seed, run in runs.items()} for number, runs in found.items()
    } == {1: {0: "b", 1: "c"}, 2: {0: "d"}}
