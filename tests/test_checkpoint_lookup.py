"""Which checkpoint of a run is found where files of the run, or of a checkpoint, are damaged."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlplug.checkpoint import find_checkpoint, lasting_name
from rlplug.checkpoint.checkpoints import Checkpoints
from rlplug.errors import RequestError
from tests.checkpoint_files import write

pytestmark = pytest.mark.usefixtures("home", "installed")


def write_three(folder: Path, run_id: str = "abcdef", scores: Sequence[float] = (1, 3, 2)) -> None:
    """A run's checkpoints at step 1, 2, 3 and so on, with these scores."""
    checkpoints = Checkpoints(folder / "checkpoints", keep=9)
    for step, score in enumerate(scores, 1):
        write(checkpoints, step, score, run_id=run_id)


@pytest.fixture
def folder(home: Path) -> Path:
    folder = home / "work" / "abcdef"
    write_three(folder)
    facts = {"run_id": "abcdef", "run_name": "monday"}
    (folder / "run.json").write_text(json.dumps(facts))
    return folder


def lose(manifest: Path) -> None:
    manifest.unlink()


def make_a_folder(manifest: Path) -> None:
    manifest.unlink()
    manifest.mkdir()


def cut_short(manifest: Path) -> None:
    manifest.write_text("{")


DAMAGES = pytest.mark.parametrize("damage", [lose, make_a_folder, cut_short])


def name(step: int) -> str:
    return f"step-{step:012d}"


def found(which: str, caplog: Any) -> tuple[str, str]:
    """The name of the checkpoint that is found, and the warnings."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="rlplug"):
        chosen = find_checkpoint("abcdef", which)
    return chosen.name, "\n".join(one.getMessage() for one in caplog.records)


@DAMAGES
def test_a_checkpoint_without_manifest_is_told_where_it_may_be_the_one_that_is_meant(
    folder: Path, damage: Callable[[Path], None], caplog: Any
) -> None:
    assert found("best", caplog) == (name(2), "")
    lost = folder / "checkpoints" / name(2)
    damage(lost / "manifest.json")
    chosen, warned = found("best", caplog)
    assert chosen == name(3)
    assert warned.startswith("rlplug: warning: ")
    assert str(lost) in warned
    assert "manifest.json" in warned
    assert warned.endswith(" Step 3 is taken.")
    # The last one is another, whatever became of those before.
    assert found("last", caplog) == (name(3), "")
    assert found("1", caplog) == (name(1), "")
    with pytest.raises(RequestError, match=str(lost)):
        find_checkpoint("abcdef@2")
    with pytest.raises(RequestError, match="no checkpoint at step 7"):
        find_checkpoint("abcdef@7")
    for step in (3, 1):
        damage(folder / "checkpoints" / name(step) / "manifest.json")
    with pytest.raises(RequestError, match=f"{name(3)}.*manifest.json"):
        find_checkpoint("abcdef")


@pytest.mark.parametrize("origin", ["another run", "another step"])
def test_a_checkpoint_that_was_copied_into_a_run_is_left_out(
    folder: Path, tmp_path: Path, origin: str, caplog: Any
) -> None:
    copied = folder / "checkpoints" / name(9)
    if origin == "another run":
        copied = copied.with_name(name(4))
        write_three(tmp_path, "fedcba", (0, 0, 0, 9))
        source = tmp_path / "checkpoints" / name(4)
        reason = f"{copied} belongs to run fedcba, not to abcdef."
    else:
        source = folder / "checkpoints" / name(2)
        reason = f"{copied} is one of step 2."
    shutil.copytree(source, copied)
    for which, step in (("best", 2), ("last", 3)):
        chosen, warned = found(which, caplog)
        assert chosen == name(step)
        assert warned.endswith(f"{reason} Step {step} is taken.")
    with pytest.raises(RequestError, match=re.escape(reason)):
        find_checkpoint("abcdef", copied.name.lstrip("step-0"))
    # By its path it is that checkpoint, wherever it lies.
    assert find_checkpoint(str(copied)) == find_checkpoint("abcdef", str(copied)) == copied
    assert lasting_name(str(copied)) == str(copied)


@pytest.mark.parametrize("which", [-1, "x", "", "3.5"])
def test_what_is_no_checkpoint_is_refused(folder: Path, which: Any) -> None:
    for run in ("abcdef", str(folder / "checkpoints" / name(1))):
        with pytest.raises(RequestError, match=r"is not a checkpoint: it has no manifest\.json"):
            find_checkpoint(run, which)
    with pytest.raises(RequestError, match="is a model, which has no checkpoint"):
        find_checkpoint("models:/one/1", which)


def test_a_folder_may_be_given_from_the_home_folder(folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    assert find_checkpoint(f"~/{folder.name}").name == name(2)
    assert find_checkpoint(f"~/{folder.name}@1").name == name(1)
    assert find_checkpoint(f"~/{folder.name}/checkpoints/{name(1)}").name == name(1)
    assert find_checkpoint("abcdef", f"~/{folder.name}/checkpoints/{name(3)}").name == name(3)
    with pytest.raises(
        RequestError, match="'~no-such-user/x' begins with the home folder of a user"
    ):
        find_checkpoint("~no-such-user/x")
