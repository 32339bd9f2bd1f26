"""Conformance kit for plugin authors: checks, probe environments, small algorithms.

The same checks run in three ways: `class TestMine(AlgorithmConformance)` in a plugin's tests,
`pytest --rlplug NAME` and `rlplug plugins check NAME` for what is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlplug.lazy import lazy_names

if TYPE_CHECKING:
    from rlplug.testing.check import Check
    from rlplug.testing.checks import checks_for
    from rlplug.testing.conformance import AddOnConformance, AlgorithmConformance
    from rlplug.testing.report import CheckFailed, DoesNotApply, Outcome
    from rlplug.testing.subject import Subject

_MODULES = {
    "AddOnConformance": "rlplug.testing.conformance",
    "AlgorithmConformance": "rlplug.testing.conformance",
    "Check": "rlplug.testing.check",
    "CheckFailed": "rlplug.testing.report",
    "DoesNotApply": "rlplug.testing.report",
    "Outcome": "rlplug.testing.report",
    "Subject": "rlplug.testing.subject",
    "checks_for": "rlplug.testing.checks",
}

__all__ = [
    "AddOnConformance",
    "AlgorithmConformance",
    "Check",
    "CheckFailed",
    "DoesNotApply",
    "Outcome",
    "Subject",
    "checks_for",
]

# Lazily: every pytest run imports this package for its plugin.
__getattr__, __dir__ = lazy_names(__name__, _MODULES)
