"""Which optimizer acts when, at which learning rate, and how schedulers follow."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from rlplug import Loss, Module
from rlplug.config import Schedule
from rlplug.errors import RunFailedError
from tests.learner.small import (
    ARRAYS,
    Pair,
    batch,
    both_means,
    make,
    numbers,
    pair,
    sgd,
    update,
    weights,
)

FALLING = Schedule([[0, 1.0], [10, 0.0]])


def groups(optimizer: Any) -> list[Any]:
    return [group["lr"] for group in optimizer.param_groups]


def rate_of(learner: Any, step: int, *values: float, **how: Any) -> Any:
    """The learning rate that an update at a step reports."""
    return update(learner, *(values or (0.0,)), step=step, **how)["learning_rate"]


def scheduled(kind: Any, **config: Any) -> Any:
    """The hook that gives one SGD at 1.0 with a scheduler."""

    def optimizers(self: Any, module: Any) -> Any:
        optimizer = SGD(module.parameters(), lr=1.0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": kind(optimizer), **config}}

    return optimizers


def cycle(*frequencies: int) -> Any:
    """The hook that gives optimizers that act in turn, for that many minibatches each."""

    def optimizers(self: Any, module: Any) -> Any:
        return tuple(
            {"optimizer": SGD([param], lr=1.0), "frequency": count}
            for param, count in zip(module.parameters(), frequencies, strict=True)
        )

    return optimizers


# -- who acts ------------------------------------------------------------------------------------


def test_frequencies_2_and_3_act_a_a_b_b_b_and_schedulers_move_only_in_their_turn() -> None:
    acting: list[str] = []

    def optimizers(self: Any, module: Any) -> Any:
        first, second = cycle(2, 3)(self, module)
        scheduler = {"scheduler": StepLR(first["optimizer"], 1, gamma=0.5), "interval": "step"}
        return {**first, "lr_scheduler": scheduler}, second

    def loss(self: Any, fwd_out: Any, optimizers: Any) -> Any:
        acting.extend(optimizers)
        return both_means(self, fwd_out)

    learner = make(optimizers=optimizers, loss=loss)
    update(learner, 0.125, num_iters=7)
    assert acting == ["0", "0", "1", "1", "1", "0", "0"]
    module = learner.modules["default"]
    assert module.weight.item() == 2 - 0.125 * (1 + 0.5 + 0.25 + 0.125)
    assert module.other.item() == 2 - 0.125 * 3


def test_a_frequency_counts_steps_and_neither_skipped_nor_accumulated_minibatches() -> None:
    acting: list[str] = []

    def loss(self: Any, fwd_out: Any, batch: Any, optimizers: Any) -> Any:
        acting.extend(optimizers)
        return None if float(batch["x"].mean()) == 0.0 else both_means(self, fwd_out)

    hooks = {"optimizers": cycle(1, 1), "loss": loss}
    learner = make(**hooks)
    for step, x in enumerate((1.0, 0.0, 1.0, 1.0)):
        update(learner, x, step=step)
    assert acting == ["0", "1", "1", "0"]
    acting.clear()
    learner = make(**hooks, learning={"accumulate": 2})
    update(learner, *[1.0] * 4, minibatch_size=1)
    assert acting == ["0", "0", "1", "1"]


# -- in turn -------------------------------------------------------------------------------------


def game(loss: Any = None, learning: Any = (), **known: Any) -> Any:
    return make(
        build=lambda self: Pair(),
        optimizers=pair,
        loss=loss or (lambda self, fwd_out: fwd_out["product"]),
        learning={"optimizers": "in_turn", **dict(learning)},
        **known,
    )


@ARRAYS
def test_in_turn_the_second_optimizer_sees_the_step_of_the_first(arrays: str) -> None:
    learner = game(compute={"arrays": arrays})
    found = []
    for step in (1, 2):
        update(learner, 1.0, step=step)
        found.append(weights(learner))
    # From (1, 3): 1 - 3, and 3 - (-2); then -2 - 5, and 5 + 7.
    assert found == [(-2.0, 5.0), (-7.0, 12.0)]
    together = game(learning={"optimizers": "together"})
    update(together, 1.0)
    assert weights(together) == (-2.0, 2.0)


def test_in_turn_each_optimizer_has_its_own_loss_hooks_and_clipping() -> None:
    seen: list[Any] = []

    def loss(self: Any, fwd_out: Any, optimizers: Any) -> Any:
        seen.append(("loss", optimizers))
        return Loss({"one": fwd_out["product"], "two": -fwd_out["product"]}, {"calls": len(seen)})

    def hook(self: Any, gradients: Any) -> None:
        seen.append(("gradients", tuple(gradients)))

    learner = game(loss, {"max_grad_norm": 1.0}, gradients=hook)
    results = update(learner, 1.0)
    # The first moves down by its clipped gradient, to 0; then the gradient of the second is 0.
    assert weights(learner) == pytest.approx((0.0, 3.0), abs=1e-5)
    assert seen == [
        *(("loss", ("one",)), ("gradients", ("weight",))),
        *(("loss", ("two",)), ("gradients", ("other",))),
    ]
    expected = {"loss/one": 3.0, "loss/two": 0.0, "grad_norm/one": 3.0, "grad_norm/two": 0.0}
    assert {name: float(results[name]) for name in expected} == pytest.approx(expected, abs=2e-6)
    assert results["calls"] == 1


# -- LBFGS ---------------------------------------------------------------------------------------


def test_lbfgs_finds_a_minimum_in_one_step_and_reports_its_first_evaluation() -> None:
    def loss(self: Any, module: Any) -> Any:
        return (module.weight - 5).pow(2).sum() + module.other.pow(2).sum()

    def optimizers(self: Any, module: Any) -> Any:
        return LBFGS(module.parameters(), lr=1.0, line_search_fn="strong_wolfe")

    learner = make(optimizers=optimizers, loss=loss)
    assert float(update(learner, 1.0)["loss"]) == 13.0
    assert weights(learner) == pytest.approx((5.0, 0.0), abs=1e-4)


@pytest.mark.parametrize("bad_from", [1, 3])
def test_an_lbfgs_step_that_meets_nan_is_skipped_whole_and_counted_once(bad_from: int) -> None:
    evaluations = []

    def loss(self: Any, module: Any) -> Any:
        evaluations.append(1)
        bad = math.nan if len(evaluations) >= bad_from else 1.0
        return ((module.weight - 5).pow(4).sum() + module.other.pow(2).sum()) * bad

    def optimizers(self: Any, module: Any) -> Any:
        return LBFGS(module.parameters(), lr=0.1)

    learner = make(optimizers=optimizers, loss=loss)
    assert update(learner, 1.0)["nonfinite"] == 1
    assert (len(evaluations), weights(learner)) == (bad_from, (2.0, 2.0))
    assert learner.get_optimizer().state_dict()["state"] == {}


# -- learning rates ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "optimizers",
    [
        None,
        sgd,
        lambda self, module, config: SGD(module.parameters(), lr=config.learning_rate * 2 / 2),
    ],
)
def test_a_learning_rate_follows_its_schedule(optimizers: Any) -> None:
    known = {"optimizers": optimizers, "options": {"learning_rate": FALLING}}
    learner = make(**known)
    assert [rate_of(learner, step) for step in (0, 5, 10)] == [1.0, 0.5, 0.0]


def test_an_optimizer_made_with_a_scheduled_option_follows_it_group_by_group() -> None:
    class Three(Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("weight", "other", "third"):
                self.register_parameter(name, nn.Parameter(torch.ones(1)))

        def forward_train(self, batch: Any) -> Any:
            return {"out": batch["x"] * (self.weight + self.other + self.third)}

    def optimizers(self: Any, module: Any, config: Any) -> Any:
        half = {"params": [module.other], "lr": config.learning_rate / 2}
        fixed = {"params": [module.third], "lr": 0.25}
        return SGD([{"params": [module.weight]}, half, fixed], lr=config.learning_rate)

    learner = make(
        build=lambda self: Three(), optimizers=optimizers, options={"learning_rate": FALLING}
    )
    rates = groups(learner.get_optimizer())
    # Plain numbers, as states and other tools of torch expect.
    assert ([type(rate) for rate in rates], rates) == ([float] * 3, [1.0, 0.5, 0.25])
    assert [rate_of(learner, step) for step in (8, 20)] == pytest.approx([0.2, 0.0])
    rate_of(learner, 4)
    assert groups(learner.get_optimizer()) == pytest.approx([0.6, 0.3, 0.25])


@pytest.mark.parametrize(
    ("given", "at_0", "at_5"),
    [(None, 0.125, 0.125), (2, 2, 2), (FALLING, 1.0, 0.5), ([[0, 1e-3], [10, 0.0]], 1e-3, 5e-4)],
    ids=str,
)
def test_an_optimizer_is_registered_with_a_number_or_a_schedule(
    given: Any, at_0: float, at_5: float
) -> None:
    def register(self: Any, module_id: str, module: Any, learner: Any) -> None:
        params = list(module.parameters())
        optimizer = SGD([{"params": [param]} for param in params], lr=0.125)
        learner.register_optimizer(module_id, "mine", optimizer, params, given)

    learner = make(optimizers=register)
    for step, rate in ((0, at_0), (5, at_5)):
        assert update(learner, 0.0, step=step)["learning_rate/mine"] == rate
        assert groups(learner.get_optimizer("default", "mine")) == [rate, rate]


def test_hooks_see_scheduled_options_as_numbers_also_after_an_update_that_failed() -> None:
    seen = []

    def loss(self: Any, fwd_out: Any, config: Any, learner: Any) -> Any:
        seen.append(config.scale)
        if learner.timestep == 9:
            raise ZeroDivisionError
        return fwd_out["out"].sum() * config.scale

    learner = make(loss=loss, options={"scale": Schedule([[0, 4.0], [10, 2.0]])})
    for step in (0, 5, 20):
        update(learner, 0.0, step=step)
    with pytest.raises(ZeroDivisionError):
        update(learner, 0.0, step=9)
    # What is computed by hand is computed at the step of the last update.
    rows = {"default": batch(0.0)}
    learner.compute_loss(learner.forward_train(rows), rows)
    assert seen == pytest.approx([4.0, 3.0, 2.0, 2.2, 2.0])


# -- schedulers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interval", "every", "moves"),
    [("step", 1, 6), ("step", 4, 1), ("epoch", 1, 3), ("epoch", 2, 1)],
)
def test_a_scheduler_counts_steps_or_passes_over_the_batch(
    interval: str, every: int, moves: int
) -> None:
    kind = scheduled(
        lambda optimizer: StepLR(optimizer, 1, 0.5), interval=interval, frequency=every, name="slow"
    )
    metrics = update(make(optimizers=kind), *[0.0] * 4, num_iters=3, minibatch_size=2)
    # The scheduler's name is that of the rate in the results.
    assert numbers(metrics, "learning_rate") == {"learning_rate/slow": 0.5**moves}


def plateau(optimizer: Any) -> Any:
    return ReduceLROnPlateau(optimizer, factor=0.5, patience=1)


def test_a_plateau_scheduler_follows_the_metric_it_monitors() -> None:
    learner = make(optimizers=scheduled(plateau, monitor="loss"))
    # The first value is the best; the third without improvement is one too many.
    assert [rate_of(learner, step) for step in range(4)] == [1.0, 1.0, 0.5, 0.5]


def test_a_missing_monitored_metric_ends_the_run_unless_strict_is_off() -> None:
    learner = make(optimizers=scheduled(plateau, monitor="los"))
    update(learner, 1.0)
    with pytest.raises(RunFailedError, match=r"monitors 'los'(.|\n)* Did you mean 'loss'\?"):
        update(learner, 1.0)
    lenient = scheduled(plateau, monitor="return", strict=False)
    learner = make(optimizers=lenient)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        update(learner, 0.0)
        update(learner, 0.0)
    assert "monitors 'return'" in str(caught[0].message)
