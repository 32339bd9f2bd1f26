"""What plots, tables and pages of runs look like, and the numbers that they are made from."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from rlplug.review import estimates, league
from rlplug.review.band import band_figure
from rlplug.review.comparison import Compared, measure_of
from rlplug.review.curve import curve_figure, panels_of
from rlplug.review.estimates import Point, draw_estimates
from rlplug.review.history import Series, history_of
from rlplug.review.league import draw_league
from rlplug.review.metrics_text import as_csv, curve_metric, grouped, last_values, sparkline
from rlplug.review.record import RunAbout, RunRecord
from rlplug.review.report import ReportedRun, render
from rlplug.review.statistics import (
    bootstrap,
    bootstrap_rows,
    interquartile_mean,
    mean_interval,
    probability_of_improvement,
)
from rlplug.review.text_table import aligned, fitting, markdown_row, table_width


def series(*values: float, step: int = 1) -> Series:
    steps = numpy.arange(0.0, len(values) * step, step)
    return Series(steps, numpy.array(values, dtype=float))


def run_of(run_id: str = "0123456789", **more: Any) -> RunRecord:
    about = {"algorithm": "ppo", "env": "Hall-v0", "steps": 100, **more.pop("about", {})}
    values = {"name": f"run {run_id}", "status": "FINISHED", "step": 100, **more}
    return RunRecord(run_id=run_id, about=RunAbout(**about), **values)


# -- plots -----------------------------------------------------------------------------------------


def boxes(figure: Figure) -> list[tuple[str, Bbox]]:
    """Every text of a figure that is seen, and where it is drawn."""
    figure.draw_without_rendering()
    texts = list(figure.texts)
    for axes in figure.axes:
        titles = axes.title, axes._left_title  # type: ignore[attr-defined] # has no other name
        texts += [*titles, axes.xaxis.label, axes.yaxis.label, *axes.texts]
        for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            ticks = axis.get_major_ticks()
            seen = [tick for tick in ticks if min(low, high) <= tick.get_loc() <= max(low, high)]
            texts += [one for tick in seen for one in (tick.label1, tick.label2)]
    return [
        (one.get_text(), one.get_window_extent())
        for one in texts
        if one.get_text().strip() and one.get_visible()
    ]


def check_layout(figure: Figure) -> None:
    """All texts are in the picture and none covers another; panels lie beside each other."""
    width, height = figure.get_size_inches() * figure.dpi
    found = boxes(figure)
    for text, box in found:
        assert box.x0 >= 0, text
        assert box.y0 >= 0, text
        assert box.x1 <= width, text
        assert box.y1 <= height, text
    for (text, box), (other, covered) in itertools.combinations(found, 2):
        shared = Bbox.intersection(box, covered)
        assert shared is None or shared.width < 2 or shared.height < 2, (text, other)
    for one, two in itertools.combinations([axes.get_position() for axes in figure.axes], 2):
        assert Bbox.intersection(one, two) is None
    for axes in figure.axes:
        place = axes.get_position()
        assert 0 < place.x0 < place.x1 < 1
        assert 0 < place.y0 < place.y1 < 1


def learning_curve() -> Figure:
    reports: list[tuple[int, dict[str, float]]] = [
        (step * 100, {"rollout/return_mean": 10.0 + step % 7, "rollout/regret_total": float(step)})
        for step in range(100)
    ]
    evaluation = {"eval/return_mean": 4.0, "eval/return_min": 2.0, "eval/return_max": 30.0}
    best = {**evaluation, "eval/best_return_mean": 4.0, "eval/best_step": 5000.0}
    return curve_figure(panels_of(history_of([*reports, (5000, best)])), "a run", "of a test")


def test_a_learning_curve_has_room_for_all_that_is_written() -> None:
    check_layout(learning_curve())


def test_a_noisy_curve_is_drawn_under_its_average_and_the_best_is_marked() -> None:
    first, second = learning_curve().axes
    raw, smooth, evaluated, best = first.get_lines()
    assert (raw.get_alpha() or 1.0) < 1.0
    assert smooth.get_color() == raw.get_color() != evaluated.get_color()
    assert numpy.asarray(best.get_xydata()).tolist() == [[5000.0, 4.0]]
    legend = first.get_legend()
    assert legend is not None
    assert [one.get_text() for one in legend.get_texts()] == [
        "training, smoothed",
        "evaluation, greedy",
        "its episodes, least to best",
        "best: 4 at step 5,000",
    ]
    (band,) = first.collections
    assert band.get_datalim(first.transData).intervaly.tolist() == [2.0, 30.0]
    # A sum is drawn as it is, above a filled area from zero.
    (line,) = second.get_lines()
    assert line.get_alpha() is None
    assert second.collections[0].get_datalim(second.transData).y0 == 0.0


def labels(history: Mapping[str, Series]) -> list[str]:
    (axes,) = curve_figure(panels_of(history), "t", "s").axes
    return [text.get_text() for text in axes.texts]


def test_regret_is_drawn_as_a_sum_if_there_is_one() -> None:
    reward = {"rollout/reward_mean": series(1.0)}
    for names, chosen in (
        (["rollout/regret_mean"], "rollout/regret_mean"),
        (["rollout/regret_mean", "rollout/regret_total"], "rollout/regret_total"),
        (["x/cumulative_regret", "rollout/regret_mean"], "x/cumulative_regret"),
        (["regret/other"], ""),
    ):
        panels = panels_of({**reward, **{name: series(1.0) for name in names}})
        assert [panel.name for panel in panels][1:] == ([chosen] if chosen else [])
    (panel,) = panels_of({"eval/return_mean": series(2.0)})
    assert (panel.name, len(panel.steps), len(panel.evaluated)) == ("rollout/reward_mean", 0, 1)
    assert panel.best is None
    best = {"eval/best_step": series(3.0, 7.0), "eval/best_return_mean": series(1.0, 2.0)}
    (panel,) = panels_of({"eval/return_mean": series(2.0), **best})
    assert panel.best == (7, 2.0)


def test_groups_are_drawn_as_means_with_bands_in_colors_of_their_own() -> None:
    groups: dict[str, Sequence[Series]] = {
        "one": [series(1.0, 2.0)],
        "two": [series(1.0, 3.0), series(3.0, 5.0)],
        "none": [],
    }
    figure = band_figure(groups, "title", "subtitle", name="return mean")
    check_layout(figure)
    (axes,) = figure.axes
    first, second = axes.get_lines()
    assert (first.get_label(), second.get_label()) == ("one", "two (2 runs)")
    assert first.get_color() != second.get_color()
    assert numpy.asarray(second.get_ydata()).tolist() == [2.0, 4.0]
    (band,) = axes.collections
    assert band.get_datalim(axes.transData).intervaly.tolist() == [1.0, 5.0]
    assert [text.get_text() for text in axes.texts] == ["2", "4"]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that would be written."""
    figures: list[Figure] = []
    for module in (estimates, league):
        monkeypatch.setattr(module, "save_png", lambda figure, file: figures.append(figure))
    return figures


