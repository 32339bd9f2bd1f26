"""The six forms of optimizers a plugin may give, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from rlplug.errors import PluginError
from rlplug.optim.forms import read_forms


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
    assert plans[0].scheduler is None
    assert plans[1].scheduler is not None
    assert plans[1].scheduler.scheduler is late


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
    scheduler = plan.scheduler
    assert scheduler is not None
    assert (scheduler.interval, scheduler.every, scheduler.monitor) == ("step", 3, "loss")
    assert (scheduler.strict, scheduler.name) == (False, "slow")


def test_both_meanings_of_frequency_stay_apart() -> None:
    config = {"scheduler": STEP, "frequency": 7}
    (plan,) = read_forms(({"optimizer": A, "lr_scheduler": config, "frequency": 2},), "a test")
    assert plan.frequency == 2
    assert plan.scheduler is not None
    assert plan.scheduler.every == 7


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
        (
            {"optimizer": A, "lr_scheduler": {"scheduler": STEP, "monitor": "loss"}},
            "StepLR follows no metric, but 'monitor' is 'loss'",
        ),
        (([B], [STEP]), "1 of the schedulers belong to none"),
        (([A], [STEP, StepLR(A, 2)]), "has 2 schedulers"),
    ],
)
def test_what_is_no_form_is_refused_with_the_reason(answer: Any, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        read_forms(answer, "a test")
