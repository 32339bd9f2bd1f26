"""How a study goes on with the trials that were interrupted, and what of it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlplug.config.tune_section import TuneSection
from rlplug.errors import RequestError
from rlplug.registry import Registry
from rlplug.runs.request import Request
from rlplug.runs.seeds.group import Group
from rlplug.runs.seeds.state import SeedState
from rlplug.runs.tuning import study as studies
from rlplug.runs.tuning.asked import TuneRequest
from rlplug.runs.tuning.plan import TrialsPlan
from rlplug.runs.tuning.space import Range
from rlplug.runs.tuning.study import Study, optuna_problems
from rlplug.runs.tuning.summary import StudySummary
from rlplug.runs.tuning.tune import TuneOutcome, _refuse_others
from tests.test_runs_parts import run_in, trial

METRIC = "rollout/reward_mean"


def asked(config: Path | None = None, run: Any = (), **section: Any) -> TuneRequest:
    flags = {"run": {"algorithm": "linucb", "steps": 200, **dict(run)}}
    values = {"space": {"alpha": {"low": 0.1, "high": 2.0}}, **section}
    return TuneRequest.of(Request(config=config, flags=flags), values, Registry.installed())


def ended(root: Path, number: int, seed: int, score: float, **state: Any) -> Path:
    """A run of a trial, whose last reward was this score."""
    about: dict[str, Any] = {"group": "s", "trial": str(number), "steps": 200}
    folder = run_in(root, f"{number}-{seed}", seed, state.pop("status", "FINISHED"), **about)
    line = {"step": 9, "time": 0, "metrics": {METRIC: score}}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    kept = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps({**kept, **state}))
    return folder


def taken(plan: TrialsPlan) -> list[tuple[str, str]]:
    """What the plan starts, with the first word of each command."""
    found = []
    while (state := plan.take()) is not None:
        found.append((state.name, state.arguments[0]))
    return found


def test_a_study_goes_on_with_what_its_trials_lack(home: Path) -> None:
    whole = asked(seeds=3, trials=8, metric=METRIC)
    tried = Study("s", home, whole.section, whole.ranges)
    for _ in range(7):
        tried.ask()
    # Trial 0 had no run yet; of 1, the first was cut off; of 2, the others are left.
    ended(home, 1, 0, 1.0, status="KILLED")
    ended(home, 2, 0, 1.0)
    # Of 3, the second was cut off, and the third never started.
    ended(home, 3, 0, 1.0)
    ended(home, 3, 1, 1.0, status="KILLED")
    # 4 was pruned, and 5 has all its runs: nobody was left to tell the study.
    ended(home, 4, 0, 1.0, stop_reason="pruned: eval/return_mean = 1 at step 20")
    for seed in range(3):
        ended(home, 5, seed, 2.0 + seed)
    tried.tell(6, "FAIL")
    plan = TrialsPlan(tried, whole, "s", home)
    known = {one.name: (one.status, one.step, one.steps) for one in plan.states}
    assert known["trial 2-s0"] == ("finished", 9, 200)
    assert known["trial 4-s0"] == ("pruned", 9, 200)
    assert known["trial 3-s1"] == ("waiting", 0, 0)
    finished = next(one for one in plan.states if one.name == "trial 2-s0")
    assert (finished.code, finished.latest) == (0, {METRIC: 1.0})
    assert finished.folder == home / "work" / "2-0"
    statuses = [(one.status, one.score) for one in tried.trials]
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
    resumed = next(one for one in plan.states if one.name == "trial 1-s0")
    assert resumed.arguments[1] == "1-0"
    resumed.status = "finished"
    plan.ended(resumed)
    assert taken(plan) == [("trial 1-s1", "run"), ("trial 1-s2", "run")]


def test_trials_that_only_failed_or_were_cut_off_tell_of_the_request(home: Path) -> None:
    whole = asked(trials=3)
    tried = Study("s", home, whole.section, whole.ranges)
    assert TrialsPlan(tried, whole, "s", home).alike
    tried.tell(tried.ask().number, "FAIL")
    tried.ask()
    plan = TrialsPlan(tried, whole, "s", home)
    assert plan.alike
    # Of one seed, the names do not tell it.
    assert [name for name, _ in taken(plan)] == ["trial 1", "trial 2"]
    tried.tell(1, "PRUNED")
    assert not TrialsPlan(tried, whole, "s", home).alike


def test_a_section_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tune.toml"
    file.write_text("tune = 3\n")
    with pytest.raises(RequestError) as raised:
        asked(file)
    assert str(raised.value) == (
        f"'{file}': expected a section [tune], got 3.\n  see: rlplug options tune"
    )


def test_first_values_that_contradict_each_other_are_no_problem_of_a_study() -> None:
    run = {"algorithm": "ppo", "env": "CartPole-v1", "steps": 4096}
    names = "sampling.max_trajectory_length", "sampling.min_trajectory_length"
    ends = [2, 9], [4, 2]
    space = {name: {"choices": one} for name, one in zip(names, ends, strict=True)}
    found = asked(run=run, space=space)
    assert tuple(one.name for one in found.ranges) == names
    assert (found.env, found.steps) == ("CartPole-v1", 4096)


@pytest.mark.parametrize(("package", "said"), [("cmaes", "cmaes"), (None, "a package")])
def test_a_sampler_says_which_package_it_lacks(
    monkeypatch: pytest.MonkeyPatch, package: str | None, said: str
) -> None:
    def fails(*_: Any) -> Any:
        raise ImportError("No module", name=package)

    monkeypatch.setattr(studies, "_sampler", fails)
    ranges = [Range(name="x", low=0.0, high=1.0, is_float=True)]
    (problem,) = optuna_problems(TuneSection(sampler="cmaes"), ranges)
    assert (problem.path, problem.message) == ("tune.sampler", f"needs {said}: pip install {said}")


def test_a_study_has_no_name_of_a_group_of_seeds(tmp_path: Path) -> None:
    Group(tmp_path, "g").folder.mkdir(parents=True)
    with pytest.raises(RequestError, match=r"g is a group of seeds\.\s+try: --study ANOTHER_NAME"):
        _refuse_others(Group(tmp_path, "g"), asked())
    _refuse_others(Group(tmp_path, "s"), asked())


def test_the_exit_code_of_a_study_tells_whether_there_is_a_best_trial(tmp_path: Path) -> None:
    def code(summary: StudySummary | None, ended_by: int = 0) -> int:
        group = Group(tmp_path, "s")
        states: list[SeedState] = []
        return TuneOutcome(states=states, ended_by=ended_by, group=group, summary=summary).code

    def summary(status: str) -> StudySummary:
        trials = (trial(0, status, 1.0),)
        return StudySummary(study="s", metric="", maximizes=True, trials=trials, importances={})

    assert code(summary("COMPLETE"), ended_by=15) == 143
    assert code(None) == 2
    assert code(summary("COMPLETE")) == 0
    assert code(summary("FAIL")) == 1
