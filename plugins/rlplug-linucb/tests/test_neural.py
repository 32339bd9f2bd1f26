"""Neural LinUCB: a network trained by gradient, arms regressed on it in closed form."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from gymnasium import spaces
from rlplug_linucb import (
    Layout,
    LinUCBConfig,
    LinUCBModule,
    NeuralLinUCB,
    NeuralLinUCBConfig,
    NeuralLinUCBModule,
)
from rlplug_linucb.neural import Kept, Window
from torch import Tensor

from rlplug import ActInput, Batch, build_learner
from rlplug.bandits import ClassificationBandit
from rlplug.errors import RunFailedError
from rlplug.learner import Learner

CONTEXT = spaces.Box(-1, 1, (3,), numpy.float64)
FOUR = spaces.Discrete(4)


def learner(
    name: str = "neural-linucb",
    space: spaces.Space[Any] = CONTEXT,
    arms: int = 4,
    **options: Any,
) -> Learner:
    return build_learner(name, space, spaces.Discrete(arms), options=options, seed=0)


def module_of(one: Learner) -> NeuralLinUCBModule:
    module = one.modules["default"]
    assert isinstance(module, NeuralLinUCBModule)
    return module


def experience(count: int, seed: int = 0, **columns: Any) -> Batch:
    random = numpy.random.default_rng(seed)
    return Batch(
        {
            "observations": random.uniform(-1, 1, (count, 3)),
            "actions": random.integers(0, 4, count),
            "rewards": random.standard_normal(count),
            **columns,
        }
    )


def regressed(module: NeuralLinUCBModule, batches: list[Batch]) -> LinUCBModule:
    """LinUCB alone, on the features that the module has now of all these rows."""
    one = LinUCBModule(module.layout, LinUCBConfig(alpha=0.3, l2_lambda=0.1))
    for batch in batches:
        features = module.read(batch.array("observations").astype(numpy.float32)).context
        one.update(features, batch.array("actions"), batch.array("rewards"))
    return one


def assert_same(module: NeuralLinUCBModule, other: LinUCBModule) -> None:
    probes = numpy.random.default_rng(9).uniform(-1, 1, (6, 3)).astype(numpy.float32)
    for mine, wanted in zip(
        module.score(probes), other.score(module.read(probes).context), strict=True
    ):
        assert mine == pytest.approx(wanted, abs=1e-5)


def test_one_update_moves_the_network_by_gradient_and_the_regressions_in_closed_form() -> None:
    one = learner()
    module = module_of(one)
    before = [weight.clone() for weight in module.network.parameters()]
    batch = experience(8)
    metrics = one.update({"default": batch}, timestep=8)["default"]
    assert all(
        not torch.equal(old, new)
        for old, new in zip(before, module.network.parameters(), strict=True)
    )
    assert metrics["loss"] > 0.0
    assert_same(module, regressed(module, [batch]))


def test_between_refits_the_regressions_stand_on_the_network_of_the_last_one() -> None:
    one = learner(refit_every=1_000)
    module = module_of(one)
    context = numpy.eye(3, dtype=numpy.float32)
    first = module.read(context).context
    batches = [experience(8, seed=seed) for seed in range(10)]
    for index, batch in enumerate(batches):
        one.update({"default": batch}, timestep=8 * index + 8)
    assert module.read(context).context.tolist() == first.tolist()
    assert_same(module, regressed(module, batches))


def test_a_refit_regresses_the_window_on_what_the_network_is_now() -> None:
    one = learner(refit_every=80, buffer_size=40)
    module = module_of(one)
    batches = [experience(8, seed=seed) for seed in range(10)]
    for index, batch in enumerate(batches):
        one.update({"default": batch}, timestep=8 * index + 8)
    context = torch.eye(3)
    with torch.no_grad():
        hidden = module.network.body(context)
    features = module.read(context).context
    assert features[:, :-1] == pytest.approx(hidden.numpy(), abs=1e-5)
    assert features[:, -1].tolist() == [1.0, 1.0, 1.0]
    # The window holds the last 40 rows: five batches.
    assert_same(module, regressed(module, batches[5:]))
    assert module.estimates().A[..., -1, -1].sum() == pytest.approx(40.0)


def test_the_loss_is_the_weighted_squared_error_of_the_chosen_arms() -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    batch = Batch(
        {
            "observations": torch.zeros(2, 3),
            "actions": torch.tensor([1, 0]),
            "rewards": torch.tensor([0.0, 2.0]),
            "weights": torch.tensor([1.0, 3.0]),
        }
    )
    # (1 · 2² + 3 · 1²) / 2
    assert loss_of(batch, values) == 3.5
    # Logits 2 and 3 for labels 0 and 1: (1 · ln(1 + e²) + 3 · ln(1 + e⁻³)) / 2
    batch = Batch({**batch, "rewards": torch.tensor([0.0, 1.0])})
    expected = (numpy.log1p(numpy.exp(2)) + 3 * numpy.log1p(numpy.exp(-3))) / 2
    assert loss_of(batch, values, loss="cross_entropy") == pytest.approx(expected)


def loss_of(batch: Batch, values: Tensor, **options: Any) -> float:
    config = NeuralLinUCBConfig(**options)
    module, outputs = NeuralLinUCBModule(CONTEXT, 2, config), {"values": values}
    return float(NeuralLinUCB(config).compute_loss_for_module(module, config, batch, outputs))


def test_cross_entropy_refuses_rewards_that_are_no_probabilities() -> None:
    batch = experience(2, rewards=torch.tensor([1.0, 1.5]))
    with pytest.raises(RunFailedError, match=r"1\.5, .* takes 0 to 1"):
        learner(loss="cross_entropy").update({"default": batch}, timestep=2)


def kept(*numbers: float) -> Kept:
    """Rows whose columns all hold these numbers."""
    column = torch.tensor(numbers)
    return Kept(column[:, None].expand(-1, 3), column.long(), column, column)


def test_the_window_keeps_the_last_rows_and_draws_no_others() -> None:
    window = Window(CONTEXT, 4, seed=0)
    window.add(kept(0, 1, 2))
    assert window.rows().labels.tolist() == [0, 1, 2]
    assert set(window.draw((50, 2)).labels.flatten().tolist()) == {0, 1, 2}
    window.add(kept(3, 4, 5))
    assert sorted(window.rows().labels.tolist()) == [2, 3, 4, 5]
    window.add(kept(*range(6, 15)))
    assert sorted(window.rows().labels.tolist()) == [11, 12, 13, 14]
    drawn = window.draw((50, 2))
    assert set(drawn.actions.flatten().tolist()) == {11, 12, 13, 14}
    assert drawn.observations[..., 0].tolist() == drawn.labels.tolist()


@pytest.mark.parametrize(
    ("space", "actions", "reason"),
    [
        (CONTEXT, CONTEXT, "needs Discrete actions, found Box"),
        (CONTEXT, spaces.Discrete(1), "needs two arms, found one"),
        (CONTEXT, spaces.Discrete(4, start=1), "counts arms from 0"),
        (spaces.Dict(arms=spaces.Box(-1, 1, (3, 2))), FOUR, "arms as a Box of shape (4, features)"),
        (spaces.Dict(image=CONTEXT), FOUR, "image"),
        (spaces.Tuple([CONTEXT, CONTEXT]), FOUR, "found Tuple"),
        (spaces.Text(5), FOUR, "no encoder for the observations"),
    ],
    ids=str,
)
def test_what_cannot_be_handled_is_refused_with_the_reason(
    space: spaces.Space[Any], actions: spaces.Space[Any], reason: str
) -> None:
    said = NeuralLinUCB().supports(space, actions)
    assert said is not None
    assert reason in said


FEATURED = spaces.Dict(
    context=spaces.Box(-1, 1, (2,), numpy.float64),
    arms=spaces.Box(-1, 1, (4, 3), numpy.float64),
    action_mask=spaces.MultiBinary(4),
)


def featured(count: int, seed: int = 0) -> dict[str, Any]:
    random = numpy.random.default_rng(seed)
    return {
        "context": random.uniform(-1, 1, (count, 2)),
        "arms": random.uniform(-1, 1, (count, 4, 3)),
    }


def test_featured_arms_have_an_input_each_and_share_a_regression() -> None:
    module = NeuralLinUCBModule(FEATURED, 4, NeuralLinUCBConfig(net_arch=(8,)))
    seen = featured(5)
    features = module.read(seen).arms
    assert features.shape == (5, 4, 9)
    side_by_side = numpy.hstack([seen["context"], seen["arms"][:, 2]]).astype(numpy.float32)
    with torch.no_grad():
        hidden = module.network.body(torch.from_numpy(side_by_side))
    assert features[:, 2, :-1] == pytest.approx(hidden.numpy(), abs=1e-5)
    assert (features[..., -1] == 1.0).all()
    assert module.estimates().A.shape == (9, 9)
    tensors = {name: torch.from_numpy(part) for name, part in seen.items()}
    assert module.read(tensors).arms == pytest.approx(features)


@pytest.mark.parametrize("refit_every", [1_000, 16])
def test_featured_arms_are_learned_from_the_features_of_the_chosen_one(refit_every: int) -> None:
    one = learner(space=FEATURED, refit_every=refit_every, net_arch=[8])
    module, random = module_of(one), numpy.random.default_rng(1)
    shares = [(featured(8, seed), random.integers(0, 4, 8), random.random(8)) for seed in range(2)]
    for index, (seen, arms, rewards) in enumerate(shares):
        seen["arms"][range(8), (arms + 1) % 4] = numpy.nan
        batch = Batch({"observations": seen, "actions": arms, "rewards": rewards})
        one.update({"default": batch}, timestep=8 * index + 8)
    alone = LinUCBModule(Layout(num_arms=4, arm_dim=9), LinUCBConfig(alpha=0.3, l2_lambda=0.1))
    for seen, arms, rewards in shares:
        alone.update(module.read(seen).arms, arms, rewards)
    assert module.estimates().theta == pytest.approx(alone.estimates().theta, abs=1e-4)
    assert module.estimates().b == pytest.approx(alone.estimates().b, abs=1e-4)


def test_absent_featured_arms_may_hold_anything() -> None:
    module, seen = NeuralLinUCBModule(FEATURED, 4), featured(6)
    mask = numpy.ones((6, 4), dtype=numpy.int8)
    mask[:, 1] = 0
    seen["arms"][:, 1] = numpy.nan
    act = ActInput({**seen, "action_mask": mask}, random=numpy.random.default_rng(0))
    assert 1 not in module.forward_exploration(act).actions
    assert 1 not in module.forward_inference(act).actions
    assert numpy.isneginf(module.score({**seen, "action_mask": mask}).ucb[:, 1]).all()


def mean_reward(name: str, steps: int, every: int) -> float:
    """Over so many decisions on the rings, the update after every few of them."""
    problem = ClassificationBandit(table="rings")
    one = learner(name, space=problem.observation_space, arms=problem.num_arms)
    random = numpy.random.default_rng(0)
    rounds = problem.start(0).draw(random, steps, 1)
    module, earned = one.modules["default"], []
    for start in range(0, steps, every):
        rows = slice(start, start + every)
        contexts, pays = rounds.observations[rows, 0], rounds.rewards[rows, 0]
        arms = module.forward_exploration(ActInput(contexts, random=random)).actions
        rewards = pays[numpy.arange(every), arms]
        columns = {"observations": contexts, "actions": arms, "rewards": rewards}
        one.update({"default": Batch(columns)}, timestep=start + every)
        earned.append(rewards.mean())
    return float(numpy.mean(earned))


def test_it_beats_linucb_by_far_where_rewards_are_not_linear() -> None:
    neural = mean_reward("neural-linucb", 4_000, 4)
    linear = mean_reward("linucb", 4_000, 4)
    assert 0.25 < linear < 0.5
    assert neural > linear + 0.3
