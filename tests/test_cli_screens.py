"""What commands print of recorded runs and at the end of a run."""

from __future__ import annotations

import io
import json
import signal
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rlplug import Module
from rlplug.cli.child import Link
from rlplug.cli.outcome import finish
from rlplug.cli.output import in_columns, table_lines
from rlplug.runs.result import RunInterrupted, RunResult
from rlplug.runs.signals import Interrupted

Cli = Callable[..., Any]


def run_in(
    home: Path,
    run_id: str,
    *,
    metrics: list[tuple[int, dict[str, float | None]]] | None = None,
    about: dict[str, Any] | None = None,
    status: str = "FINISHED",
    step: int = 100,
    ago: float = 3_600,
    took: float = 62.0,
    pending: bool = False,
    **more: Any,
) -> Path:
    """The folder of a run of an hour ago."""
    folder = home / "work" / run_id
    folder.mkdir(parents=True)
    began = datetime.now().astimezone() - timedelta(seconds=ago)
    started, ended = (
        f"{at:%Y-%m-%dT%H:%M:%S%z}" for at in (began, began + timedelta(seconds=took))
    )
    described = {"algorithm": "walk", "env": "Hall-v0", "steps": 200, **(about or {})}
    facts = {"run_name": f"walk-{run_id[:2]}", "started": started, "about": described, **more}
    facts |= {"uri": "sqlite:///elsewhere.db"} if pending else {}
    (folder / "run.json").write_text(json.dumps(facts))
    state = {"status": status, "step": step, "stop_reason": "error", "started": started}
    state |= {"ended": ended, "attempt": 1, "pending": pending}
    (folder / "status.json").write_text(json.dumps(state))
    lines = [json.dumps({"step": at, "time": 0, "metrics": one}) for at, one in metrics or []]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def test_a_run_is_shown_on_one_screen(home: Path, rlplug: Cli) -> None:
    folder = run_in(
        home,
        "0123456789",
        metrics=[
            (10, {"eval/return_mean": 2.0, "loss": 0.5}),
            (55, {"eval/return_mean": 4.0, "eval/best_return_mean": 4.0, "eval/best_step": 55.0}),
            (100, {"eval/return_mean": 3.0, "rollout/reward_mean": 0.25}),
        ],
        about={"seed": 7, "group": "walk-g", "options": {"algorithm.alpha": "2"}},
        command="rlplug run --algo walk",
        uri="https://***@host",
        experiment_id="3",
        tracked_id="late",
    )
    for step in (10, 20, 30, 40, 55, 60, 70, 80, 90):
        place = folder / "checkpoints" / f"step-{step}"
        place.mkdir(parents=True)
        (place / "manifest.json").write_text(json.dumps({"step": step}))
    (folder / "tags.json").write_text(json.dumps({"rlplug.plugins": "walk 1.0 (rlplug-walk)"}))
    (folder / "plots").mkdir()
    (folder / "plots" / "learning_curve.png").touch()
    (folder / "config.toml").touch()
    assert rlplug("show", "0123").out.splitlines() == [
        "walk-01  0123456789",
        "walk on Hall-v0, seed 7: FINISHED at step 100 of 200, took 1:02, started 1 h ago",
        "",
        "best         4 at step 55 (evaluation)",
        "last         3 at step 100 (evaluation)",
        "curve        ▁█▅  2 to 4",
        "options      alpha=2",
        "group        walk-g",
        "plugins      walk 1.0 (rlplug-walk)",
        "checkpoints  90 (last); 80; 70; 60; 55 (4, best); 40; and 3 more",
        "",
        "metrics  loss 0.5",
        "eval     return_mean 3",
        "rollout  reward_mean 0.25",
        "",
        f"files       {folder}",
        "MLflow      https://host/#/experiments/3/runs/late?workflowType=machine_learning",
        "started by  rlplug run --algo walk",
        "train on    rlplug resume 01234567 --steps 200",
        "run again   rlplug run --like 01234567",
        "evaluate    rlplug eval 01234567",
        "best model  not in MLflow; rlplug promote 01234567@55 NAME logs it",
        'load it     rlplug.load("01234567@55")',
        "serve it    rlplug serve 01234567@55",
        "next: rlplug show 01234567 --open",
    ]
    facts = json.loads(rlplug("show", "last", "--json").out)
    assert facts["best_checkpoint"] == {"step": 55, "model_uri": None}
    assert (facts["return"], facts["best"]) == (4.0, {"step": 55, "return_mean": 4.0})


