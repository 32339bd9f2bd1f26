"""Environments that write where steps are kept: the same experience as when they are copied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy
import pytest
import torch
from gymnasium.vector import AutoresetMode

from rlplug import Acted, ActInput, Module
from rlplug.batch.nested import first_leaf, tree_map
from rlplug.config.sections import EnvSection
from rlplug.envs import Environments
from rlplug.envs.normalization import Normalization
from rlplug.envs.sync import SyncVector
from tests.collecting import collector


class Copied(SyncVector):
    """What it gives is copied, as from any vector."""


class Walk(gymnasium.Env[Any, Any]):
    """Random numbers; ends or is cut off at random; every second step has a mask, if it has any."""

    observation_space = gymnasium.spaces.Box(-9, 9, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, masks: bool = False) -> None:
        self.masks = masks

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._seen(), self._info()

    def step(self, action: Any) -> Any:
        ends, cut = self.np_random.random(2) < (0.2, 0.1)
        return self._seen(), float(action) + self.np_random.random(), ends, cut, self._info()

    def _seen(self) -> Any:
        return self.np_random.normal(size=2).astype(numpy.float32)

    def _info(self) -> dict[str, Any]:
        return {"action_mask": numpy.array([True, False, True])} if self.masks else {}


class Parts(Walk):
    """Several spaces, one of them with the mask."""

    observation_space = gymnasium.spaces.Dict(  # type: ignore[assignment] # another kind
        {
            "near": gymnasium.spaces.Tuple([Walk.observation_space, gymnasium.spaces.Discrete(5)]),
            "far": gymnasium.spaces.MultiDiscrete([3, 4]),
            "action_mask": gymnasium.spaces.MultiBinary(3),
        }
    )

    def _seen(self) -> Any:
        return {
            "near": (super()._seen(), int(self.np_random.integers(5))),
            "far": self.np_random.integers([3, 4]),
            "action_mask": numpy.array([1, self.np_random.integers(2), 1], numpy.int8),
        }


class States(Walk):
    """One number, and a mask with it if it has any."""

    observation_space = gymnasium.spaces.Discrete(9, start=3)  # type: ignore[assignment] # another

    def _seen(self) -> Any:
        return int(self.np_random.integers(3, 12))


class Remembers(Module):
    """Chooses at random, keeps what it drew, and adds up what it saw."""

    def __init__(self, memory: bool) -> None:
        super().__init__()
        self.memory = memory

    def forward_exploration(self, act: ActInput) -> Acted:
        n = len(first_leaf(act.observations))
        drawn = act.random.random(n)
        state = None
        if act.state is not None:
            state = {"sum": act.state["sum"] + torch.from_numpy(act.observations[:, 0].copy())}
        extras = {"drawn": drawn} if self.memory else {}
        return Acted((drawn * 3).astype(numpy.int64), state, extras)

    def initial_state(self, n: int) -> Any:
        return {"sum": torch.zeros(n)} if self.memory else None


def collected(
    kind: type[SyncVector], num_envs: int, what: str, walk: type[Walk] = Walk
) -> list[Any]:
    """All that some collections tell, and the metrics of episodes."""
    vector = kind([lambda: walk(what == "masks")] * num_envs)
    normalization = None
    if what == "normalized":
        section = EnvSection(normalize_observation=True, normalize_reward=True)
        normalization = Normalization(section, vector.single_observation_space, num_envs)
    environments = Environments(vector, "Walk", AutoresetMode.SAME_STEP, normalization)
    sampler = collector(
        environments,
        Remembers(what == "memory"),
        seed=3,
        steps=5,
        by_environment=what in ("memory", "by environment"),
        state_interval=2,
    )
    sampler.start()
    told: list[Any] = []
    for step in range(0, 8 * 5 * num_envs, 5 * num_envs):
        experience = sampler.collect(step)
        told += [as_lists(experience.columns), as_lists(experience.following)]
        if experience.finals is not None:
            told.append(experience.finals.indices.tolist())
            told.append(as_lists(experience.finals.columns))
        told.append([state["sum"].tolist() for state in experience.states])
        sampler.absorb()
    return [*told, sampler.stats_by_module["default"].take()]


def as_lists(columns: Any) -> Any:
    return tree_map(lambda leaf: leaf.tolist(), columns)


@pytest.mark.parametrize("num_envs", [1, 3], ids=str)
@pytest.mark.parametrize("what", ["plain", "by environment", "memory", "masks", "normalized"])
def test_what_is_written_in_place_is_what_is_copied(num_envs: int, what: str) -> None:
    assert collected(SyncVector, num_envs, what) == collected(Copied, num_envs, what)


@pytest.mark.parametrize("num_envs", [1, 3], ids=str)
@pytest.mark.parametrize(
    ("walk", "what"),
    [
        (Parts, "plain"),
        (Parts, "by environment"),
        (Parts, "normalized"),
        (States, "plain"),
        (States, "masks"),
    ],
)
def test_parts_and_states_that_are_written_in_place_are_those_copied(
    walk: type[Walk], what: str, num_envs: int
) -> None:
    written, copied = (collected(kind, num_envs, what, walk) for kind in (SyncVector, Copied))
    assert written == copied


class Counts(gymnasium.Env[Any, Any]):
    """Counts its observations, of two parts; an episode has three steps."""

    observation_space = gymnasium.spaces.Tuple(
        [gymnasium.spaces.Discrete(99), gymnasium.spaces.Box(-99, 99, (2,), numpy.float32)]
    )
    action_space = gymnasium.spaces.Discrete(3)
    count = -1
    steps = 0
    info: Mapping[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return self._next(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._next(), 1.0, self.steps == 3, False, dict(self.info)

    def _next(self) -> Any:
        self.count += 1
        return self.count, numpy.array([self.count, -self.count], numpy.float32)


def test_the_parts_of_observations_are_kept_in_the_order_they_were_seen() -> None:
    environments = Environments(SyncVector([Counts]), "Counts", AutoresetMode.SAME_STEP)
    sampler = collector(environments, Remembers(False), seed=0, steps=4)
    sampler.start()
    seen = []
    for step in (0, 4):
        experience = sampler.collect(step)
        assert experience.finals is not None
        states, pairs = experience.columns["observations"]
        assert pairs.tolist() == [[state, -state] for state in states.tolist()]
        seen.append(
            (
                states.tolist(),
                experience.finals.indices.tolist(),
                as_lists(experience.finals.columns["observations"]),
                as_lists(experience.following["observations"]),
            )
        )
    # 3 and 7 end an episode; the next begins with 4 and 8.
    assert seen == [
        ([0, 1, 2, 4], [2], ([3], [[3.0, -3.0]]), ([5], [[5.0, -5.0]])),
        ([5, 6, 8, 9], [1], ([7], [[7.0, -7.0]]), ([10], [[10.0, -10.0]])),
    ]


@pytest.mark.parametrize("info", [{"regret": 0.5}, {"prob": 0.3, "regret": 0.5}])
def test_regret_is_read_among_other_infos(info: dict[str, float]) -> None:
    class Regrets(Counts):
        pass

    Regrets.info = info
    environments = Environments(SyncVector([Regrets]), "Regrets", AutoresetMode.SAME_STEP)
    sampler = collector(environments, Remembers(False), seed=0, steps=4)
    sampler.start()
    sampler.collect(0)
    # The third of the four steps ends an episode.
    assert sampler.stats_by_module["default"].take()["rollout/regret_total"] == 2.0


def test_infos_that_are_not_wanted_are_left_out_only_where_that_is_said() -> None:
    class Chances(Counts):
        info = {"prob": 0.3, "lives": 2}

    vector = SyncVector([Chances])
    outcome = vector.reset()[0], numpy.zeros(1), numpy.zeros(1, bool), numpy.zeros(1, bool)
    assert vector.step_into([0], *outcome, frozenset({"regret"})) == {}
    infos = vector.step_into([0], *outcome, frozenset({"prob"}))
    assert {name: column.tolist() for name, column in infos.items()} == {
        "prob": [0.3],
        "_prob": [True],
    }
    assert vector.step([0])[-1]["final_info"]["prob"].tolist() == [0.3]


class Numbered(gymnasium.Env[Any, Any]):
    """Observes 100 × index + step; number 0 terminates after 2 steps, number 1 is cut after 3."""

    observation_space = gymnasium.spaces.Box(0, 999, (1,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, index: int) -> None:
        self.index, self.count = index, 0

    def _seen(self) -> Any:
        return numpy.array([100 * self.index + self.count], numpy.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.count = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        ended = self.count == 2 + self.index
        paid = 10.0 * self.count + float(action)
        return self._seen(), paid, ended and self.index == 0, ended and self.index == 1, {}


class ByIndex(Module):
    """Chooses the environment's index, tells the step, and counts the steps of the episode."""

    def initial_state(self, n: int) -> Any:
        return {"steps": torch.zeros(n)}

    def forward_exploration(self, act: ActInput) -> Acted:
        # In place: what was stored of it before must be a copy.
        act.state["steps"] += 1
        n = len(act.observations)
        return Acted(numpy.arange(n), act.state, {"timestep": numpy.full(n, act.timestep)})


