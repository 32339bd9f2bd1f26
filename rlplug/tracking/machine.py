"""The machine of a run, and the versions of what its results depend on."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

from rlplug.tracking.source_code import core_hash

__all__ = ["cores", "gpu_name", "machine", "threads_of_torch", "versions"]

_PACKAGES = ("rlplug", "torch", "gymnasium", "numpy", "mlflow")


def machine(*, threads: int, gpu: str) -> dict[str, str]:
    """Host, operating system, CPU, its cores and how many threads torch uses, and the GPU."""
    return {
        "host": socket.gethostname(),
        "os": platform.platform(),
        "cpu": _cpu(),
        "cores": str(cores()),
        "threads": str(threads),
        "gpu": gpu,
    }


def versions() -> dict[str, str]:
    """Versions of Python and packages; of rlplug, which may be edited, the source hash as well."""
    found = {"python": platform.python_version(), **_installed()}
    torch = sys.modules.get("torch")
    cuda = getattr(getattr(torch, "version", None), "cuda", None)
    return {**found, "cuda": str(cuda or ""), "rlplug source": core_hash()}


@cache
def _installed() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def threads_of_torch() -> int:
    """The number of threads that torch computes with in this thread; 0 without torch."""
    torch = sys.modules.get("torch")
    return 0 if torch is None else int(torch.get_num_threads())


def gpu_name(device: str) -> str:
    """The name of the GPU that a run computes on; empty for the CPU."""
    torch = sys.modules.get("torch")
    if torch is None or not device.startswith("cuda") or not torch.cuda.is_initialized():
        return ""
    return str(torch.cuda.get_device_name(device))


def cores() -> int:
    """The CPU cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = (os.cpu_count() or 1) if affinity is None else len(affinity(0))
    return max(min(count, _quota()), 1)


def _quota(file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """The cores that a container may use, of however many it sees; rounded up."""
    try:
        most, period = file.read_text().split()
        return -(-int(most) // int(period))
    except (OSError, ValueError):
        return os.cpu_count() or 1


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.machine()
