"""Several seeds: what is asked for, how they share the machine, and what is shown of them."""

from __future__ import annotations

import io
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import click.testing
import numpy
import pytest

from rlplug.cli.seeds import finish_seeds
from rlplug.config.sources import Setting
from rlplug.errors import RequestError
from rlplug.quantities import format_duration
from rlplug.review.record import RunAbout, RunRecord
from rlplug.review.statistics import interquartile_mean
from rlplug.runs.request import Request
from rlplug.runs.seeds.arguments import arguments_of, resume_arguments
from rlplug.runs.seeds.asked import Share, parse_seeds, refuse_seed_option, seeds_text, share
from rlplug.runs.seeds.carry_out import exit_code
from rlplug.runs.seeds.display import LiveSeeds, PlainSeeds, seed_line
from rlplug.runs.seeds.group import Group
from rlplug.runs.seeds.several import MakeDisplay, SeedsOutcome
from rlplug.runs.seeds.state import SeedState
from rlplug.runs.seeds.summary import Summary
from rlplug.tracking.location import default_folder

# -- what is asked for --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("5", (0, 1, 2, 3, 4)),
        ("1", (0,)),
        ("0-4", (0, 1, 2, 3, 4)),
        ("3-3", (3,)),
        ("1,2,5", (1, 2, 5)),
        ("7, 2", (7, 2)),
        ("0-2,9", (0, 1, 2, 9)),
    ],
)
def test_seeds_are_a_number_of_them_a_range_or_a_list(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "x", "1,", "4-0", "-3", "1.5", "1 2", "0-4-5"])
def test_another_form_is_answered_with_those_that_are_expected(text: str) -> None:
    with pytest.raises(RequestError, match=r"expected 5 \(for 0 to 4\), 0-4, or 1,2,5") as error:
        parse_seeds(text)
    assert error.value.exit_code == 2


def test_no_seed_too_many_and_one_seed_twice_are_refused() -> None:
    with pytest.raises(RequestError, match="no seed was named"):
        parse_seeds("0")
    with pytest.raises(RequestError, match="at most 1,000 seeds"):
        parse_seeds("0-1000000000")
    with pytest.raises(RequestError, match="at most 1,000 seeds"):
        parse_seeds("0-499,500,501-1000")
    assert parse_seeds("0-499,500,501-999") == tuple(range(1000))
    with pytest.raises(RequestError, match="seed 2 is given 2 times"):
        parse_seeds("0-3,2")


def test_seeds_that_were_parsed_are_written_in_their_shortest_form() -> None:
    assert [seeds_text(parse_seeds(text)) for text in ("5", "2,1,5,6")] == ["0-4", "1-2,5-6"]


def test_a_seed_beside_the_seeds_is_refused_and_that_of_a_file_is_overridden(
    tmp_path: Path,
) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[run]\nseed = 3\n")
    refuse_seed_option(Request(config=file))
    with pytest.raises(RequestError, match="--seed and --seeds are both given"):
        refuse_seed_option(Request(flags={"run": {"seed": 1}}))
    with pytest.raises(RequestError, match=r"--set run\.seed and --seeds"):
        refuse_seed_option(Request(settings=(Setting("run.seed", 1),)))


# -- the machine --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cores", "seeds", "jobs", "threads", "expected"),
    [
        (8, 5, 0, 0, (5, 1)),
        (8, 20, 0, 0, (8, 1)),
        (8, 2, 0, 0, (2, 4)),
        (8, 5, 2, 0, (2, 4)),
        (8, 5, 0, 4, (2, 4)),
        (2, 5, 0, 4, (1, 4)),
        (2, 5, 4, 0, (4, 1)),
    ],
)
def test_jobs_times_threads_are_at_most_the_cores_unless_more_are_asked_for(
    cores: int, seeds: int, jobs: int, threads: int, expected: tuple[int, int]
) -> None:
    request = Request(settings=(Setting("num_threads", threads),) if threads else ())
    assert attrs.astuple(share(request, range(seeds), jobs, cores)) == expected


def test_fewer_than_no_jobs_are_refused() -> None:
    with pytest.raises(RequestError, match="jobs must be at least 1, got -1"):
        share(Request(), range(3), -1)


def test_a_process_gets_no_more_threads_than_its_share_and_fewer_if_the_variable_says_so() -> None:
    each = Share(jobs=2, threads=4)
    assert each.environ({"A": "b"}) == {"A": "b", "OMP_NUM_THREADS": "4"}
    assert each.environ({"OMP_NUM_THREADS": "16"}) == {"OMP_NUM_THREADS": "4"}
    assert each.environ({"OMP_NUM_THREADS": "1"}) == {"OMP_NUM_THREADS": "1"}


