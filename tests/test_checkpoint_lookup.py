"""Which checkpoint of a run is found where files of the run, or of a checkpoint, are damaged."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlplug.checkpoint import Checkpoints, Manifest, Snapshot, find_checkpoint
from rlplug.errors import RequestError
from rlplug.tracking.status import Pending, RunStatus

pytestmark = pytest.mark.usefixtures("home", "installed")


def write(folder: Path, **scores: float) -> list[Path]:
    """A run's checkpoints at step 1, 2 and 3, with these scores."""
    checkpoints = Checkpoints(folder / "checkpoints", keep=9)
    made = []
    for step, score in enumerate(scores.values(), 1):
        manifest = Manifest(
            run_id="abcdef",
            step=step,
            updates=step,
            plugins={},
            evaluation={"eval/return_mean": score},
        )
        made.append(
            checkpoints.write(Snapshot(manifest=manifest, config="", policy={}, training={}))
        )
    return made


@pytest.fixture
def folder(home: Path) -> Path:
    folder = home / "work" / "abcdef"
    write(folder, first=1.0, best=3.0, last=2.0)
    (folder / "run.json").write_text(json.dumps({"run_name": "monday"}))
    return folder


def lose(manifest: Path) -> None:
    manifest.unlink()


def make_a_folder(manifest: Path) -> None:
    manifest.unlink()
    manifest.mkdir()


DAMAGES = pytest.mark.parametrize("damage", [lose, make_a_folder])


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
    assert warned.endswith(" The checkpoint of step 3 is taken.")
    # The last one is another, whatever became of those before.
    assert found("last", caplog) == (name(3), "")
    assert found("1", caplog) == (name(1), "")
    with pytest.raises(RequestError, match=str(lost)):
        find_checkpoint("abcdef@2")
    with pytest.raises(RequestError, match="no checkpoint at step 7"):
        find_checkpoint("abcdef@7")


@DAMAGES
def test_the_last_checkpoint_without_manifest_is_told(
    folder: Path, damage: Callable[[Path], None], caplog: Any
) -> None:
    lost = folder / "checkpoints" / name(3)
    damage(lost / "manifest.json")
    chosen, warned = found("last", caplog)
    assert chosen == name(2)
    assert str(lost) in warned


@DAMAGES
def test_where_no_checkpoint_has_a_manifest_the_last_one_is_refused(
    folder: Path, damage: Callable[[Path], None]
) -> None:
    for step in (1, 2, 3):
        damage(folder / "checkpoints" / name(step) / "manifest.json")
    with pytest.raises(RequestError, match=f"{name(3)}.*manifest.json"):
        find_checkpoint("abcdef")


STATUS = {
    "status": "FINISHED",
    "step": 3,
    "stop_reason": "",
    "started": "",
    "ended": "",
    "attempt": 1,
    "pending": {"points": 0, "artifacts": 0, "tags": 0},
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("step", value) for value in ("x", [], -1, 1.5, True, None)),
        ("attempt", "x"),
        *(("pending", value) for value in ([], 3, {"points": "x"}, {"files": 1})),
        *((name, 3) for name in ("status", "stop_reason", "started", "ended")),
    ],
)
def test_a_status_of_the_wrong_content_is_none(folder: Path, key: str, value: Any) -> None:
    path = folder / "status.json"
    path.write_text(json.dumps(STATUS))
    sound = RunStatus(status="FINISHED", step=3, pending=Pending())
    assert RunStatus.read(folder) == sound
    path.write_text(json.dumps({**STATUS, key: value}))
    assert RunStatus.read(folder) is None
    # Which does not keep anybody from loading what there is.
    assert find_checkpoint("abcdef").name == find_checkpoint(str(folder)).name == name(2)


def test_a_name_that_is_too_long_for_a_path_is_refused() -> None:
    with pytest.raises(RequestError, match=r"no checkpoint at a{5000}: File name too long\."):
        find_checkpoint("a" * 5000)


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
