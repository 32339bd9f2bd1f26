"""Without a context the default model learns the mean of every arm; the batch is what is read."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy
import pytest
import torch
from gymnasium import spaces
from rlplug_linucb import Layout, LinTSModule, LinUCB, LinUCBConfig, LinUCBModule
from rlplug_linucb.layout import layout_of

import rlplug
from rlplug.bandits import BanditBatch
from rlplug.errors import RunFailedError

THREE = Layout(num_arms=3)
ARMS, REWARDS = numpy.array([0, 0, 0, 1]), numpy.array([1.0, 1.0, 2.0, 4.0])
MODELS: list[dict[str, Any]] = [
    {},
    {"model": "disjoint"},
    {"model": "joint"},
    {"model": "joint", "use_interaction_features": False},
]


@pytest.mark.parametrize("options", MODELS, ids=str)
@pytest.mark.parametrize("observations", [None, {}, "empty", "numbers", "mask", "tensor"])
def test_arms_without_features_are_worth_their_mean(options: Any, observations: Any) -> None:
    def rows(count: int) -> Any:
        return {
            "empty": numpy.empty((count, 0)),
            "numbers": numpy.zeros(count, dtype=int),
            "mask": {"action_mask": numpy.ones((count, 3))},
            "tensor": {"action_mask": torch.ones((count, 3))},
        }.get(str(observations), observations)

    one = LinUCBModule(THREE, LinUCBConfig(**options))
    one.update(rows(4), ARMS, REWARDS)
    scores = one.score(rows(1))
    # Sum of rewards / (rows + 1), and 1 / √(rows + 1).
    assert numpy.asarray(scores.pred_label[0]) == pytest.approx([1.0, 2.0, 0.0])
    assert numpy.asarray(scores.pred_sigma[0]) == pytest.approx([0.5, 0.5**0.5, 1.0])
    assert one.choose(rows(1), numpy.random.default_rng(0)).tolist() == [1]


def test_a_hybrid_model_shares_the_mean_of_all_arms() -> None:
    one = LinUCBModule(THREE, LinUCBConfig(model="hybrid"))
    one.update(None, ARMS, REWARDS)
    # Rows [1, e_arm]: (A + I)⁻¹ b of the 4 x 4 ridge regression.
    design = numpy.hstack([numpy.ones((4, 1)), numpy.eye(3)[ARMS]])
    theta = numpy.linalg.solve(design.T @ design + numpy.eye(4), design.T @ REWARDS)
    assert one.score(None).pred_label[0] == pytest.approx(theta[0] + theta[1:])


def test_a_hybrid_model_of_featured_arms_needs_no_context() -> None:
    one = LinUCBModule(Layout(num_arms=2, arm_dim=1), LinUCBConfig(model="hybrid"))
    features = numpy.array([[[1.0], [2.0]]])
    one.update(features, [1], [3.0])
    # One row [2, 0, 1]: theta = 3 (2, 0, 1) / (1 + 5).
    assert one.score(features).pred_label[0] == pytest.approx([1.0, 2.5])


def test_arms_without_features_come_and_go_too() -> None:
    one = LinUCBModule(THREE)
    one.update(None, ARMS, REWARDS)
    one.remove_arm(0)
    one.add_arm()
    assert one.score(None).pred_label[0] == pytest.approx([2.0, 0.0, 0.0])


def test_a_context_that_nobody_expected_is_refused() -> None:
    with pytest.raises(RunFailedError, match=r"context must have the shape \(n, 0\), found \(1, 3"):
        LinUCBModule(THREE).score(numpy.ones((1, 3)))
    alone = LinUCBModule(Layout(num_arms=2, arm_dim=1))
    with pytest.raises(RunFailedError, match=r"context must have the shape \(n, 0\), found \(1, 3"):
        alone.score({"context": numpy.ones((1, 3)), "arms": numpy.ones((1, 2, 1))})


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (0,)),
        spaces.Discrete(1),
        spaces.Dict(action_mask=spaces.MultiBinary(3)),
    ],
)
def test_spaces_without_features_are_supported(space: spaces.Space[Any]) -> None:
    for options in MODELS:
        assert LinUCB(LinUCBConfig(**options)).supports(space, spaces.Discrete(3)) is None
    assert layout_of(space, spaces.Discrete(3)) == THREE


class Slots(gymnasium.Env[Any, Any]):
    """Arm 2 earns 1, the others nothing."""

    observation_space = spaces.Discrete(1)
    action_space = spaces.Discrete(3)
    earned = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: Any) -> Any:
        self.earned += float(action == 2)
        return 0, float(action == 2), True, False, {}


@pytest.mark.usefixtures("home")
def test_a_run_without_a_context_finds_the_best_arm() -> None:
    made: list[Slots] = []

    def slots() -> Slots:
        made.append(Slots())
        return made[-1]

    rlplug.run("linucb", slots, steps=100, seed=0, options={"tracking.enabled": False})
    assert max(one.earned for one in made) > 80


@pytest.mark.parametrize("kind", [LinUCBModule, LinTSModule])
def test_a_bandit_batch_is_learned_as_its_columns_are(kind: Any) -> None:
    one, two = kind(THREE), kind(THREE)
    one.learn(BanditBatch(actions=ARMS, rewards=REWARDS))
    two.update(None, ARMS, REWARDS)
    assert one.theta.tolist() == two.theta.tolist()


def test_the_label_of_a_bandit_batch_is_learned_with_its_effective_weight() -> None:
    one, two = LinUCBModule(THREE), LinUCBModule(THREE)
    half, label = numpy.full(4, 0.5), numpy.ones(4)
    batch = BanditBatch(
        actions=ARMS, rewards=REWARDS, label=label, weights=half, importance_weight=half
    )
    one.learn(batch)
    two.update(None, ARMS, label, half * half)
    assert one.theta.tolist() == two.theta.tolist()
    plain = LinUCBModule(THREE)
    plain.learn(BanditBatch(actions=ARMS, rewards=REWARDS, weights=half))
    two = LinUCBModule(THREE)
    two.update(None, ARMS, REWARDS, half)
    assert plain.theta.tolist() == two.theta.tolist()
