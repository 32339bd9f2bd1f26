"""A shell completes what is there: bash itself is asked, with the script that is printed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.shell_completion import BashComplete

import rlplug as library
from rlplug.cli.main import cli

if TYPE_CHECKING:
    from tests.conftest import Outcome

Command = Callable[..., "Outcome"]
Ask = Callable[[str], list[str]]

# What readline does before it calls the function: the line is split at =, : and @, too.
ASK = r"""
rlplug() { "$PYTHON" -m rlplug "$@"; }
export -f rlplug
eval "$(rlplug completion bash)"
COMP_LINE=$1 COMP_POINT=${#1} COMP_WORDBREAKS=$' \t\n"\'><=;|&(:@'
read -ra COMP_WORDS <<< "$(sed 's/\([=:@]\)/ \1 /g' <<< "$1")"
[[ $1 == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_rlplug_completion rlplug 2> >(grep -v compopt >&2)
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def ask(home: Path, tmp_path: Path) -> Ask:
    """What bash offers for a line."""
    environ = {
        **os.environ,
        "PYTHON": sys.executable,
        "RLPLUG_HOME": str(home),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
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
        ("rlplug options ev", ["evaluation"]),
        ("rlplug run --set evaluation.vi", ["evaluation.video="]),
        # Only what follows the part that bash takes for a word of its own.
        ("rlplug run --set evaluation.video=", ["true", "false"]),
        ("rlplug run --set evaluation.video=t", ["true"]),
        ("rlplug run --set evaluation.every=", []),
    ],
)
def test_commands_plugins_and_options_are_completed(
    ask: Ask, line: str, expected: list[str]
) -> None:
    assert ask(line) == expected


def test_options_and_presets_are_those_of_the_algorithm_on_the_line(ask: Ask) -> None:
    assert ask("rlplug run --set clip_r") == []
    for _ in range(2):
        # Found out, and then read from where it is kept.
        assert ask("rlplug run --algo ppo --set clip_r") == ["clip_range=", "clip_range_vf="]
    assert ask("rlplug run --algo ppo --set memory=") == ["none", "lstm", "gru"]
    assert ask("rlplug run --algo ppo --set shared_encoder=") == ["auto", "true", "false"]
    assert "cartpole" in ask("rlplug run --algo ppo --preset ")
    assert ask("rlplug run --algo unknown --set clip_r") == []


PLUGIN = """\
import attrs
from rlplug import Algorithm, option

class Plugin(Algorithm):
    @attrs.frozen(kw_only=True)
    class Config:
        {name}: float = option(1.0, "Something.")
"""


def test_options_are_read_again_when_the_code_of_a_plugin_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "rlplug_ours-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rlplug-ours\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(
        "[rlplug.algorithms]\nfolder = in_folder.inner:Plugin\nfile = in_file:Plugin\n"
    )
    (tmp_path / "in_folder").mkdir()
    (tmp_path / "in_folder" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Python takes another source of the same second and size for the same.
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    shell = BashComplete(cli, {}, "rlplug", "_RLPLUG_COMPLETE")
    files = {"folder": tmp_path / "in_folder" / "inner.py", "file": tmp_path / "in_file.py"}
    for option in ("tempered", "tempering"):
        for name, file in files.items():
            file.write_text(PLUGIN.format(name=option))
            # As in a process of its own.
            for module in ("in_folder", "in_folder.inner", "in_file"):
                sys.modules.pop(module, None)
            for _ in range(2):
                offered = shell.get_completions(["run", "--algo", name, "--set"], "tempe")
                assert [one.value for one in offered] == [option], name
    assert len(list((tmp_path / "cache" / "rlplug").iterdir())) == 2


def test_environments_are_those_that_are_registered(ask: Ask) -> None:
    for _ in range(2):
        assert ask("rlplug run --env LinearB") == ["LinearBandit-v0"]


def test_runs_groups_and_checkpoints_are_completed(ask: Ask, home: Path) -> None:
    assert ask("rlplug show ") == []
    options = {"tracking.enabled": False, "checkpoint.every": 100}
    result = library.run("linucb", steps=200, options=options)
    offered = ask("rlplug resume ")
    assert offered[:2] == ["last", "linucb-LinearBandit-v0-s0"]
    assert len(offered) == 3
    assert offered[2].startswith("linucb-LinearBandit-v0-")
    assert ask(f"rlplug show {result.run_id[:3]}") == [result.run_id[:8]]
    assert ask("rlplug show best:") == ["LinearBandit-v0"]
    assert ask("rlplug eval last@") == ["best", "last", "100", "200"]
    assert ask("rlplug eval last@b") == ["best"]
    assert ask("rlplug eval unknown@") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(shell: str, rlplug: Command) -> None:
    script = rlplug("completion", shell).out
    assert f"_RLPLUG_COMPLETE={shell}_complete" in script
    assert rlplug("completion", "csh").code == 2


def test_nothing_heavy_is_imported_where_it_is_known(ask: Ask, home: Path) -> None:
    script = (
        "import sys; from rlplug.cli.main import cli\n"
        "try: cli(prog_name='rlplug')\n"
        "finally: print([one for one in ('torch', 'mlflow', 'numpy') if one in sys.modules])"
    )
    environ = {
        **os.environ,
        "RLPLUG_HOME": str(home),
        "_RLPLUG_COMPLETE": "bash_complete",
        "COMP_WORDS": "rlplug run --algo linucb --seed 1 --set env",
        "COMP_CWORD": "7",
        "XDG_CACHE_HOME": str(home.parent / "cache"),
    }
    assert ask("rlplug run --algo linucb --set alph") == ["alpha="]
    command = [sys.executable, "-c", script]
    said = subprocess.run(command, env=environ, capture_output=True, text=True).stdout
    assert "env.frame_stack=" in said
    assert said.splitlines()[-1] == "[]"


def test_every_command_that_takes_a_run_completes_it() -> None:
    from rlplug.cli.completion import complete_runs

    takes_runs = 0
    for command in cli.commands.values():
        for one in getattr(command, "commands", {"": command}).values():
            for parameter in one.params:
                if (parameter.metavar or "").strip("[].").startswith("RUN"):
                    takes_runs += 1
                    assert parameter._custom_shell_complete is complete_runs, one.name
    assert takes_runs >= 13
