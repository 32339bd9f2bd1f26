"""Whose losses move which optimizers: where add-ons have losses too, and optimizers act in turn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from rlplug import ALL_MODULES, Loss, Module
from rlplug.config.schedule import Schedule, ScheduledValue
from rlplug.errors import PluginError
from rlplug.nn import FixedTarget

MODES = pytest.mark.parametrize("mode", ["together", "in_turn"])
RATE = 0.5


class Pair(Module):
    """Two numbers and their product."""

    def __init__(self) -> None:
        super().__init__()
        self.gen = nn.Parameter(torch.tensor(1.0))
        self.dis = nn.Parameter(torch.tensor(3.0))

    def forward_train(self, batch: Any) -> Any:
        return {"product": self.gen * self.dis * batch["x"].mean(), "rows": self.gen * batch["x"]}

    def numbers(self) -> tuple[float, float]:
        return self.gen.item(), self.dis.item()


class Extra(nn.Module):
    """A number of an add-on."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.tensor(2.0))


TRAINS_ITS_OWN = {
    "build_extra": lambda self, module: Extra(),
    "configure_optimizers_for_module": lambda self, extra: SGD([extra.own], lr=RATE),
    "compute_loss_for_module": lambda self, extra: extra.own.square().sum(),
}


def optimizers(self: Any, module: Pair) -> Any:
    return {"gen": SGD([module.gen], lr=RATE), "dis": SGD([module.dis], lr=RATE)}


def cycle(self: Any, module: Pair) -> Any:
    return tuple(
        {"optimizer": SGD([param], lr=RATE), "frequency": 1} for param in (module.gen, module.dis)
    )


def product(self: Any, fwd_out: Any) -> Any:
    return fwd_out["product"]


def product_unless_zero(self: Any, fwd_out: Any, batch: Any) -> Any:
    return None if float(batch["x"].mean()) == 0 else fwd_out["product"]


@pytest.fixture
def pair(make: Any) -> Any:
    def made(mode: str, loss: Any, *, learning: Any = (), **known: Any) -> Any:
        return make(
            compute_loss_for_module=loss,
            learning={"optimizers": mode, **dict(learning)},
            **{
                "build": lambda self: Pair(),
                "configure_optimizers_for_module": optimizers,
                **known,
            },
        )

    return made


