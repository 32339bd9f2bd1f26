"""The six forms of optimizers a plugin may give, and what is refused."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, ReduceLROnPlateau, StepLR

from rlplug.errors import PluginError
from rlplug.optim.forms import OptimizerPlan, SchedulerPlan, read_forms


def sgd() -> Optimizer:
    return SGD([nn.Parameter(torch.zeros(1))], lr=1.0)


A, B = sgd(), sgd()
STEP = StepLR(A, 1)


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        (A, ["default"]),
        ([A, B], ["0", "1"]),
        ((A, B), ["0", "1"]),
        ({"actor": A, "critic": B}, ["actor", "critic"]),
        (([A, B], [STEP]), ["0", "1"]),
        (([A], [STEP]), ["default"]),
        ({"optimizer": A, "lr_scheduler": STEP}, ["default"]),
        ({"optimizer": A, "name": "mine"}, ["mine"]),
        (({"optimizer": A, "frequency": 2}, {"optimizer": B, "frequency": 3}), ["0", "1"]),
        ({"actor": {"optimizer": A, "lr_scheduler": STEP}, "critic": B}, ["actor", "critic"]),
        (None, []),
    ],
)
def test_every_form_gives_named_optimizers(answer: Any, names: list[str]) -> None:
    plans = read_forms(answer, "a test")
    assert [plan.name for plan in plans] == names
    assert [plan.optimizer for plan in plans] == [A, B][: len(names)]


def test_schedulers_of_two_lists_find_their_optimizers() -> None:
    late = StepLR(B, 5)
    plans = read_forms(([A, B], [{"scheduler": late, "interval": "step"}]), "a test")
    assert plans[0].schedulers == ()
    assert [one.scheduler for one in plans[1].schedulers] == [late]


def test_one_optimizer_may_have_several_schedulers_in_their_order() -> None:
    early, late, other = StepLR(A, 1), StepLR(A, 5), StepLR(B, 1)
    first, second = read_forms(([A, B], [early, other, {"scheduler": late}]), "a test")
    assert [one.scheduler for one in first.schedulers] == [early, late]
    assert [one.scheduler for one in second.schedulers] == [other]
    beside = {"optimizer": A, "lr_scheduler": [early, {"scheduler": late, "interval": "step"}]}
    (plan,) = read_forms(beside, "a test")
    assert [one.interval for one in plan.schedulers] == ["epoch", "step"]


def test_every_key_of_a_scheduler_config_is_read() -> None:
    config = {
        "scheduler": ReduceLROnPlateau(A),
        "interval": "step",
        "frequency": 3,
        "monitor": "loss",
        "strict": False,
        "name": "slow",
    }
    (plan,) = read_forms({"optimizer": A, "lr_scheduler": config}, "a test")
    (scheduler,) = plan.schedulers
    assert (scheduler.interval, scheduler.every, scheduler.monitor) == ("step", 3, "loss")
    assert (scheduler.strict, scheduler.name) == (False, "slow")


class Halves:
    """Moves a rate as a scheduler does, without being one of torch."""

    def __init__(self) -> None:
        self.state_dict = dict


class Bare(Halves):
    def step(self) -> None: ...


class ByEpoch(Halves):
    def step(self, epoch: int | None = None) -> None: ...


class ByMetric(Halves):
    def step(self, value: float) -> None: ...


class HandsOn(Halves):
    def step(self, *given: Any, **named: Any) -> None: ...


class HandsOnMetric(ByMetric):
    def step(self, *given: Any) -> None: ...  # type: ignore[override]


@pytest.mark.parametrize(
    ("kind", "monitor"),
    [(Bare, ""), (ByEpoch, ""), (ByMetric, "loss"), (HandsOn, ""), (HandsOnMetric, "loss")],
)
def test_a_metric_is_monitored_by_a_scheduler_whose_step_takes_one(
    kind: type[Halves], monitor: str
) -> None:
    given = {"optimizer": A, "lr_scheduler": {"scheduler": kind(), "monitor": "loss"}}
    (plan,) = read_forms(given, "a test")
    assert [one.monitor for one in plan.schedulers] == [monitor]


def test_plans_without_keys_are_those_of_lightning() -> None:
    (plan,) = read_forms({"optimizer": A, "lr_scheduler": STEP}, "a test")
    (read,) = plan.schedulers
    assert read == SchedulerPlan(scheduler=STEP)
    assert (read.interval, read.every, read.monitor) == ("epoch", 1, "")
    assert (read.strict, read.name) == (True, "")
    assert plan == OptimizerPlan(name="default", optimizer=A, schedulers=(read,))
    assert plan.frequency == 0
    assert OptimizerPlan(name="x", optimizer=A).schedulers == ()


def test_both_meanings_of_frequency_stay_apart() -> None:
    config = {"scheduler": STEP, "frequency": 7}
    (plan,) = read_forms(({"optimizer": A, "lr_scheduler": config, "frequency": 2},), "a test")
    assert plan.frequency == 2
    assert [one.every for one in plan.schedulers] == [7]


class Hands(StepLR):
    """Hands on to StepLR whatever it is given."""

    def step(self, *args: Any, **options: Any) -> None:
        super().step(*args, **options)


class HandsPlateau(ReduceLROnPlateau):
    """Hands on to ReduceLROnPlateau whatever it is given."""

    def step(self, *args: Any, **options: Any) -> None:
        super().step(*args, **options)


class Follows(LRScheduler):
    """Follows a metric by another name."""

    def step(self, value: Any = None) -> None:
        self.seen = value


class Duck:
    """No scheduler of torch, and without arguments."""

    optimizer = A

    def step(self) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    ("scheduler", "follows"),
    [
        (STEP, False),
        (Hands(A, 1), False),
        (OneCycleLR(A, 1.0, total_steps=9), False),
        (Duck(), False),
        (ReduceLROnPlateau(A), True),
        (HandsPlateau(A), True),
        (Follows(A), True),
    ],
    ids=lambda one: type(one).__name__,
)
def test_the_default_block_of_lightning_is_taken_as_it_is_written(
    scheduler: Any, follows: bool, caplog: pytest.LogCaptureFixture
) -> None:
    config = {
        "scheduler": scheduler,
        "interval": "epoch",
        "frequency": 1,
        "monitor": "val_loss",
        "strict": True,
        "name": None,
    }
    caplog.set_level(logging.DEBUG, "rlplug")
    (plan,) = read_forms({"optimizer": A, "lr_scheduler": config}, "a test")
    assert [one.monitor for one in plan.schedulers] == ["val_loss" if follows else ""]
    said = f"{type(scheduler).__name__} follows no metric; 'monitor' = 'val_loss' is ignored."
    debug = [] if follows else [("DEBUG", f"rlplug: a test: {said}")]
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == debug


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (3, "gave int, which is no optimizer"),
        ("adam", "gave str, which is no optimizer"),
        ([A, 3], "'1' is int, which holds no optimizer"),
        ({"optimizer": A, "lr_schedular": STEP}, "unknown key 'lr_schedular' .* Did you mean"),
        (({"optimizer": A, "frequency": 2}, {"optimizer": B}), r"some have none: \[2, 0\]"),
        (({"optimizer": A, "frequency": 0},), "must be a whole number from 1 on, found 0"),
        ({"optimizer": A, "lr_scheduler": {"interval": "step"}}, "needs a 'scheduler'"),
        (
            {"optimizer": A, "lr_scheduler": {"scheduler": STEP, "interval": "minute"}},
            "interval 'minute'",
        ),
        ({"optimizer": A, "lr_scheduler": ReduceLROnPlateau(A)}, "needs the name of a metric"),
        ({"optimizer": B, "lr_scheduler": STEP}, "'default' was made from another one"),
        (([B], [STEP]), "1 of the schedulers belong to none"),
        ({"optimizer": B, "lr_scheduler": [StepLR(B, 1), STEP]}, "'default' was made from another"),
        ({"optimizer": A, "lr_scheduler": [STEP, STEP]}, "a scheduler is given twice"),
        (([A], [STEP, {"scheduler": STEP}]), "a scheduler is given twice"),
    ],
)
def test_what_is_no_form_is_refused_with_the_reason(answer: Any, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        read_forms(answer, "a test")
