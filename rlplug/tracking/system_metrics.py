"""System metrics of a run, sampled in a thread: CPU and memory of the host, and visible GPUs."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from rlplug.config.sections import TrackingSection
from rlplug.errors import RequestError
from rlplug.hooks.events import RunInfo

_MEGABYTE = 1e6
_HELP = "try: pip install 'rlplug[gpu]'"


class SystemMetrics:
    """Samples at an interval and reports at the current step; what fails is said once."""

    def __init__(
        self,
        section: TrackingSection,
        put: Callable[[int, Mapping[str, float]], None],
        warn: Callable[[str], None],
    ) -> None:
        self._section, self._put, self._warn = section, put, warn
        self._stopped = threading.Event()

    def start(self, run: RunInfo) -> None:
        """Start the thread, if system metrics are wanted."""
        on_gpu, wanted = run.device.startswith("cuda"), self._section.system_metrics
        if wanted in ("on", "once") or (wanted == "auto" and on_gpu):
            threading.Thread(target=self._run, args=(run, on_gpu), daemon=True).start()

    def stop(self) -> None:
        """Sample no more."""
        self._stopped.set()

    def _run(self, run: RunInfo, on_gpu: bool) -> None:
        try:
            psutil: Any = importlib.import_module("psutil")
            known: dict[int, Any] = {}
            # What is used is counted from one sample to the next.
            _host(psutil, known)
            while not self._stopped.wait(self._section.system_interval):
                values = _host(psutil, known)
                if on_gpu:
                    try:
                        values |= _gpus(run.device)
                    except Exception as error:
                        # Drivers raise anything.
                        on_gpu = False
                        self._warn(f"no system metrics of the GPU: {error}. {_HELP}")
                if not self._stopped.is_set():
                    self._put(run.progress(), values)
                if self._section.system_metrics == "once":
                    return
        except ImportError as error:
            self._warn(f"no system metrics: {error}. {_HELP}")


def _host(psutil: Any, known: dict[int, Any]) -> dict[str, float]:
    """By MLflow's names; `system/run_…` is the run with its processes, 100 percent one core."""
    own, used, resident = psutil.Process(), 0.0, 0.0
    alive = {one.pid: known.get(one.pid, one) for one in (own, *own.children(recursive=True))}
    known.clear()
    known.update(alive)
    for process in alive.values():
        with contextlib.suppress(psutil.Error):
            used += process.cpu_percent()
            resident += process.memory_info().rss
    memory = psutil.virtual_memory()
    return {
        "system/cpu_utilization_percentage": psutil.cpu_percent(),
        "system/system_memory_usage_megabytes": memory.used / _MEGABYTE,
        "system/system_memory_usage_percentage": 100 * memory.used / memory.total,
        "system/run_cpu_percentage": used,
        "system/run_memory_megabytes": resident / _MEGABYTE,
    }


def _gpus(device: str) -> dict[str, float]:
    """Memory, utilization and power of visible GPUs in CUDA's order, as far as they tell them."""
    torch = sys.modules["torch"]
    free, total = torch.cuda.mem_get_info(device)
    own = torch.device(device).index
    values = _memory(torch.cuda.current_device() if own is None else own, total - free, total)
    peak = torch.cuda.max_memory_allocated(device) / _MEGABYTE
    values["system/torch_peak_memory_megabytes"] = peak
    for index in range(torch.cuda.device_count()):
        # torch asks NVML, which knows no utilization and no power of parts of a GPU (MIG).
        with contextlib.suppress(Exception):
            size = torch.cuda.get_device_properties(index).total_memory
            values |= _memory(index, torch.cuda.device_memory_used(index), size)
            values[f"system/gpu_{index}_utilization_percentage"] = torch.cuda.utilization(index)
            values[f"system/gpu_{index}_power_usage_watts"] = torch.cuda.power_draw(index) / 1000
    return values


def _memory(index: int, used: float, size: float) -> dict[str, float]:
    name = f"system/gpu_{index}_memory_usage"
    return {f"{name}_percentage": 100 * used / size, f"{name}_megabytes": used / _MEGABYTE}


def check_system_metrics(section: TrackingSection) -> None:
    """Refuse what was asked for and cannot be sampled."""
    if section.system_metrics in ("on", "once"):
        try:
            importlib.import_module("psutil")
        except ImportError as error:
            raise RequestError(
                f"tracking.system_metrics = {section.system_metrics!r} needs psutil, which is not "
                "installed.",
                _HELP,
            ) from error
