"""Gradients between the backward pass and the step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim import SGD

from rlplug import Batch, Loss, Module
from rlplug.errors import PluginError, RunFailedError


class Vector(Module):
    """Two weights whose gradients are what the batch says."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(2))
        self.second = torch.nn.Parameter(torch.zeros(1))

    def forward_train(self, batch: Any) -> Any:
        return {"out": (batch["g"] * torch.cat((self.first, self.second))).sum(1).mean()}


def settings(**learning: Any) -> dict[str, Any]:
    return {
        "build": lambda self: Vector(),
        "configure_optimizers_for_module": lambda self, module: SGD(module.parameters(), lr=1.0),
        "compute_loss_for_module": lambda self, fwd_out: fwd_out["out"],
        "learning": learning,
    }


def moved(learner: Any) -> list[float]:
    module = learner.modules["default"]
    return [round(-value, 4) for value in [*module.first.tolist(), *module.second.tolist()]]


def update(learner: Any, *rows: list[float], **how: Any) -> Any:
    return learner.update({"default": Batch({"g": torch.tensor(rows)})}, timestep=1, **how)[
        "default"
    ]


@pytest.mark.parametrize(
    ("learning", "expected", "after"),
    [
        ({}, [3.0, 4.0, 12.0], None),
        # The norm of (3, 4, 12) is 13.
        ({"max_grad_norm": 6.5}, [1.5, 2.0, 6.0], 6.5),
        ({"max_grad_norm": 26.0}, [3.0, 4.0, 12.0], 13.0),
        # Tensor by tensor: (3, 4) has norm 5, (12) has norm 12.
        ({"max_grad_norm": 6.0, "clip_by": "norm"}, [3.0, 4.0, 6.0], 61**0.5),
        ({"max_grad_norm": 3.5, "clip_by": "value"}, [3.0, 3.5, 3.5], 33.5**0.5),
        ({"max_grad_norm": 6.0, "norm_type": float("inf")}, [1.5, 2.0, 6.0], 6.0),
    ],
)
def test_gradients_are_clipped_by_norm_by_tensor_and_by_value(
    make: Any, learning: Any, expected: Any, after: Any
) -> None:
    learner = make(**settings(**learning))
    metrics = update(learner, [3.0, 4.0, 12.0])
    assert moved(learner) == pytest.approx(expected, abs=1e-3)
    wanted = 12.0 if learning.get("norm_type") else 13.0
    assert float(metrics["grad_norm"]) == pytest.approx(wanted)
    if after is not None:
        assert float(metrics["grad_norm_clipped"]) == pytest.approx(after, rel=1e-4)


@pytest.mark.parametrize(
    ("over", "expected"), [("optimizer", [3.0, 4.0, 5.0]), ("module", [15 / 13, 20 / 13, 60 / 13])]
)
def test_the_norm_is_taken_per_optimizer_or_over_the_whole_module(
    make: Any, over: str, expected: Any
) -> None:
    def two(self: Any, module: Any) -> Any:
        return [SGD([module.first], lr=1.0), SGD([module.second], lr=1.0)]

    known = settings(max_grad_norm=5.0, clip_over=over)
    learner = make(**{**known, "configure_optimizers_for_module": two})
    update(learner, [3.0, 4.0, 12.0])
    assert moved(learner) == pytest.approx(expected, abs=1e-3)


def test_a_step_with_nan_is_skipped_and_counted(make: Any) -> None:
    learner = make(**settings(max_grad_norm=5.0))
    metrics = update(learner, [1.0, float("nan"), 2.0])
    assert moved(learner) == [0.0, 0.0, 0.0]
    assert metrics["nonfinite"] == 1
    assert "nonfinite" not in update(learner, [1.0, 0.0, 0.0])
    assert moved(learner) == [1.0, 0.0, 0.0]


