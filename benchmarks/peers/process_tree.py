"""CPU time of a process and of all that it has started, directly or not."""

from __future__ import annotations

import time

import psutil

__all__ = ["Clock"]


class Clock:
    """Wall time, and CPU time of this process and all below it: runners, and Ray's own."""

    def start(self) -> None:
        """From here on."""
        self._cpu, self._wall = self._of_all(), time.perf_counter()

    def stop(self) -> None:
        """Up to here."""
        wall, now = time.perf_counter() - self._wall, self._of_all()
        self.wall = wall
        self.processes = len(now)
        self.cpu = sum(spent - self._cpu.get(pid, 0.0) for pid, spent in now.items())

    def _of_all(self) -> dict[int, float]:
        spent = {}
        own = psutil.Process()
        for one in (own, *own.children(recursive=True)):
            try:
                times = one.cpu_times()
            except psutil.Error:
                continue
            spent[one.pid] = times.user + times.system
        return spent
