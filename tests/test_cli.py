from __future__ import annotations

import datetime
import json
import math
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from rlplug.config import options_table
from rlplug.config.sections import CORE_SECTIONS
from rlplug.hooks import reference

Cli = Callable[..., Any]
ROOT = Path(__file__).parent.parent


def python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, **options
    )


# -- what is installed --------------------------------------------------------------------------


def test_list_shows_name_package_status_and_summary(rlplug: Cli, installed: Path) -> None:
    done = rlplug("plugins", "list")
    assert done.code == 0
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert "good rlplug-good 0.1.0 ok A plugin for a test" in lines
    assert "future rlplug-future 0.9.0 unfit needs rlplug<0.10,>=0.9, this is 0.1.0" in lines
    assert "twin 2 packages clash twin-one 0.1.0, twin-two 0.1.0" in lines
    assert "ADD-ON PACKAGE STATUS" in lines


def test_list_as_json_holds_the_same(rlplug: Cli, installed: Path) -> None:
    rows = {row["name"]: row for row in json.loads(rlplug("plugins", "list", "--json").out)}
    assert rows["scale"]["kind"] == "addon"
    assert rows["good"]["packages"][0] == {
        "distribution": "rlplug-good",
        "version": "0.1.0",
        "class": "good_plugin:Good",
        "summary": "A plugin for a test",
    }
    assert rows["twin"]["status"] == "clash"


def test_requirements_are_pins(rlplug: Cli, installed: Path) -> None:
    assert "rlplug-scale==0.1.0" in rlplug("plugins", "list", "--requirements").out.splitlines()


def test_listing_and_help_import_nothing_heavy(site: Path) -> None:
    script = (
        "import sys, atexit\n"
        "from rlplug.cli import main\n"
        "heavy = {'torch', 'gymnasium', 'mlflow', 'numpy', 'good_plugin', 'raises_plugin'}\n"
        "told = lambda: print('imported', sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
        "atexit.register(told)\n"
        "main(sys.argv[1:])\n"
    )
    light = (
        ["--help"],
        ["plugins", "list"],
        ["plugins", "hooks"],
        ["run", "--help"],
        ["options"],
        ["version"],
    )
    for command in light:
        done = python("-c", script, *command, env={"PYTHONPATH": str(site)})
        assert (done.returncode, done.stderr) == (0, "imported []\n"), command
        assert done.stdout


def test_show_has_everything_to_use_a_plugin(rlplug: Cli, installed: Path) -> None:
    done = rlplug("plugins", "show", "good")
    assert done.code == 0
    assert "algorithm 'good' (rlplug-good 0.1.0)" in done.out
    assert "good_plugin:Good" in done.out
    assert "Learns well enough for a test." in done.out
    assert "  build\n" in done.out
    words = [line.split() for line in done.out.splitlines()]
    typed = ["float", "or", "schedule,", "at", "least", "0"]
    assert ["learning_rate", *typed, "0.1", "Step", "size."] in words
    assert '[run]\nalgorithm = "good"\nenv = "LinearBandit-v0"\n' in done.out
    assert "[algorithm]\nlearning_rate = 0.1\n" in done.out
    assert "# sampling.num_envs = 4" in done.out


def test_the_toml_that_show_prints_runs(rlplug: Cli, installed: Path, tmp_path: Path) -> None:
    shown = rlplug("plugins", "show", "good").out
    path = tmp_path / "run.toml"
    path.write_text(shown[shown.index("[run]") :])
    assert rlplug("run", "--config", str(path), "--dry-run").code == 0


def test_show_of_an_add_on_says_how_it_is_set(rlplug: Cli, installed: Path) -> None:
    assert "[addons.scale]\nscale = 1.0\n" in rlplug("plugins", "show", "scale").out


def test_options_tells_what_every_option_of_the_core_does(rlplug: Cli) -> None:
    done = rlplug("options")
    assert done.code == 0
    lines = done.out.splitlines()
    assert (
        "[evaluation]  Evaluation with greedy episodes in separate environments, and early stop."
        in lines
    )
    listed = [line.split() for line in lines]
    for kind in CORE_SECTIONS.values():
        for row in options_table.rows(kind):
            assert [row.name, *row.type.split(), *row.default.split(), *row.help.split()] in listed
    assert not [line for line in lines if line != line.rstrip()]
    only = rlplug("options", "checkpoint").out
    assert "[checkpoint]" in only
    assert "[run]" not in only
    wrong = rlplug("options", "evalution")
    assert wrong.code == 2
    assert "Did you mean 'evaluation'?" in wrong.err


# -- run, as far as checking goes ---------------------------------------------------------------


def test_dry_run_shows_options_their_origin_and_the_order(rlplug: Cli, installed: Path) -> None:
    done = rlplug(
        "run", "--algo", "good", "--with", "scale", "--set", "gamma=0.5", "--seed", "3", "--dry-run"
    )
    assert done.code == 0
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert "gamma = 0.5 # --set" in lines
    assert "seed = 3 # command line" in lines
    assert "num_envs = 4 # default of good" in lines
    assert "double = true # default" in lines
    assert "add-on 'scale' (rlplug-scale 0.1.0)" in lines
    assert "build good" in lines
    assert "postprocess_gradients scale" in lines


