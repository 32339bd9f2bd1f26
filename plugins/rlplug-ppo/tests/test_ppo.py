"""PPO and A2C: advantages and losses by hand, the module, and runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import gymnasium
import numpy
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from rlplug_ppo import A2C, PPO, ActorCriticModule, PPOConfig, losses
from rlplug_ppo.advantages import discounted_sums, evaluate_rollout, gae, vtrace
from rlplug_ppo.algorithm import adapt
from torch import Tensor

from rlplug import ActInput, Batch, RequestError, UnsupportedSpaceError, build_learner, run
from rlplug.batch.nested import tree_map
from rlplug.config.sections import EnvSection
from rlplug.envs import make_environments
from rlplug.errors import ConfigError, PluginError
from rlplug.feeds import FeedSetting
from rlplug.learner import Learner
from rlplug.sampling import Collector
from rlplug.testing.probes import t_maze

pytestmark = pytest.mark.usefixtures("home")

# -- advantages ------------------------------------------------------------------------------------


WINDOW: dict[str, Any] = {"gamma": 0.5, "gae_lambda": 0.5, "bootstrap_truncated": True}


def test_a_termination_and_a_truncation_inside_a_rollout_by_hand() -> None:
    # Two episodes that end in the rollout, by failure and by a time limit, and one that goes on.
    found = gae(
        rewards=torch.tensor([1.0, 2.0, 4.0, 1.0, 0.0]),
        values=torch.tensor([2.0, 4.0, 2.0, 2.0, 4.0]),
        next_values=torch.tensor([4.0, 9.0, 2.0, 8.0, 8.0]),
        terminated=torch.tensor([False, True, False, False, False]),
        continues=torch.tensor([True, False, True, False, False]),
        gamma=0.5,
        gae_lambda=0.5,
    )
    # errors: 1 + 0.5·4 - 2 = 1, 2 - 4 = -2 (terminated: no future); 4 + 1 - 2 = 3,
    # 1 + 4 - 2 = 3 (truncated: the future counts); 0 + 4 - 4 = 0 (cut by the rollout).
    assert found.tolist() == [1 + 0.25 * -2, -2.0, 3 + 0.25 * 3, 3.0, 0.0]


class Told(ActorCriticModule):
    """Takes the only number of an observation for the value of its state."""

    def forward_train(self, batch: Batch) -> dict[str, Tensor]:
        values = batch["observations"][:, 0]
        return {"parameters": torch.zeros(len(values), 2), "values": values}


def module() -> Told:
    return Told(spaces.Box(-9, 9, (1,)), spaces.Discrete(2), PPOConfig())


def rollout(fragments: list[list[int]], finals: list[float], **columns: Any) -> Batch:
    rows = fragments[-1][1]
    given = {
        "observations": torch.arange(1.0, rows + 1).unsqueeze(1),
        "actions": torch.zeros(rows, dtype=torch.int64),
        "rewards": torch.ones(rows),
        "terminated": torch.zeros(rows, dtype=torch.bool),
        "truncated": torch.zeros(rows, dtype=torch.bool),
        "fragments": torch.tensor(fragments),
        "final_observations": torch.tensor(finals).unsqueeze(1),
    }
    return Batch({**given, **columns})


def test_what_an_update_needs_is_computed_from_extended_fragments() -> None:
    ends = torch.tensor([False, True, False])
    found = evaluate_rollout(
        module(), rollout([[0, 2], [2, 3]], [8.0, 2.0], truncated=ends), **WINDOW
    )
    # errors: 1 + 0.5·2 - 1 = 1; 1 + 0.5·8 - 2 = 3 (truncated); 1 + 0.5·2 - 3 = -1 (cut).
    assert found["advantages"].tolist() == [1.75, 3.0, -1.0]
    assert found["returns"].tolist() == [2.75, 5.0, 2.0]
    assert found["values"].tolist() == [1.0, 2.0, 3.0]
    assert torch.allclose(found["log_prob"], torch.tensor(0.5).log())


def test_a_time_limit_can_be_taken_for_a_failure_as_in_old_code() -> None:
    ends = torch.tensor([False, True, False])
    batch = rollout([[0, 2], [2, 3]], [8.0, 2.0], truncated=ends)
    found = evaluate_rollout(module(), batch, **{**WINDOW, "bootstrap_truncated": False})
    assert found["advantages"].tolist() == [1 + 0.25 * -1, -1.0, -1.0]


def test_log_probabilities_that_acting_brought_are_kept() -> None:
    batch = rollout([[0, 2]], [8.0], log_prob=torch.tensor([-1.0, -2.0]))
    assert "log_prob" not in evaluate_rollout(module(), batch, **WINDOW)


def test_pieces_cut_for_a_memory_give_the_same_advantages_as_the_whole() -> None:
    # The final observation of a piece that goes on is the first one of the next piece.
    whole = rollout([[0, 4], [4, 6]], [7.0, 2.0])
    pieces = rollout(
        [[0, 2], [2, 4], [4, 6]], [3.0, 7.0, 2.0], continued=torch.tensor([True, False, False])
    )
    expected = evaluate_rollout(module(), whole, **WINDOW)["advantages"]
    assert torch.allclose(evaluate_rollout(module(), pieces, **WINDOW)["advantages"], expected)


@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(0, 1)), min_size=1, max_size=40))
def test_sums_equal_those_of_a_loop_from_the_end(rows: list[tuple[float, float]]) -> None:
    terms = torch.tensor([term for term, _ in rows], dtype=torch.float64)
    decay = torch.tensor([*(decay for _, decay in rows[:-1]), 0.0], dtype=torch.float64)
    expected = terms.clone()
    for index in range(len(rows) - 2, -1, -1):
        expected[index] += decay[index] * expected[index + 1]
    assert torch.allclose(discounted_sums(terms, decay), expected)
    assert decay[-1] == 0.0


# -- V-trace -------------------------------------------------------------------------------------

STEPS: dict[str, Tensor] = {
    "rewards": torch.tensor([1.0, 1.0, 0.0, 2.0, 3.0]),
    "values": torch.tensor([2.0, 4.0, 2.0, 2.0, 1.0]),
    "next_values": torch.tensor([4.0, 2.0, 8.0, 1.0, 6.0]),
    "terminated": torch.tensor([False, False, False, False, True]),
    "continues": torch.tensor([True, True, False, True, False]),
}
"""Three steps that a time limit ends, then two that end by termination."""


def test_v_trace_by_hand() -> None:
    advantages, returns = vtrace(
        **STEPS,
        rho=torch.tensor([0.5, 2.0, 1.0, 0.5, 1.0]),
        c=torch.tensor([0.5, 1.0, 1.0, 0.5, 1.0]),
        gamma=0.5,
        gae_lambda=0.5,
    )
    # TD errors: 1 + 2 - 2 = 1, 1 + 1 - 4 = -2, 0 + 4 - 2 = 2; 2 + 0.5 - 2 = 0.5, 3 - 1 = 2.
    # Targets minus values, from the end, with 0.25 for discount and lambda:
    # 2; 2·-2 + 0.25·1·2 = -3.5; 0.5·1 + 0.25·0.5·-3.5 = 0.0625.
    assert returns[:3].tolist() == [2.0625, 0.5, 4.0]
    # Advantages: the TD error and 0.25 of what follows.
    assert advantages[:3].tolist() == [1 + 0.25 * -3.5, -2 + 0.25 * 2, 2.0]
    # 2, then 0.5·0.5 + 0.25·0.5·2 = 0.5
    assert returns[3:].tolist() == [2.5, 3.0]
    assert advantages[3:].tolist() == [0.5 + 0.25 * 2, 2.0]


@pytest.mark.parametrize("gae_lambda", [0.0, 0.5, 0.95, 1.0])
def test_v_trace_of_what_was_chosen_by_the_same_policy_is_gae(gae_lambda: float) -> None:
    window = {"gamma": 0.9, "gae_lambda": gae_lambda}
    advantages, returns = vtrace(**STEPS, rho=torch.ones(5), c=torch.ones(5), **window)
    expected = gae(**STEPS, **window)
    torch.testing.assert_close(advantages, expected)
    torch.testing.assert_close(returns, STEPS["values"] + expected)


OLDER = {**WINDOW, "truncation": (1.0, 1.0)}


def test_v_trace_divides_by_the_probability_of_the_weights_that_acted() -> None:
    # The policy is uniform over two actions, the one that acted chose with 0.5, 1 and 0.25.
    acted = torch.tensor([0.5, 1.0, 0.25]).log()
    batch = rollout([[0, 3]], [4.0], log_prob=acted)
    found = evaluate_rollout(module(), batch, **{**WINDOW, "truncation": (1.5, 1.0)})
    # TD errors of 1 + 0.5·(2, 3, 4) - (1, 2, 3) = 1, 0.5, 0; ratios 1, 0.5, 2; 2 is cut to 1.5.
    assert found["rho"].tolist() == pytest.approx([1.0, 0.5, 1.5])
    assert found["advantages"].tolist() == pytest.approx([1 + 0.25 * 0.25, 0.5, 0.0])
    assert found["returns"].tolist() == pytest.approx([2.0625, 2.25, 3.0])
    # The ratio of the loss is to what acted.
    assert "log_prob" not in found


def test_v_trace_evaluates_again_what_acting_brought() -> None:
    batch = rollout(
        [[0, 2]],
        [8.0],
        log_prob=torch.full((2,), 0.5).log(),
        values=torch.tensor([7.0, 7.0]),
        parameters=torch.ones(2, 2),
    )
    found = evaluate_rollout(module(), batch, **OLDER)
    assert found["values"].tolist() == [1.0, 2.0]
    assert found["parameters"].tolist() == [[0.0, 0.0]] * 2


def test_v_trace_needs_log_probabilities_of_acting() -> None:
    with pytest.raises(PluginError, match=r"Told\.forward_exploration returned none") as failure:
        evaluate_rollout(module(), rollout([[0, 2]], [8.0]), **OLDER)
    assert "advantages=gae" in str(failure.value)


# -- losses ----------------------------------------------------------------------------------------


BOX = spaces.Box(-1, 1, (3,))
ROWS = 64


def test_the_surrogate_by_hand() -> None:
    ratio = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.0], requires_grad=True)
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0])
    loss = losses.clipped_surrogate(ratio, advantages, 0.2)
    # The smaller of ratio·A and clipped·A: 1.2, -1.5, 0.5, -0.8, 2.
    assert loss.item() == pytest.approx(-(1.2 - 1.5 + 0.5 - 0.8 + 2.0) / 5)
    loss.backward()
    # Where the range limits a gain nothing pulls; where it would hide a loss everything does.
    assert ratio.grad is not None
    assert ratio.grad.tolist() == pytest.approx([0.0, 0.2, -0.2, 0.0, -0.4])


def test_value_clipping_by_hand() -> None:
    values = torch.tensor([3.0, 1.2, 3.0], requires_grad=True)
    returns, old = torch.tensor([2.0, 1.0, 4.0]), torch.tensor([1.0, 1.0, 1.0])
    loss = losses.value_loss(values, returns, old, 0.5)
    # Held values 1.5, 1.2, 1.5 have errors 0.25, 0.04, 6.25; free ones 1, 0.04, 1.
    assert loss.item() == pytest.approx((1 + 0.04 + 6.25) / 3)
    loss.backward()
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([2 / 3, 0.4 / 3, 0.0])
    assert losses.value_loss(values, returns, old, 0.0).item() == pytest.approx(2.04 / 3)


def test_advantages_are_brought_to_mean_0_and_deviation_1() -> None:
    found = losses.normalised(torch.tensor([1.0, 2.0, 3.0]))
    assert found.tolist() == pytest.approx([-1.0, 0.0, 1.0])
    alone = torch.tensor([5.0])
    assert losses.normalised(alone).tolist() == [5.0]


def made(space: spaces.Space[Any], seed: int = 0, **options: Any) -> ActorCriticModule:
    torch.manual_seed(seed)
    module = ActorCriticModule(BOX, space, PPOConfig(**options))
    with torch.no_grad():
        for param in module.parameters():
            param += 0.3 * torch.randn_like(param)
    return module


def minibatch(module: ActorCriticModule, *, masked: bool = False, seed: int = 0) -> Batch:
    random = numpy.random.default_rng(seed)
    observations = random.uniform(-1, 1, (ROWS, 3)).astype(numpy.float32)
    parameters, _ = module.network.act(observations)
    mask = None
    if masked:
        mask = random.random((ROWS, parameters.shape[1])) < 0.6
        mask[:, 0] = True
    actions = module.distribution.sample(parameters, random, mask)
    columns = {
        "observations": observations,
        "actions": actions,
        **({} if mask is None else {"action_mask": mask}),
    }
    for name, scale in (("advantages", 1), ("returns", 2), ("values", 1), ("log_prob", 0.5)):
        columns[name] = (scale * random.standard_normal(ROWS)).astype(numpy.float32)
    columns["log_prob"] -= 1
    return Batch(columns)


def test_an_update_ends_where_the_policy_has_moved_too_far() -> None:
    module = made(spaces.Discrete(3))
    batch = minibatch(module)
    out = module.forward_train(batch)
    moved = float(losses.ppo_loss(module, PPOConfig(), batch, out).metrics["approx_kl"])
    for target, stops in ((moved / 2, True), (moved, False)):
        loss = losses.ppo_loss(module, PPOConfig(target_kl=target), batch, out)
        assert loss.stop is not None
        assert bool(loss.stop) is stops
        assert float(loss.metrics["kl_stopped"]) == float(stops)
    assert losses.ppo_loss(module, PPOConfig(), batch, out).stop is None


def test_the_penalty_weighs_the_divergence_from_the_old_policy() -> None:
    module = made(spaces.Discrete(2), kl_coef=0.5)
    module.kl_coef.fill_(0.5)
    batch = minibatch(module).with_columns({"parameters": torch.zeros(ROWS, 2)})
    logits = torch.tensor([[1.0, 0.0]]).repeat(ROWS, 1).requires_grad_()
    out = {"parameters": logits, "values": torch.zeros(ROWS, requires_grad=True)}
    loss = losses.ppo_loss(module, PPOConfig(kl_coef=0.2), batch, out)
    chance = float(torch.tensor(1.0).sigmoid())
    expected = 0.5 * numpy.log(0.5 / chance) + 0.5 * numpy.log(0.5 / (1 - chance))
    assert float(loss.metrics["kl"].detach()) == pytest.approx(expected, abs=1e-6)
    assert float(loss.terms["kl_penalty"].detach()) == pytest.approx(0.5 * expected, abs=1e-6)


# -- module ----------------------------------------------------------------------------------------


IMAGE = spaces.Box(0, 255, (1, 40, 40), numpy.uint8)
USUAL: dict[str, Any] = {"gamma": 0.99, "gae_lambda": 0.95, "bootstrap_truncated": True}


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
        environments, {"default": module}, {"default": feed}, seed=0, steps=feed.steps_per_collect
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
            found = evaluate_rollout(seen.module, batch, **USUAL)
        assert found["log_prob"].numpy() == pytest.approx(expected, abs=1e-5)


def test_they_are_so_with_normalised_observations() -> None:
    seen = played(env=EnvSection(normalize_observation=True), rollouts=3)
    for batch, expected in zip(seen.batches, seen.log_probs, strict=True):
        with torch.no_grad():
            found = evaluate_rollout(seen.module, batch, **USUAL)
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
            evaluate_rollout(seen.module, seen.batches[0], **USUAL) for seen in (whole, pieces)
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
        brought = evaluate_rollout(seen.module, batch, **USUAL)
        whole = evaluate_rollout(seen.module, batch.without(frozenset(extras)), **USUAL)
    torch.testing.assert_close(batch["log_prob"], whole.pop("log_prob"), rtol=1e-4, atol=1e-3)
    assert set(brought) == set(whole)
    for name, column in whole.items():
        torch.testing.assert_close(brought[name], column, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("options", [{"shared_encoder": False}, {"memory": "gru"}], ids=str)
def test_separate_encoders_and_memories_are_evaluated_after_the_rollout(options: Any) -> None:
    seen = played(kind=Pictures, memory_size=8, **options)
    assert "values" not in seen.batches[0]


# -- algorithm -------------------------------------------------------------------------------------


QUIET = {"tracking.enabled": False, "evaluation.episodes": 0}


def learner(kind: Any = PPO, **options: Any) -> Learner:
    given = {"learner.max_grad_norm": 0.0, **options}
    return build_learner(kind, BOX, spaces.Discrete(2), options=given, seed=0)


def random_rollout(rows: int = 32, seed: int = 0) -> Batch:
    random = numpy.random.default_rng(seed)
    ends = numpy.zeros(rows, bool)
    ends[rows // 2 - 1] = True
    half = rows // 2
    return Batch(
        {
            "observations": random.uniform(-1, 1, (rows, 3)).astype(numpy.float32),
            "actions": random.integers(2, size=rows),
            "rewards": random.standard_normal(rows),
            "terminated": ends,
            "truncated": numpy.zeros(rows, bool),
            "fragments": numpy.array([[0, half], [half, rows]]),
            "final_observations": random.uniform(-1, 1, (2, 3)).astype(numpy.float32),
        }
    )


def test_the_first_minibatch_has_a_ratio_of_1() -> None:
    one = learner()
    results = one.update({"default": random_rollout()}, timestep=32)["default"]
    assert results["approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert results["clip_fraction"] == 0.0
    # Advantages are normalised and every ratio is 1: the gains cancel.
    assert float(results["policy_loss"]) == pytest.approx(0.0, abs=1e-6)


def test_the_explained_variance_is_1_for_values_that_are_the_returns() -> None:
    one = learner()
    module = one.modules["default"]
    assert isinstance(module, ActorCriticModule)
    batch = random_rollout()
    with torch.no_grad():
        # All values are 0: nothing is foretold.
        module.network.value_head.linear.weight.zero_()
    results = one.update({"default": batch}, timestep=32)["default"]
    assert float(results["explained_variance"]) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("kl", "expected"), [(0.021, 0.3), (0.02, 0.2), (0.005, 0.2), (0.0049, 0.1)]
)
def test_the_penalty_follows_the_divergence(kl: float, expected: float) -> None:
    coefficient = torch.tensor(0.2)
    adapt(coefficient, torch.tensor(kl), 0.01)
    assert coefficient.item() == pytest.approx(expected)


def test_the_penalty_is_adapted_once_per_update_and_saved() -> None:
    one = learner(kl_coef=0.2, kl_target=1e-9, learning_rate=0.01)
    results = one.update({"default": random_rollout()}, timestep=32, num_iters=3)["default"]
    assert float(results["kl_coef"]) == pytest.approx(0.3)
    other = learner(kl_coef=0.2, kl_target=1e-9, learning_rate=0.01)
    other.set_state(one.get_state())
    results = other.update({"default": random_rollout(seed=1)}, timestep=64, num_iters=3)["default"]
    assert float(results["kl_coef"]) == pytest.approx(0.45)


def test_updates_that_end_early_are_counted() -> None:
    one = learner(target_kl=1e-7, learning_rate=0.01)
    before = {name: one.clone() for name, one in one.modules["default"].state_dict().items()}
    results = one.update({"default": random_rollout()}, timestep=32, num_iters=50)["default"]
    assert int(results["kl_stops"]) == 1
    # The first pass moved it, the second saw that and ended the update before its step.
    assert float(results["kl_stopped"]) == 0.5
    assert any(
        not torch.equal(before[name], now)
        for name, now in one.modules["default"].state_dict().items()
    )
    calm = learner(target_kl=1e3)
    assert int(calm.update({"default": random_rollout()}, timestep=32)["default"]["kl_stops"]) == 0


def test_one_pass_of_ppo_without_more_is_a2c() -> None:
    # With one pass over all rows every ratio is 1, where the surrogate has A2C's gradient.
    module = learner(normalize_advantage=False).modules["default"]
    gradients = []
    for kind in (PPO, A2C):
        one = learner(kind, normalize_advantage=False, gae_lambda=0.9)
        one.modules["default"].load_state_dict(module.state_dict())
        batch = random_rollout().to(torch.device("cpu"), torch.float32)
        with torch.no_grad():
            prepared = one.calls.prepare_batch("default", one.modules["default"], batch, {}, 0, one)
        losses = one.compute_loss(one.forward_train({"default": prepared}), {"default": prepared})
        found = one.compute_gradients(losses)
        names = {param: name for name, param in one.modules["default"].named_parameters()}
        gradients.append({names[param]: gradient for param, gradient in found.items()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-4, atol=1e-6)


class Odd(gymnasium.Env[Any, Any]):
    """Rewards 1, or a NaN in its tenth step; episodes of 7 steps."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, broken: bool = False, actions: Any = None) -> None:
        self.observation_space: Any = spaces.Box(-1.0, 1.0, (2,), numpy.float32)
        self.action_space: Any = spaces.Discrete(2) if actions is None else actions
        self.broken, self.steps = broken, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return numpy.zeros(2, numpy.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        reward = float("nan") if self.broken and self.steps == 10 else 1.0
        return numpy.zeros(2, numpy.float32), reward, self.steps % 7 == 0, False, {}


def short(maker: Any, steps: int = 64, **options: Any) -> Mapping[str, Any]:
    given = {"n_steps": 16, "batch_size": 32, "n_epochs": 2, "sampling.num_envs": 2}
    return run(PPO, maker, steps=steps, options={**QUIET, **given, **options}).metrics


def test_a_run_records_what_people_know(home: Path) -> None:
    from mlflow import MlflowClient

    given = {"n_steps": 16, "batch_size": 32, "sampling.num_envs": 2, "evaluation.episodes": 0}
    done = run(PPO, Odd, steps=64, options=given)
    client = MlflowClient(f"sqlite:///{home / 'mlflow.db'}")
    recorded = client.get_run(done.run_id).data.metrics
    named = {
        "rollout": ("return_mean", "length_mean"),
        "time": ("steps_per_second", "step_seconds", "learn_seconds"),
        "train": (
            "policy_loss",
            "value_loss",
            "entropy",
            "approx_kl",
            "clip_fraction",
            "explained_variance",
            "learning_rate",
        ),
    }
    assert {f"{group}/{name}" for group, names in named.items() for name in names} <= set(recorded)


def test_a_minibatch_larger_than_the_rollout_is_refused_with_its_size() -> None:
    with pytest.raises(RequestError, match=r"batch_size = 64 is larger .* 32 rows"):
        short(Odd, batch_size=64)


def test_rows_that_fill_no_minibatch_make_a_smaller_one() -> None:
    sizes: list[int] = []

    class Watched(PPO):
        def compute_loss_for_module(self, module, config, batch, fwd_out):  # type: ignore[no-untyped-def] # as the hook
            sizes.append(batch.rows)
            return super().compute_loss_for_module(module, config, batch, fwd_out)

    given = {"n_steps": 16, "batch_size": 24, "n_epochs": 2, "sampling.num_envs": 2}
    # On arrays the first minibatch is computed twice.
    given |= {"compute.arrays": "off"}
    run(Watched, Odd, steps=32, options={**QUIET, **given})
    assert sizes == [24, 8, 24, 8]


def test_actions_without_bounds_can_be_drawn_but_not_squashed() -> None:
    endless = spaces.Box(-numpy.inf, numpy.inf, (2,), numpy.float32)
    assert short(lambda: Odd(actions=endless))["train/entropy"] > 0
    with pytest.raises(UnsupportedSpaceError, match="without bounds") as raised:
        short(lambda: Odd(actions=endless), squash=True)
    assert "try: --set squash=false" in str(raised.value)


def test_a_memory_is_not_cut_where_there_is_none() -> None:
    with pytest.raises(ConfigError, match="truncated_bptt needs a recurrent network"):
        short(Odd, truncated_bptt=4)


@pytest.mark.parametrize("kind", ["ppo", "a2c"])
@pytest.mark.parametrize("memory", [{}, {"memory": "gru", "memory_size": 8, "truncated_bptt": 4}])
def test_v_trace_on_policy_learns_what_gae_learns(kind: str, memory: Mapping[str, Any]) -> None:
    """In one process the weights that learn are those that acted: all ratios are 1."""
    weights = []
    for advantages in ("gae", "vtrace"):
        options = {**QUIET, "algorithm.advantages": advantages, "n_steps": 32, **memory}
        found = run(kind, "CartPole-v1", steps=512, seed=1, options={**options, "gae_lambda": 0.9})
        weights.append(found.module.state_dict())
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=0, atol=1e-5)


