"""Forms of optimizers, clipping, steps, and schedulers that monitor a metric."""

from __future__ import annotations

import copy
import math
from typing import Any, ClassVar

import attrs
import gymnasium
import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, ReduceLROnPlateau, StepLR

from rlplug import Acted, AddOn, Algorithm, Module, hookimpl, option, run
from rlplug.errors import PluginError, RunFailedError
from rlplug.feeds import Rollout, Stream
from rlplug.optim.clipping import clip, measure, zero_nonfinite
from rlplug.optim.forms import OptimizerPlan, SchedulerPlan, read_forms, read_scheduler
from rlplug.optim.schedulers import Schedulers
from rlplug.optim.steps import FusedAdam, OptimizerStep, guarded_step, step_alone

pytestmark = pytest.mark.usefixtures("home")

# -- optim forms -----------------------------------------------------------------------------------


def sgd() -> Optimizer:
    return SGD([nn.Parameter(torch.zeros(1))], lr=1.0)


A, B = sgd(), sgd()
STEP = StepLR(A, 1)


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        (A, ["default"]),
        ([A, B], ["0", "1"]),
        ((A, B), ["0", "1"]),
        ({"actor": A, "critic": B}, ["actor", "critic"]),
        (([A, B], [STEP]), ["0", "1"]),
        (([A], [STEP]), ["default"]),
        ({"optimizer": A, "lr_scheduler": STEP}, ["default"]),
        ({"optimizer": A, "name": "mine"}, ["mine"]),
        (({"optimizer": A, "frequency": 2}, {"optimizer": B, "frequency": 3}), ["0", "1"]),
        ({"actor": {"optimizer": A, "lr_scheduler": STEP}, "critic": B}, ["actor", "critic"]),
        (None, []),
    ],
)
def test_every_form_gives_named_optimizers(answer: Any, names: list[str]) -> None:
    plans = read_forms(answer, "a test")
    assert [plan.name for plan in plans] == names
    assert [plan.optimizer for plan in plans] == [A, B][: len(names)]


def test_every_key_is_read_and_what_is_missing_is_as_in_lightning() -> None:
    scheduler = ReduceLROnPlateau(A)
    config = {
        "scheduler": scheduler,
        "interval": "step",
        "frequency": 3,
        "monitor": "loss",
        "strict": False,
        "name": "slow",
    }
    read = SchedulerPlan(
        scheduler=scheduler, interval="step", every=3, monitor="loss", strict=False, name="slow"
    )
    given = ({"optimizer": A, "lr_scheduler": config, "frequency": 2},)
    assert read_forms(given, "a test") == [
        OptimizerPlan(name="0", optimizer=A, schedulers=(read,), frequency=2)
    ]
    (plan,) = read_forms({"optimizer": A, "lr_scheduler": STEP}, "a test")
    (scheduler_plan,) = plan.schedulers
    assert (scheduler_plan.interval, scheduler_plan.every) == ("epoch", 1)
    assert (scheduler_plan.monitor, scheduler_plan.strict, plan.frequency) == ("", True, 0)


class Hands(StepLR):
    """Hands on to StepLR whatever it is given."""

    def step(self, *args: Any, **options: Any) -> None:
        super().step(*args, **options)


class Follows(LRScheduler):
    """Follows a metric by another name."""

    def step(self, value: Any = None) -> None:
        self.seen = value


class Bare:
    """No scheduler of torch, and without arguments."""

    def step(self) -> None: ...


