"""Bonuses by hand, and what they do to rewards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium.spaces import Box
from rlplug_rnd import Distillation
from rlplug_rnd.addon import next_errors

from rlplug import AddOn, Batch, RequestError, run

SPACE = Box(-1.0, 1.0, (2,))
OPTIONS = {"tracking.enabled": False}


class Alone:
    """What `absorb` asks of the learner."""

    world_size = 1


def distillation() -> Distillation:
    torch.manual_seed(0)
    return Distillation(SPACE, (8,), 4)


def test_features_and_bonuses_are_normalized_over_all_batches() -> None:
    extra = distillation()
    rows = torch.tensor([[1.0, 10.0], [3.0, 10.0], [5.0, 10.0], [7.0, 10.0]])
    errors = torch.tensor([0.0, 2.0, 4.0, 6.0])
    for part in (slice(0, 1), slice(1, 4)):
        extra.absorb(rows[part], errors[part], Alone())  # type: ignore[arg-type]
    # Mean 4, variance (9 + 1 + 1 + 9) / 4 = 5; the second feature does not vary.
    assert extra.features(rows)[:, 0].tolist() == pytest.approx(
        [-1.3416, -0.4472, 0.4472, 1.3416], abs=1e-4
    )
    assert extra.features(rows)[:, 1].tolist() == [0.0] * 4
    # Mean 3, variance 5.
    assert extra.bonuses(torch.tensor([10.0])).item() == pytest.approx(10 / 5**0.5)


def test_before_the_first_batch_nothing_is_scaled() -> None:
    extra = distillation()
    assert extra.features(torch.tensor([[0.5, -0.25]])).tolist() == [[0.5, -0.25]]
    assert extra.bonuses(torch.tensor([3.0])).item() == 3.0


def test_the_error_falls_where_it_learns_and_stays_elsewhere() -> None:
    extra = distillation()
    optimizer = torch.optim.Adam(extra.predictor.parameters(), lr=0.01)
    known, unknown = torch.tensor([[-0.5, -0.5]]), torch.tensor([[1.0, 1.0]])
    for _ in range(300):
        optimizer.zero_grad()
        extra.errors(known).mean().backward()
        optimizer.step()
    assert extra.errors(known).item() < 0.01 * extra.errors(unknown).item()


def test_the_bonus_is_that_of_the_next_observation() -> None:
    extra = distillation()
    observations = torch.rand(5, 2)
    errors = extra.errors(observations)
    replayed = Batch({"next_observations": observations[1:], "observations": observations[:-1]})
    assert torch.equal(next_errors(extra, replayed), errors[1:])  # type: ignore[arg-type]
    rollout = Batch(
        {
            "observations": observations[[0, 1, 3]],
            "fragments": torch.tensor([[0, 2], [2, 3]]),
            "final_observations": observations[[2, 4]],
        }
    )
    found = next_errors(extra, rollout)
    assert found is not None
    assert torch.allclose(found, errors[[1, 2, 4]])


class Rewards(AddOn):
    """Keeps the largest reward of each batch that it sees."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.largest: list[float] = []

    def prepare_batch(self, batch):  # type: ignore[no-untyped-def]
        self.largest.append(float(batch["rewards"].max()))

    def save_state(self):  # type: ignore[no-untyped-def]
        return {"largest": self.largest}


@pytest.mark.parametrize("algorithm", ["dqn", "ppo"])
def test_rewards_get_a_bonus_and_returns_do_not(algorithm: str, home: Path) -> None:
    rewards = Rewards()
    options = {**OPTIONS, "addons.rnd.coef": 10.0}
    result = run(
        algorithm, "CartPole-v1", steps=2_048, seed=1, addons=["rnd", rewards], options=options
    )
    # CartPole gives 1 per step.
    assert max(rewards.largest) > 2.0
    assert result.metrics["train/rnd/bonus"] > 0
    assert result.metrics["rollout/return_mean"] == pytest.approx(
        result.metrics["rollout/length_mean"]
    )


@pytest.mark.parametrize("algorithm", ["linucb", "ucb1", "neural-linucb"])
def test_bandits_are_refused_before_the_first_step(algorithm: str, home: Path) -> None:
    with pytest.raises(RequestError, match="for episodes of one step") as refused:
        run(algorithm, steps=200, addons=["rnd"], options=OPTIONS)
    assert refused.value.exit_code == 2
