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

from rlplug.cli.groups import print_interrupted
from rlplug.config.sections import TuneSection
from rlplug.config.sources import Setting, settings_of
from rlplug.errors import ConfigError, PluginError, RequestError
from rlplug.registry import Registry
from rlplug.review.record import RunRecord
from rlplug.runs.groups.ablation import variants
from rlplug.runs.groups.asked import Asked, search_of
from rlplug.runs.groups.display import SilentDisplay, member_line
from rlplug.runs.groups.group import NO_TRIAL, Group, find_group
from rlplug.runs.groups.life import Outcome, result_of, resume_group, run_in_order
from rlplug.runs.groups.member import Member
from rlplug.runs.groups.place import Host, place_of, placed_by
from rlplug.runs.groups.plan import Plan, score_of
from rlplug.runs.groups.result import GroupFailedError, GroupInterrupted, GroupResult, Row
from rlplug.runs.groups.seeds import check_seeds, parse_seeds, refuse_seed_option, seeds_text
from rlplug.runs.groups.study import Study, distribution
from rlplug.runs.prepare import Prepared, prepare
from rlplug.runs.rebuilding import installed_versions
from rlplug.runs.request import Request
from rlplug.tracking.resolve import best_of
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
    (home / "mark").touch()
    given: dict[str, Any] = {
        "path": sys.path,
        "folder": str(home.parent),
        "mark": str(home / "mark"),
        "environ": {"RLPLUG_HOME": str(home)},
        "plugins": [("algorithm", "linucb")],
        "versions": installed_versions(plugins),
        "order": {"kind": "resume", "run": "absent", "steps": 0, "settings": [], "argv": ["r"]},
    }
    given["order"]["allow_drift"] = False
    return Host("seed 0", {**given, **job})


@pytest.mark.parametrize(
    ("job", "named"),
    [
        ({"plugins": [("algorithm", "no-such-plugin")]}, "no-such-plugin"),
        ({"versions": {"plugin 'linucb'": "rlplug-linucb 0.0.1"}}, "rlplug-linucb 0.0.1"),
        ({"mark": "/nowhere/mark"}, "the runs folder /nowhere"),
    ],
)
def test_a_host_without_the_same_plugins_versions_and_runs_folder_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, job: dict[str, Any], named: str
) -> None:
    monkeypatch.chdir(Path.cwd())
    home.mkdir(parents=True, exist_ok=True)
    refusal = host(home, **job).start()
    assert f"host {socket.gethostname()}" in refusal
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
    wide = member_line(member)
    for part in ("seed 3   45%", "13,500 of 30,000", "-1,183", "best 210.5 @ 12,000", "left"):
        assert part in wide
    assert "reward" not in wide
    assert member_line(member, 60) == wide[:60].rstrip()
    member.step = 30_000
    assert "closing" in member_line(member)
    member.status = "interrupted"
    assert "interrupted" in member_line(member)
    assert member_line(Member(seed=0)) == "seed 0    0%  waiting"
    assert member_line(Member(seed=0, status="running")) == "seed 0    0%  starting"


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
    return [
        Member(seed=seed, has_begun=begun, code=code, status="finished" if code == 0 else "failed")
        for seed, code in enumerate(codes)
    ]


@pytest.mark.parametrize(
    ("members", "ended_by", "code"),
    [
        (ended(0, 0), 0, 0),
        (ended(0, 1), 0, 1),
        (ended(0, 143), 15, 143),
        # One that was refused beside others that ran is one that failed.
        (ended(0, 2), 0, 1),
        (ended(2, begun=False), 0, 2),
    ],
)
def test_one_exit_code_tells_of_all_runs(members: list[Member], ended_by: int, code: int) -> None:
    assert Outcome(members=members, ended_by=ended_by).code == code


def test_of_interrupted_runs_is_told_which_have_a_checkpoint_and_how_they_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tmp_path / "3" / "checkpoints" / "step-1" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.touch()
    members = [Member(seed=9), Member(seed=3, folder=tmp_path / "3")]
    result = GroupResult(group="g", kind="seed", rows=())
    outcome = Outcome(members=members, ended_by=signal.SIGTERM, result=result)
    print_interrupted(outcome)
    said = capsys.readouterr().err
    assert "seed 3" in said
    assert "seed 9" not in said
    assert said.endswith("next: rlplug resume g\n")
    print_interrupted(attrs.evolve(outcome, result=None))
    assert "before any run had begun" in capsys.readouterr().err


