"""What checks stand on: the plugin under test, one update that is tried, and reports."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import attrs
import pytest
import torch
from gymnasium import spaces

from rlplug import AddOn, Batch, option
from rlplug.errors import ConfigError, PluginError
from rlplug.feeds import Feed, Stream
from rlplug.testing import CheckFailed, DoesNotApply, Subject
from rlplug.testing.algorithms import PolicyGradient, QLearning
from rlplug.testing.algorithms.policy_gradient import PolicyGradientConfig
from rlplug.testing.cases import CASES
from rlplug.testing.comparison import relative_difference
from rlplug.testing.report import as_failure, location, locations
from rlplug.testing.trial import Trial, Update, _relative, named, trials

# -- the plugin under test -------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class ManyConfig(PolicyGradientConfig):
    """Options of many kinds."""

    flag: bool = option(True, "A flag.")
    kind: Literal["a", "b", "c"] = option("b", "A kind.")
    n_step: int = option(1, "Steps of a return.")
    none: float = option(0.0, "A rate, 0 disables.")
    nothing: int = option(0, "A count, 0 disables.")
    tau: float = option(0.01, "Share of the way.")
    train_freq: int = option(1, "Steps per update.")
    target_update_interval: int = option(500, "Updates per copy.")
    batch_size: float = option(0.5, "Not the kind of number that it is elsewhere.")


class Many(PolicyGradient):
    """Has options of many kinds."""

    Config: ClassVar[type[Any]] = ManyConfig
    variants: ClassVar[Any] = ({"width": 9},)


class Bandit(PolicyGradient):
    """Learns from episodes of one step."""

    def feed(self) -> Feed:
        return Stream(steps_per_update=1, one_step_episodes=True)


class Silent(AddOn):
    """Does nothing."""


def test_switches_invert_and_choose() -> None:
    subject = Subject.of(Many)
    switches = ({"flag": False}, {"kind": "a"}, {"kind": "c"}, {"n_step": 3})
    assert subject.switches == switches
    assert subject.settings == ({}, {"width": 9}, *switches)
    assert subject.worth_training == ({"width": 9},)
    assert Subject.of(Many, variants=({"flag": False},)).settings == (
        {},
        {"flag": False},
        *switches[1:],
    )
    assert Subject.of(QLearning).worth_training == ({"double": False},)
    assert Subject.of(Many, options={"n_step": 2}).switches == switches[:3]
    assert subject.enabled == ({"none": 0.1}, {"nothing": 1})


def test_quick_options_are_given_where_they_are_sooner() -> None:
    subject = Subject.of(Many)
    config = subject.config()
    assert (config.learning_rate, config.gamma) == (0.01, 0.9)
    # Sooner than by default, never later; and of the same type.
    assert (config.tau, config.train_freq, config.target_update_interval) == (0.05, 1, 10)
    assert (config.batch_size, config.width) == (0.5, 32)
    assert subject.config(gamma=0.5).gamma == 0.5
    assert Subject.of(Many, options={"gamma": 0.4}).config().gamma == 0.4
    changed = Subject.of(Many, options={"gamma": 0.4}).changed({"tau": 0.7})
    assert (changed.gamma, changed.tau) == (0.4, 0.7)
    assert subject.changed({"gamma": 7.0}) is None
    assert subject.accepts({"gamma": 0.7})
    assert not subject.accepts({"gamma": 7.0})
    assert subject.accepts_any({"gamma": 0.7})
    assert not subject.accepts_any({"gamma": 7.0})
    with pytest.raises(ConfigError, match="the options that algorithm 'many'"):
        subject.config(gamma=7.0)


@pytest.mark.parametrize(("tau", "quick"), [(0.01, 0.05), (0.05, 0.05), (0.5, 0.5)])
def test_targets_follow_as_fast_as_by_default_or_faster(tau: float, quick: float) -> None:
    config = attrs.make_class(
        "Config",
        {"tau": option(tau, "Share.")},
        bases=(PolicyGradientConfig,),
        frozen=True,
        kw_only=True,
    )
    config.__annotations__ = {"tau": float}
    kind = type("Mine", (PolicyGradient,), {"Config": config, "__doc__": "Mine."})
    assert Subject.of(kind).config().tau == quick


def test_subjects_are_algorithms_for_episodes_bandits_or_add_ons() -> None:
    found = [Subject.of(kind) for kind in (PolicyGradient, Bandit, Silent)]
    assert [one.is_addon for one in found] == [False, False, True]
    assert [one.is_bandit for one in found] == [False, True, False]
    assert [one.label for one in found] == [
        "algorithm 'policy-gradient' (not installed)",
        "algorithm 'bandit' (not installed)",
        "add-on 'silent' (not installed)",
    ]
    assert not found[0].learns_from_logs
    assert [{case.one_step for case in one.cases} for one in found] == [{False}, {True}, {False}]
    # Add-ons are tried where observations are a Box and actions Discrete.
    assert {case.name for case in found[2].cases} == {
        "box, discrete",
        "box, masked discrete",
        "box of another size, discrete",
    }
    with pytest.raises(PluginError, match="3 is neither the name of a plugin nor a class"):
        Subject.of(3)  # type: ignore[arg-type]


def test_the_first_case_that_fits_is_taken() -> None:
    subject = Subject.of(PolicyGradient)
    assert subject.case().name == "box, discrete"
    assert subject.case(lambda one: one.masked).name == "box, masked discrete"
    with pytest.raises(DoesNotApply, match="no bandit"):
        subject.case(lambda one: one.one_step, "no bandit")
    with pytest.raises(DoesNotApply, match="it supports none of the kit's spaces"):
        subject.case(lambda one: one.one_step)
    masked = [one for one in subject.cases if one.masked]
    found = subject.case_for({}, masked)
    assert found is not None
    assert found.name == "box, masked discrete"
    assert subject.case_for({}, []) is None
    assert subject.case_for({}, [one for one in CASES if "image" in one.name]) is None
    own = Subject.of(PolicyGradient, environment=CASES[0].make).cases
    assert own[0].name == "its own environment"
    refused = {case.name: reason for case, reason in subject.refusals()}
    assert "image, discrete" in refused
    assert "box, discrete" not in refused
    assert refused["box, box"].startswith("it needs Discrete actions")
    assert len(refused) == len([one for one in CASES if not one.one_step]) - len(subject.cases)


# -- one update ------------------------------------------------------------------------------------


def update(weights: Any, gradients: Any = None, start: Any = None) -> Update:
    """An update from zeros to these weights."""
    made = {name: torch.tensor(one) for name, one in weights.items()}
    begun = {name: torch.zeros_like(one) for name, one in made.items()} if start is None else start
    known = {name: torch.tensor(one) for name, one in (gradients or {}).items()}
    return Update({"default": made}, {"default": begun}, known, {})


def test_updates_are_the_same_up_to_a_thousandth_of_their_change() -> None:
    usual = update({"a": [1.0, 0.0]})
    assert usual.equals(usual)
    assert usual.equals(update({"a": [1.0009, 0.0]}))
    assert not usual.equals(update({"a": [1.0012, 0.0]}))
    assert usual.difference(update({"a": [1.1, 0.0]})) == (
        "default.a differs by 0.091 of its change"
    )
    assert usual.difference(update({"a": [1.0, 0.0, 0.0]})) == "default.a is (2,) and (3,)"
    # Relative to where they started.
    begun = {"a": torch.tensor([0.9, 0.0])}
    near = update({"a": [1.0009, 0.0]}, start=begun)
    assert update({"a": [1.0, 0.0]}, start=begun).difference(near) is not None


def test_gradients_are_compared_where_there_are_any() -> None:
    usual = update({"a": [1.0]}, {"a": [2.0]})
    assert usual.equals(update({"a": [5.0]}, {"a": [2.001]}))
    found = usual.difference(update({"a": [1.0]}, {"a": [2.5]}))
    assert found == "the gradient of 'a' differs by 0.2 of its size"
    assert usual.difference_of_gradients(update({}, {"a": [2.5]})) == found
    assert usual.difference_of_gradients(update({}, {"a": [2.0]})) is None


def test_distances_are_relative_to_the_larger_change() -> None:
    one, other, zero = torch.tensor([3.0, 4.0]), torch.tensor([3.0, 1.0]), torch.zeros(2)
    assert _relative(one, other, zero) == pytest.approx(0.6)
    assert _relative(other, one, zero) == pytest.approx(0.6)
    assert _relative(one, one, one) == 0.0
    assert _relative(one, one + 5e-11, one.double()) == 0.0


def test_tables_keep_their_rows_in_another_order() -> None:
    usual = update({"table": [[1.0, 2.0], [3.0, 4.0]]})
    assert usual.keeps_rows(update({"table": [[3.0, 4.0], [1.0, 2.0]]}))
    assert not usual.keeps_rows(usual)
    assert not usual.keeps_rows(update({"table": [[3.0, 4.0], [1.0, 5.0]]}))
    assert not usual.keeps_rows(update({"table": [[3.0, 4.0, 1.0, 2.0]]}))


def test_a_trial_is_undone() -> None:
    trial = Trial(Subject.of(QLearning), {"double": False}, CASES[0])
    assert trial.harness.algorithm.config.double is False
    before, timestep = trial.harness.weights(), trial.harness.timestep
    first, second = trial.after(trial.batch), trial.after(trial.batch)
    assert first.equals(second)
    assert set(first.gradients) == {"q.0.weight", "q.0.bias", "q.2.weight", "q.2.bias"}
    assert not torch.equal(first.weights["default"]["q.0.bias"], before["default"]["q.0.bias"])
    after = trial.harness.weights()
    assert all(torch.equal(after["default"][name], one) for name, one in before["default"].items())
    assert trial.harness.timestep == timestep == 3 * 16
    assert trial.gradients(trial.batch).keys() == first.gradients.keys()
    assert trial.batch.rows == 24
    assert (trial.is_prioritized, trial.of_fragments, trial.has_next) == (False, False, True)
    assert "targets" in trial.prepare(trial.batch)
    assert "targets" not in trial.batch


def test_every_other_row_may_end_an_episode() -> None:
    trial = Trial(Subject.of(QLearning), {}, CASES[0])
    marked = trial.ends()
    assert marked.tolist() == [True, False] * 12
    for terminated, truncated in ((True, False), (False, True), (False, False)):
        batch = trial.with_ends(terminated=terminated, truncated=truncated)
        assert torch.equal(batch["terminated"], marked & terminated)
        assert torch.equal(batch["truncated"], marked & truncated)
    other = trial.with_other_next(trial.batch)
    moved = (other["next_observations"] != trial.batch["next_observations"]).any(1)
    assert torch.equal(moved, marked)
    assert other["next_observations"].dtype == trial.batch["next_observations"].dtype
    assert torch.equal(other["observations"], trial.batch["observations"])


def test_settings_are_named_in_messages() -> None:
    assert named({}) == ""
    assert named({"a": 1, "b": "c"}) == " with a = 1, b = 'c'"
    found = [(dict(one.setting), one.case.name) for one in trials(Subject.of(QLearning))]
    assert found == [({}, "box, discrete"), ({"double": False}, "box, discrete")]
    masked = [one for one in CASES if one.name == "box, masked discrete" and not one.one_step]
    assert [one.case.name for one in trials(Subject.of(PolicyGradient), masked)] == [
        "box, masked discrete"
    ]


class Chance(PolicyGradient):
    """Counts what it does not save."""

    times: ClassVar[list[int]] = []

    def prepare_batch(self, module: Any, config: Any, batch: Batch) -> Any:
        self.times.append(1)
        more = batch["rewards"] + len(self.times)
        return super().prepare_batch(module, config, batch.with_columns({"rewards": more}))


def test_updates_that_are_others_from_the_same_state_are_told() -> None:
    trial = Trial(Subject.of(Chance), {}, CASES[0])
    with pytest.raises(CheckFailed) as raised:
        trial.expect_repeatable(trial.batch)
    told = raised.value
    assert told.looked_for == "the same update from the same state, restored with set_state"
    assert told.found.startswith("two differ: ")
    assert told.look_at.startswith("Chance.build (")
    assert told.look_at.endswith("keep it in a buffer, or in save_state and load_state")


# -- reports ---------------------------------------------------------------------------------------


def test_places_are_those_of_the_plugin_itself() -> None:
    assert location(Chance, "prepare_batch").startswith("Chance.prepare_batch (")
    assert location(Chance, "additional_update", "prepare_batch").startswith(
        "Chance.prepare_batch ("
    )
    assert location(Chance, "additional_update").startswith("Chance (")
    assert location(Silent, "prepare_batch").startswith("Silent (")
    both = locations(Chance, "prepare_batch", "additional_update", "compute_loss_for_module")
    one, _, other = both.partition(" or ")
    assert one.startswith("Chance.prepare_batch (")
    assert other.startswith("Chance.compute_loss_for_module (")
    assert locations(Silent, "prepare_batch").startswith("Silent (")


def test_exceptions_are_told_with_their_notes_and_the_innermost_line_of_the_plugin() -> None:
    def fails() -> None:
        math.sqrt(-1)

    try:
        fails()
    except ValueError as error:
        error.add_note("in there")
        told = as_failure(error, "a root", Chance)
    assert told.looked_for == "a root"
    assert told.found.startswith("ValueError: ")
    assert told.found.endswith(" (in there)")
    line = fails.__code__.co_firstlineno + 1
    assert told.look_at == f"tests/testing/test_subject_trial_report.py:{line}"
    # Of the core: the hook that it names.
    error = ValueError("what hook 'prepare_batch' returned")
    assert as_failure(error, "", Chance).look_at.startswith("Chance.prepare_batch (")


def test_relative_differences_are_of_floats() -> None:
    assert relative_difference(torch.tensor([2.0, -4.0]), torch.tensor([2.0, -3.0])) == 0.25
    assert relative_difference(torch.tensor([2, 4]), torch.tensor([2, 3])) == 0.0
    assert relative_difference(torch.zeros(0), torch.zeros(0)) == 0.0
    assert relative_difference("a", "b") == 0.0
    half = torch.tensor([2.0, 4.0], dtype=torch.bfloat16)
    assert relative_difference(half, half * 2) == 1.0


def test_boxes_of_the_kit_are_not_alike() -> None:
    boxes = [one.action_space for one in CASES if isinstance(one.action_space, spaces.Box)]
    assert {one.shape for one in boxes} == {(1,), (2,)}