@MODES
def test_losses_of_single_optimizers_move_what_modules_share(
    make: Any, batch: Any, mode: str
) -> None:
    encoder = nn.Linear(1, 1, bias=False)
    nn.init.ones_(encoder.weight)

    class Heads(Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder
            self.left, self.right = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

        def forward_train(self, batch: Any) -> Any:
            seen = self.encoder(batch["x"][:, None])
            return {"left": (seen * self.left).mean(), "right": (seen * self.right).mean()}

    def each(self: Any, module_id: str, module: Any) -> Any:
        if module_id == ALL_MODULES:
            return SGD(module.parameters(), lr=0.25)
        return {"left": SGD([module.left], lr=0.25), "right": SGD([module.right], lr=0.25)}

    learner = make(
        ids=("a", "b"),
        build=lambda self: Heads(),
        configure_optimizers_for_module=each,
        compute_loss_for_module=lambda self, fwd_out: Loss(dict(fwd_out)),
        learning={"optimizers": mode},
    )
    results = learner.update({"a": batch(1.0), "b": batch(2.0)}, timestep=1)
    assert "skipped" not in results["a"]
    # The gradient is the sum of both heads times the input; in turn, of the heads that have moved.
    gradient = 1 * (0.75 + 0.75) + 2 * (0.5 + 0.5) if mode == "in_turn" else 1 * 2 + 2 * 2
    assert encoder.weight.item() == 1 - 0.25 * gradient


@MODES
def test_an_optimizer_that_a_mapping_leaves_out_rests_beside_the_loss_of_an_add_on(
    pair: Any, batch: Any, mode: str
) -> None:
    def squares(self: Any, module: Pair) -> Any:
        return (module.gen.square() + module.dis.square()) / 2

    learner = pair(
        mode,
        lambda self, fwd_out: Loss({"gen": fwd_out["product"]}),
        addons={"squares": {"compute_loss_for_module": squares}},
    )
    learner.update({"default": batch(1.0)}, timestep=1)
    # The gradient of gen is dis + gen.
    assert learner.modules["default"].numbers() == (1 - RATE * 4, 3.0)


@MODES
@pytest.mark.parametrize("arrays", ["off", "auto"])
def test_each_of_the_accumulated_minibatches_may_move_another_optimizer(
    pair: Any, batch: Any, mode: str, arrays: str
) -> None:
    def loss(self: Any, fwd_out: Any, batch: Any) -> Any:
        return Loss({"gen" if float(batch["x"].mean()) == 1 else "dis": fwd_out["product"]})

    learner = pair(mode, loss, learning={"accumulate": 2}, compute={"arrays": arrays})
    for step in (1, 2):
        gen, dis = learner.modules["default"].numbers()
        learner.update({"default": batch(1.0, 2.0)}, timestep=step, minibatch_size=1)
        # Each gradient is averaged over the minibatches that have a loss for its optimizer.
        moved = gen - RATE * dis
        seen = moved if mode == "in_turn" else gen
        assert learner.modules["default"].numbers() == (moved, dis - RATE * 2 * seen)


@MODES
@pytest.mark.parametrize("arrays", ["off", "auto"])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_the_order_of_accumulated_minibatches_makes_no_difference(
    pair: Any, batch: Any, mode: str, arrays: str, seed: int
) -> None:
    def loss(self: Any, fwd_out: Any, batch: Any) -> Any:
        named = float(batch["x"].mean()) == 2
        return Loss({"gen": fwd_out["product"]}) if named else fwd_out["product"]

    learner = pair(mode, loss, learning={"accumulate": 2}, compute={"arrays": arrays}, seed=seed)
    learner.update({"default": batch(1.0, 2.0)}, timestep=1, minibatch_size=1)
    # The mean of x is 1.5 for gen; dis has a loss in the minibatch with 1 alone.
    gen = 1 - RATE * 1.5 * 3
    assert learner.modules["default"].numbers() == (
        gen,
        3 - RATE * 1 * (gen if mode == "in_turn" else 1.0),
    )


@MODES
def test_an_add_on_that_trains_its_own_does_not_count_in_the_algorithms_cycle(
    pair: Any, batch: Any, mode: str
) -> None:
    found = []
    for addons in ({}, {"own": TRAINS_ITS_OWN}):
        learner = pair(
            mode, product_unless_zero, addons=addons, configure_optimizers_for_module=cycle
        )
        for step, x in enumerate((1.0, 0.0, 1.0, 1.0)):
            learner.update({"default": batch(x)}, timestep=step)
        found.append(learner.modules["default"].numbers())
    # gen, none, dis, gen: 1 - 3 / 2, 3 + 0.5 / 2, -0.5 - 3.25 / 2.
    assert found == [(-2.125, 3.25)] * 2


def test_by_hand_too_optimizers_with_a_frequency_take_turns(pair: Any, batch: Any) -> None:
    learner = pair("together", product, configure_optimizers_for_module=cycle)
    found = []
    for _ in range(3):
        batches = learner.prepare_batches({"default": batch(1.0)})
        losses = learner.compute_loss(learner.forward_train(batches), batches)
        gradients = learner.postprocess_gradients(learner.compute_gradients(losses))
        learner.apply_gradients(gradients)
        found.append(learner.modules["default"].numbers())
    assert found == [(-0.5, 3.0), (-0.5, 3.25), (-2.125, 3.25)]


@MODES
@pytest.mark.parametrize(("accumulate", "seen"), [(2, 2), (4, 1)])
def test_a_scheduler_sees_the_mean_of_the_accumulated_minibatches(
    pair: Any, batch: Any, mode: str, accumulate: int, seen: int
) -> None:
    told: list[float] = []

    class Recorder(ReduceLROnPlateau):
        def step(self, metrics: Any, epoch: Any = None) -> None:
            told.append(float(metrics))
            super().step(metrics)

    def followed(self: Any, module: Pair) -> Any:
        one = SGD([module.gen], lr=0.0)
        schedule = {"scheduler": Recorder(one), "monitor": "loss", "interval": "step"}
        return (
            {"optimizer": one, "name": "gen", "lr_scheduler": schedule},
            {"optimizer": SGD([module.dis], lr=0.0), "name": "dis"},
        )

    learner = pair(
        mode,
        product,
        learning={"accumulate": accumulate},
        configure_optimizers_for_module=followed,
    )
    parts = learner.update_from_batch(
        {"default": batch(1.0, 3.0, 5.0, 7.0)}, minibatch_size=1, reduce_fn=None
    )
    losses = [float(part["default"]["loss"]) for part in parts]
    means = [
        sum(losses[start : start + accumulate]) / accumulate for start in range(0, 4, accumulate)
    ]
    assert told == means
    assert len(told) == seen


@MODES
@pytest.mark.parametrize("arrays", ["off", "auto"])
def test_rows_may_come_with_the_loss_of_any_optimizer(
    pair: Any, batch: Any, mode: str, arrays: str
) -> None:
    def loss(self: Any, fwd_out: Any, optimizers: Any) -> Any:
        rows = {"priority": fwd_out["rows"].abs()} if "dis" in optimizers else {}
        return Loss(fwd_out["product"], rows=rows)

    learner = pair(mode, loss, compute={"arrays": arrays})
    for step in (1, 2, 3):
        gen, dis = learner.modules["default"].numbers()
        learner.update({"default": batch(2.0, 4.0, indices=torch.tensor([7, 9]))}, timestep=step)
        rows = learner.rows["default"]
        assert rows["indices"].tolist() == [7, 9]
        if mode == "in_turn":
            gen -= RATE * dis * 3
        assert rows["priority"].tolist() == [abs(2 * gen), abs(4 * gen)]


@MODES
@pytest.mark.parametrize("arrays", ["off", "auto"])
def test_a_minibatch_is_skipped_once_and_only_without_any_loss(
    pair: Any, batch: Any, mode: str, arrays: str
) -> None:
    learner = pair(mode, product_unless_zero, compute={"arrays": arrays})
    skipped = [
        learner.update({"default": batch(x)}, timestep=step)["default"].get("skipped", 0)
        for step, x in enumerate((0.0, 1.0, 0.0, 0.0))
    ]
    assert skipped == [1, 0, 1, 1]
    learner = pair(
        mode,
        lambda self, fwd_out, optimizers: fwd_out["product"] if "gen" in optimizers else None,
        compute={"arrays": arrays},
    )
    assert "skipped" not in learner.update({"default": batch(1.0)}, timestep=1)["default"]


def test_targets_follow_what_has_moved_before_a_later_turn_stopped(make: Any, batch: Any) -> None:
    class Followed(Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(1, 1, bias=False)
            self.target = FixedTarget(1).init(self.line)
            self.other = nn.Parameter(torch.ones(1))

        def forward_train(self, batch: Any) -> Any:
            return {"out": (self.line(batch["x"][:, None]) * self.other).mean()}

    def both(self: Any, module: Followed) -> Any:
        line, other = SGD(module.line.parameters(), lr=RATE), SGD([module.other], lr=RATE)
        return {"line": line, "other": other}

    learner = make(
        build=lambda self: Followed(),
        configure_optimizers_for_module=both,
        compute_loss_for_module=lambda self, fwd_out, optimizers: Loss(
            fwd_out["out"], stop="other" in optimizers
        ),
        learning={"optimizers": "in_turn"},
    )
    module = learner.modules["default"]
    before = module.line.weight.item()
    learner.update({"default": batch(1.0)}, timestep=1, num_iters=3)
    assert module.line.weight.item() == pytest.approx(before - RATE)
    assert module.other.item() == 1.0
    assert torch.equal(module.target.model.weight, module.line.weight)


@pytest.mark.parametrize("stop", ["no", 1.0, torch.tensor([True, False])])
def test_a_stop_that_is_no_truth_value_is_refused(pair: Any, batch: Any, stop: Any) -> None:
    learner = pair("together", lambda self, fwd_out: Loss(fwd_out["product"], stop=stop))
    with pytest.raises(PluginError, match="the stop of the loss of plugin 'alg' is "):
        learner.update({"default": batch(1.0)}, timestep=1)


def test_in_the_turn_of_an_add_on_an_algorithm_may_have_no_loss(pair: Any, batch: Any) -> None:
    def loss(self: Any, fwd_out: Any, optimizers: Any) -> Any:
        return Loss({name: fwd_out["product"] for name in optimizers if name in ("gen", "dis")})

    learner = pair("in_turn", loss, addons={"own": TRAINS_ITS_OWN})
    learner.update({"default": batch(1.0)}, timestep=1)
    assert learner.modules["default"].numbers() == (-0.5, 3.25)
    with pytest.raises(PluginError, match="gave a loss without any value"):
        pair("together", lambda self: Loss({})).update({"default": batch(1.0)}, timestep=1)


def with_scheduler(**config: Any) -> Any:
    def made(self: Any, module: Pair) -> Any:
        one = SGD([module.gen], lr=RATE)
        scheduler = {"scheduler": ReduceLROnPlateau(one), "monitor": "loss", **config}
        return {"optimizer": one, "lr_scheduler": scheduler}

    return made


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (lambda self, module: {1: SGD([module.gen], lr=RATE)}, "must be text, found 1"),
        (
            lambda self, module: {"optimizer": SGD([module.gen], lr=RATE), "name": ""},
            "the name of an optimizer must be text, found ''",
        ),
        (with_scheduler(scheduler=ReduceLROnPlateau), "needs a 'scheduler', found <class"),
    ],
)
def test_names_and_settings_of_optimizers_are_what_they_should_be(
    pair: Any, answer: Any, complaint: str
) -> None:
    with pytest.raises(PluginError, match=complaint):
        pair("together", product, configure_optimizers_for_module=answer)


