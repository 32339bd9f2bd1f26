"""The algorithms in the hands of the core: options, updates, and better than chance."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from gymnasium import spaces
from rlplug_linucb import (
    LinTSConfig,
    LinUCB,
    LinUCBConfig,
    LinUCBModule,
    NeuralLinUCBConfig,
)
from sklearn.datasets import load_digits

import rlplug
from rlplug import ActInput, Batch, build_learner
from rlplug.config.strict import structure

CONTEXT = spaces.Box(-1, 1, (3,), numpy.float64)
FOUR = spaces.Discrete(4)


def experience(module: Any, count: int, seed: int = 0, **columns: Any) -> Batch:
    """What a sampler would hand on: contexts, the arms that were chosen, rewards and extras."""
    random = numpy.random.default_rng(seed)
    context = random.uniform(-1, 1, (count, 3))
    acted = module.forward_exploration(ActInput(context, random=random))
    rewards = random.standard_normal(count)
    given = {"observations": context, "actions": acted.actions, "rewards": rewards}
    return Batch({**given, **acted.extras, **columns})


@pytest.mark.parametrize("name", ["linucb", "lints"])
@pytest.mark.parametrize("count", [1, 200])
def test_an_update_learns_the_batch_and_reports_the_errors_made_before_it(
    name: str, count: int
) -> None:
    learner = build_learner(name, CONTEXT, FOUR)
    module: Any = learner.modules["default"]
    batch = experience(module, count)
    expected = LinUCBModule(module.layout)
    expected.update(batch.array("observations"), batch.array("actions"), batch.array("rewards"))
    metrics = learner.update({"default": batch}, timestep=count)["default"]
    for mine, other in zip(module.estimates(), expected.estimates(), strict=True):
        assert mine == pytest.approx(other, abs=1e-12)
    # Nothing was known: the prediction was 0, and a context x had the deviation |x|.
    assert metrics["progressive_error"] == pytest.approx((batch.array("rewards") ** 2).mean())
    lengths = numpy.linalg.norm(batch.array("observations"), axis=1)
    assert metrics["sigma"] == pytest.approx(lengths.mean())
    if name == "linucb":
        assert metrics["ucb"] == pytest.approx(lengths.mean())
    else:
        assert metrics["sampled"] == pytest.approx(batch.array("sampled").mean())
    assert metrics["predicted"] == metrics["pseudo_inverted"] == 0


def test_labels_win_over_rewards_and_weights_are_multiplied() -> None:
    learner = build_learner("linucb", CONTEXT, FOUR)
    module: Any = learner.modules["default"]
    two, half = numpy.full(5, 2.0), numpy.full(5, 1.5)
    batch = experience(module, 5, label=numpy.ones(5), weights=two, importance_weight=half)
    expected = LinUCBModule(module.layout)
    seen, actions = batch.array("observations"), batch.array("actions")
    expected.update(seen, actions, numpy.ones(5), numpy.full(5, 3.0))
    learner.update({"default": batch}, timestep=5)
    assert module.score(seen).ucb == pytest.approx(expected.score(seen).ucb, abs=1e-12)


def mean_reward(alpha: float, orders: int) -> float:
    """Over one pass through the digits, one decision and one update at a time."""
    x, labels = load_digits(return_X_y=True)
    size = x.std(0)
    x = numpy.hstack([(x - x.mean(0)) / numpy.where(size > 0, size, 1.0), numpy.ones((len(x), 1))])
    x /= numpy.linalg.norm(x, axis=1, keepdims=True)
    rewards = []
    for seed in range(orders):
        random = numpy.random.default_rng(seed)
        config = LinUCBConfig(alpha=alpha)
        module = LinUCB(config).build(spaces.Box(-1, 1, (65,)), spaces.Discrete(10), config)
        for row in random.permutation(len(x)):
            arms = module.choose(x[row : row + 1], random)
            earned = (arms == labels[row]).astype(numpy.float64)
            module.update(x[row : row + 1], arms, earned)
            rewards.append(earned[0])
    return float(numpy.mean(rewards))


def test_digits_earn_what_the_reference_earns_and_optimism_beats_greed() -> None:
    optimistic, greedy = mean_reward(1.0, 20), mean_reward(0.0, 5)
    assert optimistic == pytest.approx(0.855, abs=0.012)
    assert optimistic > greedy + 0.1
    assert greedy > 0.5


@pytest.mark.usefixtures("home")
def test_a_run_without_a_context_finds_the_best_arm() -> None:
    options = {"tracking.enabled": False}
    result = rlplug.run("linucb", "MultiArmedBandit-v0", steps=600, options=options)
    estimates = result.module.estimates()  # type: ignore[operator] # a method of this module
    assert estimates.A[:, 0, 0].argmax() == estimates.theta[:, 0].argmax()


@pytest.mark.parametrize(
    ("kind", "values", "complaint"),
    [
        (LinUCBConfig, {"alpha": -1}, "at least 0"),
        (LinUCBConfig, {"l2_lambda": -1}, "at least 0"),
        (LinUCBConfig, {"discount": 1.5}, "at most 1"),
        (LinUCBConfig, {"discount": 0}, "greater than 0"),
        (LinUCBConfig, {"model": "joined"}, "'joint'"),
        (LinUCBConfig, {"refresh_every": 0}, "at least 1"),
        (LinUCBConfig, {"lamda": 1}, "unknown option"),
        (LinUCBConfig, {"model": "hybrid", "l2_lambda": 0}, "l2_lambda above 0"),
        (LinTSConfig, {"v": -1}, "at least 0"),
        (LinTSConfig, {"alpha": 1}, "unknown option"),
        (NeuralLinUCBConfig, {"net_arch": []}, "empty"),
        (NeuralLinUCBConfig, {"net_arch": [64, 0]}, "at least 1"),
        (NeuralLinUCBConfig, {"activation": "sine"}, "expected one of"),
        (NeuralLinUCBConfig, {"buffer_size": 0}, "at least 1"),
        (NeuralLinUCBConfig, {"discount": 0.9}, "unknown option"),
    ],
)
def test_wrong_options_are_refused_with_the_reason(
    kind: type[Any], values: dict[str, Any], complaint: str
) -> None:
    config, problems = structure(kind, values, "algorithm")
    assert config is None
    assert complaint in problems[0].message
