"""The learning curve: which numbers it shows, and that it can be drawn whatever they are."""

import math
from pathlib import Path

import numpy
import pytest

from rlplug.review.band import on_common_steps
from rlplug.review.curve import curve_figure, draw_curve, panels_of
from rlplug.review.history import Series, history_of
from rlplug.review.record import BEST_RETURN, BEST_STEP
from rlplug.review.statistics import bootstrap_rows, mean_interval

Report = tuple[int, dict[str, float]]


def report(step: int, **metrics: float) -> Report:
    return step, {f"rollout/{name}": value for name, value in metrics.items()}


def test_reward_comes_first_and_a_total_of_regret_beside_it() -> None:
    reports = [
        report(step, reward_mean=step / 2, regret_mean=1.0, regret_total=3.0 * step)
        for step in (2, 1)
    ]
    reward, regret = panels_of(history_of(reports))
    assert (reward.name, reward.steps.tolist(), reward.values.tolist()) == (
        "rollout/reward_mean",
        [1.0, 2.0],
        [0.5, 1.0],
    )
    assert (regret.name, regret.values.tolist()) == ("rollout/regret_total", [3.0, 6.0])


def test_evaluations_are_drawn_beside_the_reward_with_their_spread() -> None:
    evaluated = (4, {"eval/return_mean": 5.0, "eval/return_min": 3.0, "eval/return_max": 6.0})
    (panel,) = panels_of(history_of([report(2, reward_mean=1.0), evaluated]))
    assert panel.evaluated.tolist() == [[4.0, 5.0, 3.0, 6.0]]


def test_where_episodes_go_on_their_returns_are_drawn_instead_of_rewards() -> None:
    evaluated = (4, {"eval/return_mean": 5.0})
    reports = [report(2, reward_mean=1.0), report(3, reward_mean=1.0, return_mean=8.0), evaluated]
    (panel,) = panels_of(history_of(reports))
    assert (panel.name, panel.steps.tolist(), panel.values.tolist()) == (
        "rollout/return_mean",
        [3],
        [8],
    )
    assert panel.evaluated.tolist() == [[4.0, 5.0, 5.0, 5.0]]


def test_numbers_are_written_as_everywhere_else() -> None:
    reports = [report(step, return_mean=-1000.0 - step) for step in range(100)]
    best = {"eval/return_mean": -1183.4, BEST_RETURN: -1183.4, BEST_STEP: 50.0}
    figure = curve_figure(panels_of(history_of([*reports, (50, best)])), "run", "")
    (axes,) = figure.axes
    legend = axes.get_legend()
    assert legend is not None
    assert "best: -1,183 at step 50" in [one.get_text() for one in legend.get_texts()]
    assert "-1,183" in [one.get_text() for one in axes.texts]
    assert axes.yaxis.get_major_formatter()(-1200.0) == "-1,200"
    assert axes.yaxis.get_major_formatter()(-0.0) == "0"


def test_a_run_without_reward_and_regret_has_no_panels() -> None:
    assert panels_of(history_of([report(1, length=3.0)])) == []


def test_a_moving_average_leaves_gaps_out_and_shrinks_at_the_ends() -> None:
    values = [1.0, 2.0, math.nan, 6.0, *[6.0] * 16]
    reports = [report(step, return_mean=value) for step, value in enumerate(values)]
    (panel,) = panels_of(history_of(reports))
    assert panel.smooth.tolist() == [1.5, 1.5, 4.0, *[6.0] * 17]


@pytest.mark.parametrize(
    "values",
    [[1.0], [math.nan, math.nan], [0.0] * 400, [1e12, -1e12] * 20],
    ids=["one point", "nothing finite", "constant", "huge"],
)
def test_any_numbers_can_be_drawn(tmp_path: Path, values: list[float]) -> None:
    reports = [report(step, reward_mean=value) for step, value in enumerate(values)]
    file = tmp_path / "plots" / "curve.png"
    draw_curve(panels_of(history_of(reports)), "a run", "of a test", file)
    assert file.read_bytes().startswith(b"\x89PNG")
    assert [other.name for other in file.parent.iterdir()] == ["curve.png"]


def test_runs_are_drawn_at_the_steps_that_all_of_them_reached() -> None:
    first = Series(numpy.array([1.0, 2.0, 3.0, 4.0]), numpy.array([1.0, 2.0, math.nan, 4.0]))
    second = Series(numpy.array([2.0, 4.0, 6.0]), numpy.array([0.0, 2.0, 4.0]))
    steps, rows = on_common_steps([first, second])
    assert steps.tolist() == [2.0, 4.0]
    assert rows.tolist() == [[2.0, 4.0], [0.0, 2.0]]
    assert on_common_steps([])[1].shape == (0, 0)


def test_a_band_is_the_interval_of_each_column() -> None:
    rows = numpy.array([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]])
    low, high = bootstrap_rows(rows)
    interval = mean_interval([0.0, 1.0, 2.0])
    assert (low[0], high[0]) == pytest.approx((interval.low, interval.high))
    assert (low[1], high[1]) == (1.0, 1.0)
