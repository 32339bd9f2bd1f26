from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(title: str, language: str) -> str:
    found = re.search(
        rf"```{language}\n(.*?)\n```", README.partition(f"## {title}\n")[2], re.DOTALL
    )
    assert found is not None, f"no {language} block under {title}"
    return found[1]


@pytest.mark.parametrize("title", ["Quickstart", "Tests"])
def test_one_line_sets_up_a_fresh_machine(title: str) -> None:
    command = block(title, "sh")
    assert len(command.splitlines()) == 1
    assert command.startswith("python3 -m venv .venv && .venv/bin/pip install -c constraints.txt ")


def test_the_quickstart_ends_in_the_main_job() -> None:
    assert block("Quickstart", "sh").endswith(" && .venv/bin/rlplug run --algo linucb")


COMMANDS = [
    shlex.split(re.split(r"\s{2,}", line)[0])[1:] for line in block("Commands", "text").splitlines()
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_every_command_of_the_readme_is_accepted(
    arguments: list[str],
    rlplug: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text('[run]\nalgorithm = "linucb"\n')
    if arguments[0] == "run" and "--dry-run" not in arguments:
        arguments = [*arguments, "--dry-run"]
    of_runs = ("ablate", "ui", "eval", "serve", "resume", "show", "compare")
    if arguments[0] in of_runs or arguments[:2] in (["plugins", "check"], ["runs", "rm"]):
        arguments = [*arguments, "--help"]
    assert rlplug(*arguments).code == 0


@pytest.mark.long
def test_the_ablation_of_the_readme_runs(rlplug: Callable[..., Any], home: Path) -> None:
    (arguments,) = [one for one in COMMANDS if one[0] == "ablate"]
    # Two short runs instead of ten long ones.
    arguments = [*("1" if one == "5" else one for one in arguments), "--steps", "300"]
    assert rlplug(*arguments, "--set", "learning_starts=100").code == 0


def test_the_commands_for_interrupted_runs_do_what_the_readme_says(
    rlplug: Callable[..., Any], store_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    assert rlplug("run", "--algo", "linucb", "--steps", "96").code == 0
    lines = block("Pull the plug whenever you like", "text").splitlines()
    said = []
    for line in lines:
        arguments = shlex.split(re.split(r"\s{2,}", line)[0])[1:]
        arguments = [one.replace("RUN_ID", "last").replace("200000", "128") for one in arguments]
        if arguments[0] == "run":
            arguments += ["--steps", "64"]
        done = rlplug(*arguments)
        said.append((arguments[0], done.code))
    # The first has nothing to resume: the run has finished.
    assert said == [
        ("resume", 2),
        ("resume", 0),
        ("resume", 0),
        ("run", 0),
        ("run", 0),
        ("runs", 0),
    ]


def test_the_commands_for_trained_policies_do_what_the_readme_says(
    rlplug: Callable[..., Any], store_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    evaluated = ("--set", "evaluation.episodes=2")
    assert rlplug("run", "--algo", "linucb", "--steps", "96", *evaluated).code == 0
    for line in block("Use what was trained", "text").splitlines():
        arguments = shlex.split(re.split(r"\s{2,}", line)[0])[1:]
        arguments = [
            one.replace("RUN_ID", "last").replace("best:CartPole-v1", "best:LinearBandit-v0")
            for one in arguments
        ]
        if arguments[0] == "serve":
            arguments += ["--help"]
        done = rlplug(*arguments)
        assert done.code == 0, (line, done.err)
    assert (tmp_path / "policy.onnx").is_file()


def test_the_table_of_several_seeds_has_what_each_seed_comes_to_alone(
    rlplug: Callable[..., Any], home: Path
) -> None:
    from rlplug.runs.groups.result import GroupResult, Row
    from rlplug.tracking.reading import recorded_runs

    commands, printed = re.findall(
        r"```text\n(.*?)\n```", README.partition("## Several seeds\n")[2], re.DOTALL
    )[:2]
    first = shlex.split(re.split(r"\s{2,}", commands.splitlines()[0])[0])[1:]
    place = first.index("--seeds")
    for seed in range(int(first[place + 1])):
        one = [*first[:place], "--seed", str(seed), *first[place + 2 :]]
        assert rlplug(*one, "--quiet", "--set", "tracking.enabled=false").code == 0
    runs = sorted(recorded_runs(home), key=lambda run: run.about.seed)
    rows = tuple(map(Row.of_seed, runs))
    found = "\n".join(GroupResult(group="g", kind="seed", rows=rows).lines(100))
    run_id = r" [0-9a-f]{8}$"
    assert re.sub(run_id, "", found, flags=re.M) == re.sub(run_id, "", printed, flags=re.M)


def test_the_python_of_the_readme_runs_as_written(
    tmp_path: Path,
    empty_store: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rlplug_runs").mkdir()
    shutil.copy(empty_store, tmp_path / "rlplug_runs" / "mlflow.db")
    monkeypatch.delenv("RLPLUG_HOME", raising=False)
    exec(block("In Python", "python"), {})
    first, last = capsys.readouterr().out.splitlines()
    regret, folder = first.split()
    assert last.startswith("{'algorithm.alpha': '0.5'} ")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert 0 < float(regret) < 500
    assert Path(folder).is_relative_to(tmp_path / "rlplug_runs")


def test_every_link_of_the_readme_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link
