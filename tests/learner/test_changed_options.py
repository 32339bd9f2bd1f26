"""Options that are set while a learner learns: what optimizers take over of them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import LambdaLR, SequentialLR, StepLR

import rlplug
from rlplug import Batch
from rlplug.errors import RequestError

ONE = {"default": Batch({"x": torch.ones(1)})}
FALLING = [[0, 1.0], [10, 0.0]]


def rates(learner: Any, name: str = "default") -> list[float]:
    return [group["lr"] for group in learner.get_optimizer(name).param_groups]


def halves(self: Any, module: Any, config: Any) -> Any:
    return SGD([{"params": [module.weight], "lr": config.learning_rate / 2}], lr=1.0)


def test_a_learning_rate_is_in_force_from_the_next_update_on(make: Any) -> None:
    learner = make(configure_optimizers_for_module=halves, options={"learning_rate": 1.0})
    assert rates(learner) == [0.5]
    learner.set_options("default", {"learning_rate": 0.25})
    assert float(learner.update(ONE, timestep=1)["default"]["learning_rate"]) == 0.125
    assert rates(learner) == [0.125]
    # A schedule, and a number again.
    learner.set_options("default", {"learning_rate": FALLING})
    assert rates(learner) == [pytest.approx(0.45)]
    learner.update(ONE, timestep=5)
    assert rates(learner) == [0.25]
    learner.set_options("default", {"learning_rate": 0.5})
    learner.update(ONE, timestep=8)
    assert rates(learner) == [0.25]


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("arrays", ["off", "auto"])
def test_dqn_stands_still_at_a_rate_of_zero_alone_or_beside_others(count: int, arrays: str) -> None:
    spaces = gymnasium.spaces.Box(-1, 1, (4,)), gymnasium.spaces.Discrete(2)
    learner = rlplug.build_learner(
        "dqn",
        *spaces,
        seed=1,
        modules={f"m{index}": spaces for index in range(1, count)},
        options={"compute.arrays": arrays},
    )
    random = numpy.random.default_rng(0)

    def weights(name: str) -> torch.Tensor:
        return nn.utils.parameters_to_vector(learner.modules[name].network.parameters()).clone()

    def updated() -> list[bool]:
        before = {name: weights(name) for name in learner.modules}
        batches = {
            name: Batch(
                {
                    "observations": random.random((8, 4), dtype=numpy.float32),
                    "next_observations": random.random((8, 4), dtype=numpy.float32),
                    "actions": random.integers(2, size=8),
                    "rewards": random.random(8, dtype=numpy.float32),
                    "terminated": numpy.zeros(8, bool),
                    "truncated": numpy.zeros(8, bool),
                }
            )
            for name in learner.modules
        }
        learner.update(batches, timestep=learner.timestep + 8)
        return [not torch.equal(weights(name), one) for name, one in before.items()]

    updated()
    learner.set_options("default", {"learning_rate": 0.0})
    assert updated() == [True] * (count - 1) + [False]
    learner.set_options("default", {"learning_rate": 1e-3})
    assert updated() == [True] * count


def test_everything_else_of_an_optimizer_is_taken_over_and_its_moments_stay(make: Any) -> None:
    def adam(self: Any, module: Any, config: Any) -> Any:
        return Adam(module.parameters(), lr=0.1, eps=config.scale, betas=(0.5, 0.75))

    learner = make(configure_optimizers_for_module=adam)
    learner.update(ONE, timestep=1)
    optimizer = learner.get_optimizer()
    # By hand: nothing that options make is undone by it.
    optimizer.param_groups[0]["lr"] = 0.3
    moments = {name: one.clone() for name, one in next(iter(optimizer.state.values())).items()}
    learner.set_options("default", {"scale": 0.5})
    assert learner.get_optimizer() is optimizer
    assert [optimizer.param_groups[0][name] for name in ("eps", "lr")] == [0.5, 0.3]
    for name, one in next(iter(optimizer.state.values())).items():
        assert torch.equal(one, moments[name]), name


def test_schedulers_go_on_from_where_they_are(make: Any) -> None:
    def scheduled(self: Any, module: Any, config: Any) -> Any:
        sgd = SGD(module.parameters(), lr=config.learning_rate)
        warm = SequentialLR(
            sgd, [LambdaLR(sgd, lambda step: (step + 1) / 4), StepLR(sgd, 1, 0.5)], [4]
        )
        return {"optimizer": sgd, "lr_scheduler": {"scheduler": warm, "interval": "step"}}

    learner = make(configure_optimizers_for_module=scheduled, options={"learning_rate": 1.0})
    for step in range(2):
        learner.update(ONE, timestep=step)
    assert rates(learner) == [0.75]
    learner.set_options("default", {"learning_rate": 10.0})
    assert rates(learner) == [7.5]
    seen = []
    for step in range(2, 6):
        learner.update(ONE, timestep=step)
        seen += rates(learner)
    assert seen == [10.0, 10.0, 5.0, 2.5]


def test_options_that_make_other_optimizers_are_refused_and_not_kept(make: Any) -> None:
    def either(self: Any, module: Any, config: Any) -> Any:
        kind = SGD if config.scale < 2 else Adam
        return kind(module.parameters(), lr=config.learning_rate)

    learner = make(configure_optimizers_for_module=either)
    before = learner.get_optimizer()
    with pytest.raises(
        RequestError, match=r"make other optimizers for module 'default'\.\n.*add_m"
    ):
        learner.set_options("default", {"scale": 3.0, "learning_rate": 0.5})
    assert learner.get_optimizer() is before
    learner.set_options("default", {"learning_rate": 0.25})
    assert rates(learner) == [0.25]


def test_optimizers_that_a_hook_registers_are_taken_over_as_well(make: Any) -> None:
    def registered(self: Any, module: Any, config: Any, learner: Any) -> None:
        sgd = SGD([module.weight], lr=9.0)
        learner.register_optimizer("default", "own", sgd, [module.weight], config.learning_rate)

    learner = make(configure_optimizers_for_module=registered, options={"learning_rate": 1.0})
    learner.set_options("default", {"learning_rate": 0.5})
    assert [group["lr"] for group in learner.get_optimizer("default", "own").param_groups] == [0.5]
    assert [one.name for one in learner.optimizers] == ["own"]


def test_a_state_brings_rates_and_schedules_that_were_set_later(make: Any) -> None:
    learner = make(options={"learning_rate": 1.0})
    learner.set_options("default", {"learning_rate": FALLING})
    learner.update(ONE, timestep=5)
    fresh = make(options={"learning_rate": 1.0})
    fresh.set_state(learner.get_state())
    assert rates(fresh) == [0.5]
    fresh.update(ONE, timestep=8)
    assert rates(fresh) == [pytest.approx(0.2)]
    # One without such options has those of the start again.
    fresh.set_state(make(options={"learning_rate": 1.0}).get_state())
    fresh.update(ONE, timestep=9)
    assert rates(fresh) == [1.0]


def test_an_option_of_the_core_that_is_assigned_is_refused(make: Any) -> None:
    learner = make()
    with pytest.raises(RequestError, match=r'"in_turn"|options=\{"learner.optimizers"'):
        learner.optimizers = "in_turn"
    learner.update(ONE, timestep=1)
    assert learner.get_state()["counters"]["updates"] == 1


class Two(rlplug.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.other = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

    def forward_train(self, batch: Any) -> Any:
        return {"out": batch["x"] * (self.weight + self.other)}


def test_groups_of_parameters_that_change_are_refused(make: Any) -> None:
    def grouped(self: Any, module: Any, config: Any) -> Any:
        params = [module.weight, module.other]
        return SGD(params if config.scale > 1 else params[::-1], lr=1.0)

    learner = make(build=lambda self: Two(), configure_optimizers_for_module=grouped)
    with pytest.raises(RequestError, match="make other optimizers"):
        learner.set_options("default", {"scale": 3.0})
