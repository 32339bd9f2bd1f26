"""PPO of rlplug with runners on a local Ray cluster."""

from __future__ import annotations

import os
import tempfile

from ppo_settings import Part
from process_tree import Clock
from scale_settings import measure

from rlplug.registry import Registry
from rlplug.runs.life import Run
from rlplug.runs.prepare import prepare
from rlplug.runs.request import Request


class Listener:
    """Times what lies between the first step and the last."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def run_started(self) -> None:
        """The runners are there."""
        self._clock.start()

    def run_finished(self) -> None:
        """After the last update."""
        self._clock.stop()


def train(part: Part, steps: int, runners: int, clock: Clock) -> None:
    """A training as everybody is set; each runner has an equal share of the environments."""
    names = ("n_steps", "batch_size", "n_epochs", "learning_rate", "gamma", "gae_lambda")
    names += ("clip_range", "ent_coef", "vf_coef")
    flags = {
        "run": {"algorithm": "ppo", "env": part.env, "steps": steps, "seed": 1},
        "algorithm": {
            **{name: getattr(part, name) for name in names},
            "net_arch": list(part.net_arch),
            "activation": part.activation,
        },
        "learner": {"max_grad_norm": part.max_grad_norm},
        "sampling": {"num_envs": part.num_envs, "vectorization": "sync"},
        "evaluation": {"episodes": 0},
        "tracking": {"enabled": False},
        "scale": {"engine": "ray", "runners": runners, "runner_cpus": 1.0 / runners},
    }
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RLPLUG_HOME"] = folder
        prepared = prepare(Request(flags=flags), Registry.installed())
        found = Run(prepared=prepared, listeners=(Listener(clock),)).carry_out()
        assert found.step >= steps, found.step


if __name__ == "__main__":
    measure("rlplug-ppo", train)
