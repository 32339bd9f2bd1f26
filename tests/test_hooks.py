from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import torch
from torch import nn

from rlplug import AddOn, Algorithm, Batch, Module, hookimpl, option
from rlplug.config import Schedule
from rlplug.errors import PluginError
from rlplug.hooks.binding import HOOKS
from rlplug.hooks.calls import HookCalls
from rlplug.hooks.tracing import HookTrace
from rlplug.registry import Participant, describe
from rlplug.seeding import derive

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
    name = algorithm.__name__.lower()
    return HookCalls(
        participant(algorithm, config=configs.get(name)),
        [participant(one, config=configs.get(one.__name__.lower())) for one in addons],
    )


def learner(**extras: nn.Module) -> Any:
    return SimpleNamespace(extra={"default": extras})


def losses(hooks: HookCalls, view: Any = None) -> list[tuple[str, Any]]:
    return hooks.compute_loss_for_module(
        "default", Module(), BATCH, {}, ("default",), view or learner()
    )


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
    assert losses(calls(LossOf3, Twice, Silent)) == [("lossof3", 3.0), ("twice", 6.0)]


def test_a_method_with_a_hooks_name_is_one_with_or_without_the_decorator() -> None:
    hooks = calls(LossOf3, Twice)
    assert hooks.order()["compute_loss_for_module"] == ["lossof3", "twice"]


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


def test_the_last_plugin_that_answers_gives_the_inference_module() -> None:
    class Averages(AddOn):
        def inference_module(self, extra: nn.Module) -> nn.Module:
            return extra

    averaged = Module()
    chosen = calls(Plain, Averages).inference_module(
        "default", Module(), learner(averages=averaged)
    )
    assert chosen is averaged


def test_a_hook_nobody_implements_gives_nothing() -> None:
    hooks = calls(Plain)
    assert losses(hooks) == []
    assert not hooks.implements("compute_loss_for_module")
    assert hooks.implements("build")


# -- building -----------------------------------------------------------------------------------


class Outer(AddOn):
    @hookimpl(wrapper=True)
    def build(self, seed: int) -> Any:
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


def test_wrappers_of_build_nest_with_the_first_named_outermost() -> None:
    assert calls(Plain, Outer, Inner).build("default", None, None, 0).path == ["inner", "outer"]


def test_an_add_on_that_draws_numbers_changes_nobody_elses_weights() -> None:
    alone = calls(Plain).build("default", None, None, 7)
    wrapped = calls(Plain, Outer, Inner).build("default", None, None, 7)
    assert torch.equal(alone.weight, wrapped.weight)


def test_each_plugin_builds_from_a_seed_of_its_kind_and_name() -> None:
    seeds: dict[str, int] = {}

    class Base(Algorithm):
        def build(self) -> Module:
            seeds["base"] = torch.initial_seed()
            return Module()

    class Around(AddOn):
        @hookimpl(wrapper=True)
        def build(self) -> Any:
            seeds["around"] = torch.initial_seed()
            return (yield)

        def build_extra(self) -> nn.Module:
            seeds["extra"] = torch.initial_seed()
            return nn.Identity()

    hooks = calls(Base, Around)
    hooks.build("default", None, None, 7)
    hooks.build_extra("default", Module(), None, None, 8)
    assert seeds == {
        "base": derive(7, "algorithm", "base"),
        "around": derive(7, "addon", "around"),
        "extra": derive(8, "addon", "around"),
    }


def test_building_leaves_the_global_generator_where_it_was() -> None:
    class Draws(AddOn):
        def build_extra(self) -> nn.Module:
            return nn.Linear(1, 1)

    hooks = calls(Plain, Outer, Draws)
    before = torch.get_rng_state()
    hooks.build("default", None, None, 7)
    first = hooks.build_extra("default", Module(), None, None, 7)["draws"]
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(1)
    again = hooks.build_extra("default", Module(), None, None, 7)["draws"]
    assert torch.equal(first.weight, again.weight)


def test_build_must_give_a_module() -> None:
    class Wrong(Algorithm):
        def build(self) -> Any:
            return nn.Linear(1, 1)

    with pytest.raises(
        PluginError, match=r"'build' returned Linear, which is not an rlplug\.Module"
    ):
        calls(Wrong).build("default", None, None, 0)


def test_a_wrapper_that_yields_twice_is_refused() -> None:
    class Stutters(AddOn):
        @hookimpl(wrapper=True)
        def build(self) -> Any:
            yield
            yield

    with pytest.raises(PluginError, match="must yield exactly once"):
        calls(Plain, Stutters).build("default", None, None, 0)


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


def test_schedules_are_numbers_by_the_time_a_hook_sees_them() -> None:
    hooks = calls(Plain, Reads, reads=Options(rate=Schedule([(0, 1.0), (100, 0.0)])))
    seen = []
    for step in (0, 25, 100, 900):
        hooks.at_step(step)
        seen.append(losses(hooks)[0][1]["loss"])
    assert seen == [1.0, 0.75, 0.0, 0.0]


