"""Hooks of a run: order, arguments, traces, and which plugins are refused."""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import attrs
import pytest
import torch
from torch import nn

from rlplug import AddOn, Algorithm, Batch, Module, hookimpl, option, run
from rlplug.errors import PluginError
from rlplug.hooks.calls import HookCalls, HookTrace
from rlplug.registry import Participant, describe
from rlplug.seeding import derive

# -- hooks -----------------------------------------------------------------------------------------


BATCH = Batch({"rewards": torch.tensor([1.0, 2.0])})


@attrs.frozen(kw_only=True)
class Options:
    rate: float = option(0.5, "A number.", schedulable=True)


class Plain(Algorithm):
    Config = Options

    def build(self, config: Options) -> Module:
        module = Module()
        module.weight = nn.Parameter(torch.rand(2))
        return module


def participant(kind: type[Any], name: str = "", config: Any = None) -> Participant:
    config = kind.Config() if config is None else config
    return Participant(describe(name or kind.__name__.lower(), kind), kind(config), config)


def calls(algorithm: type[Any], *addons: type[Any], **configs: Any) -> HookCalls:
    trace = configs.pop("trace", None)
    own, *others = (
        participant(kind, config=configs.get(kind.__name__.lower()))
        for kind in (algorithm, *addons)
    )
    return HookCalls(own, others, trace=trace)


def learner(**extras: nn.Module) -> Any:
    return SimpleNamespace(extra={"default": extras})


def losses(hooks: HookCalls, view: Any = None) -> list[tuple[str, Any]]:
    offered = "default", Module(), BATCH, {}, ("default",), view or learner()
    return hooks.results("compute_loss_for_module", offered)


def refusal(*kinds: type[Any]) -> str:
    with pytest.raises(PluginError) as raised:
        calls(kinds[0], *kinds[1:])
    return str(raised.value)


# -- order and combination ----------------------------------------------------------------------


class LossOf3(Plain):
    def compute_loss_for_module(self, batch: Batch) -> torch.Tensor:
        return batch["rewards"].sum()


class Twice(AddOn):
    @hookimpl
    def compute_loss_for_module(self, fwd_out: Any, batch: Batch) -> torch.Tensor:
        return 2 * batch["rewards"].sum()


class Silent(AddOn):
    def compute_loss_for_module(self) -> None:
        return None


def test_losses_come_from_the_algorithm_first_then_add_ons_as_named() -> None:
    hooks = calls(LossOf3, Twice, Silent)
    assert losses(hooks) == [("lossof3", 3.0), ("twice", 6.0)]
    assert hooks.order() == {
        "build": ["lossof3"],
        "compute_loss_for_module": ["lossof3", "twice", "silent"],
    }
    assert hooks.participants[1].label == "add-on 'twice' (not installed)"
    assert losses(calls(Plain)) == []
    assert not calls(Plain).implements("compute_loss_for_module")


class First(AddOn):
    def prepare_batch(self, batch: Batch) -> Any:
        return {"rewards": batch["rewards"] + 1}


class Second(AddOn):
    def prepare_batch(self, batch: Batch) -> Any:
        return {"rewards": batch["rewards"] * 10}


class Prepares(Plain):
    def prepare_batch(self, batch: Batch) -> Any:
        return {"seen": batch["rewards"]}


@pytest.mark.parametrize(
    ("addons", "seen"), [((First, Second), [20.0, 30.0]), ((Second, First), [11.0, 21.0])]
)
def test_add_ons_prepare_the_batch_in_order_and_the_algorithm_sees_what_they_left(
    addons: tuple[type[Any], ...], seen: list[float]
) -> None:
    hooks = calls(Prepares, *addons)
    prepared = hooks.prepare_batch("default", Module(), BATCH, {}, 0, learner())
    assert prepared["seen"].tolist() == seen
    assert BATCH["rewards"].tolist() == [1.0, 2.0]


class Averages(AddOn):
    def inference_module(self, extra: nn.Module) -> nn.Module:
        return extra


