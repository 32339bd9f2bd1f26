"""Log-probabilities of actions, where they are wanted: of every stochastic policy there is."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import rlplug as rl
from rlplug.bandits.probability import beta_best, gaussian_best, greedy_probabilities
from rlplug.envs import Environments
from rlplug.envs.workers import WorkerVector
from rlplug.errors import PluginError
from rlplug.feeds import FeedSetting, Replay, Stream
from tests.collecting import collector

ROWS = 2000
CONTEXT = spaces.Box(-1.0, 1.0, (3,), numpy.float64)
NOTHING = spaces.Discrete(1)
POLICIES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "ppo": ("ppo", CONTEXT, {"ortho_init": False}),
    "a2c": ("a2c", CONTEXT, {}),
    "recurrent a2c": ("a2c", CONTEXT, {"memory": "lstm"}),
    "dqn": ("dqn", CONTEXT, {"exploration_initial_eps": 0.6, "learning_starts": 0}),
    "noisy dqn": ("dqn", CONTEXT, {"noisy": True, "exploration_initial_eps": 0.2}),
    "sac": ("sac", CONTEXT, {"learning_starts": 0}),
    "sac before it learns": ("sac", CONTEXT, {}),
    "linucb": ("linucb", CONTEXT, {}),
    "lints": ("lints", CONTEXT, {"v": 0.3}),
    "joint lints": ("lints", CONTEXT, {"v": 0.3, "model": "joint"}),
    "neural-linucb": ("neural-linucb", CONTEXT, {}),
    "epsilon-greedy": ("epsilon-greedy", NOTHING, {"epsilon": 0.4}),
    "softmax": ("softmax", NOTHING, {"temperature": 0.5}),
    "thompson": ("thompson", NOTHING, {}),
    "gaussian thompson": ("thompson", NOTHING, {"distribution": "gaussian"}),
    "ucb1": ("ucb1", NOTHING, {}),
    "metric-ucb": ("metric-ucb", NOTHING, {}),
}


def module_of(name: str) -> Any:
    algorithm, space, options = POLICIES[name]
    module = rl.build_learner(algorithm, space, spaces.Discrete(4), options=options).modules[
        "default"
    ]
    if hasattr(module, "update") and algorithm != "neural-linucb":
        # Arms that are told apart, the last two but a little.
        arms = numpy.array([0, 0, 1, 1, 1, 2, 2, 3, 3])
        rewards = numpy.array([0.0, 0.2, 0.3, 0.4, 0.3, 0.8, 0.9, 0.9, 0.8])
        if space is NOTHING:
            module.update(arms, rewards)
        else:
            contexts = numpy.random.default_rng(0).uniform(-1, 1, (len(arms), 3))
            module.update(contexts, arms, rewards)
    return module


def asking(name: str, module: Any, rows: int, is_masked: bool) -> rl.ActInput:
    """The same observation in all rows, and log-probabilities wanted."""
    one = numpy.zeros((), int) if POLICIES[name][1] is NOTHING else numpy.array([0.3, -0.2, 0.9])
    act = rl.ActInput(
        numpy.stack([one] * rows), random=numpy.random.default_rng(1), steps=1000, timestep=1
    )
    act.state = module.initial_state(rows)
    if is_masked:
        act.action_mask = numpy.tile(numpy.array([True, True, False, True]), (rows, 1))
    act.wants_log_prob = True
    return act


@pytest.mark.parametrize("is_masked", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.parametrize("name", POLICIES)
def test_actions_come_as_often_as_their_log_probabilities_say(name: str, is_masked: bool) -> None:
    module = module_of(name)
    act = asking(name, module, ROWS, is_masked)
    acted = module.forward_exploration(act)
    log_prob = numpy.asarray(acted.extras["log_prob"])
    assert (log_prob.shape, log_prob.dtype) == ((ROWS,), numpy.float32)
    whole = 0.0
    for action in numpy.unique(acted.actions).tolist():
        assert not (is_masked and action == 2)
        probabilities = numpy.exp(log_prob[acted.actions == action])
        if "joint" not in name:
            assert numpy.ptp(probabilities) < 1e-6
        probability = float(probabilities.mean())
        found = (acted.actions == action).mean()
        # Five standard deviations of a frequency.
        slack = 5 * (probability * (1 - probability) / ROWS) ** 0.5
        assert found == pytest.approx(probability, abs=slack + 1e-4)
        whole += probability
    assert whole == pytest.approx(1.0, abs=5e-3)
    act.wants_log_prob = False
    again = module.forward_exploration(act)
    assert "log_prob" not in again.extras


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("name", POLICIES)
def test_probabilities_of_all_actions_are_those_that_were_told(name: str, is_masked: bool) -> None:
    module, rows = module_of(name), 40
    act = asking(name, module, rows, is_masked)
    acted = module.forward_exploration(act)
    shares = numpy.asarray(module.action_probabilities(act))
    assert (shares.shape, shares.sum(1)) == ((rows, 4), pytest.approx(1.0, abs=1e-5))
    assert not (is_masked and shares[:, 2].any())
    chosen = shares[numpy.arange(rows), acted.actions]
    # Correlated draws are estimated each time.
    slack = 0.06 if "joint" in name else 1e-5
    assert chosen == pytest.approx(numpy.exp(acted.extras["log_prob"]), abs=slack)


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "bc", "sac"])
def test_densities_of_given_actions_are_those_that_were_told(algorithm: str) -> None:
    arms = spaces.Box(-2.0, 2.0, (2,), numpy.float32)
    module = rl.build_learner(algorithm, CONTEXT, arms).modules["default"]
    contexts = numpy.random.default_rng(0).uniform(-1, 1, (50, 3))
    act = rl.ActInput(contexts, random=numpy.random.default_rng(1), wants_log_prob=True)
    acted = module.forward_exploration(act)
    told = numpy.asarray(acted.extras["log_prob"])
    assert module.action_log_prob(act, acted.actions) == pytest.approx(told, abs=1e-5)
    assert module.action_probabilities(act) is None
    assert (numpy.asarray(module.action_log_prob(act, acted.actions + 9)) < told - 1).all()


def test_probabilities_of_being_best_are_those_of_known_cases() -> None:
    # Of two Gaussians: P(x > y) = Φ(Δ / √(σ² + τ²)); with Δ = 1 and variances that add up to 1.
    found = gaussian_best(numpy.array([[1.0, 0.0]]), numpy.array([[0.6, 0.8]]))
    assert found[0].tolist() == pytest.approx([0.841345, 0.158655], abs=2e-4)
    # A narrow one among wide ones is above both with probability 1/4.
    found = gaussian_best(numpy.zeros((1, 3)), numpy.array([[1e-7, 1.0, 1.0]]))
    assert found[0].tolist() == pytest.approx([0.25, 0.375, 0.375], abs=2e-3)
    # Beta(2, 1) above Beta(1, 1): ∫ 2x · x dx = 2/3.
    found = beta_best(numpy.array([[2.0, 1.0]]), numpy.array([[1.0, 1.0]]))
    assert found[0].tolist() == pytest.approx([2 / 3, 1 / 3], abs=2e-4)
    # Equal ones are equally likely, however many data there are.
    found = beta_best(numpy.full((1, 4), 1e6), numpy.full((1, 4), 2e6))
    assert found[0].tolist() == pytest.approx([0.25] * 4, abs=1e-6)
    mask = numpy.array([[True, False, True]])
    found = gaussian_best(numpy.array([[0.0, 9.0, 0.0]]), numpy.ones((1, 3)), mask)
    assert found[0].tolist() == pytest.approx([0.5, 0.0, 0.5], abs=1e-6)
    assert greedy_probabilities(numpy.array([[1.0, 1.0, 0.0]]))[0].tolist() == [0.5, 0.5, 0.0]
    found = gaussian_best(numpy.array([[1.0, 1.0, 0.0]]), numpy.zeros((1, 3)))
    assert found[0].tolist() == [0.5, 0.5, 0.0]


def beta_above(a: int, b: int, c: int, d: int) -> float:
    """P(Beta(a, b) > Beta(c, d)) of whole numbers, exactly."""

    def log_beta(x: int, y: int) -> float:
        return math.lgamma(x) + math.lgamma(y) - math.lgamma(x + y)

    return sum(
        math.exp(log_beta(c + i, b + d) - math.log(b + i) - log_beta(1 + i, b) - log_beta(c, d))
        for i in range(a)
    )


@pytest.mark.parametrize(
    "arms", [(1, 1, 1, 1), (2, 1, 1, 3), (50, 50, 45, 55), (2000, 3, 1990, 2), (3, 2000, 2, 1990)]
)
def test_the_probability_that_one_beta_is_above_another_is_exact_to_three_digits(
    arms: tuple[int, int, int, int],
) -> None:
    a, b, c, d = arms
    found = beta_best(numpy.array([[a, c]]), numpy.array([[b, d]]))[0]
    assert found.tolist() == pytest.approx([beta_above(*arms), 1 - beta_above(*arms)], abs=5e-4)


class Still(gymnasium.Env[Any, Any]):
    observation_space = CONTEXT
    action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return numpy.zeros(3), {}

    def step(self, action: Any) -> Any:
        return numpy.zeros(3), 1.0, False, False, {}


def test_a_policy_without_log_probabilities_is_refused_where_they_are_needed() -> None:
    class Silent(rl.Module):
        def forward_exploration(self, act: rl.ActInput) -> rl.Acted:
            return rl.Acted(numpy.zeros(len(act.observations), numpy.int64))

    vector = WorkerVector(Still, 2, 1)
    try:
        sampler = collector(
            Environments(vector, "Still", AutoresetMode.SAME_STEP),
            Silent(),
            count=8,
            on_policy=True,
            seed=0,
        )
        sampler.start()
        with pytest.raises(PluginError, match=r"Silent\.forward_exploration returned no log_prob"):
            sampler.collect(0)
    finally:
        vector.close()


class Says(rl.Module):
    """Tells where it is asked."""

    def forward_exploration(self, act: rl.ActInput) -> rl.Acted:
        actions = act.random.integers(4, size=len(act.observations))
        return rl.Acted(actions, extras={"log_prob": -0.5 * actions} if act.wants_log_prob else {})


@pytest.mark.parametrize("count", [0, 24])
@pytest.mark.parametrize("described", [Replay(batch_size=8, learning_starts=0), Stream()])
def test_rows_have_version_and_log_probability_where_weights_may_be_older(
    described: Any, count: int
) -> None:
    setting = FeedSetting(
        observation_space=CONTEXT, action_space=spaces.Discrete(4), num_envs=2, steps=100, seed=0
    )
    feed = described.open(setting)
    vector = WorkerVector(Still, 2, 1)
    try:
        sampler = collector(
            Environments(vector, "Still", AutoresetMode.SAME_STEP),
            Says(),
            force_sync=not count,
            steps=12,
            count=count,
            keep_next=True,
            seed=0,
        )
        sampler.start()
        sampler.version = 7
        works = list(feed.take(sampler.collect(0), 24))
    finally:
        vector.close()
    assert works
    batch = works[0].batch
    assert ("version" in batch, "log_prob" in batch) == (count > 0, count > 0)
    if count:
        assert batch["version"].tolist() == [7] * len(batch["actions"])
        assert batch["log_prob"].tolist() == (-0.5 * batch["actions"]).tolist()
