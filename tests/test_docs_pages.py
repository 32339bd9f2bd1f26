"""Pages of docs/ say what is so: made pages are up to date, examples run, the tutorial works."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from rlplug.cli.main import cli
from tests.warm import Warm

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def blocks(page: str, language: str) -> list[tuple[str, str]]:
    """The title and the text of each block of a page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.findall(rf"^```{language}(?: title=\"([^\"\n]*)\")?\n(.*?)^```$", text, re.M | re.S)
    return [(title, code) for title, code in found]


def made() -> Any:
    spec = importlib.util.spec_from_file_location("docs_pages", ROOT / ".ci" / "docs_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_made_from_the_code_are_up_to_date() -> None:
    for name, text in made().pages().items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, f"run .ci/docs_pages.py: {name}"


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert {page.name for page in DOCS.glob("*.md")} == set(re.findall(r": (\S+\.md)$", text, re.M))


@pytest.mark.parametrize("page", ["index.md", "notebooks.md", "authors-notes.md", "platforms.md"])
def test_examples_run(page: str, store_root: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    code = "\n".join(text for _, text in blocks(page, "python"))
    exec(compile(code, page, "exec"), {"__name__": "example"})


def class_of(page: str, name: str) -> Any:
    """A class that the page's block defines; in a module, as `Config` looks its types up."""
    (code,) = [text for _, text in blocks(page, "python") if f"class {name}(" in text]
    module = type(sys)(f"docs_{name.lower()}")
    sys.modules[module.__name__] = module
    exec(compile(code, page, "exec"), module.__dict__)
    return getattr(module, name)


def test_the_replay_algorithm_trains_both_optimizers_and_passes_checks(home: Path) -> None:
    from rlplug import run
    from rlplug.testing import Subject
    from rlplug.testing.checks import check_named

    kind = class_of("replay-algorithm.md", "DDPG")
    options = {"tracking.enabled": False, "evaluation.episodes": 0}
    result = run(kind, steps=800, seed=1, options=options)
    assert result.metrics["train/grad_norm/actor"] > 0
    assert result.metrics["train/grad_norm/critic"] > 0
    for name in ("hooks_are_well_formed", "options_are_typed_and_documented"):
        check_named(name)(Subject.of(kind))


def test_the_add_on_is_neutral_as_it_says(home: Path) -> None:
    from rlplug.testing import Subject
    from rlplug.testing.checks import check_named

    subject = Subject.of(class_of("add-on.md", "Smooth"))
    for name in ("another_addon_may_take_part", "works_or_refuses_with_every_algorithm"):
        check_named(name)(subject)


def commands(page: str) -> Iterator[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    for line in re.findall(r"^(?:\$ )?(rlplug .*)$|`(rlplug [a-z][^`]*)`", text, re.M):
        yield next(part for part in line if part)


@pytest.mark.parametrize("page", sorted(page.name for page in DOCS.glob("*.md")))
def test_commands_exist(page: str) -> None:
    for line in commands(page):
        words = shlex.split(line.rstrip("\\ "), comments=True)
        group: Any = cli
        for word in words[1:]:
            is_group = isinstance(group, click.Group)
            command = group.get_command(click.Context(group), word) if is_group else None
            if command is None:
                assert word.startswith("-") or group is not cli or word == "…", line
                break
            group = command
        known = {name for one in group.params for name in one.opts} | {"--help"}
        for word in words:
            # The tables of other libraries' options, and the error that answers one.
            if word.startswith("--") and word != "--total-timesteps":
                assert word.partition("=")[0] in known, line


def changed(file: Path, title: str, code: str) -> None:
    """Do what a title of the tutorial says to a file."""
    text = file.read_text(encoding="utf-8")
    if title.startswith("append"):
        file.write_text(text + code, encoding="utf-8")
        return
    pattern = (
        r"    def prepare_batch\(.*?(?=\n    def )"
        if "prepare_batch" in title
        else r"^from rlplug_reinforce\.losses import .*$\n"
    )
    new, count = re.subn(
        pattern,
        lambda _: code,
        text,
        count=1,
        flags=re.M | re.S if "prepare_batch" in title else re.M,
    )
    assert count == 1, title
    file.write_text(new, encoding="utf-8")


SHORTER = {
    "--steps 20000": "--steps 1000",
    "--steps 30000": "--steps 1500",
    "check reinforce": "check reinforce --only truncated_steps_bootstrap",
}
"""Parts of the commands → what takes less time and runs the same code."""


@pytest.mark.parametrize(
    "shorter",
    [SHORTER, pytest.param({}, marks=pytest.mark.long)],
    ids=["shorter", "word-for-word"],
)
def test_the_tutorial_works_word_for_word(
    tmp_path: Path, warm: Warm, shorter: dict[str, str]
) -> None:
    """All but installation, for which the suite has no environment to spare."""
    environ = {name: value for name, value in os.environ.items() if "MLFLOW" not in name}
    # As with an editable installation, changes of the sources are seen at once.
    paths = os.pathsep.join(map(str, (tmp_path / "rlplug-reinforce", tmp_path / "site")))
    environ |= {"PYTHONPATH": paths, "RLPLUG_HOME": str(tmp_path / "runs")}
    environ |= {"MLFLOW_DISABLE_TELEMETRY": "true", "PYTHONUTF8": "1"}

    def do(line: str) -> str:
        for part, other in shorter.items():
            line = line.replace(part, other)
        words = shlex.split(line)
        if words[0] == "rlplug":
            command = warm.start(*words[1:], cwd=tmp_path, environ=environ)
            assert command.wait() == 0, f"{line}\n{command.out}\n{command.err}"
            return command.out
        if words[:2] == ["pip", "install"]:
            flags = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--upgrade"]
            target = ["--root-user-action=ignore", "--target", str(tmp_path / "site")]
            words = [sys.executable, "-m", "pip", "install", *flags, *target, words[-1]]
        else:
            assert words[0] == "pytest"
            words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", words[-1]]
        done = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    text = (DOCS / "first-algorithm.md").read_text(encoding="utf-8")
    printed = {}
    for language, title, code in re.findall(
        r"^```(sh|python)(?: title=\"([^\"\n]*)\")?\n(.*?)^```$", text, re.M | re.S
    ):
        if language == "sh":
            for line in code.splitlines():
                printed[line] = do(line)
            continue
        changed(tmp_path / title.split()[-1], title, code)
    with (tmp_path / "rlplug-reinforce" / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    (install,) = [line for line in printed if line.startswith("pip install")]
    assert "[test]" in install
    assert any(one.startswith("pytest") for one in extras["test"])
    assert re.search(r"reinforce +rlplug-reinforce 0.1.0 +ok", printed["rlplug plugins list"])
    assert "normalize_advantage" in printed["rlplug plugins show reinforce"]
    wanted = r"1 passed" if shorter else r"\d\d passed, \d+ do not apply"
    assert re.search(wanted, printed["rlplug plugins check reinforce"])
    resumed = printed["rlplug resume last --steps 30000"]
    assert ("1,5" if shorter else "30,0") in resumed
    assert "FINISHED" in printed["rlplug show last"]


def test_the_site_is_built_by_ci() -> None:
    assert "mkdocs build --strict" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    assert any(one.startswith("mkdocs-material") for one in extras["test"])