def test_a_group_has_the_newest_run_of_each_seed_and_those_that_were_asked_for(
    tmp_path: Path,
) -> None:
    run_in(tmp_path, "a", 2, "FAILED", second=1)
    run_in(tmp_path, "b", 2, "FINISHED", second=2)
    run_in(tmp_path, "c", 0, "KILLED", second=3)
    run_in(tmp_path, "d", 9, trial="1")
    run_in(tmp_path, "e", 8, group="other")
    group = find_group(tmp_path, "g")
    assert group is not None
    runs = {where: run.run_id for where, run in group.runs.items()}
    assert runs == {(NO_TRIAL, 0): "c", (NO_TRIAL, 2): "b", (1, 9): "d"}
    assert group.config == tmp_path / "work" / "c" / "config.toml"
    group.keep(seeds=[5, 1])
    assert group.seeds == (0, 1, 2, 5)
    assert group.unfinished == [0, 1, 5]
    group.keep_options(b"# a")
    assert group.config.read_text() == "# a"
    group.keep(summary_run_id="s")
    assert (group.facts["summary_run_id"], group.seeds) == ("s", (0, 1, 2, 5))
    assert find_group(tmp_path, "none") is None
    assert not group.is_study


def test_seeds_that_were_never_started_begin_before_their_group_is_changed(home: Path) -> None:
    run_in(home, "a", 0)
    group = Group(home, "g")
    group.keep(seeds=[0, 2, 3])
    group.keep_options(b"")
    for settings, steps in (((), 20), (settings_of({"alpha": 1}), 0)):
        with pytest.raises(RequestError, match=r"seeds 2-3 of group g were never started"):
            resume_group(group, 1, SilentDisplay, settings=settings, steps=steps)


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


def of_seeds(*runs: RunRecord, error: str = "") -> GroupResult:
    rows = [Row.of_seed(run, error if run.status == "FAILED" else "") for run in runs]
    return GroupResult(group="g", kind="seed", rows=tuple(rows))


def three_seeds() -> GroupResult:
    failed = record(2, 9.0, status="FAILED", step=10)
    first = record(0, -1183.4, latest={"eval/return_mean": 0.5})
    return of_seeds(first, record(1, 3000.0), failed, error="it failed")


def test_measures_are_of_the_seeds_that_finished() -> None:
    result = three_seeds()
    assert result.measures == ("best_return",)
    assert result.values() == (-1183.4, 3000.0)
    mean, iqm = result.mean(), result.iqm("best_return")
    assert mean.estimate == pytest.approx(908.3)
    assert mean.low <= iqm.low <= iqm.high <= mean.high
    metrics = result.metrics()
    assert metrics["summary/iqm"] == metrics["summary/best_return_iqm"] == iqm.estimate
    assert (metrics["summary/seeds"], metrics["summary/finished"]) == (3, 2)
    facts = result.as_json()
    assert [run["status"] for run in facts["rows"]] == ["FINISHED", "FINISHED", "FAILED"]
    assert (facts["finished"], facts["rows"][2]["error"]) == (2, "it failed")
    bandit = record(0, None, latest={"rollout/reward_mean": 0.5, "rollout/regret_total": 30.0})
    assert of_seeds(bandit).measures == ("reward", "regret")


def test_the_best_of_equal_seeds_is_the_one_with_the_best_last_return() -> None:
    last = [{"eval/return_mean": value} for value in (300.0, 500.0, 400.0)]
    result = of_seeds(*(record(seed, 500.0, latest=last[seed]) for seed in range(3)))
    assert result.best is not None
    assert result.best.number == 1
    assert best_of(result.runs) == result.best.run


@pytest.mark.parametrize("columns", [50, 60, 100])
def test_the_table_of_seeds_fits_into_the_terminal(columns: int) -> None:
    lines = list(three_seeds().lines(columns))
    assert max(map(len, lines)) <= columns
    assert lines[1].split()[:2] == ["0", "FINISHED"]
    assert "seed 2: it failed" in lines
    assert any("2 of 3 seeds" in line for line in lines)
    assert "- seed 2: it failed" in three_seeds().markdown()


def outcome_of(*members: Member, ended_by: int = 0) -> Outcome:
    errors = {one.seed: one.error[0] for one in members if one.status == "failed"}
    runs = [member.record() for member in members]
    rows = tuple(Row.of_seed(run, errors.get(run.about.seed, "")) for run in runs)
    result = GroupResult(group="g", kind="seed", rows=rows, run_id="s")
    return Outcome(members=members, ended_by=ended_by, result=result)


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
    results = result_of(outcome_of(measured(home, 1), measured(home, 2)))
    assert results.measures == ("best_return", "final_return")
    assert results.values() == results.values("best_return") == (10.0, 20.0)
    assert results.mean().estimate == results.iqm().estimate == 15.0
    assert (results.group, results.folder, results.run_id) == ("g", None, "s")
    with pytest.raises(RequestError, match="'regret' was not measured"):
        results.mean("regret")
    assert "2 seeds" in results._repr_markdown_()


