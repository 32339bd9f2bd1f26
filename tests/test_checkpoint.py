from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy
import pytest
import torch

from rlplug import Acted, AddOn, Algorithm, Module, Registry, load, run
from rlplug.checkpoint import checkpoints_in, find_checkpoint, read_manifest
from rlplug.cli.outcome import print_result
from rlplug.feeds import Stream
from tests.warm import Forked, Warm

OFF = {"tracking.enabled": False}
Cli = Callable[..., Any]

pytestmark = pytest.mark.usefixtures("home", "installed")


class Four(gymnasium.Env[Any, Any]):
    """Four steps, each of which pays the action."""

    observation_space = gymnasium.spaces.Box(0, 4, (1,), numpy.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.taken = 0
        return numpy.zeros(1), {}

    def step(self, action: Any) -> Any:
        self.taken += 1
        return numpy.full(1, self.taken), float(action), self.taken == 4, False, {}


class CounterModule(Module):
    """Has counted the updates; chooses action 1 once there were more than 50 and until 85."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward_exploration(self, act: Any) -> Acted:
        return Acted(numpy.zeros(len(act.observations), dtype=numpy.int64))

    def forward_inference(self, act: Any) -> Acted:
        good = 50 < int(self.count) <= 85
        return Acted(numpy.full(len(act.observations), int(good)))


class Counter(Algorithm):
    """Learns nothing but how many updates there were."""

    def feed(self) -> Stream:
        return Stream()

    def build(self) -> Module:
        return CounterModule()

    def configure_optimizers_for_module(self) -> None:
        return None

    def additional_update(self, module: CounterModule) -> None:
        module.count += 1


class Watcher(AddOn):
    """Writes down what it hears."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.heard: list[tuple[str, int]] = []

    def evaluation_finished(self, step: int, metrics: Any) -> None:
        self.heard.append((f"eval {metrics['eval/return_mean']:g}", step))

    def checkpoint_saved(self, step: int, path: Path) -> None:
        assert (path / "manifest.json").is_file()
        self.heard.append(("saved", step))


def steps_of(folder: Path) -> list[int]:
    return [read_manifest(one).step for one in checkpoints_in(folder / "checkpoints")]


# -- when a run is evaluated and saved ----------------------------------------------------------


def test_a_run_is_evaluated_at_multiples_and_at_its_end_and_saved_where_it_was_better() -> None:
    watcher = Watcher()
    result = run(
        Counter, Four, steps=110, addons=[watcher], options={**OFF, "evaluation.every": 20}
    )
    # A checkpoint is told of when it is on the disk, while the run goes on.
    returns = {20: 0, 40: 0, 60: 4, 80: 4, 100: 0, 110: 0}
    assert evaluated(watcher) == [(f"eval {score}", step) for step, score in returns.items()]
    saved = [("saved", step) for step in (20, 60, 110)]
    assert [one for one in watcher.heard if one[0] == "saved"] == saved
    assert watcher.heard.index(("saved", 20)) > watcher.heard.index(("eval 0", 20))
    assert watcher.heard[-1] == ("saved", 110)
    # The last two are kept, and the best is one of them.
    assert steps_of(result.folder) == [60, 110]
    assert result.metrics["eval/return_mean"] == 0.0
    assert result.metrics["eval/episodes"] == 10.0
    rows = map(json.loads, (result.folder / "metrics.jsonl").read_text().splitlines())
    name = "eval/return_mean"
    journal = {row["step"]: row["metrics"][name] for row in rows if name in row["metrics"]}
    assert journal == returns


def evaluated(watcher: Watcher) -> list[tuple[str, int]]:
    return [(what, step) for what, step in watcher.heard if what != "saved"]


def test_the_best_evaluation_is_told_where_the_last_is_another(capsys: Any) -> None:
    options = {**OFF, "evaluation.every": 20}
    result = run(Counter, Four, steps=100, options=options)
    # The last was made at a multiple that is also the end, and is no better than an earlier one.
    last = read_manifest(checkpoints_in(result.folder / "checkpoints")[-1])
    assert (last.step, last.evaluation["eval/return_mean"]) == (100, 0.0)
    assert (result.best, result.as_json()["best"]) == ((60, 4.0), {"step": 60, "return_mean": 4.0})
    print_result(result)
    out = capsys.readouterr().out
    assert re.search(r"^best eval +4 at step 60 \(used by eval and load\)$", out, re.MULTILINE)
    result = run(Counter, Four, steps=60, options=options)
    print_result(result)
    assert result.best == (60, 4.0)
    assert "best eval" not in capsys.readouterr().out
    assert run(Counter, Four, steps=20, options={**OFF, "evaluation.episodes": 0}).best is None


def test_what_cannot_be_written_at_the_end_does_not_take_the_run_along(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class InTheWay(AddOn):
        def run_started(self, run: Any) -> None:
            (run.folder / "module.safetensors").mkdir()

    result = run(Counter, Four, steps=20, addons=[InTheWay()], options=OFF)
    assert result.status == "FINISHED"
    assert f"no module.safetensors in {result.folder} (" in caplog.text
    assert not list((result.folder / "module.safetensors").iterdir())
    assert steps_of(result.folder)[-1] == 20


def test_an_episodic_run_is_evaluated_ten_times_unless_told_otherwise() -> None:
    for options, expected in (
        ({}, list(range(10, 101, 10))),
        ({"evaluation.every": 0}, [100]),
        ({"evaluation.episodes": 0}, []),
    ):
        watcher = Watcher()
        run(Counter, Four, steps=100, addons=[watcher], options={**OFF, **options})
        assert [step for _, step in evaluated(watcher)] == expected


def test_a_bandit_is_evaluated_only_if_it_is_asked_for() -> None:
    assert "eval/return_mean" not in run("means", steps=100, options=OFF).metrics
    asked = run("means", steps=500, options={**OFF, "evaluation.episodes": 400})
    # One step of a linear bandit pays about a half; in another problem, these arms would pay none.
    assert asked.metrics["eval/return_mean"] == pytest.approx(
        asked.metrics["rollout/reward_mean"], abs=0.35
    )
    assert asked.metrics["eval/length_mean"] == 1.0


def test_a_bandit_is_evaluated_on_the_problem_it_was_trained_on() -> None:
    options = {**OFF, "evaluation.episodes": 50, "env.noise": 0.0, "env.num_arms": 2}
    result = run("means", steps=400, seed=3, options=options)
    saved = read_manifest(find_checkpoint(result.run_id))
    own = result.module.means().max()  # type: ignore[operator] # of the small plugin
    assert saved.evaluation["eval/return_mean"] == pytest.approx(own, abs=0.2)


def test_evaluating_changes_nothing_else() -> None:
    def numbers(episodes: int) -> Any:
        options = {**OFF, "evaluation.episodes": episodes, "evaluation.every": 50}
        metrics = run("means", steps=300, options=options).metrics
        return {name: x for name, x in metrics.items() if name.startswith(("rollout/", "train/"))}

    assert numbers(0) == numbers(20)


@pytest.mark.parametrize(
    ("limit", "step", "said"),
    [
        (("stop_at_return", 4), 60, "mean return 4 reached evaluation.stop_at_return = 4"),
        # 0 at step 20 is the best until 60, where 4 is; 80 and 100 are no better.
        (("patience", 2), 100, "evaluation.patience"),
    ],
)
def test_a_limit_of_evaluations_ends_the_run_as_finished_and_says_why(
    limit: tuple[str, int], step: int, said: str
) -> None:
    name, value = limit
    options = {**OFF, "evaluation.every": 20, f"evaluation.{name}": value}
    result = run(Counter, Four, steps=1_000, options=options)
    assert (result.status, result.step) == ("FINISHED", step)
    assert said in result.stopped


def test_checkpoints_come_at_multiples_of_steps_and_updates_and_only_so_many_are_kept() -> None:
    watcher = Watcher()
    options = {**OFF, "evaluation.episodes": 0, "checkpoint.every": 30, "checkpoint.keep": 3}
    result = run(Counter, Four, steps=150, addons=[watcher], options=options)
    assert watcher.heard == [("saved", step) for step in (30, 60, 90, 120, 150)]
    assert steps_of(result.folder) == [90, 120, 150]
    watcher = Watcher()
    options = {**OFF, "evaluation.episodes": 0, "checkpoint.updates": 16, "num_envs": 2}
    run(Counter, Four, steps=100, addons=[watcher], options=options)
    # An update for every second step; at autoresets, for none or one.
    assert len(watcher.heard) == 4
    assert watcher.heard[0][1] >= 24


def test_a_disk_that_is_full_costs_a_checkpoint_and_not_the_run(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Fills(AddOn):
        """Puts a file where the folder of checkpoints was."""

        def run_started(self, run: Any) -> None:
            (run.folder / "checkpoints").rmdir()
            (run.folder / "checkpoints").write_text("in the way")

    result = run(Counter, Four, steps=40, addons=[Fills()], options=OFF)
    assert result.status == "FINISHED"
    said = [one.getMessage() for one in caplog.records]
    assert len(said) == 1
    assert said[0].startswith(
        "rlplug: no checkpoint at step 4 (Not a directory); the run continues"
    )


# -- finding a run ------------------------------------------------------------------------------


def test_a_checkpoint_is_found_by_its_step_for_eval_load_and_init_from(
    home: Path, rlplug: Cli
) -> None:
    options = {**OFF, "checkpoint.every": 20, "checkpoint.keep": 3, "tracking.run_name": "a@7"}
    result = run("means", steps=60, options=options)
    path = result.folder / "checkpoints" / "step-000000000040"
    for said in (f"{result.run_id}@40", "last@40", "a@7@40", f"{result.folder}@40"):
        assert find_checkpoint(said) == path
    assert find_checkpoint(result.run_id, "40") == path
    assert find_checkpoint("a@7@last") == find_checkpoint("a@7", "last")
    assert load("last@20").step == 20
    assert f"of step 40, {path}" in rlplug("eval", "last@40", "--episodes", "1").out
    arguments = ["--algo", "means", "--steps", "20", "--set", "tracking.enabled=false"]
    assert rlplug("run", *arguments, "--init-from", f"{result.run_id}@20").code == 0
    done = rlplug("eval", "a@7@30")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "rlplug: error: run 'a@7' has no checkpoint at step 30.\n"
        "  it has: 20, 40, 60\n  try: a@7@20\n"
    )


def test_a_run_that_is_not_here_is_fetched_from_mlflow(store_root: Path) -> None:
    options = {"evaluation.episodes": 20, "evaluation.every": 40}
    result = run("means", steps=120, options=options)
    here = {one.name for one in (result.folder / "checkpoints").iterdir() if one.is_dir()}
    result.folder.rename(store_root / "elsewhere")
    path = find_checkpoint(result.run_id, "last")
    assert path.is_relative_to(store_root / "fetched" / result.run_id)
    assert {one.name for one in path.parent.iterdir()} == here
    assert read_manifest(path).step == 120
    policy = load(result.run_id, checkpoint="last")
    assert policy.module.counts.tolist() == result.module.counts.tolist()  # type: ignore[operator] # buffers


# -- a crash ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "delays", [(0.0, 0.007), pytest.param((0.003, 0.011), marks=pytest.mark.long)]
)
def test_kill_9_at_any_moment_leaves_a_checkpoint_that_can_be_loaded(
    site: Path, home: Path, tmp_path: Path, warm: Warm, delays: tuple[float, ...]
) -> None:
    command = ["run", "--algo", "means", "--steps", "100000000"]
    command += ["--set", "checkpoint.every=1", "--set", "tracking.enabled=false", "--quiet"]
    for delay in delays:
        process = warm.start(*command, cwd=tmp_path, paths=[site])
        folder = _first_checkpoint(process, home)
        # In mid-write more often than not: nearly all the time goes into checkpoints.
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        policy = load(folder)
        newest = checkpoints_in(folder / "checkpoints")[-1]
        assert policy.step == read_manifest(newest).step
        assert int(policy.module.counts.sum()) == policy.step  # type: ignore[operator] # a buffer
        folder.rename(tmp_path / f"killed-{delay}")


def _first_checkpoint(process: Forked, home: Path) -> Path:
    """The folder of the run, once it has written its third checkpoint."""
    while True:
        assert process.poll() is None, process.err
        for folder in home.glob("work/*"):
            # By their names, for the run may delete one before its manifest is read.
            names = [one.name for one in checkpoints_in(folder / "checkpoints")]
            if any(int(name.removeprefix("step-")) >= 3 for name in names):
                return folder
        time.sleep(0.001)


def test_an_interrupted_run_is_kept_as_it_stood(home: Path) -> None:
    class Stops(AddOn):
        """Interrupts the run as a person would."""

        def update_finished(self, step: int) -> None:
            if step == 33:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as raised:
        run("means", steps=1_000, addons=[Stops()], options=OFF)
    result = raised.value.result  # type: ignore[attr-defined] # RunInterrupted
    registry = Registry((*Registry.installed().found, *Registry.of(stops=Stops).found))
    assert load(result.folder, registry=registry).step == 33


def test_a_run_is_found_by_id_beginning_name_and_folder() -> None:
    result = run("means", steps=20, options=OFF)
    expected = result.folder / "checkpoints" / "step-000000000020"
    for said in (
        result.run_id,
        result.run_id[:8],
        "means-LinearBandit-v0-s0",
        str(result.folder),
        str(expected),
    ):
        assert find_checkpoint(said) == expected