def test_two_optimizers_do_not_report_their_learning_rates_under_one_name(pair: Any) -> None:
    def named(self: Any, module: Pair) -> Any:
        made = {}
        for name, param in (("gen", module.gen), ("dis", module.dis)):
            one = SGD([param], lr=RATE)
            scheduler = {"scheduler": ReduceLROnPlateau(one), "monitor": "loss", "name": "rate"}
            made[name] = {"optimizer": one, "lr_scheduler": scheduler}
        return made

    with pytest.raises(PluginError, match=r"'gen' and 'dis' .* both report 'learning_rate/rate'"):
        pair("together", product, configure_optimizers_for_module=named)


@pytest.mark.parametrize(
    ("loss", "complaint"),
    [
        (lambda out: Loss({0: out}), "a loss to optimizer 0, which does not exist"),
        (lambda out: Loss(out, terms={"one": 1.0}), "term 'one' of the loss .* is float"),
        (lambda out: Loss(out, metrics=[1]), "the metrics of the loss of plugin 'alg' are list"),
        (lambda out: out * 1j, "the loss of plugin 'alg' is complex"),
    ],
)
def test_what_is_no_loss_is_refused(pair: Any, batch: Any, loss: Any, complaint: str) -> None:
    learner = pair("together", lambda self, fwd_out: loss(fwd_out["product"]))
    with pytest.raises(PluginError, match=complaint):
        learner.update({"default": batch(1.0)}, timestep=1)


