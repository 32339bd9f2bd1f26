"""Which videos a run keeps: of its best evaluation and of its last step, here and in MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy
import torch
from gymnasium import spaces

from rlplug import Acted, Algorithm, Module, resume, run
from rlplug.feeds import Stream

OPTIONS = {"evaluation.video": True, "evaluation.every": 2, "evaluation.episodes": 1}


class Painted(gymnasium.Env[Any, Any]):
    """Rewards the action 4 most; three steps per episode."""

    observation_space = spaces.Box(0, 1, (1,), numpy.float32)
    action_space = spaces.Box(-1000, 1000, (1,), numpy.float32)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # as Gymnasium has it

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return numpy.zeros(1, numpy.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        reward = -abs(float(action[0]) - 4)
        return numpy.zeros(1, numpy.float32), reward, self.steps == 3, False, {}

    def render(self) -> Any:
        return numpy.full((32, 48, 3), 50 * self.steps, numpy.uint8)


class CountModule(Module):
    """Its action is the number of updates."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("updates", torch.zeros(()))

    def forward_exploration(self, act: Any) -> Acted:
        return Acted(numpy.full((len(act.observations), 1), float(self.updates), numpy.float32))

    forward_inference = forward_exploration


class Count(Algorithm):
    """Is best after four updates, and gets worse after that."""

    def feed(self) -> Stream:
        return Stream()

    def build(self) -> Module:
        return CountModule()

    def configure_optimizers_for_module(self) -> None:
        return None

    def additional_update(self, module: Any) -> None:
        module.updates += 1


def names(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.glob("*"))


def videos_of(root: Path, folder: Path) -> list[str]:
    """The videos of a run, which are the same in its folder and among its artifacts."""
    (artifacts,) = root.glob(f"artifacts/*/{folder.name}/artifacts")
    assert names(artifacts / "videos") == names(folder / "videos")
    return names(folder / "videos")


def test_a_run_keeps_the_videos_of_its_best_evaluation_and_of_its_last_step(
    store_root: Path,
) -> None:
    folder = run(Count, Painted, steps=4, options=OPTIONS).folder
    assert videos_of(store_root, folder) == ["best-step-000000000004.mp4"]
    for steps in (7, 10):
        resume(folder, steps=steps, algorithm=Count, env=Painted)
        assert videos_of(store_root, folder) == [
            "best-step-000000000004.mp4",
            f"last-step-{steps:012d}.mp4",
        ]


def test_videos_of_steps_that_a_resumed_run_has_not_made_are_deleted(store_root: Path) -> None:
    folder = run(Count, Painted, steps=2, options={**OPTIONS, "tracking.enabled": False}).folder
    later = folder / "videos" / "best-step-000000000099.mp4"
    later.write_bytes(b"of a process that was killed before it saved a checkpoint")
    resume(folder, steps=4, algorithm=Count, env=Painted)
    assert names(folder / "videos") == ["best-step-000000000004.mp4"]


def test_the_report_shows_the_best_video(store_root: Path) -> None:
    folder = run(Count, Painted, steps=6, options={**OPTIONS, "tracking.enabled": False}).folder
    assert names(folder / "videos") == ["best-step-000000000004.mp4", "last-step-000000000006.mp4"]
    assert "one greedy episode, best-step-000000000004.mp4" in (folder / "report.html").read_text()