def test_zero_puts_only_the_bad_numbers_to_zero(make: Any) -> None:
    learner = make(**settings(nonfinite="zero", max_grad_norm=5.0))
    metrics = update(learner, [3.0, float("inf"), 4.0])
    assert moved(learner) == pytest.approx([3.0, 0.0, 4.0], abs=1e-3)
    assert metrics["nonfinite"] == 1


def test_stop_names_the_term_and_the_parameter(make: Any) -> None:
    def loss(self: Any, module: Any, batch: Any) -> Any:
        good = module.second.sum()
        bad = (module.first * batch["g"][0, :2]).sum()
        return Loss(good + bad, terms={"value_loss": good, "policy_loss": bad})

    learner = make(**{**settings(nonfinite="stop"), "compute_loss_for_module": loss})
    with pytest.raises(RunFailedError, match="'policy_loss' is nan") as raised:
        update(learner, [float("nan"), 0.0, 0.0])
    assert "first" in str(raised.value)
    assert "value_loss" not in str(raised.value)


def test_accumulating_minibatches_equals_the_big_batch(make: Any) -> None:
    rows = torch.randn(10, 3, generator=torch.Generator().manual_seed(0)).tolist()
    big, small = make(**settings()), make(**settings(accumulate=4))
    update(big, *rows)
    # Ten rows in threes: four minibatches, the last one of a single row, and one step.
    update(small, *rows, minibatch_size=3)
    assert moved(small) == pytest.approx(moved(big), abs=1e-4)
    assert any(moved(big))


def test_a_minibatch_without_a_loss_does_not_thin_the_average(make: Any) -> None:
    def loss(self: Any, module: Any, batch: Any) -> Any:
        if batch["g"][0, 0] == 0:
            return None
        return (torch.cat((module.first, module.second)) * batch["g"].mean(0)).sum()

    learner = make(**{**settings(accumulate=2), "compute_loss_for_module": loss})
    update(learner, [0.0, 0.0, 0.0], [3.0, 4.0, 12.0], minibatch_size=1)
    assert moved(learner) == pytest.approx([3.0, 4.0, 12.0], abs=1e-4)


def test_terms_are_balanced_to_equal_norms(make: Any) -> None:
    def loss(self: Any, module: Any, batch: Any) -> Any:
        small, large = module.first.sum() * 0.1, module.second.sum() * 100
        return Loss(small + large, terms={"small": small, "large": large})

    known = settings(balance_grad_norms=True, max_grad_norm=2.0)
    learner = make(**{**known, "compute_loss_for_module": loss})
    metrics = update(learner, [0.0, 0.0, 0.0])
    # Two terms, a limit of 2: each gets norm 1.
    assert moved(learner) == pytest.approx([0.5**0.5, 0.5**0.5, 1.0], abs=1e-3)
    assert float(metrics["grad_norm_of/large"]) == pytest.approx(100.0)


def test_term_gradients_are_there_for_who_names_them_and_add_up(make: Any) -> None:
    seen: dict[str, Any] = {}

    def loss(self: Any, module: Any) -> Any:
        first, second = module.first.sum() * 2, module.second.sum() * 3
        return Loss(first + second, terms={"a": first, "b": second})

    def postprocess(self: Any, gradients: Any, term_gradients: Any) -> None:
        seen.update({term: sorted(names) for term, names in term_gradients.items()})
        gradients["second"] = term_gradients["b"]["second"] * 2

    learner = make(
        **{**settings(), "compute_loss_for_module": loss, "postprocess_gradients": postprocess}
    )
    update(learner, [0.0, 0.0, 0.0])
    assert seen == {"a": ["first"], "b": ["second"]}
    assert moved(learner) == [2.0, 2.0, 6.0]


def test_terms_that_do_not_add_up_are_refused_where_gradients_by_term_are_wanted(
    make: Any,
) -> None:
    def loss(self: Any, module: Any) -> Any:
        first = (module.first + 1).sum()
        return Loss(first * 2, terms={"a": first})

    known = settings(balance_grad_norms=True)
    learner = make(**{**known, "compute_loss_for_module": loss})
    with pytest.raises(PluginError, match="add up to 2, the loss is 4"):
        update(learner, [0.0, 0.0, 0.0])


