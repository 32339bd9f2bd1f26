"""The machine of a run, and the versions of what its results depend on."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import sys
from importlib import metadata
from pathlib import Path

from rlplug.tracking.source_code import core_hash

_PACKAGES = ("rlplug", "torch", "gymnasium", "numpy", "mlflow")


def machine(device: str) -> dict[str, str]:
    """Host, operating system, CPU, its cores and how many threads torch uses, and the GPU."""
    torch = sys.modules.get("torch")
    on_gpu = torch is not None and device.startswith("cuda") and torch.cuda.is_initialized()
    return {
        "host": socket.gethostname(),
        "os": platform.platform(),
        "cpu": _cpu(),
        "cores": str(cores()),
        "threads": str(0 if torch is None else torch.get_num_threads()),
        "gpu": str(torch.cuda.get_device_name(device)) if torch and on_gpu else "",
    }


def versions() -> dict[str, str]:
    """Versions of Python and packages; of rlplug, which may be edited, the source hash as well."""
    known = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            known[name] = metadata.version(name)
    cuda = getattr(getattr(sys.modules.get("torch"), "version", None), "cuda", None)
    return {**known, "cuda": str(cuda or ""), "rlplug source": core_hash()}


def cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """The CPU cores that this process may use, also of a container that sees more of them."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = (os.cpu_count() or 1) if affinity is None else len(affinity(0))
    with contextlib.suppress(OSError, ValueError):
        most, period = quota.read_text().split()
        # Rounded up.
        count = min(count, -(-int(most) // int(period)))
    return max(count, 1)


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