@pytest.mark.parametrize(
    ("gradient", "found"),
    [
        (None, "NoneType"),
        (1.0, "float"),
        (torch.zeros(3), r"float32 of shape \(3,\)"),
        (torch.zeros((), dtype=torch.float64), r"float64 of shape \(\)"),
    ],
)
def test_what_is_no_gradient_is_refused(pair: Any, batch: Any, gradient: Any, found: str) -> None:
    def hook(self: Any, gradients: Any) -> None:
        gradients["gen"] = gradient

    learner = pair("together", product, postprocess_gradients=hook)
    expected = rf"'alg' gave 'gen' the gradient {found}, not float32 of shape \(\)"
    with pytest.raises(PluginError, match=expected):
        learner.update({"default": batch(1.0)}, timestep=1)


def test_a_schedule_of_the_option_and_a_scheduler_are_one_too_many(make: Any) -> None:
    def both(self: Any, module: Any, config: Any) -> Any:
        one = SGD(module.parameters(), lr=config.learning_rate)
        return {"optimizer": one, "lr_scheduler": StepLR(one, 1)}

    schedule = Schedule([(0, 1.0), (10, 0.0)])
    with pytest.raises(PluginError, match=r"follows a schedule of environment steps, .* StepLR"):
        make(
            configure_optimizers_for_module=both,
            options={"learning_rate": ScheduledValue(1.0, schedule)},
        )


