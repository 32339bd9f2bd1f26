"""System metrics of a run, sampled in a thread: CPU and memory of the host, and visible GPUs."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from rlplug.config.sections import TrackingSection
from rlplug.hooks.events import RunInfo

_MEGABYTE = 1e6


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
            # What is used is counted from one sample to the next.
            psutil.cpu_percent()
            while not self._stopped.wait(self._section.system_interval):
                memory = psutil.virtual_memory()
                values = {
                    "system/cpu_utilization_percentage": psutil.cpu_percent(),
                    "system/system_memory_usage_megabytes": memory.used / _MEGABYTE,
                    "system/system_memory_usage_percentage": 100 * memory.used / memory.total,
                    "system/run_memory_megabytes": psutil.Process().memory_info().rss / _MEGABYTE,
                    **(_gpus(run.device) if on_gpu else {}),
                }
                if not self._stopped.is_set():
                    self._put(run.progress(), values)
                if self._section.system_metrics == "once":
                    return
        except Exception as error:
            # Drivers raise anything.
            self._warn(f"no system metrics: {error}. try: pip install 'rlplug[gpu]'")


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
