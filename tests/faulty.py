"""What a check of the kit says of small plugins, faulty ones and sound ones."""

from __future__ import annotations

from typing import Any

import pytest

from rlplug.testing import CheckFailed, DoesNotApply, Subject
from rlplug.testing.checks import check_named


def run_check(check: str, plugin: Any, **arguments: Any) -> None:
    subject = plugin if isinstance(plugin, Subject) else Subject.of(plugin, **arguments)
    check_named(check, subject.kind)(subject)


def failure(check: str, plugin: Any, **arguments: Any) -> CheckFailed:
    """What a check says of a plugin that it must not pass."""
    with pytest.raises(CheckFailed) as raised:
        run_check(check, plugin, **arguments)
    return raised.value


def passes(check: str, plugin: Any, **arguments: Any) -> None:
    """Look at a plugin that a check must pass, and not pass by."""
    run_check(check, plugin, **arguments)


def passed_by(check: str, plugin: Any, **arguments: Any) -> str:
    """Why a check does not apply to a plugin."""
    with pytest.raises(DoesNotApply) as raised:
        run_check(check, plugin, **arguments)
    return str(raised.value)
