"""An environment that hangs is named; what sampling does for that is nothing."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import gymnasium
import numpy
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv

from rlplug import Acted, ActInput, Module
from rlplug.envs import Environments, make_environments
from rlplug.sampling import Collector
from rlplug.sampling.watchdog import Watchdog
from tests.collecting import collector, evaluated

TIMEOUT = 0.5
PATIENCE = 60.0
"""Seconds after which a test ends that waits for a warning in vain."""


class Hangs(gymnasium.Env[Any, Any]):
    """Waits in the third call of `hangs_in`, until somebody has warned."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)
    warned: ClassVar[threading.Event]

    def __init__(self, hangs_in: str = "") -> None:
        self.hangs_in = hangs_in
        self.calls = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._count("reset")
        return numpy.ones(1, numpy.float32), {}

    def step(self, action: Any) -> Any:
        self._count("step")
        return numpy.ones(1, numpy.float32), 1.0, self.hangs_in == "reset", False, {}

    def _count(self, method: str) -> None:
        self.calls += method == self.hangs_in
        if self.calls == 3 and method == self.hangs_in:
            self.warned.wait(PATIENCE)


class Vector(VectorEnv[Any, Any, Any]):
    """Two environments in one, which waits in its third step."""

    num_envs = 2
    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.SAME_STEP}
    single_observation_space = Hangs.observation_space
    single_action_space = Hangs.action_space
    observation_space = gymnasium.spaces.Box(0, 1, (2, 1), numpy.float32)
    action_space = gymnasium.spaces.MultiDiscrete([2, 2])
    calls = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return numpy.ones((2, 1), numpy.float32), {}

    def step(self, actions: Any) -> Any:
        self.calls += 1
        if self.calls == 3:
            Hangs.warned.wait(PATIENCE)
        no = numpy.zeros(2, bool)
        return numpy.ones((2, 1), numpy.float32), numpy.ones(2), no, no, {}


class Zeros(Module):
    """Chooses action 0."""

    def forward_exploration(self, act: ActInput) -> Acted:
        return Acted(numpy.zeros(len(act.observations), numpy.int64))

    forward_inference = forward_exploration


class _Notes(logging.Handler):
    """Keeps messages, and lets the environment go on."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        Hangs.warned.set()


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    Hangs.warned = threading.Event()
    notes = _Notes()
    logging.getLogger("rlplug").addHandler(notes)
    yield notes.messages
    logging.getLogger("rlplug").removeHandler(notes)


def second_of_two(hangs_in: str) -> Environments:
    made = iter(("", hangs_in))
    return make_environments(lambda: Hangs(next(made)), 2, {})


def started(environments: Environments, steps: int) -> Collector:
    sampler = collector(environments, Zeros(), seed=0, steps=steps)
    sampler.start()
    return sampler


@pytest.mark.parametrize("steps", [1, 4])
def test_an_environment_that_hangs_in_training_is_named_once(
    steps: int, warnings: list[str]
) -> None:
    sampler = started(second_of_two("step"), steps)
    with Watchdog(TIMEOUT):
        for timestep in range(0, 16, 2 * steps):
            sampler.collect(timestep)
    (said,) = warnings
    # Four steps were taken before: two in each environment.
    assert said.startswith("rlplug: environment '<lambda>' (2 of 2) has been in step for 0.")
    assert said.endswith(" s at step 4 (sampling.step_timeout); the run waits for it.")


def test_an_environment_that_hangs_in_a_reset_within_a_step_is_named(warnings: list[str]) -> None:
    sampler = started(second_of_two("reset"), 4)
    with Watchdog(TIMEOUT):
        sampler.collect(0)
    # The first reset is that of the start; each step ends an episode.
    assert "(2 of 2) has been in reset for 0." in warnings[0]
    assert " at step 2 (" in warnings[0]


def test_an_environment_that_hangs_in_the_first_reset_is_named(warnings: list[str]) -> None:
    environments = second_of_two("reset")
    inner = environments.vector.envs[1]  # type: ignore[attr-defined] # of a SyncVector
    inner.calls = 2
    sampler = collector(environments, Zeros(), seed=0)
    with Watchdog(TIMEOUT):
        sampler.start()
    assert "(2 of 2) has been in reset for 0." in warnings[0]
    assert " at step 0 (" in warnings[0]


def test_an_environment_that_hangs_in_an_evaluation_is_named(warnings: list[str]) -> None:
    environments = second_of_two("step")
    with Watchdog(TIMEOUT):
        evaluated(Zeros(), environments, episodes=2, max_steps=5)
    said, cut = warnings
    assert "did not end within 5 steps" in cut
    assert "(2 of 2) has been in step" in said
    assert " at step 4 of an evaluation (" in said


def test_a_vector_environment_that_hangs_is_named_as_a_whole(warnings: list[str]) -> None:
    environments = Environments(Vector(), "several", AutoresetMode.SAME_STEP)
    sampler = started(environments, 4)
    with Watchdog(TIMEOUT):
        sampler.collect(0)
    assert warnings[0].startswith("rlplug: environment 'several' has been in step for 0.")
    assert " at step 4 (" in warnings[0]


def test_without_a_timeout_there_is_no_thread() -> None:
    before = threading.active_count()
    with Watchdog(0.0):
        assert threading.active_count() == before
    with Watchdog(300.0):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


class Slow(Hangs):
    """Takes less than the timeout, but two of them more than that."""

    def step(self, action: Any) -> Any:
        time.sleep(0.6 * TIMEOUT)
        return super().step(action)


@pytest.mark.parametrize("steps", [1, 2])
def test_steps_one_after_the_other_are_told_apart(steps: int, warnings: list[str]) -> None:
    sampler = started(make_environments(Slow, 2, {}), steps)
    with Watchdog(TIMEOUT):
        for timestep in range(0, 4, 2 * steps):
            sampler.collect(timestep)
    assert warnings == []
