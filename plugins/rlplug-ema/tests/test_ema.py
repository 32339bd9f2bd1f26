"""The average follows the weights, and is what is evaluated and saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rlplug_ema import EMA, Average
from torch import nn

import rlplug
from rlplug import run

UNTRACKED = {"tracking.enabled": False}


def test_the_average_of_one_weight_by_hand() -> None:
    source = nn.Linear(1, 1, bias=False)
    average = Average(decay=0.5)
    nn.init.constant_(source.weight, 0.0)
    average.init(source)
    nn.init.constant_(source.weight, 11.0)
    average.update()
    # The first decay is 2 / 11: it moves by 9 / 11 of the distance.
    assert average.model.weight.item() == pytest.approx(9.0)
    average.update()
    # The second is 3 / 12: 9 + 2 * 9 / 12.
    assert average.model.weight.item() == pytest.approx(10.5)
    for _ in range(20):
        before = average.model.weight.item()
        average.update()
    # From the eighth on it is 0.5.
    assert 11 - average.model.weight.item() == pytest.approx((11 - before) / 2, rel=1e-3)


def test_what_is_evaluated_is_the_average(home: Path) -> None:
    options = {**UNTRACKED, "evaluation.every": 1_000, "evaluation.episodes": 5}
    plain = run("dqn", "CartPole-v1", steps=2_000, seed=1, options=options)
    averaged = run("dqn", "CartPole-v1", steps=2_000, seed=1, addons=[EMA()], options=options)
    # Training is the same to the bit, the evaluations are not.
    name = "train/loss"
    assert plain.metrics[name] == averaged.metrics[name]
    assert plain.metrics["eval/return_mean"] != averaged.metrics["eval/return_mean"]


def test_a_saved_policy_acts_with_the_average(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def inference_module(self: EMA, extra: Any, module: Any) -> Any:
        seen[:] = [extra.model, module]
        return extra.model

    monkeypatch.setattr(EMA, "inference_module", inference_module)
    result = run("dqn", "CartPole-v1", steps=2_000, seed=1, addons=["ema"])
    averaged, weights = seen
    observation = torch.tensor([[0.1, 0.2, 0.03, 0.4]])
    loaded = rlplug.load(f"{result.run_id}@last").module.q_values(observation)
    assert torch.allclose(loaded, averaged.q_values(observation))
    assert not torch.allclose(loaded, weights.q_values(observation))


def test_closed_forms_are_evaluated_as_they_are(home: Path) -> None:
    plain, averaged = (
        run("linucb", steps=500, seed=1, addons=addons, options=UNTRACKED)
        for addons in ([], ["ema"])
    )
    names = ("rollout/regret_total", "eval/reward_mean")
    assert [plain.metrics.get(one) for one in names] == [averaged.metrics.get(one) for one in names]
