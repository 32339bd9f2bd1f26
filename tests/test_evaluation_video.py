"""Videos of evaluations: what is drawn, where it is written, and what prevents one."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy
import pytest
from gymnasium.error import DependencyNotInstalled

from rlplug import Acted, Module
from rlplug.envs import Environments, make_environments
from rlplug.errors import RequestError
from rlplug.evaluation import Evaluator
from rlplug.evaluation.video import check_drawing, record


class Bright(gymnasium.Env[Any, Any]):
    """Draws 40 times the number of steps in the left half of its pictures, black in the other."""

    observation_space = gymnasium.spaces.Box(0, 9, (1,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 4}
    render_mode = "rgb_array"
    height = 16

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.taken = 0
        return numpy.zeros(1, numpy.float32), {}

    def step(self, action: Any) -> Any:
        self.taken += int(action)
        return numpy.zeros(1, numpy.float32), 0.0, self.taken == 3, False, {}

    def render(self) -> Any:
        picture = numpy.zeros((self.height, 33, 4), numpy.uint8)
        picture[:, :16, :3] = 40 * self.taken
        return picture


class Ones(Module):
    def forward_inference(self, act: Any) -> Acted:
        return Acted(numpy.ones(len(act.observations), dtype=numpy.int64))


def environments(kind: type[Bright] = Bright) -> Environments:
    return make_environments(kind, 1, {})


def decoded(file: Path) -> Any:
    """The frames of a video in grey, as it says 16 × 32."""
    program = import_module("imageio_ffmpeg").get_ffmpeg_exe()
    command = [program, "-loglevel", "error", "-i", str(file), "-f", "rawvideo"]
    done = subprocess.run([*command, "-pix_fmt", "gray", "-"], capture_output=True, check=True)
    return numpy.frombuffer(done.stdout, numpy.uint8).reshape(-1, 16, 32)


def test_a_video_has_a_frame_for_each_step_before_the_end_and_even_sides(tmp_path: Path) -> None:
    # The column beyond 32 and the fourth channel are left out, and so is the row beyond 16.
    class Odd(Bright):
        height = 17

    file = tmp_path / "some" / "where" / "episode.mp4"
    assert record(Ones(), lambda: environments(Odd), file, seed=0) == file
    frames = decoded(file)
    assert frames[:, :, :14].mean((1, 2)) == pytest.approx([0, 40, 80], abs=4)
    assert frames[:, :, 18:].mean() == pytest.approx(0, abs=4)
    assert [one.name for one in file.parent.iterdir()] == ["episode.mp4"]
    program = import_module("imageio_ffmpeg").get_ffmpeg_exe()
    said = subprocess.run([program, "-i", str(file)], capture_output=True, text=True).stderr
    assert " 4 fps," in said


def test_environments_are_closed_whatever_comes_of_them(tmp_path: Path) -> None:
    closed: list[str] = []

    class Closes(Bright):
        draws = True

        def close(self) -> None:
            closed.append("closed")

        def render(self) -> Any:
            return super().render() if self.draws else None

    record(Ones(), lambda: environments(Closes), tmp_path / "episode.mp4", seed=0)
    check_drawing(lambda: environments(Closes), 0)
    assert len(closed) == 2
    Closes.draws = False
    with pytest.raises(RequestError):
        record(Ones(), lambda: environments(Closes), tmp_path / "episode.mp4", seed=0)
    with pytest.raises(RequestError):
        check_drawing(lambda: environments(Closes), 0)
    assert len(closed) == 4
    one = Evaluator(lambda n: make_environments(Closes, n, {}), episodes=2, parallel=2, seed=0)
    one.close()
    assert len(closed) == 4
    one.evaluate(Ones(), 0)
    one.close()
    one.close()
    assert len(closed) == 6


def test_a_video_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    file = tmp_path / "episode.mp4"
    (tmp_path / ".new-episode.mp4").mkdir()
    with pytest.raises(RequestError, match=r"ffmpeg could not write .*: .*Is a directory"):
        record(Ones(), environments, file, seed=0)
    assert not file.exists()


def refused(kind: type[Bright]) -> tuple[str, tuple[str, ...]]:
    with pytest.raises(RequestError) as raised:
        check_drawing(lambda: environments(kind), 0)
    return raised.value.message, raised.value.hints


def test_what_a_picture_or_a_video_lacks_is_named_with_its_installation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Lacks(Bright):
        def render(self) -> Any:
            raise DependencyNotInstalled("pygame is not installed")

    hints = ("try: pip install 'rlplug[video]'",)
    message = "drawing 'Lacks' needs more: pygame is not installed."
    assert refused(Lacks) == (message, hints)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert refused(Bright) == ("a video needs the package imageio-ffmpeg.", hints)
