"""Reinforcement learning and bandits where every algorithm is a plugin.

The public names are loaded when they are first used: `import rlplug` alone imports neither torch
nor gymnasium nor mlflow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlplug.lazy import lazy_names

if TYPE_CHECKING:
    from rlplug.batch import Batch
    from rlplug.checkpoint.weights import load_weights
    from rlplug.config import option
    from rlplug.errors import RequestError, RlplugError, RunFailedError, UnsupportedSpaceError
    from rlplug.hooks import hookimpl
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
    from rlplug.runs.build_learner import build_learner
    from rlplug.runs.evaluate import evaluate
    from rlplug.runs.groups.life import tune
    from rlplug.runs.groups.result import GroupResult
    from rlplug.runs.loading import load
    from rlplug.runs.recorded import RecordedRun, runs
    from rlplug.runs.result import RunResult
    from rlplug.runs.run import resume, run
    from rlplug.serving import Policy

_NAMES = {
    "rlplug.batch": "Batch",
    "rlplug.checkpoint.weights": "load_weights",
    "rlplug.config": "option",
    "rlplug.errors": "RequestError RlplugError RunFailedError UnsupportedSpaceError",
    "rlplug.hooks": "hookimpl",
    "rlplug.plugin": "ALL_MODULES DEFAULT_MODULE ActInput Acted AddOn Algorithm LearnerView Loss "
    "Module NoOptions",
    "rlplug.registry": "Registry",
    "rlplug.runs.build_learner": "build_learner",
    "rlplug.runs.evaluate": "evaluate",
    "rlplug.runs.groups.life": "tune",
    "rlplug.runs.groups.result": "GroupResult",
    "rlplug.runs.loading": "load",
    "rlplug.runs.recorded": "RecordedRun runs",
    "rlplug.runs.result": "RunResult",
    "rlplug.runs.run": "resume run",
    "rlplug.serving": "Policy",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "ALL_MODULES",
    "DEFAULT_MODULE",
    "ActInput",
    "Acted",
    "AddOn",
    "Algorithm",
    "Batch",
    "GroupResult",
    "LearnerView",
    "Loss",
    "Module",
    "NoOptions",
    "Policy",
    "RecordedRun",
    "Registry",
    "RequestError",
    "RlplugError",
    "RunFailedError",
    "RunResult",
    "UnsupportedSpaceError",
    "build_learner",
    "evaluate",
    "hookimpl",
    "load",
    "load_weights",
    "option",
    "resume",
    "run",
    "runs",
    "tune",
]

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
