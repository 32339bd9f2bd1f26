"""What losses report and move, gradients between the backward pass and the step, steps by hand."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR

from rlplug import ALL_MODULES, Batch, Loss, Module
from rlplug.errors import PluginError, RunFailedError
from tests.learner.small import (
    ARRAYS,
    MODES,
    SAVES,
    Pair,
    Weight,
    batch,
    make,
    numbers,
    pair,
    unit,
    update,
    weights,
)

# -- losses ----------------------------------------------------------------------------------------


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


# -- gradients -------------------------------------------------------------------------------------


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


def learned(learner: Any, *rows: list[float], **how: Any) -> Any:
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
    metrics = learned(learner, [3.0, 4.0, 12.0])
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
        found = numbers(update(learner, 1.0), "grad_norm")
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
    assert learned(learner, [3.0, bad, 4.0])["nonfinite"] == 1
    assert moved(learner) == pytest.approx(after, abs=1e-3)
    assert "nonfinite" not in learned(learner, [1.0, 0.0, 0.0])
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
            learned(learner, [float("nan"), 0.0, 0.0])
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
        update(learner, *[0.125] * 4, 0.5, step=step, minibatch_size=2)
    # The mean of x is 0.2, twice; at weights of 2 it does not depend on them.
    assert weights(learner) == pytest.approx((2 - 0.4, 2 - 1.2), abs=1e-5)


# -- by term -------------------------------------------------------------------------------------


def test_terms_are_balanced_to_equal_norms() -> None:
    def loss(self: Any, module: Any) -> Any:
        terms = {"small": module.first.sum() * 0.1, "large": module.second.sum() * 100}
        return Loss(terms["small"] + terms["large"], terms=terms)

    learner = vector(loss=loss, learning={"balance_grad_norms": True, "max_grad_norm": 2.0})
    metrics = learned(learner)
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
    assert learned(learner, [6.0, 0.0, 0.0])["doubled"] == 2
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


# -- by hand ---------------------------------------------------------------------------------------


def test_an_update_can_be_made_step_by_step() -> None:
    whole, apart = make(ids=("a", "b")), make(ids=("a", "b"))
    rows = {"a": batch(3.0), "b": batch(5.0)}
    whole.update(rows, timestep=1)
    losses = apart.compute_loss(apart.forward_train(rows), rows)
    assert [float(losses[name].detach()) for name in ("a", "b", ALL_MODULES)] == [6.0, 10.0, 16.0]
    gradients = apart.postprocess_gradients(apart.compute_gradients(losses))
    own = [param for param in gradients if param is apart.modules["b"].weight]
    assert [float(gradients[param]) for param in own] == [5.0]
    apart.apply_gradients(gradients)
    for name in ("a", "b"):
        assert weights(apart, name) == weights(whole, name)
    assert weights(apart, "b")[0] == 1.5


def test_additional_update_sees_the_averages_and_can_be_called_for_some() -> None:
    seen = []

    def additional(self: Any, module_id: str, metrics: Any, timestep: int) -> Any:
        seen.append((module_id, {name: float(value) for name, value in metrics.items()}))
        return {"at": timestep}

    learner = make(ids=("a", "b"), finish=additional, learning={"max_grad_norm": 9})
    learner.update({"a": batch(1.0)}, timestep=1, num_iters=2)
    # The losses are 2.0 and, after a step of 0.1, 1.9.
    assert seen[0][1]["loss"] == pytest.approx(1.95)
    rows = {"a": batch(1.0), "b": batch(1.0)}
    assert learner.additional_update(rows, timestep=7) == {"a": {"at": 7}, "b": {"at": 7}}
    assert learner.timestep == 7
    assert learner.additional_update({"b": rows["b"]}, timestep=8, module_ids=["b"]) == {
        "b": {"at": 8}
    }
    assert seen[-1] == ("b", {})


def test_registered_metrics_are_reported_once_with_their_module() -> None:
    learner = make()
    learner.register_metric("default", "lives", 3)
    learner.register_metrics("default", {"deaths": 1})
    learner.register_metric(ALL_MODULES, "games", 3)
    results = learner.update({"default": batch(1.0)}, timestep=1)
    assert (results["default"]["lives"], results["default"]["deaths"]) == (3, 1)
    assert results[ALL_MODULES]["games"] == 3
    results = learner.update({"default": batch(1.0)}, timestep=2)
    assert not {"lives", "games"} & {*results["default"], *results[ALL_MODULES]}


# -- attributes ------------------------------------------------------------------------------------


class Holds:
    def __init__(self, value: Any) -> None:
        self.value = value


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cyclic(value: int) -> Holds:
    holder = Holds([value])
    holder.value.append(holder)
    return holder


@pytest.mark.parametrize(
    ("before", "after"),
    [
        *((1, 1.0), (1, True), (0.0, -0.0), ("1", b"1"), (None, "None")),
        *((torch.zeros(2), torch.ones(2)), (torch.zeros(2), torch.zeros(2, 1))),
        *((torch.zeros(2), torch.zeros(2).int()), (torch.zeros(1), nn.Parameter(torch.zeros(1)))),
        *((numpy.zeros(2), numpy.zeros((2, 1))), (numpy.zeros(2), numpy.zeros(2, int))),
        (numpy.arange(4).reshape(2, 2), numpy.arange(4).reshape(2, 2).T),
        *((generator(0), generator(1)), (nn.Linear(1, 1), nn.Linear(1, 1))),
        (numpy.random.default_rng(0), numpy.random.default_rng(1)),
        *(({"a": 1}, {"b": 1}), ({("a", ("b",)): 1}, {("a", ("c",)): 1})),
        *(([1, 2], [2, 1]), ([[1], 2], [[1, 2]]), ({1, 2}, frozenset((1, 2)))),
        (Holds([Holds({"a": 1})]), Holds([Holds({"a": 2})])),
        (cyclic(1), cyclic(2)),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("inside", [False, True])
def test_an_attribute_that_changes_without_save_state_is_found(
    before: Any, after: Any, inside: bool
) -> None:
    settings = changing([before] if inside else before, [after] if inside else after)
    with pytest.raises(PluginError, match="changed its attribute 'kept' during an update"):
        update(make(**settings), 1.0)
    # Whoever saves and loads a state may change what it likes.
    update(make(**settings, **SAVES), 1.0)


def changing(before: Any, after: Any) -> dict[str, Any]:
    """The hooks of a plugin that has another value in an attribute after each update."""

    def build(self: Any) -> Any:
        self.kept = list(before) if isinstance(before, list) else before
        return Weight()

    def change(self: Any) -> None:
        if isinstance(before, list) and isinstance(after, list):
            # The list itself stays.
            self.kept[:] = after
        else:
            self.kept = after

    return {"build": build, "finish": change}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        *((torch.ones(2, 2).T, torch.ones(2, 2)), (torch.arange(4)[::2], torch.tensor([0, 2]))),
        *((numpy.arange(4)[::2], numpy.array([0, 2])), ({3, 1, 2}, {1, 2, 3})),
        *((generator(3), generator(3)), (cyclic(1), cyclic(1))),
        (numpy.random.default_rng(3), numpy.random.default_rng(3)),
        # What is a matter of code, not of state.
        *((Holds(print), Holds(len)), (Holds(int), Holds(float))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_attribute_that_is_only_made_anew_needs_no_state(before: Any, after: Any) -> None:
    update(make(**changing(before, after)), 1.0)
