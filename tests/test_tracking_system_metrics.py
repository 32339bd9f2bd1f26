"""CPU, memory and GPUs are sampled beside a run, by MLflow's names."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from rlplug.config.sections import RunConfig, RunSection, TrackingSection
from rlplug.hooks.events import RunInfo
from rlplug.plugin import NoOptions
from rlplug.tracking import Tracking, open_tracking
from rlplug.tracking.gpus import Gpus, visible_devices
from rlplug.tracking.journal import read_journal
from rlplug.tracking.system_metrics import Host


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


def test_memory_of_processes_that_the_run_started_counts() -> None:
    host = Host()
    before = host.metrics()["system/run_memory_megabytes"]
    code = "x = bytearray(80_000_000); print(len(x), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert host.metrics()["system/run_memory_megabytes"] > before + 60
        child.communicate(b"\n")


def test_a_driver_that_is_missing_is_said_once_and_the_host_is_sampled(tmp_path: Path) -> None:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        pass
    else:
        pytest.skip("there is a driver")
    said: list[str] = []
    tracking = opened(tmp_path, said, enabled=False, system_metrics="on", device="cuda:0")
    until(lambda: sampled(tracking))
    time.sleep(0.3)
    tracking.close("FINISHED")
    assert len([one for one in said if "of the GPU" in one]) == 1
    assert "system/cpu_utilization_percentage" in sampled_names(tracking)


@attrs.define(eq=False)
class Device:
    """A device as NVML describes it."""

    uuid: str
    parts: tuple[Any, ...] = ()
    """Parts (MIG) by index; None where one was destroyed."""
    instances: tuple[int, int] = (0, 0)


class RecordedNvml:
    """NVML's answers as its documentation and pynvml have them; no test machine has a GPU."""

    class NVMLError(Exception):
        pass

    def __init__(self, *devices: Device) -> None:
        self.devices = devices

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 # as in NVML
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Device:  # noqa: N802
        return self.devices[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Device:  # noqa: N802
        for gpu in self.devices:
            for one in (gpu, *gpu.parts):
                if one is not None and one.uuid == uuid:
                    return one  # type: ignore[no-any-return] # a Device
        raise self.NVMLError("Not Found")

    def nvmlDeviceGetUUID(self, device: Device) -> str:  # noqa: N802
        return device.uuid

    def nvmlDeviceGetMaxMigDeviceCount(self, device: Device) -> int:  # noqa: N802
        if not device.parts:
            raise self.NVMLError("Not Supported")
        return len(device.parts)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Device, index: int) -> Device:  # noqa: N802
        if device.parts[index] is None:
            raise self.NVMLError("Not Found")
        return device.parts[index]  # type: ignore[no-any-return] # a Device

    def nvmlDeviceGetGpuInstanceId(self, device: Device) -> int:  # noqa: N802
        return device.instances[0]

    def nvmlDeviceGetComputeInstanceId(self, device: Device) -> int:  # noqa: N802
        return device.instances[1]

    def nvmlDeviceGetMemoryInfo(self, device: Device) -> Any:  # noqa: N802
        return attrs.make_class("Memory", ["used", "total"])(used=2_000_000, total=8_000_000)

    def nvmlDeviceGetUtilizationRates(self, device: Device) -> Any:  # noqa: N802
        if device.uuid.startswith("MIG-"):
            raise self.NVMLError("Not Supported")
        return attrs.make_class("Rates", ["gpu"])(gpu=55)

    def nvmlDeviceGetPowerUsage(self, device: Device) -> int:  # noqa: N802
        raise self.NVMLError("Not Supported")

    def nvmlShutdown(self) -> None:  # noqa: N802
        pass


ONE = Device("GPU-11aa")
PART = Device("MIG-55ee", instances=(3, 0))
TWO = Device("GPU-22bb", parts=(None, PART))
OTHER = Device("GPU-22cc")
NVML = RecordedNvml(ONE, TWO, OTHER)


@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        (None, [ONE, TWO, OTHER]),
        ("", []),
        ("2,0", [OTHER, ONE]),
        ("0,7,1", [ONE]),
        ("-1", []),
        ("NoDevFiles", []),
        ("GPU-22bb", [TWO]),
        ("GPU-11, GPU-22c", [ONE, OTHER]),
        ("GPU-22", []),
        ("MIG-55ee", [PART]),
        ("MIG-5", [PART]),
        ("MIG-GPU-22bb/3/0", [PART]),
        ("MIG-GPU-22bb/4/0,0", []),
    ],
)
def test_visible_devices_are_those_of_cuda(visible: str | None, devices: list[Device]) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert visible_devices(NVML, environ) == devices


def test_what_a_device_does_not_tell_is_left_out() -> None:
    assert Gpus(NVML, [ONE, PART]).metrics() == {
        "system/gpu_0_memory_usage_percentage": 25.0,
        "system/gpu_0_memory_usage_megabytes": 2.0,
        "system/gpu_0_utilization_percentage": 55,
        "system/gpu_1_memory_usage_percentage": 25.0,
        "system/gpu_1_memory_usage_megabytes": 2.0,
    }
