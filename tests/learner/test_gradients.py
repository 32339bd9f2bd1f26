"""Gradients between the backward pass and the step: dense, sparse, and by term."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from rlplug import Batch, Loss, Module
from rlplug.errors import RunFailedError
from tests.learner.small import ARRAYS, make, numbers, pair, unit, weights
from tests.learner.small import update as updated


class Vector(Module):
    """Three weights whose gradients are what the batch says."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(2))
        self.second = nn.Parameter(torch.zeros(1))

    def forward_train(self, batch: Any) -> Any:
        return {"out": (batch["g"] * torch.cat((self.first, self.second))).sum(1).mean()}


def vector(**known: Any) -> Any:
    hooks = {
        "build": lambda self: Vector(),
        "optimizers": unit,
        "loss": lambda self, fwd_out: fwd_out["out"],
    }
    return make(**{**hooks, **known})


def moved(learner: Any) -> list[float]:
    module = learner.modules["default"]
    return [round(-value, 4) for value in [*module.first.tolist(), *module.second.tolist()]]


def update(learner: Any, *rows: list[float], **how: Any) -> Any:
    given = {"default": Batch({"g": torch.tensor(rows or [[0.0] * 3])})}
    return learner.update(given, timestep=1, **how)["default"]


# -- clipping ------------------------------------------------------------------------------------


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
    ids=str,
)
def test_gradients_are_clipped_by_norm_by_tensor_and_by_value(
    learning: Any, expected: Any, after: Any
) -> None:
    learner = vector(learning=learning)
    metrics = update(learner, [3.0, 4.0, 12.0])
    assert moved(learner) == pytest.approx(expected, abs=1e-3)
    norm = 12.0 if learning.get("norm_type") else 13.0
    assert float(metrics["grad_norm"]) == pytest.approx(norm)
    if after is not None:
        assert float(metrics["grad_norm_clipped"]) == pytest.approx(after, rel=1e-4)


@ARRAYS
@pytest.mark.parametrize(
    ("over", "step", "expected"),
    [
        (
            "optimizer",
            (1.0, 1.0),
            {"/one": 3.0, "/two": 4.0, "_clipped/one": 1.0, "_clipped/two": 1.0},
        ),
        ("module", (0.6, 0.8), {"": 5.0, "_clipped": 1.0}),
    ],
)
def test_two_optimizers_are_clipped_apart_or_as_one(
    over: str, step: Any, expected: Any, arrays: str
) -> None:
    learner = make(
        optimizers=pair,
        loss=lambda self, fwd_out: fwd_out["out"].mean() * 3 + fwd_out["second"].mean() * 4,
        learning={"max_grad_norm": 1.0, "clip_over": over},
        compute={"arrays": arrays},
    )
    for count in (1, 2, 3):
        found = numbers(updated(learner, 1.0), "grad_norm")
        named = {f"grad_norm{name}": value for name, value in expected.items()}
        assert found == pytest.approx(named, abs=1e-4)
        assert weights(learner) == pytest.approx([2 - count * part for part in step], abs=1e-3)


# -- numbers that are not finite -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("learning", "after"), [({}, [0.0, 0.0, 0.0]), ({"nonfinite": "zero"}, [3.0, 0.0, 4.0])]
)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_step_with_bad_numbers_is_skipped_or_made_without_them(
    learning: Any, after: Any, bad: float
) -> None:
    learner = vector(learning={"max_grad_norm": 5.0, **learning})
    assert update(learner, [3.0, bad, 4.0])["nonfinite"] == 1
    assert moved(learner) == pytest.approx(after, abs=1e-3)
    assert "nonfinite" not in update(learner, [1.0, 0.0, 0.0])
    assert moved(learner)[0] == pytest.approx(after[0] + 1, abs=1e-3)


def test_stop_names_the_parameters_and_the_term() -> None:
    def of_nan(self: Any, module: Any, batch: Any) -> Any:
        good = module.second.sum()
        bad = (module.first * batch["g"][0, :2]).sum()
        return Loss(good + bad, terms={"value_loss": good, "policy_loss": bad})

    def of_root(self: Any, module: Any) -> Any:
        root, fine = module.first.sqrt().sum(), module.second.sum()
        return Loss(root + fine, terms={"root": root, "fine": fine})

    for loss, told in ((of_nan, "'policy_loss' is nan"), (of_root, "'root' is finite, its grad")):
        learner = vector(loss=loss, learning={"nonfinite": "stop"})
        with pytest.raises(RunFailedError, match=r"not finite: first\.") as raised:
            update(learner, [float("nan"), 0.0, 0.0])
        assert told in str(raised.value)
        assert not any(term in str(raised.value) for term in ("value_loss", "fine "))


# -- accumulated minibatches ---------------------------------------------------------------------


@ARRAYS
@pytest.mark.parametrize("how", ["whole", "named", "terms"])
def test_accumulated_minibatches_of_all_kinds_of_losses_equal_the_big_batch(
    how: str, arrays: str
) -> None:
    def loss(self: Any, fwd_out: Any) -> Any:
        parts = {"one": fwd_out["out"].mean(), "two": fwd_out["second"].mean() * 3}
        return Loss(parts) if how == "named" else Loss(parts["one"] + parts["two"], terms=parts)

    reads = {"gradients": lambda self, term_gradients: None} if how == "terms" else {}
    learner = make(
        optimizers=pair, loss=loss, compute={"arrays": arrays}, learning={"accumulate": 3}, **reads
    )
    for step in (1, 2):
        updated(learner, *[0.125] * 4, 0.5, step=step, minibatch_size=2)
    # The mean of x is 0.2, twice; at weights of 2 it does not depend on them.
    assert weights(learner) == pytest.approx((2 - 0.4, 2 - 1.2), abs=1e-5)


