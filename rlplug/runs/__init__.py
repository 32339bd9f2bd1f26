"""One run: preparation, training, its result, and what to do with a tracked one."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlplug.runs.recorded import RecordedRun


class _CallablePackage(ModuleType):
    """`rlplug.runs(...)` lists recorded runs, although `rlplug.runs` is this package, too."""

    def __call__(self, **conditions: Any) -> list[RecordedRun]:
        from rlplug.runs.recorded import runs

        return runs(**conditions)


sys.modules[__name__].__class__ = _CallablePackage
