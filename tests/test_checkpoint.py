from __future__ import annotations

import json
import os
import re
import signal
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy
import pytest
import torch
from safetensors.torch import load_file

from rlplug import Acted, AddOn, Algorithm, Module, load, run
from rlplug.checkpoint import (
    Checkpoints,
    Manifest,
    Snapshot,
    checkpoints_in,
    find_checkpoint,
    read_manifest,
    save_module,
)
from rlplug.checkpoint.manifest import best_in
from rlplug.checkpoint.weights import load_weights
from rlplug.cli.outcome import print_result
from rlplug.errors import RequestError
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
    assert [one for one in watcher.heard if one[0] != "saved"] == [
        ("eval 0", 20),
        ("eval 0", 40),
        ("eval 4", 60),
        ("eval 4", 80),
        ("eval 0", 100),
        ("eval 0", 110),
    ]
    saved = [("saved", step) for step in (20, 60, 110)]
    assert [one for one in watcher.heard if one[0] == "saved"] == saved
    assert watcher.heard.index(("saved", 20)) > watcher.heard.index(("eval 0", 20))
    assert watcher.heard[-1] == ("saved", 110)
    # The last two are kept, and the best is one of them.
    assert steps_of(result.folder) == [60, 110]
    assert result.metrics["eval/return_mean"] == 0.0
    assert result.metrics["eval/episodes"] == 10.0


def test_what_the_last_evaluation_found_is_kept_beside_what_it_evaluated() -> None:
    # Made at a multiple that is also the end, and no better than an earlier one.
    result = run(Counter, Four, steps=100, options={**OFF, "evaluation.every": 20})
    last = read_manifest(checkpoints_in(result.folder / "checkpoints")[-1])
    assert (last.step, last.evaluation["eval/return_mean"]) == (100, 0.0)


def test_the_best_evaluation_is_told_where_the_last_is_another(capsys: Any) -> None:
    options = {**OFF, "evaluation.every": 20}
    result = run(Counter, Four, steps=100, options=options)
    assert (result.best, result.as_json()["best"]) == ((60, 4.0), {"step": 60, "return_mean": 4.0})
    print_result(result)
    out = capsys.readouterr().out
    assert "eval return" in out
    assert re.search(r"^best eval +4 at step 60 \(used by eval and load\)$", out, re.MULTILINE)
    result = run(Counter, Four, steps=60, options=options)
    print_result(result)
    assert result.best == (60, 4.0)
    assert "best eval" not in capsys.readouterr().out
    assert run(Counter, Four, steps=20, options={**OFF, "evaluation.episodes": 0}).best is None


def test_a_report_comes_after_the_evaluation_of_its_step() -> None:
    class Order(Watcher):
        def metrics_reported(self, step: int, metrics: Any) -> None:
            if step % 50 == 0:
                self.heard.append(("report", step))

    watcher = Order()
    run(Counter, Four, steps=100, addons=[watcher], options={**OFF, "evaluation.every": 50})
    assert [one for one in watcher.heard if one[0] != "saved"] == [
        ("eval 0", 50),
        ("report", 50),
        ("eval 0", 100),
        ("report", 100),
    ]


