"""Seeds, trials and pairs: what is asked for, what is shown of them, and what they come to."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from rlplug.cli.groups import finish_group
from rlplug.config.sections import TuneSection
from rlplug.config.sources import Setting, settings_of
from rlplug.errors import ConfigError, PluginError, RequestError
from rlplug.registry import Registry
from rlplug.runs.groups.ablation import Ablation, variants
from rlplug.runs.groups.display import SilentDisplay, member_line
from rlplug.runs.groups.group import Group, Outcome, find_group
from rlplug.runs.groups.member import Member
from rlplug.runs.groups.place import place_of, placed_by
from rlplug.runs.groups.ray_child import Host
from rlplug.runs.groups.results import (
    GroupInterrupted,
    RunResults,
    SeedsFailedError,
    results_of,
)
from rlplug.runs.groups.seed_numbers import check_seeds, parse_seeds, refuse_seed_option, seeds_text
from rlplug.runs.groups.seeds import resume_seeds, run_in_order
from rlplug.runs.groups.seeds_summary import SeedsSummary
from rlplug.runs.groups.study import Range, Study
from rlplug.runs.groups.study_summary import StudySummary
from rlplug.runs.groups.trials import TrialsPlan, score_of
from rlplug.runs.groups.tune import StudyResult
from rlplug.runs.groups.tune_request import TuneRequest
from rlplug.runs.prepare import Prepared, prepare
from rlplug.runs.rebuilding import installed_versions
from rlplug.runs.request import Request
from tests.groups import record, run_in, trial
from tests.warm import Warm

if TYPE_CHECKING:
    from tests.conftest import Outcome as Ran

Command = Callable[..., "Ran"]


def prepared(**options: Any) -> Prepared:
    flags = {"run": {"algorithm": "linucb", "steps": 200}}
    return prepare(Request(flags=flags, settings=settings_of(options)), Registry.installed())


# -- seeds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seeds", "shortest"),
    [
        ("5", (0, 1, 2, 3, 4), "0-4"),
        ("3-3", (3,), "3"),
        ("1,2,5", (1, 2, 5), "1-2,5"),
        ("7, 2", (7, 2), "2,7"),
        ("0-2,9", (0, 1, 2, 9), "0-2,9"),
    ],
)
def test_seeds_are_a_number_of_them_a_range_or_a_list(
    text: str, seeds: tuple[int, ...], shortest: str
) -> None:
    assert parse_seeds(text) == seeds
    assert seeds_text(seeds) == shortest


@pytest.mark.parametrize(
    ("text", "named"),
    [
        *((text, "expected 5 (for 0 to 4)") for text in ("", "x", "1,", "4-0", "-3", "1.5", "1 2")),
        ("0", "no seed was named"),
        ("0-499,500,501-1000", "at most 1,000 seeds"),
        ("0-3,2", "seed 2 is given 2 times"),
    ],
)
def test_what_names_no_seeds_is_refused(text: str, named: str) -> None:
    with pytest.raises(RequestError, match=re.escape(named)) as error:
        parse_seeds(text)
    assert error.value.exit_code == 2


def test_seeds_in_python_are_not_negative() -> None:
    assert check_seeds([3, 0]) == (3, 0)
    with pytest.raises(RequestError, match="at least 0, got -2"):
        check_seeds([1, -2, -1])


def test_a_seed_beside_the_seeds_is_refused_and_that_of_a_file_is_overridden(
    tmp_path: Path,
) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[run]\nseed = 3\n")
    refuse_seed_option(Request(config=file))
    for request in (
        Request(flags={"run": {"seed": 1}}),
        Request(settings=(Setting("run.seed", 1),)),
    ):
        with pytest.raises(RequestError, match="--seeds are both given"):
            refuse_seed_option(request)


# -- the place ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cores", "seeds", "jobs", "threads", "expected"),
    [
        (8, 5, 0, 0, (5, 1)),
        (8, 20, 0, 0, (8, 1)),
        (8, 2, 0, 0, (2, 4)),
        (8, 5, 2, 0, (2, 4)),
        (8, 5, 0, 4, (2, 4)),
        (2, 5, 0, 4, (1, 4)),
        (2, 5, 4, 0, (4, 1)),
    ],
)
def test_jobs_times_threads_are_at_most_the_cores_unless_more_are_asked_for(
    cores: int,
    seeds: int,
    jobs: int,
    threads: int,
    expected: tuple[int, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(cores))
    run = prepared(**{"compute.num_threads": threads})
    with place_of(run, None, seeds, jobs, tmp_path) as place:
        assert (place.jobs, place.threads) == expected
    with (
        pytest.raises(RequestError, match="jobs must be at least 1"),
        place_of(run, None, seeds, -1, tmp_path),
    ):
        pass


def test_runs_are_placed_whole_unless_each_has_runners_or_learners() -> None:
    section = placed_by(prepared(**{"scale.engine": "ray", "scale.runner_cpus": 2.0}))
    assert section is not None
    assert section.runner_cpus == 2.0
    assert placed_by(prepared()) is None
    assert placed_by(prepared(**{"scale.engine": "ray", "scale.runners": 2})) is None


def host(home: Path, **job: Any) -> Host:
    plugins = [Registry.installed().find("algorithm", "linucb")]
    (home / "mark").write_text("x")
    given = {
        "path": sys.path,
        "folder": str(home.parent),
        "root": str(home),
        "environ": {"RLPLUG_HOME": str(home)},
        "plugins": [("algorithm", "linucb")],
        "versions": installed_versions(plugins),
        "token": "mark",
        "content": "x",
        "order": {"kind": "resume", "run": "absent", "steps": 0, "settings": [], "argv": ["r"]},
    }
    given["order"]["allow_drift"] = False
    return Host("seed 0", {**given, **job})


@pytest.mark.parametrize(
    ("job", "named"),
    [
        ({"plugins": [("algorithm", "no-such-plugin")]}, "no-such-plugin"),
        ({"versions": {"plugin 'linucb'": "rlplug-linucb 0.0.1"}}, "rlplug-linucb 0.0.1"),
        ({"content": "of another folder"}, "the runs folder"),
    ],
)
def test_a_host_without_the_same_plugins_versions_and_runs_folder_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, job: dict[str, Any], named: str
) -> None:
    monkeypatch.chdir(Path.cwd())
    home.mkdir(parents=True, exist_ok=True)
    name, refusal = host(home, **job).start()
    assert name == socket.gethostname()
    assert f"host {name}" in refusal
    assert named in refusal


# -- what is shown --------------------------------------------------------------------------------


def half_way(seed: int = 3) -> Member:
    member = Member(seed=seed, status="running")
    member.report({"folder": "/runs/x", "title": "a2c", "steps": 30_000, "step": 0})
    metrics = {"rollout/return_mean": -1183.4, "rollout/reward_mean": -6.0}
    best = {"eval/best_return_mean": 210.54, "eval/best_step": 12_000.0}
    member.report({"step": 13_500, "metrics": {**metrics, **best}})
    return member


def test_a_line_has_what_fits_into_the_terminal() -> None:
    member = half_way()
    wide = member_line(member, 100, 2)
    for part in ("seed  3   45%", "13,500/30,000", "return -1,183", "best 210.5 @ 12,000", "left"):
        assert part in wide
    assert "reward" not in wide
    narrow = member_line(member, 60, 2)
    assert narrow.startswith("seed  3   45%  return -1,183  best 210.5")
    assert len(narrow) <= 60
    member.step = 30_000
    assert member_line(member, 60, 1).endswith("closing")
    member.status = "interrupted"
    assert member_line(member, 60, 1).endswith("interrupted")
    assert member_line(Member(seed=0), 60, 1) == "seed 0  waiting"
    assert member_line(Member(seed=0, status="running"), 60, 1) == "seed 0  starting"


@pytest.mark.parametrize(
    ("code", "ending", "status", "named"),
    [
        (0, False, "finished", ""),
        (130, True, "interrupted", ""),
        (-9, False, "failed", "SIGKILL"),
        (1, True, "failed", "exit code 1"),
    ],
)
def test_how_a_run_ended_follows_from_its_exit_code(
    code: int, ending: bool, status: str, named: str
) -> None:
    member = Member(seed=0, status="running")
    member.end(code, ending=ending)
    assert member.status == status
    assert named in "".join(member.error)


# -- how it ends ----------------------------------------------------------------------------------


def ended(*codes: int, begun: bool = True) -> list[Member]:
    title = "begun" if begun else ""
    return [Member(seed=seed, title=title, code=code) for seed, code in enumerate(codes)]


@pytest.mark.parametrize(
    ("members", "ended_by", "is_complete", "code"),
    [
        (ended(0, 0), 0, True, 0),
        (ended(0, 1), 0, False, 1),
        (ended(0, 143), 15, False, 143),
        # One that was refused beside others that ran is one that failed.
        (ended(0, 2), 0, False, 1),
        (ended(2, begun=False), 0, False, 2),
    ],
)
def test_one_exit_code_tells_of_all_runs(
    members: list[Member], ended_by: int, is_complete: bool, code: int
) -> None:
    outcome: Outcome[Any] = Outcome(
        members=members, ended_by=ended_by, group=None, is_complete=is_complete
    )
    assert outcome.code == code


def test_of_interrupted_runs_is_told_which_have_a_checkpoint_and_how_they_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tmp_path / "3" / "checkpoints" / "step-1" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.touch()
    members = [Member(seed=9), Member(seed=3, folder=tmp_path / "3")]
    outcome: Outcome[Any] = Outcome(
        members=members, ended_by=signal.SIGTERM, group=Group(tmp_path, "g")
    )
    assert finish_group(lambda display: outcome, quiet=True, as_json=False) == 143
    said = capsys.readouterr().err
    assert "seed 3" in said
    assert "seed 9" not in said
    assert said.endswith("next: rlplug resume g\n")
    nothing = attrs.evolve(outcome, group=None, ended_by=signal.SIGINT)
    assert finish_group(lambda display: nothing, quiet=False, as_json=True) == 130
    assert "before any run had begun" in capsys.readouterr().err


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
    assert group.config == tmp_path / "work" / "c" / "config.toml"
    group.ask([5, 1], first)
    assert group.asked == (0, 1, 2, 5)
    assert group.unfinished() == [0, 1, 5]
    assert group.config.read_text() == "# a"
    group.keep(summary_run_id="s")
    assert (group.facts["summary_run_id"], group.asked) == ("s", (0, 1, 2, 5))
    assert find_group(tmp_path, "none") is None
    assert not group.is_study


def test_seeds_that_were_never_started_begin_before_their_group_is_changed(home: Path) -> None:
    folder = run_in(home, "a", 0)
    group = Group(home, "g")
    group.ask([0, 2, 3], folder)
    for settings, steps in (((), 20), (settings_of({"alpha": 1}), 0)):
        with pytest.raises(RequestError, match=r"seeds 2-3 of group g were never started"):
            resume_seeds(group, settings, 1, SilentDisplay, steps=steps)


@pytest.mark.parametrize("error", [RequestError("wrong"), ArithmeticError("planted")])
def test_seeds_in_order_end_with_the_first_error_if_none_came_to_have_a_run(
    home: Path, error: Exception
) -> None:
    asked = []

    def run(seed: int) -> Any:
        asked.append(seed)
        raise error if seed == 3 else ValueError("later")

    with pytest.raises(type(error)) as raised:
        run_in_order((3, 4), run, "a class")
    assert raised.value is error
    # What is wrong with the request is so for all seeds.
    assert asked == ([3] if isinstance(error, RequestError) else [3, 4])


# -- the summary of seeds -------------------------------------------------------------------------


def seeds_summary() -> SeedsSummary:
    failed = record(2, 9.0, status="FAILED", step=10)
    runs = (record(0, -1183.4, latest={"eval/return_mean": 0.5}), record(1, 3000.0), failed)
    return SeedsSummary(group="g", runs=runs, errors={2: "it failed"})


def test_measures_are_of_the_seeds_that_finished() -> None:
    summary = seeds_summary()
    (best,) = summary.measures
    assert (best.name, best.values, best.mean.estimate) == (
        *("best_return", (-1183.4, 3000.0)),
        pytest.approx(908.3),
    )
    assert best.mean.low <= best.iqm.low <= best.iqm.high <= best.mean.high
    metrics = summary.record().metrics
    assert metrics["summary/iqm"] == metrics["summary/best_return_iqm"] == best.iqm.estimate
    assert (metrics["summary/seeds"], metrics["summary/finished"]) == (3, 2)
    of_all = summary.as_json()
    assert [run["status"] for run in of_all["runs"]] == ["FINISHED", "FINISHED", "FAILED"]
    assert (of_all["finished"], of_all["runs"][2]["error"]) == (2, "it failed")
    bandit = record(0, None, latest={"rollout/reward_mean": 0.5, "rollout/regret_total": 30.0})
    measures = SeedsSummary(group="g", runs=(bandit,)).measures
    assert [measure.name for measure in measures] == ["reward", "regret"]


@pytest.mark.parametrize("columns", [50, 60, 100])
def test_the_table_of_seeds_fits_into_the_terminal(columns: int) -> None:
    lines = list(seeds_summary().lines(columns))
    assert max(map(len, lines)) <= columns
    assert lines[1].split()[:2] == ["0", "FINISHED"]
    assert "seed 2: it failed" in lines
    assert any("2 of 3 seeds" in line for line in lines)
    assert "- seed 2: it failed" in seeds_summary().markdown()


def outcome_of(*members: Member, ended_by: int = 0) -> Outcome[SeedsSummary]:
    errors = {one.seed: one.error[0] for one in members if one.status == "failed"}
    runs = tuple(member.record() for member in members)
    summary = SeedsSummary(group="g", runs=runs, errors=errors)
    return Outcome(members=members, ended_by=ended_by, group=None, summary=summary, run_id="s")


def measured(root: Path, seed: int, status: str = "FINISHED") -> Member:
    """A seed whose run was evaluated: its best return was 10 times the seed."""
    folder = run_in(root, f"{seed}" * 8, seed, status)
    metrics = {"eval/best_return_mean": 10.0 * seed, "eval/best_step": 6.0, "eval/return_mean": 1.0}
    line = {"step": 9, "time": 0, "metrics": metrics}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    if status == "FINISHED":
        return Member(seed=seed, folder=folder, status="finished")
    return Member(seed=seed, folder=folder, status="failed", error=["it broke"])


def test_results_have_the_measures_of_the_seeds_that_finished(home: Path) -> None:
    results = results_of(outcome_of(measured(home, 1), measured(home, 2)))
    assert results.measures == ("best_return", "final_return")
    assert results.values() == results.values("best_return") == (10.0, 20.0)
    assert results.mean().estimate == results.iqm().estimate == 15.0
    assert (results.group, results.folder, results.run_id) == ("g", None, "s")
    with pytest.raises(RequestError, match="'regret' was not measured"):
        results.mean("regret")
    assert "2 seeds" in results._repr_markdown_()


def test_seeds_that_failed_or_were_interrupted_are_raised_with_the_results(home: Path) -> None:
    with pytest.raises(SeedsFailedError, match=r"1 of 1 seeds failed\.\n  seed 1: it broke") as one:
        results_of(outcome_of(measured(home, 1, "FAILED")))
    for ask in (one.value.results.plot, one.value.results.values, one.value.results.mean):
        with pytest.raises(RequestError, match="no seed has finished"):
            ask()
    members = [Member(seed=0, status="failed", error=["no such option.", "  try: another"])]
    nothing: Outcome[SeedsSummary] = Outcome(members=members, ended_by=0, group=None)
    with pytest.raises(RequestError, match=r"no such option\.\n  try: another\n  runs in"):
        results_of(nothing)
    with pytest.raises(GroupInterrupted) as raised:
        results_of(attrs.evolve(nothing, ended_by=signal.SIGTERM))
    assert (raised.value.exit_code, raised.value.number) == (143, 15)
    assert isinstance(raised.value.results, RunResults)


# -- ablations ------------------------------------------------------------------------------------


def test_an_ablation_pairs_the_seeds_that_finished_in_both() -> None:
    whole = SeedsSummary(group="a", runs=(record(0, 3.0), record(1, 110.0), record(2, 5.0)))
    without = SeedsSummary(group="b", runs=(record(1, 100.0), record(0, 1.0)))
    ablation = Ablation(addon="rnd", whole=whole, without=without)
    assert ablation.pairs == {"best_return": {0: (3.0, 1.0), 1: (110.0, 100.0)}}
    found = ablation.as_json()["differences"]["best_return"]
    assert found["differences"] == [2.0, 10.0]
    # Seeds differ by a hundred, pairs by eight.
    assert found["mean"] == {"estimate": 6.0, "low": 2.0, "high": 10.0}
    assert any("+10" in line for line in ablation.lines())
    none = attrs.evolve(ablation, without=SeedsSummary(group="b", runs=()))
    assert "nothing to compare" in "".join(none.lines())


def test_options_of_an_add_on_are_left_out_with_it(installed: Path) -> None:
    registry = Registry.installed()
    settings = settings_of({"scale": 2.0, "addons.scale.num_envs": 3, "gamma": 0.5})
    request = Request(flags={"run": {"algorithm": "good"}}, settings=settings)
    found = variants(request, ["quiet"], ["scale"], registry)
    assert found[""].flags["run"]["addons"] == ["quiet", "scale"]
    assert found["scale"].flags["run"]["addons"] == ["quiet"]
    assert [setting.key for setting in found["scale"].settings] == ["gamma"]
    in_turn = variants(request, ["scale", "quiet"], [], registry)
    assert [*in_turn] == ["", "scale", "quiet"]
    with pytest.raises(RequestError, match="nothing to leave out"):
        variants(request, [], [], registry)
    with pytest.raises(PluginError, match="Did you mean 'quiet'"):
        variants(request, [], ["quit"], registry)


# -- what a study is asked for --------------------------------------------------------------------

ALPHA = {"alpha": {"low": 0.1, "high": 2.0}}
METRIC = "rollout/reward_mean"


def asked(run: Any = (), sections: Any = (), **section: Any) -> TuneRequest:
    flags = {"run": {"algorithm": "linucb", "steps": 200, **dict(run)}, **dict(sections)}
    return TuneRequest.of(Request(flags=flags), {"space": ALPHA, **section}, Registry.installed())


def test_regret_is_minimized_and_what_else_is_maximized() -> None:
    assert not TuneSection(metric="rollout/regret_total").maximizes
    assert TuneSection().maximizes
    assert TuneSection(metric="rollout/regret_total", direction="maximize").maximizes


@pytest.mark.parametrize(
    "given",
    [
        3,
        {"low": 2, "high": 1},
        {"low": 0.0, "high": 1.0, "log": True},
        {"low": 0, "high": 9, "step": 0},
        {"low": 1, "high": 9, "step": 2, "log": True},
        {"low": 1},
        {"low": "a", "high": float("inf")},
        {"low": 1, "high": 2, "logg": True},
        {"choices": []},
        {"choices": 3},
        {"choices": [1, 2], "low": 1},
    ],
)
def test_what_is_no_range_is_refused_by_its_name(given: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        asked(space={"alpha": given})
    assert [problem.path for problem in raised.value.problems] == ["tune.space.alpha"]


def test_ranges_take_the_numbers_of_their_options_and_lists_have_labels() -> None:
    whole = {"low": 1, "high": 2}
    space = {
        "addons.rnd.coef": whole,
        "learner": {"max_grad_norm": whole},
        "addons.rnd.out_features": whole,
        "net_arch": {"choices": [[64, 64], [16]]},
    }
    run = {"algorithm": "ppo", "env": "CartPole-v1", "addons": ["rnd"]}
    ranges = {each.name: each for each in asked(run, space=space).ranges}
    assert [*ranges] == [
        *("addons.rnd.coef", "learner.max_grad_norm", "addons.rnd.out_features", "net_arch")
    ]
    kinds = [[type(end) for end in each.ends] for each in ranges.values()]
    assert kinds == [[float, float], [float, float], [int, int], [list, list]]
    assert ranges["net_arch"].value("[16]") == [16]


def test_first_values_that_contradict_each_other_are_no_problem_of_a_study() -> None:
    names = "sampling.max_trajectory_length", "sampling.min_trajectory_length"
    space = dict(zip(names, ({"choices": [2, 9]}, {"choices": [4, 2]}), strict=True))
    run = {"algorithm": "ppo", "env": "CartPole-v1", "steps": 4096}
    assert tuple(each.name for each in asked(run, space=space).ranges) == names


@pytest.mark.parametrize(
    ("section", "named"),
    [
        ({"sampler": "tpee"}, "did you mean 'tpe'"),
        ({"pruner": "x"}, "there are: median, percentile"),
        ({"sampler_options": {"n_startup": 1}}, "n_startup"),
        ({"pruner": "percentile"}, "percentile"),
        ({"sampler": "grid"}, "alpha"),
        ({"space": {"alpha": ALPHA["alpha"], "algorithm.alpha": ALPHA["alpha"]}}, "alpha"),
        ({"space": {"run.steps": {"choices": [100, 200]}}}, "steps"),
        ({"space": {"run.seed": {"choices": [1, 2]}}}, "use --seeds"),
        ({"space": {}}, "is empty"),
        ({"space": {"alpha": {"low": -1.0, "high": 1.0}}}, "must be at least 0, got -1.0"),
    ],
)
def test_what_is_wrong_with_a_study_is_said_before_anything_is_run(
    section: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        asked(**section)
    assert raised.value.exit_code == 2
    assert named in str(raised.value)


@pytest.mark.parametrize("given", ["--steps 9", "--set alpha=1.0", "--profile"])
def test_a_study_is_resumed_as_it_is(rlplug: Command, home: Path, given: str) -> None:
    file = home / "groups" / "mine" / "study.json"
    file.parent.mkdir(parents=True)
    file.write_text("not JSON")
    refused = rlplug("resume", "mine", *given.split())
    assert (refused.code, refused.out) == (2, "")
    assert "mine is a study" in refused.err
    unreadable = rlplug("resume", "mine", "--jobs", "2")
    assert (unreadable.code, unreadable.out) == (2, "")
    assert str(file.parent) in unreadable.err


def test_without_optuna_the_message_says_what_to_install(
    rlplug: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    refused = rlplug("tune", "--algo", "linucb", "--space", "alpha={low=0.1,high=2.0}")
    assert refused.code == 2
    assert "pip install 'rlplug[tune]'" in refused.err


def test_a_command_that_trains_imports_neither_optuna_nor_ray(warm: Warm) -> None:
    check = (
        "import sys, rlplug.runs.run, rlplug.cli.main, rlplug.runs.groups.seeds;"
        "sys.exit(any(name in sys.modules for name in ('optuna', 'ray')))"
    )
    assert warm.start(code=check).wait() == 0


def test_the_file_of_a_study_is_also_that_of_a_run(
    rlplug: Command, home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "tune.toml"
    file.write_text('[run]\nalgorithm = "linucb"\n[tune.space]\nalpha = { choices = [1, 2] }\n')
    assert rlplug("run", "--config", str(file), "--dry-run").code == 0


# -- trials ---------------------------------------------------------------------------------------


def study(home: Path, space: dict[str, Any], **section: Any) -> Study:
    ranges = [Range.of(name, given, is_float=False) for name, given in space.items()]
    return Study("s", home, TuneSection(**section), ranges)


def test_all_combinations_are_tried_once_and_values_come_back_from_the_database(
    home: Path,
) -> None:
    space = {"net": {"choices": [[16], [64, 64]]}, "n": {"low": 1, "high": 3}}
    tried = study(home / "of" / "two", space, sampler="grid")
    for index in range(6):
        number = tried.ask().number
        assert number == index
        tried.tell(number, "COMPLETE", float(index))
    again = study(home / "of" / "two", space, sampler="grid")
    found = {(str(trial.values["net"]), trial.values["n"]) for trial in again.trials}
    assert found == {(net, n) for net in ("[16]", "[64, 64]") for n in (1, 2, 3)}
    assert [trial.score for trial in again.trials] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    combined = asked(sampler="grid", space={"alpha": {"choices": [0.5, 1.0, 2.0]}})
    assert combined.section.trials == 3


def test_a_trial_below_the_median_of_the_others_at_its_step_is_pruned(home: Path) -> None:
    tried = study(home, {"x": {"low": 0.0, "high": 1.0}}, pruner_options={"n_startup_trials": 2})
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
    space = {"x": {"low": 0.0, "high": 1.0}}
    first, second = (study(home, space, sampler="random").ask() for _ in range(2))
    assert first.values != second.values


@pytest.mark.long
def test_importance_is_that_of_the_option_that_makes_the_difference(home: Path) -> None:
    space = {name: {"low": 0.0, "high": 1.0} for name in ("matters", "does_not")}
    tried = study(home, space, sampler="random")
    assert tried.importances() == {}
    for _ in range(30):
        proposal = tried.ask()
        tried.tell(proposal.number, "COMPLETE", proposal.values["matters"])
    found = tried.importances()
    assert found["matters"] > 0.8
    assert sum(found.values()) == pytest.approx(1.0)


def trial_run(root: Path, number: int, seed: int, score: float, **status: Any) -> Path:
    """A run of a trial, whose last reward was this score."""
    about: dict[str, Any] = {"group": "s", "trial": str(number), "steps": 200}
    folder = run_in(root, f"{number}-{seed}", seed, status.pop("status", "FINISHED"), **about)
    line = {"step": 9, "time": 0, "metrics": {METRIC: score}}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    kept = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps({**kept, **status}))
    return folder


def taken(plan: TrialsPlan) -> list[tuple[str, str]]:
    found = []
    while (member := plan.take()) is not None:
        found.append((member.name, member.order["kind"]))
    return found


def test_a_study_goes_on_with_what_its_trials_lack(home: Path) -> None:
    whole = asked(seeds=3, trials=8, metric=METRIC)
    tried = Study("s", home, whole.section, whole.ranges)
    for _ in range(7):
        tried.ask()
    # Trial 0 had no run yet; of 1, the first was cut off; of 2, the others are left.
    trial_run(home, 1, 0, 1.0, status="KILLED")
    trial_run(home, 2, 0, 1.0)
    # Of 3, the second was cut off, and the third never started.
    trial_run(home, 3, 0, 1.0)
    trial_run(home, 3, 1, 1.0, status="KILLED")
    # 4 was pruned, and 5 has all its runs: nobody was left to tell the study.
    trial_run(home, 4, 0, 1.0, stop_reason="pruned: eval/return_mean = 1 at step 20")
    for seed in range(3):
        trial_run(home, 5, seed, 2.0 + seed)
    tried.tell(6, "FAIL")
    plan = TrialsPlan(tried, whole, Group(home, "s"))
    statuses = [(proposal.status, proposal.score) for proposal in tried.trials]
    assert statuses == [
        *[("RUNNING", None)] * 4,
        *[("PRUNED", None), ("COMPLETE", 3.0), ("FAIL", None)],
    ]
    assert taken(plan) == [
        ("trial 0-s0", "run"),
        ("trial 1-s0", "resume"),
        ("trial 2-s1", "run"),
        ("trial 2-s2", "run"),
        ("trial 3-s1", "resume"),
        ("trial 3-s2", "run"),
        # A new trial: there are to be 8 of them.
        ("trial 7-s0", "run"),
    ]
    resumed = next(member for member in plan.members if member.name == "trial 1-s0")
    resumed.status = "finished"
    plan.ended(resumed)
    assert taken(plan) == [("trial 1-s1", "run"), ("trial 1-s2", "run")]


def test_the_first_seed_decides_whether_the_others_of_a_trial_are_run(home: Path) -> None:
    whole = asked(
        seeds=3,
        trials=2,
        pruner="threshold",
        pruner_options={"lower": 0.0},
        metric="eval/return_mean",
        space={**ALPHA, "evaluation.episodes": {"choices": [1, 2]}},
    )
    tried = Study("s", home, whole.section, whole.ranges)
    plan = TrialsPlan(tried, whole, Group(home, "s"))
    first, other = plan.take(), plan.take()
    assert first is not None
    assert other is not None
    assert plan.take() is None
    assert plan.evaluated(first, 20, {"eval/return_mean": 1.0}) == ""
    assert plan.evaluated(other, 20, {"eval/return_mean": -1.0}).startswith("pruned: ")
    first.status = other.status = "finished"
    plan.ended(other)
    assert other.status == "pruned"
    plan.ended(first)
    assert [member.name for member in plan.members[2:]] == ["trial 0-s1", "trial 0-s2"]
    assert [member.order["asks"] for member in plan.members] == [True, True, False, False]
    assert [proposal.status for proposal in tried.trials] == ["RUNNING", "PRUNED"]


@pytest.mark.parametrize(
    ("ends", "status", "score"),
    [
        (["finished", "finished"], "COMPLETE", 2.0),
        (["finished", "failed"], "FAIL", None),
        (["failed"], "FAIL", None),
        (["finished", "interrupted"], "RUNNING", None),
    ],
)
def test_a_trial_is_told_to_optuna_by_how_its_runs_ended_and_by_their_mean(
    home: Path, ends: list[Any], status: str, score: float | None
) -> None:
    whole = asked(seeds=2, trials=1, pruner="none", metric=METRIC)
    tried = Study("s", home, whole.section, whole.ranges)
    plan = TrialsPlan(tried, whole, Group(home, "s"))
    for seed, end in enumerate(ends):
        member = plan.take()
        assert member is not None
        member.folder = trial_run(home, 0, seed, 1.0 + 2 * seed)
        member.status = end
        plan.ended(member)
    assert plan.take() is None
    assert [(one.status, one.score) for one in tried.trials] == [(status, score)]


def test_a_bandit_is_scored_by_its_mean_reward_over_all_steps(tmp_path: Path) -> None:
    folder = run_in(tmp_path, "a", 0)
    lines = [
        {"step": step, "time": 0, "metrics": {METRIC: value}}
        for step, value in ((10, 1.0), (40, 3.0))
    ]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    run = record(0, None, latest={METRIC: 3.0, "loss": 2.0, "nan": float("nan")}, folder=folder)
    assert score_of(run, "") == pytest.approx((10 * 1.0 + 30 * 3.0) / 40)
    assert (score_of(run, "loss"), score_of(run, "nan"), score_of(run, "none")) == (2.0, None, None)
    assert score_of(record(0, 5.0), "") == 5.0


# -- the summary of a study -----------------------------------------------------------------------


def study_summary(**more: Any) -> StudySummary:
    trials = (
        trial(0, "COMPLETE", 1.0, **{"algorithm.a": 0.5}),
        trial(1, "FAIL", None),
        trial(2, "PRUNED", 9.0),
        trial(3, "COMPLETE", 4.0, **{"algorithm.a": 0.25, "env.a": [1]}),
        trial(4, "RUNNING", None),
        trial(5, "COMPLETE", 2.0),
    )
    values = {"trials": trials, "importances": {"algorithm.a": 0.75}, **more}
    return StudySummary(study="s", metric="", maximizes=True, **values)


def test_trials_are_ranked_by_their_scores_then_by_how_they_ended() -> None:
    summary = study_summary()
    assert [row.proposal.number for row in summary.ranked] == [3, 5, 0, 2, 1, 4]
    assert summary.best is summary.trials[3]
    assert summary.counts == "6 trials: 3 finished, 1 pruned, 1 failed, 1 interrupted"
    assert summary.record().metrics["summary/best"] == 4.0
    least = attrs.evolve(summary, maximizes=False, metric="loss")
    assert [row.proposal.number for row in least.ranked][:3] == [0, 5, 3]
    assert least.record().series["trials/best_so_far"] == {0: 1.0, 3: 1.0, 5: 1.0}
    assert study_summary(trials=summary.trials[1:3]).best is None


def test_the_table_of_trials_fits_and_says_why_trials_failed() -> None:
    summary = study_summary()
    assert max(map(len, summary.lines(60))) <= 60
    failed = attrs.evolve(summary.trials[1], error="the weights are not finite")
    told = study_summary(trials=(failed, *summary.trials[2:]))
    assert "trial 1: the weights are not finite" in list(told.lines(100))
    assert told.markdown().endswith("- trial 1: the weights are not finite\n")
    many = study_summary(trials=tuple(trial(number, "COMPLETE", 1.0) for number in range(16)))
    assert "… 1 more in summary.md" in list(many.lines(100))


def test_a_study_in_python_is_its_trials_and_the_best_of_them() -> None:
    result = StudyResult(study_summary(), Path("there"), "m")
    assert result.best == result.trials[3]
    assert repr(result).splitlines()[0] == "StudyResult of s:"
    series = study_summary().record().series
    assert series["trials/score"] == {0: 1.0, 3: 4.0, 5: 2.0}
    assert series["trials/best_so_far"] == {0: 1.0, 3: 4.0, 5: 4.0}
