"""What single lines of an update are for: each of these numbers depends on one of them."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from rlplug import ALL_MODULES, Loss, Module
from rlplug.errors import PluginError, RequestError, RunFailedError
from rlplug.learner.by_hand import mean_results, reduced
from rlplug.learner.learner import as_tensors
from rlplug.learner.step import average


def unit(self: Any, module: Any) -> Any:
    return SGD(module.parameters(), lr=1.0)


def pair(self: Any, module: Any) -> Any:
    return {"one": SGD([module.weight], lr=1.0), "two": SGD([module.other], lr=1.0)}


def weights(learner: Any, module_id: str = "default") -> tuple[float, float]:
    module = learner.modules[module_id]
    return round(module.weight.item(), 5), round(module.other.item(), 5)


# -- steps that do not happen --------------------------------------------------------------------


def test_a_stop_in_a_later_part_of_a_step_takes_the_whole_step_back(make: Any, batch: Any) -> None:
    seen: list[float] = []
    changed: list[int] = []

    def loss(self: Any, fwd_out: Any, batch: Any) -> Any:
        seen.append(float(batch["x"].mean()))
        return Loss(fwd_out["out"].mean(), stop=torch.tensor(len(seen) == 2))

    learner = make(
        configure_optimizers_for_module=unit,
        compute_loss_for_module=loss,
        postprocess_gradients=lambda self: changed.append(1),
        learning={"accumulate": 3},
    )
    learner.update({"default": batch(1.0, 1.0, 1.0)}, timestep=1, num_iters=2, minibatch_size=1)
    # Neither the third part nor the second pass is looked at.
    assert (seen, changed, weights(learner)) == ([1.0, 1.0], [], (2.0, 2.0))
    learner.update({"default": batch(1.0, 1.0, 1.0)}, timestep=2, minibatch_size=1)
    assert (len(seen), changed, weights(learner)) == (5, [1], (1.0, 2.0))


def test_minibatches_without_a_loss_are_counted_in_each_update_anew(make: Any, batch: Any) -> None:
    learner = make(compute_loss_for_module=lambda self: None)
    for step in (1, 2):
        metrics = learner.update({"default": batch(1.0)}, timestep=step, num_iters=3)["default"]
        assert metrics["skipped"] == 3


def test_a_loss_of_an_optimizer_that_rests_is_none(make: Any, batch: Any) -> None:
    def turns(self: Any, module: Any) -> Any:
        made = pair(self, module)
        return {name: {"optimizer": one, "frequency": 1} for name, one in made.items()}

    def loss(self: Any, fwd_out: Any) -> Any:
        return Loss({"two": fwd_out["second"].mean()})

    learner = make(configure_optimizers_for_module=turns, compute_loss_for_module=loss)
    metrics = learner.update({"default": batch(1.0)}, timestep=1, num_iters=2)["default"]
    # It is the turn of the first for as long as it has not stepped.
    assert metrics["skipped"] == 2
    assert "loss" not in metrics
    assert weights(learner) == (2.0, 2.0)


# -- losses --------------------------------------------------------------------------------------


def test_two_plugins_add_to_the_loss_of_one_optimizer(make: Any, batch: Any) -> None:
    def loss(self: Any, fwd_out: Any) -> Any:
        return Loss({"one": fwd_out["out"].mean(), "two": fwd_out["second"].mean()})

    def more(self: Any, fwd_out: Any) -> Any:
        return Loss({"one": fwd_out["out"].mean() * 2})

    learner = make(
        configure_optimizers_for_module=pair,
        compute_loss_for_module=loss,
        addons={"more": {"compute_loss_for_module": more}},
    )
    metrics = learner.update({"default": batch(0.25)}, timestep=1)["default"]
    assert weights(learner) == (1.25, 1.75)
    found = {name: float(metrics[name]) for name in metrics if name.startswith("loss")}
    assert found == {
        "loss": 2.0,
        "loss/one": 1.5,
        "loss/two": 0.5,
        "loss/alg": 1.0,
        "loss/more": 1.0,
    }


@pytest.mark.parametrize("compute", [{}, {"arrays": "auto"}], ids=str)
def test_terms_and_metrics_are_reported_as_plain_numbers_under_the_names_of_their_plugins(
    make: Any, batch: Any, compute: Any
) -> None:
    def loss(self: Any, fwd_out: Any) -> Any:
        value = fwd_out["out"].mean()
        return Loss(value, terms={"value": value}, metrics={"seen": value * 3, "count": 4})

    learner = make(
        compute_loss_for_module=loss,
        addons={"more": {"compute_loss_for_module": loss}},
        options={"learning_rate": 1e-9},
        compute=compute,
    )
    for step in range(3):
        metrics = learner.update({"default": batch(1.0)}, timestep=step)["default"]
        found = {name: float(value) for name, value in metrics.items()}
        assert found == pytest.approx(
            {
                "loss": 4.0,
                "loss/alg": 2.0,
                "loss/more": 2.0,
                "value": 2.0,
                "more/value": 2.0,
                "seen": 6.0,
                "more/seen": 6.0,
                "count": 4,
                "more/count": 4,
                "grad_norm": 2.0,
                "learning_rate": 1e-9,
            }
        )
        kept = [value for value in metrics.values() if isinstance(value, torch.Tensor)]
        assert not any(value.requires_grad for value in kept)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (
            lambda out: out["out"],
            r"of optimizer 'one' of plugin 'alg' is Tensor of shape \(2,\)",
        ),
        (lambda out: torch.zeros(()), "of optimizer 'one' .* is connected to no parameter"),
        (lambda out: 3.0, "of optimizer 'one' of plugin 'alg' is float"),
    ],
)
def test_a_named_loss_that_nothing_can_be_learned_from_is_refused(
    make: Any, batch: Any, part: Any, message: str
) -> None:
    learner = make(
        configure_optimizers_for_module=pair,
        compute_loss_for_module=lambda self, fwd_out: Loss({"one": part(fwd_out)}),
    )
    with pytest.raises(PluginError, match=message):
        learner.update({"default": batch(1.0, 1.0)}, timestep=1)


def test_what_is_not_finite_is_told_by_parameter_and_by_term(make: Any, batch: Any) -> None:
    def loss(self: Any, module: Any) -> Any:
        root = (module.weight - 2).sqrt().sum()
        fine = module.other.sum()
        return Loss(root + fine, terms={"root": root, "fine": fine})

    learner = make(compute_loss_for_module=loss, learning={"nonfinite": "stop"})
    with pytest.raises(RunFailedError) as raised:
        learner.update({"default": batch(1.0)}, timestep=1)
    assert raised.value.message == "gradients of module 'default' are not finite: weight."
    assert raised.value.hints[0] == "loss term 'root' is finite, its gradient of 'weight' is not"
    assert len(raised.value.hints) == 2


def test_averages_are_over_the_minibatches_that_have_the_metric() -> None:
    one, two = torch.tensor(1), torch.tensor(2.0)
    assert average([{"a": 1, "b": two}]) == {"a": 1, "b": two}
    found = average([{"a": 1, "b": one}, {"a": 2, "b": torch.tensor(2), "c": 5}, {"d": two}])
    assert (found["a"], found["c"], float(found["b"]), float(found["d"])) == (1.5, 5, 1.5, 2.0)
    assert float(average([{"a": 1}, {"a": two}])["a"]) == 1.5
    parts = [{"m": {"a": 1.0}}, {"m": {"a": 3.0}, "n": {"b": 4.0}}]
    assert mean_results(parts) == {"m": {"a": 2.0}, "n": {"b": 4.0}}


def test_a_reduction_gets_all_minibatches_and_adds_what_only_the_whole_has() -> None:
    whole = {"m": {"a": 2.0, "rate": 0.1}, "n": {"b": 4.0}}
    histories = {"m": [{"a": 1.0}, {"a": 3.0}], "n": [{"b": 4.0}]}
    parts = [{"m": {"a": 1.0}, "n": {"b": 4.0}}, {"m": {"a": 3.0}}]
    assert reduced(whole, histories, None) == parts
    given: list[Any] = []

    def last(parts: Any) -> Any:
        given.extend(parts)
        return {"m": {"a": parts[-1]["m"]["a"], "rate": 9}}

    assert reduced(whole, histories, last) == {"m": {"a": 3.0, "rate": 9}, "n": {}}
    assert given == parts
    assert reduced({"m": {"rate": 1}}, {}, lambda parts: {}) == {"m": {"rate": 1}}


def test_numpys_scalars_become_tensors_and_others_stay() -> None:
    import numpy

    text = object()
    found = as_tensors({"a": numpy.float32(1.5), "b": text, "c": numpy.float32(2.5), "d": 3})
    assert [type(value) for value in found.values()] == [torch.Tensor, object, torch.Tensor, int]
    assert (float(found["a"]), found["b"], float(found["c"]), found["d"]) == (1.5, text, 2.5, 3)


# -- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("balance", [False, True])
def test_gradients_by_term_are_averages_over_the_minibatches_that_had_a_loss(
    make: Any, batch: Any, balance: bool
) -> None:
    seen: list[Any] = []

    def loss(self: Any, fwd_out: Any, batch: Any) -> Any:
        if not batch["x"].any():
            return None
        once = fwd_out["out"].mean()
        return Loss(once * 3, terms={"once": once, "twice": once * 2})

    def look(self: Any, term_gradients: Any) -> None:
        seen.append({term: one["weight"].item() for term, one in term_gradients.items()})

    learner = make(
        configure_optimizers_for_module=unit,
        compute_loss_for_module=loss,
        postprocess_gradients=look,
        learning={"accumulate": 2, "balance_grad_norms": balance, "max_grad_norm": 1.0 * balance},
    )
    learner.update({"default": batch(1.0, 3.0)}, timestep=1, minibatch_size=1)
    learner.update({"default": batch(0.0, 3.0)}, timestep=2, minibatch_size=1)
    assert seen == [{"once": 2.0, "twice": 4.0}, {"once": 3.0, "twice": 6.0}]
    # By the sum of the terms; balanced, by half of the limit each.
    assert weights(learner)[0] == pytest.approx(0.0 if balance else 2 - 6 - 9, abs=1e-5)


@pytest.mark.parametrize(
    ("value", "terms", "fits"),
    [(1000.0, 1000.5, True), (1000.0, 1001.5, False), (0.0, 5e-6, True), (0.0, 1.5e-5, False)],
)
def test_terms_add_up_to_the_loss_within_a_thousandth(
    make: Any, batch: Any, value: float, terms: float, fits: bool
) -> None:
    def loss(self: Any, module: Any) -> Any:
        nothing = module.weight.sum() * 0
        return Loss(nothing + value, terms={"all": nothing + terms})

    learner = make(
        compute_loss_for_module=loss, postprocess_gradients=lambda self, term_gradients: None
    )
    if fits:
        learner.update({"default": batch(1.0)}, timestep=1)
    else:
        with pytest.raises(PluginError, match=r"the terms of the loss .* add up to"):
            learner.update({"default": batch(1.0)}, timestep=1)


@pytest.mark.parametrize("how", ["whole", "named", "terms"])
@pytest.mark.parametrize("arrays", ["off", "auto"])
def test_accumulated_minibatches_of_all_kinds_of_losses_equal_the_big_batch(
    make: Any, batch: Any, how: str, arrays: str
) -> None:
    def loss(self: Any, fwd_out: Any) -> Any:
        one, two = fwd_out["out"].mean(), fwd_out["second"].mean() * 3
        if how == "named":
            return Loss({"one": one, "two": two})
        return Loss(one + two, terms={"one": one, "two": two})

    known: dict[str, Any] = {
        "configure_optimizers_for_module": pair,
        "compute_loss_for_module": loss,
        "compute": {"arrays": arrays},
    }
    if how == "terms":
        known["postprocess_gradients"] = lambda self, term_gradients: None
    learner = make(**known, learning={"accumulate": 3})
    for step in (1, 2):
        rows = {"default": batch(*[0.125] * 4, 0.5)}
        learner.update(rows, timestep=step, minibatch_size=2)
    # The mean of x is 0.2, twice; at weights of 2 it does not depend on them.
    assert weights(learner) == pytest.approx((2 - 0.4, 2 - 1.2), abs=1e-5)


def test_a_step_of_which_parts_had_no_loss_has_the_loss_of_the_others(
    make: Any, batch: Any
) -> None:
    def loss(self: Any, fwd_out: Any, batch: Any) -> Any:
        return fwd_out["out"].mean() if batch["x"].any() else None

    learner = make(compute_loss_for_module=loss, learning={"accumulate": 3})
    learner.update({"default": batch(0.0, 1.0, 1.0)}, timestep=1, minibatch_size=1)
    assert weights(learner)[0] == pytest.approx(2 - 0.1)


@pytest.mark.parametrize("over", ["optimizer", "module"])
@pytest.mark.parametrize("arrays", ["off", "auto"])
def test_two_optimizers_are_clipped_apart_or_as_one(
    make: Any, batch: Any, over: str, arrays: str
) -> None:
    def loss(self: Any, fwd_out: Any) -> Any:
        return fwd_out["out"].mean() * 3 + fwd_out["second"].mean() * 4

    learner = make(
        configure_optimizers_for_module=pair,
        compute_loss_for_module=loss,
        learning={"max_grad_norm": 1.0, "clip_over": over},
        compute={"arrays": arrays},
    )
    for step in (1, 2, 3):
        metrics = learner.update({"default": batch(1.0)}, timestep=step)["default"]
        if over == "module":
            assert float(metrics["grad_norm"]) == pytest.approx(5.0)
            assert float(metrics["grad_norm_clipped"]) == pytest.approx(1.0, abs=1e-4)
        else:
            assert float(metrics["grad_norm/one"]) == pytest.approx(3.0)
            assert float(metrics["grad_norm_clipped/two"]) == pytest.approx(1.0, abs=1e-4)
    moved = (0.6, 0.8) if over == "module" else (1.0, 1.0)
    assert weights(learner) == pytest.approx(tuple(2 - 3 * one for one in moved), abs=1e-3)


# -- several modules -----------------------------------------------------------------------------


def test_cycling_minibatches_fill_exactly_the_steps_of_the_longest(make: Any, batch: Any) -> None:
    learner = make(ids=("a", "b"), learning={"cycle_minibatches": True, "accumulate": 2})
    rows = {"a": batch(*[1.0] * 3), "b": batch(1.0, 1.0)}
    parts = learner.update_from_batch(rows, minibatch_size=1, reduce_fn=None)
    assert [sum(name in part for part in parts) for name in ("a", "b")] == [3, 3]
    # The rows of all modules are counted where no timestep is given.
    assert learner.timestep == 5


def test_modules_that_were_not_trained_have_no_minibatches(make: Any, batch: Any) -> None:
    learner = make(ids=("a", "b"))
    rows = {"a": batch(1.0), "b": batch(1.0)}
    learner.update(rows, timestep=1)
    learner.modules_to_train = {"a"}
    assert [list(part) for part in learner.update_from_batch(rows, reduce_fn=None)] == [["a"]]
    assert set(learner.update_from_batch(rows, reduce_fn=lambda parts: {})) == {"a", ALL_MODULES}


def test_an_additional_update_by_hand_moves_the_timestep(make: Any, batch: Any) -> None:
    learner = make(ids=("a", "b"), additional_update=lambda self, timestep: {"at": timestep})
    both = {"a": batch(1.0), "b": batch(1.0)}
    assert learner.additional_update(both, timestep=7) == {"a": {"at": 7}, "b": {"at": 7}}
    assert learner.timestep == 7
    assert learner.additional_update(both, timestep=7, module_ids=["a"]) == {"a": {"at": 7}}


def test_the_seconds_of_prepare_batch_are_added_up(make: Any, batch: Any) -> None:
    def prepare(self: Any, batch: Any) -> Any:
        time.sleep(0.02)
        return {"y": batch["x"]}

    learner = make(prepare_batch=prepare)
    assert learner.prepare_seconds == 0.0
    for step in (1, 2):
        learner.update({"default": batch(1.0)}, timestep=step)
    assert 0.04 <= learner.prepare_seconds < 5


class Head(Module):
    """A weight of its own behind an encoder that others hold as well."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Parameter(torch.ones(1))

    def forward_train(self, batch: Any) -> Any:
        return {"out": self.encoder(batch["x"][:, None])[:, 0] * self.head}


