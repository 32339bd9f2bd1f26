from __future__ import annotations

from typing import Any

import gymnasium
import numpy
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlplug import Acted, ActInput, Batch, Module
from rlplug.config.sections import EnvSection
from rlplug.envs import Environments, Normalization, make_environments
from rlplug.envs.sync import SyncVector
from rlplug.feeds import FeedSetting, Stream
from tests.collecting import collector


class Counts(gymnasium.Env[Any, Any]):
    """Observes how many steps the episode has had; ends after `length`; pays the step's number."""

    observation_space = gymnasium.spaces.Dict(
        {
            "count": gymnasium.spaces.Box(0, 99, (1,), numpy.float64),
            "action_mask": gymnasium.spaces.MultiBinary(2),
        }
    )
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int, truncates: bool = False) -> None:
        self.length, self.truncates, self.count = length, truncates, 0

    def _seen(self) -> Any:
        mask = numpy.array([1, self.count % 2], dtype=numpy.int8)
        return {"count": numpy.array([float(self.count)]), "action_mask": mask}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        ended = self.count == self.length
        return (
            self._seen(),
            float(self.count),
            ended and not self.truncates,
            ended and self.truncates,
            {},
        )


class Zero(Module):
    """Always chooses action 0, and remembers the masks it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: list[Any] = []

    def forward_exploration(self, act: ActInput) -> Acted:
        self.masks.append(act.action_mask)
        n = len(act.observations["count"])
        return Acted(numpy.zeros(n, dtype=numpy.int64), extras={"score": torch.full((n,), 0.5)})


class Stepped:
    """A started sampler; what it collects is made into batches by a stream."""

    def __init__(self, environments: Environments, module: Module, steps: int = 1) -> None:
        self.sampler = collector(environments, module, seed=0, steps=steps)
        self.sampler.start()
        vector = environments.vector
        self.stream = Stream(steps_per_update=steps).open(
            FeedSetting(
                observation_space=vector.single_observation_space,
                action_space=vector.single_action_space,
                num_envs=vector.num_envs,
                steps=100,
                seed=0,
            )
        )

    def collect(self, step: int = 0) -> Batch:
        """What the next steps make; an empty batch where environments only reset."""
        works = list(self.stream.take(self.sampler.collect(step), step))
        return works[0].batch if works else Batch({})


class Right(Module):
    def forward_exploration(self, act: ActInput) -> Acted:
        return Acted(numpy.ones(len(act.observations), dtype=numpy.int64))


def sampler(mode: AutoresetMode, *lengths: int, steps: int = 1, **options: Any) -> Stepped:
    makers = [lambda length=length: Counts(length, **options) for length in lengths]
    environments = Environments(SyncVectorEnv(makers, autoreset_mode=mode), "Counts", mode)
    return Stepped(environments, Zero(), steps)


def test_the_native_vector_yields_no_transition_across_the_end_of_an_episode() -> None:
    environments = make_environments("CartPole-v1", 16, {}, vectorization="native")
    assert environments.autoreset == AutoresetMode.NEXT_STEP
    made = Stepped(environments, Right(), steps=40)
    batch = made.collect()
    before, after = batch["observations"], batch["next_observations"]
    # The cart moves by 0.02 s times its speed; a reset would move it elsewhere.
    moved = before[:, 0] + 0.02 * before[:, 1]
    torch.testing.assert_close(after[:, 0], moved, rtol=0, atol=1e-6)
    assert batch["terminated"].sum() > 16
    assert (after[batch["terminated"], 2].abs() > 0.2).all()
    assert batch.rows == 16 * 40 - int(batch["terminated"].sum()) + late_ends(batch)


def late_ends(batch: Batch) -> int:
    """Episodes whose reset was not due any more: those that ended in the last step."""
    return int(batch["terminated"][-16:].sum())


def test_masks_come_from_the_observation_and_are_stored() -> None:
    made = sampler(AutoresetMode.SAME_STEP, 5)
    batches = [made.collect(step) for step in range(2)]
    assert [batch["action_mask"].tolist() for batch in batches] == [[[1, 0]], [[1, 1]]]


class Draws(Module):
    def forward_exploration(self, act: ActInput) -> Acted:
        return Acted(act.random.integers(10, size=len(act.observations)))


def test_the_same_seed_gives_the_same_contexts_and_actions() -> None:
    def stream(seed: int) -> list[Any]:
        environments = make_environments("LinearBandit-v0", 4, {})
        made = collector(environments, Draws(), seed=seed, keep_next=False)
        made.start()
        columns = made.collect(0).columns
        return [columns["observations"].tolist(), columns["actions"].tolist()]

    assert stream(3) == stream(3)
    assert stream(3) != stream(4)


@pytest.mark.parametrize("steps", [1, 4])
def test_episodes_that_are_cut_count_as_episodes(steps: int) -> None:
    made = sampler(AutoresetMode.SAME_STEP, 2, steps=steps, truncates=True)
    for step in range(0, 4, steps):
        made.collect(step)
    # Two episodes of 1 + 2.
    assert made.sampler.stats_by_module["default"].take() == {
        "rollout/reward_mean": 1.5,
        "rollout/return_mean": 3.0,
        "rollout/length_mean": 2.0,
    }


@pytest.mark.parametrize("steps", [1, 3])
def test_statistics_leave_out_steps_that_only_reset(steps: int) -> None:
    mode = AutoresetMode.NEXT_STEP
    vector = SyncVectorEnv([lambda: Counts(2)], autoreset_mode=mode)
    section = EnvSection(normalize_observation=True)
    normalization = Normalization(section, vector.single_observation_space, 1)
    made = Stepped(Environments(vector, "Counts", mode, normalization), Zero(), steps)
    for step in range(0, 6, steps):
        made.collect(step)
        made.sampler.absorb()
    # 0 and 1, then a step that only resets from 2, twice.
    count, mean, _ = normalization.get_state()["moments"][0]
    assert (count, mean.tolist()) == (4, [0.5])


def test_an_episode_that_spans_collections_counts_as_a_whole() -> None:
    made = sampler(AutoresetMode.SAME_STEP, 3, steps=2)
    made.collect(0)
    assert made.sampler.stats_by_module["default"].take() == {"rollout/reward_mean": 1.5}
    made.collect(2)
    # The first episode pays 1 + 2 + 3; the second has begun.
    assert made.sampler.stats_by_module["default"].take() == {
        "rollout/reward_mean": 2.0,
        "rollout/return_mean": 6.0,
        "rollout/length_mean": 3.0,
    }


def test_returns_of_normalised_rewards_begin_anew_when_environments_are_reset() -> None:
    vector = SyncVector([lambda: Counts(9)])
    section = EnvSection(normalize_reward=True, normalize_gamma=1.0)
    normalization = Normalization(section, vector.single_observation_space, 1)
    environments = Environments(vector, "Counts", AutoresetMode.SAME_STEP, normalization)
    made = Stepped(environments, Zero(), 2)
    for _ in range(2):
        made.sampler.start()
        made.collect(0)
        made.sampler.absorb()
    # Returns 1 and 3, twice.
    count, mean, variance = normalization.get_state()["moments"][-1]
    assert (count, float(mean), float(variance)) == (4, 2.0, 1.0)


class Regretful(gymnasium.Env[Any, Any]):
    """Ends after as many steps as its seed is odd or even; its regret is the number of the step."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.length = 2 + 3 * (seed % 2)
        self.count = 0
        return numpy.zeros(1, numpy.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        ended = self.count == self.length
        return numpy.zeros(1, numpy.float32), 0.0, ended, False, {"regret": self.count}


@pytest.mark.parametrize("steps", [1, 4])
def test_the_regret_of_a_last_step_counts_while_other_environments_go_on(steps: int) -> None:
    vector = SyncVector([Regretful, Regretful])
    environments = Environments(vector, "Regretful", AutoresetMode.SAME_STEP)
    # Environments with lengths 2 and 5.
    seed = next(n for n in range(99) if [x % 2 for x in environments.seeds(n)] == [0, 1])
    made = collector(environments, Right(), seed=seed, steps=steps)
    made.start()
    for step in range(0, 4, steps):
        made.collect(step)
    # 1 + 2 + 1 + 2 of the first environment, 1 + 2 + 3 + 4 of the other.
    assert made.take_metrics()["rollout/regret_total"] == 16
    for step in range(0, 4, steps):
        made.collect(step)
    # The other: 5, then 1 + 2 + 3. Totals add up over reports.
    metrics = made.take_metrics()
    assert metrics["rollout/regret_total"] == 16 + 6 + 11
    assert metrics["rollout/regret_mean"] == 17 / 8
