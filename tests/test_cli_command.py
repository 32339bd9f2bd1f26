"""What the command line says to an option given twice, and to words of other tools."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


def said(rlplug: Cli, line: str) -> str:
    done = rlplug(*line.split())
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err
    return str(done.err)


@pytest.mark.parametrize(
    ("line", "twice"),
    [
        ("run --algo good --seed 1 --seed 2", "Option '--seed' is given 2 times."),
        ("run --algo good --algo good", "Option '--algo' is given 2 times."),
        ("run --quiet --quiet --quiet", "Option '--quiet' is given 3 times."),
        ("run --seed=1 --algo good --seed=1", "Option '--seed' is given 2 times."),
        ("run --algo good --with scale --with scale", "Option '--with scale' is given 2 times."),
        ("run --algo good --set gamma=0 --set gamma=0", "Option '--set gamma=0' is given 2 times."),
        ("run --algo good --set gamma=0 --set gamma=1", "gamma   is given twice: set it once"),
        ("run --algo good --steps 5 --set run.steps=5", "is the same option as '--steps': set one"),
        ("run --algo good --steps 5 --set steps=6", "is the same option as '--steps': set one"),
        ("run --algo good --env X --set run.env=Y", "is the same option as '--env': set one"),
        ("run --algo good --set run.algorithm=good", "is the same option as '--algo': set one"),
        ("run --algo good --tag a=1 --tag a=2", "the tag 'a' is given twice."),
        (
            "run --algo good --tag a=1 --set tracking.tags.a='1'",
            "is the same option as '--tag': set one",
        ),
        ("eval x --episodes 1 --episodes 2", "Option '--episodes' is given 2 times."),
        ("ui --port 5001 --port 5002", "Option '--port' is given 2 times."),
        ("options --debug --debug", "Option '--debug' is given 2 times."),
        ("plugins list --json --json", "Option '--json' is given 2 times."),
        ("plugins hooks --markdown --markdown", "Option '--markdown' is given 2 times."),
        ("plugins check good --only a --only a", "Option '--only a' is given 2 times."),
        ("plugins --debug --debug list", "Option '--debug' is given 2 times."),
    ],
)
def test_an_option_that_is_given_twice_is_refused(
    rlplug: Cli, installed: Path, line: str, twice: str
) -> None:
    assert twice in rlplug(*line.split()).err
    assert rlplug(*line.split()).code == 2


def test_an_option_may_be_repeated_with_another_value(rlplug: Cli, installed: Path) -> None:
    line = "run --algo good --set gamma=0 --set double=false --tag a=1 --tag b=1 --dry-run"
    assert rlplug(*line.split()).code == 0


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("run good", "rlplug run --algo good"),
        ("run CartPole-v1", "rlplug run --env CartPole-v1"),
        ("run --algo good ALE/Pong-v5", "rlplug run --env ALE/Pong-v5"),
        ("run mine.toml", "rlplug run --config mine.toml"),
        ("run --algo good gamma=0.5", "rlplug run --set gamma=0.5"),
        ("run --algo good --device cpu", "--set compute.device=VALUE"),
        ("run --algo good --num-envs 4", "--set sampling.num_envs=VALUE"),
        ("run --algo good --lr 1", "--set learning_rate=VALUE"),
        ("run --algorithm good", "--algo NAME"),
        ("run --total-timesteps 9", "--steps N"),
        ("run --name monday", "--set tracking.run_name=NAME"),
        ("train --algo good", "rlplug run"),
        ("list", "rlplug plugins list"),
        ("info good", "rlplug plugins show"),
        ("good", "rlplug run --algo good"),
        ("evla x", "rlplug eval"),
        ("plugins lst", "rlplug plugins list"),
    ],
)
def test_a_word_that_is_not_known_here_is_answered_with_the_one_that_is(
    rlplug: Cli, installed: Path, line: str, instead: str
) -> None:
    lines = said(rlplug, line).splitlines()
    assert lines[0].startswith(("rlplug: error: No such", "rlplug: error: Got unexpected"))
    assert lines[1] == f"  try: {instead}"
    assert lines[2].startswith("  see: rlplug ")


def test_an_option_that_is_almost_a_flag_may_also_be_the_algorithm_s(
    rlplug: Cli, installed: Path
) -> None:
    error = said(rlplug, "run --algo good --sed 1")
    assert "No such option '--sed'. Did you mean '--seed'?" in error
    assert "for an option of the algorithm: --set sed=VALUE" in error


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        # click itself calls `--env` and `--video` similar.
        ("eval last --device cpu", ["  see: rlplug eval --help"]),
        (
            "resume last --device cpu",
            ["  try: --set compute.device=VALUE", "  see: rlplug resume --help"],
        ),
    ],
)
def test_an_option_is_only_called_similar_if_it_is(
    rlplug: Cli, installed: Path, line: str, rest: list[str]
) -> None:
    assert said(rlplug, line).splitlines() == [
        "rlplug: error: No such option '--device'.",
        *rest,
    ]


def test_a_word_that_is_like_no_other_gets_no_suggestion(rlplug: Cli, installed: Path) -> None:
    assert "try:" not in said(rlplug, "xyzzy")


@pytest.mark.parametrize(
    "line",
    [
        "run --algo goood",
        "run --algo good --with skale",
        "plugins show goood",
        "plugins check good goood",
        "eval mondya",
    ],
)
def test_a_wrong_name_is_answered_before_torch_is_imported(
    site: Path, tmp_path: Path, line: str
) -> None:
    run = tmp_path / "work" / "0123" / "run.json"
    run.parent.mkdir(parents=True)
    run.write_text('{"run_name": "monday"}')
    script = (
        "import atexit, sys\n"
        "from rlplug.cli import main\n"
        "heavy = {'torch', 'gymnasium', 'mlflow', 'good_plugin'}\n"
        "atexit.register(lambda: print(sorted(heavy & set(sys.modules))))\n"
        "main(sys.argv[1:])\n"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", script, *line.split()],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(site), "RLPLUG_HOME": str(tmp_path)},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (done.returncode, done.stdout) == (2, "[]\n")
    assert "Did you mean" in done.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5
