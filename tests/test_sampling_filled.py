"""Environments that write where steps are kept: the same experience as when they are copied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy
import pytest
from gymnasium.vector import AutoresetMode

from rlplug import Acted, ActInput, Module
from rlplug.batch.nested import first_leaf, tree_map
from rlplug.envs import Environments
from rlplug.envs.sync import SyncVector
from tests.collecting import collector


class Chooses(Module):
    """Chooses at random."""

    def forward_exploration(self, act: ActInput) -> Acted:
        n = len(first_leaf(act.observations))
        drawn = act.random.random(n)
        return Acted((drawn * 3).astype(numpy.int64))


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
    sampler = collector(environments, Chooses(), seed=0, steps=4)
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
                tree_map(numpy.ndarray.tolist, experience.finals.columns["observations"]),
                tree_map(numpy.ndarray.tolist, experience.following["observations"]),
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
    sampler = collector(environments, Chooses(), seed=0, steps=4)
    sampler.start()
    sampler.collect(0)
    # The third of the four steps ends an episode.
    assert sampler.stats_by_module["default"].take()["rollout/regret_total"] == 2.0


def test_infos_that_sampling_does_not_read_are_left_out() -> None:
    class Chances(Counts):
        info = {"regret": 0.3, "lives": 2}

    vector = SyncVector([Chances])
    vector.reset()
    assert vector.step([0])[-1].keys() == {"regret", "_regret"}


def test_an_observation_of_another_shape_is_refused_by_its_environment() -> None:
    class Grows(Counts):
        def _next(self) -> Any:
            count, pair = super()._next()
            return count, pair if count < 3 else pair[:1]

    environments = Environments(SyncVector([Counts, Grows]), "Grows", AutoresetMode.SAME_STEP)
    sampler = collector(environments, Chooses(), seed=0, steps=5)
    sampler.start()
    with pytest.raises(Exception, match=r"\(2 of 2\).*shape \(1,\), its space has \(2,\)"):
        sampler.collect(0)
