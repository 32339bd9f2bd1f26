"""Runs with several agents: short ones, what they are refused with, and if two are the same."""

from __future__ import annotations

import json
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import rlplug as library
from rlplug.errors import RequestError
from rlplug.runs.loading import about, load_checkpoint
from rlplug.serving.description import latency
from rlplug.serving.server import PolicyServer
from rlplug.trees import read_tree

MEETING = "examples.agent_tasks:Meeting"
MATRIX = "examples.agent_tasks:MatrixGame"
LOTTERY = "examples.agent_tasks:Lottery"
RELAY = "tests.agent_games:Relay"
COUNTDOWN = "tests.agent_games:Countdown"
UNLIKE = "tests.agent_games:Unlike"
ADVERSARY = "pettingzoo:mpe/simple_adversary_v3"
SPREAD = "pettingzoo:mpe/simple_spread_v3"

QUICK: dict[str, Any] = {"tracking.enabled": False, "evaluation.episodes": 2}
# The share of random actions would depend on the length of the run.
REPLAY = {"learning_starts": 32, "exploration_initial_eps": 0.05}
OPTIONS: dict[str, dict[str, Any]] = {
    "ppo": {"n_steps": 32, "batch_size": 32},
    "dqn": REPLAY,
    "vdn": REPLAY,
}


def trained(env: Any, algorithm: str = "ppo", /, *, steps: int = 256, **options: Any) -> Any:
    """A run of so many steps; `__` stands for the dot in the names of options."""
    given = {name.replace("__", "."): value for name, value in options.items()}
    quick = {**QUICK, **OPTIONS.get(algorithm, {})}
    return library.run(algorithm, env, steps=steps, options={**quick, **given})


def told(env: Any, algorithm: str = "ppo", /, **options: Any) -> str:
    """What a run is refused with."""
    with pytest.raises(RequestError) as refused:
        trained(env, algorithm, **options)
    assert refused.value.exit_code == 2
    return str(refused.value)


def checkpoint(run: Any) -> Path:
    """The newest one."""
    newest: Path = max((run.folder / "checkpoints").glob("step-*"))
    return newest


def weights(run: Any) -> dict[str, Any]:
    """Tensors by module and name."""
    tree: dict[str, Any] = read_tree(checkpoint(run) / "policy")["modules"]
    return tree


@contextmanager
def served(run: Any) -> Iterator[Callable[[Any], Any]]:
    """Answers of a server with the newest checkpoint to a body for /act, or to None for /info."""
    loaded = load_checkpoint(checkpoint(run))
    assert latency(loaded.policy, 1, calls=3)["p50_ms"] > 0
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    server = PolicyServer(bound, loaded.policy, {**about(loaded), "latency": {}})
    thread = threading.Thread(target=server.run)
    thread.start()

    def answer(asked: Any) -> Any:
        path = "info" if asked is None else "act"
        body = None if asked is None else json.dumps(asked).encode()
        with urllib.request.urlopen(f"{server.url}/{path}", body, timeout=10) as told:
            return json.load(told)

    yield answer
    server.should_exit = True
    thread.join()


def assert_same(one: Any, other: Any) -> None:
    """Nested values are equal, tensors bit for bit."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert_same(value, other[name])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for here, there in zip(one, other, strict=True):
            assert_same(here, there)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other
