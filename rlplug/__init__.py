"""Reinforcement learning and bandits where every algorithm is a plugin.

The public names are loaded when they are first used: `import rlplug` alone imports neither torch
nor gymnasium nor mlflow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlplug.lazy import lazy_names

if TYPE_CHECKING:
    from rlplug.batch import Batch
    from rlplug.config import option
    from rlplug.errors import RequestError, RlplugError, RunFailedError, UnsupportedSpaceError
    from rlplug.hooks import hookimpl
    from rlplug.losses import KnownLoss
    from rlplug.plugin import (
        ALL_MODULES,
        DEFAULT_MODULE,
        Acted,
        ActInput,
        AddOn,
        Algorithm,
        LearnerView,
        Loss,
        Module,
        NoOptions,
    )
    from rlplug.registry import Registry
    from rlplug.runs.evaluate import evaluate
    from rlplug.runs.loading import load
    from rlplug.runs.result import RunResult
    from rlplug.runs.run import run
    from rlplug.serving import Policy

__all__ = [
    "ALL_MODULES",
    "DEFAULT_MODULE",
    "ActInput",
    "Acted",
    "AddOn",
    "Algorithm",
    "Batch",
    "KnownLoss",
    "LearnerView",
    "Loss",
    "Module",
    "NoOptions",
    "Policy",
    "Registry",
    "RequestError",
    "RlplugError",
    "RunFailedError",
    "RunResult",
    "UnsupportedSpaceError",
    "evaluate",
    "hookimpl",
    "load",
    "option",
    "run",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "rlplug.plugin": "ALL_MODULES ActInput Acted AddOn Algorithm "
        "DEFAULT_MODULE LearnerView Loss Module NoOptions",
        "rlplug.batch": "Batch",
        "rlplug.losses": "KnownLoss",
        "rlplug.serving": "Policy",
        "rlplug.registry": "Registry",
        "rlplug.errors": "RequestError RlplugError RunFailedError UnsupportedSpaceError",
        "rlplug.runs.result": "RunResult",
        "rlplug.runs.evaluate": "evaluate",
        "rlplug.hooks": "hookimpl",
        "rlplug.runs.loading": "load",
        "rlplug.config": "option",
        "rlplug.runs.run": "run",
    },
)
