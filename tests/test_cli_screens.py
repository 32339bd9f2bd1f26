"""What commands print, to the letter, and which options they take."""

from __future__ import annotations

import io
import json
import signal
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest

from rlplug import Module
from rlplug.cli.child import Link
from rlplug.cli.main import cli
from rlplug.cli.outcome import finish, print_interrupted, print_json, print_result
from rlplug.cli.parameters import is_loopback
from rlplug.cli.process import starting
from rlplug.cli.table import Column, table_lines
from rlplug.cli.terminal import in_columns, print_options
from rlplug.config.options_table import OptionRow
from rlplug.errors import RequestError
from rlplug.runs.result import RunInterrupted, RunResult
from rlplug.runs.signals import Interrupted

Cli = Callable[..., Any]

# -- options ---------------------------------------------------------------------------------------


def commands(command: click.Command = cli, name: str = "") -> Iterator[tuple[str, click.Command]]:
    yield name, command
    for part, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{name} {part}".strip())


OPTIONS = [
    (name, one)
    for name, command in commands()
    for one in command.params
    if isinstance(one, click.Option)
]


@pytest.mark.parametrize(
    ("name", "one"), OPTIONS, ids=[f"{name} {one.opts[-1]}" for name, one in OPTIONS]
)
def test_every_option_takes_what_its_help_says(name: str, one: click.Option) -> None:
    assert one.help
    # A flag takes nothing; texts and numbers say what to type.
    assert one.is_flag or one.metavar or one.type is not click.STRING or "--host" in one.opts
    told = any(word in one.help for word in ("repeatable", "several times")) or one.metavar in (
        "KEY=VALUE",
        "KEY=RANGE",
    )
    assert one.multiple is (told or "may be repeated" in one.help)
    if isinstance(one.default, str | int | float) and one.default != "" and not one.is_flag:
        assert one.show_default is True or name == "plugins check"


def test_every_command_says_what_it_does_and_takes_debug() -> None:
    for name, command in commands():
        assert command.help, name
        if not isinstance(command, click.Group) or name in ("", "runs"):
            assert "--debug" in [opt for one in command.params for opt in one.opts], name
        for one in command.params:
            if "--debug" in one.opts:
                assert not one.expose_value
                assert isinstance(one, click.Option)
                assert one.is_flag


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("run --algo a --jobs 0", "--jobs"),
        ("run --algo a --learners 0", "--learners"),
        ("run --algo a --runners 0", "--runners"),
        ("eval x --episodes 0", "--episodes"),
        ("eval x --seed -1", "--seed"),
        ("serve x --port 65536", "--port"),
        ("ui --port 0", "--port"),
        ("ui --port 65536", "--port"),
        ("runs --limit 0", "--limit"),
        ("runs du --limit 0", "--limit"),
        ("resume x --steps 0", "--steps"),
        ("tune --algo a --jobs 0", "--jobs"),
        ("ablate --algo a --jobs 0", "--jobs"),
        ("ope x --data f --gamma 0", "--gamma"),
        ("ope x --data f --gamma 1.1", "--gamma"),
        ("ope x --data f --samples 1", "--samples"),
        ("ope x --data f --confidence 0.4", "--confidence"),
        ("ope x --data f --confidence 1", "--confidence"),
        ("ope x --data f --switch -1", "--switch"),
        ("ope x --data f --max-weight -1", "--max-weight"),
        ("runs --since yesterday", "neither an age nor a day"),
        ("ope x", "--data"),
        ("compare", "RUN..."),
        ("runs rm", "RUN..."),
        ("show", "RUN"),
        ("promote x", "NAME"),
    ],
)
def test_what_is_out_of_bounds_or_missing_is_refused(rlplug: Cli, line: str, said: str) -> None:
    done = rlplug(*line.split())
    assert (done.code, done.out) == (2, "")
    assert said in done.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("run --algo linucb --jobs 1", "--jobs is of several seeds"),
        ("run --algo linucb --env=", "--env: the value is empty"),
        ("run --algo= --preset= --like=", "--algo, --preset, --like: the value is empty"),
        ("run --algo linucb --init-from=", "--init-from: the value is empty"),
        ("run --algo linucb --resume-or-start=", "--resume-or-start: the value is empty"),
        ("run --like x --algo linucb", "--algo does not fit"),
        ("run --like x --with a", "--with does not fit"),
        ("run --like x --seeds 3", "--seeds does not fit"),
        ("run --like x --preset p", "--preset does not fit"),
        ("run --like x --resume-or-start n", "--resume-or-start does not fit"),
        ("resume x --jobs 1", "--jobs is of several seeds, and 'x' is no group"),
        ("tune --algo linucb --space alpha", "--space takes KEY=RANGE, got 'alpha'"),
    ],
)
def test_what_does_not_go_together_is_refused(
    rlplug: Cli, home: Path, line: str, said: str
) -> None:
    done = rlplug(*line.split())
    assert done.code == 2
    assert said in done.err


