"""Commands as they are typed: what they list, check and refuse, and their help and exit codes."""

from __future__ import annotations

import datetime
import json
import math
import os
import re
import resource
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import gymnasium
import pytest

from rlplug.cli.main import cli, main
from rlplug.config import options_table
from rlplug.hooks import reference

Cli = Callable[..., Any]
ROOT = Path(__file__).parent.parent


def python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, **options
    )


# -- help ------------------------------------------------------------------------------------------


def commands(command: click.Command = cli, name: str = "") -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for part in command.list_commands(context):
            below = command.get_command(context, part)
            assert below is not None
            yield from commands(below, f"{name} {part}".strip())


def test_a_flag_means_the_same_in_every_command() -> None:
    own = {"--seeds", "--limit", "--port"}
    told: dict[str, set[str | None]] = {}
    for _, command in commands():
        for one in command.params:
            if isinstance(one, click.Option) and not {*one.opts} & own:
                told.setdefault(one.opts[-1], set()).add(one.help)
    of_filters = {"--env", "--algo"}
    assert {name for name, texts in told.items() if len(texts) > 1} == of_filters
    assert all(None not in texts for texts in told.values())
    for name, command in commands():
        if name in ("run", "tune", "ablate"):
            flags = {flag for one in command.params for flag in one.opts}
            shared = (
                "algo env steps seeds jobs preset with config set data init-from name tag place"
            )
            assert {f"--{flag}" for flag in shared.split()} <= flags, name
            assert {"--resume-existing", "--runners", "--learners", "--quiet", "--json"} <= flags


def test_help_has_three_levels(rlplug: Cli) -> None:
    first = rlplug()
    assert (first.code, first.err) == (0, "")
    assert len(re.findall("^  rlplug ", first.out, re.MULTILINE)) == 10
    assert "Commands:" not in first.out
    every = rlplug("--help-all").out
    summaries = " ".join(every.partition("Commands:")[2].split())
    for name in cli.list_commands(click.Context(cli)):
        command = dict(commands())[name]
        summary = " ".join((command.help or "").partition("\n\n")[0].split())
        assert f"{name} {summary}" in summaries
    short, full = rlplug("run", "-h").out, rlplug("run", "--help-all").out
    assert "--algo NAME" in short
    assert "--trace-hooks" not in short
    assert {"--trace-hooks", "--debug", "--trust"} <= {*full.split()}


