"""Tiny faulty plugins, one per check, and what the check says of each."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rlplug import Acted, ActInput, Batch, option
from rlplug.feeds import Feed, Replay
from rlplug.testing import CheckFailed, Subject
from rlplug.testing.algorithms import (
    PolicyGradient,
    PolicyGradientConfig,
    PolicyGradientModule,
    QLearning,
    QLearningConfig,
)
from rlplug.testing.checks import check_named
from rlplug.testing.report import DoesNotApply


def failure(check: str, plugin: type[Any], **arguments: Any) -> CheckFailed:
    """What a check says of a plugin that it must not pass."""
    with pytest.raises(CheckFailed) as raised:
        check_named(check)(Subject.of(plugin, **arguments))
    return raised.value


# -- declarations ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            "threading.Thread(target=threading.Event().wait, name='mine', daemon=True).start()",
            "it started thread 'mine'",
        ),
        ("random.random()", "it drew from or seeded random"),
    ],
)
def test_what_an_import_does_besides_is_told(
    line: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loud_plugin.py").write_text(
        "import random, threading\n"
        "from rlplug.testing.algorithms import PolicyGradient\n"
        f"{line}\n"
        "class Loud(PolicyGradient):\n"
        "    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        told = failure("importing_is_quiet", importlib.import_module("loud_plugin").Loud)
    finally:
        del sys.modules["loud_plugin"]
    assert (told.looked_for, told.found, told.look_at) == (
        "an import that only defines classes",
        found,
        "the top level of module 'loud_plugin'",
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("raise ValueError('not twice')", "ValueError: not twice"),
        ("import os; os._exit(3)", "it ended with exit code 3"),
    ],
)
def test_what_another_process_cannot_rebuild_is_told_with_its_reason(
    line: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "changing_plugin.py"
    lines = (
        "from rlplug.testing.algorithms import PolicyGradient\nclass Mine(PolicyGradient): ...\n"
    )
    file.write_text(lines)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        mine = importlib.import_module("changing_plugin").Mine
        file.write_text(f"{line}\n")
        told = failure("importing_is_quiet", mine)
    finally:
        del sys.modules["changing_plugin"]
    assert "could not be rebuilt in another process:" in told.found
    assert told.found.endswith(reason)


# -- options ---------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class GreedyConfig(PolicyGradientConfig):
    """An option of greedy actions alone."""

    best_of: int = option(1, "Draws of which the best one is taken.")


class ReadsWhereItActsGreedily(PolicyGradient):
    """Reads an option in no update."""

    Config: ClassVar[type[Any]] = GreedyConfig

    def build(self, observation_space: Any, action_space: Any, config: Any) -> Any:
        class Module(PolicyGradientModule):
            def forward_inference(self, act: ActInput) -> Acted:
                assert config.best_of
                return super().forward_inference(act)

        inputs, actions = spaces.flatdim(observation_space), spaces.flatdim(action_space)
        return Module(inputs, actions, config.width)


class ReadsNothing(PolicyGradient):
    """Has an option that nobody reads."""

    Config: ClassVar[type[Any]] = GreedyConfig


@attrs.frozen(kw_only=True)
class SwitchedConfig(PolicyGradientConfig):
    """Options of which one matters beside two others, of which one is refused alone."""

    exact: bool = option(True, "Whether nothing is approximated.")
    error: float = option(0.5, "The error that is allowed.")
    rounds: int = option(3, "Rounds of the approximation.")

    def __attrs_post_init__(self) -> None:
        if self.exact and self.error != 0.5:
            raise ValueError("an exact solution has no error")


class ReadsBesideASwitch(PolicyGradient):
    """Reads `rounds` only where `error` was changed, which `exact` forbids."""

    Config: ClassVar[type[Any]] = SwitchedConfig

    def feed(self) -> Feed:
        if not self.config.exact and self.config.error != 0.5:
            assert self.config.rounds
        return super().feed()


@pytest.mark.parametrize("plugin", [ReadsWhereItActsGreedily, ReadsBesideASwitch])
def test_an_option_is_read_wherever_it_may_be(plugin: type[Any]) -> None:
    check_named("every_option_has_an_effect")(Subject.of(plugin))


def test_an_option_that_nobody_reads_is_named() -> None:
    told = failure("every_option_has_an_effect", ReadsNothing)
    assert told.looked_for == "every option read somewhere between feed() and the last update"
    assert told.found == "nobody read 'best_of'"
    assert told.look_at.startswith("GreedyConfig (")
    assert told.look_at.endswith(
        "): use 'best_of' or take it out; if it matters only beside other options, name them in "
        "`variants`"
    )


@attrs.frozen
class Positional:
    """Options that can be given without their names."""

    rate: float = attrs.field(default=0.5, metadata={"help": "A rate."})


@attrs.frozen(kw_only=True)
class WithoutDefault:
    """An option without a default."""

    rate: float = attrs.field(metadata={"help": "A rate."})


@attrs.frozen(kw_only=True)
class WithoutHelp:
    """An option without a line of help."""

    rate: float = 0.5


@attrs.define(kw_only=True)
class Settable:
    """Options that can be set."""

    rate: float = option(0.5, "A rate.")


class NoClassOfAttrs:
    """Options of another kind."""


@pytest.mark.parametrize(
    ("config", "looked_for", "found", "hint"),
    [
        (
            NoClassOfAttrs,
            "a Config made with attrs.frozen(kw_only=True)",
            f"<class '{__name__}.NoClassOfAttrs'>",
            "",
        ),
        (Positional, "keyword-only options", "'rate' is positional", ""),
        (
            WithoutDefault,
            "a default and a line of help for each option",
            "'rate' has no default",
            ': rate = rlplug.option(default, "one line of help")',
        ),
        (
            WithoutHelp,
            "a default and a line of help for each option",
            "'rate' has no help",
            ': rate = rlplug.option(default, "one line of help")',
        ),
        (Settable, "a frozen Config", "'rate' can be set", ""),
    ],
)
def test_what_is_wrong_with_options_is_told(
    config: type[Any], looked_for: str, found: str, hint: str
) -> None:
    class Mine(PolicyGradient):
        Config: ClassVar[type[Any]] = config

    # Most of these are refused when a plugin is loaded; the check does not rely on that.
    subject = attrs.evolve(Subject.of(PolicyGradient), kind=Mine)
    with pytest.raises(CheckFailed) as raised:
        check_named("options_are_typed_and_documented")(subject)
    told = raised.value
    assert (told.looked_for, told.found) == (looked_for, found)
    assert told.look_at.startswith(f"{config.__name__} (")
    assert told.look_at.endswith(f"){hint}")


class KeepsNoOptions(PolicyGradient):
    """Makes options of its own of those that it is given."""

    def __init__(self, config: Any) -> None:
        super().__init__(attrs.evolve(config))


def test_options_that_are_not_kept_are_told() -> None:
    told = failure("options_are_typed_and_documented", KeepsNoOptions)
    assert told.looked_for == ("a plugin that keeps the options it is made with in `self.config`")
    assert told.found == "another object, or none"
    assert told.look_at.startswith("KeepsNoOptions.__init__ (")


class FeedsOtherwise(PolicyGradient):
    """Hands another number on to its feed."""

    def feed(self) -> Feed:
        return attrs.evolve(super().feed(), steps_per_update=self.config.steps_per_update + 1)


def test_an_option_that_the_feed_does_not_have_is_told() -> None:
    check_named("feed_has_the_options")(Subject.of(PolicyGradient))
    told = failure("feed_has_the_options", FeedsOtherwise)
    assert told.looked_for == ("Stream(steps_per_update=1) for the option steps_per_update = 1")
    assert told.found == "steps_per_update=2"
    assert told.look_at.startswith("FeedsOtherwise.feed (")
    assert told.look_at.endswith(
        "): self.config.steps_per_update; give the option another name if it means something else"
    )


# -- masks -----------------------------------------------------------------------------------------


class Masks(QLearning):
    """Q-learning from a replay buffer, of which batches have the mask of the next action."""

    def feed(self) -> Feed:
        return Replay(buffer_size=100, batch_size=8, learning_starts=8)

    @staticmethod
    def mask(mask: Tensor) -> Tensor:
        """What is made of that mask."""
        return mask

    def prepare_batch(self, module: Any, config: Any, batch: Batch) -> Any:
        values = module.target(module.floats(batch["next_observations"]))
        if "next_action_mask" in batch:
            values = values.masked_fill(self.mask(batch["next_action_mask"]) == 0, -1e9)
        future = values.max(1).values * ~batch["terminated"]
        return {"targets": batch["rewards"] + config.gamma * future}


class TakesTwoForOne(Masks):
    """Allows the first action where the second is allowed, and the other way round."""

    @staticmethod
    def mask(mask: Tensor) -> Tensor:
        either = mask[:, :1] | mask[:, 1:2]
        return torch.cat((either, either, mask[:, 2:]), 1)


class MasksForOneAction(Masks):
    """Uses the mask only where it leaves the second action."""

    @staticmethod
    def mask(mask: Tensor) -> Tensor:
        only = torch.zeros_like(mask)
        only[:, 1] = 1
        return torch.where((mask == only).all(1, keepdim=True), mask, torch.ones_like(mask))


@pytest.mark.parametrize("plugin", [TakesTwoForOne, MasksForOneAction])
def test_masks_of_next_actions_that_are_used_in_part_are_told(plugin: type[Any]) -> None:
    check_named("masks_of_next_actions_are_used")(Subject.of(Masks))
    told = failure("masks_of_next_actions_are_used", plugin)
    assert told.looked_for == "another update where next_action_mask allows a single action"
    assert told.found == "the same one"
    assert told.look_at.startswith(f"{plugin.__name__}.prepare_batch (")
    assert told.look_at.endswith(
        '): mask the values of next actions with batch["next_action_mask"]'
    )


def test_masks_of_next_actions_are_no_matter_where_the_feed_gives_none() -> None:
    with pytest.raises(DoesNotApply) as raised:
        check_named("masks_of_next_actions_are_used")(Subject.of(QLearning))
    assert str(raised.value) == "its feed gives no next_action_mask"


# -- entropy ---------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class BonusConfig(QLearningConfig):
    """Q-learning with an option that SAC has."""

    ent_coef: float = option(0.1, "Entropy coefficient.")


class OfNoProbe(QLearning):
    """Learns from a replay buffer, with more than two actions only."""

    Config: ClassVar[type[Any]] = BonusConfig

    def feed(self) -> Feed:
        return Replay(buffer_size=100, batch_size=8, learning_starts=8)

    def supports(self, observation_space: Any, action_space: Any) -> str | None:
        if isinstance(action_space, spaces.Discrete) and action_space.n == 2:
            return "more than two actions"
        return super().supports(observation_space, action_space)


@pytest.mark.parametrize(
    ("check", "plugin", "why"),
    [
        ("values_include_entropy", OfNoProbe, "it supports none of the spaces"),
        ("values_include_entropy", QLearning, "it has no option ent_coef"),
        (
            "values_include_entropy",
            PolicyGradient,
            "it is not off-policy: its values are those of rewards alone",
        ),
    ],
)
def test_why_a_check_of_entropy_does_not_apply(check: str, plugin: type[Any], why: str) -> None:
    with pytest.raises(DoesNotApply) as raised:
        check_named(check)(Subject.of(plugin))
    assert str(raised.value) == why