def test_seeds_that_failed_or_were_interrupted_are_raised_with_the_results(home: Path) -> None:
    with pytest.raises(GroupFailedError, match=r"1 of 1 seeds failed\.\n  seed 1: it broke") as one:
        result_of(outcome_of(measured(home, 1, "FAILED")))
    for ask in (one.value.result.plot, one.value.result.values, one.value.result.mean):
        with pytest.raises(RequestError, match="no run has finished"):
            ask()
    members = [Member(seed=0, status="failed", error=["no such option.", "  try: another"])]
    nothing = Outcome(members=members, ended_by=0)
    with pytest.raises(RequestError, match=r"no such option\.\n  try: another\n  runs in"):
        result_of(nothing)
    with pytest.raises(GroupInterrupted) as raised:
        result_of(attrs.evolve(nothing, ended_by=signal.SIGTERM))
    assert (raised.value.exit_code, raised.value.number) == (143, 15)


# -- ablations ------------------------------------------------------------------------------------


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


def asked(run: Any = (), **section: Any) -> Asked:
    flags = {"run": {"algorithm": "linucb", "steps": 200, **dict(run)}}
    return search_of(Request(flags=flags), {"space": ALPHA, **section}, Registry.installed(), "s")


def study_of(home: Path, whole: Asked) -> Study:
    assert whole.search is not None
    return Study("s", home, whole.search.section, whole.search.space)


def plan_of(home: Path, whole: Asked, study: Study) -> Plan:
    return Plan(whole, Group(home, "s"), study, resume={})


def statuses(study: Study) -> list[tuple[str, float | None]]:
    return [(trial.state.name, trial.value) for trial in study.trials]


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


def test_ranges_take_the_numbers_of_their_options() -> None:
    whole = {"low": 1, "high": 2}
    space = {
        "addons.rnd.coef": whole,
        "learner": {"max_grad_norm": whole},
        "addons.rnd.out_features": whole,
        "net_arch": {"choices": [[64, 64], [16]]},
    }
    run = {"algorithm": "ppo", "env": "CartPole-v1", "addons": ["rnd"]}
    search = asked(run, space=space).search
    assert search is not None
    kinds = [type(found).__name__ for found in search.space.values()]
    assert kinds == [f"{kind}Distribution" for kind in ("Float", "Float", "Int", "Categorical")]


def test_first_values_that_contradict_each_other_are_no_problem_of_a_study() -> None:
    names = "sampling.max_trajectory_length", "sampling.min_trajectory_length"
    space = dict(zip(names, ({"choices": [2, 9]}, {"choices": [4, 2]}), strict=True))
    run = {"algorithm": "ppo", "env": "CartPole-v1", "steps": 4096}
    assert asked(run, space=space).count == 20


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
    Group(home, "mine").keep(tune={})
    Group(home, "mine").keep_options(b"")
    refused = rlplug("resume", "mine", *given.split())
    assert (refused.code, refused.out) == (2, "")
    assert "mine is a study" in refused.err


