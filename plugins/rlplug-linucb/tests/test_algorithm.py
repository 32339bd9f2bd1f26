"""LinUCB in the hands of the core: built, fed, updated, and better than chance."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import pytest
import torch
from gymnasium import spaces
from rlplug_linucb import LinUCB, LinUCBConfig, LinUCBModule
from sklearn.datasets import load_digits
from torch import Tensor

from rlplug import ActInput, Batch, LearnerView
from rlplug.config import Schedule
from rlplug.feeds import Stream
from rlplug.hooks.calls import HookCalls
from rlplug.learner import Learner
from rlplug.registry import Participant, describe

CONTEXT = spaces.Box(-1, 1, (3,), numpy.float64)
FOUR = spaces.Discrete(4)


def hooks(**options: Any) -> HookCalls:
    config = LinUCBConfig(**options)
    return HookCalls(Participant(describe("linucb", LinUCB), LinUCB(config), config))


def learner(calls: HookCalls) -> Learner:
    made = Learner(calls, {"default": (CONTEXT, FOUR)}, seed=0)
    made.build()
    return made


def experience(module: LinUCBModule, count: int, seed: int = 0, **columns: Any) -> Batch:
    """What a sampler would hand on: contexts, the arms that were chosen, rewards and extras."""
    random = numpy.random.default_rng(seed)
    context = random.uniform(-1, 1, (count, 3))
    acted = module.forward_exploration(ActInput(context, random=random))
    rewards = random.standard_normal(count)
    given = {"observations": context, "actions": acted.actions, "rewards": rewards}
    return Batch({**given, **acted.extras, **columns})


def test_the_default_run_is_named() -> None:
    assert LinUCB.default_env == "LinearBandit-v0"
    assert LinUCB(LinUCBConfig(update_every=8)).feed() == Stream(
        steps_per_update=8, one_step_episodes=True
    )


def test_it_has_no_optimizer() -> None:
    calls = hooks()
    one = learner(calls)
    assert calls.configure_optimizers_for_module("default", one.modules["default"], one) == [
        ("linucb", None)
    ]


@pytest.mark.parametrize("count", [1, 200])
def test_an_update_learns_the_batch_and_reports_the_errors_made_before_it(count: int) -> None:
    one = learner(hooks())
    module = one.modules["default"]
    assert isinstance(module, LinUCBModule)
    batch = experience(module, count)
    expected = LinUCBModule(module.layout)
    expected.update(batch.array("observations"), batch.array("actions"), batch.array("rewards"))
    metrics = one.update({"default": batch}, timestep=count)["default"]
    probes = numpy.eye(3)
    assert module.score(probes).ucb == pytest.approx(expected.score(probes).ucb, abs=1e-12)
    # Nothing was known: the prediction was 0, and a context x had the deviation |x|.
    assert metrics["progressive_error"] == pytest.approx((batch.array("rewards") ** 2).mean())
    lengths = numpy.linalg.norm(batch.array("observations"), axis=1)
    assert metrics["sigma"] == metrics["ucb"] == pytest.approx(lengths.mean())
    assert metrics["predicted"] == 0.0
    assert metrics["jittered"] == metrics["pseudo_inverted"] == 0


def test_labels_win_over_rewards_and_weights_are_multiplied() -> None:
    one = learner(hooks())
    module = one.modules["default"]
    assert isinstance(module, LinUCBModule)
    two, half = numpy.full(5, 2.0), numpy.full(5, 1.5)
    batch = experience(module, 5, label=numpy.ones(5), weights=two, importance_weight=half)
    expected = LinUCBModule(module.layout)
    seen, actions = batch.array("observations"), batch.array("actions")
    expected.update(seen, actions, numpy.ones(5), numpy.full(5, 3.0))
    one.update({"default": batch}, timestep=5)
    assert module.score(seen).ucb == pytest.approx(expected.score(seen).ucb, abs=1e-12)


def test_a_scheduled_alpha_is_followed() -> None:
    one = learner(hooks(alpha=Schedule([(0, 2.0), (100, 0.0)])))
    module = one.modules["default"]
    assert isinstance(module, LinUCBModule)
    assert float(module.alpha) == 2.0
    one.update({"default": experience(module, 2)}, timestep=50)
    assert float(module.alpha) == 1.0


class Pair:
    """Two learners that meet in every reduction; each is asked from a thread of its own."""

    extra: Mapping[str, Any] = {}
    world_size = 2
    device = torch.device("cpu")

    def __init__(self) -> None:
        self._meeting = threading.Barrier(2, timeout=30)
        self._brought: dict[int, Sequence[Tensor]] = {}

    def all_reduce(self, tensors: Sequence[Tensor], op: str = "sum") -> list[Tensor]:
        self._brought[threading.get_ident()] = tensors
        self._meeting.wait()
        both = [torch.stack(pair) for pair in zip(*self._brought.values(), strict=True)]
        self._meeting.wait()
        return [one.sum(0) if op == "sum" else one.amax(0) for one in both]


@pytest.mark.parametrize("options", [{}, {"discount": 0.9}, {"model": "hybrid"}], ids=str)
def test_two_learners_with_half_of_the_rows_each_know_what_one_with_all_knows(
    options: dict[str, Any],
) -> None:
    config = LinUCBConfig(**options)
    algorithm = LinUCB(config)
    modules = [algorithm.build(CONTEXT, FOUR, config) for _ in range(3)]
    shares = [experience(modules[2], 40, seed=seed) for seed in range(2)]
    pair = Pair()

    def learn(index: int) -> None:
        algorithm.additional_update(modules[index], config, shares[index], as_view(pair))

    threads = [threading.Thread(target=learn, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    statistics = [
        modules[2].statistics(
            *(share.array(name) for name in ("observations", "actions", "rewards"))
        )
        for share in shares
    ]
    modules[2].absorb([one + two for one, two in zip(*statistics, strict=True)], 40)
    probes = numpy.eye(3)
    for module in modules[:2]:
        assert module.score(probes).ucb.tolist() == modules[2].score(probes).ucb.tolist()
    assert float(modules[0].score(probes).pred_sigma.max()) < 1.0


def as_view(pair: Pair) -> LearnerView:
    """The part of a learner that the hook asks for."""
    view: Any = pair
    return view  # type: ignore[no-any-return] # the rest of the protocol is never asked for


def digits() -> tuple[Any, Any]:
    """Standardised, with a bias column, each row of unit length."""
    x, labels = load_digits(return_X_y=True)
    size = x.std(0)
    x = numpy.hstack([(x - x.mean(0)) / numpy.where(size > 0, size, 1.0), numpy.ones((len(x), 1))])
    return x / numpy.linalg.norm(x, axis=1, keepdims=True), labels


def mean_reward(alpha: float, orders: int) -> float:
    """Over one pass through the digits, one decision and one update at a time."""
    x, labels = digits()
    rewards = []
    for seed in range(orders):
        random = numpy.random.default_rng(seed)
        config = LinUCBConfig(alpha=alpha)
        module = LinUCB(config).build(spaces.Box(-1, 1, (65,)), spaces.Discrete(10), config)
        act = ActInput(None, random=random)
        for row in random.permutation(len(x)):
            act.observations = x[row : row + 1]
            arms = module.forward_exploration(act).actions
            earned = (arms == labels[row]).astype(numpy.float64)
            module.update(act.observations, arms, earned)
            rewards.append(earned[0])
    return float(numpy.mean(rewards))


def test_digits_earn_what_the_reference_earns_and_optimism_beats_greed() -> None:
    optimistic, greedy = mean_reward(1.0, 20), mean_reward(0.0, 5)
    assert optimistic == pytest.approx(0.855, abs=0.012)
    assert optimistic > greedy + 0.1
    assert greedy > 0.5
