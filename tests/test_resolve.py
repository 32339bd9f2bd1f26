"""Runs are found by what a person calls them, in the runs folder and in MLflow."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rlplug.checkpoint.lookup import find_checkpoint, run_to_resume
from rlplug.config.sections import RunConfig, RunSection
from rlplug.errors import RequestError
from rlplug.plugin import NoOptions
from rlplug.tracking import open_tracking
from rlplug.tracking.resolve import resolve, resolve_one, split_checkpoint

if TYPE_CHECKING:
    from tests.conftest import Outcome

Cli = Callable[..., "Outcome"]


def recorded(home: Path, run_id: str, name: str, score: float | None = None, **about: Any) -> Path:
    """The folder of a run, with its best evaluation."""
    folder = home / "work" / run_id
    folder.mkdir(parents=True)
    facts = {"run_name": name, "started": "2026-11-23T05:00:00+0000", "about": about}
    (folder / "run.json").write_text(json.dumps(facts))
    if score is not None:
        metrics = {"eval/best_return_mean": score, "eval/best_step": 10}
        line = json.dumps({"step": 20, "time": 0, "metrics": metrics})
        (folder / "metrics.jsonl").write_text(f"{line}\n")
    return folder


def group(home: Path, scores: Mapping[int, float | None]) -> None:
    for seed, score in scores.items():
        about = {"env": "Hall-v0", "group": "walk-Hall-v0-12ab", "seed": seed}
        recorded(home, f"{seed}{'e' * 31}", f"walk-Hall-v0-s{seed}", score, **about)


def test_a_group_is_all_of_its_runs_by_seed_and_its_best_where_one_is_needed(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    group(home, {2: 3.0, 0: 9.5, 1: float("nan")})
    assert [run.about.seed for run in resolve("walk-Hall-v0-12ab")] == [0, 1, 2]
    with caplog.at_level(logging.WARNING, "rlplug"):
        assert resolve_one("walk-Hall-v0-12ab").about.seed == 0
    assert "is a group of 3 runs; this is the best: 0eee" in caplog.text
    with pytest.raises(RequestError, match="is a group of 3 runs:") as raised:
        run_to_resume("walk-Hall-v0-12ab")
    assert f"2{'e' * 31}  walk-Hall-v0-s2" in raised.value.hints


def test_a_group_without_a_score_has_no_best_run(home: Path) -> None:
    group(home, {0: None, 1: float("nan")})
    with pytest.raises(RequestError, match="none of the 2 runs of the group"):
        resolve_one("walk-Hall-v0-12ab")


def test_best_is_the_highest_score_in_an_environment_or_a_group(home: Path) -> None:
    group(home, {0: 3.0, 1: 9.5, 2: float("nan")})
    recorded(home, "f" * 32, "jump", 12.0, env="Hall-v0", group="jump-Hall-v0-77aa")
    recorded(home, "d" * 32, "swim", 80.0, env="Pool-v0", group="swim-Pool-v0-77aa")
    assert resolve_one("best:Hall-v0").name == "jump"
    assert resolve_one("best:walk-Hall-v0-12ab").about.seed == 1
    with pytest.raises(RequestError, match="Did you mean 'best:Hall-v0'"):
        resolve("best:Hal-v0")


def test_near_runs_are_listed_for_an_unknown_one(home: Path) -> None:
    for day in ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday"):
        recorded(home, f"id-of-{day}", day)
    with pytest.raises(RequestError) as raised:
        resolve("tusday")
    assert "Did you mean 'tuesday'?" in str(raised.value)
    assert raised.value.hints[0] == "id-of-tuesday  tuesday"
    assert "id-of-friday  friday" not in raised.value.hints


def test_what_follows_the_last_at_sign_is_a_checkpoint_unless_a_run_is_named_so(
    home: Path,
) -> None:
    recorded(home, "a" * 32, "a@7")
    recorded(home, "b" * 32, "b")
    assert split_checkpoint("a@7") == ("a@7", "")
    assert split_checkpoint("a@7@40") == ("a@7", "40")
    assert split_checkpoint("b@best") == ("b", "best")
    assert split_checkpoint("b@home") == ("b@home", "")
    assert resolve_one("b@40").run_id == "b" * 32


@pytest.mark.parametrize("empty", ["", "  ", "best:", "best: ", " @last", "best:@40"])
def test_an_empty_name_is_no_run(
    home: Path, rlplug: Cli, monkeypatch: pytest.MonkeyPatch, empty: str
) -> None:
    folder = recorded(home, "a" * 32, "monday", 1.0, env="Hall-v0")
    monkeypatch.chdir(folder)
    for find in (resolve, find_checkpoint, run_to_resume):
        with pytest.raises(RequestError, match="names no run: the value is empty"):
            find(empty)
    outcome = rlplug("runs", "rm", empty, "--yes")
    assert outcome.code == 2
    assert "the value is empty" in outcome.err
    assert folder.is_dir()


def test_listing_and_finding_in_the_folder_do_not_ask_mlflow(
    home: Path, rlplug: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    group(home, {0: 1.0, 1: 2.0})
    # A database that cannot be opened: asking would fail.
    (home / "mlflow.db").write_text("no database")
    for text in ("last", "0eee", "walk-Hall-v0-s1", "walk-Hall-v0-12ab", "best:Hall-v0"):
        assert resolve(text)
    assert rlplug("runs").code == 0


def test_runs_that_mlflow_alone_has_are_found_also_in_progress(store_root: Path) -> None:
    folders = []
    for seed in (3, 4):
        section = RunSection(algorithm="none", steps=40, seed=seed)
        config = RunConfig(run=section, algorithm=NoOptions())
        tracking = open_tracking(
            config, environment="Hall-v0", chosen={"algorithm.alpha": "a b=c"}, root=store_root
        )
        values = {"eval/best_return_mean": 7.0 + seed, "eval/best_step": 10.0}
        tracking.listener.metrics_reported(20, values)
        folders.append(tracking.folder)
        if seed == 3:
            tracking.close("FINISHED")
    try:
        shutil.move(store_root / "work", store_root / "elsewhere")
        (ended,) = resolve(folders[0].name[:8])
        (running,) = resolve("none-Hall-v0-s4")
        assert (ended.status, ended.step, ended.best) == ("FINISHED", 20, (10, 10.0))
        assert ended.about.seed == 3
        assert ended.folder is None
        assert running.status == "RUNNING"
        assert [run.run_id for run in resolve(ended.about.group)] == [one.name for one in folders]
        assert resolve_one("best:Hall-v0").run_id == ended.run_id
        assert resolve_one("last").run_id == running.run_id
    finally:
        shutil.move(store_root / "elsewhere", store_root / "work")
        tracking.close("FINISHED")
