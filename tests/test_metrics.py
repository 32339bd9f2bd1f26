from __future__ import annotations

from typing import Any

import pytest
import torch

from rlplug import ALL_MODULES, DEFAULT_MODULE
from rlplug.metrics import TIME_PARTS, MetricWindow, TimeSplit


def test_means_are_over_the_updates_that_gave_the_metric() -> None:
    window = MetricWindow()
    window.add({DEFAULT_MODULE: {"loss": 1.0, "rare": 5.0}})
    window.add({DEFAULT_MODULE: {"loss": torch.tensor(3.0)}, ALL_MODULES: {"loss": 3.0}})
    assert window.take() == {"train/loss": 2.0, "train/rare": 5.0}
    assert window.take() == {}
    window.add({DEFAULT_MODULE: {"loss": 8.0}})
    assert window.take() == {"train/loss": 8.0}


@pytest.mark.parametrize("updates", [1, 1023, 1024, 1025, 5000])
def test_means_hold_however_many_updates_are_folded(updates: int) -> None:
    window = MetricWindow()
    for index in range(updates):
        window.add({DEFAULT_MODULE: {"index": float(index), "tensor": torch.tensor(1.5)}})
    assert window.take() == {"train/index": (updates - 1) / 2, "train/tensor": 1.5}


def filled(*losses: Any) -> MetricWindow:
    window = MetricWindow()
    for loss in losses:
        window.add({DEFAULT_MODULE: {"loss": loss}})
    return window


def test_a_window_goes_on_from_its_state_and_from_nothing_else() -> None:
    parameter = torch.ones((), requires_grad=True)
    window = filled(1.0, parameter * 2, 6.0)
    saved = window.get_state()
    assert (saved["count"], saved["sums"], saved["counts"]) == (3, {}, {})
    assert not saved["tensors"]["train/loss"].requires_grad
    other = filled(100.0)
    other.set_state(saved)
    again = other.get_state()
    assert again["count"] == 3
    for one in (window, other):
        one.add({DEFAULT_MODULE: {"loss": 11.0}})
        assert one.take() == {"train/loss": 5.0}
        assert one.take() == {}


def test_a_window_that_was_summed_goes_on_with_its_sums() -> None:
    window = filled(*[1.0] * 1023, torch.tensor(3.0), 5.0)
    saved = window.get_state()
    assert (saved["count"], float(saved["sums"]["train/loss"])) == (1, 1026.0)
    assert saved["counts"] == {"train/loss": 1024}
    other = MetricWindow()
    other.set_state(saved)
    # What the state gave away is not what the window goes on to change.
    window.add({DEFAULT_MODULE: {"loss": 0.0}})
    window.take()
    assert other.take() == {"train/loss": pytest.approx(1031 / 1025)}


def test_sums_over_one_module_are_left_out_and_those_over_several_are_not() -> None:
    window = MetricWindow()
    window.add({ALL_MODULES: {"steps": 3}})
    sums = {"loss": 9.0, "steps_trained": 8, "updates": 1}
    window.add({"one": {"loss": 1.0}, ALL_MODULES: {**sums, "entropy_of_all": 2.0}})
    expected = {"train/all/steps": 3.0, "train/one/loss": 1.0, "train/all/entropy_of_all": 2.0}
    assert window.take() == expected


def test_the_seconds_of_a_run_are_split_without_rest_and_told_once() -> None:
    times = TimeSplit()
    assert times.total(0.0, 0.0) == dict.fromkeys(TIME_PARTS, 0.0)
    times.collect, times.feed, times.update, times.events = 10.0, 20.0, 8.0, 1.0
    times.add("evaluate", 5.0)
    times.add("track", 0.5)
    whole = {"step": 4.0, "act": 6.0, "prepare": 14.0, "learn": 5.0, "track": 1.5, "evaluate": 5.0}
    assert times.total(4.0, 3.0) == whole
    assert sum(whole.values()) == 10 + 20 + 5.5
    assert times.take(4.0, 3.0) == {f"time/{part}_seconds": one for part, one in whole.items()}
    times.collect = 12.0
    saved = times.get_state(4.0, 3.0)
    other = TimeSplit()
    other.set_state(saved)
    for one, seconds in ((times, (4.0, 3.0)), (other, (0.0, 0.0))):
        told = one.take(*seconds)
        assert {part: value for part, value in told.items() if value} == {"time/act_seconds": 2.0}
        assert not any(one.take(*seconds).values())
