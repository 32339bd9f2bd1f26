"""The commands and options of docs/interruptions.md are those that there are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Outcome

Command = Callable[..., "Outcome"]
PAGE = (Path(__file__).parent.parent / "docs" / "interruptions.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
LINES = [re.split(r"\s{2,}", line)[0] for block in BLOCKS for line in block.splitlines()]
SETTINGS = [line for line in LINES if line.startswith("--set")]
COMMANDS = [line for line in LINES if line.startswith("rlplug")]


@pytest.mark.parametrize("line", SETTINGS)
def test_every_option_of_the_page_is_accepted(line: str, rlplug: Command, home: Path) -> None:
    done = rlplug("run", "--algo", "ppo", "--env", "CartPole-v1", *shlex.split(line), "--dry-run")
    assert done.code == 0, done.err


def test_every_option_named_in_the_text_exists(rlplug: Command) -> None:
    named = set(re.findall(r"--set ((?:\w+\.)+\w+)=", PAGE))
    listed = rlplug("plugins", "show", "all").out
    section = ""
    known = set()
    for line in listed.splitlines():
        if line.startswith("["):
            section = line[1 : line.index("]")]
        elif line.startswith("  "):
            known.add(f"{section}.{line.split()[0]}")
    assert len(named) > 10
    assert named <= known


def test_the_commands_of_the_page_do_what_it_says(rlplug: Command, store_root: Path) -> None:
    assert len(COMMANDS) == 4
    assert rlplug("run", "--algo", "linucb", "--steps", "96").code == 0
    for line in COMMANDS:
        arguments = shlex.split(line.replace("RUN_ID", "last").replace("200000", "128"))[1:]
        if arguments[0] == "run":
            arguments += ["--steps", "64"]
        done = rlplug(*arguments)
        assert done.code == 0, (line, done.err)


def test_exit_codes_are_those_of_the_page(rlplug: Command, store_root: Path) -> None:
    rows = re.findall(r"^\| ([^|]+) \|.*\| ([^|]*) \|$", PAGE, re.M)
    codes = dict(rows)
    assert codes["the last step, or a limit"] == "0"
    assert rlplug("run", "--algo", "linucb", "--steps", "64").code == 0
    assert codes["wrong options, an unknown run"] == "2"
    assert rlplug("resume", "unknown").code == 2
    assert rlplug("run", "--algo", "linucb", "--set", "alpha=-1").code == 2
