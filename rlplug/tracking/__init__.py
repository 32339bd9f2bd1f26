"""Tracking of a run: a journal on disk, an MLflow run, and artifacts for review.

NumPy and what draws are imported only for tracking a run: listing runs must be quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlplug.lazy import lazy_names

if TYPE_CHECKING:
    from rlplug.tracking.tracking import Status, Tracking, open_tracking

_MODULES = {
    "Status": "rlplug.tracking.tracking",
    "Tracking": "rlplug.tracking.tracking",
    "open_tracking": "rlplug.tracking.tracking",
}

__all__ = ["Status", "Tracking", "open_tracking"]

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
