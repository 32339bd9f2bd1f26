"""SAC and TD3 in the hands of the learner: three optimizers, targets in time, delays."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from gymnasium import spaces
from rlplug_sac import SAC, TD3
from torch import Tensor, nn

from rlplug import Batch
from rlplug.config.sections import ComputeSection, LearnerSection
from rlplug.hooks.calls import HookCalls
from rlplug.learner import Learner
from rlplug.registry import Participant, describe

SEEN = spaces.Box(-1, 1, (4,), numpy.float32)
TWO = spaces.Box(-2, 2, (2,), numpy.float32)
THREE = spaces.Discrete(3)


def learner(
    kind: Any = SAC,
    actions: Any = TWO,
    ids: tuple[str, ...] = ("default",),
    learning: dict[str, Any] | None = None,
    arrays: str = "auto",
    **options: Any,
) -> Learner:
    config = kind.Config(**{"net_arch": (16, 8), **options})
    calls = HookCalls(Participant(describe(kind.__name__.lower(), kind), kind(config), config))
    made = Learner(
        calls,
        dict.fromkeys(ids, (SEEN, actions)),
        seed=0,
        learning=LearnerSection(**(learning or {})),
        compute=ComputeSection(device="cpu", arrays=arrays),
    )
    made.build()
    return made


def experience(seed: int = 0, count: int = 32, actions: Any = TWO, **columns: Any) -> Batch:
    random = numpy.random.default_rng(seed)
    taken = random.integers(3, size=count)
    given = {
        "observations": random.standard_normal((count, 4), numpy.float32),
        "next_observations": random.standard_normal((count, 4), numpy.float32),
        "actions": taken if actions is THREE else random.uniform(-2, 2, (count, 2)).astype("f"),
        "rewards": random.standard_normal(count, numpy.float32),
        "terminated": random.random(count) < 0.3,
        "truncated": random.random(count) < 0.3,
        "discounts": numpy.full(count, 0.9, numpy.float32),
    }
    return Batch({**given, **columns})


def copied(network: nn.Module) -> list[Tensor]:
    return [one.detach().clone() for one in network.parameters()]


def moved(before: list[Tensor], network: nn.Module) -> bool:
    return any(not torch.equal(one, now) for one, now in zip(before, copied(network), strict=True))


def step(one: Learner, at: int = 1, **more: Any) -> dict[str, Any]:
    return dict(one.update({"default": experience(at, **more)}, timestep=at)["default"])


@pytest.mark.parametrize(
    ("options", "names"),
    [({}, ["critic", "actor", "temperature"]), ({"ent_coef": 0.2}, ["critic", "actor"])],
)
def test_every_optimizer_has_what_it_moves(options: dict[str, Any], names: list[str]) -> None:
    one = learner(learning_rate=0.02, **options)
    held = dict(one.get_optimizers_for_module("default"))
    assert list(held) == names
    assert {held[name].param_groups[0]["lr"] for name in names} == {0.02}
    module = one.modules["default"]
    parts = {"critic": module.critics, "actor": module.actor}
    for name, part in parts.items():
        assert list(map(id, held[name].param_groups[0]["params"])) == list(
            map(id, part.parameters())
        )


@pytest.mark.parametrize(("target", "falls"), [(-50.0, True), (50.0, False)])
def test_the_temperature_follows_the_entropy(target: float, falls: bool) -> None:
    one = learner(target_entropy=target, learning_rate=0.01)
    for at in range(1, 11):
        step(one, at)
    # Adam moves a logarithm of 0 by about its learning rate ten times.
    now = one.modules["default"].temperature().item()
    assert now == pytest.approx(numpy.exp(-0.1 if falls else 0.1), rel=1e-3)


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_actor_and_targets_of_td3_move_every_policy_delay_updates(delay: int) -> None:
    one = learner(TD3, policy_delay=delay, tau=0.25)
    module = one.modules["default"]
    parts = (module.critics, module.actor, module.actor_target.model, module.critics_target.model)
    found = []
    for at in range(1, 7):
        before = [copied(part) for part in parts]
        result = step(one, at)
        found.append([moved(old, part) for old, part in zip(before, parts, strict=True)])
        assert ("loss/actor" in result) == (at % delay == 0)
        assert "skipped" not in result
    assert found == [[True, *[at % delay == 0] * 3] for at in range(1, 7)]


@pytest.mark.parametrize("kind", [SAC, TD3])
def test_critics_get_nearer_to_targets_that_stand_still(kind: Any) -> None:
    one = learner(kind, learning_rate=0.01, tau=1e-9)
    terminated = numpy.ones(32, bool)
    losses = [
        float(
            one.update({"default": experience(terminated=terminated)}, timestep=at)["default"][
                "loss/critic"
            ]
        )
        for at in range(1, 151)
    ]
    assert losses[-1] < 0.1 * losses[0]


@pytest.mark.parametrize("kind", [SAC, TD3])
def test_optimizers_may_act_in_turn(kind: Any) -> None:
    one = learner(kind, learning={"optimizers": "in_turn"})
    module = one.modules["default"]
    before = [copied(module.critics), copied(module.actor)]
    for at in range(1, 4):
        found = step(one, at)
        assert numpy.isfinite(float(found["loss/critic"]))
    assert moved(before[0], module.critics)
    assert moved(before[1], module.actor)
