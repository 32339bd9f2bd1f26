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

import rlplug
from rlplug.quantities import format_number
from rlplug.review.history import RunDetails, Series
from rlplug.review.record import CheckpointRecord, RunAbout, RunRecord
from rlplug.review.report import LARGEST_VIDEO, REPORT, checkpoints_text, render


def run_of(**more: Any) -> RunRecord:
    about = RunAbout(algorithm="ppo", env="Hall-v0", steps=9, options={"algorithm.gamma": "1"})
    values = {"name": "ppo-s0", "about": about, "status": "FINISHED", "step": 9, **more}
    return RunRecord(run_id="0abc", **values)


def page_of(run: RunRecord | None = None, **more: Any) -> str:
    names = ("machine", "texts", "pictures")
    given = {name: more.pop(name, {}) for name in names}
    return render(run or run_of(), RunDetails(**{"history": {}, **more}), **given)


def text_of(page: str) -> str:
    return re.sub(r"\|+", "|", re.sub(r"<[^>]+>", "|", page))


class Links(HTMLParser):
    """Everything that a page would load from elsewhere."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        sources = (value or "" for name, value in attrs if name in ("src", "href"))
        self.found += [one for one in sources if not one.startswith("data:")]


KEPT = [
    CheckpointRecord(step=1_000),
    CheckpointRecord(step=2_000, score=3.0),
    CheckpointRecord(step=3_000, score=9.0),
    CheckpointRecord(step=4_000, marks=["last"]),
    CheckpointRecord(step=5_000, score=3.0, marks=["best"]),
]


def test_a_report_has_results_options_plugins_checkpoints_and_what_to_do_next() -> None:
    latest = {"eval/return_mean": 6.5, "rollout/regret_total": 3.0, "time/seconds": 3.0}
    times = {"started": "2026-11-23T05:00:00+0000", "ended": "2026-11-23T06:02:03+0000"}
    page = page_of(
        run_of(best=(50, 7.25), latest=latest, **times),
        plugins=["ppo (rlplug-ppo 0.1.0)"],
        checkpoints=KEPT,
        command="rlplug run --algo ppo",
    )
    text = text_of(page)
    for row in (
        "ppo on Hall-v0, seed 0",
        "|status|finished, took 1:02:03|",
        "|environment steps|9 of 9|",
        "|best evaluation|7.25 at step 50|",
        "|last evaluation|6.5|",
        "|total regret|3|",
        "|training|0:03, 3 steps per second|",
        "|algorithm.gamma|1|",
        "|ppo (rlplug-ppo 0.1.0)|",
        "|5,000|3|best|3,000|9|2,000|3|4,000|last|1,000|",
        "|started by|rlplug run --algo ppo|",
        "|train on|rlplug resume 0abc --steps 18|",
    ):
        assert row in text, row
    assert Links(page).found == []
    failed = text_of(page_of(run_of(status="FAILED")))
    assert "|status|failed|" in failed
    assert "|resume|rlplug resume 0abc|" in failed


def test_the_ranking_has_the_best_first_and_the_unevaluated_last_newest_first() -> None:
    text = checkpoints_text(run_of(), RunDetails(history={}, checkpoints=KEPT))
    steps = re.findall(r"^\| ([\d,]+) \|", text, re.MULTILINE)
    assert steps == ["5,000", "3,000", "2,000", "4,000", "1,000"]


def test_evaluations_are_listed_newest_first_with_their_spread_as_far_as_it_is_known() -> None:
    steps = numpy.array([1000.0, 2000.0])
    history = {
        "eval/return_mean": Series(steps, numpy.array([1.5, math.nan])),
        "eval/return_min": Series(steps[:1], numpy.array([-1.0])),
    }
    assert "|2,000|nan|1,000|1.5|-1|" in text_of(page_of(history=history))


def test_no_text_can_end_an_element_of_the_page() -> None:
    evil = "</pre><script>alert(1)</script>"
    page = page_of(run_of(name=evil), command=evil, texts={evil: evil}, machine={evil: evil})
    assert "<script" not in page


def test_pictures_and_videos_are_embedded_unless_they_are_large_or_gone(tmp_path: Path) -> None:
    kinds = {"png": "image/png", "mp4": "video/mp4"}
    pictures = {kind: tmp_path / f"of.{kind}" for kind in kinds}
    for kind, file in pictures.items():
        file.write_bytes(kind.encode())
    page = page_of(pictures={**pictures, "gone": tmp_path / "gone.mp4"})
    for kind, name in kinds.items():
        assert f"data:{name};base64,{base64.b64encode(kind.encode()).decode()}" in page
    assert "gone" not in page
    assert Links(page).found == []
    pictures["mp4"].write_bytes(bytes(LARGEST_VIDEO + 1))
    assert Links(page_of(pictures=pictures)).found == [f"{tmp_path.name}/of.mp4"]


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
