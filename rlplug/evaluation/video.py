"""Records a video of one greedy episode."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import numpy
from gymnasium.error import DependencyNotInstalled

from rlplug.envs import Environments
from rlplug.errors import RequestError
from rlplug.evaluation.evaluator import greedy_collector
from rlplug.plugin import Module
from rlplug.sampling import Collector
from rlplug.seeding import forked

__all__ = ["check_drawing", "record"]

_MAX_FRAMES = 10_000


def record(
    module: Module,
    make: Callable[[], Environments],
    file: Path,
    *,
    seed: int,
    timestep: int = 0,
    normalize: Any = None,
) -> Path:
    """Write an MP4 of one greedy episode; the environment needs render_mode rgb_array."""
    ffmpeg, environments = _ffmpeg(), _make_drawing(make)
    try:
        with forked(seed):
            collector = greedy_collector(module, environments, seed, timestep, normalize)
            beside = file.with_name(f".new-{file.name}")
            rate = float(environments.vector.metadata.get("render_fps", 30))
            _write(ffmpeg, beside, _episode(collector, environments), rate)
            beside.replace(file)
    finally:
        environments.close()
    return file


def check_drawing(make: Callable[[], Environments], seed: int) -> None:
    """Raise what would prevent a video before training starts."""
    environments = _make_drawing(make)
    try:
        environments.reset(seed)
        _frame(environments)
    finally:
        environments.close()
    _ffmpeg()


def _make_drawing(make: Callable[[], Environments]) -> Environments:
    if sys.platform == "linux" and not any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))):
        # Rendering to arrays needs no display, but SDL warns without one.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    try:
        return make()
    except RequestError as error:
        raise RequestError(
            f"no video can be made: {error.message}", *error.hints[:-1], "try: without a video"
        ) from error


def _episode(collector: Collector, environments: Environments) -> Iterator[Any]:
    """The frames of one episode; the last is the one before its end."""
    collector.start()
    yield _frame(environments)
    for step in range(_MAX_FRAMES):
        if collector.collect(step).ended()[0, 0]:
            return
        yield _frame(environments)


def _frame(environments: Environments) -> Any:
    try:
        frame = environments.vector.envs[0].render()
    except DependencyNotInstalled as error:
        raise _no_extra(f"drawing {environments.name!r} needs more: {error}") from error
    if not isinstance(frame, numpy.ndarray) or frame.ndim != 3:
        raise RequestError(
            f"environment {environments.name!r} draws no pictures, found {type(frame).__name__}.",
            "try: without a video",
        )
    # yuv420p needs even sides.
    height, width = (side // 2 * 2 for side in frame.shape[:2])
    return numpy.ascontiguousarray(frame[:height, :width, :3], dtype=numpy.uint8)


def _write(ffmpeg: str, file: Path, frames: Iterator[Any], rate: float) -> None:
    first = next(frames)
    file.parent.mkdir(parents=True, exist_ok=True)
    size = f"{first.shape[1]}x{first.shape[0]}"
    given = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size]
    # H.264 with the index in front: every browser can stream it.
    wanted = ["-c:v", "libx264", "-pix_fmt", "yuv420p", "-movflags", "+faststart", "-f", "mp4"]
    command = [ffmpeg, "-y", "-loglevel", "error", *given, "-r", str(rate), "-i", "-", *wanted]
    with subprocess.Popen(
        [*command, str(file)], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        # ffmpeg's exit code and messages tell why it ended early.
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            for frame in chain([first], frames):
                pipe.write(frame.tobytes())
        reason = process.stderr.read().decode(errors="replace").strip()
    if process.returncode:
        raise RequestError(f"ffmpeg could not write {file}: {reason}.")


def _ffmpeg() -> str:
    try:
        program: str = import_module("imageio_ffmpeg").get_ffmpeg_exe()
    except ImportError as error:
        raise _no_extra("a video needs the package imageio-ffmpeg") from error
    return program


def _no_extra(reason: str) -> RequestError:
    return RequestError(f"{reason}.", "try: pip install 'rlplug[video]'")
