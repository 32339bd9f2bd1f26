"""Runs of groups as files and records, for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlplug.review.record import RunAbout, RunRecord
from rlplug.runs.groups.result import Row
from rlplug.runs.recorded import RecordedRun


def run_in(
    root: Path, run_id: str, seed: int, status: str = "FINISHED", second: int = 0, **about: Any
) -> Path:
    folder = root / "work" / run_id
    folder.mkdir(parents=True)
    described = {"algorithm": "walk", "env": "Hall-v0", "seed": seed, "group": "g", **about}
    started = f"2026-11-23T05:00:0{second}+0000"
    facts = {"run_name": run_id, "started": started, "about": described}
    (folder / "run.json").write_text(json.dumps(facts))
    state = {"status": status, "step": 9, "stop_reason": "", "started": started, "ended": ""}
    (folder / "status.json").write_text(json.dumps({**state, "attempt": 1, "pending": False}))
    (folder / "config.toml").write_text(f"# {run_id}")
    return folder


def record(seed: int, best: float | None, **more: Any) -> RunRecord:
    values = {"status": "FINISHED", "step": 1_000, **more}
    return RunRecord(
        run_id=f"{seed}" * 10,
        name="",
        about=RunAbout(seed=seed),
        best=None if best is None else (400, best),
        **values,
    )


def trial(number: int, status: str, score: float | None, **values: Any) -> Row:
    run = RecordedRun.of(record(number, score))
    return Row(number=number, status=status, score=score, options=values, runs=(run,))