@pytest.mark.parametrize("by_environment", [False, True])
@pytest.mark.parametrize("kind", [SyncVector, Copied])
def test_four_steps_of_two_environments_are_these(
    kind: type[SyncVector], by_environment: bool
) -> None:
    vector = kind([lambda: Numbered(0), lambda: Numbered(1)])
    sampler = collector(
        Environments(vector, "Numbered", AutoresetMode.SAME_STEP),
        ByIndex(),
        seed=0,
        steps=4,
        by_environment=by_environment,
        state_interval=2,
    )
    sampler.start()
    experience = sampler.collect(8)
    told = {name: experience.grid(column).tolist() for name, column in experience.columns.items()}
    # A row for each time: first environment, second environment.
    assert told == {
        "observations": [[[0], [100]], [[1], [101]], [[0], [102]], [[1], [100]]],
        "actions": [[0, 1]] * 4,
        "rewards": [[10, 11], [20, 21], [10, 31], [20, 11]],
        "terminated": [[False, False], [True, False], [False, False], [True, False]],
        "truncated": [[False, False], [False, False], [False, True], [False, False]],
        "timestep": [[8, 8], [10, 10], [12, 12], [14, 14]],
    }
    flat = experience.columns["rewards"].tolist()
    by_time = [10, 11, 20, 21, 10, 31, 20, 11]
    assert flat == ([10, 20, 10, 20, 11, 21, 31, 11] if by_environment else by_time)
    assert experience.following["observations"].tolist() == [[0], [101]]
    assert experience.finals is not None
    # Times 1, 2 and 3 of environments 0, 1 and 0.
    assert experience.finals.indices.tolist() == [2, 5, 6]
    assert experience.finals.columns["observations"].tolist() == [[2], [103], [2]]
    assert [state["steps"].tolist() for state in experience.states] == [[0, 0], [0, 2]]
    assert sampler.stats_by_module["default"].take() == {
        "rollout/reward_mean": 134 / 8,
        "rollout/return_mean": (30 + 63 + 30) / 3,
        "rollout/length_mean": pytest.approx(7 / 3),
    }


def test_an_observation_of_another_shape_is_refused_by_its_environment() -> None:
    class Grows(Walk):
        def _seen(self) -> Any:
            self.steps = getattr(self, "steps", 0) + 1
            return numpy.zeros(2 if self.steps < 4 else 1, numpy.float32)

    vector = SyncVector([Walk, Grows])
    environments = Environments(vector, "Grows", AutoresetMode.SAME_STEP)
    sampler = collector(environments, Remembers(False), seed=0, steps=5)
    sampler.start()
    with pytest.raises(Exception, match=r"\(2 of 2\).*shape \(1,\), its space has \(2,\)"):
        sampler.collect(0)
