"""A shell completes what is there: bash itself is asked, with the script that is printed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

import rlplug as library
from rlplug.cli.completion import complete_runs
from rlplug.cli.main import cli

if TYPE_CHECKING:
    from tests.conftest import Outcome

Command = Callable[..., "Outcome"]
Ask = Callable[[str], list[str]]

ASK = r"""
eval "$(rlplug completion bash)"
read -ra COMP_WORDS <<< "$1"
[[ $1 == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_rlplug_completion rlplug 2> >(grep -v compopt >&2)
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def ask(home: Path) -> Ask:
    """What bash offers for a line."""
    environ = {
        **os.environ,
        # The script asks the command that is installed beside this Python.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "RLPLUG_HOME": str(home),
    }

    def offered(line: str) -> list[str]:
        done = subprocess.run(
            ["bash", "-c", ASK, "ask", line], env=environ, capture_output=True, text=True
        )
        assert done.stderr == ""
        return done.stdout.split()

    return offered


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("rlplug resu", ["resume"]),
        ("rlplug runs r", ["rm"]),
        ("rlplug completion ", ["bash", "zsh", "fish"]),
        ("rlplug run --algo linu", ["linucb"]),
        ("rlplug plugins show ev", ["evaluation"]),
        ("rlplug run --set evaluation.vi", ["evaluation.video"]),
        ("rlplug run --env LinearB", ["LinearBandit-v0"]),
    ],
)
def test_commands_plugins_options_and_environments_are_completed(
    ask: Ask, line: str, expected: list[str]
) -> None:
    assert ask(line) == expected


def test_runs_and_groups_are_completed(ask: Ask, home: Path) -> None:
    result = library.run("linucb", steps=20, options={"tracking.enabled": False})
    offered = ask("rlplug resume l")
    assert offered[:2] == ["last", "linucb-LinearBandit-v0-s0"]
    assert offered[2].startswith("linucb-LinearBandit-v0-")
    assert ask(f"rlplug show {result.run_id[:3]}") == [result.run_id]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(shell: str, rlplug: Command) -> None:
    assert f"_RLPLUG_COMPLETE={shell}_complete" in rlplug("completion", shell).out


def test_every_command_that_takes_a_run_completes_it() -> None:
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        for one in getattr(command, "commands", {"": command}).values():
            for parameter in one.params:
                if (parameter.metavar or "").strip("[].").startswith("RUN"):
                    assert parameter._custom_shell_complete is complete_runs, one.name
