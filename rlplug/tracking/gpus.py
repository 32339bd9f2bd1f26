"""The GPUs that a process may use, as NVML knows them, and how busy they are."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

__all__ = ["GPUS", "Gpus", "visible_devices"]

GPUS = "CUDA_VISIBLE_DEVICES"
_MEGABYTE = 1e6


class Gpus:
    """The visible GPUs in CUDA's order; a part of one (MIG) is measured as far as NVML does."""

    def __init__(self, nvml: Any, handles: Sequence[Any]) -> None:
        self._nvml = nvml
        self._handles = handles

    @classmethod
    def open(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Start NVML; raises what is wrong with it."""
        import pynvml

        pynvml.nvmlInit()
        return cls(pynvml, visible_devices(pynvml, environ))

    def __len__(self) -> int:
        return len(self._handles)

    def metrics(self) -> dict[str, float]:
        """Memory, utilization and power as MLflow names them, as far as a device tells them."""
        found: dict[str, float] = {}
        for index, handle in enumerate(self._handles):
            for read in (self._memory, self._utilization, self._power):
                # Parts of a GPU have no utilization, many devices no power limit.
                with contextlib.suppress(self._nvml.NVMLError):
                    found.update(read(f"system/gpu_{index}", handle))
        return found

    def close(self) -> None:
        """End NVML."""
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def _memory(self, name: str, handle: Any) -> dict[str, float]:
        memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        return {
            f"{name}_memory_usage_percentage": round(100 * memory.used / memory.total, 1),
            f"{name}_memory_usage_megabytes": memory.used / _MEGABYTE,
        }

    def _utilization(self, name: str, handle: Any) -> dict[str, float]:
        return {
            f"{name}_utilization_percentage": self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu
        }

    def _power(self, name: str, handle: Any) -> dict[str, float]:
        watts = self._nvml.nvmlDeviceGetPowerUsage(handle) / 1000
        found = {f"{name}_power_usage_watts": watts}
        limit = self._nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
        return {**found, f"{name}_power_usage_percentage": round(100 * watts / limit, 1)}


def visible_devices(nvml: Any, environ: Mapping[str, str] = os.environ) -> list[Any]:
    """The NVML handles of the devices in `CUDA_VISIBLE_DEVICES`, all without it.

    Entries are indices, UUIDs (`GPU-…`, or the beginning of one) or parts of a GPU (`MIG-…`). As in
    CUDA, what follows an entry that names no device is invisible. Indices are taken as those of
    NVML, which are CUDA's with `CUDA_DEVICE_ORDER=PCI_BUS_ID` or alike GPUs.
    """
    count = nvml.nvmlDeviceGetCount()
    if GPUS not in environ:
        return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    handles = []
    for entry in environ[GPUS].split(","):
        handle = _handle(nvml, entry.strip(), count)
        if handle is None:
            break
        handles.append(handle)
    return handles


def _handle(nvml: Any, entry: str, count: int) -> Any | None:
    if entry.isdecimal():
        index = int(entry)
        return nvml.nvmlDeviceGetHandleByIndex(index) if index < count else None
    if entry.startswith("MIG-GPU-"):
        return _part(nvml, entry)
    if entry.startswith(("GPU-", "MIG-")):
        with contextlib.suppress(nvml.NVMLError):
            return nvml.nvmlDeviceGetHandleByUUID(entry)
        return _by_beginning(nvml, entry, count)
    return None


def _part(nvml: Any, entry: str) -> Any | None:
    """`MIG-GPU-UUID/gpu instance/compute instance`, as older drivers name parts."""
    uuid, _, instances = entry.removeprefix("MIG-").partition("/")
    wanted = tuple(instances.split("/"))
    with contextlib.suppress(nvml.NVMLError):
        gpu = nvml.nvmlDeviceGetHandleByUUID(uuid)
        for part in _parts(nvml, gpu):
            ids = nvml.nvmlDeviceGetGpuInstanceId(part), nvml.nvmlDeviceGetComputeInstanceId(part)
            if tuple(map(str, ids)) == wanted:
                return part
    return None


def _by_beginning(nvml: Any, entry: str, count: int) -> Any | None:
    """The one device or part whose UUID begins so."""
    found = []
    for index in range(count):
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        candidates = [gpu] if entry.startswith("GPU-") else _parts(nvml, gpu)
        found += [one for one in candidates if _uuid(nvml, one).startswith(entry)]
    return found[0] if len(found) == 1 else None


def _parts(nvml: Any, gpu: Any) -> list[Any]:
    found = []
    get: Callable[[Any, int], Any] = nvml.nvmlDeviceGetMigDeviceHandleByIndex
    with contextlib.suppress(nvml.NVMLError):
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
            # Indices have gaps where parts were destroyed.
            with contextlib.suppress(nvml.NVMLError):
                found.append(get(gpu, index))
    return found


def _uuid(nvml: Any, handle: Any) -> str:
    uuid = nvml.nvmlDeviceGetUUID(handle)
    return uuid.decode() if isinstance(uuid, bytes) else str(uuid)
