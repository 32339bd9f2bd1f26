"""report.html: what it says, that it needs nothing else, and when it is written."""

from __future__ import annotations

import base64
import math
import re
import socket
import time
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


def test_the_ranking_has_the_best_first_and_the_unevaluated_last_newest_first() -> None:
    kept = [
        CheckpointRecord(step=1_000),
        CheckpointRecord(step=2_000, score=3.0),
        CheckpointRecord(step=3_000, score=9.0),
        CheckpointRecord(step=4_000, marks=["last"]),
        CheckpointRecord(step=5_000, score=3.0, marks=["best"]),
    ]
    lines = checkpoints_text(reported(checkpoints=kept)).splitlines()
    assert lines[2:9] == [
        "| step | return | |",
        "|---:|---:|---|",
        "| 5,000 | 3 | best |",
        "| 3,000 | 9 |  |",
        "| 2,000 | 3 |  |",
        "| 4,000 |  | last |",
        "| 1,000 |  |  |",
    ]


def test_evaluations_are_listed_newest_first_with_their_spread_as_far_as_it_is_known() -> None:
    steps = numpy.array([1000.0, 2000.0])
    history = {
        "eval/return_mean": Series(steps, numpy.array([1.5, math.nan])),
        "eval/return_min": Series(steps[:1], numpy.array([-1.0])),
    }
    page = render([reported(history=history)])
    row = "<tr><td>{}</td><td>{}</td><td>{}</td><td></td></tr>"
    assert row.format("2,000", "nan", "") + row.format("1,000", "1.5", "-1") in page


def test_no_text_can_end_an_element_of_the_page() -> None:
    evil = "</pre><script>alert(1)</script>"
    one = reported(command=evil, texts={"all options": evil}, machine={evil: evil})
    assert "<script" not in render([one], title=evil)


def test_pictures_and_videos_are_embedded_unless_they_are_large_or_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {"png": "image/png", "gif": "image/gif", "mp4": "video/mp4"}
    pictures = {kind: tmp_path / f"of.{kind}" for kind in kinds}
    for kind, file in pictures.items():
        file.write_bytes(kind.encode())
    one = reported(pictures={**pictures, "gone": tmp_path / "gone.mp4"})
    page = render([one])
    for kind, name in kinds.items():
        assert f"data:{name};base64,{base64.b64encode(kind.encode()).decode()}" in page
    assert "gone" not in page
    assert Links(page).found == []
    monkeypatch.setattr("rlplug.review.report.LARGEST_VIDEO", 2)
    assert Links(render([one])).found == [f"{tmp_path.name}/of.{kind}" for kind in kinds]


def test_the_runs_of_a_group_are_listed_by_seed_after_its_summary(tmp_path: Path) -> None:
    (tmp_path / "band.png").write_bytes(b"band")
    pictures = {"Curve": tmp_path / "band.png"}
    runs = [reported(0), reported(1)]
    page = render(runs, title="group", table="<p>summary</p>", pictures=pictures)
    parts = ("2 seeds; gamma=1", "<p>summary</p>", "YmFuZA==", "ppo-s1", "algorithm.gamma")
    places = [page.index(part) for part in parts]
    assert places == sorted(places)
    for what, line in (
        ("train on", "resume group --steps 18"),
        ("compare", "compare group OTHER"),
        ("the best", "best group"),
    ):
        assert f"<tr><td>{what}</td><td>rlplug {line}</td></tr>" in page


def test_a_run_writes_its_report_at_evaluations_and_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLPLUG_HOME", str(tmp_path))
    monkeypatch.setattr("rlplug.tracking.report_file.CURVE_SECONDS", 0.0)
    seen: list[str] = []

    class Watch(rlplug.AddOn):
        """Reads the report while the run is in progress."""

        @rlplug.hookimpl
        def run_started(self, run: Any) -> None:
            self.file = run.folder / REPORT

        @rlplug.hookimpl
        def update_finished(self, step: int) -> None:
            """After the first evaluation, wait for the report."""
            deadline = time.monotonic() + 20
            while step > 200 and not seen:
                assert time.monotonic() < deadline
                time.sleep(0.02)
                seen.extend([self.file.read_text()] if self.file.exists() else [])

    options = {"evaluation.every": 100, "evaluation.episodes": 1}
    result = rlplug.run("a2c", "CartPole-v1", steps=3000, options=options, addons=[Watch()])
    assert "<td>running</td>" in seen[0]
    assert "data:image/png;base64," in seen[0]
    page = (result.folder / REPORT).read_text()
    assert "<td>finished, took " in page
    curve = (result.folder / "plots" / "learning_curve.png").read_bytes()
    assert base64.b64encode(curve).decode() in page
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
