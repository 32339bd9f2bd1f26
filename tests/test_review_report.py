"""report.html: what it says, that it needs nothing else, and when it is written."""

from __future__ import annotations

import json
import math
import re
import socket
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import rlplug
from rlplug.quantities import format_number
from rlplug.review.history import Series
from rlplug.review.record import CheckpointRecord, RunAbout, RunRecord
from rlplug.review.report import REPORT, ReportedRun, checkpoints_text, render


def reported(seed: int = 0, **more: Any) -> ReportedRun:
    values = {
        "history": {
            "rollout/return_mean": Series(numpy.arange(3.0), numpy.array([1, math.nan, 3]))
        },
        **more,
    }
    about = RunAbout(
        algorithm="ppo", env="CartPole-v1", seed=seed, options={"algorithm.gamma": "1"}
    )
    run = RunRecord(
        run_id=f"{seed}abc", name=f"ppo-s{seed}", about=about, status="FINISHED", step=9
    )
    return ReportedRun(run=run, **values)


def data_of(page: str) -> Any:
    found = re.search(r'id="data">(.*?)</script>', page)
    assert found is not None
    return json.loads(found[1])


class Links(HTMLParser):
    """Everything that a page would load from elsewhere."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        sources = (value or "" for name, value in attrs if name in ("src", "href"))
        self.found += [one for one in sources if not one.startswith("data:")]


def test_a_report_names_best_options_plugins_checkpoints_and_what_to_do_next() -> None:
    one = reported(
        plugins=["ppo (rlplug-ppo 0.1.0)"],
        checkpoints=[
            CheckpointRecord(step=9, score=5.0, marks=["last"]),
            CheckpointRecord(step=6, score=math.nan),
            CheckpointRecord(step=3, score=7.0, marks=["best"]),
        ],
        command="rlplug run --algo ppo",
    )
    page = render([one])
    text = re.sub(r"<[^>]+>", " ", page)
    for shown in ("ppo on CartPole-v1, seed 0", "gamma=1", "ppo (rlplug-ppo 0.1.0)", "0abc"):
        assert shown in text
    assert "rlplug resume 0abc --steps 18" in text
    rows = re.findall(r"(\d+)\s+(\d+|nan)\s+(best|last)?", text[text.index("Checkpoints") :])[:3]
    assert rows == [("3", "7", "best"), ("9", "5", "last"), ("6", "nan", "")]
    assert Links(page).found == []


def test_the_ranking_names_the_best_and_the_last_checkpoint() -> None:
    kept = [
        CheckpointRecord(step=1_000, score=7.0, marks=["best"]),
        CheckpointRecord(step=9_000, marks=["last"]),
    ]
    lines = checkpoints_text(reported(checkpoints=kept)).splitlines()
    assert lines[2:6] == [
        "| step | return | |",
        "|---:|---:|---|",
        "| 1,000 | 7 | best |",
        "| 9,000 |  | last |",
    ]


def test_the_curves_are_in_the_page_without_values_that_are_not_finite() -> None:
    data = data_of(render([reported()]))
    assert data["runs"][0]["metrics"] == {"rollout/return_mean": [[0, 1, 2], [1.0, None, 3.0]]}
    assert data["training"] == "rollout/return_mean"


def test_long_curves_are_thinned() -> None:
    long = Series(numpy.arange(2500.0), numpy.arange(2500.0))
    data = data_of(render([reported(history={"a": long})]))
    assert data["runs"][0]["metrics"]["a"][0] == list(range(0, 2500, 3))


def test_no_text_can_end_an_element_of_the_page() -> None:
    evil = "</script><script>alert(1)</script>"
    one = reported(history={evil: Series(numpy.ones(1), numpy.ones(1))}, command=evil)
    page = render([one], title=evil)
    assert "alert(1)</script>" not in page
    assert data_of(page)["runs"][0]["metrics"] == {evil: [[1], [1.0]]}


def test_a_video_is_embedded_unless_it_is_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    video = tmp_path / "step-1.mp4"
    video.write_bytes(b"frames")
    assert "data:video/mp4;base64,ZnJhbWVz" in render([reported(video=video)])
    monkeypatch.setattr("rlplug.review.report.LARGEST_VIDEO", 3)
    assert Links(render([reported(video=video)])).found == ["videos/step-1.mp4"]


def test_the_runs_of_a_group_are_listed_and_drawn_by_seed() -> None:
    page = render([reported(0), reported(1)], title="group", table="<p>summary</p>")
    assert [run["label"] for run in data_of(page)["runs"]] == ["seed 0", "seed 1"]
    assert page.index("<p>summary</p>") < page.index("ppo-s1")
    assert page.index("ppo-s1") < page.index("algorithm.gamma") < page.index("rlplug resume group")
    for what, line in (
        ("train on", "resume group --steps 18"),
        ("compare", "compare group OTHER"),
        ("the best", "best group"),
    ):
        assert f"<tr><td>{what}</td><td><code>rlplug {line}</code></td></tr>" in page


def test_of_a_group_the_mean_and_its_interval_are_drawn_over_the_steps_that_all_runs_have() -> None:
    steps = numpy.array([1_234_567.0, 2_345_678.0])
    histories = [
        {"eval/return_mean": Series(steps, numpy.array(values)), **more}
        for values, more in (([1.0, 2.0], {"own": Series(steps, steps)}), ([3.0, 2.0], {}))
    ]
    page = render([reported(seed, history=one) for seed, one in enumerate(histories)])
    assert data_of(page)["training"] == "eval/return_mean"
    assert "ppo on CartPole-v1, 2 seeds; gamma=1" in page
    assert data_of(page)["bands"] == {
        "eval/return_mean": {
            "steps": [1_234_567, 2_345_678],
            "mean": [2.0, 2.0],
            "low": [1.0, 2.0],
            "high": [3.0, 2.0],
        }
    }


def test_the_time_of_a_run_is_split_into_parts_largest_first() -> None:
    seconds = {"step": [1.0, 1.0], "learn": [2.0, 4.0]}
    steps = numpy.arange(2.0)
    history = {
        f"time/{part}_seconds": Series(steps, numpy.array(values))
        for part, values in seconds.items()
    }
    assert "<td>learn 75%, step 25%</td>" in render([reported(history=history)])


def test_a_run_writes_its_report_at_evaluations_and_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLPLUG_HOME", str(tmp_path))
    seen: list[str] = []

    class Watch(rlplug.AddOn):
        """Reads the report while the run is in progress."""

        @rlplug.hookimpl
        def run_started(self, run: Any) -> None:
            self.file = run.folder / REPORT

        @rlplug.hookimpl
        def update_finished(self) -> None:
            if self.file.exists():
                seen.append(self.file.read_text())

    options = {"evaluation.every": 100, "evaluation.episodes": 1}
    result = rlplug.run("a2c", "CartPole-v1", steps=3000, options=options, addons=[Watch()])
    assert "<b>running</b>" in seen[0]
    page = (result.folder / REPORT).read_text()
    assert "<b>finished</b>" in page
    assert f"<td>host</td><td>{socket.gethostname()}</td>" in page
    assert f"torch {torch.__version__}" in page

    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    there = Path(client.download_artifacts(result.run_id, REPORT, str(tmp_path)))
    assert there.read_text() == (result.folder / REPORT).read_text()
    ranking = client.download_artifacts(result.run_id, "checkpoints/README.md", str(tmp_path))
    text = Path(ranking).read_text()
    assert result.best is not None
    assert f"| {result.best[0]:,} | {format_number(result.best[1])} | best" in text
    assert f"| {result.checkpoints[-1]:,} | " in text
    assert text.count("last |") == 1
