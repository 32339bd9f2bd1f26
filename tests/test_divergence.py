"""Training that diverges: what is said, what counts as the best, and how a run fails by it."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import attrs
import gymnasium
import numpy
import pytest
import torch
from torch import nn

from rlplug import Acted, AddOn, Algorithm, Loss, Module, hookimpl, load, option, resume, run
from rlplug.checkpoint import checkpoints_in, find_checkpoint, read_manifest
from rlplug.cli.outcome import print_result
from rlplug.errors import RequestError, RunFailedError
from rlplug.feeds import Stream
from rlplug.registry import Registry

pytestmark = pytest.mark.usefixtures("home")

OFF = {"tracking.enabled": False}


class Pays(gymnasium.Env[Any, Any]):
    """Episodes of one step, which pays the action."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return numpy.ones(1, numpy.float32), {}

    def step(self, action: Any) -> Any:
        return numpy.ones(1, numpy.float32), float(action), True, False, {}


class Acts(Module):
    """Chooses action 1 where its weight is no number: as if it were the better for it."""

    bound: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.mask = nn.Parameter(torch.tensor([-torch.inf, 0.0]), requires_grad=False)
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("bound", torch.tensor([numpy.inf]))

    def forward_exploration(self, act: Any) -> Acted:
        return Acted(numpy.zeros(len(act.observations), numpy.int64))

    def forward_inference(self, act: Any) -> Acted:
        good = not bool(torch.isfinite(self.weight))
        return Acted(numpy.full(len(act.observations), int(good)))


@attrs.frozen(kw_only=True)
class Options:
    breaks_at: int = option(0, "The step whose update breaks the weights.")


class Breaks(Algorithm):
    """One update per step; that of step `breaks_at` makes the weight NaN."""

    Config: ClassVar[type[Options]] = Options
    config: Options

    def feed(self) -> Stream:
        return Stream()

    @hookimpl
    def build(self) -> Module:
        return Acts()

    @hookimpl
    def configure_optimizers_for_module(self) -> None:
        return None

    @hookimpl
    def additional_update(self, module: Any, timestep: int) -> None:
        if timestep == self.config.breaks_at:
            module.weight.data.fill_(float("nan"))


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "not finite" in one.getMessage()]


def test_an_evaluation_of_weights_that_are_not_finite_is_never_the_best(
    caplog: pytest.LogCaptureFixture, capsys: Any
) -> None:
    options = {**OFF, "breaks_at": 50, "evaluation.every": 20, "evaluation.stop_at_return": 1}
    result = run(Breaks, Pays, steps=100, options=options)
    # From step 60 on evaluations return 1: no reason to stop, and not the best.
    assert (result.step, result.stopped, result.best) == (100, "", (20, 0.0))
    assert result.metrics["eval/return_mean"] == 1.0
    assert result.nonfinite_step == result.as_json()["nonfinite_step"] == 50
    print_result(result)
    shown = capsys.readouterr().out
    assert re.search(r"^not finite +weights, since step 50", shown, re.MULTILINE)
    assert find_checkpoint(result.run_id).name == "step-000000000020"
    saved = [read_manifest(one) for one in checkpoints_in(result.folder / "checkpoints")]
    assert [(one.step, one.finite) for one in saved] == [(20, True), (100, False)]
    (said,) = messages(caplog)
    assert "not finite from step 50 on: weight of module 'default'" in said
    # The last one is asked for: to see what became of it.
    last = find_checkpoint(result.run_id, "last")
    assert load(last, registry=Registry.of(breaks=Breaks)).step == 100
    assert f"the checkpoint {last} has numbers that are not finite" in messages(caplog)[-1]


def test_where_no_checkpoint_has_finite_weights_none_is_the_best() -> None:
    result = run(Breaks, Pays, steps=30, options={**OFF, "breaks_at": 1, "evaluation.every": 20})
    assert (result.best, result.nonfinite_step) == (None, 1)
    with pytest.raises(RequestError, match="no checkpoint whose weights are finite"):
        load(result.run_id)


def test_bounds_and_masks_that_never_were_finite_are_not_spoken_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    result = run(Breaks, Pays, steps=100, options=OFF)
    assert (result.nonfinite_step, messages(caplog)) == (None, [])


