"""What plugin authors test their plugins with: checks, probe environments, small algorithms.

One table of checks, used three ways: `class TestMine(AlgorithmConformance)` in a plugin's tests,
`pytest --rlplug NAME` and `rlplug plugins check NAME` for what is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlplug.lazy import lazy_names

if TYPE_CHECKING:
    from rlplug.testing.conformance import AddOnConformance, AlgorithmConformance
    from rlplug.testing.report import CheckFailed, DoesNotApply, Outcome
    from rlplug.testing.subject import Subject
    from rlplug.testing.table import Check, checks_for

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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "rlplug.testing.conformance": "AddOnConformance AlgorithmConformance",
        "rlplug.testing.table": "Check checks_for",
        "rlplug.testing.report": "CheckFailed DoesNotApply Outcome",
        "rlplug.testing.subject": "Subject",
    },
)
