"""System metrics of a run, sampled in a thread: CPU and memory of host and run, visible GPUs."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rlplug.config.sections import TrackingSection
from rlplug.errors import RequestError
from rlplug.hooks.events import RunInfo
from rlplug.tracking.gpus import Gpus

__all__ = ["SystemMetrics", "check_system_metrics"]

_MEGABYTE = 1e6
_HELP = "pip install 'rlplug[gpu]'"


class SystemMetrics:
    """Samples at an interval and reports at the current step; what fails is said once."""

    def __init__(
        self,
        section: TrackingSection,
        put: Callable[[int, Mapping[str, float]], None],
        warn: Callable[[str], None],
    ) -> None:
        self._section = section
        self._put = put
        self._warn = warn
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, run: RunInfo) -> None:
        """Start the thread, if system metrics are wanted."""
        on_gpu = run.device.startswith("cuda")
        if not _wanted(self._section, on_gpu):
            return
        self._thread = threading.Thread(
            target=self._run, args=(run, on_gpu), name="rlplug-system-metrics", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Sample no more."""
        self._stopped.set()
        if self._thread is not None:
            # A sample takes milliseconds, unless a driver hangs.
            self._thread.join(1.0)

    def _run(self, run: RunInfo, on_gpu: bool) -> None:
        with self._samplers(on_gpu) as samplers:
            # What is used is counted from one sample to the next.
            while samplers and not self._stopped.wait(self._section.system_interval):
                found: dict[str, float] = {}
                for sampler in list(samplers):
                    try:
                        found.update(sampler())
                    except Exception as error:
                        # Drivers raise anything; the others still sample.
                        samplers.remove(sampler)
                        self._warn(f"no more system metrics of {sampler.__qualname__}: {error}.")
                if found:
                    self._put(run.progress(), found)
                if self._section.system_metrics == "once":
                    return

    @contextlib.contextmanager
    def _samplers(self, on_gpu: bool) -> Iterator[list[Callable[[], dict[str, float]]]]:
        """What can be sampled; what cannot is said."""
        samplers: list[Callable[[], dict[str, float]]] = []
        with contextlib.ExitStack() as stack:
            try:
                samplers.append(Host().metrics)
            except ImportError:
                self._warn(f"no system metrics of the host: psutil is not installed. try: {_HELP}")
            try:
                gpus = Gpus.open()
                stack.callback(gpus.close)
                samplers += [gpus.metrics] if len(gpus) else []
            except Exception as error:
                # Without a GPU in use, its driver need not be there.
                if on_gpu:
                    how = f" try: {_HELP}" if isinstance(error, ImportError) else ""
                    self._warn(f"no system metrics of the GPU: {_first_line(error)}.{how}")
            if on_gpu:
                samplers.append(_peak_memory)
            yield samplers


class Host:
    """CPU and memory, of the machine and of the run with the processes that it started."""

    def __init__(self) -> None:
        self._psutil: Any = importlib.import_module("psutil")
        self._own = self._psutil.Process()
        self._known: dict[int, Any] = {}
        self.metrics()

    def metrics(self) -> dict[str, float]:
        """By MLflow's names, and `system/run_…` for the run; 100 percent is one core of the run."""
        psutil = self._psutil
        memory = psutil.virtual_memory()
        used, resident = self._of_run()
        return {
            "system/cpu_utilization_percentage": psutil.cpu_percent(),
            "system/system_memory_usage_megabytes": memory.used / _MEGABYTE,
            "system/system_memory_usage_percentage": 100 * memory.used / memory.total,
            "system/run_cpu_percentage": used,
            "system/run_memory_megabytes": resident / _MEGABYTE,
        }

    def _of_run(self) -> tuple[float, float]:
        psutil = self._psutil
        alive = {one.pid: one for one in (self._own, *self._own.children(recursive=True))}
        # Use is counted since the last call of the same object.
        self._known = {pid: self._known.get(pid, one) for pid, one in alive.items()}
        used = resident = 0.0
        for one in self._known.values():
            with contextlib.suppress(psutil.Error):
                used += one.cpu_percent()
                resident += one.memory_info().rss
        return used, resident


def check_system_metrics(section: TrackingSection) -> None:
    """Refuse what was asked for and cannot be sampled."""
    if section.system_metrics not in ("on", "once"):
        return
    try:
        importlib.import_module("psutil")
    except ImportError as error:
        raise RequestError(
            f"tracking.system_metrics = {section.system_metrics!r} needs psutil, which is not "
            "installed.",
            f"try: {_HELP}",
        ) from error


def _wanted(section: TrackingSection, on_gpu: bool) -> bool:
    return section.system_metrics in ("on", "once") or (section.system_metrics == "auto" and on_gpu)


def _peak_memory() -> dict[str, float]:
    """The most that torch had allocated on the current device."""
    torch = sys.modules["torch"]
    return {"system/torch_peak_memory_megabytes": torch.cuda.max_memory_allocated() / _MEGABYTE}


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
