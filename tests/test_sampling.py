from __future__ import annotations

from typing import Any

import gymnasium
import numpy
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlplug import Acted, ActInput, Module
from rlplug.envs import Environments, make_environments
from rlplug.errors import EnvironmentFailedError
from rlplug.sampling import StreamSampler
from rlplug.sampling.tally import Tally


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


def sampler(mode: AutoresetMode, *lengths: int, steps: int = 1, **options: Any) -> StreamSampler:
    makers = [lambda length=length: Counts(length, **options) for length in lengths]
    environments = Environments(SyncVectorEnv(makers, autoreset_mode=mode), "Counts", mode)
    made = StreamSampler(environments, Zero(), seed=0, steps_per_update=steps)
    made.start()
    return made


def pairs(batch: Any) -> list[tuple[float, float, bool, bool]]:
    """Where each transition began and led to, and how it ended."""
    return list(
        zip(
            batch["observations"]["count"][:, 0].tolist(),
            batch["next_observations"]["count"][:, 0].tolist(),
            batch["terminated"].tolist(),
            batch["truncated"].tolist(),
            strict=True,
        )
    )


TWO_THEN_AGAIN = [
    (0.0, 1.0, False, False),
    (1.0, 2.0, True, False),
    (0.0, 1.0, False, False),
]


def test_a_vector_that_resets_at_once_still_yields_the_final_observation() -> None:
    made = sampler(AutoresetMode.SAME_STEP, 2)
    assert [pairs(made.collect(0))[0] for _ in range(3)] == TWO_THEN_AGAIN


def test_the_step_that_only_resets_is_no_transition() -> None:
    made = sampler(AutoresetMode.NEXT_STEP, 2)
    batches = [made.collect(0) for _ in range(4)]
    assert [batch.rows for batch in batches] == [1, 1, 0, 1]
    assert [row for batch in batches if batch.rows for row in pairs(batch)] == TWO_THEN_AGAIN


def test_truncation_is_kept_apart_from_termination() -> None:
    made = sampler(AutoresetMode.SAME_STEP, 1, truncates=True)
    assert pairs(made.collect(0)) == [(0.0, 1.0, False, True)]


def test_several_steps_make_one_batch_in_the_order_of_time() -> None:
    batch = sampler(AutoresetMode.SAME_STEP, 5, 5, steps=2).collect(0)
    assert batch["rewards"].tolist() == [1.0, 1.0, 2.0, 2.0]
    assert batch["score"].tolist() == [0.5] * 4


def test_masks_come_from_the_observation_and_are_stored() -> None:
    made = sampler(AutoresetMode.SAME_STEP, 5)
    batches = [made.collect(step) for step in range(2)]
    assert [batch["action_mask"].tolist() for batch in batches] == [[[1, 0]], [[1, 1]]]


def test_returns_lengths_and_rewards_are_tallied_per_episode() -> None:
    made = sampler(AutoresetMode.SAME_STEP, 2, 3)
    for step in range(6):
        made.collect(step)
    taken = made.tally.take()
    # Three episodes of 1 + 2, two of 1 + 2 + 3, in twelve steps.
    assert taken["rollout/return_mean"] == pytest.approx((3 * 3 + 2 * 6) / 5)
    assert taken["rollout/length_mean"] == pytest.approx((3 * 2 + 2 * 3) / 5)
    assert taken["rollout/reward_mean"] == pytest.approx((3 * 3 + 2 * 6) / 12)
    assert made.tally.take() == {}


def test_regret_adds_up_over_reports() -> None:
    tally = Tally(2)
    ended = numpy.ones(2, dtype=bool)
    for _ in range(2):
        tally.add(numpy.ones(2), ended, ~ended, {"regret": numpy.array([0.5, 0.0])})
    assert tally.take()["rollout/regret_total"] == 1.0
    tally.add(numpy.ones(2), ended, ~ended, {"regret": numpy.array([0.25, 0.25])})
    assert tally.take() == {
        "rollout/reward_mean": 1.0,
        "rollout/regret_mean": 0.25,
        "rollout/regret_total": 1.5,
    }


class Draws(Module):
    def forward_exploration(self, act: ActInput) -> Acted:
        return Acted(act.random.integers(10, size=len(act.observations)))


def test_the_same_seed_gives_the_same_contexts_and_actions() -> None:
    def stream(seed: int) -> list[Any]:
        environments = make_environments("LinearBandit-v0", 4, {})
        made = StreamSampler(environments, Draws(), seed=seed, keep_next=False)
        made.start()
        batch = made.collect(0)
        return [batch["observations"].tolist(), batch["actions"].tolist()]

    assert stream(3) == stream(3)
    assert stream(3) != stream(4)


def test_an_environment_that_raises_is_named_with_the_step() -> None:
    class Dies(Counts):
        def step(self, action: Any) -> Any:
            raise ZeroDivisionError("out of fuel")

    environments = Environments(SyncVectorEnv([lambda: Dies(3)]), "Dies", AutoresetMode.NEXT_STEP)
    made = StreamSampler(environments, Zero(), seed=0)
    made.start()
    with pytest.raises(
        EnvironmentFailedError, match="'Dies' failed in step after 1,234 steps: Zero"
    ):
        made.collect(1234)
