"""What losses report and what they move."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim import SGD

from rlplug import ALL_MODULES, Batch, Loss, Module
from rlplug.errors import PluginError


def pair(self: Any, module: Any) -> Any:
    return {"actor": SGD([module.weight], lr=1.0), "critic": SGD([module.other], lr=1.0)}


def test_two_modules_with_losses_6_and_10_report_6_and_10_and_16(make: Any, batch: Any) -> None:
    learner = make(ids=("a", "b"))
    results = learner.update({"a": batch(3.0), "b": batch(5.0)}, timestep=2)
    assert float(results["a"]["loss"]) == 6.0
    assert float(results["b"]["loss"]) == 10.0
    assert float(results[ALL_MODULES]["loss"]) == 16.0
    assert results[ALL_MODULES]["steps_trained"] == 2


def test_each_term_is_reported_and_the_sum_changes_none_of_them(make: Any, batch: Any) -> None:
    def addon_loss(self: Any, fwd_out: Any) -> Any:
        return Loss(fwd_out["out"].sum() * 10, metrics={"seen": 7})

    learner = make(addons={"extra-term": {"compute_loss_for_module": addon_loss}})
    metrics = learner.update({"default": batch(3.0)}, timestep=1)["default"]
    assert float(metrics["loss"]) == 66.0
    assert float(metrics["loss/alg"]) == 6.0
    assert float(metrics["loss/extra-term"]) == 60.0
    assert metrics["extra-term/seen"] == 7
    assert learner.modules["default"].weight.item() == pytest.approx(2 - 0.1 * 33)


def test_named_losses_move_only_their_own_parameters(make: Any, batch: Any) -> None:
    def loss(self: Any, module: Any, batch: Any) -> Any:
        both = module.weight * module.other * batch["x"]
        return Loss({"actor": both.sum(), "critic": -both.sum()})

    learner = make(configure_optimizers_for_module=pair, compute_loss_for_module=loss)
    learner.update({"default": batch(0.5)}, timestep=1)
    module = learner.modules["default"]
    assert (module.weight.item(), module.other.item()) == (1.0, 3.0)


def test_an_unnamed_extra_term_joins_all_acting_optimizers(make: Any, batch: Any) -> None:
    def loss(self: Any, fwd_out: Any) -> Any:
        return Loss({"actor": fwd_out["out"].sum(), "critic": fwd_out["second"].sum()})

    def addon_loss(self: Any, module: Any) -> Any:
        return (module.weight + 2 * module.other).sum()

    learner = make(
        configure_optimizers_for_module=pair,
        compute_loss_for_module=loss,
        addons={"more": {"compute_loss_for_module": addon_loss}},
    )
    learner.update({"default": batch(0.5)}, timestep=1)
    module = learner.modules["default"]
    assert module.weight.item() == 2 - (0.5 + 1)
    assert module.other.item() == 2 - (0.5 + 2)


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_an_optimizer_left_out_of_the_value_rests_and_so_does_its_scheduler(
    make: Any, batch: Any, interval: str
) -> None:
    def optimizers(self: Any, module: Any) -> Any:
        actor, critic = SGD([module.weight], lr=1.0), SGD([module.other], lr=1.0)
        halve = torch.optim.lr_scheduler.ExponentialLR
        return [actor, critic], [
            {"scheduler": halve(actor, 0.5), "interval": interval},
            {"scheduler": halve(critic, 0.5), "interval": interval},
        ]

    def loss(self: Any, fwd_out: Any, learner: Any) -> Any:
        losses = {"1": fwd_out["second"].sum()}
        if learner.timestep % 2 == 0:
            losses["0"] = fwd_out["out"].sum()
        return Loss(losses)

    learner = make(configure_optimizers_for_module=optimizers, compute_loss_for_module=loss)
    rates = []
    for step in (1, 2, 3, 4):
        metrics = learner.update({"default": batch(0.25)}, timestep=step)["default"]
        rates.append((metrics["learning_rate/0"], metrics["learning_rate/1"]))
    assert rates == [(1.0, 0.5), (0.5, 0.25), (0.5, 0.125), (0.25, 0.0625)]
    assert learner.modules["default"].weight.item() == 2 - 0.25 * (1.0 + 0.5)


def test_stop_ends_the_epochs_of_its_module_before_the_step(make: Any, batch: Any) -> None:
    def loss(self: Any, fwd_out: Any) -> Any:
        value = fwd_out["out"].mean()
        return Loss(value, stop=value < 1.95)

    learner = make(compute_loss_for_module=loss)
    learner.update({"default": batch(1.0)}, timestep=1, num_iters=10)
    # 2.0 and 1.9 are seen; the second asks for the end, so one step of 0.1 is made.
    assert learner.modules["default"].weight.item() == pytest.approx(1.9)


def test_a_minibatch_without_any_loss_is_skipped_and_counted(make: Any, batch: Any) -> None:
    learner = make(compute_loss_for_module=lambda self: None)
    metrics = learner.update({"default": batch(1.0)}, timestep=1, num_iters=3)["default"]
    assert metrics["skipped"] == 3
    assert "loss" not in metrics


def test_a_dict_with_loss_reports_its_other_entries(make: Any, batch: Any) -> None:
    def loss(self: Any, fwd_out: Any) -> Any:
        return {"loss": fwd_out["out"].sum(), "largest": fwd_out["out"].max()}

    learner = make(compute_loss_for_module=loss)
    metrics = learner.update({"default": batch(1.0, 4.0)}, timestep=1)["default"]
    assert (float(metrics["loss"]), float(metrics["largest"])) == (10.0, 8.0)


def test_per_row_values_go_back_with_their_indices(make: Any) -> None:
    def loss(self: Any, fwd_out: Any) -> Any:
        return Loss(fwd_out["out"].sum(), rows={"priority": fwd_out["out"] * 10})

    learner = make(compute_loss_for_module=loss)
    rows = Batch({"x": torch.tensor([1.0, 3.0]), "indices": torch.tensor([40, 7])})
    learner.update({"default": rows}, timestep=1)
    given = learner.rows["default"]
    assert given["indices"].tolist() == [40, 7]
    assert given["priority"].tolist() == [20.0, 60.0]


def test_a_neutral_addon_leaves_the_algorithms_parameters_bit_identical(make: Any) -> None:
    class Net(Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(
                torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
            )

        def forward_train(self, batch: Any) -> Any:
            return {"out": self.net(batch["x"])}

    def extra(self: Any) -> Any:
        return torch.nn.Linear(3, 2)

    neutral = {
        "build_extra": extra,
        "configure_optimizers_for_module": lambda self, extra: torch.optim.Adam(
            extra.parameters(), 0.1
        ),
        "compute_loss_for_module": lambda self, extra, batch: extra(batch["x"]).pow(2).mean(),
    }
    settings: dict[str, Any] = {
        "build": lambda self: Net(),
        "configure_optimizers_for_module": None,
        "learning": {"max_grad_norm": 0.01},
    }
    plain, watched = make(**settings), make(addons={"curious": neutral}, **settings)
    rows = {"default": Batch({"x": torch.randn(10, 3)})}
    before = watched.extra["default"]["curious"].weight.detach().clone()
    for step in range(5):
        for learner in (plain, watched):
            learner.update(rows, timestep=step, num_iters=2, minibatch_size=4)
    for name, value in plain.modules["default"].state_dict().items():
        assert torch.equal(value, watched.modules["default"].state_dict()[name])
    assert not torch.equal(watched.extra["default"]["curious"].weight, before)
    assert [name for name, _ in watched.get_optimizers_for_module()] == ["default", "curious"]


def returns(value: Any) -> Any:
    def loss(self: Any, fwd_out: Any) -> Any:
        return value(fwd_out)

    return loss


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda out: out["out"], r"shape \(2,\), not one number"),
        (lambda out: torch.zeros(()), "connected to no parameter"),
        (lambda out: Loss({"critc": out["out"].sum()}), "optimizer 'critc', which does not exist"),
        (lambda out: Loss({}), "without any value"),
        (lambda out: 3.0, "gave float as its loss"),
        (lambda out: Loss(3.0), "is float"),  # type: ignore[arg-type] # what a test is for
        (lambda out: {"los": out["out"].sum()}, "gave dict as its loss"),
    ],
)
def test_a_loss_that_nothing_can_be_learned_from_is_refused(
    make: Any, batch: Any, value: Any, message: str
) -> None:
    learner = make(compute_loss_for_module=returns(value))
    with pytest.raises(PluginError, match=message):
        learner.update({"default": batch(1.0, 2.0)}, timestep=1)


def test_an_optimizer_that_never_gets_a_loss_is_refused(make: Any, batch: Any) -> None:
    def loss(self: Any, fwd_out: Any) -> Any:
        return Loss({"actor": fwd_out["out"].sum()})

    learner = make(configure_optimizers_for_module=pair, compute_loss_for_module=loss)
    with pytest.raises(PluginError, match=r"optimizer 'critic' .* got no loss in 1000 minibatches"):
        learner.update({"default": batch(0.0)}, timestep=1, num_iters=1001)


def test_updates_are_counted_one_by_one(make: Any, batch: Any) -> None:
    learner = make()
    found = [learner.update({"default": batch(1.0)}, timestep=n)[ALL_MODULES] for n in range(3)]
    assert [results["updates"] for results in found] == [1, 2, 3]
    assert learner.updates == 3


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True)])
def test_one_plugin_that_wants_to_stop_is_enough(
    make: Any, batch: Any, first: bool, second: bool
) -> None:
    def stopping(stop: bool) -> Any:
        def loss(self: Any, fwd_out: Any) -> Any:
            return Loss(fwd_out["out"].mean(), stop=torch.tensor(stop))

        return loss

    learner = make(
        compute_loss_for_module=stopping(first),
        addons={"more": {"compute_loss_for_module": stopping(second)}},
    )
    learner.update({"default": batch(1.0)}, timestep=1, num_iters=3)
    # Stopped before the first step.
    assert learner.modules["default"].weight.item() == 2.0


@pytest.mark.parametrize("hook", ["compute_loss_for_module", "additional_update"])
def test_a_metric_that_is_no_number_is_refused_by_plugin_and_name(
    make: Any, batch: Any, hook: str
) -> None:
    def loss(self: Any, fwd_out: Any) -> Any:
        return Loss(fwd_out["out"].mean(), metrics={"name": "Ada"})

    wrong = loss if hook == "compute_loss_for_module" else lambda self: {"name": "Ada"}
    with pytest.raises(PluginError, match=r"metric 'name' of plugin 'alg' is str\."):
        make(**{hook: wrong}).update({"default": batch(1.0)}, timestep=1)