# -- by term -------------------------------------------------------------------------------------


def test_terms_are_balanced_to_equal_norms() -> None:
    def loss(self: Any, module: Any) -> Any:
        terms = {"small": module.first.sum() * 0.1, "large": module.second.sum() * 100}
        return Loss(terms["small"] + terms["large"], terms=terms)

    learner = vector(loss=loss, learning={"balance_grad_norms": True, "max_grad_norm": 2.0})
    metrics = update(learner)
    # Two terms, a limit of 2: each gets norm 1.
    assert moved(learner) == pytest.approx([0.5**0.5, 0.5**0.5, 1.0], abs=1e-3)
    assert float(metrics["grad_norm_of/large"]) == pytest.approx(100.0)


# -- hooks ---------------------------------------------------------------------------------------


def test_hooks_change_gradients_in_order_before_clipping() -> None:
    def double(self: Any, gradients: Any, metrics: Any) -> None:
        for gradient in gradients.values():
            gradient.mul_(2)
        metrics["doubled"] = len(gradients)

    def add(self: Any, gradients: Any) -> None:
        gradients["second"] = gradients["second"] + 1

    learner = vector(
        learning={"max_grad_norm": 13.0}, gradients=double, addons={"later": {"gradients": add}}
    )
    # Doubled (12, 0, 0), one added (12, 0, 1), and the norm of that stays below 13.
    assert update(learner, [6.0, 0.0, 0.0])["doubled"] == 2
    assert moved(learner) == [12.0, 0.0, 1.0]


# -- sparse gradients of embeddings --------------------------------------------------------------


class Embedded(Module):
    """An embedding of five symbols and a layer on top of it."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3, sparse=sparse)
        self.layer = nn.Linear(3, 1)
        with torch.no_grad():
            for index, param in enumerate(self.parameters(), 1):
                param.copy_(torch.arange(param.numel()).reshape(param.shape) / 10 / index)

    def forward_train(self, batch: Batch) -> Any:
        return {"out": self.layer(self.embedding(batch["symbols"]))[:, 0]}


def embedded(sparse: bool, **known: Any) -> Any:
    hooks = {
        "build": lambda self: Embedded(sparse),
        "optimizers": lambda self, module: SGD(module.parameters(), lr=0.5),
        "loss": squares,
    }
    return make(**{**hooks, **known})


def squares(self: Any, fwd_out: Any, batch: Batch) -> Any:
    return ((fwd_out["out"] - batch["x"]) ** 2).mean()


def terms(self: Any, fwd_out: Any, batch: Batch, module: Any) -> Any:
    """The second one has a dense gradient of the very embedding."""
    parts = {"one": squares(self, fwd_out, batch), "other": module.embedding.weight.square().sum()}
    return Loss(parts["one"] + parts["other"], terms=parts)


def twice(self: Any, gradients: Any) -> None:
    for name in gradients:
        gradients[name] = gradients[name] * 2


def symbols(bad: float = 0.0) -> dict[str, Batch]:
    # The symbols 0 and 3 come twice.
    targets = torch.tensor([9.0, 8.0, -7.0, 6.0, 5.0, -4.0 + bad])
    return {"default": Batch({"symbols": torch.tensor([0, 0, 3, 3, 4, 1]), "x": targets})}


def trained(learner: Any, **how: Any) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """The weights after three updates, and the norms of the last one's gradients."""
    for step in range(3):
        results = learner.update(symbols(), timestep=step, **how)["default"]
    return learner.modules["default"].state_dict(), numbers(results, "grad_norm")


CASES: dict[str, dict[str, Any]] = {
    "global norm": {"learning": {"max_grad_norm": 0.5}},
    "norm": {"learning": {"max_grad_norm": 0.5, "clip_by": "norm"}},
    "value": {"learning": {"max_grad_norm": 0.5, "clip_by": "value"}},
    "largest": {"learning": {"max_grad_norm": 0.5, "norm_type": float("inf")}},
    "zero": {"learning": {"nonfinite": "zero"}},
    "accumulated": {"learning": {"accumulate": 2}},
    "hooks": {"gradients": twice},
    "terms": {"loss": terms, "learning": {"balance_grad_norms": True}},
    "arrays": {"compute": {"arrays": "auto"}},
}


@pytest.mark.parametrize("name", CASES)
def test_updates_by_sparse_gradients_are_those_by_dense_ones(name: str) -> None:
    how = {"minibatch_size": 3} if name == "accumulated" else {}
    learner = embedded(sparse=True, **CASES[name])
    found, norms = trained(learner, **how)
    same, same_norms = trained(embedded(sparse=False, **CASES[name]), **how)
    torch.testing.assert_close(found, same)
    assert norms == pytest.approx(same_norms)
    assert learner.engines["default"][0] == "torch"
