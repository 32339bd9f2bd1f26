"""Checkpoints are written beside a run, kept as asked for, and read back whole or not at all."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.numpy import load_file, save_file

import rlplug
from rlplug.checkpoint import (
    Checkpoints,
    Manifest,
    Snapshot,
    checkpoints_in,
    newest_valid,
    read_manifest,
    read_training,
)
from rlplug.checkpoint.manifest import digest
from rlplug.errors import RequestError
from tests.warm import Warm

OFF = {"tracking.enabled": False}


def snapshot_at(step: int, score: float = 0.0) -> Snapshot:
    return Snapshot(
        manifest=Manifest(
            run_id="r", step=step, updates=step, plugins={}, evaluation={"eval/return_mean": score}
        ),
        config="[run]\n",
        policy={"weights": torch.arange(step)},
        training={"optimizer": {}},
    )


def write(checkpoints: Checkpoints, step: int, score: float = 0.0) -> Path:
    return checkpoints.write(snapshot_at(step, score))


def test_the_best_so_many_and_the_first_after_each_multiple_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1, keep_best=2, keep_every=100)
    scores = {30: 9.0, 70: 5.0, 110: 1.0, 130: 7.0, 250: 2.0, 290: 3.0, 410: 9.0, 420: 8.0, 430: 0}
    for step, score in scores.items():
        write(checkpoints, step, score)
        checkpoints.prune()
    # The last one; 30 and 410 are best; 110, 250 and 410 are the first after 100, 200 and 400.
    kept = [int(one.name.removeprefix("step-")) for one in checkpoints_in(tmp_path)]
    assert kept == [30, 110, 250, 410, 430]


def test_what_cannot_be_read_is_neither_counted_nor_deleted(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    for step in (1, 2):
        write(checkpoints, step)
    (tmp_path / "step-000000000002" / "manifest.json").write_text("{")
    write(checkpoints, 3, 5.0)
    assert checkpoints.prune() == ["step-000000000001"]
    assert (tmp_path / "step-000000000002").exists()


def test_a_checkpoint_is_written_beside_the_run_and_told_of_once(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    for step in (1, 2):
        checkpoints.start(snapshot_at(step, score=step))
    assert checkpoints.is_writing
    told = checkpoints.finished(wait=True)
    assert [(one.step, one.path, one.error) for one in told] == [
        (step, tmp_path / f"step-{step:012d}", None) for step in (1, 2)
    ]
    assert told[1].deleted == ("step-000000000001",)
    assert (checkpoints.finished(wait=True), checkpoints.is_writing) == ([], False)


@pytest.mark.parametrize("then", ["write", "prune", "resume", "start"])
def test_whatever_comes_next_waits_for_the_one_that_is_being_written(
    tmp_path: Path, then: str
) -> None:
    told: list[str] = []

    def slowly() -> None:
        told.append("began")
        time.sleep(0.05)
        told.append("committed")

    checkpoints = Checkpoints(tmp_path, keep=1, before_commit=slowly)
    checkpoints.write(snapshot_at(1))
    checkpoints.start(snapshot_at(2))
    following = {
        "write": lambda: checkpoints.write(snapshot_at(3)),
        "prune": checkpoints.prune,
        "resume": lambda: checkpoints.resume_from(tmp_path / "step-000000000002"),
        "start": lambda: checkpoints.start(snapshot_at(3)),
    }
    following[then]()
    assert told[:4] == ["began", "committed"] * 2
    (*_, last) = checkpoints.finished(wait=True)
    assert last.error is None
    assert last.path == checkpoints_in(tmp_path)[-1] or then == "write"


def test_what_a_checkpoint_holds_does_not_change_with_the_run(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.start(snapshot_at(3))
    (one,) = checkpoints.finished(wait=True)
    assert one.path is not None
    again = Checkpoints(tmp_path / "again", keep=1).write(snapshot_at(3))
    other = Checkpoints(tmp_path / "other", keep=1).write(snapshot_at(4))
    digests = [read_manifest(path).state_digest for path in (one.path, again, other)]
    assert digests[0] == digests[1] != digests[2]


# -- resuming ------------------------------------------------------------------------------------


@pytest.fixture
def failed(home: Path, installed: Path) -> Path:
    """The folder of a run that failed at step 50, with checkpoints at 20 and 40."""
    del installed
    options = {**OFF, "checkpoint.every": 20, "evaluation.episodes": 0}
    with pytest.raises(ArithmeticError):
        rlplug.run("means", steps=60, options={**options, "fail_at": 50})
    (folder,) = home.glob("work/*")
    return folder


def cut_short(path: Path) -> None:
    (tensors,) = (path / "training").glob("tensors-*")
    tensors.write_bytes(tensors.read_bytes()[:-3])


def edit(path: Path) -> None:
    (path / "config.toml").write_text((path / "config.toml").read_text() + "#")


def without_manifest(path: Path) -> None:
    (path / "manifest.json").unlink()


def of_another_run(path: Path) -> None:
    change(path, run_id="another")


def of_another_step(path: Path) -> None:
    change(path, step=30)


def of_the_future(path: Path) -> None:
    change(path, format=3)


def of_the_past(path: Path) -> None:
    change(path, format=1)


def change(path: Path, **values: Any) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, **values}))


DAMAGES: dict[Callable[[Path], None], str] = {
    cut_short: "does not match its digest.",
    edit: "config.toml does not match its digest.",
    without_manifest: "is not a checkpoint: it has no manifest.json.",
    of_another_run: "belongs to run another, not to",
    of_another_step: "is one of step 30.",
    of_the_future: "has format 3, this rlplug reads 1 and 2.",
    of_the_past: "has format 1, which cannot be resumed from.",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda one: one.__name__)
def test_a_run_is_resumed_from_the_newest_checkpoint_that_can_be_read(
    failed: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    older, newer = checkpoints_in(failed / "checkpoints")
    damage(newer)
    assert newest_valid(failed, failed.name) == older
    assert f"the checkpoint {newer}" in caplog.text or f"warning: {newer}" in caplog.text
    assert DAMAGES[damage] in caplog.text
    assert "The run goes on from step 20." in caplog.text
    assert int(read_training(older)["policy"]["environment"]["has_id"]) == 1
    damage(older)
    with pytest.raises(RequestError, match=r"no checkpoint in .* can be resumed from:") as raised:
        newest_valid(failed, failed.name)
    assert str(raised.value).count(DAMAGES[damage]) == 2


@pytest.mark.parametrize("name", ["rewards", "running"])
def test_episode_statistics_of_another_shape_are_refused_with_the_path(
    failed: Path, name: str
) -> None:
    newest = checkpoints_in(failed / "checkpoints")[-1]
    index = json.loads((newest / "training" / "state.json").read_text())
    tensors = load_file(newest / "training" / index["tensors"])
    tensors[f"/run/sampler/modules/default/episode_stats/{name}"] = numpy.zeros((2, 1, 1))
    save_file(tensors, newest / "training" / index["tensors"])
    index["sha256"] = digest(newest / "training" / index["tensors"])
    (newest / "training" / "state.json").write_text(json.dumps(index))
    files = json.loads((newest / "manifest.json").read_text())["files"]
    change(newest, files={one: digest(newest / one) for one in files})
    with pytest.raises(RequestError, match=f"checkpoint {newest}.*\\n.*episode_stats/{name}: exp"):
        rlplug.resume(failed.name)


def test_a_run_without_checkpoints_has_none_to_resume_from(failed: Path) -> None:
    shutil.rmtree(failed / "checkpoints")
    assert newest_valid(failed) is None


def test_a_file_that_cannot_be_written_whole_costs_a_checkpoint_and_not_the_run(
    home: Path, tmp_path: Path, warm: Warm
) -> None:
    # No file may be larger than 100 kB: the tensors of the checkpoint are, its journal is not.
    source = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
from rlplug.cli import main
main(sys.argv[1:])
"""
    command = ["run", "--algo", "dqn", "--env", "CartPole-v1"]
    command += ["--steps", "300", "--set", "net_arch=[200, 200]", "--set", "tracking.enabled=false"]
    command += ["--set", "checkpoint.every=100", "--set", "learning_starts=50"]
    command += ["--set", "evaluation.episodes=0"]
    done = warm.start(*command, code=source, cwd=tmp_path)
    # It took all its steps, but what it learned is not on the disk.
    assert done.wait() == 1
    assert done.err.count("no checkpoint at step 100 (File too large); the run continues") == 1
    assert "the run is not complete on disk: there is no checkpoint" in done.err
    (folder,) = home.glob("work/*")
    assert list((folder / "checkpoints").iterdir()) == []
    # Nor are there rows of a replay buffer that no checkpoint needs.
    assert list((folder / "replay").iterdir()) == []