def test_shared_parameters_move_by_the_sum_of_all_terms_of_all_modules(
    make: Any, batch: Any
) -> None:
    encoder = nn.Linear(1, 1, bias=False)
    nn.init.ones_(encoder.weight)

    def optimizers(self: Any, module_id: str, module: Any) -> Any:
        params = module.parameters() if module_id == ALL_MODULES else [module.head]
        return SGD(params, lr=0.125)

    def loss(self: Any, fwd_out: Any) -> Any:
        once = fwd_out["out"].mean()
        return Loss(once * 3, terms={"once": once, "twice": once * 2})

    learner = make(
        ids=("a", "b"),
        build=lambda self: Head(encoder),
        configure_optimizers_for_module=optimizers,
        compute_loss_for_module=loss,
        postprocess_gradients=lambda self, term_gradients: None,
    )
    results = learner.update({"a": batch(1.0), "b": batch(2.0)}, timestep=1)
    assert encoder.weight.item() == 1 - 0.125 * (3 + 6)
    assert [learner.modules[one].head.item() for one in ("a", "b")] == [0.625, 0.25]
    assert float(results[ALL_MODULES]["grad_norm"]) == 9.0


def test_ids_that_stand_for_all_modules_are_refused(make: Any) -> None:
    learner = make()
    with pytest.raises(RequestError, match="no module can be called"):
        learner.add_module(ALL_MODULES, learner.spaces["default"])
    early = make(built=False)
    with pytest.raises(PluginError, match="no two modules share a parameter"):
        early.register_optimizer(ALL_MODULES, "all", SGD([nn.Parameter(torch.ones(1))], lr=1.0))


