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
    from rlplug.runs.groups.results import RunResults
    from rlplug.runs.groups.tune import StudyResult, tune
    from rlplug.runs.loading import load
    from rlplug.runs.recorded import RecordedRun, runs
    from rlplug.runs.result import RunResult
    from rlplug.runs.run import resume, run
    from rlplug.serving import Policy

_MODULES = {
    "ALL_MODULES": "rlplug.plugin",
    "ActInput": "rlplug.plugin",
    "Acted": "rlplug.plugin",
    "AddOn": "rlplug.plugin",
    "Algorithm": "rlplug.plugin",
    "Batch": "rlplug.batch",
    "DEFAULT_MODULE": "rlplug.plugin",
    "LearnerView": "rlplug.plugin",
    "Loss": "rlplug.plugin",
    "Module": "rlplug.plugin",
    "NoOptions": "rlplug.plugin",
    "Policy": "rlplug.serving",
    "Registry": "rlplug.registry",
    "RecordedRun": "rlplug.runs.recorded",
    "RequestError": "rlplug.errors",
    "RlplugError": "rlplug.errors",
    "RunFailedError": "rlplug.errors",
    "UnsupportedSpaceError": "rlplug.errors",
    "RunResult": "rlplug.runs.result",
    "RunResults": "rlplug.runs.groups.results",
    "StudyResult": "rlplug.runs.groups.tune",
    "build_learner": "rlplug.runs.build_learner",
    "evaluate": "rlplug.runs.evaluate",
    "hookimpl": "rlplug.hooks",
    "load": "rlplug.runs.loading",
    "load_weights": "rlplug.checkpoint.weights",
    "option": "rlplug.config",
    "resume": "rlplug.runs.run",
    "run": "rlplug.runs.run",
    "runs": "rlplug.runs.recorded",
    "tune": "rlplug.runs.groups.tune",
}

__all__ = [
    "ALL_MODULES",
    "DEFAULT_MODULE",
    "ActInput",
    "Acted",
    "AddOn",
    "Algorithm",
    "Batch",
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
    "RunResults",
    "StudyResult",
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