class Learns(Breaks):
    """Learns by gradients, whose update at `breaks_at` leaves the weight infinite."""

    @hookimpl
    def configure_optimizers_for_module(self, module: Any) -> Any:  # type: ignore[override] # another hook signature
        return torch.optim.SGD(module.parameters(), lr=1e-3)

    @hookimpl
    def compute_loss_for_module(self, module: Any, batch: Any) -> Any:
        return (module.weight - batch["rewards"]).square().mean()


def test_gradients_that_are_not_finite_have_the_weights_looked_at_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = {**OFF, "breaks_at": 1_003, "evaluation.episodes": 0}
    # The next gradient is NaN, and its step is skipped.
    assert run(Learns, Pays, steps=3_200, options=options).nonfinite_step == 1_004
    assert "; not finite in the last update: loss" in messages(caplog)[0]
    stop = {**options, "learner.nonfinite": "stop"}
    with pytest.raises(RunFailedError, match="gradients of module 'default' are not finite"):
        run(Learns, Pays, steps=3_200, options=stop)


class Beside(AddOn):
    """Keeps an average beside the module that becomes infinite."""

    @hookimpl
    def build_extra(self) -> nn.Module:
        return nn.BatchNorm1d(1)

    @hookimpl
    def additional_update(self, extra: Any, timestep: int) -> None:
        if timestep == 30:
            extra.running_mean.fill_(float("inf"))


def test_what_an_add_on_keeps_beside_a_module_counts_as_well(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert run(Breaks, Pays, steps=60, addons=[Beside()], options=OFF).nonfinite_step == 30
    assert "from step 30 on: beside.running_mean of module" in messages(caplog)[0]


# -- learner.on_divergence ------------------------------------------------------------------------


class Diverges(Learns):
    """A loss whose second term is NaN from `breaks_at` to `mends_at`, counted in updates."""

    mends_at = 10**9

    @hookimpl
    def additional_update(self) -> None:  # type: ignore[override] # another hook signature
        return None

    @hookimpl
    def compute_loss_for_module(self, module: Any, learner: Any) -> Any:
        broken = self.config.breaks_at <= learner.updates < self.mends_at
        drift = module.weight.sum() * (float("nan") if broken else 1e-3)
        error = (module.weight - 1).square().mean()
        return Loss(error + drift, metrics={"drift": drift.detach(), "error": error.detach()})


class Recovers(Diverges):
    mends_at = 149


def test_a_hundred_updates_without_a_step_are_told_once_with_the_terms(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = {**OFF, "breaks_at": 50, "evaluation.episodes": 0}
    assert run(Diverges, Pays, steps=400, options=options).status == "FINISHED"
    (said,) = messages(caplog)
    assert "no weight moved for 100 updates; not finite in the last update: loss, drift" in said
    assert run(Recovers, Pays, steps=400, options=options).status == "FINISHED"
    assert messages(caplog) == [said]


def test_updates_without_a_step_fail_a_run_by_option_also_after_a_resume() -> None:
    options = {**OFF, "breaks_at": 50, "learner.on_divergence": "stop", "evaluation.episodes": 0}
    first = run(Diverges, Pays, steps=120, options=options)
    for go_on in (
        lambda: run(Diverges, Pays, steps=400, options=options),
        lambda: resume(first.run_id, steps=400, algorithm=Diverges, env=Pays),
    ):
        with pytest.raises(RunFailedError, match="training diverged: gradients were") as raised:
            go_on()
        assert any(note.startswith("recorded up to step 150; ") for note in raised.value.__notes__)


@pytest.mark.parametrize(("breaks_at", "steps"), [(50, 100), (3_199, 3_199)])
def test_weights_that_are_not_finite_fail_a_run_by_option(breaks_at: int, steps: int) -> None:
    options = {**OFF, "breaks_at": breaks_at, "learner.on_divergence": "stop"}
    with pytest.raises(RunFailedError, match=f"not finite from step {breaks_at:,} on") as raised:
        run(Breaks, Pays, steps=steps, options=options)
    assert raised.value.exit_code == 1


def test_a_resumed_run_knows_that_it_diverged_and_does_not_say_so_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = {**OFF, "breaks_at": 50, "evaluation.episodes": 0}
    first = run(Breaks, Pays, steps=100, options=options)
    caplog.clear()
    result = resume(first.run_id, steps=200, algorithm=Breaks, env=Pays)
    assert (result.nonfinite_step, messages(caplog)) == (50, [])
