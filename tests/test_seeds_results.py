"""Results of several seeds and of studies in Python, from what their processes left."""

from __future__ import annotations

import json
import logging
import signal
from pathlib import Path
from typing import Any

import attrs
import pytest

from rlplug.config.sources import settings_of
from rlplug.errors import RequestError
from rlplug.runs.request import Request
from rlplug.runs.seeds import summary_run
from rlplug.runs.seeds.asked import check_seeds
from rlplug.runs.seeds.display import SilentSeeds
from rlplug.runs.seeds.group import Group
from rlplug.runs.seeds.in_order import run_in_order
from rlplug.runs.seeds.placement import _marked
from rlplug.runs.seeds.results import RunResults, SeedsFailedError, SeedsInterrupted, results_of
from rlplug.runs.seeds.several import SeedsOutcome, _resumed, resume_seeds
from rlplug.runs.seeds.state import SeedState
from rlplug.runs.seeds.summary import Summary
from rlplug.runs.tuning.figures import history_figure
from rlplug.runs.tuning.results import StudyResult
from rlplug.runs.tuning.summary import StudySummary
from rlplug.tracking.client import StoreUnreachableError
from rlplug.tracking.location import RunFolder
from tests.test_runs_parts import record, run_in, trial


def measured(root: Path, seed: int, status: str = "FINISHED") -> SeedState:
    """A seed whose run was evaluated: its best return was 10 times the seed, at step 6."""
    folder = run_in(root, f"{seed}" * 8, seed, status)
    metrics = {"eval/best_return_mean": 10.0 * seed, "eval/best_step": 6.0, "eval/return_mean": 1.0}
    line = {"step": 9, "time": 0, "metrics": metrics}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    ended = "finished" if status == "FINISHED" else "failed"
    return SeedState(seed=seed, folder=folder, status=ended, error=["it broke"])  # type: ignore[arg-type]


def outcome(*states: SeedState, ended_by: int = 0) -> SeedsOutcome:
    summary = Summary(group="g", runs=tuple(one.record() for one in states))
    return SeedsOutcome(states=states, ended_by=ended_by, group=None, summary=summary, run_id="s")


def test_results_have_the_measures_of_the_seeds_that_finished(home: Path) -> None:
    results = results_of(outcome(measured(home, 1), measured(home, 2)))
    assert results.measures == ("best_return", "final_return")
    assert results.values() == results.values("best_return") == (10.0, 20.0)
    assert results.values("final_return") == (1.0, 1.0)
    assert results.mean().estimate == results.iqm().estimate == 15.0
    assert results.iqm("final_return").estimate == 1.0
    assert (results.group, results.folder, results.run_id) == ("g", None, "s")
    with pytest.raises(RequestError) as raised:
        results.mean("regret")
    assert str(raised.value) == (
        "'regret' was not measured of every seed.\n  there are: best_return, final_return"
    )
    shown = results._repr_html_()
    assert shown.startswith(Summary(group="g", runs=tuple(results)).html())
    assert shown.endswith("".join(one._repr_html_() for one in results))
    assert "2 of 2 seeds" in shown
    assert shown.count("at step 9") >= 2


def test_without_a_finished_seed_there_is_nothing_to_sum_up(home: Path) -> None:
    with pytest.raises(SeedsFailedError) as failed:
        results_of(outcome(measured(home, 1, "FAILED")))
    assert str(failed.value) == "1 of 1 seeds failed.\n  seed 1: it broke"
    results = failed.value.results
    assert len(results) == 1
    for ask in (results.plot, results.values, results.mean, results.iqm):
        with pytest.raises(RequestError) as raised:
            ask()
        assert str(raised.value) == (
            "no seed has finished: there is nothing to sum up.\n  see: .status"
        )


def test_seeds_that_never_began_are_an_error_or_an_interruption() -> None:
    states = [SeedState(seed=0, status="failed", error=["no such option.", "  try: another"])]
    nothing = SeedsOutcome(states=states, ended_by=0, group=None)
    with pytest.raises(RequestError) as raised:
        results_of(nothing)
    said = str(raised.value).splitlines()
    assert said[:2] == ["no such option.", "  try: another"]
    assert said[2].startswith("  seeds run in processes of their own, which know installed plugins")
    with pytest.raises(SeedsInterrupted) as ended:
        results_of(attrs.evolve(nothing, ended_by=signal.SIGTERM))
    assert (ended.value.exit_code, ended.value.number) == (143, 15)
    assert isinstance(ended.value.results, RunResults)
    assert [one.status for one in ended.value.results] == ["FAILED"]


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