def test_of_a_run_that_failed_at_once_little_is_shown(home: Path, rlplug: Cli) -> None:
    about = {"algorithm": "", "steps": 0}
    run_in(home, "aaaabbbbcc", about=about, status="FAILED", step=0, ago=30, uri="x")
    out = rlplug("show", "last").out
    assert "FAILED (error) at step 0, took 1:02, started just now" in out
    assert "load it" not in out
    assert out.endswith("next: rlplug resume aaaabbbb\n")
    done = rlplug("show", "last", "--open")
    assert (done.code, done.out) == (2, "")
    assert "report.html" in done.err


def test_what_is_no_number_is_null_in_json(home: Path, rlplug: Cli) -> None:
    metrics: list[tuple[int, dict[str, float | None]]] = [
        (10, {"rollout/reward_mean": 2.0, "loss": None})
    ]
    run_in(home, "aaaa", metrics=metrics, status="RUNNING")
    # On another host, so that its lock may not be seen here.
    (home / "work" / "aaaa" / "run.lock.json").write_text('{"host": "elsewhere", "pid": 7}')
    out = rlplug("show", "last").out
    assert "last         2 at step 10 (rollout/reward_mean)" in out or "2 at step 10" in out
    assert not {"curve", "took", "resume"} & {*out.split()}
    facts = json.loads(rlplug("show", "last", "--json").out)
    assert facts["metrics"] == {"rollout/reward_mean": 2.0, "loss": None}
    assert (facts["return"], facts["best"], facts["checkpoints"]) == (2.0, None, [])


def test_metrics_are_chosen_by_patterns(home: Path, rlplug: Cli) -> None:
    run_in(home, "aaaa", metrics=[(10, {"eval/a": 1.0, "loss": 3.0}), (20, {"eval/b": 2.0})])
    shown = rlplug("show", "last", "--metrics", "eval/*").out
    assert shown == "step,eval/a,eval/b\n10,1.0,\n20,,2.0\n"
    done = rlplug("show", "last", "--metrics", "los", "--metrics", "eval/a")
    assert done.code == 2
    assert "'los'. Did you mean 'loss'?" in done.err


def test_runs_are_listed_with_what_is_left_out_and_what_is_not_in_mlflow(
    home: Path, rlplug: Cli
) -> None:
    best: dict[str, float | None] = {"eval/best_return_mean": 4.0, "eval/best_step": 20.0}
    run_in(home, "aaaa", metrics=[(20, {**best, "eval/return_mean": 3.0})], ago=7_200, pending=True)
    run_in(home, "bbbb", status="FAILED", step=50, ago=3_600)
    run_in(home, "cccc", status="RUNNING", step=150, ago=60, about={"steps": 0})
    told = rlplug("runs", "--limit", "2").out.splitlines()
    assert told[0].split() == ["run", "name", "algorithm", "env", "status", "step", "started"]
    assert told[1].split()[:5] == ["cccc", "walk-cc", "walk", "Hall-v0", "FAILED"]
    assert "FAILED (error)" in told[2]
    assert "25%  50" in told[2]
    assert told[3:] == ["and 1 more", "next: rlplug show cccc"]
    told = rlplug("runs", "--sort", "best").out.splitlines()
    assert "4 @ 20" in told[1]
    assert told[-2:] == ["aaaa is not complete in MLflow", "next: rlplug runs sync"]
    rows = [json.loads(line) for line in rlplug("runs", "--json").out.splitlines()]
    assert [row["run_id"] for row in rows] == ["cccc", "bbbb", "aaaa"]
    assert [row["pending"] for row in rows] == [False, False, True]
    assert (rows[1]["status"], rows[1]["reason"], rows[1]["steps"]) == ("FAILED", "error", 200)
    for since, count in (("90min", 2), ("3h", 3), ("1d", 3), ("2min", 1)):
        assert len(rlplug("runs", "--since", since, "--json").out.splitlines()) == count, since
    assert "did you mean 'Hall-v0'?" in rlplug("runs", "--env", "Hal-v0").out
    assert "none of the 3 runs" in rlplug("runs", "--algo", "zzz").out


