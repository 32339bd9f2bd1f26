"""What losses report, which optimizers they move, and what happens where there is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR

from rlplug import ALL_MODULES, Loss
from tests.learner.small import (
    ARRAYS,
    MODES,
    Pair,
    batch,
    make,
    numbers,
    pair,
    unit,
    update,
    weights,
)

RATE = 0.5


def halves(self: Any, module: Any) -> Any:
    return {"gen": SGD([module.weight], lr=RATE), "dis": SGD([module.other], lr=RATE)}


def game(mode: str, loss: Any, *, learning: Any = (), **known: Any) -> Any:
    """The learner of a Pair whose two optimizers act together or in turn."""
    hooks = {"build": lambda self: Pair(), "optimizers": halves, **known}
    learning = {"optimizers": mode, **dict(learning)}
    return make(loss=loss, learning=learning, **hooks)


def product(self: Any, fwd_out: Any) -> Any:
    return fwd_out["product"]


def product_unless_zero(self: Any, fwd_out: Any, batch: Any) -> Any:
    return None if float(batch["x"].mean()) == 0 else fwd_out["product"]


# -- what is reported ----------------------------------------------------------------------------


def test_losses_of_6_and_10_are_reported_with_their_sum_of_16() -> None:
    learner = make(ids=("a", "b"))
    results = learner.update({"a": batch(3.0), "b": batch(5.0)}, timestep=2)
    losses = [float(results[name]["loss"]) for name in ("a", "b", ALL_MODULES)]
    assert losses == [6.0, 10.0, 16.0]
    assert results[ALL_MODULES]["steps_trained"] == 2
    found = [learner.update({"a": batch(1.0)}, timestep=3)[ALL_MODULES] for _ in "12"]
    assert [results["updates"] for results in found] == [2, 3]
    assert learner.updates == 3


@ARRAYS
def test_terms_and_metrics_are_reported_as_plain_numbers_under_the_names_of_their_plugins(
    arrays: str,
) -> None:
    def loss(self: Any, fwd_out: Any) -> Any:
        value = fwd_out["out"].mean()
        return Loss(value, terms={"value": value}, metrics={"seen": value * 3, "count": 4})

    def more(self: Any, fwd_out: Any) -> Any:
        return {"loss": fwd_out["out"].mean() * 5, "seen": 7}

    learner = make(
        loss=loss,
        addons={"more": {"loss": more}},
        options={"learning_rate": 1e-9},
        compute={"arrays": arrays},
    )
    for step in range(3):
        metrics = update(learner, 1.0, step=step)
        expected = {"loss": 12.0, "loss/alg": 2.0, "loss/more": 10.0, "value": 2.0, "seen": 6.0}
        expected |= {"more/seen": 7.0, "count": 4.0, "grad_norm": 6.0, "learning_rate": 1e-9}
        assert numbers(metrics) == pytest.approx(expected)
        kept = [value for value in metrics.values() if isinstance(value, torch.Tensor)]
        assert not any(value.requires_grad for value in kept)


@MODES
@ARRAYS
def test_rows_may_come_with_the_loss_of_any_optimizer(mode: str, arrays: str) -> None:
    def loss(self: Any, fwd_out: Any, optimizers: Any) -> Any:
        rows = {"priority": fwd_out["rows"].abs()} if "dis" in optimizers else {}
        return Loss(fwd_out["product"], rows=rows)

    learner = game(mode, loss, compute={"arrays": arrays})
    for step in (1, 2, 3):
        gen, dis = weights(learner)
        rows = batch(2.0, 4.0, indices=torch.tensor([40, 7]))
        learner.update({"default": rows}, timestep=step)
        if mode == "in_turn":
            gen -= RATE * dis * 3
        given = {name: values.tolist() for name, values in learner.rows["default"].items()}
        assert given == {"indices": [40, 7], "priority": [abs(2 * gen), abs(4 * gen)]}


# -- what is moved -------------------------------------------------------------------------------


def crossed(self: Any, module: Any, batch: Any) -> Any:
    product = (module.weight * module.other * batch["x"]).sum()
    return Loss({"one": product, "two": -product})


def apart(self: Any, fwd_out: Any) -> Any:
    return Loss({"one": fwd_out["out"].sum(), "two": fwd_out["second"].sum()})


def add_to_both(self: Any, module: Any) -> Any:
    return (module.weight + 2 * module.other).sum()


def add_to_one(self: Any, fwd_out: Any) -> Any:
    return Loss({"one": fwd_out["out"].sum() * 2})


@pytest.mark.parametrize(
    ("loss", "more", "after", "reported"),
    [
        (crossed, None, (1.0, 3.0), {"loss": 0.0, "loss/one": 2.0, "loss/two": -2.0}),
        (apart, add_to_both, (0.5, -0.5), {"loss": 8.0, "loss/alg": 2.0, "loss/more": 6.0}),
        (apart, add_to_one, (0.5, 1.5), {"loss": 4.0, "loss/one": 3.0, "loss/two": 1.0}),
    ],
)
def test_named_losses_move_their_own_parameters_and_others_all(
    loss: Any, more: Any, after: Any, reported: Any
) -> None:
    addons = {"more": {"loss": more}} if more else {}
    learner = make(optimizers=pair, loss=loss, addons=addons)
    metrics = update(learner, 0.5)
    assert weights(learner) == after
    assert reported.items() <= numbers(metrics, "loss").items()


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_an_optimizer_left_out_of_the_value_rests_and_so_does_its_scheduler(interval: str) -> None:
    def optimizers(self: Any, module: Any) -> Any:
        made = [SGD([param], lr=1.0) for param in (module.weight, module.other)]
        kinds = [{"scheduler": ExponentialLR(each, 0.5), "interval": interval} for each in made]
        return made, kinds

    def loss(self: Any, fwd_out: Any, learner: Any) -> Any:
        rests = learner.timestep % 2
        return Loss({"1": fwd_out["second"].sum()} | ({} if rests else {"0": fwd_out["out"].sum()}))

    learner = make(optimizers=optimizers, loss=loss)
    rates = [numbers(update(learner, 0.25, step=step), "learning_rate") for step in (1, 2, 3, 4)]
    assert [tuple(rate.values()) for rate in rates] == [
        (1.0, 0.5),
        (0.5, 0.25),
        (0.5, 0.125),
        (0.25, 0.0625),
    ]
    assert weights(learner)[0] == 2 - 0.25 * (1.0 + 0.5)


# -- minibatches without a loss ------------------------------------------------------------------


@MODES
@ARRAYS
def test_a_minibatch_is_skipped_once_and_only_without_any_loss(mode: str, arrays: str) -> None:
    learner = game(mode, product_unless_zero, compute={"arrays": arrays})
    found = [update(learner, x, step=step) for step, x in enumerate((0.0, 1.0, 0.0, 0.0))]
    assert [metrics.get("skipped", 0) for metrics in found] == [1, 0, 1, 1]
    assert ["loss" in metrics for metrics in found] == [False, True, False, False]

    def first(self: Any, fwd_out: Any, optimizers: Any) -> Any:
        return fwd_out["product"] if "gen" in optimizers else None

    assert "skipped" not in update(game(mode, first, compute={"arrays": arrays}), 1.0)


# -- stops ---------------------------------------------------------------------------------------


def test_stop_ends_the_epochs_of_its_module_before_the_step() -> None:
    def loss(self: Any, fwd_out: Any) -> Any:
        value = fwd_out["out"].mean()
        return Loss(value, stop=value < 1.95)

    learner = make(loss=loss)
    update(learner, 1.0, num_iters=10)
    # 2.0 and 1.9 are seen; the second asks for the end, so one step of 0.1 is made.
    assert weights(learner)[0] == 1.9


def test_a_stop_in_a_later_part_of_a_step_takes_the_whole_step_back() -> None:
    seen: list[float] = []
    changed: list[int] = []

    def loss(self: Any, fwd_out: Any, batch: Any) -> Any:
        seen.append(float(batch["x"].mean()))
        return Loss(fwd_out["out"].mean(), stop=torch.tensor(len(seen) == 2))

    learner = make(
        optimizers=unit,
        loss=loss,
        gradients=lambda self: changed.append(1),
        learning={"accumulate": 3},
    )
    update(learner, 1.0, 1.0, 1.0, num_iters=2, minibatch_size=1)
    # Neither the third part nor the second pass is looked at.
    assert (len(seen), changed, weights(learner)) == (2, [], (2.0, 2.0))
    update(learner, 1.0, 1.0, 1.0, minibatch_size=1)
    assert (len(seen), changed, weights(learner)) == (5, [1], (1.0, 2.0))


# -- updates that fail ---------------------------------------------------------------------------


@pytest.mark.parametrize("hook", ["prepare_batch", "compute_loss_for_module", "additional_update"])
def test_an_update_that_fails_in_a_hook_leaves_the_timestep(hook: str) -> None:
    seen: list[int] = []

    def fail(self: Any, learner: Any) -> None:
        seen.append(learner.timestep)
        raise ZeroDivisionError

    learner = make(**{hook: fail})
    with pytest.raises(ZeroDivisionError):
        update(learner, 1.0, step=7)
    # The hook itself runs at the step of the update.
    assert (seen, learner.timestep) == ([7], 0)
    if hook == "additional_update":
        with pytest.raises(ZeroDivisionError):
            learner.additional_update({"default": batch(1.0)}, timestep=9)
        assert (seen, learner.timestep) == ([7, 9], 0)