def test_estimates_are_points_on_intervals_around_the_line_of_the_log(drawn: list[Figure]) -> None:
    points = [Point(1.0, 0.5, 1.5), Point(math.nan, 0.0, 0.0), Point(2.0, 1.0, 3.0)]
    for policies in ([("new", points)], [("new", points), ("old", points)]):
        draw_estimates(
            ["IPS", "SNIPS", "DR"], policies, Point(1.5, 1.4, 1.6), "t", "s", "reward", Path()
        )
        figure = drawn[-1]
        check_layout(figure)
        (axes,) = figure.axes
        assert [tick.get_text() for tick in axes.get_yticklabels()] == ["IPS", "SNIPS", "DR"]
        line, *lines = axes.get_lines()
        assert numpy.asarray(line.get_xdata()).tolist() == [1.5, 1.5]
        assert len(lines) == 3 * len(policies)
        assert numpy.asarray(lines[0].get_xdata()).tolist() == [0.5, 1.5]
        assert numpy.asarray(lines[2].get_xdata()).tolist() == [1.0, 2.0]


def test_a_league_is_drawn_with_its_win_rates_and_ratings(drawn: list[Figure]) -> None:
    rates = [[math.nan, 0.1, 0.5], [0.9, math.nan, 0.75], [0.5, 0.25, math.nan]]
    ratings = [(0, 1000.0), (2_000, 1100.0), (4_000, 1203.0)]
    draw_league(
        steps=[0, 2_000], win_rates=rates, ratings=ratings, subtitle="of a test", file=Path()
    )
    check_layout(drawn[0])
    matrix, _, curve = drawn[0].axes
    assert {(text.get_position(), text.get_text()) for text in matrix.texts} == {
        ((column, row), f"{rate:.2f}"[1:])
        for row, of_row in enumerate(rates)
        for column, rate in enumerate(of_row)
        if rate == rate
    }
    for labels in (matrix.get_xticklabels(), matrix.get_yticklabels()):
        assert [one.get_text() for one in labels] == ["0", "2k", "now"]
    assert numpy.asarray(curve.get_lines()[0].get_xydata()).tolist() == [*map(list, ratings)]
    assert [text.get_text() for text in curve.texts] == ["1,203"]
    for count, written, ticks in ((12, 132, 12), (13, 0, 7), (25, 0, 9)):
        grid = numpy.full((count, count), 0.4)
        numpy.fill_diagonal(grid, math.nan)
        steps = list(range(count - 1))
        draw_league(steps=steps, win_rates=grid.tolist(), ratings=ratings, subtitle="", file=Path())
        matrix = drawn[-1].axes[0]
        assert (len(matrix.texts), len(matrix.get_xticks())) == (written, ticks)


