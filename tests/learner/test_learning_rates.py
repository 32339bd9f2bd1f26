"""Learning rates: numbers, schedules over the steps of the run, and schedulers over epochs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from rlplug import Batch, Module
from rlplug.config import Schedule
from rlplug.config.schedule import ScheduledValue
from rlplug.errors import PluginError, RequestError
from rlplug.learner.optimizers import RegisteredOptimizer, check_lbfgs, default_optimizer, labelled

FALLING = Schedule([[0, 1.0], [10, 0.0]])


def rates(optimizer: Any) -> list[Any]:
    return [group["lr"] for group in optimizer.param_groups]


def updated(learner: Any, steps: list[int]) -> list[float]:
    """The learning rate that each update at these steps reports."""
    return [
        float(
            learner.update({"default": Batch({"x": torch.ones(4)})}, timestep=step)["default"][
                "learning_rate"
            ]
        )
        for step in steps
    ]


def test_an_optimizer_made_with_a_scheduled_option_follows_it_group_by_group(make: Any) -> None:
    def groups(self: Any, module: Any, config: Any) -> Any:
        half = {"params": [module.other], "lr": config.learning_rate / 2}
        fixed = {"params": [module.third], "lr": 0.25}
        return SGD([{"params": [module.weight]}, half, fixed], lr=config.learning_rate)

    class Three(Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("weight", "other", "third"):
                self.register_parameter(name, nn.Parameter(torch.ones(1)))

        def forward_train(self, batch: Any) -> Any:
            return {"out": batch["x"] * (self.weight + self.other + self.third)}

    learner = make(
        build=lambda self: Three(),
        configure_optimizers_for_module=groups,
        options={"learning_rate": FALLING},
    )
    optimizer = learner.get_optimizer()
    # Plain numbers, as states and other tools of torch expect.
    assert [type(rate) for rate in rates(optimizer)] == [float] * 3
    assert rates(optimizer) == [1.0, 0.5, 0.25]
    assert updated(learner, [0, 5, 8, 20]) == pytest.approx([1.0, 0.5, 0.2, 0.0])
    learner.update({"default": Batch({"x": torch.ones(4)})}, timestep=4)
    assert rates(optimizer) == pytest.approx([0.6, 0.3, 0.25])


@pytest.mark.parametrize(
    ("given", "at_0", "at_5"),
    [
        (None, 0.125, 0.125),
        (0.75, 0.75, 0.75),
        (2, 2, 2),
        (FALLING, 1.0, 0.5),
        ([[0, 1.0], [10, 0.0]], 1.0, 0.5),
        ([[0, 0.5]], 0.5, 0.5),
    ],
    ids=str,
)
def test_an_optimizer_is_registered_with_a_number_or_a_schedule(
    make: Any, given: Any, at_0: float, at_5: float
) -> None:
    def register(self: Any, module_id: str, module: Any, learner: Any) -> None:
        params = list(module.parameters())
        two = [{"params": [param]} for param in params]
        optimizer = SGD(two, lr=0.125)
        learner.register_optimizer(
            module_id, "mine", optimizer, params=params, lr_or_lr_schedule=given
        )

    learner = make(configure_optimizers_for_module=register)
    optimizer = learner.get_optimizer("default", "mine")
    for step, rate in ((0, at_0), (5, at_5)):
        learner.update({"default": Batch({"x": torch.ones(2)})}, timestep=step)
        assert rates(optimizer) == [rate, rate]


def monitored(self: Any, module: Any) -> Any:
    optimizer = SGD(module.parameters(), lr=1.0)
    plateau = ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.0)
    scheduler = {"scheduler": plateau, "interval": "epoch", "monitor": "loss"}
    return {"optimizer": optimizer, "lr_scheduler": scheduler}


def test_each_epoch_is_judged_by_its_own_minibatches(make: Any) -> None:
    seen: list[float] = []

    def watched(self: Any, module: Any) -> Any:
        made = monitored(self, module)
        plateau = made["lr_scheduler"]["scheduler"]
        step = plateau.step

        def stepped(metrics: Any) -> None:
            seen.append(metrics)
            step(metrics)

        plateau.step = stepped
        return made

    def loss(self: Any, fwd_out: Any, batch: Any) -> Any:
        # The weights do not count: the loss is the mean of x.
        return fwd_out["out"].mean() * 0 + batch["x"].mean()

    learner = make(configure_optimizers_for_module=watched, compute_loss_for_module=loss)
    for values in ([1.0, 3.0], [6.0, 8.0]):
        batch = Batch({"x": torch.tensor(values)})
        learner.update({"default": batch}, timestep=1, num_iters=2, minibatch_size=1)
    # Two updates of two epochs each, of two minibatches: means 2, 2, 7 and 7.
    assert seen == [2.0, 2.0, 7.0, 7.0]
    assert rates(learner.get_optimizer()) == [0.125]


@pytest.mark.parametrize(("interval", "moves"), [("step", 6), ("epoch", 3)])
def test_a_scheduler_counts_steps_or_passes_over_the_batch(
    make: Any, interval: str, moves: int
) -> None:
    def optimizer(self: Any, module: Any) -> Any:
        sgd = SGD(module.parameters(), lr=1.0)
        scheduler = {"scheduler": StepLR(sgd, 1, 0.5), "interval": interval, "name": "slow"}
        return {"optimizer": sgd, "lr_scheduler": scheduler}

    learner = make(configure_optimizers_for_module=optimizer)
    batch = Batch({"x": torch.ones(4)})
    results = learner.update({"default": batch}, timestep=1, num_iters=3, minibatch_size=2)
    # The scheduler's name is that of the rate in the results.
    assert float(results["default"]["learning_rate/slow"]) == 0.5**moves
    assert "learning_rate" not in results["default"]


def test_a_module_like_another_takes_its_options_along(make: Any) -> None:
    learner = make(
        compute_loss_for_module=lambda self, fwd_out, config: fwd_out["out"].mean() * config.scale
    )
    learner.set_options("default", {"scale": 10.0})
    learner.add_module("copy", like="default")
    learner.add_module("apart", learner.spaces["default"])
    one = Batch({"x": torch.ones(1)})
    results = learner.update({"copy": one, "apart": one}, timestep=1)
    assert [float(results[name]["loss"]) for name in ("copy", "apart")] == [20.0, 2.0]
    # From then on each has its own.
    learner.set_options("copy", {"scale": 1.0})
    assert float(learner.update({"default": one}, timestep=2)["default"]["loss"]) == 20.0


def test_without_a_hook_there_is_an_adam_at_the_learning_rate() -> None:
    class Known:
        learning_rate = 0.5

    params = [nn.Parameter(torch.ones(1))]
    made = default_optimizer(Known(), "alg", params)
    assert (type(made), rates(made), made.param_groups[0]["fused"]) == (Adam, [0.5], True)
    with pytest.raises(PluginError, match="'alg' has parameters but neither an option"):
        default_optimizer(object(), "alg", params)


def test_a_registered_optimizer_holds_plain_numbers_from_the_start() -> None:
    rate = ScheduledValue(0.5, FALLING)
    optimizer = SGD([nn.Parameter(torch.ones(1))], lr=rate)
    one = RegisteredOptimizer("m", "one", "alg", optimizer)
    assert ([type(lr) for lr in rates(optimizer)], rates(optimizer)) == ([float], [0.5])
    one.at_step(5)
    assert rates(optimizer) == [0.5]
    one.at_step(8)
    assert rates(optimizer) == [pytest.approx(0.2)]


def test_rates_are_labelled_by_optimizers_that_have_names() -> None:
    assert labelled("learning_rate", "default") == "learning_rate"
    assert labelled("learning_rate", "actor") == "learning_rate/actor"


def lbfgs(frequency: int = 0) -> RegisteredOptimizer:
    optimizer = torch.optim.LBFGS([nn.Parameter(torch.ones(1))])
    one = RegisteredOptimizer("m", "one", "alg", optimizer)
    one.frequency = frequency
    return one


def test_lbfgs_acts_alone_and_without_a_scaler() -> None:
    other = RegisteredOptimizer("m", "other", "alg", SGD([nn.Parameter(torch.ones(1))], 1.0))
    check_lbfgs([lbfgs()], shared=False, scaled=False)
    check_lbfgs([other, other], shared=True, scaled=True)
    with pytest.raises(PluginError, match="for module 'm' is LBFGS, which must act alone"):
        check_lbfgs([lbfgs(), other], shared=False, scaled=False)
    with pytest.raises(PluginError, match="must act alone"):
        check_lbfgs([lbfgs()], shared=True, scaled=False)
    with pytest.raises(PluginError, match="must act alone"):
        check_lbfgs([lbfgs(1), other], shared=False, scaled=False)
    other.frequency = 2
    check_lbfgs([lbfgs(1), other], shared=False, scaled=False)
    with pytest.raises(RequestError, match=r"cannot work with compute\.precision 'fp16'"):
        check_lbfgs([lbfgs()], shared=False, scaled=True)


def test_an_optimizer_may_wait_for_its_first_loss_for_999_minibatches() -> None:
    one = RegisteredOptimizer("m", "one", "alg", SGD([nn.Parameter(torch.ones(1))], 1.0))
    for _ in range(999):
        one.note_idle()
    with pytest.raises(
        PluginError, match="'one' of plugin 'alg' for module 'm' got no loss in 1000"
    ):
        one.note_idle()
    other = RegisteredOptimizer("m", "one", "alg", SGD([nn.Parameter(torch.ones(1))], 1.0))
    other.step([], True, None)
    # Once it had a gradient, it may rest for as long as it likes.
    for _ in range(2000):
        other.note_idle()
