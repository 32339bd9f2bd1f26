"""What is put around one environment: the time that is left, and the check of ends."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import TimeLimit

from rlplug.envs import make_environments
from rlplug.envs.wrappers import BooleanEnds, TimeFeature
from rlplug.errors import RequestError


class Ends(gymnasium.Env[Any, Any]):
    """Observes 5 and 7; its ends are as given."""

    observation_space: spaces.Space[Any] = spaces.Box(
        numpy.array([-3, -4], numpy.float32), numpy.array([8, 9], numpy.float32)
    )
    action_space = spaces.Discrete(2)

    def __init__(self, terminated: Any = False, truncated: Any = False) -> None:
        self.ends = terminated, truncated

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        return self._seen(), 2.0, *self.ends, {"told": 1}

    def _seen(self) -> Any:
        return numpy.array([5, 7], self.observation_space.dtype)


# -- the time that is left ----------------------------------------------------------------------


def test_the_time_is_between_0_and_1_and_comes_last() -> None:
    env = TimeFeature(TimeLimit(Ends(), 4))
    space = env.observation_space
    assert isinstance(space, spaces.Box)
    assert (space.low.tolist(), space.high.tolist()) == ([-3, -4, 0], [8, 9, 1])
    seen = [env.reset()[0], *(env.step(0)[0] for _ in range(4))]
    assert [one.tolist() for one in seen] == [[5, 7, left] for left in (1, 0.75, 0.5, 0.25, 0)]
    assert all(space.contains(one) for one in seen)
    assert env.reset()[0].tolist() == [5, 7, 1]
    assert env.step(0)[1:] == (2.0, False, False, {"told": 1})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (numpy.float32, numpy.float32),
        (numpy.float64, numpy.float64),
        (numpy.int64, numpy.float32),
        (numpy.uint8, numpy.float32),
    ],
)
def test_the_time_is_a_fraction_whatever_it_is_appended_to(given: Any, expected: Any) -> None:
    class Typed(Ends):
        observation_space = spaces.Box(0, 9, (2,), given)

    env = TimeFeature(TimeLimit(Typed(), 4))
    env.reset()
    seen = env.step(0)[0]
    assert (seen.tolist(), seen.dtype) == ([5, 7, 0.75], expected)
    assert env.observation_space.dtype == expected


@pytest.mark.parametrize(
    "space", [spaces.Box(0, 9, (2, 1)), spaces.Box(0, 9, ()), spaces.Discrete(3)]
)
def test_time_is_only_appended_to_a_row_of_numbers(space: Any) -> None:
    class Other(Ends):
        observation_space = space

    with pytest.raises(RequestError, match="time is appended to a row of numbers"):
        TimeFeature(TimeLimit(Other(), 4))


def test_the_time_limit_is_that_of_the_spec_or_of_a_wrapper_further_in() -> None:
    class Registered(Ends):
        spec = EnvSpec("Registered-v0", max_episode_steps=8)

    class Endless(Ends):
        spec = EnvSpec("Endless-v0")

    def left(env: Any) -> float:
        timed = TimeFeature(env)
        timed.reset()
        return float(timed.step(0)[0][2])

    assert left(Registered()) == 1 - 1 / 8
    assert left(gymnasium.Wrapper(TimeLimit(Endless(), 4))) == 0.75
    assert left(gymnasium.Wrapper(TimeLimit(Ends(), 2))) == 0.5
    # Some step before the first reset, to see what comes out.
    assert TimeFeature(Registered()).step(0)[0][2] == 1 - 1 / 8
    with pytest.raises(RequestError, match="has no time limit"):
        TimeFeature(gymnasium.Wrapper(Endless()))


# -- ends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [True, False, numpy.bool_(True), numpy.array(False)])
def test_ends_that_are_booleans_are_passed_on(value: Any) -> None:
    for ends in ((value, False), (False, value)):
        assert BooleanEnds(Ends(*ends)).step(0)[1:] == (2.0, *ends, {"told": 1})


@pytest.mark.parametrize("value", [1, 0, None, "no", numpy.float64(0)])
def test_ends_that_are_no_booleans_are_refused(value: Any) -> None:
    for name in ("terminated", "truncated"):
        with pytest.raises(TypeError) as raised:
            BooleanEnds(Ends(**{name: value})).step(0)
        assert str(raised.value) == f"it gave {name} = {value!r}, expected a boolean"


@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium logs so.
def test_asynchronous_environments_refuse_ends_that_are_no_booleans() -> None:
    made = make_environments(lambda: Ends(0, 1), 1, {}, vectorization="async")
    made.reset(0)
    try:
        with pytest.raises(TypeError, match="it gave terminated = 0, expected a boolean"):
            made.vector.step(numpy.array([0]))
    finally:
        made.close()
