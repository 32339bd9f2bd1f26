"""Losses that bring their gradients: the same steps as autograd's, whoever takes part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adam

from rlplug import KnownLoss, Loss
from rlplug.errors import PluginError
from rlplug.nn.closed import Gradients


def known(self: Any, module: Any, batch: Any) -> KnownLoss:
    """weight * mean(x) + other * 3, term by term."""
    mean = float(batch["x"].mean())
    numbers = {"first": module.weight.item() * mean, "second": module.other.item() * 3}

    def gradients(weights: Mapping[str, float]) -> Mapping[str, Tensor]:
        return {
            "weight": torch.tensor([mean * weights.get("first", 1.0)]),
            "other": torch.tensor([3 * weights.get("second", 1.0)]),
        }

    return KnownLoss(module, sum(numbers.values()), gradients, numbers=numbers)


def weights_of(learner: Any) -> tuple[float, float]:
    module = learner.modules["default"]
    return module.weight.item(), module.other.item()


def test_gradients_are_taken_as_they_are(make: Any, batch: Any) -> None:
    learner = make(compute_loss_for_module=known)
    metrics = learner.update({"default": batch(5.0)}, timestep=1)["default"]
    assert weights_of(learner) == pytest.approx((2 - 0.1 * 5, 2 - 0.1 * 3))
    assert float(metrics["loss"]) == 16.0
    assert (metrics["first"], metrics["second"]) == (10.0, 6.0)


def test_terms_of_add_ons_join_them(make: Any, batch: Any) -> None:
    def addon_loss(self: Any, module: Any) -> Any:
        return (10 * module.weight).sum()

    learner = make(
        compute_loss_for_module=known,
        addons={"extra-term": {"compute_loss_for_module": addon_loss}},
    )
    metrics = learner.update({"default": batch(5.0)}, timestep=1)["default"]
    assert weights_of(learner) == pytest.approx((2 - 0.1 * 15, 2 - 0.1 * 3))
    assert float(metrics["loss/alg"]) == 16.0
    assert float(metrics["first"]) == 10.0


def test_who_asks_for_gradients_by_term_gets_them(make: Any, batch: Any) -> None:
    seen: dict[str, dict[str, Tensor]] = {}

    def look(self: Any, term_gradients: Any) -> None:
        seen.update(term_gradients)

    learner = make(compute_loss_for_module=known, addons={"look": {"postprocess_gradients": look}})
    learner.update({"default": batch(5.0)}, timestep=1)
    assert seen["first"]["weight"].item() == 5.0
    assert seen["first"]["other"].item() == 0.0
    assert seen["second"]["other"].item() == 3.0
    assert weights_of(learner) == pytest.approx((2 - 0.1 * 5, 2 - 0.1 * 3))


def test_two_optimizers_move_their_own(make: Any, batch: Any) -> None:
    def pair(self: Any, module: Any) -> Any:
        return {"a": SGD([module.weight], lr=1.0), "b": SGD([module.other], lr=0.5)}

    learner = make(compute_loss_for_module=known, configure_optimizers_for_module=pair)
    learner.update({"default": batch(5.0)}, timestep=1)
    assert weights_of(learner) == pytest.approx((2 - 5, 2 - 0.5 * 3))


@pytest.mark.parametrize("again", ["value", "terms"])
def test_whoever_reckons_on_with_it_has_tensors_with_gradients(
    make: Any, batch: Any, again: str
) -> None:
    def scaled(self: Any, module: Any, batch: Any) -> Any:
        loss = known(self, module, batch)
        if again == "value":
            return Loss(loss.value * 2)
        return Loss(2 * loss.terms["first"] + loss.terms["second"] * 2)

    learner = make(compute_loss_for_module=scaled)
    learner.update({"default": batch(5.0)}, timestep=1)
    assert weights_of(learner) == pytest.approx((2 - 0.1 * 10, 2 - 0.1 * 6))


def test_what_is_not_trained_stays(make: Any, batch: Any) -> None:
    def first_only(self: Any, module: Any) -> Any:
        module.other.requires_grad_(False)
        return SGD([module.weight], lr=1.0)

    learner = make(compute_loss_for_module=known, configure_optimizers_for_module=first_only)
    learner.update({"default": batch(5.0)}, timestep=1)
    assert weights_of(learner) == (-3.0, 2.0)
    assert learner.modules["default"].other.grad is None


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        ({"wieght": torch.ones(1)}, "Did you mean 'weight'"),
        ({"weight": torch.ones(2)}, r"of shape \(2,\), the parameter has \(1,\)"),
    ],
)
def test_gradients_that_fit_no_parameter_are_refused(
    make: Any, batch: Any, found: dict[str, Tensor], complaint: str
) -> None:
    def wrong(self: Any, module: Any) -> KnownLoss:
        return KnownLoss(module, 1.0, lambda weights: found)

    learner = make(compute_loss_for_module=wrong)
    with pytest.raises(PluginError, match=complaint):
        learner.update({"default": batch(5.0)}, timestep=1)


def test_what_is_known_needs_no_compiler(make: Any, batch: Any) -> None:
    learner = make(compute_loss_for_module=known, compute={"compile": True})
    with pytest.warns(UserWarning, match="known in closed form"):
        learner.update({"default": batch(5.0)}, timestep=1)
    assert not learner.stages["default"].is_compiled
    learner.update({"default": batch(5.0)}, timestep=2)
    assert weights_of(learner) == pytest.approx((2 - 0.1 * 10, 2 - 0.1 * 6))


class Lasting:
    """Gradients that are written again in place, as closed forms do."""

    def __init__(self) -> None:
        self.flat = numpy.zeros(2, numpy.float32)
        self.found = Gradients(["weight", "other"], [self.flat[:1], self.flat[1:]], self.flat)

    def loss(self, module: Any, batch: Any) -> KnownLoss:
        """mean(x) * (weight + 2 * other)."""
        mean = float(batch["x"].mean())

        def gradients(_: Mapping[str, float]) -> Mapping[str, Tensor]:
            self.flat[:] = mean, 2 * mean
            return self.found

        return KnownLoss(module, mean * (module.weight.item() + 2 * module.other.item()), gradients)


def updated(make: Any, batch: Any, means: list[float], **options: Any) -> Any:
    lasting = Lasting()

    def loss(self: Any, module: Any, batch: Any) -> KnownLoss:
        return lasting.loss(module, batch)

    learner = make(compute_loss_for_module=loss, **options)
    for timestep, mean in enumerate(means, 1):
        learner.update({"default": batch(mean)}, timestep=timestep)
    return learner


def test_gradients_written_in_place_are_those_of_each_update(make: Any, batch: Any) -> None:
    learner = updated(make, batch, [1.0, 2.0, 3.0])
    assert weights_of(learner) == pytest.approx((2 - 0.1 * 6, 2 - 0.1 * 12))


def test_they_are_clipped_as_any_others(make: Any, batch: Any) -> None:
    limit = 5**0.5
    learner = updated(make, batch, [1.0, 2.0, 3.0], learning={"max_grad_norm": limit})
    assert weights_of(learner) == pytest.approx((2 - 0.1 * 3, 2 - 0.1 * 6))


def test_who_keeps_them_keeps_what_was_seen(make: Any, batch: Any) -> None:
    kept: list[Tensor] = []

    def keep(self: Any, gradients: Any) -> None:
        kept.append(gradients["weight"])

    updated(make, batch, [1.0, 2.0, 3.0], addons={"keeps": {"postprocess_gradients": keep}})
    assert [one.item() for one in kept] == [1.0, 2.0, 3.0]


def test_a_parameter_that_is_frozen_on_the_way_stays(make: Any, batch: Any) -> None:
    learner = updated(make, batch, [1.0, 2.0])
    learner.modules["default"].other.requires_grad_(False)
    learner.update({"default": batch(3.0)}, timestep=3)
    assert weights_of(learner) == pytest.approx((2 - 0.1 * 6, 2 - 0.1 * 6))


@pytest.mark.parametrize("names", [("weight", "other"), ("other", "weight")])
def test_each_parameter_gets_its_own_in_whatever_order(
    make: Any, batch: Any, names: tuple[str, str]
) -> None:
    def adam(self: Any, module: Any) -> Any:
        # With so large an epsilon a step depends on the size of its gradient.
        params = [getattr(module, name) for name in names]
        return Adam(params, lr=0.1, eps=1.0, fused=True)

    learner = updated(make, batch, [1.0, 1.0, 1.0], configure_optimizers_for_module=adam)
    # Of a gradient that stays the same, Adam's averages are the gradient and its square.
    weights = 2 - 3 * 0.1 * 1 / (1 + 1), 2 - 3 * 0.1 * 2 / (2 + 1)
    assert weights_of(learner) == pytest.approx(weights, abs=1e-6)


def test_they_serve_minibatches_in_several_passes(make: Any, batch: Any) -> None:
    learner = updated(make, batch, [])
    learner.update({"default": batch(1.0, 2.0, 3.0)}, timestep=1, num_iters=2, minibatch_size=1)
    assert weights_of(learner) == pytest.approx((2 - 0.1 * 12, 2 - 0.1 * 24))


def test_what_is_not_finite_is_skipped_as_with_any_others(make: Any, batch: Any) -> None:
    learner = updated(make, batch, [1.0, 2.0], learning={"nonfinite": "skip"})
    results = learner.update({"default": batch(float("nan"))}, timestep=3)
    assert float(results["default"]["nonfinite"]) == 1.0
    learner.update({"default": batch(3.0)}, timestep=4)
    assert weights_of(learner) == pytest.approx((2 - 0.1 * 6, 2 - 0.1 * 12))


def test_a_loss_without_them_in_between_moves_by_its_own(make: Any, batch: Any) -> None:
    lasting = Lasting()

    def loss(self: Any, module: Any, batch: Any) -> Any:
        mean = float(batch["x"].mean())
        return (mean * module.weight).sum() if mean > 5 else lasting.loss(module, batch)

    learner = make(compute_loss_for_module=loss)
    for timestep, mean in enumerate([1.0, 2.0, 10.0, 3.0], 1):
        learner.update({"default": batch(mean)}, timestep=timestep)
    assert weights_of(learner) == pytest.approx((2 - 0.1 * 16, 2 - 0.1 * 12))


def test_a_loss_that_stops_ends_the_passes(make: Any, batch: Any) -> None:
    lasting = Lasting()
    taken: list[float] = []

    def loss(self: Any, module: Any, batch: Any) -> KnownLoss:
        taken.append(float(batch["x"].mean()))
        known = lasting.loss(module, batch)
        stop = torch.tensor(len(taken) == 4)
        return KnownLoss(module, known.number, known.find, stop=stop)

    learner = make(compute_loss_for_module=loss)
    learner.update({"default": batch(1.0, 2.0, 3.0)}, timestep=1, num_iters=9, minibatch_size=1)
    assert len(taken) == 4
    assert weights_of(learner) == pytest.approx((2 - 0.1 * 6, 2 - 0.1 * 12))


def test_autograd_may_go_through_them_twice(make: Any, batch: Any) -> None:
    learner = updated(make, batch, [])
    module = learner.modules["default"]
    loss = Lasting().loss(module, batch(3.0))
    for _ in range(2):
        loss.value.backward(retain_graph=True)
    assert (module.weight.grad.item(), module.other.grad.item()) == (6.0, 12.0)
