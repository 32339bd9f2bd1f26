"""Profiles some iterations of a run: a trace, a table of operators, and where the time went."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from torch.profiler import profile, record_function, schedule

from rlplug.config.sections import ProfilerSection
from rlplug.tracking.sync import PROFILES

__all__ = ["Profile", "Profiler"]

_LOG = logging.getLogger("rlplug")

_PREFIX = "rlplug: "
"""Of the phases in a trace, beside torch's operators."""

_SCHEDULE = ("skip_first", "wait", "warmup", "active", "repeat")
_RECORDED = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
"""Options that torch's profiler has under the same names."""


@attrs.frozen(kw_only=True)
class Profile:
    """Where the time of the profiled iterations went."""

    iterations: int
    seconds: Mapping[str, float]
    """By the phases that are marked in the trace, some of which lie inside of others."""
    files: tuple[Path, ...]
    """Traces and tables, the latest last."""

    def as_json(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {**attrs.asdict(self), "files": [str(file) for file in self.files]}


class Profiler:
    """Runs torch's profiler over iterations of the training loop, and marks the loop's phases.

    An iteration goes from the end of a collection that led to an update to the end of the next one
    that does.
    """

    def __init__(self, section: ProfilerSection, folder: Path, *, device: torch.device) -> None:
        self._section, self._folder = section, folder / PROFILES
        self._step = self._updates = self._iterations = self._profiled = 0
        self._seconds: dict[str, float] = {}
        """By phase."""
        self._files: list[Path] = []
        self._sort_by = f"self_{device.type}_time_total"
        # Otherwise it prints over the progress of the run.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        self._torch: Any = profile(
            schedule=schedule(**{name: getattr(section, name) for name in _SCHEDULE}),
            on_trace_ready=self._write,
            **{name: getattr(section, name) for name in _RECORDED},
        )
        self._before = section.skip_first + section.wait + section.warmup
        """Iterations before the trace in progress, or the next one."""

    def start(self, updates: int) -> None:
        """Begin with the first iteration, after so many updates."""
        self._updates = updates
        self._torch.start()

    def record(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose calls are a phase of the trace."""
        marked: Callable[..., Any] = record_function(_PREFIX + phase)(function)
        return marked

    def record_each(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same for what yields: each item is a phase."""

        def recorded(*args: Any) -> Iterator[Any]:
            items = iter(function(*args))
            following = self.record(phase, lambda: next(items, _END))
            while (item := following()) is not _END:
                yield item

        return recorded

    def collected(self, step: int, updates: int) -> None:
        """A collection and its updates have ended, after so many steps and updates of the run."""
        if self._torch is not None and updates != self._updates:
            self._step, self._updates = step, updates
            self._iterations += 1
            running, self._torch = self._torch, None
            # After an exception, to stop it would end the process. Torch warns of a second trace.
            with warnings.catch_warnings(action="ignore"):
                running.step()
            self._torch = running

    def close(self) -> Profile | None:
        """End the profile with the trace in progress; None, with a warning, if there is none."""
        if self._torch is not None:
            self._torch.stop()
        if not self._profiled:
            _LOG.warning(
                "rlplug: nothing was profiled: there were %d iterations with updates, it begins "
                "after %d (profiler.skip_first + wait + warmup).",
                self._iterations,
                self._before,
            )
            return None
        return Profile(
            iterations=self._profiled,
            seconds=self._seconds,
            files=tuple(self._files),
        )

    def _write(self, traced: profile) -> None:
        """Write a trace and its table, and add up its phases."""
        section = self._section
        iterations = self._iterations - self._before
        if iterations <= 0:
            return
        self._before += section.wait + section.warmup + section.active
        self._profiled += iterations
        events = traced.key_averages(group_by_input_shape=section.record_shapes)
        for event in events:
            if event.key.startswith(_PREFIX):
                name = event.key.removeprefix(_PREFIX)
                seconds = self._seconds.get(name, 0.0)
                self._seconds[name] = seconds + event.cpu_time_total / 1e6
        table = events.table(sort_by=self._sort_by, row_limit=section.table_size)
        file = self._folder / f"step-{self._step:012d}.txt"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            traced.export_chrome_trace(str(file.with_suffix(".json.gz")))
            file.write_text(f"{iterations} iterations up to step {self._step:,}\n\n{table}")
        except (OSError, RuntimeError) as error:
            _LOG.warning("rlplug: no trace at step %s: %s", f"{self._step:,}", error)
        else:
            self._files += [file, file.with_suffix(".json.gz")]


_END = object()