def test_a_request_as_arguments_is_read_back_as_the_same_request_with_its_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlplug.cli import run as command

    asked = Request(
        config=tmp_path / "run.toml",
        flags={
            "run": {"algorithm": "a2c", "env": "CartPole-v1", "steps": 600, "addons": ["b", "a"]},
            "scale": {"engine": "ray", "runners": 2},
            "tracking": {"tags": {"team": "a=b c"}},
        },
        settings=(
            Setting("learning_rate", [[0, 1e-3], [600, 0.0]]),
            Setting("net", "relu"),
            Setting("text", "true"),
            Setting("on", True),
            Setting("env.options", {"a b": [1, float("inf")]}),
        ),
    )
    (tmp_path / "run.toml").touch()
    seen: list[Any] = []
    monkeypatch.setattr("rlplug.runs.request.find_plugins", lambda layers, registry: 1 / 0)
    monkeypatch.setattr("rlplug.runs.request.layers_of", seen.append)
    arguments = arguments_of(asked, 3)
    assert arguments[0] == "run"
    click.testing.CliRunner().invoke(command.run, arguments[1:])
    (read,) = seen
    assert read.config == asked.config
    assert read.settings == asked.settings
    assert read.flags == {**asked.flags, "run": {**asked.flags["run"], "seed": 3}}


def test_runs_that_are_named_get_the_seed_into_their_names() -> None:
    asked = Request(flags={"run": {}, "tracking": {"run_name": "night"}})
    assert arguments_of(asked, 4) == ("run", "--seed", "4", "--resume-or-start", "night-s4")


def test_a_resumed_seed_gets_the_settings_and_the_steps() -> None:
    asked = Request(settings=(Setting("gamma", 0.9),))
    arguments = resume_arguments("abc", asked, steps=500, allow_drift=True)
    assert " ".join(arguments) == "resume abc --steps 500 --set gamma=0.9 --allow-drift"


# -- what is shown ------------------------------------------------------------------------------


def half_way(seed: int = 3) -> SeedState:
    state = SeedState(seed=seed, status="running")
    state.report({"folder": "/runs/x", "title": "a2c", "steps": 30_000, "step": 0})
    metrics = {"rollout/return_mean": -1183.4, "rollout/reward_mean": -6.0}
    best = {"eval/best_return_mean": 210.54, "eval/best_step": 12_000.0}
    state.report({"step": 13_500, "metrics": {**metrics, **best}})
    return state


def test_a_line_has_what_fits_into_the_terminal() -> None:
    state = half_way()
    state._since -= 60.0
    assert seed_line(state, 100, 2) == (
        "seed  3   45%  ━━━━━───────  13,500/30,000  return -1,183  best 210.5 @ 12,000  1:13 left"
    )
    assert seed_line(state, 60, 2) == "seed  3   45%  return -1,183  best 210.5  1:13 left"


def test_a_seed_that_waits_starts_or_has_ended_says_so() -> None:
    assert seed_line(SeedState(seed=0), 60, 1) == "seed 0  waiting"
    assert seed_line(SeedState(seed=0, status="running"), 60, 1) == "seed 0  starting"
    ended = half_way()
    ended.status = "interrupted"
    assert seed_line(ended, 60, 1) == "seed 3   45%  return -1,183  best 210.5  interrupted"
    closing = half_way()
    closing.step = 30_000
    assert seed_line(closing, 60, 1).endswith("closing")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [60, 100])
def test_a_terminal_shows_a_line_per_seed_of_which_none_is_broken(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "10")
    terminal = Terminal()
    display = LiveSeeds(terminal, "a2c, seeds 0-4")
    states = [half_way(0), half_way(1), *(SeedState(seed=seed) for seed in (2, 3, 4))]
    display.update(states)
    drawn = terminal.getvalue()
    display.close()
    lines = [line for line in drawn.splitlines() if "seed " in line]
    assert len(lines) == 5
    assert all(len(line) <= columns + len("\x1b[?25l") for line in lines)