def test_the_last_plugin_that_answers_gives_the_inference_module() -> None:
    plain, averaged = Module(), Module()
    hooks = calls(Plain, Averages)
    assert hooks.inference_module("default", plain, learner(averages=averaged)) is averaged
    assert hooks.inference_module("default", plain, learner()) is plain


# -- building -----------------------------------------------------------------------------------


class Outer(AddOn):
    @hookimpl(wrapper=True)
    def build(self, seed: int) -> Any:
        self.seeds = [seed, torch.initial_seed()]
        torch.rand(3)
        module = yield
        module.path = [*getattr(module, "path", []), "outer"]
        return module


class Inner(AddOn):
    @hookimpl(wrapper=True)
    def build(self) -> Any:
        module = yield
        module.path = [*getattr(module, "path", []), "inner"]
        return module

    def build_extra(self, seed: int) -> nn.Module:
        self.seeds = [seed, torch.initial_seed()]
        return nn.Linear(1, 1)


def test_wrappers_of_build_nest_and_draw_from_seeds_of_their_own() -> None:
    before = torch.get_rng_state()
    alone = calls(Plain).build("default", None, None, 7)
    hooks = calls(Plain, Outer, Inner)
    wrapped = hooks.build("default", None, None, 7)
    assert wrapped.path == ["inner", "outer"]
    assert torch.equal(alone.weight, wrapped.weight)
    first, second = (
        hooks.build_extra("default", Module(), None, None, 8)["inner"] for _ in range(2)
    )
    assert torch.equal(first.weight, second.weight)
    outer, inner = (one.plugin.seeds for one in hooks.addons)
    assert outer == [derive(7, "addon", "outer")] * 2
    assert inner == [derive(8, "addon", "inner")] * 2
    assert torch.equal(before, torch.get_rng_state())


class Wrong(Algorithm):
    def build(self) -> Any:
        return nn.Linear(1, 1)


class Stutters(AddOn):
    @hookimpl(wrapper=True)
    def build(self) -> Any:
        yield
        yield


class Skips(AddOn):
    @hookimpl(wrapper=True)
    def build(self) -> Any:
        if self.config is self:
            yield


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ((Wrong,), r"'build' returned Linear, which is not an rlplug\.Module"),
        ((Plain, Stutters), "'stutters' .* must yield exactly once"),
        ((Plain, Skips), "'skips' .* must yield exactly once"),
    ],
)
def test_what_build_and_its_wrappers_give_is_looked_at(
    kinds: tuple[type[Any], ...], message: str
) -> None:
    with pytest.raises(PluginError, match=message):
        calls(*kinds).build("default", None, None, 0)


# -- options, extras and blame ------------------------------------------------------------------


class Reads(AddOn):
    Config = Options

    def compute_loss_for_module(self, config: Options, extra: Any) -> Any:
        return {"loss": config.rate, "extra": extra}


def test_each_plugin_gets_its_own_options_and_its_own_extra() -> None:
    mine = nn.Identity()
    hooks = calls(Plain, Reads, reads=Options(rate=3.0))
    assert losses(hooks, learner(reads=mine, plain=nn.Linear(1, 1))) == [
        ("reads", {"loss": 3.0, "extra": mine})
    ]
    hooks.configs.set_options("reads", "other", {"rate": 9.0})
    assert hooks.configs["reads", "default"].rate == 3.0
    assert hooks.configs["reads", "other"].rate == 9.0


class Breaks(AddOn):
    def compute_loss_for_module(self) -> None:
        raise ZeroDivisionError("one over nothing")

    def save_state(self) -> Any:
        raise ZeroDivisionError("one over nothing")


