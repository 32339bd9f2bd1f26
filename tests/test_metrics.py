from __future__ import annotations

import pytest
import torch

from rlplug import ALL_MODULES, DEFAULT_MODULE
from rlplug.metrics import MetricWindow


def test_means_are_over_the_updates_that_gave_the_metric() -> None:
    window = MetricWindow()
    window.add({DEFAULT_MODULE: {"loss": 1.0, "rare": 5.0}})
    window.add({DEFAULT_MODULE: {"loss": torch.tensor(3.0)}, ALL_MODULES: {"loss": 3.0}})
    assert window.take() == {"train/loss": 2.0, "train/rare": 5.0}
    assert window.take() == {}
    window.add({DEFAULT_MODULE: {"loss": 8.0}})
    assert window.take() == {"train/loss": 8.0}


def test_other_modules_keep_their_names() -> None:
    window = MetricWindow()
    both = {"blue": {"loss": 1.0}, "red": {"loss": torch.tensor([4.0])}}
    window.add({**both, ALL_MODULES: {"loss": 5.0}})
    assert window.take() == {"train/blue/loss": 1.0, "train/red/loss": 4.0, "train/all/loss": 5.0}


@pytest.mark.parametrize("updates", [1, 1023, 1024, 1025, 5000])
def test_means_hold_however_many_updates_are_folded(updates: int) -> None:
    window = MetricWindow()
    for index in range(updates):
        window.add({DEFAULT_MODULE: {"index": float(index), "tensor": torch.tensor(1.5)}})
    assert window.take() == {"train/index": (updates - 1) / 2, "train/tensor": 1.5}
