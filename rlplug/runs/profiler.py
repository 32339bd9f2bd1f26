"""Profiles some iterations of a run: a trace, a table of operators, and where the time went."""

from __future__ import annotations

import gc
import gzip
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import attrs
import torch
from torch.profiler import ProfilerAction, ProfilerActivity, profile, record_function

from rlplug.config.sections import ProfilerSection
from rlplug.errors import RequestError
from rlplug.quantities import format_short_time
from rlplug.tracking.artifacts import PROFILES

__all__ = ["STACK_SECONDS", "Profile", "Profiler", "refuse_short_run"]

_LOG = logging.getLogger("rlplug")

_PREFIX = "rlplug: "
"""Of the phases in a trace, beside torch's operators."""

_WAITS = re.compile(r"method acquire of _thread\.lock|^threading\.py.*: wait$")
"""Python calls in which threads do nothing."""

STACK_SECONDS = 0.1
"""Of computation, after which a trace of Python calls ends: 100,000 of them take 7 s to write."""


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
    ) -> None:
        self._section = section
        self._folder = folder / PROFILES
        self._step = self._updates = 0
        self._iterations = self._profiled = self._traces = 0
        self._before = 0
        """Iterations before the trace in progress, or the next one."""
        self._began = 0.0
        """When the trace in progress began, in seconds of this thread."""
        self._seconds: dict[str, float] = {}
        """By phase."""
        self._files: list[Path] = []
        self._is_on_cuda = device.type == "cuda"
        # Otherwise it prints over the progress of the run.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        self._torch: profile | None = None

    def start(self, updates: int) -> None:
        """Begin with the first iteration, after so many updates."""
        self._updates = updates
        self._begin(self._section.skip_first)

    def _begin(self, skip: int = 0) -> None:
        """Begin with the next trace."""
        section = self._section
        untraced = skip + section.wait
        before = untraced + section.warmup

        def action(iteration: int) -> ProfilerAction:
            if iteration >= before:
                return ProfilerAction.RECORD
            return ProfilerAction.WARMUP if iteration >= untraced else ProfilerAction.NONE

        self._before = self._iterations + before
        activities = [ProfilerActivity.CPU]
        following = profile(
            activities=[*activities, *([ProfilerActivity.CUDA] if self._is_on_cuda else [])],
            schedule=action,
            on_trace_ready=self._write,
            record_shapes=section.record_shapes,
            profile_memory=section.profile_memory,
            with_stack=section.with_stack,
            with_flops=section.with_flops,
            with_modules=section.with_modules,
        )
        following.start()
        self._began = time.thread_time()
        self._torch = following

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
        section, traced = self._section, self._iterations - self._before
        seconds = time.thread_time() - self._began
        if 0 < traced < section.active and section.with_stack and seconds > STACK_SECONDS:
            _LOG.warning(
                "rlplug: a trace ended after %s of %s iterations: with profiler.with_stack, it "
                "ends after %g s.",
                f"{traced:,}",
                f"{section.active:,}",
                STACK_SECONDS,
            )
        elif traced < section.active:
            # After an exception, to stop it would end the process.
            running, self._torch = self._torch, None
            running.step()
            self._torch = running
            if traced <= 0:
                self._began = time.thread_time()
            return
        self.close()
        self._traces += 1
        if not section.repeat or self._traces < section.repeat:
            self._begin()

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
        iterations = self._iterations - self._before
        if iterations <= 0:
            return
        with _no_garbage_collection():
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
            _export(traced, trace)
            table.write_text("\n".join([*head, "", *tables]))
        except (OSError, RuntimeError) as error:
            _LOG.warning("rlplug: no trace at step %s: %s", f"{self._step:,}", error)
            return
        self._files += [table, trace]


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """To make some objects for each event takes twice as long with it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _export(traced: profile, trace: Path) -> None:
    """Write a compressed trace; torch compresses it line by line, which takes long."""
    plain, partial = (trace.with_name(f".writing-{name}") for name in (trace.stem, trace.name))
    try:
        traced.export_chrome_trace(str(plain))
        with plain.open("rb") as source, gzip.open(partial, "wb", compresslevel=5) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        partial.replace(trace)
    finally:
        plain.unlink(missing_ok=True)
        partial.unlink(missing_ok=True)


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
