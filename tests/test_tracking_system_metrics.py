"""CPU, memory and GPUs are sampled beside a run, by MLflow's names."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
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
    tracking_section = TrackingSection(system_interval=0.1, git_diff=False, **section)
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
    """The system metrics in the journal so far."""
    tracking.write_journal()
    reports = read_journal(tracking.folder / "metrics.jsonl")
    return {
        name: value
        for report in reports
        for name, value in report.metrics.items()
        if name.startswith("system/") and report.step == 7
    }


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_use_of_host_and_run_is_recorded_at_the_current_step(store_root: Path) -> None:
    from mlflow import MlflowClient

    said: list[str] = []
    tracking = opened(store_root, said, system_metrics="on")
    until(lambda: sampled(tracking))
    found = sampled(tracking)
    tracking.close("FINISHED")
    assert said == []
    assert 0 <= found["system/cpu_utilization_percentage"] <= 100
    assert 0 < found["system/system_memory_usage_percentage"] < 100
    assert 0 < found["system/run_memory_megabytes"] < found["system/system_memory_usage_megabytes"]
    client = MlflowClient(f"sqlite:///{store_root / 'mlflow.db'}")
    points = client.get_metric_history(tracking.run_id, "system/run_memory_megabytes")
    assert {point.step for point in points} == {7}


def test_once_is_one_sample_and_without_a_gpu_auto_is_none(tmp_path: Path) -> None:
    said: list[str] = []
    once = opened(tmp_path, said, enabled=False, system_metrics="once")
    none = opened(tmp_path, said, enabled=False)
    until(lambda: sampled(once))
    time.sleep(0.3)
    once.close("FINISHED")
    none.close("FINISHED")
    reports = list(read_journal(once.folder / "metrics.jsonl"))
    assert len(reports) == 1
    assert sampled_names(none) == set()


def sampled_names(tracking: Tracking) -> set[str]:
    reports = read_journal(tracking.folder / "metrics.jsonl")
    return {name for report in reports for name in report.metrics}


def test_memory_of_processes_that_the_run_started_counts(tmp_path: Path) -> None:
    code = "x = bytearray(400_000_000); print(len(x), flush=True); input()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        tracking = opened(tmp_path, [], enabled=False, system_metrics="once")
        until(lambda: sampled(tracking))
        with_child = sampled(tracking)["system/run_memory_megabytes"]
        child.communicate(b"\n")
    own = int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6
    assert with_child > own + 200
    tracking.close("FINISHED")


def test_a_gpu_that_is_missing_is_said_once_and_the_host_is_sampled(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    said: list[str] = []
    tracking = opened(tmp_path, said, enabled=False, system_metrics="on", device="cuda:0")
    until(lambda: sampled(tracking))
    time.sleep(0.3)
    tracking.close("FINISHED")
    assert len([one for one in said if "of the GPU" in one]) == 1
    assert "system/cpu_utilization_percentage" in sampled_names(tracking)


def test_a_gpu_tells_its_memory_utilization_and_power(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    said: list[str] = []
    tracking = opened(tmp_path, said, enabled=False, system_metrics="once", device="cuda:0")
    until(lambda: sampled(tracking))
    found = sampled(tracking)
    tracking.close("FINISHED")
    assert said == []
    assert 0 < found["system/gpu_0_memory_usage_percentage"] < 100
    assert 0 <= found["system/gpu_0_utilization_percentage"] <= 100
    assert found["system/gpu_0_power_usage_watts"] > 0
    assert found["system/torch_peak_memory_megabytes"] >= 0
