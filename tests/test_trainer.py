"""Whole runs of deep learners: what feeds bring to updates, and how runs end."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import attrs
import gymnasium
import numpy
import pytest
import torch
from gymnasium.wrappers import TimeLimit
from torch import Tensor, nn

from rlplug import (
    ALL_MODULES,
    Acted,
    ActInput,
    AddOn,
    Algorithm,
    Batch,
    Loss,
    Module,
    hookimpl,
    option,
    resume,
    run,
)
from rlplug.checkpoint import checkpoints_in, find_checkpoint
from rlplug.checkpoint.state import SavedPolicy, read_training
from rlplug.errors import EnvironmentFailedError, RequestError
from rlplug.feeds import Feed, Replay, Rollout
from rlplug.metrics import TIME_PARTS

OFF = {"tracking.enabled": False, "evaluation.episodes": 0}


pytestmark = pytest.mark.usefixtures("home")


class Endless(gymnasium.Env[Any, Any]):
    """Pays 1 in every step, for ever; observes nothing but a 1."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)
    fails_at: ClassVar[int] = 0

    def __init__(self) -> None:
        self.taken = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return numpy.ones(1, numpy.float32), {}

    def step(self, action: Any) -> Any:
        self.taken += 1
        if self.taken == self.fails_at:
            raise OSError("the simulator died")
        return numpy.ones(1, numpy.float32), 1.0, False, False, {}


def limited() -> gymnasium.Env[Any, Any]:
    return TimeLimit(Endless(), 3)


class Slow(Endless):
    def step(self, action: Any) -> Any:
        time.sleep(0.001)
        return super().step(action)


def slow() -> gymnasium.Env[Any, Any]:
    return TimeLimit(Slow(), 3)


class Failing(Endless):
    fails_at: ClassVar[int] = 50


class Values(Module):
    """Acts at random and values what it sees by one number."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(1))

    def forward_exploration(self, act: ActInput) -> Acted:
        return Acted(act.random.integers(2, size=len(act.observations)))

    def forward_inference(self, act: ActInput) -> Acted:
        return Acted(numpy.zeros(len(act.observations), numpy.int64))


@attrs.frozen(kw_only=True)
class Options:
    learning_rate: float = option(0.3, "Step size.")
    batch_size: int = option(10, "Rows of a batch.")
    learning_starts: int = option(20, "Steps before the first update.")
    prioritized: bool = option(False, "Draw by priority.")


class FromReplay(Algorithm):
    """Temporal differences from a replay buffer, discounted by a half."""

    Config: ClassVar[type[Options]] = Options
    config: Options

    def feed(self) -> Feed:
        return Replay(
            buffer_size=100,
            batch_size=self.config.batch_size,
            learning_starts=self.config.learning_starts,
            train_freq=4,
            gradient_steps=2,
            gamma=0.5,
            n_step=2,
            prioritized=self.config.prioritized,
        )

    @hookimpl
    def build(self) -> Module:
        return Values()

    @hookimpl
    def compute_loss_for_module(self, module: Any, batch: Batch) -> Loss:
        value = module.value.expand(batch.rows)
        going = ~batch["terminated"]
        target = batch["rewards"] + batch["discounts"] * module.value.detach() * going
        error = value - target
        return Loss((error**2).mean(), rows={"priority": error.detach()})


class FromRollout(FromReplay):
    """The same from rollouts, one step ahead."""

    def feed(self) -> Feed:
        return Rollout(n_steps=10, batch_size=self.config.batch_size, n_epochs=2)

    @hookimpl
    def prepare_batch(self, module: Any, batch: Batch) -> Mapping[str, Tensor]:
        extended = batch.extended()
        values = module.value.expand(extended.rows)
        _, following = extended.split(values)
        return {"discounts": torch.full_like(following, 0.5)}


@pytest.mark.parametrize("algorithm", [FromReplay, FromRollout])
def test_time_limits_are_bootstrapped_so_that_values_reach_their_limit(algorithm: Any) -> None:
    result = run(algorithm, limited, steps=2_000, options=OFF)
    # 1 / (1 - 0.5): a limit taken for a failure would make it less than 1.9.
    value = result.module.state_dict()["value"]
    assert float(value) == pytest.approx(2.0, abs=1e-2)
    assert result.metrics["rollout/return_mean"] == 3.0
    assert result.metrics["rollout/length_mean"] == 3.0


class Watches(AddOn):
    """Notes when updates were made, and with how many rows."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.updates: list[tuple[int, int]] = []

    @hookimpl
    def update_finished(self, step: int, results: Any) -> None:
        self.updates.append((step, results[ALL_MODULES]["steps_trained"]))