def test_without_runs_there_is_nothing_to_serve(rlplug: Cli, home: Path) -> None:
    (home / "mlflow.db").unlink()
    done = rlplug("ui", "--host", "0.0.0.0")
    assert done.code == 2
    assert "there are no runs yet" in done.err


def test_this_machine_alone_is_known_by_three_names() -> None:
    names = ("127.0.0.1", "localhost", "::1", "0.0.0.0", "example.org", "")
    assert [is_loopback(name) for name in names] == [True] * 3 + [False] * 3


# -- runs that were recorded -----------------------------------------------------------------------


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
        "options      algorithm.alpha=2",
        "group        walk-g",
        "plugins      walk 1.0 (rlplug-walk)",
        "checkpoints  90 (last); 80; 70; 60; 55 (4, best); 40; and 3 more",
        "",
        "metrics      loss 0.5",
        "eval         return_mean 3",
        "rollout      reward_mean 0.25",
        "",
        f"files        {folder}",
        "picture      rlplug show 01234567 --open",
        "MLflow       https://host/#/experiments/3/runs/late?workflowType=machine_learning",
        "started by   rlplug run --algo walk",
        "train on     rlplug resume 01234567 --steps 200",
        "evaluate     rlplug eval 01234567",
        "run again    rlplug run --like 01234567",
    ]


def test_of_a_run_that_failed_at_once_little_is_shown(home: Path, rlplug: Cli) -> None:
    about = {"algorithm": "", "steps": 0}
    folder = run_in(home, "aaaabbbbcc", about=about, status="FAILED", step=0, ago=30, uri="x")
    assert rlplug("show", "last").out.splitlines() == [
        "walk-aa  aaaabbbbcc",
        "FAILED (error) at step 0, took 1:02, started just now",
        "",
        "options      the defaults",
        "",
        f"files        {folder}",
        "MLflow       rlplug ui",
        "resume       rlplug resume aaaabbbb",
        "evaluate     rlplug eval aaaabbbb",
    ]
    done = rlplug("show", "last", "--open")
    assert (done.code, done.out) == (2, "")
    assert "has neither report.html nor plots/learning_curve.png yet" in done.err


def test_of_one_value_there_is_no_curve_and_what_is_no_number_is_null(
    home: Path, rlplug: Cli
) -> None:
    run_in(
        home, "aaaa", metrics=[(10, {"rollout/reward_mean": 2.0, "loss": None})], status="RUNNING"
    )
    # Of another host: its lock may not be seen here.
    (home / "work" / "aaaa" / "run.lock.json").write_text('{"host": "elsewhere", "pid": 7}')
    out = rlplug("show", "last").out
    assert "last         2 at step 10 (rollout/reward_mean)" in out
    assert "curve" not in out
    assert "took" not in out
    assert "resume" not in out
    facts = json.loads(rlplug("show", "last", "--json").out)
    assert facts["metrics"] == {"rollout/reward_mean": 2.0, "loss": None}
    assert (facts["return"], facts["best"], facts["checkpoints"]) == (2.0, None, [])