def test_below_the_options_a_dry_run_shows_plugins_hooks_and_memory(
    rlplug: Cli, installed: Path
) -> None:
    given = ("--algo", "dqn", "--env", "CartPole-v1", "--with", "scale", "--dry-run")
    done = rlplug("run", *given, "--set", "buffer_size=1000")
    assert (done.code, done.err) == (0, "")
    _, *parts = re.split("\n\n(plugins|hooks, in call order|memory)\n", done.out)
    assert parts[::2] == ["plugins", "hooks, in call order", "memory"]
    plugins, hooks, memory = (part.splitlines() for part in parts[1::2])
    assert [line.split("'")[:2] for line in plugins] == [
        ["  algorithm ", "dqn"],
        ["  add-on ", "scale"],
    ]
    assert f"  {'build':<32} dqn" in hooks
    assert f"  {'postprocess_gradients':<32} scale" in hooks
    assert len(memory) == 1
    assert "1,000" in memory[0]


def test_a_dry_run_prints_toml_whatever_keys_and_values_are(
    rlplug: Cli, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def takes_all(**given: Any) -> gymnasium.Env[Any, Any]:
        return gymnasium.make("rlplug.bandits:LinearBandit-v0")

    spec = gymnasium.envs.registration.EnvSpec("TakesAll-v0", takes_all)
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    settings = [
        "env.start=2024-01-01",
        "env.table={a=[1,{b=nan}]}",
        "env.low=-inf",
    ]
    given = [part for text in settings for part in ("--set", text)]
    given += ["--env", spec.id]
    tags = ("--tag", 'a.b="c"', "--tag", "who=Zoë")
    done = rlplug("run", "--algo", "good", *tags, *given, "--dry-run")
    assert done.code == 0
    read = tomllib.loads(done.out.partition("\nplugins\n")[0])
    assert read["tracking"]["tags"] == {"a.b": '"c"', "who": "Zoë"}
    assert 'who = "Zoë"' in done.out
    assert read["env"]["start"] == datetime.date(2024, 1, 1)
    assert str(read["env"]["table"]) == "{'a': [1, {'b': nan}]}"
    assert read["env"]["low"] == -math.inf


IDLE = [
    part
    for option in ("episodes=0", "patience=2", "video=true")
    for part in ("--set", f"evaluation.{option}")
]


def refused(rlplug: Cli, *arguments: str) -> str:
    done = rlplug(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.told.startswith("rlplug: error: ")
    assert "Traceback" not in done.err
    return str(done.err)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], "no algorithm was named."),
        (["run", "--algo", "goood"], "unknown algorithm 'goood'. Did you mean 'good'?"),
        (["run", "--algo", "twin"], "algorithm 'twin' is provided by 2 packages:"),
        (
            ["run", "--algo", "raises"],
            "ModuleNotFoundError: No module named 'no_such_package_anywhere'",
        ),
        (["run", "--algo", "exits"], "SystemExit: 7"),
        (["run", "--algo", "future"], "it needs rlplug<0.10,>=0.9, this is rlplug 0.1.0."),
        (["run", "--algo", "stranger"], "is not a subclass of rlplug.Algorithm."),
        (["run", "--algo", "typo"], "Did you mean 'compute_loss_for_module'?"),
        (["run", "--algo", "scale"], "'scale' is an add-on, not an algorithm."),
        (["run", "--algo", "good", "--with", "usurper"], "would replace the algorithm's 'build'."),
        (["run", "--algo", "good", "--with", "good"], "'good' is an algorithm, not an add-on."),
        (["run", "--algo", "good", "--set", "gamma"], "--set takes KEY=VALUE, got 'gamma'."),
        (
            ["run", "--algo", "good", "--set", "gama=1"],
            "gama   unknown option, did you mean 'gamma'?",
        ),
        (["run", "--algo", "good", "--init-from", ""], "--init-from: the value is empty."),
        (["run", "--algo", "", "--env", ""], "--algo, --env: the value is empty."),
        (
            ["run", "--algo", "good", *IDLE],
            "patience and video would have no effect with episodes = 0, which disables evaluation",
        ),
        (["run", "--algo", "good", "--steps", "0"], "run.steps   must be at least 1, got 0"),
        (["run", "--algo", "good", "--steps", "many"], "'many' is not a valid integer"),
        (["run", "--config", "nowhere.toml"], "there is no file 'nowhere.toml'."),
        (["run", "--algorithm", "good"], "No such option '--algorithm'"),
        (["plugins", "show", "goood"], "unknown algorithm 'goood'. Did you mean 'good'?"),
        (
            ["plugins", "list", "--json", "--requirements"],
            "--json and --requirements exclude each other",
        ),
        (["plugins", "lst"], "No such command 'lst'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_gets_one_message_and_exit_code_2(
    rlplug: Cli, installed: Path, arguments: list[str], said: str
) -> None:
    assert said in refused(rlplug, *arguments)