@pytest.mark.parametrize("trace", [None, HookTrace()], ids=["plain", "traced"])
@pytest.mark.parametrize(
    ("hook", "call"),
    [("compute_loss_for_module", losses), ("save_state", lambda hooks: hooks.save_state())],
)
def test_an_exception_keeps_its_traceback_and_names_hook_plugin_and_package(
    trace: HookTrace | None, hook: str, call: Any
) -> None:
    with pytest.raises(ZeroDivisionError, match="one over nothing") as raised:
        call(calls(LossOf3, Breaks, trace=trace))
    assert raised.value.__notes__ == [f"raised in hook {hook!r} of add-on 'breaks' (not installed)"]
    assert raised.traceback[-1].name == hook
    assert trace is None or trace.take()[f"hooks/breaks/{hook}_seconds"] > 0


class Hears(AddOn):
    def run_started(self, run: Any) -> None:
        run.append("run_started")

    def update_finished(self, results: Any) -> None:
        results.append("update_finished")


class Tracker:
    def run_failed(self, error: Any) -> None:
        error.append("run_failed")
        raise OSError("the tracker")


def test_the_events_of_a_run_are_told_to_nobody_where_another_process_tells_them() -> None:
    told: list[str] = []
    hooks = calls(Plain, Hears)
    hooks.listen([Tracker(), Tracker()])
    hooks.tell("run_started", told)
    hooks.tell("checkpoint_saved", 1, None)
    # Of a failure all are told.
    with pytest.raises(OSError, match="the tracker"):
        hooks.tell("run_failed", 1, told)
    assert told == ["run_started", "run_failed", "run_failed"]
    hooks.mute()
    hooks.tell("run_started", told)
    hooks.tell("update_finished", 1, 1, told, None)
    assert told[3:] == ["update_finished"]


# -- refusals -----------------------------------------------------------------------------------


def yields(self: Any) -> Any:
    yield


async def waits(self: Any) -> None: ...


def nothing(self: Any) -> None: ...


def keyword(self: Any, *, batch: Batch) -> None: ...


def default(self: Any, batch: Batch = BATCH) -> None: ...


def stars(self: Any, *everything: Any) -> None: ...


def misspelled(self: Any, bach: Any) -> None: ...


def selfless(batch: Any) -> None: ...


def marked(function: Any, **options: bool) -> Any:
    """A copy of a function, which bears the mark of a hook."""
    own = FunctionType(function.__code__, function.__globals__)
    mark: Any = hookimpl(**options)
    return mark(own)


LOSS = "compute_loss_for_module"


@pytest.mark.parametrize(
    ("base", "name", "function", "message"),
    [
        (Plain, "compute_loss_for_modul", marked(nothing), f"an unknown hook .* mean '{LOSS}'"),
        (Plain, "postproces_gradients", nothing, "looks like 'postprocess_gradients'"),
        (Plain, "Save_State", nothing, "looks like 'save_state'"),
        (Plain, "configure_optimizers", nothing, "looks like 'configure_optimizers_for_module'"),
        (Plain, "compute_loss", nothing, f"looks like '{LOSS}'"),
        (Plain, "training_step", nothing, f"looks like '{LOSS}'"),
        (Plain, "save_state", 3, "has a hook's name but is not a method"),
        (Plain, "save_state", yields, "yields, which only a wrapper does"),
        (Plain, "save_state", waits, "is a coroutine, but hooks are not awaited"),
        (AddOn, "build", nothing, "would replace the algorithm's 'build'"),
        (Plain, "build", marked(yields, wrapper=True), "an algorithm must implement"),
        (Algorithm, "helper", nothing, "has no 'build'"),
        (AddOn, LOSS, marked(yields, wrapper=True), f"{LOSS}.*Only 'build' can be wrapped"),
        (AddOn, LOSS, marked(yields, hookwrapper=True), "is an old-style wrapper"),
        (AddOn, LOSS, marked(nothing, tryfirst=True), "is marked tryfirst or trylast"),
        (AddOn, LOSS, marked(nothing, trylast=True), "is marked tryfirst or trylast"),
        (AddOn, "build", marked(nothing, wrapper=True), "a wrapper, but does not yield"),
        (Plain, LOSS, keyword, "parameter 'batch' is keyword-only"),
        (Plain, LOSS, default, "parameter 'batch' has a default"),
        (Plain, LOSS, stars, r"takes \*everything"),
        (Plain, LOSS, misspelled, "'bach' that hook .* does not offer. Did you mean 'batch'"),
        (Plain, LOSS, selfless, "has no 'self'"),
    ],
)
def test_mistakes_in_hooks_are_refused_with_the_plugin_and_a_way_out(
    base: type[Any], name: str, function: Any, message: str
) -> None:
    odd = type("Odd", (base,), {name: function})
    kinds = (Plain, odd) if issubclass(odd, AddOn) else (odd,)
    kind = "add-on" if issubclass(odd, AddOn) else "algorithm"
    said = refusal(*kinds)
    assert said.startswith(f"{kind} 'odd' (not installed)")
    assert re.search(message, said, re.DOTALL)
    assert "\n  " in said