def test_options_can_differ_per_module() -> None:
    hooks = calls(Plain, Reads)
    hooks.override_config("reads", "other", Options(rate=9.0))
    assert hooks.config_of("reads", "default").rate == 0.5
    assert hooks.config_of("reads", "other").rate == 9.0


def test_an_exception_keeps_its_traceback_and_names_hook_plugin_and_package() -> None:
    class Breaks(AddOn):
        def compute_loss_for_module(self) -> None:
            raise ZeroDivisionError("one over nothing")

    with pytest.raises(ZeroDivisionError, match="one over nothing") as raised:
        losses(calls(LossOf3, Breaks))
    assert raised.value.__notes__ == [
        "raised in hook 'compute_loss_for_module' of add-on 'breaks' (not installed)"
    ]
    assert raised.traceback[-1].name == "compute_loss_for_module"


def test_an_exception_of_a_traced_hook_is_raised_as_well_and_named_and_timed() -> None:
    class Broken(AddOn):
        def compute_loss_for_module(self, batch):  # type: ignore[no-untyped-def]
            raise RuntimeError("no loss today")

    trace = HookTrace()
    hooks = HookCalls(participant(Plain), [participant(Broken)], trace=trace)
    with pytest.raises(RuntimeError, match="no loss today") as raised:
        losses(hooks)
    assert "compute_loss_for_module" in "".join(raised.value.__notes__)
    assert "broken" in "".join(raised.value.__notes__)
    assert trace.take()["hooks/broken/compute_loss_for_module_seconds"] > 0


def test_the_events_of_a_run_are_told_to_nobody_where_another_process_tells_them() -> None:
    told: list[str] = []

    class Hears(AddOn):
        def run_started(self) -> None:
            told.append("run_started")

        def update_finished(self) -> None:
            told.append("update_finished")

    class Tracker:
        def run_failed(self) -> None:
            told.append("run_failed")

    hooks = calls(Plain, Hears)
    hooks.listen([Tracker()])
    events = ("run_started", "run_failed", "update_finished", "checkpoint_saved")
    assert [len(hooks.implementations(one)) for one in events] == [1, 1, 1, 0]
    hooks.mute()
    assert [len(hooks.implementations(one)) for one in events] == [0, 0, 1, 0]
    assert [hooks.implements(one) for one in events] == [False, False, True, False]
    (heard,) = hooks.implementations("update_finished")
    heard.function()
    assert told == ["update_finished"]


def test_state_goes_back_to_the_plugin_it_came_from() -> None:
    class Counts(AddOn):
        count = 0

        def save_state(self) -> Any:
            return {"count": self.count}

        def load_state(self, state: Any) -> None:
            self.count = state["count"]

    hooks = calls(Plain, Counts)
    hooks.addons[0].plugin.count = 5
    other = calls(Plain, Counts)
    other.load_state(hooks.save_state())
    assert other.addons[0].plugin.count == 5


def test_who_takes_part_can_be_read_for_the_record() -> None:
    hooks = calls(LossOf3, Twice)
    assert [one.label for one in hooks.participants] == [
        "algorithm 'lossof3' (not installed)",
        "add-on 'twice' (not installed)",
    ]
    assert hooks.order() == {"build": ["lossof3"], "compute_loss_for_module": ["lossof3", "twice"]}


# -- refusals -----------------------------------------------------------------------------------


def test_an_unknown_hook_is_refused_with_a_suggestion() -> None:
    class Typo(Plain):
        @hookimpl
        def compute_loss_for_modul(self) -> None: ...

    assert refusal(Typo) == (
        "algorithm 'typo' (not installed) implements an unknown hook 'compute_loss_for_modul'.\n"
        "  Did you mean 'compute_loss_for_module'?"
    )


def test_an_unmarked_method_that_looks_like_a_hook_is_refused() -> None:
    class Typo(Plain):
        def postproces_gradients(self) -> None: ...

    assert (
        "Typo.postproces_gradients is not a hook, but looks like 'postprocess_gradients'"
        in refusal(Typo)
    )


def test_a_hooks_name_in_other_letters_is_refused() -> None:
    class Loud(Plain):
        def Save_State(self) -> None: ...  # noqa: N802 # that is the mistake

    assert "Loud.Save_State is not a hook, but looks like 'save_state'" in refusal(Loud)


@pytest.mark.parametrize("name", ["configure_optimizers", "compute_loss", "training_step"])
def test_what_other_libraries_call_a_hook_is_refused_with_our_name(name: str) -> None:
    foreign = type("Foreign", (Plain,), {name: lambda self: None})
    assert f"Foreign.{name} is not a hook; rlplug calls it" in refusal(foreign)


def test_a_helper_may_bear_such_a_name_beside_the_hook() -> None:
    class Helped(LossOf3):
        def compute_loss(self) -> None: ...

    assert losses(calls(Helped)) == [("helped", 3.0)]