def test_what_fails_after_a_checkpoint_is_written_ends_the_run_and_leaves_the_checkpoint(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(checkpoints: Checkpoints) -> list[str]:
        raise PermissionError("rows cannot be deleted")

    monkeypatch.setattr(Checkpoints, "_delete_rows", fail)
    options = {"checkpoint.every": 20, "evaluation.episodes": 0, "tracking.enabled": False}
    with pytest.raises(PermissionError, match="rows cannot be deleted"):
        rlplug.run("linucb", steps=100, options=options)
    (folder,) = home.glob("work/*")
    assert [one.name for one in checkpoints_in(folder / "checkpoints")] == ["step-000000000020"]


def test_a_replay_buffer_is_uploaded_where_it_is_asked_for_and_only_what_is_kept(
    store_root: Path,
) -> None:
    options = {"learning_starts": 50, "buffer_size": 160, "evaluation.episodes": 0}
    for upload in (False, True):
        settings = {**options, "checkpoint.every": 40, "checkpoint.upload_replay": upload}
        result = rlplug.run("dqn", "CartPole-v1", steps=400, options=settings)
        here = {one.name for one in (result.folder / "replay").iterdir()}
        assert len(here) > 2
        there = {
            one.name for one in store_root.glob(f"artifacts/*/{result.run_id}/artifacts/replay/*")
        }
        assert there == (here if upload else set())
        saved = store_root.glob(
            f"artifacts/*/{result.run_id}/artifacts/checkpoints/*/manifest.json"
        )
        assert len(list(saved)) == 2