def test_all_mistakes_are_named_at_once_and_no_plugin_takes_part_twice() -> None:
    odd = type("Odd", (Plain,), {LOSS: keyword, "additional_update": default})
    assert refusal(odd).count("algorithm 'odd'") == 2
    assert "add-on 'twice' (not installed) takes part twice" in refusal(Plain, Twice, Twice)


def test_helpers_static_methods_and_hooks_of_a_newer_core_are_allowed() -> None:
    class Ahead(LossOf3):
        @hookimpl(optionalhook=True)
        def invented_next_year(self) -> None: ...

        def compute_loss(self) -> None: ...

        @staticmethod
        def save_state() -> Any:
            return {"a": 1}

    hooks = calls(Ahead)
    assert losses(hooks) == [("ahead", 3.0)]
    assert hooks.save_state() == {"ahead": {"a": 1}}
    assert "invented_next_year" not in hooks.order()


# -- hook trace ------------------------------------------------------------------------------------


OPTIONS: dict[str, Any] = {"tracking.enabled": False, "sampling.num_envs": 8}


class Halve(AddOn):
    """Halves every gradient, slowly."""

    def postprocess_gradients(self, gradients):  # type: ignore[no-untyped-def]
        time.sleep(0.002)
        for gradient in gradients.values():
            gradient.mul_(0.5)


def test_seconds_and_gradient_norms_are_reported_by_plugin(home: Path) -> None:
    options = {**OPTIONS, "learner.trace_hooks": True}
    result = run("a2c", "CartPole-v1", steps=400, seed=1, addons=[Halve()], options=options)
    found = {name: one for name, one in result.metrics.items() if name.startswith("hooks/")}
    # The last report is of one update, ten of 5 × 8 steps each in all.
    assert found["hooks/halve/postprocess_gradients_seconds"] > 0.0019
    assert found["hooks/halve/seconds"] == found["hooks/halve/postprocess_gradients_seconds"]
    assert 0 < found["hooks/a2c/compute_loss_for_module_seconds"] < found["hooks/a2c/seconds"]
    before, after = (found[f"hooks/halve/grad_norm_{when}"] for when in ("before", "after"))
    assert after == pytest.approx(before / 2)
    # Trackers are no plugins of the run.
    assert {name.split("/")[1] for name in found} == {"a2c", "halve"}


def test_a_trace_changes_nothing(home: Path) -> None:
    plain, traced = (
        run("a2c", "CartPole-v1", steps=400, seed=1, options={**OPTIONS, **more})
        for more in ({}, {"learner.trace_hooks": True})
    )
    assert not any(name.startswith("hooks/") for name in plain.metrics)
    names = [name for name in plain.metrics if not name.startswith("time/")]
    assert {name: plain.metrics[name] for name in names} == {
        name: traced.metrics[name] for name in names
    }


def test_the_flag_is_the_option(rlplug: Any, home: Path) -> None:
    done = rlplug("run", "--algo", "a2c", "--trace-hooks", "--dry-run")
    assert (done.code, "trace_hooks" in done.out) == (0, True)