@pytest.mark.parametrize(
    ("scheduler", "follows"),
    [
        (STEP, False),
        (Hands(A, 1), False),
        (OneCycleLR(A, 1.0, total_steps=9), False),
        (Bare(), False),
        (ReduceLROnPlateau(A), True),
        (Follows(A), True),
    ],
    ids=lambda given: type(given).__name__,
)
def test_only_a_scheduler_whose_step_takes_a_metric_monitors_one(
    scheduler: Any, follows: bool
) -> None:
    config = {"scheduler": scheduler, "monitor": "val_loss", "name": None}
    (plan,) = read_forms({"optimizer": A, "lr_scheduler": config}, "a test")
    assert [made.monitor for made in plan.schedulers] == ["val_loss" if follows else ""]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (3, "gave int, which is no optimizer"),
        ("adam", "gave str, which is no optimizer"),
        ([A, 3], "'1' is int, which holds no optimizer"),
        ({"optimizer": A, "name": ""}, "the name of an optimizer must be text, found ''"),
        ({"optimizer": A, "lr_schedular": STEP}, "unknown key 'lr_schedular' .* Did you mean"),
        (({"optimizer": A, "frequency": 2}, {"optimizer": B}), r"some have none: \[2, 0\]"),
        (({"optimizer": A, "frequency": -1},), "must be a whole number from 1 on, found -1"),
        ({"optimizer": A, "lr_scheduler": {"interval": "step"}}, "needs a 'scheduler'"),
        ({"optimizer": A, "lr_scheduler": StepLR}, "needs a 'scheduler'"),
        ({"optimizer": A, "lr_scheduler": {"scheduler": STEP, "interval": "minute"}}, "'minute'"),
        ({"optimizer": A, "lr_scheduler": {"scheduler": STEP, "frequency": 0}}, "found 0"),
        ({"optimizer": A, "lr_scheduler": ReduceLROnPlateau(A)}, "needs the name of a metric"),
        ({"optimizer": B, "lr_scheduler": STEP}, "'default' was made from another one"),
        (([B], [STEP]), "1 of the schedulers belong to none"),
        ({"optimizer": A, "lr_scheduler": [STEP, STEP]}, "a scheduler is given twice"),
    ],
)
def test_what_is_no_form_is_refused_with_the_plugin_and_the_reason(
    answer: Any, message: str
) -> None:
    with pytest.raises(PluginError, match=f"^a test.*{message}"):
        read_forms(answer, "a test")


# -- optim clipping --------------------------------------------------------------------------------


def side_by_side(*numbers: float) -> tuple[list[Tensor], numpy.ndarray]:
    """Two gradients in one array, the first one with all but the last number."""
    flat = numpy.array(numbers, numpy.float32)
    return [torch.from_numpy(flat[:-1]), torch.from_numpy(flat[-1:])], flat


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_gradients_of_any_precision_are_measured_and_clipped(dtype: torch.dtype) -> None:
    gradients = [torch.tensor([3.0, 4.0], dtype=dtype), torch.tensor([12.0], dtype=dtype)]
    norms = measure(gradients)
    # NumPy has no such numbers: their norm stays a tensor, which nobody has to read.
    assert isinstance(norms.total, float) == (dtype in (torch.float32, torch.float64))
    assert float(norms.total) == 13.0
    assert float(clip(norms, 6.5, "global_norm")) == pytest.approx(6.5)
    assert torch.cat(gradients).tolist() == pytest.approx([1.5, 2.0, 6.0])


