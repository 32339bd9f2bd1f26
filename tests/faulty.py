"""What a check of the kit says of small plugins, faulty ones and sound ones."""

from __future__ import annotations

from typing import Any

import pytest

from rlplug.testing import CheckFailed, Subject
from rlplug.testing.checks import check_named
from rlplug.testing.report import DoesNotApply


def subject_of(plugin: Any, **arguments: Any) -> Subject:
    return plugin if isinstance(plugin, Subject) else Subject.of(plugin, **arguments)


def failure(check: str, plugin: Any, **arguments: Any) -> CheckFailed:
    """What a check says of a plugin that it must not pass."""
    with pytest.raises(CheckFailed) as raised:
        check_named(check)(subject_of(plugin, **arguments))
    return raised.value


def passes(check: str, plugin: Any, **arguments: Any) -> None:
    """Look at a plugin that a check must pass, and not pass by."""
    check_named(check)(subject_of(plugin, **arguments))


def passed_by(check: str, plugin: Any, **arguments: Any) -> str:
    """Why a check does not apply to a plugin."""
    with pytest.raises(DoesNotApply) as raised:
        check_named(check)(subject_of(plugin, **arguments))
    return str(raised.value)
