"""DQN in the hands of the learner: targets in time, priorities, noise."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from gymnasium import spaces
from rlplug_dqn import DQN, DQNConfig
from rlplug_dqn.losses import td_targets

from rlplug import Batch
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


def test_the_priority_of_a_row_is_how_far_its_value_is_off() -> None:
    one = learner()
    module = one.modules["default"]
    batch = experience(indices=numpy.arange(32))
    values = module.forward_train(batch)["q_values"].detach()
    taken = values.gather(1, batch["actions"][:, None])[:, 0]
    wanted = (taken - torch.as_tensor(td_targets(module, batch))).abs()
    one.update({"default": batch}, timestep=1)
    torch.testing.assert_close(one.rows["default"]["priority"], wanted)


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