def test_debug_shows_the_traceback_of_the_cause(rlplug: Cli, installed: Path) -> None:
    done = rlplug("run", "--algo", "raises", "--debug")
    assert done.code == 2
    assert "Traceback" in done.err
    assert "raises_plugin.py" in done.err
    assert done.err.rstrip().splitlines()[-3].startswith("rlplug: error: algorithm 'raises'")


def test_without_any_plugin_the_answer_says_what_to_install(tmp_path: Path) -> None:
    script = (
        "from rlplug.registry import Registry\n"
        "from rlplug.runs.prepare import prepare\n"
        "from rlplug.runs.request import Request\n"
        "prepare(Request(flags={'run': {'algorithm': 'linucb'}}), Registry(()))\n"
    )
    done = python("-c", script)
    assert "no algorithm is installed.\n  try: pip install rlplug-linucb" in done.stderr


# -- the terminal -------------------------------------------------------------------------------


def test_output_to_a_pipe_has_no_colours_and_no_broken_lines(site: Path) -> None:
    done = python("-m", "rlplug", "plugins", "list", env={"PYTHONPATH": str(site), "COLUMNS": "40"})
    assert "\x1b" not in done.stdout
    assert any(
        line.split()[:2] == ["future", "rlplug-future"] and line.rstrip().endswith("this is 0.1.0")
        for line in done.stdout.splitlines()
    )


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        ("plugins hooks --markdown", "# Writing a plugin"),
        ("plugins show good", "algorithm 'good' (rlplug-good 0.1.0)  A plugin for a test"),
    ],
)
def test_a_reader_that_goes_away_early_is_no_error(site: Path, arguments: str, first: str) -> None:
    command = (
        f'{sys.executable} -m rlplug {arguments} | (read l; echo "$l"); echo ${{PIPESTATUS[0]}}'
    )
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin"},
    )
    assert done.stdout.splitlines() == [first, "0"]
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("plugins list >&-", "0"),
        ("run --algo goood 2>&1 | true", "2"),
        ("--help | true", "0"),
    ],
)
def test_the_exit_code_is_the_same_where_nobody_reads(site: Path, command: str, code: str) -> None:
    script = f"{sys.executable} -m rlplug {command}; echo ${{PIPESTATUS[0]}}"
    environment = {"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == (f"{code}\n", "")


@pytest.mark.parametrize("group", [[], ["plugins"]])
def test_a_group_without_a_command_shows_its_help(rlplug: Cli, group: list[str]) -> None:
    done = rlplug(*group)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"Usage: {' '.join(['rlplug', *group])} ")


def test_python_dash_m_is_the_same_as_the_command() -> None:
    done = python("-m", "rlplug", "--version")
    assert done.stdout == "rlplug 0.1.0\n"


def test_the_shell_can_complete_the_names_of_plugins(site: Path) -> None:
    environment = {
        "PYTHONPATH": str(site),
        "_RLPLUG_COMPLETE": "bash_complete",
        "COMP_WORDS": "rlplug run --algo go",
        "COMP_CWORD": "3",
    }
    script = "from rlplug.cli.main import cli; cli(prog_name='rlplug')"
    assert "plain,good" in python("-c", script, env=environment).stdout


# -- the reference ------------------------------------------------------------------------------


def test_the_hook_reference_is_up_to_date(rlplug: Cli) -> None:
    written = (ROOT / "docs" / "hooks.md").read_text(encoding="utf-8")
    assert rlplug("plugins", "hooks", "--markdown").out == written, (
        "run: rlplug plugins hooks --markdown > docs/hooks.md"
    )


@pytest.mark.parametrize("entry", reference.entries(), ids=lambda entry: entry.name)
def test_every_hook_says_when_it_is_called_and_shows_an_example(entry: reference.Entry) -> None:
    assert entry.called
    assert f"def {entry.name}(self" in entry.example
    compile(entry.example, entry.name, "exec")


@pytest.mark.parametrize("entry", reference.entries(), ids=lambda entry: entry.name)
def test_every_argument_of_a_hook_is_explained(entry: reference.Entry) -> None:
    guide = (ROOT / "rlplug" / "hooks" / "guide.md").read_text(encoding="utf-8")
    explained = {word for name, _ in entry.fields for word in name.split(", ")}
    explained |= {word for word in entry.arguments if f"| `{word}` |" in guide}
    if "The other arguments are those of `build`" in dict(entry.fields).get("module", ""):
        explained |= {"observation_space", "action_space", "seed"}
    assert set(entry.arguments) <= explained


def test_hooks_prints_every_hook(rlplug: Cli) -> None:
    out = rlplug("plugins", "hooks").out
    assert all(f"{entry.name}(" in out for entry in reference.entries())
