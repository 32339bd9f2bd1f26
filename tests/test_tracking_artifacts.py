"""Artifacts of a run on the disk of its store: one copy, which either side can lose."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest

from rlplug import Acted, Algorithm, Module, resume, run
from rlplug.feeds import Stream

if TYPE_CHECKING:
    from mlflow import MlflowClient

MEMORY = Path("/dev/shm")


class Still(Module):
    """Always takes the first action."""

    def forward_exploration(self, act: Any) -> Acted:
        return Acted(numpy.zeros(len(act.observations), dtype=numpy.int64))

    forward_inference = forward_exploration


class Nothing(Algorithm):
    """Learns nothing."""

    def feed(self) -> Stream:
        return Stream()

    def build(self) -> Module:
        return Still()

    def configure_optimizers_for_module(self) -> None:
        return None

    def additional_update(self) -> None:
        return None


@pytest.fixture
def client(store_root: Path) -> MlflowClient:
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{store_root / 'mlflow.db'}")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder on another disk."""
    if not MEMORY.is_dir() or MEMORY.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system")
    folder = MEMORY / f"rlplug-test-{os.getpid()}"
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def train(**options: Any) -> Path:
    options = {"evaluation.episodes": 2, "evaluation.every": 20, **options}
    return run(Nothing, "LinearBandit-v0", steps=40, options=options).folder


def artifacts_of(client: MlflowClient, folder: Path) -> Path:
    return Path(client.get_run(folder.name).info.artifact_uri.removeprefix("file://"))


def files(folder: Path) -> dict[str, Path]:
    found = (one for one in folder.rglob("*") if one.is_file())
    return {one.relative_to(folder).as_posix(): one for one in found}


def test_artifacts_take_no_space_beside_the_folder_of_the_run(client: MlflowClient) -> None:
    folder = train()
    own = {(one.stat().st_dev, one.stat().st_ino) for one in files(folder).values()}
    there = files(artifacts_of(client, folder))
    assert {"config/config.toml", "report.html", "logs/run.log"} < set(there)
    assert any(name.startswith("checkpoints/") for name in there)
    copied = [n for n, one in there.items() if (one.stat().st_dev, one.stat().st_ino) not in own]
    assert copied == []


def test_each_of_folder_and_artifacts_survives_the_deletion_of_the_other(
    client: MlflowClient,
) -> None:
    for deleted in (lambda one: one, lambda one: artifacts_of(client, one)):
        folder = train()
        kept = [one for one in (folder, artifacts_of(client, folder)) if one != deleted(folder)]
        before = {name: one.read_bytes() for name, one in files(kept[0]).items()}
        shutil.rmtree(deleted(folder))
        assert {name: one.read_bytes() for name, one in files(kept[0]).items()} == before


def test_artifacts_that_were_deleted_are_there_again_after_the_run_went_on(
    client: MlflowClient,
) -> None:
    folder = train()
    place = artifacts_of(client, folder)
    shutil.rmtree(place)
    resume(folder, steps=80, algorithm=Nothing)
    there = files(place)
    assert {"config/config.toml", "checkpoints/step-000000000080/manifest.json"} < set(there)
    assert b"steps = 80" in there["config/config.toml"].read_bytes()


def test_on_another_disk_artifacts_are_copies(client: MlflowClient, elsewhere: Path) -> None:
    client.create_experiment("elsewhere", elsewhere.as_uri())
    folder = train(**{"tracking.experiment": "elsewhere"})
    there = files(elsewhere / folder.name / "artifacts")
    assert there["report.html"].read_bytes() == (folder / "report.html").read_bytes()
    assert not any(".artifact.uploading" in name for name in there)