def test_a_low_terminal_shows_the_seeds_in_progress_and_counts_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "5")
    terminal = Terminal()
    display = LiveSeeds(terminal, "a2c, seeds 0-19")
    display.update([half_way(0), half_way(1), *(SeedState(seed=seed) for seed in range(2, 20))])
    display.close()
    assert "18 waiting" in terminal.getvalue()
    assert "seed  1 " in terminal.getvalue()
    # Below the title, the last line is the count's and all others are of seeds.
    terminal = Terminal()
    display = LiveSeeds(terminal, "a2c, seeds 0-19")
    display.update([half_way(seed) for seed in range(20)])
    display.close()
    drawn = terminal.getvalue()
    assert [seed for seed in range(20) if f"seed {seed:>2} " in drawn] == [0, 1, 2]
    assert "17 running" in drawn


@pytest.mark.parametrize(
    ("lines", "shown", "counted"),
    [
        (9, ["seed 0", "seed 1", "seed 2", "seed 3", "seed 4", "seed 5", "seed 6", "seed 7"], ""),
        (8, ["seed 0", "seed 1", "seed 2", "seed 3", "seed 5"], "1 finished, 2 waiting"),
        (6, ["seed 0", "seed 1", "seed 2", "seed 3"], "1 finished, 1 running, 2 waiting"),
        (3, ["seed 0"], "4 running, 1 finished, 2 waiting"),
    ],
)
def test_of_more_seeds_than_a_terminal_has_lines_as_many_in_progress_are_shown_as_fit(
    lines: int, shown: list[str], counted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", str(lines))
    states = [half_way(seed) for seed in range(6)]
    states[4].status = "finished"
    states += [SeedState(seed=seed) for seed in (6, 7)]
    terminal = Terminal()
    display = LiveSeeds(terminal, "a2c")
    display.update(states)
    drawn = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", terminal.getvalue()).splitlines()
    display.close()
    # One line is left for the cursor.
    assert [line[:6] for line in drawn if line.startswith("seed ")] == shown
    assert ([line for line in drawn if "waiting" in line and "seed" not in line] or [""]) == [
        counted
    ]


def with_checkpoint(root: Path, seed: int) -> SeedState:
    manifest = root / str(seed) / "checkpoints" / "step-1" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.touch()
    state = SeedState(seed=seed, status="interrupted")
    state.report({"folder": str(root / str(seed)), "title": "t", "steps": 9, "step": 1})
    return state


def ending_in(outcome: SeedsOutcome) -> Callable[[MakeDisplay], SeedsOutcome]:
    return lambda display: outcome


@pytest.mark.parametrize(
    ("saved", "told"), [([], "no seed"), ([3], "seed 3"), ([3, 5], "seeds 3, 5")]
)
def test_of_interrupted_seeds_is_told_which_have_a_checkpoint_and_how_they_go_on(
    saved: list[int],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("RLPLUG_HOME", raising=False)
    states = [with_checkpoint(tmp_path, seed) for seed in saved]
    states.append(SeedState(seed=9, status="interrupted"))
    root = tmp_path / "my runs"
    for where, command in (
        (root, f"RLPLUG_HOME='{root}' rlplug resume g"),
        (default_folder(), "rlplug resume g"),
    ):
        outcome = SeedsOutcome(states=states, ended_by=signal.SIGTERM, group=Group(where, "g"))
        assert finish_seeds(ending_in(outcome), quiet=True, as_json=False) == 143
        assert capsys.readouterr().err == (
            f"rlplug: interrupted; of {told} there is a checkpoint.\n"
            f"  go on with all of them: {command}\n"
        )


def test_seeds_that_are_interrupted_before_they_have_begun_leave_nothing_to_go_on_with(
    capsys: pytest.CaptureFixture[str],
) -> None:
    outcome = SeedsOutcome(states=[SeedState(seed=0)], ended_by=signal.SIGINT, group=None)
    assert finish_seeds(ending_in(outcome), quiet=False, as_json=True) == 130
    assert capsys.readouterr() == ("", "rlplug: interrupted before any seed had begun.\n")


def test_without_a_terminal_there_is_a_line_per_fifth_of_a_seed() -> None:
    file = io.StringIO()
    display = PlainSeeds(file, "a2c, seeds 3")
    state = half_way()
    for step in range(0, 30_001, 100):
        state.step = step
        display.update([state])
    state.status = "finished"
    display.ended(state)
    lines = file.getvalue().splitlines()
    assert lines[0] == "a2c, seeds 3"
    assert len(lines) == 1 + 6 + 1
    assert lines[-1].endswith("finished")


def test_times_left_are_minutes_and_seconds_and_hours_where_there_are_any() -> None:
    assert [format_duration(seconds) for seconds in (42.4, 11230)] == ["0:42", "3:07:10"]


# -- how it ends --------------------------------------------------------------------------------


def ended(*statuses: str, code: int = 1) -> list[SeedState]:
    return [
        SeedState(seed=seed, status=status, title="begun", code=0 if status == "finished" else code)  # type: ignore[arg-type]
        for seed, status in enumerate(statuses)
    ]


def test_one_exit_code_tells_of_all_seeds() -> None:
    assert exit_code(ended("finished", "finished"), 0) == 0
    assert exit_code(ended("finished", "failed"), 0) == 1
    assert exit_code(ended("finished", "interrupted"), 15) == 143
    assert exit_code(ended("interrupted", "waiting"), 2) == 130
    # A seed that was refused beside others that ran is one that failed.
    assert exit_code(ended("finished", "failed", code=2), 0) == 1
    assert exit_code([SeedState(seed=0, status="failed", code=2)], 0) == 2


def test_a_process_that_a_signal_ended_is_said_to_have_been() -> None:
    state = SeedState(seed=0, status="running")
    state.end(-9, ending=False)
    assert (state.status, state.error) == ("failed", ["its process was ended by SIGKILL."])


# -- the summary --------------------------------------------------------------------------------


def of_seeds(returns: list[float], status: str = "FINISHED") -> Summary:
    runs = [
        RunRecord(
            run_id=f"{seed}" * 32,
            name="",
            about=RunAbout(seed=seed),
            status=status,
            step=600,
            best=(400, value),
            latest={"eval/return_mean": value - 10.0, "rollout/reward_mean": 1.0},
        )
        for seed, value in enumerate(returns)
    ]
    return Summary(group="g", runs=tuple(runs))


def test_the_summary_has_mean_and_interquartile_mean_with_intervals_of_each_measure() -> None:
    summary = of_seeds([0.0, 10.0, 20.0, 90.0])
    best, final = summary.measures
    assert (best.name, best.mean.estimate, best.iqm.estimate) == ("best_return", 30.0, 15.0)
    assert (final.name, final.mean.estimate) == ("final_return", 20.0)
    assert best.mean.low < 30.0 < best.mean.high
    assert summary.metrics["summary/best_return_mean"] == 30.0
    assert summary.metrics["summary/iqm"] == 15.0
    assert summary.metrics["summary/iqm_low"] == best.iqm.low
    assert float(interquartile_mean(numpy.array([0.0, 10.0, 20.0, 90.0]))) == 15.0


def test_the_summary_is_of_the_seeds_that_finished_and_names_how_many() -> None:
    finished, failed = of_seeds([10.0, 20.0]), of_seeds([99.0], "FAILED")
    late = attrs.evolve(failed.runs[0], about=RunAbout(seed=2))
    summary = Summary(group="g", runs=(*finished.runs, late), errors={2: "ArithmeticError: x"})
    assert summary.measures[0].values == (10.0, 20.0)
    text = "\n".join(summary.lines(100))
    assert "2 of 3 seeds" in text
    assert "seed 2: ArithmeticError: x" in text


def test_bandits_are_measured_by_reward_and_regret() -> None:
    (run,) = of_seeds([1.0]).runs
    latest = {"rollout/reward_mean": 0.5, "rollout/regret_total": 30.0}
    summary = Summary(group="g", runs=(attrs.evolve(run, best=None, latest=latest),))
    assert [(one.name, one.values) for one in summary.measures] == [
        ("reward", (0.5,)),
        ("regret", (30.0,)),
    ]


@pytest.mark.parametrize("columns", [50, 60, 100])
def test_the_table_fits_into_the_terminal(columns: int) -> None:
    lines = list(of_seeds([-1183.4, 20.0, 3000.0]).lines(columns))
    assert max(map(len, lines)) <= columns
    assert lines[1].split()[:2] == ["0", "FINISHED"]
    assert "-1,183 @ 400        -1,193" in lines[1]
    assert ("600" in lines[1]) == (columns > 50)


# -- the command line ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seeds", "2", "--seed", "1"], "--seed and --seeds are both given"),
        (["--seeds", "2-1"], "expected 5 (for 0 to 4), 0-4, or 1,2,5, got '2-1'"),
        (["--jobs", "2"], "--jobs is of several seeds"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_with_exit_code_2(
    rlplug: Any, options: list[str], message: str
) -> None:
    refused = rlplug("run", "--algo", "linucb", *options)
    assert refused.code == 2
    assert message in refused.err
    assert refused.out == ""