def test_what_cannot_be_written_at_the_end_does_not_take_the_run_along(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class InTheWay(AddOn):
        def run_started(self, run: Any) -> None:
            (run.folder / "module.tmp").mkdir()

    result = run(Counter, Four, steps=20, addons=[InTheWay()], options=OFF)
    assert result.status == "FINISHED"
    assert f"no module.safetensors in {result.folder} (" in caplog.text
    assert not (result.folder / "module.safetensors").exists()
    assert steps_of(result.folder)[-1] == 20


def test_a_run_that_takes_notably_more_steps_than_asked_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = {**OFF, "num_envs": 40, "evaluation.episodes": 0}
    assert run(Counter, Four, steps=100, options=options).step == 120
    said = "steps are collected 40 at a time: the run takes 120 instead of 100."
    assert said in caplog.text
    caplog.clear()
    run(Counter, Four, steps=1_170, options=options)
    assert "at a time" not in caplog.text


def test_evaluations_are_in_the_journal_at_their_steps() -> None:
    result = run(Counter, Four, steps=60, options={**OFF, "evaluation.every": 20})
    lines = (result.folder / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    found = {
        row["step"]: row["metrics"]["eval/return_mean"]
        for row in rows
        if "eval/return_mean" in row["metrics"]
    }
    assert found == {20: 0.0, 40: 0.0, 60: 4.0}


def test_an_episodic_run_is_evaluated_ten_times_unless_told_otherwise() -> None:
    for options, expected in (
        ({}, [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]),
        ({"evaluation.every": 0}, [100]),
        ({"evaluation.episodes": 0}, []),
    ):
        watcher = Watcher()
        run(Counter, Four, steps=100, addons=[watcher], options={**OFF, **options})
        assert [step for what, step in watcher.heard if what != "saved"] == expected


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


def test_a_threshold_ends_the_run_as_finished_and_says_why(rlplug: Cli) -> None:
    result = run(
        Counter,
        Four,
        steps=1_000,
        options={**OFF, "evaluation.every": 20, "evaluation.stop_at_return": 4.0},
    )
    assert (result.status, result.step) == ("FINISHED", 60)
    assert result.stopped == "mean return 4 reached evaluation.stop_at_return = 4"


def test_patience_ends_the_run() -> None:
    result = run(
        Counter,
        Four,
        steps=1_000,
        options={**OFF, "evaluation.every": 20, "evaluation.patience": 2},
    )
    # 0 at step 20 is the best until 60, where 4 is; 80 and 100 are no better.
    assert result.step == 100


def test_checkpoints_come_at_multiples_and_only_so_many_are_kept() -> None:
    watcher = Watcher()
    options = {**OFF, "evaluation.episodes": 0, "checkpoint.every": 30, "checkpoint.keep": 3}
    result = run(Counter, Four, steps=150, addons=[watcher], options=options)
    assert watcher.heard == [("saved", step) for step in (30, 60, 90, 120, 150)]
    assert steps_of(result.folder) == [90, 120, 150]


def test_the_best_is_kept_however_old_it_is() -> None:
    options = {**OFF, "evaluation.every": 30, "checkpoint.every": 15, "checkpoint.keep": 1}
    result = run(Counter, Four, steps=150, options=options)
    assert steps_of(result.folder) == [60, 150]
    assert find_checkpoint(result.run_id).name == "step-000000000060"
    assert find_checkpoint(result.run_id, "last").name == "step-000000000150"


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


# -- what a checkpoint is -----------------------------------------------------------------------


def manifest(step: int, score: float = 0.0, **more: float) -> Manifest:
    evaluation = {"eval/return_mean": score, **more}
    return Manifest(run_id="r", step=step, updates=step, plugins={}, evaluation=evaluation)


def snapshot_at(step: int, score: float = 0.0, **more: float) -> Snapshot:
    return Snapshot(
        manifest=manifest(step, score, **more),
        config="[run]\n",
        policy={"weights": torch.arange(step)},
        training={"optimizer": {}},
    )


def write(checkpoints: Checkpoints, step: int, score: float = 0.0, **more: float) -> Path:
    return checkpoints.write(snapshot_at(step, score, **more))


def test_what_was_left_unfinished_is_swept_away(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    (folder / ".unfinished-step-000000000007-1").mkdir(parents=True)
    checkpoints = Checkpoints(folder, keep=2)
    write(checkpoints, 5)
    assert [one.name for one in folder.iterdir()] == ["step-000000000005"]


def test_pruning_keeps_the_best_and_the_last_and_names_the_rest(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    for step, score in ((1, 5.0), (2, 9.0), (3, 9.0), (4, 1.0)):
        write(checkpoints, step, score)
    assert checkpoints.prune() == ["step-000000000001", "step-000000000003"]
    assert [one.name for one in checkpoints_in(tmp_path)] == [
        "step-000000000002",
        "step-000000000004",
    ]


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name_and_the_name_after(
    tmp_path: Path, synced: list[int]
) -> None:
    before: list[int] = []
    one = Checkpoints(tmp_path, keep=1, before_commit=lambda: before.extend(synced))
    path = write(one, 5)
    parts = [path, *path.rglob("*")]
    # With manifest, config, two folders, and their states.
    assert len(parts) >= 7
    assert sorted(before) == sorted(part.stat().st_ino for part in parts)
    assert synced == [*before, tmp_path.stat().st_ino]


def test_the_module_of_a_run_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, synced: list[int]
) -> None:
    assert synced == [save_module(CounterModule(), tmp_path).stat().st_ino]


def test_a_state_that_cannot_be_saved_is_told_to_the_run() -> None:
    class Keeps(AddOn):
        def save_state(self) -> dict[str, Any]:
            return {"parts": [object()]}

        def load_state(self, state: Any) -> None: ...

    with pytest.raises(RequestError, match="state at plugin_states/keeps/parts/0 is object"):
        run(Counter, Four, steps=40, addons=[Keeps()], options=OFF)


def test_checkpoints_come_at_multiples_of_updates() -> None:
    watcher = Watcher()
    options = {**OFF, "evaluation.episodes": 0, "checkpoint.updates": 16, "num_envs": 2}
    run(Counter, Four, steps=100, addons=[watcher], options=options)
    # An update for every second step; at autoresets, for none or one.
    assert len(watcher.heard) == 4
    assert watcher.heard[0][1] >= 24


def test_a_score_that_is_not_a_number_is_below_all_others(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=9)
    for step, score in ((1, float("nan")), (2, -5.0), (3, float("nan"))):
        write(checkpoints, step, score)
    assert [one.name for one in best_in(checkpoints_in(tmp_path))] == ["step-000000000002"]


@pytest.mark.parametrize(("of_agents", "best"), [(False, 1), (True, 3)])
def test_of_equal_scores_the_first_is_the_best_and_of_several_agents_the_latest(
    tmp_path: Path, of_agents: bool, best: int
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    more = {"eval/agents/one/return_mean": 1.0} if of_agents else {}
    for step, score in ((1, 0.0), (2, -1.0), (3, 0.0), (4, -1.0)):
        write(checkpoints, step, score, **more)
    checkpoints.prune()
    # The best one is kept beside the last one.
    assert [read_manifest(one).step for one in checkpoints_in(tmp_path)] == [best, 4]
    assert [read_manifest(one).step for one in best_in(checkpoints_in(tmp_path))] == [best]


@pytest.mark.parametrize("name", ["config.toml", "policy/state.json"])
def test_a_file_that_is_damaged_or_missing_is_named(tmp_path: Path, name: str) -> None:
    path = write(Checkpoints(tmp_path, keep=1), 5)
    (path / name).write_text("{")
    with pytest.raises(RequestError, match=rf"{name} does not match its digest"):
        find_checkpoint(str(path))
    (path / name).unlink()
    with pytest.raises(RequestError, match=rf"{name} is missing"):
        find_checkpoint(str(path))


def test_a_manifest_of_another_format_says_which(tmp_path: Path) -> None:
    path = write(Checkpoints(tmp_path, keep=1), 5)
    content = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**content, "format": 99}))
    with pytest.raises(RequestError, match="has format 99, this rlplug reads 1 and 2"):
        find_checkpoint(str(path))


def test_no_file_of_a_checkpoint_is_a_pickle(home: Path) -> None:
    result = run(Counter, Four, steps=20, options=OFF)
    folders = (result.folder / "checkpoints").glob("step-*")
    files = [one for folder in folders for one in folder.rglob("*") if one.is_file()]
    assert {one.suffix for one in files} == {".toml", ".json", ".safetensors"}


# -- finding a run ------------------------------------------------------------------------------


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


def begun(home: Path, run_id: str, name: str, age: float = 0.0) -> Path:
    """The folder of a run with a checkpoint, that began so many seconds ago."""
    folder = home / "work" / run_id
    write(Checkpoints(folder / "checkpoints", keep=1), 5)
    file = folder / "run.json"
    file.write_text(json.dumps({"run_name": name}))
    os.utime(file, (time.time() - age, time.time() - age))
    return folder


def test_at_least_four_letters_of_an_id_find_its_run(home: Path) -> None:
    begun(home, "abcdef", "monday")
    assert find_checkpoint("abcd").parent.parent.name == "abcdef"
    with pytest.raises(RequestError, match="there is no run 'abc'"):
        find_checkpoint("abc")


def test_the_newest_run_is_the_last(home: Path, rlplug: Cli) -> None:
    assert "there is no run 'last'" in rlplug("eval", "last").err
    for name, age in (("older", 60.0), ("newer", 0.0), ("oldest", 120.0)):
        begun(home, name, name, age)
    assert find_checkpoint("last").parent.parent.name == "newer"


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


@pytest.mark.long
def test_what_a_run_starts_from_is_recorded_by_id_and_step_and_seeds_start_from_the_same(
    home: Path, rlplug: Cli
) -> None:
    first = run("means", steps=60, options={**OFF, "checkpoint.every": 20})
    arguments = ["--algo", "means", "--steps", "20", "--set", "tracking.enabled=false"]
    for more in (
        ("--init-from", "last", "--seeds", "2", "--jobs", "1"),
        ("--init-from", "last@20"),
    ):
        assert rlplug("run", *arguments, *more).code == 0
    named = [
        tomllib.loads(file.read_text())["run"].get("init_from", "")
        for file in sorted(home.glob("work/*/config.toml"), key=lambda file: file.stat().st_ctime)
    ]
    assert named[:3] == ["", *[f"{first.run_id}@60"] * 2]
    assert named[3].endswith("@20")
    assert (home / "work" / named[3].partition("@")[0]).is_dir()


def test_the_newest_runs_are_shown_first(home: Path) -> None:
    for age in (3, 1, 6, 2, 5, 4):
        begun(home, f"id-{age}", f"run {age}", age * 60.0)
    with pytest.raises(RequestError) as raised:
        find_checkpoint("tuesday")
    shown = [hint for hint in raised.value.hints if hint.startswith("id-")]
    assert shown == [f"id-{age}  run {age}" for age in (1, 2, 3, 4, 5)]


def test_an_unknown_run_is_refused_with_the_nearest_and_the_newest(rlplug: Cli) -> None:
    result = run("means", steps=20, options={**OFF, "tracking.run_name": "monday"})
    done = rlplug("eval", "mondya")
    assert done.code == 2
    assert "there is no run 'mondya'" in done.err
    assert "Did you mean 'monday'?" in done.err
    assert f"{result.run_id}  monday" in done.err


def test_a_name_that_two_runs_share_is_refused_with_both() -> None:
    ids = [run("means", steps=20, options=OFF).run_id for _ in range(2)]
    with pytest.raises(RequestError, match="'means-LinearBandit-v0-s0' matches 2 runs") as raised:
        find_checkpoint("means-LinearBandit-v0-s0")
    assert all(run_id in str(raised.value) for run_id in ids)


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
    assert load(result.folder, registry=_with(Stops)).step == 33


def _with(addon: type[AddOn]) -> Any:
    from rlplug import Registry

    return Registry((*Registry.installed().found, *Registry.of(stops=addon).found))


def test_weights_that_are_parts_of_one_storage_are_written(tmp_path: Path) -> None:
    # As cuDNN has them of an LSTM.
    class Parts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            flat = torch.arange(6.0)
            self.first, self.second = (torch.nn.Parameter(one) for one in flat.split((4, 2)))
            self.tied = self.first
            self.turned = torch.nn.Parameter(torch.arange(6.0).view(2, 3).t())

    module = Parts()
    written = save_module(module, tmp_path)
    found = load_file(written)
    assert found["first"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert found["second"].tolist() == [4.0, 5.0]
    assert found["turned"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert "tied" not in found
    other = Parts()
    torch.nn.init.zeros_(other.first)
    load_weights(other, written)
    assert other.tied.tolist() == [0.0, 1.0, 2.0, 3.0]