# -- learning --------------------------------------------------------------------------------------


def test_the_preset_for_cartpole_learns_it() -> None:
    options = {"run.preset": "cartpole", "tracking.enabled": False, "evaluation.every": 0}
    result = run(PPO, steps=20_000, seed=1, options=options)
    # Drawing actions at random earns about 20.
    assert result.metrics["eval/return_mean"] >= 150.0


def test_a2c_learns_cartpole_as_well() -> None:
    result = run(A2C, steps=20_000, seed=1, options={"tracking.enabled": False})
    assert result.metrics["eval/return_mean"] >= 150.0


def earned_in_the_maze(memory: str) -> float:
    """The mean return of the T-maze, in which only the sign at the start says where to turn."""
    options = {
        "tracking.enabled": False,
        "checkpoint.save_environments": False,
        "evaluation.episodes": 320,
        "sampling.num_envs": 8,
        "n_steps": 16,
        "batch_size": 64,
        "n_epochs": 10,
        "learning_rate": 0.003,
        "memory": memory,
        "memory_size": 16,
    }
    return run(PPO, t_maze, steps=8_000, seed=1, options=options).metrics["eval/return_mean"]


@pytest.mark.long
def test_a_memory_solves_what_nobody_without_one_can() -> None:
    assert earned_in_the_maze("lstm") > 0.9
    assert abs(earned_in_the_maze("none")) < 0.3
