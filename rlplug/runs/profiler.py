"""Profiles some iterations of a run with torch's profiler: traces, and tables of operators."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile, schedule

from rlplug.config.sections import ProfilerSection
from rlplug.tracking.sync import PROFILES

__all__ = ["Profiler"]

_LOG = logging.getLogger("rlplug")

_SCHEDULE = ("skip_first", "wait", "warmup", "active", "repeat")
_RECORDED = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
"""Options that torch's profiler has under the same names."""


class Profiler:
    """Runs torch's profiler over iterations of the training loop.

    An iteration goes from the end of a collection that led to an update to the end of the next one
    that does.
    """

    def __init__(self, section: ProfilerSection, folder: Path, *, device: torch.device) -> None:
        self.files: list[Path] = []
        """Traces and tables, the latest last."""
        self._section, self._folder = section, folder / PROFILES
        self._step = self._updates = 0
        self._has_failed = False
        self._sort_by = f"self_{device.type}_time_total"
        # Otherwise it prints over the progress of the run.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        self._torch: Any = profile(
            schedule=schedule(**{name: getattr(section, name) for name in _SCHEDULE}),
            on_trace_ready=self._write,
            **{name: getattr(section, name) for name in _RECORDED},
        )

    def start(self, updates: int) -> None:
        """Begin with the first iteration, after so many updates."""
        self._updates = updates
        self._torch.start()

    def collected(self, step: int, updates: int) -> None:
        """A collection and its updates have ended, after so many steps and updates of the run."""
        if self._torch is not None and updates != self._updates:
            self._step, self._updates = step, updates
            running, self._torch = self._torch, None
            # After an exception, to stop it would end the process. Torch warns of a second trace.
            with warnings.catch_warnings(action="ignore"):
                running.step()
            self._torch = running

    def close(self) -> None:
        """End the profile with the trace in progress; warn if there is none."""
        if self._torch is not None:
            self._torch.stop()
        if not self.files and not self._has_failed:
            _LOG.warning(
                "rlplug: nothing was profiled: the run ended within the first iterations, which "
                "are left out (profiler.skip_first + wait + warmup)."
            )

    def _write(self, traced: profile) -> None:
        """Write a trace and its table."""
        section, file = self._section, self._folder / f"step-{self._step:012d}.txt"
        try:
            events = traced.key_averages(group_by_input_shape=section.record_shapes)
            table = events.table(sort_by=self._sort_by, row_limit=section.table_size)
            self._folder.mkdir(parents=True, exist_ok=True)
            traced.export_chrome_trace(str(file.with_suffix(".json.gz")))
            file.write_text(f"up to step {self._step:,}\n\n{table}")
        except (OSError, RuntimeError) as error:
            self._has_failed = True
            _LOG.warning("rlplug: no trace at step %s: %s", f"{self._step:,}", error)
        else:
            self.files += [file, file.with_suffix(".json.gz")]
