"""Schedulers that monitor a metric of the run: when they move, and what is refused."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import gymnasium
import numpy
import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau

from rlplug import Acted, AddOn, Algorithm, Loss, Module, hookimpl, option, run
from rlplug.errors import RequestError, RunFailedError
from rlplug.feeds import Rollout, Stream
from rlplug.optim.forms import read_scheduler
from rlplug.optim.schedulers import Schedulers

pytestmark = pytest.mark.usefixtures("home")


class Pays(gymnasium.Env[Any, Any]):
    """Episodes of two steps, each of which pays 1."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.taken = 0
        return numpy.ones(1, numpy.float32), {}

    def step(self, action: Any) -> Any:
        self.taken += 1
        return numpy.ones(1, numpy.float32), 1.0, self.taken == 2, False, {}


class One(Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward_exploration(self, act: Any) -> Acted:
        return Acted(numpy.zeros(len(act.observations), numpy.int64))

    forward_inference = forward_exploration


@attrs.frozen(kw_only=True)
class Options:
    monitor: str = option("eval/return_mean", "What the scheduler monitors.")
    strict: bool = option(True, "Whether it must be there.")
    every: int = option(1, "Intervals between its moves.")
    interval: str = option("step", "What counts as an interval.")
    n_epochs: int = option(0, "Passes over a rollout of 4 steps; 0: a stream.")


class Waits(Algorithm):
    """Halves the rate after one evaluation that is no better than the best."""

    Config: ClassVar[type[Options]] = Options
    config: Options

    def feed(self) -> Stream | Rollout:
        epochs = self.config.n_epochs
        return Rollout(n_steps=4, batch_size=2, n_epochs=epochs) if epochs else Stream()

    @hookimpl
    def build(self) -> Module:
        return One()

    @hookimpl
    def configure_optimizers_for_module(self, module: Any, config: Options) -> Any:
        optimizer = SGD(module.parameters(), lr=1.0)
        plateau = ReduceLROnPlateau(optimizer, "max", factor=0.5, patience=0)
        scheduler = {"scheduler": plateau, "interval": config.interval, "monitor": config.monitor}
        return {
            "optimizer": optimizer,
            "lr_scheduler": {**scheduler, "strict": config.strict, "frequency": config.every},
        }

    @hookimpl
    def compute_loss_for_module(self, module: Any) -> Loss:
        return Loss((module.weight * 0).sum())


class Rates(AddOn):
    """Notes the learning rate whenever it has changed."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.changes: list[tuple[int, float]] = []

    @hookimpl
    def update_finished(self, step: int, results: Any) -> None:
        rate = results["default"]["learning_rate"]
        if not self.changes or self.changes[-1][1] != rate:
            self.changes.append((step, rate))


def changes(steps: int = 100, **options: Any) -> list[tuple[int, float]]:
    """The steps at which the learning rate changed."""
    rates = Rates()
    given = {"tracking.enabled": False, "evaluation.every": 20, "evaluation.episodes": 1}
    run(Waits, Pays, steps=steps, addons=[rates], options={**given, **options})
    return rates.changes


def test_an_evaluation_moves_a_scheduler_once_at_the_next_update() -> None:
    # All evaluations return 2: the one at step 20 is the best, those at 40, 60 and 80 no better.
    assert changes() == [(1, 1.0), (41, 0.5), (61, 0.25), (81, 0.125)]


def test_a_scheduler_that_is_due_more_rarely_sees_the_last_evaluation() -> None:
    # Due at 50 with the evaluation of step 40, and at 100 with that of step 80.
    assert changes(every=50) == [(1, 1.0), (100, 0.5)]


def test_other_metrics_of_the_run_are_followed_from_report_to_report() -> None:
    # A run of 640 steps reports every second one; the first two episodes end at 2 and 4.
    (first, second, third, *_) = changes(steps=640, monitor="rollout/return_mean")
    assert (first, second, third) == ((1, 1.0), (5, 0.5), (7, 0.25))
    assert changes(steps=640, monitor="train/loss")[1] == (5, 0.5)


def test_an_epoch_is_a_pass_over_the_rollout_and_each_update_of_a_stream() -> None:
    # Four updates of two epochs each, with a move in every second epoch.
    by_rollout = changes(steps=16, interval="epoch", monitor="loss", every=2, n_epochs=2)
    assert by_rollout == [(4, 1.0), (8, 0.5), (12, 0.25), (16, 0.125)]
    # In a stream each update is an epoch.
    assert changes(steps=4, interval="epoch", monitor="loss") == [
        (1, 1.0),
        (2, 0.5),
        (3, 0.25),
        (4, 0.125),
    ]


def test_a_name_that_no_evaluation_has_ends_the_run_at_the_first() -> None:
    with pytest.raises(
        RunFailedError, match=r"monitors 'eval/retrun_mean', .* of the run"
    ) as raised:
        changes(monitor="eval/retrun_mean")
    assert "did you mean 'eval/return_mean'?" in str(raised.value)
    with pytest.warns(UserWarning, match="monitors 'eval/retrun_mean'"):
        assert changes(monitor="eval/retrun_mean", strict=False) == [(1, 1.0)]


@pytest.mark.parametrize("options", [{"evaluation.episodes": 0}, {"evaluation.every": 100}])
def test_a_run_without_evaluations_refuses_a_scheduler_that_waits_for_one(options: Any) -> None:
    with pytest.raises(RequestError, match="monitors 'eval/return_mean', but there is no eval"):
        changes(**options)
    assert changes(**options, strict=False) == [(1, 1.0)]


def plateau(monitor: str = "eval/x") -> Schedulers:
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    config = {"scheduler": scheduler, "interval": "step", "monitor": monitor}
    return Schedulers([read_scheduler(config, "a test")])


def rate(one: Schedulers) -> float:
    """The learning rate."""
    return float(one.runs[0].plan.scheduler.optimizer.param_groups[0]["lr"])


def test_a_value_that_was_not_seen_yet_is_part_of_the_state() -> None:
    first, second = plateau(), plateau()
    for value in (1.0, 2.0):
        first.metrics_reported({"eval/x": value})
        if value == 1.0:
            first.stepped({})
    second.load_state_dict(first.state_dict())
    for _ in range(2):
        second.stepped({})
    assert (rate(first), rate(second)) == (1.0, 0.5)


@pytest.mark.parametrize("area", ["rollout", "train", "sampling", "hooks/ppo", "league", "data"])
def test_any_metric_of_the_run_can_be_monitored(area: str) -> None:
    one = plateau(f"{area}/x")
    # It has not been reported yet, which is no error.
    one.stepped({"loss": 1.0})
    for value in (1.0, 2.0):
        one.metrics_reported({f"{area}/x": value})
        one.stepped({"loss": 1.0})
    assert rate(one) == 0.5


def test_a_metric_of_episodes_is_missing_once_an_episode_has_ended() -> None:
    one = plateau("rollout/regret_mean")
    one.metrics_reported({"rollout/reward_mean": 1.0})
    with pytest.raises(RunFailedError, match="monitors 'rollout/regret_mean', which is no metric"):
        one.metrics_reported({"rollout/reward_mean": 1.0, "rollout/return_mean": 5.0})


def test_a_value_with_the_same_name_in_the_module_comes_first() -> None:
    one = plateau()
    one.metrics_reported({"eval/x": 5.0})
    one.stepped({"eval/x": 1.0})
    assert one.runs[0].plan.scheduler.best == 1.0
