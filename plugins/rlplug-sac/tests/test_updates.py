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


@pytest.mark.parametrize("actions", [TWO, THREE], ids=["box", "discrete"])
def test_losses_of_every_optimizer_are_reported(actions: Any) -> None:
    found = step(learner(actions=actions), actions=actions)
    wanted = {"loss/critic", "loss/actor", "loss/temperature", "q_mean", "entropy", "ent_coef"}
    assert wanted <= set(found)
    total = sum(float(found[f"loss/{name}"]) for name in ("critic", "actor", "temperature"))
    assert float(found["loss"]) == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize(("target", "falls"), [(-50.0, True), (50.0, False)])
def test_the_temperature_follows_the_entropy(target: float, falls: bool) -> None:
    one = learner(target_entropy=target, learning_rate=0.01)
    for at in range(1, 11):
        step(one, at)
    # Adam moves a logarithm of 0 by about its learning rate ten times.
    now = one.modules["default"].temperature().item()
    assert now == pytest.approx(numpy.exp(-0.1 if falls else 0.1), rel=1e-3)


def test_a_fixed_temperature_stays() -> None:
    one = learner(ent_coef=0.25)
    for at in range(1, 4):
        step(one, at)
    assert one.modules["default"].temperature().item() == 0.25


@pytest.mark.parametrize("interval", [1, 3])
def test_targets_move_by_tau_of_the_way_at_every_interval(interval: int) -> None:
    one = learner(tau=0.25, target_update_interval=interval, learning_rate=0.01)
    module = one.modules["default"]
    for at in range(1, 7):
        before = copied(module.target.model)
        step(one, at)
        pairs = zip(
            before, module.critics.parameters(), module.target.model.parameters(), strict=True
        )
        for old, source, now in pairs:
            wanted = old + 0.25 * (source - old) if at % interval == 0 else old
            torch.testing.assert_close(now, wanted.detach())


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


def test_a_delayed_actor_resumes_where_it_was() -> None:
    whole, first, second = (learner(TD3, policy_delay=3) for _ in range(3))
    for at in range(1, 5):
        step(whole, at)
        step(first, at)
    second.set_state(first.get_state())
    for at in range(5, 8):
        step(whole, at)
        step(second, at)
    for one, other in zip(
        whole.modules["default"].state_dict().values(),
        second.modules["default"].state_dict().values(),
        strict=True,
    ):
        assert torch.equal(one, other)


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


@pytest.mark.parametrize("kind", [SAC, TD3])
def test_the_norm_of_the_gradients_of_each_optimizer_is_its_own(kind: Any) -> None:
    both = [learner(kind, arrays=arrays) for arrays in ("auto", "off")]
    for at in range(1, 5):
        ours, torchs = (step(one, at) for one in both)
        for name in [name for name in torchs if name.startswith("grad_norm")]:
            assert float(ours[name]) == pytest.approx(float(torchs[name]), rel=1e-3), name
    assert both[0].engines["default"][0] == "arrays"


def test_the_noise_of_an_update_is_part_of_the_state() -> None:
    one = learner()
    step(one, 1)
    kept = one.get_state()
    first = step(one, 2)
    one.set_state(kept)
    assert float(step(one, 2)["loss/actor"]) == float(first["loss/actor"])
    assert float(step(one, 2)["loss/actor"]) != float(first["loss/actor"])
