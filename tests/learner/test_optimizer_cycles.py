"""Which optimizer acts when, and how schedulers follow."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch.optim import LBFGS, SGD
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau, StepLR

from rlplug import ALL_MODULES, Loss, Module
from rlplug.config import Schedule
from rlplug.errors import PluginError, RunFailedError


def both(self: Any, fwd_out: Any) -> Any:
    return fwd_out["out"].mean() + fwd_out["second"].mean()


def test_frequencies_2_and_3_act_a_a_b_b_b_and_schedulers_move_only_in_their_turn(
    make: Any, batch: Any
) -> None:
    def optimizers(self: Any, module: Any) -> Any:
        a, b = SGD([module.weight], lr=1.0), SGD([module.other], lr=1.0)
        return (
            {
                "optimizer": a,
                "frequency": 2,
                "lr_scheduler": {"scheduler": StepLR(a, 1, gamma=0.5), "interval": "step"},
            },
            {"optimizer": b, "frequency": 3},
        )

    acting: list[tuple[str, ...]] = []

    def loss(self: Any, fwd_out: Any, optimizers: Any) -> Any:
        acting.append(optimizers)
        return both(self, fwd_out)

    learner = make(configure_optimizers_for_module=optimizers, compute_loss_for_module=loss)
    learner.update({"default": batch(0.125)}, timestep=1, num_iters=7)
    assert [name for (name,) in acting] == ["0", "0", "1", "1", "1", "0", "0"]
    module = learner.modules["default"]
    assert module.weight.item() == 2 - 0.125 * (1 + 0.5 + 0.25 + 0.125)
    assert module.other.item() == 2 - 0.125 * 3


def test_a_list_acts_on_every_minibatch(make: Any, batch: Any) -> None:
    def optimizers(self: Any, module: Any) -> Any:
        return [SGD([module.weight], lr=1.0), SGD([module.other], lr=0.5)]

    learner = make(configure_optimizers_for_module=optimizers, compute_loss_for_module=both)
    learner.update({"default": batch(0.25)}, timestep=1, num_iters=2)
    module = learner.modules["default"]
    assert (module.weight.item(), module.other.item()) == (1.5, 1.75)


def test_an_epoch_is_one_pass_and_every_counts_epochs(make: Any, batch: Any) -> None:
    def optimizers(self: Any, module: Any) -> Any:
        optimizer = SGD(module.parameters(), lr=1.0)
        scheduler = {"scheduler": ExponentialLR(optimizer, 0.1), "interval": "epoch"}
        return {"optimizer": optimizer, "lr_scheduler": {**scheduler, "frequency": 2}}

    learner = make(configure_optimizers_for_module=optimizers)
    rows = {"default": batch(0.0, 0.0, 0.0, 0.0)}
    rates = [
        learner.update(rows, timestep=step, num_iters=1, minibatch_size=1)["default"][
            "learning_rate"
        ]
        for step in range(4)
    ]
    assert rates == pytest.approx([1.0, 0.1, 0.1, 0.01])


def test_the_name_of_a_scheduler_is_that_of_the_reported_rate(make: Any, batch: Any) -> None:
    def optimizers(self: Any, module: Any) -> Any:
        optimizer = SGD(module.parameters(), lr=1.0)
        scheduler = {"scheduler": StepLR(optimizer, 1), "interval": "step", "name": "mine"}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    learner = make(configure_optimizers_for_module=optimizers)
    metrics = learner.update({"default": batch(0.0)}, timestep=1)["default"]
    assert metrics["learning_rate/mine"] == pytest.approx(0.1)
    assert "learning_rate" not in metrics


def test_all_schedulers_of_an_optimizer_move_it_each_when_it_is_due(make: Any, batch: Any) -> None:
    def optimizers(self: Any, module: Any) -> Any:
        optimizer = SGD(module.parameters(), lr=1.0)
        halve = {"scheduler": ExponentialLR(optimizer, 0.5), "interval": "step", "name": "both"}
        return [optimizer], [halve, {"scheduler": ExponentialLR(optimizer, 0.1), "frequency": 2}]

    learner = make(configure_optimizers_for_module=optimizers)
    learner.update({"default": batch(0.0, 0.0)}, timestep=1, minibatch_size=1)
    resumed = make(configure_optimizers_for_module=optimizers)
    resumed.set_state(learner.get_state())
    for one in (learner, resumed):
        results = one.update({"default": batch(0.0, 0.0)}, timestep=2, minibatch_size=1)
        # Four steps halve it each, and every second epoch divides it by ten.
        assert results["default"]["learning_rate/both"] == pytest.approx(0.1 / 16)


def plateau(**config: Any) -> Any:
    def optimizers(self: Any, module: Any) -> Any:
        optimizer = SGD(module.parameters(), lr=1.0)
        scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, **config}}

    return optimizers


def test_a_plateau_scheduler_follows_the_metric_it_monitors(make: Any, batch: Any) -> None:
    learner = make(configure_optimizers_for_module=plateau(monitor="loss"))
    rates = [
        learner.update({"default": batch(0.0)}, timestep=step)["default"]["learning_rate"]
        for step in range(4)
    ]
    # The first value is the best; the third without improvement is one too many.
    assert rates == [1.0, 1.0, 0.5, 0.5]


def test_a_missing_monitored_metric_ends_the_run_and_says_what_there_is(
    make: Any, batch: Any
) -> None:
    learner = make(configure_optimizers_for_module=plateau(monitor="los"))
    learner.update({"default": batch(1.0)}, timestep=0)
    with pytest.raises(RunFailedError, match="monitors 'los'") as raised:
        learner.update({"default": batch(0.0)}, timestep=1)
    assert "Did you mean 'loss'?" in str(raised.value)


def test_a_missing_monitored_metric_only_warns_where_strict_is_off(make: Any, batch: Any) -> None:
    learner = make(configure_optimizers_for_module=plateau(monitor="return", strict=False))
    learner.update({"default": batch(0.0)}, timestep=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        learner.update({"default": batch(0.0)}, timestep=1)
    assert "monitors 'return'" in str(caught[0].message)


@pytest.mark.parametrize("how", ["additional_update", "register_metric"])
@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_what_comes_at_the_end_of_an_update_can_be_monitored(
    make: Any, batch: Any, how: str, interval: str
) -> None:
    def report(self: Any, learner: Any) -> Any:
        if how == "register_metric":
            learner.register_metric("default", "seen", 1.0)
        return {"seen": 1.0} if how == "additional_update" else None

    learner = make(
        configure_optimizers_for_module=plateau(monitor="seen", interval=interval),
        additional_update=report,
    )
    rates = [
        learner.update({"default": batch(0.0)}, timestep=step)["default"]["learning_rate"]
        for step in (1, 2, 3, 4)
    ]
    assert rates == [1.0, 1.0, 1.0, 0.5]
    other = make(configure_optimizers_for_module=plateau(monitor="unseen", interval=interval))
    other.update({"default": batch(0.0)}, timestep=1)
    with pytest.raises(RunFailedError, match="monitors 'unseen'"):
        other.update({"default": batch(0.0)}, timestep=2)


def test_lbfgs_finds_a_minimum_in_one_step_and_reports_its_first_evaluation(
    make: Any, batch: Any
) -> None:
    calls = []

    def loss(self: Any, module: Any) -> Any:
        calls.append(module.weight.item())
        return (module.weight - 5).pow(2).sum() + module.other.pow(2).sum()

    def optimizers(self: Any, module: Any) -> Any:
        return LBFGS(module.parameters(), lr=1.0, line_search_fn="strong_wolfe")

    learner = make(configure_optimizers_for_module=optimizers, compute_loss_for_module=loss)
    metrics = learner.update({"default": batch(1.0)}, timestep=1)["default"]
    assert float(metrics["loss"]) == 13.0
    assert len(calls) > 1
    assert learner.modules["default"].weight.item() == pytest.approx(5, abs=1e-4)
    assert learner.modules["default"].other.item() == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("bad_from", [1, 3])
def test_an_lbfgs_step_that_meets_nan_is_skipped_whole_and_counted_once(
    make: Any, batch: Any, bad_from: int
) -> None:
    evaluations = []

    def loss(self: Any, module: Any) -> Any:
        evaluations.append(1)
        bad = math.nan if len(evaluations) >= bad_from else 1.0
        return ((module.weight - 5).pow(4).sum() + module.other.pow(2).sum()) * bad

    def optimizers(self: Any, module: Any) -> Any:
        return LBFGS(module.parameters(), lr=0.1)

    learner = make(configure_optimizers_for_module=optimizers, compute_loss_for_module=loss)
    metrics = learner.update({"default": batch(1.0)}, timestep=1)["default"]
    assert len(evaluations) == bad_from
    assert metrics["nonfinite"] == 1
    assert learner.modules["default"].weight.item() == 2.0
    assert learner.modules["default"].other.item() == 2.0
    assert learner.get_optimizer().state_dict()["state"] == {}


def test_lbfgs_beside_another_optimizer_is_refused(make: Any) -> None:
    def optimizers(self: Any, module: Any) -> Any:
        return [LBFGS([module.weight]), SGD([module.other], lr=1.0)]

    with pytest.raises(PluginError, match="LBFGS, which must act alone"):
        make(configure_optimizers_for_module=optimizers)


SCHEDULE = Schedule([[0, 1.0], [100, 0.0]])


@pytest.mark.parametrize(
    "optimizers",
    [
        None,
        lambda self, module, config: SGD(module.parameters(), lr=config.learning_rate),
        lambda self, module, config: SGD(module.parameters(), lr=config.learning_rate * 2 / 2),
    ],
)
def test_a_learning_rate_follows_its_schedule_at_three_points(
    make: Any, batch: Any, optimizers: Any
) -> None:
    learner = make(configure_optimizers_for_module=optimizers, options={"learning_rate": SCHEDULE})
    rates = [
        learner.update({"default": batch(0.0)}, timestep=step)["default"]["learning_rate"]
        for step in (0, 50, 100)
    ]
    assert rates == [1.0, 0.5, 0.0]


def test_hooks_see_scheduled_options_as_numbers(make: Any, batch: Any) -> None:
    seen = []

    def loss(self: Any, fwd_out: Any, config: Any) -> Any:
        seen.append(config.scale)
        return fwd_out["out"].sum() * config.scale

    learner = make(compute_loss_for_module=loss, options={"scale": Schedule([[0, 4.0], [10, 2.0]])})
    for step in (0, 5, 20):
        learner.update({"default": batch(0.0)}, timestep=step)
    assert seen == [4.0, 3.0, 2.0]


def test_a_registered_optimizer_follows_pairs_of_step_and_value(make: Any, batch: Any) -> None:
    def optimizers(self: Any, module_id: Any, module: Any, learner: Any) -> None:
        optimizer = SGD([module.weight], lr=7.0)
        learner.register_optimizer(
            module_id, "mine", optimizer, [module.weight], [[0, 1e-3], [1_000_000, 0.0]]
        )

    learner = make(configure_optimizers_for_module=optimizers)
    rates = [
        learner.update({"default": batch(1.0)}, timestep=step)["default"]["learning_rate/mine"]
        for step in (0, 500_000, 2_000_000)
    ]
    assert rates == [1e-3, 5e-4, 0.0]
    assert learner.get_optimizer("default", "mine").param_groups[0]["lr"] == 0.0


def test_two_optimizers_of_a_cycle_may_hold_the_same_parameters(make: Any, batch: Any) -> None:
    def optimizers(self: Any, module: Any) -> Any:
        return (
            {"optimizer": SGD(module.parameters(), lr=0.01), "frequency": 5},
            {"optimizer": SGD(module.parameters(), lr=0.02, momentum=0.5), "frequency": 10},
        )

    learner = make(configure_optimizers_for_module=optimizers)
    learner.update({"default": batch(1.0)}, timestep=1, num_iters=7)
    # Five steps of 0.01; then two with momentum: 0.02 and 0.02 * 1.5.
    assert learner.modules["default"].weight.item() == pytest.approx(2 - 0.05 - 0.02 - 0.03)
    fresh = make(configure_optimizers_for_module=optimizers)
    fresh.set_state(learner.get_state())
    for one in (learner, fresh):
        one.update({"default": batch(1.0)}, timestep=2, num_iters=9)
    assert fresh.modules["default"].weight.item() == learner.modules["default"].weight.item()


def test_optimizers_that_act_together_may_not_hold_the_same_parameters(make: Any) -> None:
    def optimizers(self: Any, module: Any) -> Any:
        return [SGD(module.parameters(), lr=0.1), SGD(module.parameters(), lr=0.2)]

    with pytest.raises(PluginError, match="in two optimizers"):
        make(configure_optimizers_for_module=optimizers)


class Game(Module):
    """Two numbers whose product one player lowers, and then the other."""

    def __init__(self) -> None:
        super().__init__()
        self.gen = torch.nn.Parameter(torch.tensor(1.0))
        self.dis = torch.nn.Parameter(torch.tensor(3.0))

    def forward_train(self, batch: Any) -> Any:
        return {"product": self.gen * self.dis * batch["x"].mean()}


def game(make: Any, **known: Any) -> Any:
    def optimizers(self: Any, module: Any) -> Any:
        return {"gen": SGD([module.gen], lr=1.0), "dis": SGD([module.dis], lr=1.0)}

    return make(
        build=lambda self: Game(),
        configure_optimizers_for_module=optimizers,
        **{"compute_loss_for_module": lambda self, fwd_out: fwd_out["product"], **known},
    )


@pytest.mark.parametrize("arrays", ["off", "auto"])
def test_in_turn_the_second_optimizer_sees_the_step_of_the_first(
    make: Any, batch: Any, arrays: str
) -> None:
    learner = game(make, learning={"optimizers": "in_turn"}, compute={"arrays": arrays})
    module = learner.modules["default"]
    found = []
    for step in (1, 2):
        learner.update({"default": batch(1.0)}, timestep=step)
        found.append((module.gen.item(), module.dis.item()))
    # From (1, 3): gen = 1 - 3, and dis = 3 - gen; then gen = -2 - 5, and dis = 5 + 7.
    assert found == [(-2.0, 5.0), (-7.0, 12.0)]


def test_together_both_optimizers_see_what_was_before(make: Any, batch: Any) -> None:
    learner = game(make)
    learner.update({"default": batch(1.0)}, timestep=1)
    module = learner.modules["default"]
    assert (module.gen.item(), module.dis.item()) == (-2.0, 2.0)


def test_in_turn_each_optimizer_has_its_own_loss_hooks_and_clipping(make: Any, batch: Any) -> None:
    seen: list[Any] = []

    def loss(self: Any, fwd_out: Any, optimizers: Any) -> Any:
        seen.append(("loss", optimizers))
        return Loss({"gen": fwd_out["product"], "dis": -fwd_out["product"]}, {"calls": len(seen)})

    def hook(self: Any, gradients: Any) -> None:
        seen.append(("gradients", tuple(gradients)))

    learner = game(
        make,
        learning={"optimizers": "in_turn", "max_grad_norm": 1.0},
        compute_loss_for_module=loss,
        postprocess_gradients=hook,
    )
    results = learner.update({"default": batch(1.0)}, timestep=1)["default"]
    module = learner.modules["default"]
    # gen moves down by its clipped gradient, to 0; then the gradient of dis is 0.
    assert (module.gen.item(), module.dis.item()) == pytest.approx((0.0, 3.0), abs=1e-6)
    assert seen == [
        ("loss", ("gen",)),
        ("gradients", ("gen",)),
        ("loss", ("dis",)),
        ("gradients", ("dis",)),
    ]
    assert float(results["loss/gen"]) == 3.0
    assert float(results["loss/dis"]) == pytest.approx(0.0, abs=2e-6)
    assert float(results["grad_norm/gen"]) == 3.0
    assert float(results["grad_norm/dis"]) == pytest.approx(0.0, abs=1e-6)
    assert results["calls"] == 1


def test_in_turn_accumulates_all_minibatches_for_each_optimizer(make: Any, batch: Any) -> None:
    learner = game(make, learning={"optimizers": "in_turn", "accumulate": 2})
    parts = learner.update_from_batch(
        {"default": batch(1.0, 3.0)}, minibatch_size=1, reduce_fn=None
    )
    module = learner.modules["default"]
    # The mean of x is 2: gen = 1 - 2 * 3, and dis = 3 - 2 * gen.
    assert (module.gen.item(), module.dis.item()) == (-5.0, 13.0)
    assert len(parts) == 2


def test_a_frequency_counts_steps_skipped_minibatches_do_not_count(make: Any, batch: Any) -> None:
    acting: list[str] = []

    def loss(self: Any, fwd_out: Any, batch: Any, optimizers: Any) -> Any:
        acting.extend(optimizers)
        return None if float(batch["x"].mean()) == 0.0 else both(self, fwd_out)

    def optimizers(self: Any, module: Any) -> Any:
        return (
            {"optimizer": SGD([module.weight], lr=1.0), "frequency": 1},
            {"optimizer": SGD([module.other], lr=1.0), "frequency": 1},
        )

    hooks = {"configure_optimizers_for_module": optimizers, "compute_loss_for_module": loss}
    learner = make(**hooks)
    for step, x in enumerate((1.0, 0.0, 1.0, 1.0)):
        learner.update({"default": batch(x)}, timestep=step)
    assert acting == ["0", "1", "1", "0"]
    acting.clear()
    learner = make(**hooks, learning={"accumulate": 2})
    learner.update({"default": batch(*[1.0] * 4)}, timestep=1, minibatch_size=1)
    # Two accumulated minibatches are one step.
    assert acting == ["0", "0", "1", "1"]


def test_a_stop_in_one_turn_leaves_out_those_that_follow(make: Any, batch: Any) -> None:
    acting: list[str] = []

    def loss(self: Any, fwd_out: Any, optimizers: Any) -> Any:
        acting.extend(optimizers)
        return Loss(fwd_out["product"], stop=torch.tensor(optimizers == ("gen",)))

    learner = game(make, learning={"optimizers": "in_turn"}, compute_loss_for_module=loss)
    learner.update({"default": batch(1.0)}, timestep=1, num_iters=2)
    module = learner.modules["default"]
    assert acting == ["gen"]
    assert (module.gen.item(), module.dis.item()) == (1.0, 3.0)


def test_in_turn_shared_parameters_move_after_all_others(make: Any, batch: Any) -> None:
    encoder = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(encoder.weight)

    class Head(Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder
            self.head = torch.nn.Parameter(torch.ones(1))

        def forward_train(self, batch: Any) -> Any:
            return {"out": self.encoder(batch["x"][:, None]) * self.head}

    def optimizers(self: Any, module_id: str, module: Any) -> Any:
        params = module.parameters() if module_id == ALL_MODULES else [module.head]
        return SGD(params, lr=0.25)

    learner = make(
        ids=("a", "b"),
        build=lambda self: Head(),
        configure_optimizers_for_module=optimizers,
        compute_loss_for_module=lambda self, fwd_out: fwd_out["out"].sum(),
        learning={"optimizers": "in_turn"},
    )
    learner.update({"a": batch(1.0), "b": batch(2.0)}, timestep=1)
    heads = [learner.modules[name].head.item() for name in ("a", "b")]
    # Each head moves by a quarter of its input; then the encoder sees the new heads.
    assert heads == [0.75, 0.5]
    assert encoder.weight.item() == 1 - 0.25 * (0.75 * 1 + 0.5 * 2)