def test_metrics_are_chosen_by_patterns(home: Path, rlplug: Cli) -> None:
    run_in(home, "aaaa", metrics=[(10, {"eval/a": 1.0, "eval/b": 2.0, "loss": 3.0})])
    assert rlplug("show", "last", "--metrics", "eval/*").out == "step,eval/a,eval/b\n10,1.0,2.0\n"
    done = rlplug("show", "last", "--metrics", "los", "--metrics", "eval/a")
    assert done.code == 2
    assert "the run has no metric 'los'. Did you mean 'loss'?" in done.err
    assert "it has: eval/a, eval/b, loss" in done.err


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
    assert "FAILED (error)         25%  50" in told[2]
    assert told[3] == "and 1 more"
    told = rlplug("runs", "--sort", "best").out.splitlines()
    assert "4 @ 20" in told[1]
    assert told[-1] == "aaaa is not complete in MLflow: rlplug runs sync aaaa"
    rows = [json.loads(line) for line in rlplug("runs", "--json").out.splitlines()]
    assert [row["run_id"] for row in rows] == ["cccc", "bbbb", "aaaa"]
    assert rows[2]["best"] == {"step": 20, "return_mean": 4.0}
    assert (rows[2]["pending"], rows[1]["pending"], rows[1]["best"]) == (True, False, None)
    assert (rows[1]["status"], rows[1]["reason"], rows[1]["steps"]) == ("FAILED", "error", 200)
    for since, count in (("90min", 2), ("3h", 3), ("1d", 3), ("1w", 3), ("2min", 1)):
        shown = rlplug("runs", "--since", since, "--json").out.splitlines()
        assert len(shown) == count, since
    none = rlplug("runs", "--env", "Hal-v0").out
    assert none == f"none of the 3 runs in {home} is like that; did you mean 'Hall-v0'?\n"
    assert rlplug("runs", "--algo", "zzz").out == f"none of the 3 runs in {home} is like that\n"


def test_where_there_are_no_runs_commands_say_so(home: Path, rlplug: Cli) -> None:
    assert rlplug("runs").out == f"there are no runs in {home} yet.\n"
    assert rlplug("runs", "sync").out == f"everything in {home} is in MLflow.\n"


def test_groups_are_compared_by_letters_with_steps_counts_and_statuses(
    home: Path, rlplug: Cli
) -> None:
    for run_id, score, step, status in (
        ("aaaa", 1.0, 100, "FINISHED"),
        ("abbb", 3.0, 2_000, "FAILED"),
        ("accc", None, 100, "FINISHED"),
        ("bbbb", 9.0, 50, "FINISHED"),
    ):
        group = f"group-{run_id[0]}"
        about = {"group": group, "seed": ord(run_id[1]), "options": {"alpha": run_id[0]}}
        run_in(
            home,
            run_id,
            metrics=[(10, {"rollout/reward_mean": score})],
            about=about,
            step=step,
            status=status,
        )
    told = rlplug("compare", "group-a", "bbbb").out.splitlines()
    assert told[0] == "by rollout/reward_mean"
    assert told[1].split() == ["run", "runs", "mean", "IQM", "[95%]", "step", "status"]
    assert told[2].split() == [
        "A",
        "group-a",
        "2",
        "of",
        "3",
        "2",
        "2",
        "[1,",
        "3]",
        "100",
        "to",
        "2,000",
        "FINISHED,",
        "FAILED",
    ]
    assert told[3].split() == ["B", "walk-bb", "1", "9", "50", "FINISHED"]
    rows = rlplug("compare", "group-a", "bbbb", "--csv").out.splitlines()
    assert rows[0] == "label,runs,mean,iqm,iqm_low,iqm_high,status,seed,alpha"
    assert rows[1].startswith("group-a,2,2.0,2.0,1.0,3.0,")
    assert rows[2] == "walk-bb,1,9.0,9.0,9.0,9.0,FINISHED,98,b"
    single = rlplug("compare", "aaaa", "bbbb").out.splitlines()
    assert single[1].split() == ["run", "score", "step", "status"]
    plot = home / "p.png"
    assert rlplug("compare", "aaaa", "bbbb", "--json", "--plot", str(plot)).err == (
        f"curves: {plot}\n"
    )


