"""DQN in the hands of the learner: targets in time, priorities, noise."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from gymnasium import spaces
from rlplug_dqn import DQN, DQNConfig
from rlplug_dqn.losses import td_targets
from torch import Tensor

from rlplug import Batch, Loss
from rlplug.config.sections import ComputeSection, LearnerSection
from rlplug.hooks.calls import HookCalls
from rlplug.learner import Learner
from rlplug.registry import Participant, describe

SEEN = spaces.Box(-1, 1, (4,), numpy.float32)
THREE = spaces.Discrete(3)


def learner(compute: Any = None, ids: tuple[str, ...] = ("default",), **options: Any) -> Learner:
    config = DQNConfig(**{"net_arch": (16, 8), **options})
    calls = HookCalls(Participant(describe("dqn", DQN), DQN(config), config))
    made = Learner(
        calls,
        dict.fromkeys(ids, (SEEN, THREE)),
        seed=0,
        learning=LearnerSection(max_grad_norm=10.0),
        compute=ComputeSection(device="cpu", **(compute or {})),
    )
    made.build()
    return made


def experience(seed: int = 0, count: int = 32, **columns: Any) -> Batch:
    random = numpy.random.default_rng(seed)
    given = {
        "observations": random.standard_normal((count, 4), numpy.float32),
        "next_observations": random.standard_normal((count, 4), numpy.float32),
        "actions": random.integers(3, size=count),
        "rewards": random.standard_normal(count, numpy.float32) * 3,
        "terminated": random.random(count) < 0.3,
        "truncated": random.random(count) < 0.3,
        "discounts": numpy.where(random.random(count) < 0.5, 0.99, 0.97).astype(numpy.float32),
    }
    return Batch({**given, **columns})


def gradients(one: Learner, batch: Batch) -> tuple[Loss, dict[str, Tensor]]:
    """The loss of a batch, and the gradients of all parameters."""
    module = one.modules["default"]
    batch = batch.to(one.device, one.dtype)
    with torch.no_grad():
        batch = one.calls.prepare_batch("default", module, batch, {}, 1, one)
    offered = "default", module, batch, module.forward_train(batch), ("default",), one
    answers = one.calls.results("compute_loss_for_module", offered)
    ((_, loss),) = answers
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(loss.value, list(named.values()))
    return loss, dict(zip(named, found, strict=True))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"loss": "mse", "double": True},
        {"dueling": True, "double": True},
        {"distributional": True, "v_min": -4.0, "v_max": 4.0},
        {"quantile": True, "n_quantiles": 16},
        {"noisy": True, "dueling": True, "distributional": True, "double": True},
    ],
    ids=str,
)
def test_every_variant_gets_nearer_to_targets_that_stand_still(options: dict[str, Any]) -> None:
    one = learner(target_update_interval=10**6, learning_rate=0.01, **options)
    batch = experience()
    losses = [
        float(one.update({"default": batch}, timestep=step)["default"]["loss"])
        for step in range(1, 151)
    ]
    best = float(torch.special.entr(torch.as_tensor(targets_of(one, batch))).sum(-1).mean())
    lowest = best if options.get("distributional") else 0.0
    assert sum(losses[-10:]) / 10 - lowest < 0.5 * (losses[0] - lowest)


def targets_of(one: Learner, batch: Batch) -> Any:
    return td_targets(one.modules["default"], batch)


def same(first: torch.nn.Module, second: torch.nn.Module) -> bool:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def test_the_target_is_copied_exactly_by_the_first_update_after_the_interval() -> None:
    one = learner(target_update_interval=10, learning_rate=0.01)
    module = one.modules["default"]
    copied = []
    for step in (4, 8, 12, 16, 19, 21):
        one.update({"default": experience(step)}, timestep=step)
        copied.append(same(module.target.model, module.network))
    # 10 is crossed by the update at 12, and 20 by the one at 21.
    assert copied == [False, False, True, False, False, True]


def test_with_tau_the_target_moves_by_that_share_after_every_update() -> None:
    one = learner(tau=0.25, learning_rate=0.01)
    module = one.modules["default"]
    before = module.target.model.head.advantage[-1].bias.clone()
    one.update({"default": experience()}, timestep=1)
    after, network = module.target.model.head.advantage[-1].bias, module.head.advantage[-1].bias
    torch.testing.assert_close(after, before + 0.25 * (network.detach() - before))
    assert not torch.equal(after, before)


@pytest.mark.parametrize(
    "options", [{}, {"dueling": True}, {"distributional": True}, {"quantile": True}], ids=str
)
def test_priorities_come_back_with_their_rows(options: dict[str, Any]) -> None:
    one = learner(prioritized=True, **options)
    indices = numpy.arange(100, 132)
    weights = numpy.linspace(0.1, 1.0, 32, dtype=numpy.float32)
    one.update({"default": experience(indices=indices, weights=weights)}, timestep=1)
    rows = one.rows["default"]
    assert rows["indices"].tolist() == indices.tolist()
    assert rows["priority"].shape == (32,)
    assert bool((rows["priority"] >= 0).all())


def test_the_priority_of_a_row_is_how_far_its_value_is_off() -> None:
    one = learner()
    module = one.modules["default"]
    batch = experience(indices=numpy.arange(32))
    values = module.forward_train(batch)["q_values"].detach()
    taken = values.gather(1, batch["actions"][:, None])[:, 0]
    wanted = (taken - torch.as_tensor(td_targets(module, batch))).abs()
    one.update({"default": batch}, timestep=1)
    torch.testing.assert_close(one.rows["default"]["priority"], wanted)


def test_weights_scale_the_losses_of_their_rows() -> None:
    one = learner()
    batch = experience()
    half = batch.with_columns({"weights": numpy.full(32, 0.5, numpy.float32)})
    whole, halved = gradients(one, batch)[0], gradients(one, half)[0]
    assert halved.value.item() == pytest.approx(0.5 * whole.value.item())


def test_noise_is_drawn_for_every_update() -> None:
    one = learner(noisy=True)
    module = one.modules["default"]
    drawn = []
    for step in (1, 2, 3):
        one.update({"default": experience()}, timestep=step)
        drawn.append(module.network.body.hidden[0].noise_in.clone())
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])


def test_the_learning_rate_and_the_epsilon_of_adam_are_options() -> None:
    one = learner(learning_rate=0.03, adam_eps=1e-4)
    group = one.get_optimizer().param_groups[0]
    assert (group["lr"], group["eps"]) == (0.03, 1e-4)


def test_an_addon_can_build_its_own_loss_on_the_values() -> None:
    one = learner()
    module = one.modules["default"]
    out = module.forward_train(experience())
    assert set(out) == {"outputs", "q_values"}
    assert out["q_values"].shape == (32, 3)
    assert out["q_values"].requires_grad
    with pytest.raises(KeyError):
        out["values"]