def test_where_there_are_no_runs_commands_say_so(home: Path, rlplug: Cli) -> None:
    assert rlplug("runs").out.startswith(f"there are no runs in {home} yet\n")
    assert rlplug("runs", "sync").out.startswith(f"everything in {home} is in MLflow")
    (home / "mlflow.db").unlink()
    done = rlplug("ui", "--host", "0.0.0.0")
    assert done.code == 2
    assert "there are no runs yet" in done.err


def test_sizes_are_shown_and_what_is_removed_is_asked_for(
    home: Path, rlplug: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_in(home, "aaaa")
    (folder / "videos").mkdir()
    (folder / "videos" / "v.mp4").write_bytes(b"x" * 5_000)
    rows = rlplug("runs", "--sizes").out.splitlines()
    assert "videos" in rows[0]
    assert "5.0 kB" in rows[1]
    assert json.loads(rlplug("runs", "--sizes", "--json").out)["run_id"] == "aaaa"
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert rlplug("runs", "rm", "aaaa").code != 0
    assert folder.exists()
    assert rlplug("runs", "rm", "aaaa", "--yes").code == 0
    assert not folder.exists()


# -- tables ----------------------------------------------------------------------------------------


def test_a_table_takes_the_width_that_there_is() -> None:
    rows = [
        {"name": "ppo-CartPole-v1-s0", "empty": "", "score": "500", "note": "three short words"},
        {"name": "x", "empty": "", "score": "1", "note": ""},
    ]

    def table(width: int) -> list[str]:
        return list(
            table_lines(rows, width, numbers=("score",), shortened=("name",), spare=("score",))
        )

    assert table(4000) == [
        "name                score  note",
        "ppo-CartPole-v1-s0    500  three short words",
        "x                       1",
    ]
    assert table(38)[1] == "ppo-Ca…v1-s0    500  three short words"
    assert table(37)[1] == "ppo-CartPole-v1-s0  three short words"
    assert list(table_lines([], 10)) == []
    words = [{"name": "a", "text": "word " * 10}]
    assert max(map(len, table_lines(words, 31))) <= 31
    # No word is lost where one is wider than its column.
    long = [{"name": "a", "text": "see " + "x" * 70}]
    assert "".join(table_lines(long, 40)).count("x") == 71


def test_values_stand_in_columns_or_below_their_names() -> None:
    rows = {"a": "1", "long": "word word"}
    assert list(in_columns(rows, 99)) == ["a     1", "long  word word"]
    assert list(in_columns(rows, 14)) == ["a     1", "long", "  word word"]
    assert list(in_columns({"long": "word " * 6}, 26, wrapped=True)) == [
        "long  word word word word",
        "      word word",
    ]
    assert list(in_columns({}, 9)) == []


# -- the end of a run ------------------------------------------------------------------------------


def result_of(folder: Path, **more: Any) -> RunResult:
    (folder / "run.json").touch()
    values: dict[str, Any] = {
        "run_id": "0123456789",
        "status": "FINISHED",
        "step": 1_000,
        "metrics": {"rollout/reward_mean": 0.5, "time/seconds": 4.0},
        "module": Module(),
        "folder": folder,
        "checkpoints": (500, 1_000),
        "where": ("run 0123456789",),
    }
    return RunResult(**{**values, **more})


def told(result: RunResult, capsys: pytest.CaptureFixture[str]) -> list[str]:
    finish(lambda: result, quiet=False, as_json=False)
    return capsys.readouterr().out.splitlines()


def test_the_end_of_a_run_is_told_in_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = result_of(
        tmp_path,
        metrics={
            "rollout/return_mean": 7.0,
            "rollout/reward_mean": 0.5,
            "eval/return_mean": 6.0,
            "time/seconds": 4.0,
        },
        best=(500, 8.0),
        nonfinite_step=700,
        time_split={"learn": 3.0, "act": 1.0},
        engine="arrays",
        stopped="mean return 8",
    )
    assert told(result, capsys) == [
        "return         7",
        "eval return    6",
        "best eval      8 at step 500 (used by eval and load)",
        "not finite     weights, since step 700",
        "steps          1,000 in 4.0 s (250 per second)",
        "time           learn 75%, act 25%",
        "gradients      arrays",
        "stopped early  mean return 8",
        "run 0123456789",
        "next: rlplug show 01234567",
    ]
    assert not [
        line for line in told(result_of(tmp_path, best=(1_000, 8.0)), capsys) if "best" in line
    ]
    assert "no checkpoint of it" in "".join(told(result_of(tmp_path, best=(400, 8.0)), capsys))


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        ({}, 0, ""),
        ({"checkpoints": (500,)}, 1, "try: free disk space, then rlplug resume 0123456789"),
        ({"checkpoints": ()}, 1, "there is no checkpoint"),
        ({"lost": 1_200}, 1, "1,200 metric values are lost"),
        ({"folder": Path("/nowhere")}, 1, "its folder was deleted"),
    ],
)
def test_a_run_that_is_not_whole_on_the_disk_has_another_exit_code(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: dict[str, Any],
    code: int,
    said: str,
) -> None:
    result = result_of(tmp_path)
    values = {field: getattr(result, field) for field in RunResult.__annotations__}
    made = RunResult(**{**values, **more})
    assert finish(lambda: made, quiet=True, as_json=False) == code
    shown = capsys.readouterr()
    assert (shown.out, bool(shown.err)) == ("", bool(code))
    assert said in shown.err
    assert finish(lambda: made, quiet=True, as_json=True) == code
    assert json.loads(capsys.readouterr().out)["run_id"] == "0123456789"