def test_a_seed_is_not_negative() -> None:
    assert check_seeds([3, 0]) == (3, 0)
    with pytest.raises(RequestError, match=r"must be at least 0, got -2\.\s+try: --seeds 5"):
        check_seeds([1, -2, -1])


def test_seeds_that_were_never_started_begin_before_their_group_is_changed(home: Path) -> None:
    folder = run_in(home, "a", 0)
    group = Group(home, "g")
    group.ask([0, 2, 3], folder)
    told = r"seeds 2-3 of group g were never started\.\s+try: first rlplug resume g"
    for request, steps in ((Request(), 20), (Request(settings=settings_of({"alpha": 1})), 0)):
        with pytest.raises(RequestError, match=told):
            resume_seeds(group, request, 1, lambda title: SilentSeeds(), steps=steps)
    fresh = _resumed(group, 2, group.unfinished(), Request(), 0, False)
    assert (fresh.seed, fresh.folder) == (2, None)
    assert fresh.arguments[:3] == ("run", "--config", str(group.config))
    done = _resumed(group, 0, group.unfinished(), Request(), 0, False)
    assert (done.status, done.folder, done.step) == ("finished", folder, 9)
    again = _resumed(group, 0, dict(group.runs), Request(), 20, False)
    assert (again.status, again.folder) == ("waiting", folder)
    assert again.arguments[:2] == ("resume", "a")


def test_a_runs_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told = r"file/runs is not writable: Not a directory\.\s+try: RLPLUG_HOME=/another/folder"
    with pytest.raises(RequestError, match=told), _marked(tmp_path / "file" / "runs"):
        pass
    with _marked(tmp_path / "runs") as mark:
        assert (mark.parent, len(mark.read_text())) == (tmp_path / "runs", 32)
    assert not mark.exists()


def test_a_summary_that_mlflow_does_not_take_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> Any:
        raise StoreUnreachableError("it does not answer.\nIt was tried twice.")

    monkeypatch.setattr(summary_run, "_open", fails)
    run = RunFolder.read(run_in(tmp_path, "a", 0))
    assert run is not None
    runs = (attrs.evolve(record(0, 1.0), folder=run.path, experiment_id="1"),)
    summary = summary_run.summary_of_seeds(Summary(group="g", runs=runs))
    group = Group(tmp_path, "g")
    with caplog.at_level(logging.WARNING):
        assert summary_run.record_summary(summary, group, []) == ""
    assert caplog.messages == ["rlplug: the summary of g is not in MLflow: it does not answer."]
    assert "summary_run_id" not in group.facts


def study(**more: Any) -> StudySummary:
    trials = (trial(0, "COMPLETE", 1.0), trial(1, "PRUNED", 0.5), trial(2, "PRUNED", None))
    values = {"trials": trials, "importances": {"a": 0.75, "b": 0.25}, **more}
    return StudySummary(study="s", metric="", maximizes=True, **values)


def test_a_study_is_shown_as_a_table_and_plotted_if_trials_differ() -> None:
    result = StudyResult(study(), Path("there"), "m")
    lines = repr(result).splitlines()
    assert lines[0] == "StudyResult of s:"
    assert lines[1:] == list(study().lines(100))
    assert result.best == result.trials[0]
    axes = result.plot().axes[0]
    assert [one.get_width() for one in axes.patches] == [0.25, 0.75]  # type: ignore[attr-defined]
    assert axes.get_xlim() == pytest.approx((0, 0.84))
    with pytest.raises(RequestError) as raised:
        StudyResult(study(importances={}), Path("there"), "m").plot()
    assert str(raised.value) == "too few trials differ to tell importances.\n  see: .trials"


def test_pruned_trials_are_points_of_their_own_in_the_history() -> None:
    best, finished, pruned = history_figure(study()).axes[0].lines
    assert [one.get_label() for one in (best, finished, pruned)] == [
        *("best so far", "finished", "pruned")
    ]
    points = [[list(part) for part in one.get_data()] for one in (finished, pruned)]  # type: ignore[arg-type]
    assert points == [[[0], [1.0]], [[1], [0.5]]]
    assert len(history_figure(study(trials=study().trials[:1])).axes[0].lines) == 2
