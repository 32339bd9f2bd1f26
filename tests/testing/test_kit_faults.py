"""Tiny faulty plugins, one per check, and what the check says of each."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest

from rlplug import option
from rlplug.testing import CheckFailed, Subject
from rlplug.testing.algorithms import (
    PolicyGradient,
    QLearning,
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


# -- masks -----------------------------------------------------------------------------------------


def test_masks_of_next_actions_are_no_matter_where_the_feed_gives_none() -> None:
    with pytest.raises(DoesNotApply) as raised:
        check_named("masks_of_next_actions_are_used")(Subject.of(QLearning))
    assert str(raised.value) == "its feed gives no next_action_mask"


# -- entropy ---------------------------------------------------------------------------------------
