"""Streams: each experience once, normalised on its way to the learner and nowhere else."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy
import pytest
from gymnasium.vector import AutoresetMode

from rlplug import Acted, ActInput, Module
from rlplug.config.sections import EnvSection
from rlplug.envs import Environments, Normalization
from rlplug.envs.sync import SyncVector
from rlplug.feeds import FeedSetting, OpenFeed, Stream
from rlplug.sampling import Collector
from tests.collecting import collector


class Counts(gymnasium.Env[Any, Any]):
    """Observes how many steps it was taken; pays 3."""

    observation_space = gymnasium.spaces.Box(0, 99, (1,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return numpy.zeros(1, numpy.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return numpy.full(1, self.count, numpy.float32), 3.0, False, False, {}


class Zero(Module):
    def forward_exploration(self, act: ActInput) -> Acted:
        return Acted(numpy.zeros(len(act.observations), dtype=numpy.int64))


def streamed(steps: int, **options: Any) -> tuple[Collector, OpenFeed, Normalization]:
    """A started sampler of one environment, and the stream for what it collects."""
    vector = SyncVector([Counts])
    normalization = Normalization(EnvSection(**options), Counts.observation_space, 1)
    environments = Environments(vector, "Counts", AutoresetMode.SAME_STEP, normalization)
    sampler = collector(environments, Zero(), seed=0, steps=steps)
    sampler.start()
    setting = FeedSetting(
        observation_space=Counts.observation_space,
        action_space=Counts.action_space,
        num_envs=1,
        steps=100,
        seed=0,
        normalization=normalization,
    )
    return sampler, Stream(steps_per_update=steps).open(setting), normalization


@pytest.mark.parametrize("steps", [1, 2])
def test_batches_are_normalised_and_statistics_are_those_of_raw_experience(steps: int) -> None:
    sampler, feed, normalization = streamed(steps, normalize_observation=True, reward_clip=1.0)
    for step in range(0, 4, steps):
        (work,) = feed.take(sampler.collect(step), step)
        sampler.absorb()
    batch = work.batch
    if steps == 1:
        # Observation 3 after 0, 1 and 2: mean 1, variance 2 / 3.
        assert batch["observations"].tolist() == [[pytest.approx(6**0.5)]]
        assert batch["next_observations"].tolist() == [[pytest.approx(3 * 1.5**0.5)]]
    else:
        # Observations 2 and 3 after 0 and 1: mean 1 / 2, spread 1 / 2.
        assert batch["observations"][:, 0].tolist() == pytest.approx([3, 5])
        assert batch["next_observations"][:, 0].tolist() == pytest.approx([5, 7])
    assert batch["rewards"].tolist() == [1.0] * steps
    count, mean, variance = normalization.get_state()["moments"][0]
    assert (count, mean.tolist(), variance.tolist()) == (4, [1.5], [1.25])


def test_a_batch_stays_as_it_is_while_more_is_collected() -> None:
    sampler, feed, _ = streamed(2)
    (work,) = feed.take(sampler.collect(0), 2)
    list(feed.take(sampler.collect(2), 4))
    assert work.batch["observations"][:, 0].tolist() == [0, 1]
