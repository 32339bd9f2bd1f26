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
_ASKED_FOR = ("on", "once")
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
        if wanted in _ASKED_FOR or (wanted == "auto" and on_gpu):
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
                    values |= _gpus(run.device)
                if not self._stopped.is_set():
                    self._put(run.progress(), values)
                if self._section.system_metrics == "once":
                    return
        except Exception as error:
            # Drivers raise anything.
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
    """Memory, utilization and power of visible GPUs in CUDA's order, as far as they report them."""
    cuda = sys.modules["torch"].cuda
    peak = cuda.max_memory_allocated(device) / _MEGABYTE
    values = {"system/torch_peak_memory_megabytes": peak}
    for index in range(cuda.device_count()):
        name = f"system/gpu_{index}"
        free, total = cuda.mem_get_info(index)
        values[f"{name}_memory_usage_percentage"] = 100 * (total - free) / total
        values[f"{name}_memory_usage_megabytes"] = (total - free) / _MEGABYTE
        # torch asks NVML, which knows no utilization and no power of parts of a GPU (MIG).
        with contextlib.suppress(Exception):
            values[f"{name}_utilization_percentage"] = cuda.utilization(index)
            values[f"{name}_power_usage_watts"] = cuda.power_draw(index) / 1000
    return values


def check_system_metrics(section: TrackingSection) -> None:
    """Refuse what was asked for and cannot be sampled."""
    try:
        if section.system_metrics in _ASKED_FOR:
            importlib.import_module("psutil")
    except ImportError as error:
        raise RequestError(
            f"tracking.system_metrics = {section.system_metrics!r} needs psutil, which is not "
            "installed.",
            _HELP,
        ) from error