@pytest.mark.parametrize("by", ["global_norm", "norm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiny_gradients_shrink_as_torch_shrinks_them(by: str, dtype: torch.dtype) -> None:
    # clip_grad_norm_ scales by limit / (norm + 1e-6): here that is 1 / (3 + 1).
    gradients = [torch.tensor([3e-6], dtype=dtype)]
    clip(measure(gradients), 1e-6, by)
    assert gradients[0].tolist() == pytest.approx([0.75e-6], rel=1e-2)


@pytest.mark.parametrize("bad", [math.inf, math.nan, 1e38])
def test_a_norm_that_no_number_holds_is_not_finite_and_numbers_that_are_not_become_zero(
    bad: float,
) -> None:
    gradients, flat = side_by_side(1.0, -bad, bad)
    assert not math.isfinite(measure(gradients).total)
    assert not math.isfinite(measure(gradients, 2.0, flat).total)
    zero_nonfinite(gradients)
    kept = bad if math.isfinite(bad) else 0.0
    assert flat.tolist() == pytest.approx([1.0, -kept, kept])


# -- optim steps -----------------------------------------------------------------------------------


def pair(kind: Any, **options: Any) -> tuple[list[nn.Parameter], Any]:
    parameters = [nn.Parameter(torch.tensor([1.0, 2.0])), nn.Parameter(torch.tensor([[3.0]]))]
    return parameters, kind(parameters, lr=0.1, **options)


def gradients(parameters: list[nn.Parameter], value: float = 1.0) -> list[Tensor]:
    """All numbers are the value; the parameters hold them, too."""
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, value)
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def stepped(fused: FusedAdam | None, given: list[Tensor]) -> bool:
    """Whether the kernel did it."""
    assert fused is not None
    with OptimizerStep():
        return fused.step(given)


@pytest.mark.parametrize("kind", [Adam, AdamW])
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"maximize": True}], ids=str)
def test_fused_steps_are_those_of_the_optimizer_also_after_a_state_was_loaded(
    kind: Any, options: Any
) -> None:
    (ours, optimizer), (theirs, reference) = (pair(kind, fused=True, **options) for _ in range(2))
    # Older versions of torch make groups without this key.
    (group,) = optimizer.param_groups
    decoupled = group.pop("decoupled_weight_decay", kind is AdamW)
    fused = FusedAdam.of(optimizer)
    group["decoupled_weight_decay"] = decoupled
    saved: Any = None
    for step in range(6):
        given = gradients(ours, 1.0 + step)
        # The first step, which makes its state, is the optimizer's.
        assert stepped(fused, given) == (step > 0)
        if not step:
            optimizer.step()
        gradients(theirs, 1.0 + step)
        reference.step()
        if step == 1:
            saved = copy.deepcopy(reference.state_dict())
        if step == 3:
            # Back to the averages and counts of the second step.
            optimizer.load_state_dict(copy.deepcopy(saved))
            reference.load_state_dict(copy.deepcopy(saved))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)
    assert [int(state["step"]) for state in optimizer.state.values()] == [4, 4]


@pytest.mark.parametrize(
    ("kind", "options"),
    [(RMSprop, {}), (SGD, {"momentum": 0.9}), (Adagrad, {}), (Adam, {"amsgrad": True})],
)
def test_a_step_alone_is_the_step_of_the_optimizer(kind: Any, options: Any) -> None:
    (ours, alone), (theirs, usual) = (pair(kind, **options) for _ in range(2))
    for step in range(4):
        gradients(ours, 1.0 + step)
        gradients(theirs, 1.0 + step)
        with OptimizerStep():
            step_alone(alone)
        usual.step()
    assert all(map(torch.equal, ours, theirs))
    assert ours[0].requires_grad


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Adam, {"fused": True}),
        (Adam, {"foreach": False}),
        (AdamW, {}),
        (SGD, {"momentum": 0.9}),
        (RMSprop, {}),
    ],
)
def test_a_bad_step_changes_nothing_that_later_steps_depend_on(
    kind: Any, options: Any, first: bool
) -> None:
    made = []
    for bad in (True, False):
        parameters, optimizer = pair(kind, **options)
        for step in range(3):
            if bad and step == (not first):
                gradients(parameters, float("nan"))
                before = copy.deepcopy(parameters)
                guarded_step(optimizer, torch.tensor(True))
                assert all(map(torch.equal, parameters, before))
            gradients(parameters, 1.0 - step)
            guarded_step(optimizer, torch.tensor(False))
        made.append(parameters)
    for mine, other in zip(*made, strict=True):
        torch.testing.assert_close(mine, other)
    assert made[0][0].tolist() != [1.0, 2.0]


# -- optim schedulers ------------------------------------------------------------------------------


