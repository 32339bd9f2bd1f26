"""CPU, memory and GPUs are sampled beside a run, by MLflow's names."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from rlplug.config.sections import RunConfig, RunSection, TrackingSection
from rlplug.hooks.events import RunInfo
from rlplug.plugin import NoOptions
from rlplug.tracking import Tracking, open_tracking
from rlplug.tracking.journal import read_journal


def opened(root: Path, said: list[str], device: str = "cpu", **section: Any) -> Tracking:
    tracking_section = TrackingSection(
        enabled=False, system_interval=0.1, git_diff=False, **section
    )
    config = RunConfig(
        run=RunSection(algorithm="none", steps=40), algorithm=NoOptions(), tracking=tracking_section
    )
    tracking = open_tracking(config, environment="Nowhere-v0", root=root, warn=said.append)
    tracking.listener.run_started(
        RunInfo(
            run_id=tracking.run_id,
            folder=tracking.folder,
            config=config,
            participants=(),
            hook_order={},
            environment="Nowhere-v0",
            device=device,
            steps=40,
            progress=lambda: 7,
        )
    )
    return tracking


def sampled(tracking: Tracking) -> dict[str, float]:
    """The system metrics in the journal, once there are some."""
    for _ in range(1500):
        tracking.write_journal()
        reports = list(read_journal(tracking.folder / "metrics.jsonl"))
        if reports:
            assert [report.step for report in reports] == [7] * len(reports)
            return dict(reports[-1].metrics)
        time.sleep(0.02)
    raise AssertionError("nothing was sampled")


def test_use_of_host_and_run_is_recorded_at_the_current_step(tmp_path: Path) -> None:
    said: list[str] = []
    once = opened(tmp_path, said, system_metrics="once")
    # Without a GPU, it is off.
    none = opened(tmp_path, said)
    found = sampled(once)
    time.sleep(0.3)
    once.close("FINISHED")
    none.close("FINISHED")
    assert said == []
    assert len(list(read_journal(once.folder / "metrics.jsonl"))) == 1
    assert list(read_journal(none.folder / "metrics.jsonl")) == []
    assert 0 <= found["system/cpu_utilization_percentage"] <= 100
    assert 0 < found["system/system_memory_usage_percentage"] < 100
    assert 0 < found["system/run_memory_megabytes"] < found["system/system_memory_usage_megabytes"]


def test_a_gpu_reports_its_memory_utilization_and_power(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    said: list[str] = []
    tracking = opened(tmp_path, said, system_metrics="once", device="cuda:0")
    found = sampled(tracking)
    tracking.close("FINISHED")
    assert said == []
    assert 0 < found["system/gpu_0_memory_usage_percentage"] < 100
    assert 0 <= found["system/gpu_0_utilization_percentage"] <= 100
    assert found["system/gpu_0_power_usage_watts"] > 0
    assert found["system/torch_peak_memory_megabytes"] >= 0
