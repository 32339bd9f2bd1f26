"""Profiles some iterations of a run: a trace, a table of operators, and where the time went."""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import attrs
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from rlplug.config.sections import ProfilerSection
from rlplug.errors import RequestError
from rlplug.quantities import format_short_time
from rlplug.tracking.artifacts import PROFILES

__all__ = ["Profile", "Profiler", "refuse_short_run"]

_LOG = logging.getLogger("rlplug")

_PREFIX = "rlplug: "
"""Of the phases in a trace, beside torch's operators."""

_WAITS = re.compile(r"method acquire of _thread\.lock|^threading\.py.*: wait$")
"""Python calls in which threads do nothing."""


@attrs.frozen(kw_only=True)
class Profile:
    """Where the time of the profiled iterations went."""

    iterations: int
    seconds: Mapping[str, float]
    """By the parts of `time_split`."""
    learning: Mapping[str, float]
    """Those parts of `learn` that are `gradients`, with losses, and steps of the `optimizer`."""
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

    def __init__(
        self,
        section: ProfilerSection,
        folder: Path,
        *,
        device: torch.device,
        written: Callable[[Path], None],
    ) -> None:
        self._section = section
        self._folder = folder / PROFILES
        self._written = written
        self._step = self._updates = 0
        self._traced = 0
        """Iterations of the trace in progress."""
        self._iterations = self._profiled = 0
        self._seconds: dict[str, float] = {}
        """By phase."""
        self._files: list[Path] = []
        self._is_on_cuda = device.type == "cuda"
        # Otherwise it prints over the progress of the run.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        activities = [ProfilerActivity.CPU]
        self._torch: profile | None = profile(
            activities=[*activities, *([ProfilerActivity.CUDA] if self._is_on_cuda else [])],
            schedule=schedule(
                skip_first=section.skip_first,
                wait=section.wait,
                warmup=section.warmup,
                active=section.active,
                repeat=section.repeat,
            ),
            on_trace_ready=self._write,
            record_shapes=section.record_shapes,
            profile_memory=section.profile_memory,
            with_stack=section.with_stack,
            with_flops=section.with_flops,
            with_modules=section.with_modules,
        )

    def start(self, updates: int) -> None:
        """Begin with the first iteration, after so many updates."""
        self._updates = updates
        if self._torch is not None:
            self._torch.start()

    def record(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose calls are a phase of the trace."""
        name = _PREFIX + phase

        @wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if self._torch is None:
                return function(*args, **kwargs)
            with record_function(name):
                return function(*args, **kwargs)

        return recorded

    def record_each(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same for what yields: each item is a phase."""

        @wraps(function)
        def recorded(*args: Any) -> Iterator[Any]:
            items = iter(function(*args))
            following = self.record(phase, lambda: next(items, _END))
            while (item := following()) is not _END:
                yield item

        return recorded

    def collected(self, step: int, updates: int) -> None:
        """A collection and its updates have ended, after so many steps and updates of the run."""
        if self._torch is None or updates == self._updates:
            return
        self._step, self._updates = step, updates
        self._iterations += 1
        if self._is_tracing:
            self._traced += 1
        with warnings.catch_warnings():
            # Each trace has the events of its own iterations, as it should.
            warnings.filterwarnings("ignore", message=".*Profiler clears events")
            running, self._torch = self._torch, None
            running.step()
        # After an exception, to stop it would end the process.
        self._torch = running
        section = self._section
        cycle = section.wait + section.warmup + section.active
        if section.repeat and self._iterations >= section.skip_first + section.repeat * cycle:
            self.close()

    @property
    def _is_tracing(self) -> bool:
        section = self._section
        cycle = section.wait + section.warmup + section.active
        place = self._iterations - 1 - section.skip_first
        return place >= 0 and place % cycle >= section.wait + section.warmup

    def close(self) -> None:
        """End the profile, and write a trace that is in progress."""
        running, self._torch = self._torch, None
        if running is not None:
            running.stop()

    def result(self) -> Profile | None:
        """Where the time went; None, with a warning, if no iteration was profiled."""
        if not self._profiled:
            section = self._section
            _LOG.warning(
                "rlplug: nothing was profiled: there were %s iterations with updates, and the "
                "profile begins after %s (profiler.skip_first + wait + warmup).",
                f"{self._iterations:,}",
                f"{section.skip_first + section.wait + section.warmup:,}",
            )
            return None
        return Profile(
            iterations=self._profiled,
            seconds=_parts(self._seconds),
            learning={name: self._seconds.get(name, 0.0) for name in ("gradients", "optimizer")},
            files=tuple(self._files),
        )

    def _write(self, traced: profile) -> None:
        """Write a trace and its table, and add up its phases."""
        if not self._traced:
            return
        events = traced.key_averages(group_by_input_shape=self._section.record_shapes)
        totals: dict[str, float] = {}
        for one in events:
            if one.key.startswith(_PREFIX):
                name = one.key.removeprefix(_PREFIX)
                totals[name] = totals.get(name, 0.0) + one.cpu_time_total / 1e6
        for name, value in totals.items():
            self._seconds[name] = self._seconds.get(name, 0.0) + value
        seconds = _parts(totals)
        whole = sum(seconds.values())
        iterations, self._traced = self._traced, 0
        self._profiled += iterations
        events[:] = [one for one in events if not _WAITS.search(one.key)]
        rows = self._section.table_size
        sorts = ["self_cuda_time_total"] if self._is_on_cuda else []
        tables = [
            events.table(sort_by=sort, row_limit=rows, max_name_column_width=60)
            for sort in (*sorts, "self_cpu_time_total")
        ]
        head = [f"{iterations} iterations up to step {self._step:,}", ""]
        head += [
            f"{part:<10}{format_short_time(one):>10}{one / whole:>6.0%}"
            for part, one in seconds.items()
        ]
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            trace = self._folder / f"step-{self._step:012d}.json.gz"
            table = self._folder / f"step-{self._step:012d}.txt"
            partial = self._folder / f".writing-{trace.name}"
            traced.export_chrome_trace(str(partial))
            partial.replace(trace)
            table.write_text("\n".join([*head, "", *tables]))
        except (OSError, RuntimeError) as error:
            _LOG.warning("rlplug: no trace at step %s: %s", f"{self._step:,}", error)
            return
        for file in (table, trace):
            self._files.append(file)
            self._written(file)


def refuse_short_run(section: ProfilerSection, steps: int, steps_per_collect: int) -> None:
    """Refuse a profile of a run that is over before it would begin."""
    before = section.skip_first + section.wait + section.warmup
    most = -(-steps // steps_per_collect)
    if section.enabled and most <= before:
        raise RequestError(
            f"nothing would be profiled: a run of {steps:,} steps has at most {most:,} iterations "
            f"of {steps_per_collect:,} steps, and the profile begins after {before:,} "
            "(profiler.skip_first + wait + warmup).",
            f"try: --steps {(before + section.active) * steps_per_collect}, or "
            "--set profiler.skip_first=0",
        )


def _parts(totals: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each part of the time, from those of phases, which lie inside of others."""
    of = {**dict.fromkeys(_PHASES, 0.0), **totals}
    return {
        "step": of["step"],
        "act": of["collect"] - of["step"],
        "prepare": of["prepare"] + of["prepare batch"],
        "learn": of["learn"] - of["prepare batch"],
        "track": of["track"] - of["evaluate"],
        "evaluate": of["evaluate"],
    }


_PHASES = ("collect", "step", "prepare", "learn", "prepare batch", "track", "evaluate")
_END = object()