# -- statistics ------------------------------------------------------------------------------------


def test_quarters_are_left_out_in_whole_values_along_the_last_axis() -> None:
    assert float(interquartile_mean(numpy.array([9.0, 1.0, 2.0, 3.0]))) == 2.5
    assert float(interquartile_mean(numpy.array([9.0, 1.0, 2.0]))) == 4.0
    rows = numpy.array([[0.0, 1.0, 2.0, 100.0], [4.0, 3.0, 2.0, 1.0]])
    assert interquartile_mean(rows).tolist() == [1.5, 2.5]


def test_intervals_are_percentiles_of_two_thousand_resamples() -> None:
    scores = [1.0, 2.0, 4.0, 8.0]
    drawn = numpy.random.default_rng(7).integers(4, size=(2000, 4))
    means = numpy.array(scores)[drawn].mean(1)
    found = bootstrap(scores, lambda values: values.mean(-1), confidence=0.8, seed=7)
    assert found.estimate == 3.75
    assert (found.low, found.high) == tuple(numpy.percentile(means, [10, 90]))
    ends = numpy.percentile(
        numpy.array(scores)[numpy.random.default_rng(0).integers(4, size=(2000, 4))].mean(1),
        [2.5, 97.5],
    )
    mean = mean_interval(scores)
    assert (mean.low, mean.high) == tuple(ends)
    low, high = bootstrap_rows(numpy.array([[one, 10 * one] for one in scores]))
    assert [low[0], high[0]] == pytest.approx(ends)
    assert [low[1], high[1]] == pytest.approx(10 * ends)
    assert str(mean) == f"3.75 [{ends[0]:.4g}, {ends[1]:.4g}]"


def test_a_run_is_better_with_the_probability_of_pairs() -> None:
    found = probability_of_improvement([1.0, 3.0, 5.0], [2.0, 3.0], seed=3)
    # Of six pairs, three are won and one is equal.
    assert found.estimate == pytest.approx(3.5 / 6)
    assert found.low < found.estimate < found.high
    wins = numpy.array([[0.0, 0.0], [1.0, 0.5], [1.0, 1.0]])
    rows = numpy.random.default_rng(3).integers(3, size=(2000, 3))
    columns = numpy.random.default_rng(4).integers(2, size=(2000, 2))
    drawn = wins[rows[:, :, None], columns[:, None, :]].mean((1, 2))
    assert (found.low, found.high) == tuple(numpy.percentile(drawn, [2.5, 97.5]))


# -- choosing and comparing ------------------------------------------------------------------------


def test_single_runs_have_no_probability_of_improvement_and_no_score_no_mean() -> None:
    measure = measure_of([run_of(best=(1, 2.0))])
    one = Compared(label="one", runs=[run_of(best=(1, 2.0))])
    two = Compared(label="two", runs=[run_of(best=(1, 3.0)), run_of(best=(1, 4.0))])
    assert one.improvement(two, measure) is None
    assert two.improvement(one, measure) is None
    improvement = two.improvement(two, measure)
    assert improvement is not None
    assert improvement.estimate == 0.5
    mean, iqm = two.mean(measure), two.iqm(measure)
    assert mean is not None
    assert iqm is not None
    assert (mean.estimate, iqm.estimate) == (3.5, 3.5)
    empty = Compared(label="none", runs=[run_of(best=None)])
    assert empty.mean(measure) is None
    assert empty.iqm(measure) is None
    assert measure_of([run_of(best=None)]).name == ""


# -- texts -----------------------------------------------------------------------------------------