def test_what_is_removed_is_asked_for_and_told_in_bytes(
    home: Path, rlplug: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_in(home, "aaaa")
    (folder / "videos").mkdir()
    (folder / "videos" / "v.mp4").write_bytes(b"x" * 5_000)
    rows = rlplug("runs", "du").out.splitlines()
    assert "videos" in rows[0]
    assert "5.0 kB" in rows[1]
    facts = json.loads(rlplug("runs", "du", "--json").out)
    assert facts["run_id"] == "aaaa"
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert rlplug("runs", "rm", "aaaa").code != 0
    assert folder.exists()
    assert rlplug("runs", "rm", "aaaa", "--yes").code == 0
    assert not folder.exists()


# -- tables ----------------------------------------------------------------------------------------


def test_a_table_takes_the_width_that_there_is_from_left_to_right() -> None:
    columns = [
        Column(heading="n", cells=["abcdefgh", "x"], shortest=4),
        Column(heading="empty", cells=["", ""], rank=1),
        Column(heading="o", cells=["abcdefgh", "y"], shortest=4, cut_end=True),
        Column(heading="r", cells=["1", "22"], right=True),
    ]
    assert list(table_lines(columns, None)) == [
        "n         o          r",
        "abcdefgh  abcdefgh   1",
        "x         y         22",
    ]
    assert list(table_lines(columns, 22))[1] == "abcdefgh  abcdefgh   1"
    assert list(table_lines(columns, 20))[1] == "abcdefgh  abcde…   1"
    assert list(table_lines(columns, 16))[1] == "abc…gh  abc…   1"
    assert list(table_lines(columns, 14))[1] == "ab…h  abc…   1"
    assert list(table_lines(columns, 3))[1] == "ab…h  abc…   1"
    assert list(table_lines([], 10)) == []


def test_values_stand_in_columns_or_below_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"a": "1", "long": "word word"}
    assert list(in_columns(rows)) == ["a     1", "long  word word"]
    monkeypatch.setattr("rlplug.cli.terminal.terminal_width", lambda: 14)
    assert list(in_columns(rows)) == ["a     1", "long", "  word word"]
    assert list(in_columns({"long": "word " * 6}, wrapped=True)) == [
        "long  word word word word",
        "      word word",
    ]
    assert list(in_columns({"": "word word word"})) == ["  word word word"]
    assert list(in_columns({})) == []


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
    print_result(result)
    assert capsys.readouterr().out.splitlines() == [
        "return         7",
        "eval return    6",
        "best eval      8 at step 500 (used by eval and load)",
        "not finite     weights, seen at step 700",
        "steps          1,000 in 4.0 s (250 per second)",
        "time           learn 75%, act 25%",
        "gradients      arrays",
        "stopped early  mean return 8",
        "run 0123456789",
    ]
    print_result(result_of(tmp_path, best=(1_000, 8.0), metrics={"rollout/reward_mean": 0.5}))
    assert capsys.readouterr().out.splitlines() == [
        "reward  0.5",
        "steps   1,000 in 0.0 s",
        "run 0123456789",
    ]
    print_result(result_of(tmp_path, best=(400, 8.0)))
    assert "8 at step 400 (no checkpoint of it)" in capsys.readouterr().out
    print_json(result)
    facts = json.loads(capsys.readouterr().out)
    assert (facts["checkpoint"], facts["best"]) == (1_000, {"step": 500, "return_mean": 8.0})
    assert facts["profile"] == []


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        ({}, 0, ""),
        (
            {"checkpoints": (500,)},
            1,
            "checkpoint of step 500, and it ended at step 1,000.\n"
            "  try: free disk space, then rlplug resume 0123456789\n",
        ),
        ({"checkpoints": ()}, 1, "there is no checkpoint, and it ended at step 1,000."),
        ({"lost": 1_200}, 1, "1,200 metric values are lost."),
        ({"folder": Path("/nowhere")}, 1, "its folder was deleted, and it ended at step 1,000."),
    ],
)
def test_a_run_that_is_not_whole_on_the_disk_has_another_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: dict[str, Any], code: int, said: str
) -> None:
    result = result_of(tmp_path)
    values = {field: getattr(result, field) for field in RunResult.__annotations__}
    made = RunResult(**{**values, **more})
    assert finish(lambda: made, quiet=True, as_json=False) == code
    told = capsys.readouterr()
    assert told.out == ""
    if code:
        assert told.err.startswith("rlplug: error: the run is not complete on disk: ")
    assert said in told.err
    assert finish(lambda: made, quiet=True, as_json=True) == code
    assert json.loads(capsys.readouterr().out)["run_id"] == "0123456789"


