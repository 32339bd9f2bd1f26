"""`rlplug plugins new` writes packages that install, train and pass their tests as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from rlplug.config.options_table import rows
from rlplug.errors import RequestError
from rlplug.registry import ALGORITHM, Registry
from rlplug.scaffold import Names, create_package

Cli = Callable[..., Any]

FLAVOURS = {"reinforce": (), "armed": ("--bandit",), "anchor": ("--addon",)}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one package of each flavour, and `site`, where they are installed."""
    folder = tmp_path_factory.mktemp("scaffold")
    for name, flags in FLAVOURS.items():
        flavour = flags[0].removeprefix("--") if flags else "algorithm"
        create_package(name, flavour, folder, Registry.of())  # type: ignore[arg-type]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--disable-pip-version-check"]
    command += ["--root-user-action=ignore", "--target", str(folder / "site")]
    paths = [str(folder / f"rlplug-{name}") for name in FLAVOURS]
    subprocess.run([*command, *paths], check=True)
    return folder


@pytest.fixture
def made(packages: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make them importable, and forget their modules afterwards."""
    monkeypatch.syspath_prepend(str(packages / "site"))
    yield packages
    for module in [name for name in sys.modules if name.split(".")[0] in package_names()]:
        del sys.modules[module]


def package_names() -> set[str]:
    return {f"rlplug_{name}" for name in FLAVOURS}


def test_its_own_tests_pass(packages: Path) -> None:
    # The whole kit takes long: .ci/run does it, in a clean environment.
    chosen = "installed.py or losses.py or test_addon.py or well_formed or are_typed"
    command = [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib"]
    environ = {**os.environ, "PYTHONPATH": str(packages / "site")}
    done = subprocess.run(
        [
            *command,
            "-p",
            "no:cacheprovider",
            "-k",
            chosen,
            *(f"rlplug-{name}" for name in FLAVOURS),
        ],
        cwd=packages,
        env=environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    # The three entry points, five losses by hand, two checks of each package.
    assert "14 passed" in done.stdout, done.stdout


@pytest.mark.long
def test_the_algorithm_learns_to_balance_the_pole(made: Path, home: Path) -> None:
    from rlplug import run

    options = {"tracking.enabled": False, "evaluation.every": 20_000}
    result = run("reinforce", steps=40_000, seed=1, options=options)
    # A random policy stays up for 22 steps.
    assert result.metrics["rollout/return_mean"] > 100
    assert result.metrics["train/policy_loss"] == pytest.approx(0, abs=5)


def test_the_bandit_and_the_add_on_train(made: Path, home: Path) -> None:
    from rlplug import run

    options = {"tracking.enabled": False}
    result = run("armed", steps=6_000, seed=1, options=options)
    assert result.metrics["rollout/reward_mean"] > 0.4
    result = run("reinforce", steps=1_024, seed=1, addons=["anchor"], options=options)
    assert result.metrics["train/anchor/squared_distance"] > 0


@pytest.mark.parametrize("name", FLAVOURS)
def test_its_readme_lists_its_options(made: Path, name: str) -> None:
    registry = Registry.installed()
    config = registry.load(registry.named(name)).Config
    text = (made / f"rlplug-{name}" / "README.md").read_text(encoding="utf-8")
    listed = [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")]
    assert listed == [row.name for row in rows(config)]
    for field in attrs.fields(config):
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        assert f"| `{field.name}` | {default} | {field.metadata['help']}" in text


@pytest.mark.parametrize("name", FLAVOURS)
def test_its_code_is_linted_and_formatted(packages: Path, name: str) -> None:
    folder = packages / f"rlplug-{name}"
    ruff = [sys.executable, "-m", "ruff"]
    rules = ["--isolated", "--line-length", "100"]
    subprocess.run([*ruff, "check", *rules, "--select=E,F,W,I,B,UP,N", "."], cwd=folder, check=True)
    subprocess.run([*ruff, "format", *rules, "--check", "."], cwd=folder, check=True)


def test_new_says_what_to_do_next(
    rlplug: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = rlplug("plugins", "new", "rlplug-my-algo")
    assert (done.code, done.err) == (0, "")
    for said in (
        "rlplug_my_algo/algorithm.py",
        "--algo my-algo",
        "pip install -e",
        "check my-algo",
    ):
        assert said in done.out
    assert "class MyAlgo(Algorithm)" in (
        tmp_path / "rlplug-my-algo" / "rlplug_my_algo" / "algorithm.py"
    ).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("My Algo", "my-algo"),
        ("MyAlgo", "my-algo"),
        ("my_algo", "my-algo"),
        ("2fast", "fast"),
        ("fast-", "fast"),
        ("a--b", "a-b"),
        ("../evil", "evil"),
        ("rlplug-", "my-algorithm"),
        ("ü", "my-algorithm"),
        ("", "my-algorithm"),
        ("x" * 51, "x" * 50),
    ],
)
def test_a_name_that_cannot_be_is_refused_with_one_that_can(
    rlplug: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, advice: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = rlplug("plugins", "new", name)
    assert done.code == 2
    assert f"{name!r} cannot be the name of a plugin" in done.err
    assert done.err.endswith(f"try: rlplug plugins new {advice}\n")
    assert list(tmp_path.iterdir()) == []
    Names.of(advice, ALGORITHM)


def test_taken_names_are_refused(
    rlplug: Cli, installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        "algorithm 'good' (rlplug-good 0.1.0) is installed" in rlplug("plugins", "new", "good").err
    )
    # An add-on of the same name would be as confusing.
    done = rlplug("plugins", "new", "good", "--addon")
    assert (done.code, "the name 'good' is taken" in done.err) == (2, True)
    both = rlplug("plugins", "new", "fine", "--addon", "--bandit")
    assert (both.code, "exclude each other" in both.err) == (2, True)
    (tmp_path / "rlplug_lost.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "there is a Python package 'rlplug_lost'" in rlplug("plugins", "new", "lost").err


def test_what_is_there_is_not_overwritten(
    rlplug: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rlplug-mine").mkdir()
    (tmp_path / "rlplug-mine" / "work").write_text("of a year")
    done = rlplug("plugins", "new", "mine")
    assert done.code == 2
    assert f"there is already {tmp_path / 'rlplug-mine'}" in done.err
    assert [path.name for path in tmp_path.rglob("*")] == ["rlplug-mine", "work"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    # Also for root, who may write everywhere: a file is no folder.
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match="cannot be written: Not a directory"):
        create_package("mine", "algorithm", tmp_path / "file", Registry.of())
    (tmp_path / "closed").mkdir(mode=0o555)
    if not os.access(tmp_path / "closed", os.W_OK):
        with pytest.raises(RequestError, match="cannot be written: Permission denied"):
            create_package("mine", "algorithm", tmp_path / "closed", Registry.of())
    assert not any(path.name.startswith(".rlplug") for path in tmp_path.rglob("*"))


def test_a_class_hides_no_other_name() -> None:
    words = {"Adam", "Module"}
    assert Names.of("adam", ALGORITHM, words).class_name == "AdamAlgorithm"
    assert Names.of("module", "addon", words).class_name == "ModuleAddOn"
    assert Names.of("none", ALGORITHM).class_name == "NoneAlgorithm"
    assert Names.of("adam-w", ALGORITHM, words).class_name == "AdamW"
