"""Records a video of one greedy episode."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import numpy
from gymnasium.error import DependencyNotInstalled

from rlplug.envs import Environments
from rlplug.envs.agents import AgentEnvironments
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
    write, environments = _writer(), _make_drawing(make)
    try:
        with forked(seed):
            collector = greedy_collector(module, environments, seed, timestep, normalize)
            frames = _episode(collector, environments)
            first = next(frames)
            file.parent.mkdir(parents=True, exist_ok=True)
            beside = file.with_name(f".new-{file.name}")
            video = write(
                str(beside),
                (first.shape[1], first.shape[0]),
                fps=float(environments.vector.metadata.get("render_fps", 30)),
                codec="libx264",
                macro_block_size=2,
                ffmpeg_log_level="error",
                # With the index in front, every browser can stream it.
                output_params=["-movflags", "+faststart", "-f", "mp4"],
            )
            video.send(None)
            for frame in chain([first], frames):
                video.send(frame)
            video.close()
            beside.replace(file)
    except OSError as error:
        raise RequestError(f"{file} could not be written: {error}.") from error
    finally:
        environments.close()
    return file


def check_drawing(make: Callable[[], Environments], seed: int) -> None:
    """Raise what would prevent a video before training starts."""
    environments = _make_drawing(make)
    try:
        if isinstance(environments, AgentEnvironments):
            environments.reset_games(seed)
        else:
            environments.reset(seed)
        _frame(environments)
    finally:
        environments.close()
    _writer()


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


def _writer() -> Any:
    """What writes frames with ffmpeg."""
    try:
        return import_module("imageio_ffmpeg").write_frames
    except ImportError as error:
        raise _no_extra("a video needs the package imageio-ffmpeg") from error


def _no_extra(reason: str) -> RequestError:
    return RequestError(f"{reason}.", "try: pip install 'rlplug[video]'")
