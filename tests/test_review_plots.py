"""Pictures of runs: the numbers that they show, that texts have room, and what can be drawn."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy
import pytest
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from rlplug.ope.bootstrap import Interval
from rlplug.review.history import Series, history_of
from rlplug.review.plots import (
    band_panel,
    curve_panels,
    draw,
    estimates_figure,
    save,
)

EVALUATION = {"eval/return_mean": 4.0, "eval/return_min": 2.0, "eval/return_max": 30.0}


def series(*values: float) -> Series:
    return Series(numpy.arange(0.0, len(values)), numpy.array(values, dtype=float))


def learning_curve() -> Figure:
    reports: list[tuple[int, dict[str, float]]] = [
        (step * 100, {"rollout/return_mean": -1000.0 - step, "rollout/regret_total": float(step)})
        for step in range(100)
    ]
    best = {**EVALUATION, "eval/best_return_mean": 4.0, "eval/best_step": 5000.0}
    return draw(curve_panels(history_of([*reports, (5000, best)])), "a run", "of a test")


def bands() -> Figure:
    groups = {"one": [series(1.0, 2.0)], "two": [series(1.0, 3.0), series(3.0, 5.0)], "none": []}
    return draw([band_panel(groups, "rollout/return_mean")], "title", "subtitle")


def estimates() -> Figure:
    points = [
        Interval(value=value, low=value / 2, high=value * 2, standard_error=0.1)
        for value in (1.0, math.nan, 2.0)
    ]
    policies, names = {"new": points, "old": points}, ["IPS", "SNIPS", "self-normalized DR"]
    return estimates_figure(names, policies, points[0], "title", "subtitle", "reward")


@pytest.mark.parametrize("figure", [learning_curve(), bands(), estimates()])
def test_all_texts_are_in_the_picture_and_none_covers_another(figure: Figure) -> None:
    width, height = figure.get_size_inches() * figure.dpi
    figure.draw_without_rendering()
    texts = list(figure.texts)
    for axes in figure.axes:
        for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            ticks = axis.get_major_ticks()
            seen = [tick for tick in ticks if min(low, high) <= tick.get_loc() <= max(low, high)]
            texts += [axis.label, *(tick.label1 for tick in seen), *(tick.label2 for tick in seen)]
        texts += axes.texts
    boxes = [
        (one.get_text(), one.get_window_extent())
        for one in texts
        if one.get_text().strip() and one.get_visible()
    ]
    for text, box in boxes:
        assert min(box.x0, box.y0, width - box.x1, height - box.y1) >= 0, text
    for (text, box), (other, covered) in itertools.combinations(boxes, 2):
        shared = Bbox.intersection(box, covered)
        assert shared is None or shared.width < 2 or shared.height < 2, (text, other)


def test_a_learning_curve_has_returns_evaluations_and_regret() -> None:
    first, second = learning_curve().axes
    raw, smooth, evaluated, best = first.get_lines()
    assert (raw.get_alpha() or 1.0) < 1.0
    assert smooth.get_color() == raw.get_color() != evaluated.get_color()
    assert numpy.asarray(best.get_xydata()).tolist() == [[5000.0, 4.0]]
    legend = first.get_legend()
    assert legend is not None
    assert "best: 4 at step 5,000" in [one.get_text() for one in legend.get_texts()]
    assert [one.get_text() for one in first.texts] == ["-1,098", "4"]
    (band,) = first.collections
    assert band.get_datalim(first.transData).intervaly.tolist() == [2.0, 30.0]
    assert numpy.asarray(second.get_lines()[0].get_ydata())[-1] == 99.0


def test_a_moving_average_leaves_gaps_out_and_shrinks_at_the_ends() -> None:
    history = {"rollout/return_mean": series(1.0, 2.0, math.nan, 6.0, *[6.0] * 16)}
    assert curve_panels(history)[0].lines[0].values.tolist() == [1.5, 1.5, 4.0, *[6.0] * 17]


def test_returns_are_drawn_instead_of_rewards_and_nothing_without_both() -> None:
    returns, reward = {"rollout/return_mean": series(8.0)}, {"rollout/reward_mean": series(1.0)}
    assert [panel.name for panel in curve_panels({**returns, **reward})] == [*returns]
    assert [panel.name for panel in curve_panels(reward)] == [*reward]
    assert curve_panels({"rollout/length": series(3.0)}) == []


@pytest.mark.parametrize(
    "values", [[1.0], [math.nan, math.nan], [0.0] * 400, [1e12, -1e12] * 20], ids=str
)
def test_any_numbers_can_be_drawn(tmp_path: Path, values: list[float]) -> None:
    file = tmp_path / "plots" / "curve.png"
    save(draw(curve_panels({"rollout/reward_mean": series(*values)}), "a run", ""), file)
    assert file.read_bytes().startswith(b"\x89PNG")
    assert [other.name for other in file.parent.iterdir()] == ["curve.png"]


def test_groups_are_means_with_bands_at_the_steps_that_all_runs_reached() -> None:
    (axes,) = bands().axes
    first, second = axes.get_lines()
    assert (first.get_label(), second.get_label()) == ("one", "two (2 runs)")
    assert first.get_color() != second.get_color()
    (band,) = axes.collections
    assert band.get_datalim(axes.transData).intervaly.tolist() == [1.0, 5.0]
    one = Series(numpy.array([1.0, 2.0, 3.0, 4.0]), numpy.array([1.0, 2.0, math.nan, 4.0]))
    two = Series(numpy.array([2.0, 4.0, 6.0]), numpy.array([0.0, 2.0, 4.0]))
    (line,) = band_panel({"both": [one, two]}, "x").lines
    assert (line.steps.tolist(), line.values.tolist()) == ([2.0, 4.0], [1.0, 3.0])


def test_estimates_show_their_numbers() -> None:
    (axes,) = estimates().axes
    line, *points = axes.get_lines()
    assert numpy.asarray(line.get_xdata()).tolist() == [1.0, 1.0]
    assert [numpy.asarray(one.get_xdata())[[0, 2]].tolist() for one in points] == [[1.0, 2.0]] * 2