def test_tables_are_aligned_and_lose_columns_where_they_are_too_wide() -> None:
    rows = [("run", "steps", "score"), ("a", "10", "1.5"), ("longer", "2", "")]
    assert list(aligned(rows)) == ["run     steps  score", "a          10    1.5", "longer      2"]
    assert table_width(rows) == 20
    assert list(fitting(rows, 20, ["steps"])) == list(aligned(rows))
    assert next(iter(fitting(rows, 19, ["none", "steps", "score"]))) == "run     score"
    assert list(fitting(rows, 5, ["steps", "score"])) == ["run", "a", "longer"]
    assert markdown_row(["a", "b"]) == "| a | b |"


def test_metrics_are_written_by_area_as_letters_and_as_csv() -> None:
    values = {"loss": 1.0, "eval/a/b": 2.0, "eval/best_step": 3.0, "x/": 4.0}
    assert grouped(values) == {"": {"loss": 1.0}, "eval": {"a/b": 2.0}, "x": {"x/": 4.0}}
    assert last_values({"a": series(1.0, 2.0), "b": series()}) == {"a": 2.0}
    assert sparkline(series(*range(8)), 8) == "▁▂▃▄▅▆▇█"
    assert sparkline(series(*range(8)), 4) == "▁▃▆█"
    assert sparkline(series(0.0, 4.0, 2.0, math.nan), 9) == "▁█▅"
    assert sparkline(series(5.0, 5.0), 2) == "▁▁"
    assert sparkline(series(5.0), 3) == "▁"
    gap = Series(numpy.array([0.0, 1.0, 9.0]), numpy.array([0.0, 1.0, 2.0]))
    assert sparkline(gap, 3) == "▁ █"
    assert (sparkline(series(math.nan), 3), sparkline(series(1.0), 0)) == ("", "")
    history = {"a": series(1.0, 2.0), "b": Series(numpy.array([1.0]), numpy.array([3.0]))}
    assert as_csv(history) == "step,a,b\n0,1.0,\n1,2.0,3.0\n"
    assert curve_metric(
        {"rollout/reward_mean": series(1.0, 2.0), "eval/return_mean": series(1.0)}
    ) == ("rollout/reward_mean")
    assert curve_metric({"rollout/reward_mean": series(1.0), "loss": series(1.0, 2.0)}) == (
        "rollout/reward_mean"
    )
    assert curve_metric({}) == ""


def text_of(page: str) -> str:
    return re.sub(r"\|+", "|", re.sub(r"<[^>]+>", "|", page))


def test_a_report_has_the_numbers_of_the_run() -> None:
    latest = {"eval/return_mean": 6.5, "rollout/return_mean": 5.5, "rollout/reward_mean": 0.125}
    run = run_of(
        best=(50, 7.25),
        latest=latest,
        started="2026-11-23T05:00:00+0000",
        ended="2026-11-23T06:02:03+0000",
    )
    text = text_of(render([ReportedRun(run=run, history={})]))
    for row in (
        "|best evaluation|7.25 at step 50|",
        "|last evaluation|6.5|",
        "|training return|5.5|",
        "|environment steps|100 of 100|",
        "|status|finished, took 1:02:03|",
        "|evaluate|rlplug eval 01234567 --episodes 100|",
        "|train on|rlplug resume 01234567 --steps 200|",
    ):
        assert row in text, row
    assert "0.125" not in text
    latest = {"rollout/reward_mean": 0.125, "rollout/regret_total": 3.0, "time/seconds": 50.0}
    bandit = run_of(latest=latest, status="FAILED", about={"steps": 0}, step=0)
    text = text_of(render([ReportedRun(run=bandit, history={})]))
    for row in (
        "|reward|0.125|",
        "|total regret|3|",
        "|environment steps|0|",
        "|status|failed|",
        "|resume|rlplug resume 01234567|",
        "training took|0:50, 0 steps per second|",
    ):
        assert row in text, row


def test_a_run_is_ranked_by_its_best_evaluation_else_by_its_last_headline() -> None:
    assert run_of(best=(1, 2.0), latest={"eval/return_mean": 9.0}).score == 2.0
    both = {"rollout/reward_mean": 1.0, "rollout/return_mean": 3.0}
    assert run_of(latest=both).headline == ("rollout/return_mean", 3.0)
    assert run_of(latest=both).score == 3.0
    assert run_of().score is None
    assert run_of(status="FAILED", reason="error").shown_status == "FAILED (error)"
    assert run_of(status="FAILED").shown_status == "FAILED"
    assert run_of(reason="pruned: at 3").shown_status == "FINISHED (pruned)"
    assert run_of(reason="finished").shown_status == "FINISHED"
    assert (run_of().short, run_of(tracked_id="t").id_in_mlflow) == ("01234567", "t")
    assert run_of().id_in_mlflow == "0123456789"
