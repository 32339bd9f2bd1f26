"""Results as data: histories, plots, short texts, HTML and progress in notebooks, `rlplug.runs`."""

from __future__ import annotations

import io
import shutil
import xml.etree.ElementTree as ElementTree
from datetime import datetime, timedelta
from pathlib import Path

import attrs
import pytest

import rlplug
from rlplug.quantities import format_number
from rlplug.review.report import notebook_html

OFF = {"tracking.enabled": False}


@pytest.fixture
def result(home: Path) -> rlplug.RunResult:
    options = {**OFF, "evaluation.episodes": 2, "evaluation.every": 100}
    return rlplug.run("a2c", "CartPole-v1", steps=400, options=options)


def test_a_result_has_the_history_of_its_metrics_as_arrays_and_as_a_frame(
    result: rlplug.RunResult,
) -> None:
    history = result.history()
    steps, values = history["eval/return_mean"]
    assert steps.tolist() == [120, 200, 320, 400]
    assert values[-1] == result.metrics["eval/return_mean"]
    frame = result.history(frame=True)
    assert frame.index.name == "step"
    assert frame["eval/return_mean"].dropna().tolist() == values.tolist()
    assert set(frame.columns) == set(history)


def test_a_result_is_plotted_as_a_figure_of_matplotlib(result: rlplug.RunResult) -> None:
    figure = result.plot()
    picture = io.BytesIO()
    figure.savefig(picture)
    assert picture.getvalue().startswith(b"\x89PNG")
    # By this, notebooks show it.
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["return mean"]


def test_the_policy_of_a_result_is_loaded_and_evaluated(result: rlplug.RunResult) -> None:
    assert result.load().predict([[0.0] * 4]) is not None
    assert len(result.evaluate(episodes=3).returns) == 3


def test_the_text_of_a_result_is_one_short_line(result: rlplug.RunResult) -> None:
    assert result.best is not None
    step, score = result.best
    text = repr(result)
    assert text.startswith(f"<RunResult {result.run_id[:8]}: FINISHED at step 400, best ")
    assert f"at step {step}, in {result.folder}>" in text
    assert "\n" not in text
    (run,) = rlplug.runs()
    told = f"<run {result.run_id[:8]} a2c-CartPole-v1-s0: FINISHED at step 400"
    assert repr(run) == f"{told}, best {format_number(score)} at step {step}>"
    assert repr(attrs.evolve(run, best=None)) == f"{told}>"


def test_a_notebook_shows_a_table_and_the_curve_of_a_result(result: rlplug.RunResult) -> None:
    shown = result._repr_html_()
    assert shown is not None
    assert "FINISHED at step 400" in shown
    (curve,) = ElementTree.fromstring(shown).iter("img")
    assert curve.attrib["src"].startswith("data:image/png;base64,")
    (run,) = rlplug.runs()
    assert run.headline is not None
    table = ElementTree.fromstring(run._repr_html_())
    cells = ["".join(cell.itertext()) for cell in table.iter() if cell.tag in ("th", "td")]
    step, score = run.best or (0, 0.0)
    value, metric = format_number(run.headline[1]), run.headline[0]
    assert dict(zip(cells[::2], cells[1::2], strict=True)) == {
        "status": "FINISHED at step 400",
        "best": f"{format_number(score)} at step {step}",
        "last": f"{value} ({metric})",
        "options": "evaluation.every=100 evaluation.episodes=2",
        "run": run.run_id,
        "folder": str(result.folder),
    }
    shutil.rmtree(result.folder)
    assert result._repr_html_() is None
    with pytest.raises(rlplug.RequestError, match="is no longer the folder of run"):
        result.history()


def test_what_a_notebook_shows_is_escaped() -> None:
    shown = notebook_html("<b>", {"a": "<script>", "b": ""}, b"png")
    assert "&lt;b&gt;" in shown
    assert "<script>" not in shown
    assert shown.count("<tr>") == 1


def test_runs_are_listed_in_python_with_their_metrics_and_policies(home: Path) -> None:
    for env, seed in (("LinearBandit-v0", 0), ("LinearBandit-v0", 1), ("FeatureBandit-v0", 0)):
        rlplug.run("linucb", env, steps=60, seed=seed, options=OFF)
    assert [run.about.seed for run in rlplug.runs(env="linear*")] == [1, 0]
    assert len(rlplug.runs(algo="linucb", status="finished")) == 3
    assert rlplug.runs(status="failed") == []
    assert rlplug.runs(since=datetime.now() + timedelta(hours=1)) == []
    run = rlplug.runs(env="FeatureBandit-v0", sort_by="best", root=home)[0]
    assert run.best is None
    assert run.history()["rollout/reward_mean"].steps[-1] == 60
    assert run.plot().axes
    assert run.load().step == 60