def test_a_module_like_another_learns_from_the_same_spaces(make: Any) -> None:
    learner = make(ids=("a", "b"))
    learner.training_spaces["a"] = learner.spaces["a"][1]
    learner.add_module("like a", like="a")
    learner.add_module("like b", like="b")
    assert list(learner.training_spaces) == ["a", "like a"]
    assert learner.training_spaces["like a"] is learner.spaces["a"][1]
    assert learner.spaces["like b"] == learner.spaces["b"]


def test_weights_that_an_addon_replaces_between_steps_are_the_ones_that_count(
    make: Any, batch: Any
) -> None:
    def shrink(self: Any, module: Any) -> None:
        module.weight.data = module.weight.data / 2

    def squares(self: Any, fwd_out: Any) -> Any:
        return fwd_out["out"].pow(2).mean()

    found = []
    for arrays in ("auto", "off"):
        learner = make(
            compute_loss_for_module=squares,
            addons={"shrink": {"postprocess_gradients": shrink}},
            compute={"arrays": arrays},
        )
        for step in (1, 2):
            rows = {"default": batch(0.5, 0.5, 0.5)}
            learner.update(rows, timestep=step, num_iters=2, minibatch_size=1)
        found.append(learner.modules["default"].weight.item())
    assert found[0] == pytest.approx(found[1], rel=1e-5)