@pytest.mark.parametrize("status", ["KILLED", "FINISHED"])
def test_an_interrupted_run_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], status: str
) -> None:
    def interrupted() -> RunResult:
        raise RunInterrupted(
            result_of(tmp_path, status=status), Interrupted(signal.SIGTERM)
        ) from ValueError("no")

    assert finish(interrupted, quiet=True, as_json=True) == 143
    shown = capsys.readouterr()
    assert json.loads(shown.out)["status"] == status
    first, second, *_, last = shown.err.splitlines()
    assert first == "rlplug: error: ValueError: no"
    assert "checkpoint of step 1,000" in second
    assert (last == "next: rlplug resume 0123456789") is (status == "KILLED")


class Info:
    """What a reporter reads of a run."""

    participants = ()
    environment = "Hall-v0"
    steps, step, taken = 2_000, 3, 40
    folder = Path("/runs/work/x")

    def progress(self) -> int:
        return self.taken


def test_a_seed_reports_its_start_its_metrics_once_and_its_end() -> None:
    stream = io.BytesIO()
    link = Link(stream)  # type: ignore[arg-type]
    assert link.judge({}) == ""
    link.metrics_reported({"a": 1.0, "b": 1.0})
    link.run_started(Info())  # type: ignore[arg-type]
    link.evaluation_finished({"a": 2.0})
    link.run_finished()
    time.sleep(0.01)
    first, last = (json.loads(line) for line in stream.getvalue().splitlines())
    assert first["folder"] == "/runs/work/x"
    assert (first["steps"], first["step"]) == (2_000, 3)
    assert last == {"step": 40, "metrics": {"a": 2.0, "b": 1.0}}
    assert link.judge({}) == ""
    stream.close()
    link.run_failed()
