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

from rlplug import Acted, AddOn, Algorithm, Module, hookimpl, option, run
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


class Weight(Module):
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
    """Halves the rate after one value that is no better than the best."""

    Config: ClassVar[type[Options]] = Options
    config: Options

    def feed(self) -> Stream | Rollout:
        epochs = self.config.n_epochs
        return Rollout(n_steps=4, batch_size=2, n_epochs=epochs) if epochs else Stream()

    @hookimpl
    def build(self) -> Module:
        return Weight()

    @hookimpl
    def configure_optimizers_for_module(self, module: Any, config: Options) -> Any:
        optimizer = SGD(module.parameters(), lr=1.0)
        plateau = ReduceLROnPlateau(optimizer, "max", factor=0.5, patience=0)
        scheduler = {"scheduler": plateau, "interval": config.interval, "monitor": config.monitor}
        scheduler |= {"strict": config.strict, "frequency": config.every}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    @hookimpl
    def compute_loss_for_module(self, module: Any) -> Any:
        return (module.weight * 0).sum()


class Rates(AddOn):
    """Keeps the steps at which the learning rate has changed."""

    changes: dict[float, int]

    @hookimpl
    def update_finished(self, step: int, results: Any) -> None:
        self.changes.setdefault(results["default"]["learning_rate"], step)


def changes(steps: int = 100, **options: Any) -> list[int]:
    """The first steps of the learning rates 1, 0.5, 0.25 and 0.125."""
    rates = Rates()
    rates.changes = {}
    given = {"tracking.enabled": False, "evaluation.every": 20, "evaluation.episodes": 1}
    run(Waits, Pays, steps=steps, addons=[rates], options={**given, **options})
    assert list(rates.changes)[:4] == [1.0, 0.5, 0.25, 0.125][: len(rates.changes)]
    return list(rates.changes.values())[:4]


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        # All evaluations return 2: the one at step 20 is the best, those after it no better.
        ({}, [1, 41, 61, 81]),
        # Due at 50 with the evaluation of step 40, and at 100 with that of step 80.
        ({"every": 50}, [1, 100]),
        # A run of 640 steps reports every second one; the first two episodes end at 2 and 4.
        ({"steps": 640, "monitor": "rollout/return_mean"}, [1, 5, 7, 9]),
        # Four updates of two epochs each, with a move in every second epoch.
        (
            {"steps": 16, "interval": "epoch", "monitor": "loss", "every": 2, "n_epochs": 2},
            [4, 8, 12, 16],
        ),
        # In a stream each update is an epoch.
        ({"steps": 4, "interval": "epoch", "monitor": "loss"}, [1, 2, 3, 4]),
    ],
    ids=str,
)
def test_a_scheduler_moves_when_it_is_due_and_its_metric_has_a_new_value(
    options: Any, steps: list[int]
) -> None:
    assert changes(**options) == steps


def test_metrics_that_no_run_has_are_refused_or_where_not_strict_told() -> None:
    with pytest.raises(RunFailedError, match="Did you mean 'eval/return_mean'"):
        changes(monitor="eval/retrun_mean")
    with pytest.warns(UserWarning, match="monitors 'eval/retrun_mean'"):
        assert changes(monitor="eval/retrun_mean", strict=False) == [1]
    for options in ({"evaluation.episodes": 0}, {"evaluation.every": 100}):
        with pytest.raises(RequestError, match="monitors 'eval/return_mean', but there is no eval"):
            changes(**options)
        assert changes(**options, strict=False) == [1]


def plateau(monitor: str = "eval/x") -> Schedulers:
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    config = {"scheduler": scheduler, "interval": "step", "monitor": monitor}
    return Schedulers([read_scheduler(config, "a test")])


def rate(schedulers: Schedulers) -> float:
    """The learning rate."""
    return float(schedulers.runs[0].plan.scheduler.optimizer.param_groups[0]["lr"])
