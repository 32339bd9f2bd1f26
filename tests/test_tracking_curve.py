"""The learning curve: which numbers it shows, and that it can be drawn whatever they are."""

import math
from pathlib import Path

import numpy
import pytest

from rlplug.tracking.curve import _smooth, draw_curve, panels_of
from rlplug.tracking.journal import Report


def report(step: int, **metrics: float) -> Report:
    return Report(step, 0, {f"rollout/{name}": value for name, value in metrics.items()})


def test_reward_comes_first_and_a_total_of_regret_beside_it() -> None:
    reports = [
        report(step, reward_mean=step / 2, regret_mean=1.0, regret_total=3.0 * step)
        for step in (2, 1)
    ]
    reward, regret = panels_of(reports)
    assert (reward.title, reward.steps.tolist(), reward.values.tolist()) == (
        "reward mean",
        [1.0, 2.0],
        [0.5, 1.0],
    )
    assert (regret.name, regret.values.tolist()) == ("rollout/regret_total", [3.0, 6.0])


def test_evaluations_are_drawn_beside_the_reward_with_their_spread() -> None:
    evaluated = Report(4, 0, {"eval/return_mean": 5.0, "eval/return_std": 1.0})
    (panel,) = panels_of([report(2, reward_mean=1.0), evaluated])
    assert panel.evaluated.tolist() == [[4.0, 5.0, 1.0]]


def test_where_episodes_go_on_their_returns_are_drawn_instead_of_rewards() -> None:
    evaluated = Report(4, 0, {"eval/return_mean": 5.0})
    reports = [report(2, reward_mean=1.0), report(3, reward_mean=1.0, return_mean=8.0), evaluated]
    (panel,) = panels_of(reports)
    assert (panel.title, panel.steps.tolist(), panel.values.tolist()) == ("return mean", [3], [8])
    assert panel.evaluated.tolist() == [[4.0, 5.0, 0.0]]


def test_a_run_without_reward_and_regret_has_no_panels() -> None:
    assert panels_of([report(1, length=3.0)]) == []


def test_a_moving_average_leaves_gaps_out_and_shrinks_at_the_ends() -> None:
    values = numpy.array([1.0, 2.0, math.nan, 6.0])
    assert _smooth(values).tolist() == [1.5, 1.5, 4.0, 6.0]


@pytest.mark.parametrize(
    "values",
    [[1.0], [math.nan, math.nan], [0.0] * 400, [1e12, -1e12] * 20],
    ids=["one point", "nothing finite", "constant", "huge"],
)
def test_any_numbers_can_be_drawn(tmp_path: Path, values: list[float]) -> None:
    reports = [report(step, reward_mean=value) for step, value in enumerate(values)]
    file = tmp_path / "plots" / "curve.png"
    draw_curve(panels_of(reports), "a run", "of a test", file)
    assert file.read_bytes().startswith(b"\x89PNG")
    assert [other.name for other in file.parent.iterdir()] == ["curve.png"]
