"""Target networks in the learner: the core lets them follow, whatever plugins do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from rlplug import Module
from rlplug.nn import FixedTarget, PolyakTarget, TargetNetwork


class Followed(Module):
    """One weight that starts at 2, and a target that follows it."""

    def __init__(self, target: TargetNetwork) -> None:
        super().__init__()
        self.line = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.line.weight, 2.0)
        self.target = target.init(self.line)

    def forward_train(self, batch: Any) -> Any:
        return {"out": self.line(batch["x"][:, None])}


def hooks(target: Any) -> dict[str, Any]:
    return {
        "build": lambda self: Followed(target()),
        "configure_optimizers_for_module": lambda self, module: SGD(
            module.line.parameters(), lr=1.0
        ),
        "compute_loss_for_module": lambda self, fwd_out: fwd_out["out"].mean(),
    }


def weights(learner: Any, module_id: str = "default") -> tuple[float, float]:
    module = learner.modules[module_id]
    return module.line.weight.item(), module.target.model.weight.item()


def test_a_target_moves_after_each_optimizer_step(make: Any, batch: Any) -> None:
    learner = make(**hooks(lambda: PolyakTarget(0.5)))
    learner.update({"default": batch(1.0)}, timestep=1)
    # 2 - 1 = 1, and half of the way from 2 to 1.
    assert weights(learner) == (1.0, 1.5)
    learner.update({"default": batch(1.0)}, timestep=2)
    assert weights(learner) == (0.0, 0.75)


def test_every_minibatch_counts_as_an_update(make: Any, batch: Any) -> None:
    learner = make(**hooks(lambda: FixedTarget(3)))
    learner.update({"default": batch(1.0, 1.0)}, timestep=1, minibatch_size=1)
    assert weights(learner) == (0.0, 2.0)
    learner.update({"default": batch(1.0, 1.0)}, timestep=2, minibatch_size=1)
    # Copied after the third of four steps.
    assert weights(learner) == (-2.0, -1.0)


def test_an_interval_in_steps_is_met_by_the_first_update_after_it(make: Any, batch: Any) -> None:
    learner = make(**hooks(lambda: FixedTarget(10, "step")))
    learner.update({"default": batch(1.0)}, timestep=8)
    assert weights(learner) == (1.0, 2.0)
    learner.update({"default": batch(1.0)}, timestep=12)
    assert weights(learner) == (0.0, 0.0)
    learner.update({"default": batch(1.0)}, timestep=16)
    assert weights(learner) == (-1.0, 0.0)


def test_the_default_optimizer_leaves_targets_alone(make: Any, batch: Any) -> None:
    learner = make(**{**hooks(lambda: FixedTarget(2)), "configure_optimizers_for_module": None})
    (optimizer,) = [one for _, one in learner.get_optimizers_for_module()]
    assert optimizer.param_groups[0]["params"] == [learner.modules["default"].line.weight]
    learner.update({"default": batch(1.0)}, timestep=1)
    assert weights(learner)[1] == 2.0


def test_modules_that_are_updated_together_have_their_targets_updated(
    make: Any, batch: Any
) -> None:
    ids = ("a", "b", "c", "d")
    learner = make(ids=ids, **hooks(lambda: PolyakTarget(0.5)))
    learner.update({one: batch(1.0) for one in ids}, timestep=1)
    assert [weights(learner, one) for one in ids] == [(1.0, 1.5)] * 4


def test_targets_follow_gradients_applied_by_hand(make: Any, batch: Any) -> None:
    learner = make(**hooks(lambda: PolyakTarget(0.5)))
    learner.apply_gradients({learner.modules["default"].line.weight: torch.ones(1, 1)})
    assert weights(learner) == (1.0, 1.5)


@pytest.mark.parametrize("interval", [1, 2])
def test_a_target_kept_beside_the_module_is_updated_too(
    make: Any, batch: Any, interval: int
) -> None:
    def average(self: Any, module: Any) -> nn.Module:
        return FixedTarget(interval).init(module)

    learner = make(
        build_extra=average,
        configure_optimizers_for_module=lambda self, module: SGD([module.weight], lr=1.0),
    )
    learner.update({"default": batch(0.5)}, timestep=1)
    kept = learner.extra["default"]["alg"].model.weight.item()
    assert kept == (1.5 if interval == 1 else 2.0)