def test_a_hook_set_on_the_instance_is_refused() -> None:
    class Late(Plain):
        def __init__(self, config: Options) -> None:
            super().__init__(config)
            self.save_state = dict

    assert "'save_state' is the name of a hook, but an instance attribute" in refusal(Late)


def test_a_hook_of_a_newer_core_may_be_marked_optional() -> None:
    class Ahead(Plain):
        @hookimpl(optionalhook=True)
        def invented_next_year(self) -> None: ...

    assert "invented_next_year" not in calls(Ahead).order()


def test_an_add_on_may_not_replace_build() -> None:
    class Usurper(AddOn):
        def build(self) -> None: ...

    assert refusal(Plain, Usurper) == (
        "add-on 'usurper' (not installed) would replace the algorithm's 'build'.\n"
        "  An add-on may only wrap this hook: use @rlplug.hookimpl(wrapper=True)."
    )


def test_an_add_on_may_not_wrap_another_hook() -> None:
    class Wraps(AddOn):
        @hookimpl(wrapper=True)
        def compute_loss_for_module(self) -> Any:
            yield

    assert "wraps 'compute_loss_for_module', which cannot be wrapped" in refusal(Plain, Wraps)


def test_old_wrappers_and_order_marks_are_refused() -> None:
    class Old(AddOn):
        @hookimpl(hookwrapper=True)
        def compute_loss_for_module(self) -> Any:
            yield

    class Pushy(AddOn):
        @hookimpl(tryfirst=True)
        def compute_loss_for_module(self) -> None: ...

    assert "is an old-style wrapper" in refusal(Plain, Old)
    assert "is marked tryfirst or trylast" in refusal(Plain, Pushy)


def test_a_wrapper_that_does_not_yield_is_refused() -> None:
    class Flat(AddOn):
        @hookimpl(wrapper=True)
        def build(self) -> None: ...

    assert "Flat.build is marked as a wrapper, but does not yield" in refusal(Plain, Flat)


def test_hooks_that_would_give_no_result_are_refused() -> None:
    class Yields(Plain):
        def save_state(self) -> Any:
            yield {}

    class Waits(Plain):
        async def save_state(self) -> Any: ...

    assert "Yields.save_state yields, which only a wrapper does" in refusal(Yields)
    assert "Waits.save_state is a coroutine, but hooks are not awaited" in refusal(Waits)


def test_a_hook_without_self_is_refused_and_a_static_one_is_not() -> None:
    class Selfless(Plain):
        def compute_loss_for_module(batch) -> None: ...  # type: ignore[no-untyped-def] # noqa: N805

    class Static(Plain):
        @staticmethod
        def compute_loss_for_module(batch: Batch) -> torch.Tensor:
            return batch["rewards"].sum()

    assert "Selfless.compute_loss_for_module has no 'self'" in refusal(Selfless)
    assert losses(calls(Static)) == [("static", 3.0)]


def test_an_algorithm_without_build_is_refused() -> None:
    class Empty(Algorithm): ...

    assert refusal(Empty).startswith("algorithm 'empty' (not installed) has no 'build'.")


def test_bad_parameters_are_all_named_at_once() -> None:
    class Careless(Plain):
        def compute_loss_for_module(self, *, batch: Batch) -> None: ...
        def additional_update(self, timestep: int = 0) -> None: ...
        def prepare_batch(self, *everything: Any) -> None: ...
        def postprocess_gradients(self, gradient: Any) -> None: ...

    said = refusal(Careless)
    assert "compute_loss_for_module: parameter 'batch' is keyword-only" in said
    assert "additional_update: parameter 'timestep' has a default" in said
    assert "prepare_batch takes *everything" in said
    assert (
        "parameter 'gradient' that hook 'postprocess_gradients' does not offer. "
        "Did you mean 'gradients'?" in said
    )


def test_a_hooks_name_on_something_that_is_no_method_is_refused() -> None:
    class Odd(Plain):
        save_state = 3

    assert "Odd.save_state has a hook's name but is not a method" in refusal(Odd)


def test_the_same_plugin_twice_is_refused() -> None:
    assert "takes part twice" in refusal(Plain, Twice, Twice)


def test_every_hook_of_the_contract_is_there() -> None:
    assert set(HOOKS) >= {
        "build",
        "build_extra",
        "configure_optimizers_for_module",
        "prepare_batch",
        "compute_loss_for_module",
        "postprocess_gradients",
        "additional_update",
        "inference_module",
        "save_state",
        "load_state",
        "run_started",
        "update_finished",
        "evaluation_finished",
        "checkpoint_saved",
        "run_finished",
        "run_failed",
    }


@pytest.mark.parametrize("hook", sorted(HOOKS))
def test_hook_calls_has_a_method_for_every_hook(hook: str) -> None:
    assert callable(getattr(HookCalls, hook))
