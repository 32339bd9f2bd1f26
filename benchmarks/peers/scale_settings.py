"""What PPO over runners on a local Ray cluster is set to, and how a training is timed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from importlib.metadata import version

from ppo_settings import PARTS, Part
from process_tree import Clock

__all__ = ["PART", "measure"]

PART = PARTS["cartpole"]


def measure(distribution: str, train: Callable[[Part, int, int, Clock], None]) -> None:
    """Train with so many steps and runners; print what it took as a line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--runners", type=int, required=True)
    said = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    clock = Clock()
    train(PART, said.steps, said.runners, clock)
    print(
        json.dumps(
            {
                "version": version(distribution),
                "steps": said.steps,
                "wall": clock.wall,
                "cpu": clock.cpu,
                "processes": clock.processes,
            }
        )
    )
