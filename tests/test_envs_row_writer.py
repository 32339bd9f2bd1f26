"""Observations of several kinds are written row by row, or refused with their environment."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlplug.envs.sync import SyncVector

ROOM = spaces.Dict(
    {
        "place": spaces.Tuple([spaces.Box(-9, 9, (2,), numpy.float32), spaces.Discrete(5)]),
        "doors": spaces.MultiBinary(2),
        "keys": spaces.MultiDiscrete([3, 4]),
    }
)


class Told(gymnasium.Env[Any, Any]):
    """Gives these observations one after the other, and these infos; its last step is the end."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space[Any], told: list[Any], infos: Any = ()) -> None:
        self.observation_space = space
        self.told, self.infos = iter(told), iter(infos)
        self.left = len(told)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._next(), next(self.infos, {})

    def step(self, action: Any) -> Any:
        seen = self._next()
        return seen, 0.0, self.left == 1, False, next(self.infos, {})

    def _next(self) -> Any:
        self.left -= 1
        return next(self.told)


def room(x: float, n: int) -> dict[str, Any]:
    here = numpy.array([x, -x], numpy.float32)
    doors, keys = numpy.array([n % 2, 1], numpy.int8), numpy.array([n, n + 1])
    return {"place": (here, n), "doors": doors, "keys": keys}


def vector(space: spaces.Space[Any], *told: list[Any]) -> SyncVector:
    return SyncVector([partial(Told, space, each) for each in told])


def test_each_part_of_an_observation_has_a_row_for_each_environment() -> None:
    made = vector(ROOM, [room(0.5, 0)] * 4, [room(1.5, 1), room(2.5, 2)] * 2)
    first, _ = made.reset()
    second, _, _, _, _ = made.step([0, 0])
    assert first["place"][0].tolist() == [[0.5, -0.5], [1.5, -1.5]]
    assert first["place"][1].tolist() == [0, 1]
    assert second["place"][0].tolist() == [[0.5, -0.5], [2.5, -2.5]]
    assert second["place"][1].tolist() == [0, 2]
    assert second["doors"].tolist() == [[0, 1], [0, 1]]
    assert second["keys"].tolist() == [[0, 1], [2, 3]]
    assert made.observation_space.contains(second)


def test_final_observations_are_arrays_of_all_parts() -> None:
    made = vector(ROOM, [room(0.5, 0)] * 4, [room(0.5, 0), room(2.5, 2), room(1.5, 1)])
    made.reset()
    seen, _, terminated, _, infos = made.step([0, 0])
    assert terminated.tolist() == infos["_final_obs"].tolist() == [False, True]
    assert infos["final_obs"]["place"][0].tolist() == [[0.0, 0.0], [2.5, -2.5]]
    assert infos["final_obs"]["place"][1].tolist() == [0, 2]
    assert seen["place"][1].tolist() == [0, 1]


SMALL = numpy.zeros(1, numpy.float32)


@pytest.mark.parametrize(
    ("space", "good", "bad", "said"),
    [
        (
            *(ROOM, room(0, 0), {**room(0, 0), "place": (SMALL, 0)}),
            r"an observation with 'place' with part 0 of shape \(1,\), its space has \(2,\)",
        ),
        (
            *(ROOM, room(0, 0), {**room(0, 0), "keys": numpy.array(1)}),
            r"an observation with 'keys' of shape \(\), its space has \(2,\)",
        ),
        (
            *(spaces.Discrete(5), 1, numpy.array([1])),
            r"an observation of shape \(1,\), its space has \(\)",
        ),
        (spaces.Discrete(5), 1, 0.5, "Cannot cast"),
        (spaces.Tuple([spaces.Discrete(5)]), (1,), (0.5,), "Cannot cast"),
        (spaces.Tuple([spaces.Discrete(5)]), (1,), (1, 1), "longer"),
        (spaces.MultiDiscrete([5]), numpy.array([1]), numpy.array([0.5]), "Cannot cast"),
        (spaces.Tuple([spaces.Text(9), spaces.Discrete(2)]), ("a", 1), ("a", [1]), "part 1"),
    ],
)
@pytest.mark.parametrize(
    ("when", "rest"), [(0, 1), (2, 2), (2, 1)], ids=["first", "in between", "final"]
)
def test_an_observation_that_does_not_fit_is_refused_at_once(
    space: spaces.Space[Any], good: Any, bad: Any, said: str, when: int, rest: int
) -> None:
    made = vector(space, [good] * 5, [*[good] * when, bad, *[good] * rest])
    if when:
        made.reset()
        made.step([0, 0])
    with pytest.raises((ValueError, TypeError), match=said):
        made.step([0, 0]) if when else made.reset()
    assert made.failed == (1, "step" if when else "reset")


@pytest.mark.parametrize(
    "one", [1, True, numpy.int64(1), numpy.int8(1), numpy.True_, numpy.array(1)]
)
def test_a_state_may_be_a_whole_number_of_any_format(one: Any) -> None:
    observations, _ = vector(spaces.Discrete(5), [one], [3]).reset()
    assert observations.tolist() == [1, 3]
    assert observations.dtype == numpy.int64


def test_observations_without_fixed_shapes_are_put_together_by_gymnasium() -> None:
    space = spaces.Tuple([spaces.Text(9), spaces.Discrete(5)])
    made = vector(space, [("a", 1)] * 3, [("b", 2), ("c", 3), ("d", 4)])
    assert not made.has_array_observations
    words, states = made.reset()[0]
    assert (words, states.tolist()) == (("a", "b"), [1, 2])
    (words, states), _, _, _, infos = made.step([0, 0])
    assert (words, states.tolist()) == (("a", "d"), [1, 4])
    assert infos["final_obs"][1] == ("c", 3)


INFOS = [
    [{"x": 1, "mask": numpy.array([1, 0], bool)}, {"x": 2.5}, {"deep": {"y": 1}, "word": "a"}],
    [{}, {"x": 3, "deep": {"y": 2.0, "z": 1}}, {"mask": numpy.array([0, 1], bool), "word": None}],
    [{"x": numpy.float32(2)}, {"deep": {"y": 1}}, {"deep": {}, "x": 7, "word": [1, 2]}],
]
"""Of three environments, for their reset, two steps: keys come and go, formats differ."""


def test_infos_are_those_of_gymnasium() -> None:
    makers = [partial(Told, spaces.Discrete(9), [1, 2, 3, 4, 5], infos) for infos in INFOS]
    ours = SyncVector(makers)
    theirs = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    pairs = [(ours.reset()[1], theirs.reset()[1])]
    for _ in range(2):
        pairs.append((ours.step([0, 0, 0])[-1], theirs.step([0, 0, 0])[-1]))
    for found, expected in pairs:
        assert repr(found) == repr(expected)
