"""The module: what it does, what is stored of it, and what it remembers."""

from __future__ import annotations

from typing import Any

import attrs
import gymnasium
import numpy
import pytest
import torch
from gymnasium import spaces
from rlplug_ppo import PPO, ActorCriticModule, PPOConfig
from rlplug_ppo.advantages import evaluate_rollout
from torch import Tensor

from rlplug import ActInput, Batch
from rlplug.batch.nested import tree_map
from rlplug.config.sections import EnvSection
from rlplug.envs import make_environments
from rlplug.feeds import FeedSetting
from rlplug.sampling import Collector

IMAGE = spaces.Box(0, 255, (1, 40, 40), numpy.uint8)
WINDOW: dict[str, Any] = {"gamma": 0.99, "gae_lambda": 0.95, "bootstrap_truncated": True}


class Drift(gymnasium.Env[Any, Any]):
    """Numbers that wander, in episodes of 3, 4, 5, … steps; the third of three is a time limit."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, action_space: Any = None) -> None:
        self.observation_space: Any = spaces.Box(-100.0, 100.0, (2,), numpy.float32)
        self.action_space: Any = spaces.Discrete(3) if action_space is None else action_space
        self.length = 2

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.length += 1
        self.at = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.at += 1
        ended = self.at == self.length
        limit = self.length % 3 == 0
        return self._seen(), 1.0, ended and not limit, ended and limit, {}

    def _seen(self) -> Any:
        return (5 * self.np_random.standard_normal(2) + [self.at, 3]).astype(numpy.float32)


class Pictures(Drift):
    """The same episodes, observed as noise of 40 × 40 pixels."""

    def __init__(self, action_space: Any = None) -> None:
        super().__init__(action_space)
        self.observation_space = IMAGE

    def _seen(self) -> Any:
        return self.np_random.integers(256, size=IMAGE.shape, dtype=numpy.uint8)


@attrs.frozen
class Played:
    """A rollout and the module that played it."""

    module: ActorCriticModule
    batches: list[Batch]
    log_probs: list[Any]


def played(
    space: Any = None,
    *,
    kind: type[Drift] = Drift,
    env: EnvSection | None = None,
    rollouts: int = 1,
    **options: Any,
) -> Played:
    """What a sampler and the feed make of a module, and the log-probabilities of its choices."""
    config = PPOConfig(n_steps=16, batch_size=16, **options)
    environments = make_environments(lambda: kind(space), 3, env or EnvSection())
    torch.manual_seed(0)
    module = Scored(environments.observation_space, environments.action_space, config)
    with torch.no_grad():
        for param in module.parameters():
            param += 0.3 * torch.randn_like(param)
    feed = (
        PPO(config)
        .feed()
        .open(
            FeedSetting(
                observation_space=environments.vector.single_observation_space,
                action_space=environments.action_space,
                num_envs=3,
                steps=1000,
                seed=0,
                has_memory=module.has_memory,
                normalization=environments.normalization,
            )
        )
    )
    sampler = Collector(
        environments,
        {"default": module},
        {"default": feed},
        seed=0,
        steps=feed.steps_per_collect,
    )
    sampler.start()
    batches: list[Batch] = []
    log_probs = []
    for index in range(rollouts):
        module.noted.clear()
        (work,) = feed.take(sampler.collect(index * 48), index * 48)
        # The next rollout is written where this one lies.
        batches.append(
            Batch({name: tree_map(Tensor.clone, part) for name, part in work.batch.items()})
        )
        # By time and environment as they were drawn, environment by environment as rows lie.
        log_probs.append(numpy.stack(module.noted).T.reshape(-1))
        sampler.absorb()
    return Played(module, batches, log_probs)


class Scored(ActorCriticModule):
    """Notes the log-probability of every action as it is drawn."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.noted: list[Any] = []

    def forward_exploration(self, act: ActInput) -> Any:
        acted = super().forward_exploration(act)
        parameters, _ = self.network.act(act.observations, act.state)
        actions = torch.as_tensor(acted.actions)
        scored = self.distribution.log_prob(torch.as_tensor(parameters), actions)
        self.noted.append(scored.numpy())
        return acted


SPACES = [
    spaces.Discrete(3),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary(3),
    spaces.Box(-0.5, 0.5, (2,), numpy.float32),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("memory", ["none", "lstm", "gru"])
def test_log_probabilities_after_the_rollout_are_those_of_acting(space: Any, memory: Any) -> None:
    seen = played(space, memory=memory, memory_size=8, rollouts=2)
    for batch, expected in zip(seen.batches, seen.log_probs, strict=True):
        with torch.no_grad():
            found = evaluate_rollout(seen.module, batch, **WINDOW)
        assert found["log_prob"].numpy() == pytest.approx(expected, abs=1e-5)


def test_they_are_so_with_normalised_observations() -> None:
    seen = played(env=EnvSection(normalize_observation=True), rollouts=3)
    for batch, expected in zip(seen.batches, seen.log_probs, strict=True):
        with torch.no_grad():
            found = evaluate_rollout(seen.module, batch, **WINDOW)
        assert found["log_prob"].numpy() == pytest.approx(expected, abs=1e-5)
    assert float(seen.batches[2]["observations"].abs().mean()) < 2.0


def test_unclipped_actions_are_stored_and_clipped_ones_are_sent() -> None:
    # The environment asserts that what it gets is within its bounds.
    seen = played(SPACES[3])
    assert float(seen.batches[0]["actions"].abs().max()) > 0.5


def test_pieces_for_a_memory_begin_with_the_state_of_acting() -> None:
    whole = played(memory="lstm", memory_size=8)
    pieces = played(memory="lstm", memory_size=8, truncated_bptt=4)
    assert len(pieces.batches[0]["fragments"]) > len(whole.batches[0]["fragments"])
    with torch.no_grad():
        one, other = (
            evaluate_rollout(seen.module, seen.batches[0], **WINDOW) for seen in (whole, pieces)
        )
    for name in ("values", "log_prob", "advantages"):
        torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("space", "shared"),
    [
        (IMAGE, True),
        (spaces.Dict({"view": IMAGE, "speed": spaces.Box(-1, 1, (2,))}), True),
        (spaces.Box(-1, 1, (2,)), False),
    ],
    ids=["image", "dict with an image", "vector"],
)
def test_the_encoder_is_shared_for_images_unless_the_option_says_otherwise(
    space: Any, shared: bool
) -> None:
    for option, expected in (("auto", shared), (True, True), (False, False)):
        module = ActorCriticModule(space, spaces.Discrete(3), PPOConfig(shared_encoder=option))
        assert module.network.is_shared is expected


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_acting_on_images_brings_what_a_pass_over_the_rollout_would_find(space: Any) -> None:
    seen = played(space, kind=Pictures, rollouts=2)
    batch = seen.batches[1]
    extras = ("parameters", "values", "log_prob")
    assert set(extras) <= set(batch)
    with torch.no_grad():
        brought = evaluate_rollout(seen.module, batch, **WINDOW)
        whole = evaluate_rollout(seen.module, batch.without(frozenset(extras)), **WINDOW)
    torch.testing.assert_close(batch["log_prob"], whole.pop("log_prob"), rtol=1e-4, atol=1e-3)
    assert set(brought) == set(whole)
    for name, column in whole.items():
        torch.testing.assert_close(brought[name], column, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("options", [{"shared_encoder": False}, {"memory": "gru"}], ids=str)
def test_separate_encoders_and_memories_are_evaluated_after_the_rollout(options: Any) -> None:
    seen = played(kind=Pictures, memory_size=8, **options)
    assert "values" not in seen.batches[0]
