"""A whole run of an algorithm in an environment at hand, recorded nowhere for long."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium

from rlplug.config.toml import plain
from rlplug.plugin import Module
from rlplug.testing.subject import Subject

__all__ = ["train"]

NUM_ENVS = 8


def train(
    subject: Subject,
    make: Callable[[], gymnasium.Env[Any, Any]],
    *,
    steps: int,
    seed: int = 0,
    config: Any = None,
) -> Module:
    """The module that a run of an algorithm leaves behind: the same path that people take."""
    from rlplug.runs.run import run

    config = subject.config() if config is None else config
    options: dict[str, Any] = {f"algorithm.{name}": value for name, value in plain(config).items()}
    options |= {"sampling.num_envs": NUM_ENVS, "tracking.enabled": False, "compute.device": "cpu"}

    def environment() -> gymnasium.Env[Any, Any]:
        return make()

    with _home():
        algorithm = subject.found.name if subject.found.loaded is None else subject.kind
        result = run(algorithm, environment, steps=steps, seed=seed, options=options)
    return result.module


@contextmanager
def _home() -> Iterator[None]:
    """A folder of runs that goes away."""
    before = os.environ.get("RLPLUG_HOME")
    with tempfile.TemporaryDirectory(prefix="rlplug-check-") as folder:
        os.environ["RLPLUG_HOME"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["RLPLUG_HOME"]
            else:
                os.environ["RLPLUG_HOME"] = before