def test_replay_updates_come_after_each_collection_once_learning_has_started() -> None:
    watcher = Watches()
    options = {**OFF, "sampling.num_envs": 2}
    run(FromReplay, limited, steps=48, addons=[watcher], options=options)
    # Four steps of two environments each time, and two updates: the first beyond 20 is 24.
    assert watcher.updates == [(step, 10) for step in (24, 32, 40, 48) for _ in range(2)]


def test_a_rollout_is_one_update_with_all_its_rows() -> None:
    watcher = Watches()
    options = {**OFF, "sampling.num_envs": 2}
    run(FromRollout, limited, steps=60, addons=[watcher], options=options)
    assert watcher.updates == [(20, 20), (40, 20), (60, 20)]


def test_steps_that_are_left_out_count_as_environment_steps() -> None:
    watcher = Watches()
    options = {**OFF, "sampling.min_trajectory_length": 3}
    done = run(FromRollout, limited, steps=30, addons=[watcher], options=options)
    # Pieces of episodes: 3 3 3 1, 2 3 3 2, 1 3 3 3.
    assert watcher.updates == [(10, 9), (20, 6), (30, 9)]
    assert done.step == 30


@pytest.mark.parametrize(("algorithm", "steps"), [(FromReplay, 48), (FromRollout, 60)])
def test_every_observation_is_absorbed_once(algorithm: Any, steps: int) -> None:
    options = {**OFF, "normalize_observation": True, "sampling.num_envs": 2}
    result = run(algorithm, limited, steps=steps, options=options)
    saved = SavedPolicy.read(find_checkpoint(result.run_id))
    assert saved.normalization["moments"][0][0] == steps


