"""One border: whichever command reads a run or a group of somebody else, it imports no code."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
OFFLINE = ("--set", "tracking.enabled=false")
RUN = ("run", "--algo", "linucb", "--env", "LinearBandit-v0", "--steps", "40", *OFFLINE)


@pytest.fixture
def foreign_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module that can be imported."""
    wrapper = "import gymnasium\nclass Wrap(gymnasium.Wrapper):\n    pass\n"
    (tmp_path / "foreign_code.py").write_text(wrapper)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("foreign_code", None)


def tampered(config: Path) -> None:
    """Have the options name code to import."""
    text = config.read_text()
    assert "wrappers = []" in text
    config.write_text(text.replace("wrappers = []", 'wrappers = ["foreign_code:Wrap"]'))


@pytest.mark.usefixtures("foreign_code")
def test_a_run_whose_options_were_changed_is_refused_by_every_command(
    home: Path, rlplug: Cli
) -> None:
    assert rlplug(*RUN, "--resume-or-start", "night").code == 0
    (folder,) = (path for path in home.glob("work/*") if path.is_dir())
    for file in folder.rglob("config.toml"):
        tampered(file)
    shutil.rmtree(folder / "checkpoints")
    status = folder / "status.json"
    status.write_text(status.read_text().replace("FINISHED", "KILLED"))
    wrapped = ("--set", 'env.wrappers=["foreign_code:Wrap"]')
    for command in (
        ("resume", "last"),
        ("run", "--like", "last"),
        (*RUN, *wrapped, "--resume-or-start", "night"),
    ):
        refused = rlplug(*command)
        assert refused.code == 2, command
        assert "was not written by this user on this machine" in refused.err
        assert "--trust" in refused.err
    done = rlplug(*RUN, *wrapped, "--resume-or-start", "night", "--trust")
    assert done.code == 0, done.err
    # It is remembered.
    assert rlplug("run", "--like", folder.name, *OFFLINE).code == 0


@pytest.mark.usefixtures("foreign_code")
def test_a_group_whose_options_were_changed_is_refused(home: Path, rlplug: Cli) -> None:
    done = rlplug(*RUN, "--seeds", "2", "--jobs", "2")
    assert done.code == 0, done.err
    (group,) = home.glob("groups/*")
    (run, _) = home.glob("work/*")
    shutil.rmtree(run)
    # Its user's own goes on.
    assert rlplug("resume", group.name).code == 0
    (run, *_) = home.glob("work/*")
    shutil.rmtree(run)
    tampered(group / "config.toml")
    refused = rlplug("resume", group.name)
    assert refused.code == 2
    assert "was not written by this user on this machine" in refused.err
    assert "foreign_code" not in sys.modules


def test_a_study_of_somebody_else_needs_trust(home: Path, rlplug: Cli) -> None:
    search = ("--space", "alpha={low=0.1,high=1.0}", "--trials", "2")
    started = ("tune", *RUN[1:], *search, "--study", "wide")
    done = rlplug(*started)
    assert done.code == 0, done.err
    (home / "groups" / "wide" / "signature").unlink()
    refused = rlplug("resume", "wide")
    assert refused.code == 2
    assert "was not written by this user on this machine" in refused.err
    assert rlplug("resume", "wide", "--trust").code in (0, 2)
    assert (home / "groups" / "wide" / "signature").exists()