def stepped(kind: Any) -> Any:
    def optimizers(self: Any, module: Pair) -> Any:
        one = SGD(module.parameters(), lr=RATE)
        return one if kind is None else {"optimizer": one, "lr_scheduler": kind(one)}

    return {"configure_optimizers_for_module": optimizers}


def test_an_optimizer_that_is_registered_later_leaves_cycle_and_shuffle_where_they_are(
    pair: Any, batch: Any
) -> None:
    def made(later: bool) -> list[Any]:
        def optimizers(self: Any, module: Pair) -> Any:
            return tuple(
                {"optimizer": SGD([param], lr=RATE), "frequency": 2}
                for param in (module.gen, module.dis)
            )

        learner = pair(
            "together",
            lambda self, fwd_out, batch: seen.append(batch["x"].tolist()) or fwd_out["product"],
            configure_optimizers_for_module=optimizers,
            build=lambda self: WithMore(),
        )
        seen: list[Any] = []
        rows = batch(1.0, 2.0, 3.0)
        learner.update({"default": rows}, timestep=1, minibatch_size=1)
        module = learner.modules["default"]
        if later:
            learner.register_optimizer("default", "more", SGD([module.more], lr=RATE))
        learner.update({"default": rows}, timestep=2, minibatch_size=1)
        return [seen, module.numbers()]

    assert made(True) == made(False)


class WithMore(Pair):
    """A parameter without a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.more = nn.Parameter(torch.zeros(1))


def test_by_hand_targets_follow_where_something_moved(make: Any, batch: Any) -> None:
    class Followed(Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(1, 1, bias=False)
            self.target = FixedTarget(5).init(self.line)

        def forward_train(self, batch: Any) -> Any:
            return {"out": self.line(batch["x"][:, None]).mean()}

    learner = make(
        ids=("a", "b"),
        build=lambda self: Followed(),
        compute_loss_for_module=lambda self, fwd_out: fwd_out["out"],
        configure_optimizers_for_module=lambda self, module: SGD(module.line.parameters(), lr=RATE),
    )
    batches = learner.prepare_batches({"a": batch(1.0)})
    losses = learner.compute_loss(learner.forward_train(batches), batches)
    learner.apply_gradients(learner.compute_gradients(losses))
    learner.apply_gradients({})
    assert [one.target.clock.item() for one in learner.modules.values()] == [1, 0]