class Reports(AddOn):
    """Keeps what is reported; interrupts the run or fails at a step."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.reports: dict[int, Mapping[str, float]] = {}
        self.interrupt_at = self.fail_at = 0

    @hookimpl
    def metrics_reported(self, step: int, metrics: Mapping[str, float]) -> None:
        assert step not in self.reports
        self.reports[step] = metrics

    @hookimpl
    def update_finished(self, step: int) -> None:
        if step == self.interrupt_at:
            os.kill(os.getpid(), signal.SIGINT)
        if step == self.fail_at:
            raise ArithmeticError("planted")


def test_the_time_of_a_run_is_split_into_parts_which_a_resumed_run_goes_on_to_count() -> None:
    class Sleeps(AddOn):
        """Takes part of the time of an evaluation, of reports and of batches."""

        @hookimpl
        def evaluation_finished(self) -> None:
            time.sleep(0.05)

        @hookimpl
        def metrics_reported(self) -> None:
            time.sleep(0.002)

        @hookimpl
        def prepare_batch(self) -> None:
            time.sleep(0.002)

    watcher, began = Reports(), time.perf_counter()
    options = {"tracking.enabled": False, "evaluation.episodes": 1, "evaluation.every": 200}
    done = run(FromRollout, slow, steps=400, addons=[watcher, Sleeps()], options=options)
    took, split = time.perf_counter() - began, done.time_split
    assert set(split) == set(TIME_PARTS)
    assert 0.5 * watcher.reports[400]["time/seconds"] < sum(split.values()) <= took
    assert split["step"] >= 400 * 0.001
    assert split["evaluate"] >= 0.1
    assert min(split["track"], split["prepare"]) >= 40 * 0.002
    of_reports = [told["time/step_seconds"] for told in watcher.reports.values()]
    assert len(of_reports) == 40
    assert sum(of_reports) == pytest.approx(split["step"], rel=0.1)
    # What depends on the time is in the clock alone, so that states of equal runs are equal.
    saved = read_training(checkpoints_in(done.folder / "checkpoints")[-1])["run"]["trainer"]
    assert not [name for name in saved["metrics"] if name.startswith("time/")]
    given: dict[str, Any] = {"env": slow, "addons": [Reports(), Sleeps()]}
    rest = resume(done.run_id, steps=410, algorithm=FromRollout, **given)
    assert rest.time_split["step"] >= split["step"] + 0.01


def test_a_run_has_320_reports() -> None:
    watcher = Reports()
    # It collects four steps at a time.
    run(FromReplay, limited, steps=1280, addons=[watcher], options=OFF)
    assert list(watcher.reports) == list(range(4, 1281, 4))


def test_a_report_has_the_means_of_the_updates_since_the_last_one() -> None:
    class Numbered(FromRollout):
        """Reports the number of each update."""

        updates = 0

        def additional_update(self) -> Any:
            type(self).updates += 1
            return {"number": self.updates}

    watcher = Reports()
    # Updates take ten steps each, and reports are due every 100.
    watcher.interrupt_at = 300
    with pytest.raises(KeyboardInterrupt):
        run(Numbered, limited, steps=32_000, addons=[watcher], options=OFF)
    numbers = [told["train/number"] for told in watcher.reports.values()]
    assert numbers == [5.5, 15.5, 25.5]


class Halved(FromRollout):
    """Halves its learning rate whenever a metric of the run is no better."""

    @hookimpl
    def configure_optimizers_for_module(self, module: Any) -> Any:
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        following = {"scheduler": scheduler, "monitor": "rollout/return_mean", "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": following}


def test_schedulers_follow_metrics_of_reports() -> None:
    watcher = Reports()
    run(Halved, limited, steps=200, addons=[watcher], options=OFF)
    rates = [told["train/learning_rate"] for told in watcher.reports.values()]
    assert rates[0] == 1
    assert rates[-1] < 0.5


@pytest.mark.parametrize("how", ["stopped", "interrupted", "failed"])
def test_what_happened_since_the_last_report_is_reported_at_the_end(how: str) -> None:
    watcher = Reports()
    options = {**OFF, "sampling.num_envs": 2}
    # Reports are due at multiples of 100 / 320 of 32,000 steps; collections take 20.
    if how == "stopped":
        options |= {"evaluation.episodes": 1, "evaluation.every": 140, "evaluation.patience": 1}
        run(FromRollout, limited, steps=32_000, addons=[watcher], options=options)
    else:
        setattr(watcher, "interrupt_at" if how == "interrupted" else "fail_at", 240)
        with pytest.raises((KeyboardInterrupt, ArithmeticError)):
            run(FromRollout, limited, steps=32_000, addons=[watcher], options=options)
    last = {"stopped": 280, "interrupted": 240, "failed": 240}[how]
    assert list(watcher.reports) == [100, 200, last]


def test_what_a_feed_refuses_is_refused_before_anything_is_written(home: Path) -> None:
    for options, said in (
        ({"learning_starts": 500}, "lies beyond the run, which takes 400 steps"),
        ({"batch_size": 101}, "buffer_size = 100 is smaller than one batch"),
    ):
        with pytest.raises(RequestError, match=said):
            run(FromReplay, limited, steps=400, options={**OFF, **options})
    with pytest.raises(RequestError, match="larger than the rollout"):
        run(FromRollout, limited, steps=400, options={**OFF, "batch_size": 11})
    assert [one.name for one in home.iterdir()] == ["mlflow.db"]


@pytest.mark.parametrize("algorithm", [FromReplay, FromRollout])
def test_an_environment_that_dies_ends_the_run_as_failed_and_keeps_what_was_learned(
    algorithm: Any, home: Path
) -> None:
    with pytest.raises(EnvironmentFailedError, match="'Failing' failed in step after 49 steps: OS"):
        run(algorithm, Failing, steps=400, options=OFF)
    (folder,) = [path.parent for path in home.rglob("module.safetensors")]
    reported = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert reported[-1]["step"] in (40, 48)
    assert "the simulator died" in (folder / "logs" / "traceback.txt").read_text()


def test_what_the_feed_keeps_and_costs_is_said_at_the_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(FromReplay, limited, steps=40, options=OFF, show=True)
    said = capsys.readouterr().err.splitlines()
    title, memory = [line for line in said if not line.endswith(" …")][:2]
    assert title.startswith("from-replay on limited, 40 steps")
    assert memory.startswith("replay buffer of 100 rows, ")
