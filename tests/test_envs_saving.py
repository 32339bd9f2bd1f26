"""Environments are saved whole, or it is said what their pickles lack."""

from __future__ import annotations

import random
from typing import Any

import gymnasium
import numpy
import pytest
from gymnasium.utils import EzPickle

from rlplug.envs import make_environments
from rlplug.envs.saving import EnvironmentSaver, restore_environments
from rlplug.errors import RequestError


class Walk(gymnasium.Env[Any, Any]):
    """Counts its steps, in several ways."""

    observation_space = gymnasium.spaces.Box(0, 100, (1,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)
    loads = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.taken = 0
        return numpy.zeros(1, numpy.float32), {}

    def step(self, action: Any) -> Any:
        self.taken += 1
        drawn = float(self.np_random.random())
        return numpy.full(1, self.taken, numpy.float32), drawn, False, False, {}


class Rich(Walk):
    """Has state of many types."""

    def __init__(self) -> None:
        self.bits = numpy.random.RandomState(3)
        self.dice = random.Random(3)
        self.marks = {object(), object()}
        self.grid = numpy.array([[1, None], ["a", {3}]], dtype=object)
        self.itself = self
        self.act = self.step


class Forgets(Walk):
    """A part of it forgets when it is unpickled."""

    def __init__(self) -> None:
        self.view = View()

    def step(self, action: Any) -> Any:
        self.view.learned += 1
        observation, *others = super().step(action)
        return observation + self.view.learned, *others


class View(gymnasium.spaces.Discrete):
    """A space that drops what it has learned."""

    def __init__(self) -> None:
        super().__init__(3)
        self.learned = 0

    def __setstate__(self, state: Any) -> None:
        super().__setstate__({**state, "learned": 0})


class Counted(Walk):
    """Counts how often it is unpickled, and draws a number then."""

    def __setstate__(self, state: Any) -> None:
        Walk.loads += 1
        random.random()
        vars(self).update(state)


class Anew(Walk, EzPickle):
    """Would be pickled by the arguments of its constructor."""

    def __init__(self, start: int) -> None:
        EzPickle.__init__(self, start)


def saver_of(kind: Any, steps: int = 3) -> tuple[EnvironmentSaver, Any]:
    environments = make_environments(kind, 2, {})
    vector = environments.vector
    vector.reset(seed=1)
    for _ in range(steps):
        vector.step(numpy.zeros(2, int))
    return EnvironmentSaver(environments.another), vector


@pytest.mark.parametrize("kind", [Rich, lambda: Anew(3)])
def test_an_environment_is_saved_with_all_its_state_and_goes_on_alike(kind: Any) -> None:
    saver, vector = saver_of(kind)
    saved = saver.save(vector, "beside")
    assert saved.reason == ""
    other = make_environments(kind, 2, {}).vector
    assert restore_environments(other, saved.pickled) == "beside"
    for _ in range(3):
        one, two = (each.step(numpy.zeros(2, int)) for each in (vector, other))
        assert [list(part) for part in one[:2]] == [list(part) for part in two[:2]]


@pytest.mark.parametrize("name", ["CartPole-v1", "FrozenLake-v1", "Blackjack-v1"])
@pytest.mark.parametrize("vectorization", ["sync", "auto"])
def test_environments_of_gymnasium_are_saved(name: str, vectorization: str) -> None:
    # From 16 on, CartPole has a vector of its own.
    environments = make_environments(name, 16, {}, vectorization=vectorization)
    vector = environments.vector
    vector.reset(seed=1)
    vector.step(vector.action_space.sample())
    assert EnvironmentSaver(environments.another).save(vector, None).reason == ""


def test_an_environment_whose_copy_goes_on_otherwise_is_not_saved() -> None:
    saver, vector = saver_of(Forgets)
    assert saver.save(vector, None).reason.startswith("a copy by pickle goes on with other")


def test_a_copy_is_tried_once_in_a_run_and_no_generator_moves() -> None:
    saver, vector = saver_of(Counted)
    before, states = (
        random.getstate(),
        [env.unwrapped.np_random.bit_generator.state for env in vector.envs],
    )
    Walk.loads = 0
    assert all(saver.save(vector, None).pickled for _ in range(3))
    assert Walk.loads == 1
    assert random.getstate() == before
    assert [env.unwrapped.np_random.bit_generator.state for env in vector.envs] == states


def test_why_a_state_cannot_be_read_comes_before_what_to_do() -> None:
    _, vector = saver_of(Walk)
    with pytest.raises(RequestError) as raised:
        restore_environments(vector, b"damaged")
    first, then = str(raised.value).splitlines()
    assert first.startswith("the saved environments cannot be read: UnpicklingError")
    assert then.startswith("  try: the versions of the environment that the run was started with")
