"""Reading recorded runs: what a run is, how it is ranked, its metrics as text, statistics."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy
import pytest

import rlplug
from rlplug.review.comparison import (
    bootstrap,
    bootstrap_rows,
    interquartile_mean,
    mean_interval,
    probability_of_improvement,
)
from rlplug.review.history import (
    Series,
    aligned,
    curve_metric,
    fitting,
    frame_of,
    grouped,
    sparkline,
)
from rlplug.review.record import RunAbout, RunRecord
from rlplug.tracking.reading import recorded_runs


def series(*values: float) -> Series:
    return Series(numpy.arange(0.0, len(values)), numpy.array(values, dtype=float))


def test_a_record_says_what_was_run_and_which_options_differ_from_the_defaults(home: Path) -> None:
    options = {"tracking.enabled": False, "alpha": 2.0, "learner.max_grad_norm": 0.0}
    for seed in (1, 2):
        rlplug.run("linucb", steps=60, seed=seed, options=options)
    rlplug.run("linucb", steps=60, options={"tracking.enabled": False})
    newest, *others = (run.about for run in recorded_runs(home))
    assert newest.options == {}
    assert (newest.algorithm, newest.env, newest.steps) == ("linucb", "LinearBandit-v0", 60)
    assert [about.seed for about in others] == [2, 1]
    assert [about.shown_options for about in others] == ["alpha=2.0"] * 2
    assert others[0].group == others[1].group != newest.group


def test_the_best_evaluation_is_reported_with_each_evaluation(home: Path) -> None:
    options = {"tracking.enabled": False, "evaluation.episodes": 2, "evaluation.every": 40}
    result = rlplug.run("a2c", "CartPole-v1", steps=200, options=options)
    (run,) = recorded_runs(home)
    assert run.best == result.best
    assert run.best is not None
    assert run.score == run.best[1]
    assert run.latest["eval/best_return_mean"] >= run.latest["eval/return_mean"]


def test_options_are_shown_as_they_are_set() -> None:
    options = {"algorithm.alpha": "2", "sampling.num_envs": "8", "modules.a.alpha": "1"}
    shown = "alpha=2 sampling.num_envs=8 modules.a.alpha=1"
    assert RunAbout(options=options).shown_options == shown


def test_a_run_is_ranked_by_its_best_evaluation_else_by_its_last_headline() -> None:
    def run_of(**more: Any) -> RunRecord:
        values = {"run_id": "0", "name": "", "about": RunAbout(), "status": "FINISHED", **more}
        return RunRecord(**values)

    assert run_of(best=(1, 2.0), latest={"eval/return_mean": 9.0}).score == 2.0
    both = run_of(latest={"rollout/reward_mean": 1.0, "rollout/return_mean": 3.0})
    assert (both.headline, both.score) == (("rollout/return_mean", 3.0), 3.0)
    assert run_of().score is None
    assert run_of(status="FAILED", reason="error").shown_status == "FAILED (error)"
    assert run_of(reason="pruned: at 3").shown_status == "FINISHED (pruned)"


# -- statistics ------------------------------------------------------------------------------------


def test_quarters_are_left_out_in_whole_values_along_the_last_axis() -> None:
    assert float(interquartile_mean(numpy.array([9.0, 1.0, 2.0]))) == 4.0
    rows = numpy.array([[0.0, 1.0, 2.0, 100.0], [4.0, 3.0, 2.0, 1.0]])
    assert interquartile_mean(rows).tolist() == [1.5, 2.5]


def test_intervals_are_percentiles_of_two_thousand_resamples() -> None:
    scores = [1.0, 2.0, 4.0, 8.0]
    drawn = numpy.random.default_rng(0).integers(4, size=(2000, 4))
    ends = numpy.percentile(numpy.array(scores)[drawn].mean(1), [2.5, 97.5])
    mean = mean_interval(scores)
    assert (mean.estimate, mean.low, mean.high) == (3.75, *ends)
    assert str(mean) == f"3.75 [{ends[0]:.4g}, {ends[1]:.4g}]"
    assert str(mean_interval([5.0])) == "5 [5, 5]"
    low, high = bootstrap_rows(numpy.array([[one, 10 * one] for one in scores]))
    assert [*low, *high] == pytest.approx([ends[0], 10 * ends[0], ends[1], 10 * ends[1]])
    # Without the lowest and the highest two: 2, 3, 3, 3.
    assert bootstrap([1.0, 2.0, 3.0, 4.0, 100.0, 3.0, 2.0, 3.0]).estimate == 2.75


def test_a_run_is_better_with_the_probability_of_pairs() -> None:
    found = probability_of_improvement([1.0, 3.0, 5.0], [2.0, 3.0])
    # Of six pairs, three are won and one is equal.
    assert found.estimate == pytest.approx(3.5 / 6)
    assert found.low < found.estimate < found.high


# -- texts -----------------------------------------------------------------------------------------


def test_tables_are_aligned_and_lose_columns_where_they_are_too_wide() -> None:
    rows = [("run", "steps", "score"), ("a", "10", "1.5"), ("longer", "2", "")]
    assert list(aligned(rows)) == ["run     steps  score", "a          10    1.5", "longer      2"]
    assert list(fitting(rows, 20, ["steps"])) == list(aligned(rows))
    assert list(fitting(rows, 5, ["none", "steps", "score"])) == ["run", "a", "longer"]


def test_metrics_are_written_by_area_as_letters_and_as_csv() -> None:
    values = {"loss": 1.0, "eval/a/b": 2.0, "eval/best_step": 3.0}
    assert grouped(values) == {"": {"loss": 1.0}, "eval": {"a/b": 2.0}}
    assert sparkline(series(*range(8)), 8) == "▁▂▃▄▅▆▇█"
    assert sparkline(series(*range(8)), 4) == "▁▃▆█"
    assert sparkline(series(0.0, 4.0, 2.0, math.nan), 9) == "▁█▅"
    assert sparkline(series(5.0, 5.0), 2) == "▁▁"
    gap = Series(numpy.array([0.0, 1.0, 9.0]), numpy.array([0.0, 1.0, 2.0]))
    assert sparkline(gap, 3) == "▁ █"
    assert (sparkline(series(math.nan), 3), sparkline(series(1.0), 0)) == ("", "")
    history = {"a": series(1.0, 2.0), "b": Series(numpy.array([1.0]), numpy.array([3.0]))}
    assert frame_of(history).to_csv() == "step,a,b\n0,1.0,\n1,2.0,3.0\n"


def test_the_curve_that_is_shown_is_the_first_headline_with_several_values() -> None:
    reward, evaluated = "rollout/reward_mean", "eval/return_mean"
    assert curve_metric({reward: series(1.0, 2.0), evaluated: series(1.0)}) == reward
    assert curve_metric({reward: series(1.0), "loss": series(1.0, 2.0)}) == reward
    assert curve_metric({}) == ""