@pytest.mark.parametrize("name", [name for name, one in commands() if name and "hooks" not in name])
def test_every_command_has_examples_and_help_that_fits_60_columns(
    rlplug: Cli, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    command = dict(commands())[name]
    assert len(re.findall(r"^ *(?:eval .\$\()?rlplug ", command.help or "", re.MULTILINE)) >= (
        0 if name == "plugins" else 2
    )
    monkeypatch.setenv("COLUMNS", "60")
    shown = rlplug(*name.split(), "-h")
    assert shown.code == 0
    examples = (command.help or "").splitlines()
    lines = [
        line for line in shown.out.splitlines() if line.strip() not in map(str.strip, examples)
    ]
    assert max(map(len, lines)) <= 60
    assert "…" not in "".join(lines)
    assert "x>=" not in shown.out


# -- what is installed -----------------------------------------------------------------------------


def test_plugins_are_listed_with_package_status_and_summary(rlplug: Cli, installed: Path) -> None:
    done = rlplug("plugins", "list")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert "algorithm good rlplug-good 0.1.0 ok A plugin for a test" in lines
    assert "unfit   needs rlplug<0.10,>=0.9, this is 0.1.0" in done.out
    assert "algorithm twin 2 packages clash twin-one 0.1.0, twin-two 0.1.0" in lines
    assert rlplug("plugins").out == done.out
    rows = {row["name"]: row for row in json.loads(rlplug("plugins", "list", "--json").out)}
    assert (rows["scale"]["kind"], rows["twin"]["status"]) == ("addon", "clash")
    assert (rows["good"]["package"], rows["good"]["status"]) == ("rlplug-good 0.1.0", "ok")


def test_plugins_are_checked_by_importing_them(rlplug: Cli, installed: Path) -> None:
    done = rlplug("plugins", "list", "--check")
    assert done.code == 1
    assert {"rlplug", "python", "torch"} <= {
        line.partition(" ")[0] for line in done.out.splitlines()
    }
    row = next(line for line in done.out.splitlines() if line.split()[1:2] == ["raises"])
    assert "failed" in row
    assert "no_such_package_anywhere" in done.out


HEAVY = ("torch", "gymnasium", "mlflow", "numpy", "good_plugin", "raises_plugin")
LOADED = f"""\
import atexit, sys
from rlplug.cli import main
atexit.register(lambda: print('imported', sorted({{*{HEAVY}}} & {{*sys.modules}}), file=sys.stderr))
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    "line",
    ["--help", "plugins list", "plugins hooks", "run -h", "plugins show evaluation", "--version"],
)
def test_listing_and_help_import_nothing_heavy(site: Path, line: str) -> None:
    done = python("-c", LOADED, *line.split(), env={"PYTHONPATH": str(site)})
    assert (done.returncode, done.stderr) == (0, "imported []\n")
    assert done.stdout


@pytest.mark.parametrize(
    "line",
    [
        "run --algo goood",
        "run --algo good --with skale",
        "plugins show goood",
        "plugins check good goood",
        "eval mondya",
        "run --algo good --sed 1",
    ],
)
def test_a_wrong_name_is_answered_before_torch_is_imported(
    site: Path, tmp_path: Path, line: str
) -> None:
    run = tmp_path / "work" / "0123" / "run.json"
    run.parent.mkdir(parents=True)
    run.write_text('{"run_name": "monday"}')
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environ = {"PYTHONPATH": str(site), "RLPLUG_HOME": str(tmp_path)}
    done = python("-c", LOADED, *line.split(), env=environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 2
    assert done.stderr.endswith("imported []\n")
    assert "Did you mean" in done.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


def test_a_plugin_is_shown_with_hooks_options_presets_and_a_file_that_runs(
    rlplug: Cli, installed: Path, tmp_path: Path
) -> None:
    shown = rlplug("plugins", "show", "good").out
    lines = [line.split() for line in shown.splitlines()]
    assert "algorithm 'good' (rlplug-good 0.1.0)" in shown
    assert "Learns well enough for a test." in shown
    assert "Hooks\n  build\n" in shown
    typed = "learning_rate float or schedule, at least 0 0.1 Step size."
    assert typed.split() in lines
    assert "  small\n    gamma = 0.5" in shown
    assert "# sampling.num_envs = 4" in shown
    assert "[addons.scale]\nscale = 1.0\n" in rlplug("plugins", "show", "scale").out
    assert json.loads(rlplug("plugins", "show", "good", "--json").out)["hooks"] == ["build"]
    path = tmp_path / "run.toml"
    path.write_text(shown[shown.index("[run]") :])
    assert rlplug("run", "--config", str(path), "--dry-run").code == 0


def test_sections_are_shown_with_every_option(rlplug: Cli) -> None:
    shown = rlplug("plugins", "show", "all").out
    listed = [line.split() for line in shown.splitlines()]
    for name, kind in options_table.sections().items():
        assert f"[{name}]  " in shown
        for row in options_table.rows(kind):
            assert [row.name, *row.type.split(), *row.default.split(), *row.help.split()] in listed
    only = rlplug("plugins", "show", "checkpoint").out
    assert ("[checkpoint]" in only, "[run]" in only) == (True, False)
    assert "keep" in {
        row["name"]
        for row in json.loads(rlplug("plugins", "show", "checkpoint", "--json").out)["checkpoint"]
    }


# -- run, as far as checking goes ------------------------------------------------------------------


def test_a_dry_run_shows_options_with_their_origins_plugins_hooks_and_memory(
    rlplug: Cli, installed: Path
) -> None:
    given = "--algo dqn --env CartPole-v1 --with scale --set buffer_size=1000 --seed 3 --dry-run"
    done = rlplug("run", *given.split())
    assert (done.code, done.err) == (0, "")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert {"buffer_size = 1000 # --set", "seed = 3 # command line"} <= {*lines}
    assert {"gamma = 0.99 # default", "postprocess_gradients scale"} <= {*lines}
    assert "add-on 'scale' (rlplug-scale 0.1.0)" in lines
    assert "1,000" in done.out.partition("\nmemory\n")[2]


def test_a_dry_run_prints_toml_whatever_keys_and_values_are(
    rlplug: Cli, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def takes_all(**given: Any) -> gymnasium.Env[Any, Any]:
        return gymnasium.make("rlplug.bandits:LinearBandit-v0")

    spec = gymnasium.envs.registration.EnvSpec("TakesAll-v0", takes_all)
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    settings = ("env.start=2024-01-01", "env.table={a=[1,{b=nan}]}", "env.low=-inf")
    given = [part for text in settings for part in ("--set", text)]
    tags = ("--tag", 'a.b="c"', "--tag", "who=Zoë")
    done = rlplug("run", "--algo", "good", "--env", spec.id, *tags, *given, "--dry-run")
    read = tomllib.loads(done.out.partition("\nplugins\n")[0])
    assert read["tracking"]["tags"] == {"a.b": '"c"', "who": "Zoë"}
    assert read["env"]["start"] == datetime.date(2024, 1, 1)
    assert str(read["env"]["table"]) == "{'a': [1, {'b': nan}]}"
    assert read["env"]["low"] == -math.inf


REFUSED = [
    # options, and what goes with them
    ("run", "no algorithm was named"),
    ("run --algo goood", "Did you mean 'good'?"),
    ("run --algo twin", "2 packages"),
    ("run --algo raises", "no_such_package_anywhere"),
    ("run --algo exits", "SystemExit: 7"),
    ("run --algo future", "rlplug<0.10,>=0.9"),
    ("run --algo stranger", "rlplug.Algorithm"),
    ("run --algo typo", "'compute_loss_for_module'"),
    ("run --algo scale", "--with scale"),
    ("run --algo good --with usurper", "'build'"),
    ("run --algo good --with good", "--algo good"),
    ("run --algo good --set gamma", "KEY=VALUE"),
    ("run --algo good --set gama=1", "'gamma'"),
    ("run --algo good --set gamma=0 --set gamma=1", "gamma"),
    ("run --algo good --steps 5 --set run.steps=5", "'--steps'"),
    ("run --algo good --env X --set run.env=Y", "'--env'"),
    ("run --algo good --tag a=1 --tag a=2", "'a'"),
    ("run --algo good --set evaluation.episodes=0 --set evaluation.patience=2", "patience"),
    ("run --algo good --steps 0", "run.steps"),
    ("run --algo good --steps many", "'many'"),
    ("run --algo good --init-from=", "--init-from"),
    ("run --algo= --seed 1", "--algo"),
    ("run --config nowhere.toml", "'nowhere.toml'"),
    ("run --algo good --jobs 0", "--jobs"),
    ("run --algo good --jobs 1", "--seeds"),
    ("run --algo good --resume-existing", "--name"),
    ("run --algo good --place ray", "--seeds"),
    ("run --algo good --runners 0", "--runners"),
    ("run --like x --algo good", "--algo"),
    ("run --like x --with a", "--with"),
    ("run --like x --preset p", "--preset"),
    ("resume x --jobs 1", "'x'"),
    ("tune --algo good --space alpha", "--space"),
    ("eval x --episodes 0", "--episodes"),
    ("eval x --opponent a", "--opponent"),
    ("eval x --seed -1", "--seed"),
    ("ope x", "--data"),
    ("ope x --data f --confidence 1", "--confidence"),
    ("ope x --data f --max-weight -1", "--max-weight"),
    ("serve x --port 65536", "--port"),
    ("ui --port 0", "--port"),
    ("runs --limit 0", "--limit"),
    ("runs --since yesterday", "2d, 12h, 2026-11-01"),
    ("runs rm", "RUN..."),
    ("compare", "RUN..."),
    ("promote x", "NAME"),
    ("plugins show goood", "'good'"),
    ("plugins show evalution", "'evaluation'"),
    ("plugins new x --addon --bandit", "--addon"),
    ("completion csh", "csh"),
    # words of other tools
    ("run good", "try: rlplug run --algo good"),
    ("run CartPole-v1", "try: rlplug run --env CartPole-v1"),
    ("run mine.toml", "try: rlplug run --config mine.toml"),
    ("run --algo good gamma=0.5", "try: rlplug run --set gamma=0.5"),
    ("run --algo good --device cpu", "try: --set compute.device=VALUE"),
    ("run --algo good --lr 1", "try: --set learning_rate=VALUE"),
    ("run --total-timesteps 9", "try: --steps"),
    ("run --algorithm good", "try: --algo"),
    ("run --algo good --sed 1", "'--seed'"),
    ("train --algo good", "try: rlplug run"),
    ("good", "try: rlplug run --algo good"),
    ("evla x", "try: rlplug eval"),
    ("plugins lst", "try: rlplug plugins list"),
]


@pytest.mark.parametrize(("line", "named"), REFUSED, ids=[line for line, _ in REFUSED])
def test_a_mistake_gets_one_message_that_names_it_and_exit_code_2(
    rlplug: Cli, installed: Path, home: Path, line: str, named: str
) -> None:
    done = rlplug(*line.split())
    assert (done.code, done.out) == (2, "")
    assert done.told.startswith("rlplug: error: ")
    assert named in done.told
    assert "Traceback" not in done.err


def test_debug_shows_the_traceback_of_the_cause(rlplug: Cli, installed: Path) -> None:
    done = rlplug("run", "--algo", "raises", "--debug")
    assert done.code == 2
    assert "raises_plugin.py" in done.err
    assert "\nrlplug: error: algorithm 'raises'" in done.err


# -- the process -----------------------------------------------------------------------------------


def test_output_to_a_pipe_has_no_colours_and_no_broken_lines(site: Path) -> None:
    done = python("-m", "rlplug", "plugins", "list", env={"PYTHONPATH": str(site), "COLUMNS": "40"})
    assert "\x1b" not in done.stdout
    assert any("future" in line and "this is 0.1.0" in line for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("plugins list >&-", "0"),
        ("run --algo goood 2>&1 | true", "2"),
        ("--help | true", "0"),
        ("plugins hooks --markdown | true", "0"),
    ],
)
def test_the_exit_code_is_the_same_where_nobody_reads(site: Path, command: str, code: str) -> None:
    script = f"{sys.executable} -m rlplug {command}; echo ${{PIPESTATUS[0]}}"
    environment = {"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == (f"{code}\n", "")


@pytest.mark.parametrize("line", ["plugins list", "plugins show good", "--version"])
def test_a_reader_that_has_left_is_told_nothing(
    installed: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], line: str
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", encoding="utf-8") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        with pytest.raises(SystemExit) as left:
            main(line.split())
    assert (left.value.code, capfd.readouterr().err) == (0, "")


def test_the_command_finds_modules_of_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "own_env.py").write_text(
        "import gymnasium\ngymnasium.register('Own-v0', lambda: gymnasium.make('CartPole-v1'))\n"
    )
    # As an installed script starts it: the folder is not on the path by itself.
    script = "import sys; sys.argv[0] = 'rlplug'; from rlplug.cli import main; main()"
    line = "run --algo ppo --env own_env:Own-v0 --dry-run"
    done = python("-P", "-c", script, *line.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


# -- the hooks -------------------------------------------------------------------------------------


def test_the_hook_reference_is_up_to_date_and_lists_every_hook(rlplug: Cli) -> None:
    written = (ROOT / "docs" / "hooks.md").read_text(encoding="utf-8")
    assert rlplug("plugins", "hooks", "--markdown").out == written, (
        "run: rlplug plugins hooks --markdown > docs/hooks.md"
    )
    out = rlplug("plugins", "hooks").out
    assert all(f"{entry.name}(" in out for entry in reference.entries())
    listed = json.loads(rlplug("plugins", "hooks", "--json").out)
    assert [entry["name"] for entry in listed] == [entry.name for entry in reference.entries()]


@pytest.mark.parametrize("entry", reference.entries(), ids=lambda entry: entry.name)
def test_every_hook_is_explained_with_an_example(entry: reference.Entry) -> None:
    assert entry.called
    assert f"def {entry.name}(self" in entry.example
    compile(entry.example, entry.name, "exec")
    guide = (ROOT / "rlplug" / "hooks" / "guide.md").read_text(encoding="utf-8")
    explained = {word for name, _ in entry.fields for word in name.split(", ")}
    explained |= {word for word in entry.arguments if f"| `{word}` |" in guide}
    if "The other arguments are those of `build`" in dict(entry.fields).get("module", ""):
        explained |= {"observation_space", "action_space", "seed"}
    assert set(entry.arguments) <= explained