def test_without_optuna_the_message_says_what_to_install(
    rlplug: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    refused = rlplug("tune", "--algo", "linucb", "--space", "alpha={low=0.1,high=2.0}")
    assert refused.code == 2
    assert "pip install 'rlplug[tune]'" in refused.err


@pytest.mark.parametrize(
    ("imported", "not_imported"),
    [
        ("rlplug.runs.groups.life", ("optuna", "ray")),
        ("rlplug.cli.main, rlplug.runs.run, rlplug.runs.life", ("rlplug.runs.groups", "optuna")),
    ],
)
def test_a_command_imports_only_what_it_needs(
    warm: Warm, imported: str, not_imported: tuple[str, ...]
) -> None:
    check = f"import sys, {imported}; sys.exit(any(name in sys.modules for name in {not_imported}))"
    assert warm.start(code=check).wait() == 0


def test_the_file_of_a_study_is_also_that_of_a_run(
    rlplug: Command, home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "tune.toml"
    file.write_text('[run]\nalgorithm = "linucb"\n[tune.space]\nalpha = { choices = [1, 2] }\n')
    assert rlplug("run", "--config", str(file), "--dry-run").code == 0


# -- trials ---------------------------------------------------------------------------------------


def study(home: Path, space: dict[str, Any], **section: Any) -> Study:
    found = {name: distribution(given, is_float=False) for name, given in space.items()}
    return Study("s", home, TuneSection(space=space, **section), found)


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
    values = [again.values(trial) for trial in again.trials]
    found = {(str(trial["net"]), trial["n"]) for trial in values}
    assert found == {(net, n) for net in ("[16]", "[64, 64]") for n in (1, 2, 3)}
    assert [score for _, score in statuses(again)] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    combined = asked(sampler="grid", space={"alpha": {"choices": [0.5, 1.0, 2.0]}}).search
    assert combined is not None
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
    assert tried.trials[2].state.name == "PRUNED"


def test_a_study_that_goes_on_does_not_propose_the_same_again(home: Path) -> None:
    space = {"x": {"low": 0.0, "high": 1.0}}
    first, second = (study(home, space, sampler="random").ask() for _ in range(2))
    assert first.params != second.params


@pytest.mark.long
def test_importance_is_that_of_the_option_that_makes_the_difference(home: Path) -> None:
    space = {name: {"low": 0.0, "high": 1.0} for name in ("matters", "does_not")}
    tried = study(home, space, sampler="random")
    assert tried.importances() == {}
    for _ in range(30):
        proposal = tried.ask()
        tried.tell(proposal.number, "COMPLETE", proposal.params["matters"])
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


def taken(plan: Plan) -> list[tuple[str, str]]:
    found = []
    while (member := plan.take()) is not None:
        found.append((member.name, member.order["kind"]))
    return found


def test_a_study_goes_on_with_what_its_trials_lack(home: Path) -> None:
    whole = asked(seeds=3, trials=8, metric=METRIC)
    tried = study_of(home, whole)
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
    plan = plan_of(home, whole, tried)
    assert statuses(tried) == [
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
    tried = study_of(home, whole)
    plan = plan_of(home, whole, tried)
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
    assert [status for status, _ in statuses(tried)] == ["RUNNING", "PRUNED"]


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
    tried = study_of(home, whole)
    plan = plan_of(home, whole, tried)
    for seed, end in enumerate(ends):
        member = plan.take()
        assert member is not None
        member.folder = trial_run(home, 0, seed, 1.0 + 2 * seed)
        member.status = end
        plan.ended(member)
    assert plan.take() is None
    assert statuses(tried) == [(status, score)]


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


def study_result(**more: Any) -> GroupResult:
    trials = (
        trial(0, "FINISHED", 1.0, **{"algorithm.a": 0.5}),
        trial(1, "FAILED", None),
        trial(2, "PRUNED", 9.0),
        trial(3, "FINISHED", 4.0, **{"algorithm.a": 0.25, "env.a": [1]}),
        trial(4, "KILLED", None),
        trial(5, "FINISHED", 2.0, **{"algorithm.a": 0.1}),
    )
    values = {"rows": trials, "importances": {"algorithm.a": 0.75}, **more}
    return GroupResult(group="s", kind="trial", **values)


def test_trials_are_ranked_by_their_scores_then_by_how_they_ended() -> None:
    result = study_result()
    assert [row.number for row in result.ranked] == [3, 5, 0, 2, 1, 4]
    assert result.best is result.rows[3]
    assert result.counts == "6 trials: 3 finished, 1 pruned, 1 failed, 1 killed"
    assert result.metrics()["summary/best"] == 4.0
    assert result.series() == {
        "trials/score": {0: 1.0, 3: 4.0, 5: 2.0},
        "trials/best_so_far": {0: 1.0, 3: 4.0, 5: 4.0},
    }
    least = attrs.evolve(result, maximizes=False, metric="loss")
    assert [row.number for row in least.ranked][:3] == [0, 5, 3]
    assert least.series()["trials/best_so_far"] == {0: 1.0, 3: 1.0, 5: 1.0}
    assert result.values("best_return") == (4.0,)
    assert study_result(rows=result.rows[1:3]).best is None


def test_the_table_of_trials_fits_and_says_why_trials_failed() -> None:
    result = study_result()
    assert max(map(len, result.lines(60))) <= 60
    assert repr(result).splitlines()[0] == "GroupResult of s:"
    failed = attrs.evolve(result.rows[1], error="the weights are not finite")
    told = study_result(rows=(failed, *result.rows[2:]))
    assert "trial 1: the weights are not finite" in list(told.lines(100))
    assert told.markdown().endswith("- trial 1: the weights are not finite\n")
    many = study_result(rows=tuple(trial(number, "FINISHED", 1.0) for number in range(16)))
    assert "… 1 more in summary.md" in list(many.lines(100))