def test_hooks_change_gradients_in_order_before_clipping(make: Any) -> None:
    def double(self: Any, gradients: Any, metrics: Any) -> None:
        for gradient in gradients.values():
            gradient.mul_(2)
        metrics["doubled"] = len(gradients)

    def add(self: Any, gradients: Any) -> None:
        gradients["second"] = gradients["second"] + 1

    learner = make(
        **settings(max_grad_norm=13.0),
        postprocess_gradients=double,
        addons={"later": {"postprocess_gradients": add}},
    )
    metrics = update(learner, [6.0, 0.0, 0.0])
    # Doubled (12, 0, 0), one added (12, 0, 1), and the norm of that stays below 13.
    assert moved(learner) == [12.0, 0.0, 1.0]
    assert metrics["doubled"] == 2


def test_the_algorithm_sees_its_own_gradients_and_addons_see_all(make: Any) -> None:
    seen: dict[str, list[str]] = {}

    def look(self: Any, gradients: Any) -> None:
        seen[type(self).__name__] = sorted(gradients)

    addon = {
        "build_extra": lambda self: torch.nn.Linear(1, 1, bias=False),
        "configure_optimizers_for_module": lambda self, extra: SGD(extra.parameters(), lr=1.0),
        "compute_loss_for_module": lambda self, extra: extra.weight.sum(),
        "postprocess_gradients": look,
    }
    learner = make(**settings(), postprocess_gradients=look, addons={"spy": addon})
    update(learner, [1.0, 1.0, 1.0])
    assert seen == {"Alg": ["first", "second"], "Spy": ["first", "second", "spy.weight"]}


def test_a_gradient_that_vanishes_is_refused(make: Any) -> None:
    def lose(self: Any, gradients: Any) -> None:
        del gradients["second"]

    learner = make(**settings(), postprocess_gradients=lose)
    with pytest.raises(PluginError, match="plugin 'alg' let the gradient of 'second' vanish"):
        update(learner, [1.0, 1.0, 1.0])


def test_a_gradient_for_anothers_parameter_is_refused(make: Any) -> None:
    def invent(self: Any, gradients: Any) -> None:
        gradients["spy.weight"] = torch.zeros(1)

    learner = make(**settings(), postprocess_gradients=invent)
    with pytest.raises(PluginError, match=r"gave a gradient to 'spy\.weight'"):
        update(learner, [1.0, 1.0, 1.0])


@pytest.mark.parametrize("how", ["named", "by term", "hooked"])
def test_fused_optimizers_get_gradients_laid_out_as_their_parameters(make: Any, how: str) -> None:
    class Wide(Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 4)

        def forward_train(self, batch: Any) -> Any:
            return {"out": self.layer(batch["x"]).pow(2).mean()}

    def loss(self: Any, fwd_out: Any) -> Any:
        value = fwd_out["out"]
        if how == "named":
            return Loss({"default": value})
        return Loss(value, terms={"all": value})

    def transpose(self: Any, gradients: Any) -> None:
        for name, gradient in gradients.items():
            gradients[name] = gradient.t().contiguous().t()

    known: dict[str, Any] = {
        "build": lambda self: Wide(),
        "configure_optimizers_for_module": None,
    }
    changed: dict[str, Any] = {
        "named": {},
        "by term": {"postprocess_gradients": lambda self, term_gradients: None},
        "hooked": {"postprocess_gradients": transpose},
    }[how]
    plain = make(**known, compute_loss_for_module=lambda self, fwd_out: fwd_out["out"])
    other = make(**known, compute_loss_for_module=loss, **changed)
    rows = {"default": Batch({"x": torch.randn(8, 3)})}
    for step in range(3):
        for learner in (plain, other):
            learner.update(rows, timestep=step)
    torch.testing.assert_close(
        plain.modules["default"].layer.weight, other.modules["default"].layer.weight
    )
