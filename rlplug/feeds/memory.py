"""How much memory there is, and sizes in words."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["available_memory", "in_words"]


def available_memory() -> int | None:
    """Bytes that this process could still take; None where the system does not say."""
    known = [found for found in (_free(), _group_left()) if found is not None]
    return min(known) if known else None


def in_words(size: float) -> str:
    """A number of bytes as people write it."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:,.0f} {unit}" if size >= 10 or unit == "bytes" else f"{size:.1f} {unit}"


def _free() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        # No Linux.
        pass
    names = getattr(os, "sysconf_names", {})
    if "SC_PHYS_PAGES" in names and "SC_PAGE_SIZE" in names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _group_left() -> int | None:
    """What the container's limit leaves."""
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(int(limit) - used, 0)
