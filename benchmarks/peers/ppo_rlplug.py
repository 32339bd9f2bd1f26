"""PPO of rlplug: whole runs, or what they come to once the update is compiled."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from typing import Any

from ppo_settings import PARTS, Part

from rlplug import AddOn, run

WARM_UPDATES = 4
"""Updates in which things are compiled."""


class Clock(AddOn):
    """Notes when warming up was over."""

    began: tuple[int, float, float] | None = None

    def update_finished(self, step: int, update: int) -> None:
        """Once, after some updates."""
        if update == WARM_UPDATES:
            self.began = (step, time.perf_counter(), time.process_time())


def main() -> None:
    """Print what a training took as a line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--num-envs", type=int, default=0)
    parser.add_argument("--vectorization", default="sync")
    parser.add_argument("--compile", action="store_true")
    said = parser.parse_args()
    part = PARTS[said.part]
    options = _options(part, said.num_envs or part.num_envs)
    options["sampling.vectorization"] = said.vectorization
    options["compute.compile"] = said.compile
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RLPLUG_HOME"] = folder
        found = _timed(part, said.steps, said.seed, options, warm=said.compile)
    from importlib.metadata import version

    print(json.dumps({"version": version("rlplug-ppo"), **found}))


def _options(part: Part, num_envs: int) -> dict[str, Any]:
    options = {
        "sampling.num_envs": num_envs,
        "n_steps": part.n_steps,
        # As many minibatches, however many environments.
        "batch_size": part.batch_size * num_envs // part.num_envs,
        "n_epochs": part.n_epochs,
        "net_arch": list(part.net_arch),
        "activation": part.activation,
        "learning_rate": part.learning_rate,
        "gamma": part.gamma,
        "gae_lambda": part.gae_lambda,
        "clip_range": part.clip_range,
        "ent_coef": part.ent_coef,
        "vf_coef": part.vf_coef,
        "learner.max_grad_norm": part.max_grad_norm,
        "tracking.enabled": False,
        "evaluation.episodes": 0,
    }
    if part.atari:
        options |= {
            "shared_encoder": True,
            "env.atari": True,
            "env.frame_stack": 4,
            "env.reward_clip": 1.0,
            "env.repeat_action_probability": 0.0,
        }
    return options


def _timed(
    part: Part, steps: int, seed: int, options: dict[str, Any], *, warm: bool
) -> dict[str, Any]:
    """All of a run, after a short one that imports; compiled, what follows the first updates."""
    rows = options["n_steps"] * options["sampling.num_envs"]
    env = f"ale_py:{part.env}" if part.atari else part.env
    run("ppo", env, steps=rows, seed=seed, options={**options, "compute.compile": False})
    clock = Clock()
    started = (0, time.perf_counter(), time.process_time())
    addons = [clock] if warm else []
    result = run("ppo", env, steps=steps, seed=seed, options=options, addons=addons)
    first, wall, cpu = clock.began if warm and clock.began else started
    return {
        "steps": result.step - first,
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "warming": cpu - started[2],
    }


if __name__ == "__main__":
    main()
