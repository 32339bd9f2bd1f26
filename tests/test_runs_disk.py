"""`rlplug runs rm` and `du`: what runs take, and that nothing is left of those removed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rlplug.config.sections import RunConfig, RunSection, TrackingSection
from rlplug.errors import RequestError
from rlplug.plugin import NoOptions
from rlplug.quantities import format_bytes
from rlplug.tracking import Tracking, open_tracking
from rlplug.tracking.disk import remove_run, usage_of
from rlplug.tracking.reading import recorded_runs

if TYPE_CHECKING:
    from tests.conftest import Outcome

Cli = Callable[..., "Outcome"]


def begun(root: Path, seed: int = 0, **tracking: Any) -> Tracking:
    config = RunConfig(
        run=RunSection(algorithm="none", steps=40, seed=seed),
        algorithm=NoOptions(),
        tracking=TrackingSection(**tracking),
    )
    started = open_tracking(config, environment="Hall-v0", root=root)
    file = started.folder / "checkpoints" / "step-1" / "policy.bin"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"0" * 1000)
    return started


def ended(root: Path, seed: int = 0, **tracking: Any) -> Path:
    run = begun(root, seed, **tracking)
    run.close("FINISHED")
    return run.folder


def test_a_removed_run_leaves_nothing_on_the_disk_and_is_deleted_in_mlflow(
    store_root: Path, rlplug: Cli
) -> None:
    from mlflow import MlflowClient

    removed, kept = ended(store_root, 0), ended(store_root, 1)
    client = MlflowClient(f"sqlite:///{store_root / 'mlflow.db'}")
    experiment = client.get_run(removed.name).info.experiment_id
    model = client.create_logged_model(experiment, source_run_id=removed.name)
    told = rlplug("runs", "rm", removed.name[:8], "--yes")
    assert (told.code, told.err) == (0, "")
    assert "removed 1 run: " in told.out
    assert told.out.endswith("kB freed\n")
    assert not list(store_root.glob(f"**/{removed.name}"))
    assert client.get_run(removed.name).info.lifecycle_stage == "deleted"
    assert not client.search_logged_models([experiment], f"model_id = '{model.model_id}'")
    assert client.get_run(kept.name).info.lifecycle_stage == "active"
    assert kept.is_dir()
    assert rlplug("show", removed.name[:8]).code == 2


def test_a_group_is_removed_as_a_whole_after_a_question(
    store_root: Path, rlplug: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (0, 1):
        ended(store_root, seed, enabled=False)
    first, second = recorded_runs(store_root)
    group, size = first.about.group, usage_of(first, store_root).total
    both = size + usage_of(second, store_root).total
    asked: list[str] = []
    answers = iter((False, False, True))
    monkeypatch.setattr("click.confirm", lambda text: asked.append(text) or next(answers))
    for named, code, left in ((first.run_id, 1, 2), (group, 1, 2), (group, 0, 0)):
        assert rlplug("runs", "rm", named).code == code
        assert len(recorded_runs(store_root)) == left
    assert asked == [
        f"remove this run, {format_bytes(size)}?",
        *[f"remove these 2 runs, {format_bytes(both)}?"] * 2,
    ]


def test_a_run_in_progress_is_not_removed(store_root: Path, rlplug: Cli) -> None:
    run = begun(store_root, enabled=False)
    try:
        told = rlplug("runs", "rm", "last", "--yes")
        assert told.code == 2
        assert f"run {run.run_id} ({run.run_name}) is in progress: nothing was removed." in told.err
        (record,) = recorded_runs(store_root)
        with pytest.raises(RequestError, match="is in progress"):
            remove_run(record, store_root)
    finally:
        run.close("FINISHED")
    assert run.folder.is_dir()


def test_nothing_is_removed_if_mlflow_does_not_answer(store_root: Path, rlplug: Cli) -> None:
    folder = ended(store_root)
    (store_root / "mlflow.db").write_text("no database")
    told = rlplug("runs", "rm", "last", "--yes")
    assert told.code == 2
    assert "file is not a database" in told.err
    assert "removed 0 runs" in told.out
    assert (folder / "run.json").is_file()


def test_the_largest_runs_are_listed_first_with_the_sizes_of_their_parts(
    store_root: Path, rlplug: Cli
) -> None:
    small, large = (ended(store_root, seed, enabled=False) for seed in (0, 1))
    (large / "replay").mkdir()
    (large / "replay" / "rows").write_bytes(b"0" * 200_000)
    os.link(large / "replay" / "rows", large / "replay" / "again")
    (store_root / "artifacts" / "a" / large.name).mkdir(parents=True)
    (store_root / "artifacts" / "a" / large.name / "file").write_bytes(b"0" * 50)
    rows = [json.loads(row) for row in rlplug("runs", "du", "--json").out.splitlines()]
    assert [row["run_id"] for row in rows] == [large.name, small.name]
    assert rows[0]["replay"] == 200_000
    assert rows[0]["checkpoints"] == 1000
    assert rows[0]["artifacts"] == 50
    usage = usage_of(recorded_runs(store_root)[0], store_root)
    assert usage.total == sum(usage.parts.values())
    printed = rlplug("runs", "du", "--limit", "1").out.splitlines()
    assert "200 kB" in printed[1]
    assert printed[2].startswith(f"2 runs in {store_root}: ")
