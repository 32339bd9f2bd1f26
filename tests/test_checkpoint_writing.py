"""Checkpoints are written beside a run, kept as asked for, and read back whole or not at all."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

import rlplug
from rlplug import AddOn, load_weights
from rlplug.checkpoint import checkpoints_in, read_manifest
from rlplug.checkpoint.checkpoints import Checkpoints
from rlplug.checkpoint.state import newest_valid, read_training
from rlplug.checkpoint.weights import save_module
from rlplug.errors import RequestError
from tests.checkpoint_files import write
from tests.warm import Warm

OFF = {"tracking.enabled": False}


def steps_in(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in checkpoints_in(folder)]


def write_scores(checkpoints: Checkpoints, scores: dict[int, float], **more: Any) -> list[int]:
    for step, score in scores.items():
        write(checkpoints, step, score, **more)
    return steps_in(checkpoints.folder)


def test_the_best_so_many_and_the_first_after_each_multiple_are_kept(tmp_path: Path) -> None:
    scores = {30: 9.0, 70: 5.0, 110: 1.0, 130: 7.0, 250: 2.0, 290: 3.0, 410: 9.0, 420: 8.0, 430: 0}
    # The last one; 30 and 410 are best; 110, 250 and 410 are the first after 100, 200 and 400.
    checkpoints = Checkpoints(tmp_path / "many", keep=1, keep_best=2, keep_every=100)
    assert write_scores(checkpoints, scores) == [30, 110, 250, 410, 430]
    # A score that is not a number is below all others; of equal ones, the first is the best.
    scores = {1: float("nan"), 2: -5.0, 3: float("nan"), 4: -5.0, 5: float("nan")}
    assert write_scores(Checkpoints(tmp_path / "one", keep=1), scores) == [2, 5]
    # Of several agents it is the latest: where some win what others lose, all are equal.
    more = {"evaluation": {"eval/agents/one/return_mean": 1.0}}
    checkpoints = Checkpoints(tmp_path / "agents", keep=1)
    assert write_scores(checkpoints, {1: 0.0, 2: -1.0, 3: 0.0, 4: -1.0}, **more) == [3, 4]


def test_what_cannot_be_read_is_neither_counted_nor_deleted(tmp_path: Path) -> None:
    (tmp_path / ".unfinished-step-000000000007-1").mkdir(parents=True)
    checkpoints = Checkpoints(tmp_path, keep=1)
    # What was left unfinished is swept away.
    assert list(tmp_path.iterdir()) == []
    damaged = write(checkpoints, 2) / "manifest.json"
    damaged.write_text("{")
    assert write_scores(checkpoints, {3: 0.0, 4: 5.0}) == [2, 4]


def test_equal_states_have_equal_digests(tmp_path: Path) -> None:
    digests = [
        read_manifest(write(Checkpoints(tmp_path / name, keep=1), step)).state_digest
        for name, step in (("one", 3), ("again", 3), ("other", 4))
    ]
    assert digests[0] == digests[1] != digests[2]


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name_and_the_name_after(
    tmp_path: Path, synced: list[int]
) -> None:
    before: list[int] = []
    path = write(Checkpoints(tmp_path, keep=1, before_commit=lambda: before.extend(synced)), 5)
    parts = [path, *path.rglob("*")]
    # With manifest, config, two folders, and their states.
    assert len(parts) >= 7
    assert sorted(before) == sorted(part.stat().st_ino for part in parts)
    assert synced == [*before, tmp_path.stat().st_ino]


def test_weights_that_are_parts_of_one_storage_are_written(tmp_path: Path) -> None:
    # As cuDNN has them of an LSTM.
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            flat = torch.arange(6.0)
            self.first, self.second = (nn.Parameter(part) for part in flat.split((4, 2)))
            self.tied = self.first
            self.turned = nn.Parameter(torch.arange(6.0).view(2, 3).t())

    written = save_module(Parts(), tmp_path)
    assert {name: part.tolist() for name, part in load_file(written).items()} == {
        "first": [0.0, 1.0, 2.0, 3.0],
        "tied": [0.0, 1.0, 2.0, 3.0],
        "second": [4.0, 5.0],
        "turned": [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]],
    }
    other = Parts()
    nn.init.zeros_(other.first)
    load_weights(other, written)
    assert other.tied.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_state_that_cannot_be_saved_is_told_to_the_run(home: Path) -> None:
    class Keeps(AddOn):
        def save_state(self) -> dict[str, Any]:
            return {"parts": [object()]}

        def load_state(self, state: Any) -> None: ...

    with pytest.raises(RequestError, match="state at plugin_states/keeps/parts/0 is object"):
        rlplug.run("linucb", steps=40, addons=[Keeps()], options=OFF)


# -- resuming ------------------------------------------------------------------------------------


@pytest.fixture
def failed(home: Path, installed: Path) -> Path:
    """The folder of a run that failed at step 50, with checkpoints at 20 and 40."""
    del installed
    options = {**OFF, "checkpoint.every": 20, "evaluation.episodes": 0}
    with pytest.raises(ArithmeticError):
        rlplug.run("means", steps=60, options={**options, "fail_at": 50})
    (folder,) = home.glob("work/*")
    files = [path for path in folder.glob("checkpoints/step-*/**/*") if path.is_file()]
    # No pickle.
    assert {path.suffix for path in files} == {".toml", ".json", ".safetensors"}
    return folder


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def cut_short(path: Path) -> None:
    (tensors,) = (path / "training").glob("tensors-*")
    tensors.write_bytes(tensors.read_bytes()[:-3])


def edit(path: Path) -> None:
    (path / "config.toml").write_text((path / "config.toml").read_text() + "#")


def without_manifest(path: Path) -> None:
    (path / "manifest.json").unlink()


def change(path: Path, **values: Any) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, **values}))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "does not match its digest.": cut_short,
    "config.toml does not match its digest.": edit,
    "is not a checkpoint: it has no manifest.json.": without_manifest,
    "belongs to run another, not to": lambda path: change(path, run_id="another"),
    "is one of step 30.": lambda path: change(path, step=30),
    "has format 2, this rlplug reads 4.": lambda path: change(path, format=2),
}


@pytest.mark.parametrize("said", DAMAGES)
def test_a_run_is_resumed_from_the_newest_checkpoint_that_can_be_read(
    failed: Path, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    older, newer = checkpoints_in(failed / "checkpoints")
    damage = DAMAGES[said]
    damage(newer)
    assert newest_valid(failed, failed.name) == older
    assert f"the checkpoint {newer}" in caplog.text or f"warning: {newer}" in caplog.text
    assert said in caplog.text
    assert "The run goes on from step 20." in caplog.text
    assert int(read_training(older)["policy"]["environment"]["has_id"]) == 1
    damage(older)
    with pytest.raises(RequestError, match=r"no checkpoint in .* can be resumed from:") as raised:
        newest_valid(failed, failed.name)
    assert str(raised.value).count(said) == 2
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
