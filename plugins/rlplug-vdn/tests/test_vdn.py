"""VDN and QMIX: values of teams and their targets by hand, what one agent is, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces
from rlplug_vdn import Mixer, TeamModule, VDNConfig
from rlplug_vdn.losses import team_loss, team_targets

import rlplug
from rlplug import Batch
from rlplug.envs.agents.team import stored_space
from rlplug.errors import ConfigError

OBSERVATIONS, ACTIONS = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)


def made(state: bool = False, **options: Any) -> TeamModule:
    """A team of two whose agents value the actions with 1 and 3, and in the target with 2 and 5."""
    config = VDNConfig(net_arch=(4,), **options)
    space = stored_space(OBSERVATIONS, ACTIONS, 2, OBSERVATIONS if state else None)
    module = TeamModule(OBSERVATIONS, ACTIONS, config, 0, space)
    with torch.no_grad():
        for network, values in ((module.network, (1.0, 3.0)), (module.target, (2.0, 5.0))):
            *_, bias = [parameter.zero_() for parameter in network.parameters()]
            bias.copy_(torch.tensor(values))
    return module


def observed(present: list[list[int]], masks: Any = None) -> dict[str, Any]:
    rows = len(present)
    return {
        "observation": torch.zeros(rows, 2, 2),
        "present": torch.tensor(present),
        "action_mask": torch.ones(rows, 2, 2) if masks is None else torch.tensor(masks),
        "state": torch.zeros(rows, 2),
    }


def batch(present: list[list[int]], terminated: list[bool], masks: Any = None) -> Batch:
    rows = len(present)
    following = observed(present, masks)
    return Batch(
        {
            "observations": observed(present),
            "next_observations": following,
            "next_action_mask": following["action_mask"],
            "actions": torch.tensor([[0, 1]] * rows),
            "rewards": torch.ones(rows),
            "terminated": torch.tensor(terminated),
            "discounts": torch.full((rows,), 0.5),
        }
    )


def test_a_target_is_the_reward_and_the_sum_of_the_best_values() -> None:
    allowed, second_barred = [[1, 1], [1, 1]], [[1, 1], [1, 0]]
    rows = batch(
        [[1, 1], [1, 0], [1, 1], [1, 1]],
        [False, False, True, False],
        [allowed, allowed, allowed, second_barred],
    )
    # 1 + 0.5 (5 + 5), 1 + 0.5 * 5, 1, and 1 + 0.5 (5 + 2).
    assert team_targets(made(), rows, 0.9).tolist() == [6.0, 3.5, 1.0, 4.5]


def test_with_double_the_online_network_chooses() -> None:
    module = made(double=True)
    with torch.no_grad():
        list(module.network.parameters())[-1].copy_(torch.tensor([3.0, 1.0]))
    assert team_targets(module, batch([[1, 1]], [False]), 0.9).tolist() == [3.0]


def test_the_loss_is_that_of_what_the_team_did() -> None:
    config = VDNConfig(loss="mse")
    module, rows = made(), batch([[1, 1], [1, 0]], [False, False])
    rows = rows.with_columns({"targets": torch.tensor([6.0, 3.5])})
    with torch.no_grad():
        loss = team_loss(module, config, rows, module.forward_train(rows))
    # The values of actions 0 and 1 are 1 + 3, and 1 where the second agent is absent.
    assert float(loss.value) == pytest.approx((2.0**2 + 2.5**2) / 2)
    assert loss.rows["priority"].tolist() == [2.0, 2.5]


def test_a_mixing_network_grows_with_every_agent() -> None:
    mixer = Mixer(OBSERVATIONS, 2, 1)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.zero_()
        mixer.weights.bias.copy_(torch.tensor([-1.0, 2.0]))
        mixer.bias.bias.fill_(0.5)
        mixer.last_weights.bias.fill_(-3.0)
        last: Any = mixer.last_bias[-1]
        last.bias.fill_(0.25)
    # 3 (1 * 1 + 2 * 1 + 0.5) + 0.25: weights count without their sign.
    mixed = mixer(torch.ones(1, 2), torch.zeros(1, 2))
    assert mixed.tolist() == pytest.approx([10.75])
    torch.manual_seed(0)
    drawn = Mixer(OBSERVATIONS, 3, 8)
    values = torch.randn(20, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(drawn(values, torch.randn(20, 2)).sum(), values)
    assert (gradient >= 0).all()


def test_qmix_mixes_with_the_state_of_the_environment() -> None:
    module = made(state=True, mixing="qmix", mixing_width=3)
    values = torch.tensor([[1.0, 3.0]])
    here, there = observed([[1, 1]]), observed([[1, 1]])
    there["state"] = torch.ones(1, 2)
    assert module.total(values, here).tolist() != module.total(values, there).tolist()
    alone = observed([[1, 0]])
    other = torch.tensor([[1.0, 7.0]])
    assert module.total(values, alone).tolist() == module.total(other, alone).tolist()


def test_one_agent_is_a_team_of_one() -> None:
    module = TeamModule(OBSERVATIONS, ACTIONS, VDNConfig(net_arch=(4,)), 0, OBSERVATIONS)
    rows = Batch({"observations": torch.zeros(5, 2)})
    assert module.forward_train(rows)["q_values"].shape == (5, 2)
    mixed = VDNConfig(net_arch=(4,), mixing="qmix")
    module = TeamModule(OBSERVATIONS, ACTIONS, mixed, 0, OBSERVATIONS)
    assert module.forward_train(rows)["utilities"].shape == (5, 2)


def test_options_for_the_values_of_one_agent_are_unknown() -> None:
    with pytest.raises(ConfigError, match="distributional   unknown option"):
        rlplug.run("vdn", "CartPole-v1", steps=64, options={"algorithm.distributional": True})