class Pays(gymnasium.Env[Any, Any]):
    """Episodes of two steps, each of which pays 1."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.taken = 0
        return numpy.ones(1, numpy.float32), {}

    def step(self, action: Any) -> Any:
        self.taken += 1
        return numpy.ones(1, numpy.float32), 1.0, self.taken == 2, False, {}


class Weight(Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward_exploration(self, act: Any) -> Acted:
        return Acted(numpy.zeros(len(act.observations), numpy.int64))

    forward_inference = forward_exploration


@attrs.frozen(kw_only=True)
class Options:
    monitor: str = option("eval/return_mean", "What the scheduler monitors.")
    strict: bool = option(True, "Whether it must be there.")
    every: int = option(1, "Intervals between its moves.")
    interval: str = option("step", "What counts as an interval.")
    n_epochs: int = option(0, "Passes over a rollout of 4 steps; 0: a stream.")


class Waits(Algorithm):
    """Halves the rate after one value that is no better than the best."""

    Config: ClassVar[type[Options]] = Options
    config: Options

    def feed(self) -> Stream | Rollout:
        epochs = self.config.n_epochs
        return Rollout(n_steps=4, batch_size=2, n_epochs=epochs) if epochs else Stream()

    @hookimpl
    def build(self) -> Module:
        return Weight()

    @hookimpl
    def configure_optimizers_for_module(self, module: Any, config: Options) -> Any:
        optimizer = SGD(module.parameters(), lr=1.0)
        plateau = ReduceLROnPlateau(optimizer, "max", factor=0.5, patience=0)
        scheduler = {"scheduler": plateau, "interval": config.interval, "monitor": config.monitor}
        scheduler |= {"strict": config.strict, "frequency": config.every}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    @hookimpl
    def compute_loss_for_module(self, module: Any) -> Any:
        return (module.weight * 0).sum()


class Rates(AddOn):
    """Keeps the steps at which the learning rate has changed."""

    changes: dict[float, int]

    @hookimpl
    def update_finished(self, step: int, results: Any) -> None:
        self.changes.setdefault(results["default"]["learning_rate"], step)


def changes(steps: int = 100, **options: Any) -> list[int]:
    """The first steps of the learning rates 1, 0.5, 0.25 and 0.125."""
    rates = Rates()
    rates.changes = {}
    given = {"tracking.enabled": False, "evaluation.every": 20, "evaluation.episodes": 1}
    run(Waits, Pays, steps=steps, addons=[rates], options={**given, **options})
    assert list(rates.changes)[:4] == [1.0, 0.5, 0.25, 0.125][: len(rates.changes)]
    return list(rates.changes.values())[:4]


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        # All evaluations return 2: the one at step 20 is the best, those after it no better.
        ({}, [1, 41, 61, 81]),
        # Due at 50 with the evaluation of step 40, and at 100 with that of step 80.
        ({"every": 50}, [1, 100]),
        # A run of 640 steps reports every second one; the first two episodes end at 2 and 4.
        ({"steps": 640, "monitor": "rollout/return_mean"}, [1, 5, 7, 9]),
        # Four updates of two epochs each, with a move in every second epoch.
        (
            {"steps": 16, "interval": "epoch", "monitor": "loss", "every": 2, "n_epochs": 2},
            [4, 8, 12, 16],
        ),
        # In a stream each update is an epoch.
        ({"steps": 4, "interval": "epoch", "monitor": "loss"}, [1, 2, 3, 4]),
    ],
    ids=str,
)
def test_a_scheduler_moves_when_it_is_due_and_its_metric_has_a_new_value(
    options: Any, steps: list[int]
) -> None:
    assert changes(**options) == steps


def test_metrics_that_no_run_has_are_refused_or_where_not_strict_told() -> None:
    with pytest.raises(RunFailedError, match="Did you mean 'eval/return_mean'"):
        changes(monitor="eval/retrun_mean")
    with pytest.warns(UserWarning, match="monitors 'eval/retrun_mean'"):
        assert changes(monitor="eval/retrun_mean", strict=False) == [1]


def plateau(monitor: str = "eval/x") -> Schedulers:
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    config = {"scheduler": scheduler, "interval": "step", "monitor": monitor}
    return Schedulers([read_scheduler(config, "a test")])


def rate(schedulers: Schedulers) -> float:
    """The learning rate."""
    return float(schedulers.runs[0].plan.scheduler.optimizer.param_groups[0]["lr"])
