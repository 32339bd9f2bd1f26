"""PPO of rlplug with agents that share one module: whole runs, or the environment alone."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from agents_settings import ENVIRONMENTS, NUM_ENVS, SETTINGS

import rlplug

QUIET = {"tracking.enabled": False, "evaluation.episodes": 0, "checkpoint.minutes": 0}


def main(env: str, steps: str, alone: str = "") -> None:
    """Print environment steps and CPU seconds as a line of JSON."""
    began = time.process_time()
    taken = played(env, int(steps)) if alone else trained(env, int(steps))
    print(json.dumps({"steps": taken, "seconds": time.process_time() - began}))


def trained(env: str, steps: int) -> int:
    """Train, starting and ending included."""
    options: dict[str, Any] = {**QUIET, **SETTINGS, "sampling.num_envs": NUM_ENVS}
    return rlplug.run("ppo", ENVIRONMENTS[env], steps=steps, options=options).step


def played(env: str, steps: int) -> int:
    """Step one environment, always with the same action."""
    one = ENVIRONMENTS[env]()
    for _ in range(steps):
        if not getattr(one, "agents", ()):
            one.reset()
        one.step(dict.fromkeys(one.agents, 1))
    return steps


if __name__ == "__main__":
    main(*sys.argv[1:])
