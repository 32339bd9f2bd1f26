"""The six forms of optimizers a plugin may give, and what is refused."""

from __future__ import annotations

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


def test_every_key_is_read_and_what_is_missing_is_as_in_lightning() -> None:
    scheduler = ReduceLROnPlateau(A)
    config = {
        "scheduler": scheduler,
        "interval": "step",
        "frequency": 3,
        "monitor": "loss",
        "strict": False,
        "name": "slow",
    }
    read = SchedulerPlan(
        scheduler=scheduler, interval="step", every=3, monitor="loss", strict=False, name="slow"
    )
    given = ({"optimizer": A, "lr_scheduler": config, "frequency": 2},)
    assert read_forms(given, "a test") == [
        OptimizerPlan(name="0", optimizer=A, schedulers=(read,), frequency=2)
    ]
    (plan,) = read_forms({"optimizer": A, "lr_scheduler": STEP}, "a test")
    (scheduler_plan,) = plan.schedulers
    assert (scheduler_plan.interval, scheduler_plan.every) == ("epoch", 1)
    assert (scheduler_plan.monitor, scheduler_plan.strict, plan.frequency) == ("", True, 0)


class Hands(StepLR):
    """Hands on to StepLR whatever it is given."""

    def step(self, *args: Any, **options: Any) -> None:
        super().step(*args, **options)


class Follows(LRScheduler):
    """Follows a metric by another name."""

    def step(self, value: Any = None) -> None:
        self.seen = value


class Bare:
    """No scheduler of torch, and without arguments."""

    def step(self) -> None: ...


@pytest.mark.parametrize(
    ("scheduler", "follows"),
    [
        (STEP, False),
        (Hands(A, 1), False),
        (OneCycleLR(A, 1.0, total_steps=9), False),
        (Bare(), False),
        (ReduceLROnPlateau(A), True),
        (Follows(A), True),
    ],
    ids=lambda given: type(given).__name__,
)
def test_only_a_scheduler_whose_step_takes_a_metric_monitors_one(
    scheduler: Any, follows: bool
) -> None:
    config = {"scheduler": scheduler, "monitor": "val_loss", "name": None}
    (plan,) = read_forms({"optimizer": A, "lr_scheduler": config}, "a test")
    assert [made.monitor for made in plan.schedulers] == ["val_loss" if follows else ""]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (3, "gave int, which is no optimizer"),
        ("adam", "gave str, which is no optimizer"),
        ([A, 3], "'1' is int, which holds no optimizer"),
        ({"optimizer": A, "name": ""}, "the name of an optimizer must be text, found ''"),
        ({"optimizer": A, "lr_schedular": STEP}, "unknown key 'lr_schedular' .* Did you mean"),
        (({"optimizer": A, "frequency": 2}, {"optimizer": B}), r"some have none: \[2, 0\]"),
        (({"optimizer": A, "frequency": -1},), "must be a whole number from 1 on, found -1"),
        ({"optimizer": A, "lr_scheduler": {"interval": "step"}}, "needs a 'scheduler'"),
        ({"optimizer": A, "lr_scheduler": StepLR}, "needs a 'scheduler'"),
        ({"optimizer": A, "lr_scheduler": {"scheduler": STEP, "interval": "minute"}}, "'minute'"),
        ({"optimizer": A, "lr_scheduler": {"scheduler": STEP, "frequency": 0}}, "found 0"),
        ({"optimizer": A, "lr_scheduler": ReduceLROnPlateau(A)}, "needs the name of a metric"),
        ({"optimizer": B, "lr_scheduler": STEP}, "'default' was made from another one"),
        (([B], [STEP]), "1 of the schedulers belong to none"),
        ({"optimizer": A, "lr_scheduler": [STEP, STEP]}, "a scheduler is given twice"),
    ],
)
def test_what_is_no_form_is_refused_with_the_plugin_and_the_reason(
    answer: Any, message: str
) -> None:
    with pytest.raises(PluginError, match=f"^a test.*{message}"):
        read_forms(answer, "a test")