def test_an_interrupted_run_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(result: RunResult, cause: Exception | None = None) -> list[str]:
        interrupted = RunInterrupted(result, Interrupted(signal.SIGTERM))
        interrupted.__cause__ = cause
        assert interrupted.exit_code == 143
        print_interrupted(interrupted)
        return capsys.readouterr().err.splitlines()

    killed = result_of(tmp_path, status="KILLED")
    assert told(killed) == [
        "rlplug: interrupted at step 1,000; checkpoint of step 1,000.",
        "run 0123456789",
        "resume it: rlplug resume 0123456789",
    ]
    assert told(result_of(tmp_path, status="KILLED", checkpoints=()))[-1] == (
        "resume it: rlplug resume 0123456789     (from its start)"
    )
    assert told(result_of(tmp_path), ValueError("no"))[:2] == [
        "rlplug: error: ValueError: no",
        "training was complete at step 1,000, its end was interrupted; checkpoint of step 1,000.",
    ]
    assert finish(lambda: _raise(killed), quiet=True, as_json=True) == 143
    assert json.loads(capsys.readouterr().out)["status"] == "KILLED"


def _raise(result: RunResult) -> RunResult:
    raise RunInterrupted(result, Interrupted(signal.SIGTERM))


# -- processes -------------------------------------------------------------------------------------


def test_no_garbage_is_collected_until_a_run_has_started() -> None:
    import gc

    with starting() as start:
        assert not gc.isenabled()
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
        start.run_started()
        assert gc.isenabled()
        assert gc.get_freeze_count() > 1000
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    with pytest.raises(RequestError), starting():
        raise RequestError("x")
    assert gc.isenabled()
    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    try:
        mine = signal.getsignal(signal.SIGUSR1)
        with starting():
            assert signal.getsignal(signal.SIGUSR1) is mine
    finally:
        signal.signal(signal.SIGUSR1, before)


class Info:
    """What a reporter reads of a run."""

    participants = ()
    environment = "Hall-v0"
    steps, step = 2_000, 3
    folder = Path("/runs/work/x")

    def __init__(self) -> None:
        self.taken = 40

    def progress(self) -> int:
        return self.taken


def test_a_seed_reports_its_start_its_metrics_once_and_its_end() -> None:
    stream = io.BytesIO()
    reporter = Link(stream)  # type: ignore[arg-type]
    assert reporter.judge({}) == ""
    reporter.metrics_reported({"a": 1.0, "b": 1.0})
    reporter.run_started(Info())  # type: ignore[arg-type]
    reporter.evaluation_finished({"a": 2.0})
    reporter.answered("pruned")
    assert reporter.judge({"eval/return_mean": 5.0}) == "pruned"
    reporter.run_finished()
    time.sleep(0.01)
    first, judged, last = (json.loads(line) for line in stream.getvalue().splitlines())
    assert first == {
        "folder": "/runs/work/x",
        "title": " on Hall-v0, 2,000 steps",
        "steps": 2_000,
        "step": 3,
    }
    assert judged == {"step": 40, "evaluation": {"eval/return_mean": 5.0}}
    assert last == {"step": 40, "metrics": {"a": 2.0, "b": 1.0}}
    assert reporter.judge({}) == ""
    reporter.run_failed()
    assert json.loads(stream.getvalue().splitlines()[-1]) == {"step": 40, "metrics": {}}
    stream.close()
    reporter.run_failed()


def test_a_word_of_a_help_line_that_is_wider_than_its_column_is_broken_and_not_cut() -> None:
    from rich.console import Console

    written = io.StringIO()
    shown = Console(file=written, width=60, force_terminal=True, color_system=None)
    rows = [OptionRow("alpha", "float", "1.0", "see " + "x" * 70)]
    print_options(shown, rows)
    assert written.getvalue().count("x") == 70
    assert all(len(line) <= 60 for line in written.getvalue().splitlines())
