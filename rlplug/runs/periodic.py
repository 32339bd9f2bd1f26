"""Evaluations and checkpoints at regular intervals of a run."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from rlplug.checkpoint import Checkpoints, Manifest
from rlplug.checkpoint.manifest import MANIFEST
from rlplug.checkpoint.policy import split_state
from rlplug.config.sections import RunConfig
from rlplug.config.toml import to_toml
from rlplug.envs import Environments
from rlplug.errors import RequestError
from rlplug.evaluation import BestTracker, Evaluator
from rlplug.evaluation.video import record
from rlplug.hooks.calls import HookCalls
from rlplug.learner import Learner
from rlplug.nn.modes import evaluating
from rlplug.plugin import DEFAULT_MODULE, Module
from rlplug.runs.weights import WeightCheck
from rlplug.tracking import Tracking
from rlplug.tracking.location import without_secrets

__all__ = ["PeriodicTasks"]

Normalize: TypeAlias = Callable[[Any], Any]

_LOG = logging.getLogger("rlplug")

_CHECKS = 320
"""How often in a run clock and weights are read: rarely enough to cost nothing."""


@attrs.define(kw_only=True, eq=False)
class PeriodicTasks:
    """Evaluates the run and saves checkpoints; the trainer calls `reached` from step `due` on."""

    config: RunConfig
    calls: HookCalls
    learner: Learner
    environments: Environments
    tracking: Tracking
    checkpoints: Checkpoints
    evaluator: Evaluator | None
    make_video_env: Callable[[], Environments] | None
    """Makes the environment that videos are recorded in; None: no videos."""
    has_id: bool
    """Whether the environment can be made again from its id."""
    run_state: Callable[[], Mapping[str, Any]]
    """Returns the state of the trainer, the sampler and the environments."""
    best: BestTracker = attrs.field(init=False)
    weights: WeightCheck = attrs.field(init=False)
    _evaluate_at: int = attrs.field(init=False)
    _save_at: int = attrs.field(init=False)
    _evaluated: int = attrs.field(init=False, default=0)
    _evaluation: Mapping[str, float] = attrs.field(init=False, factory=dict)
    """Metrics of the evaluation at step `_evaluated`."""
    _saved: int = attrs.field(init=False, default=0)
    _saved_at: float = attrs.field(init=False, factory=time.monotonic)
    _disk_failed: bool = attrs.field(init=False, default=False)
    due: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.best = BestTracker(self.config.evaluation)
        self.weights = WeightCheck(self.learner.modules, self.learner.extra)
        self.weights.finite_at(0)
        self._plan(0)

    def set_state(self, saved: Mapping[str, Any], manifest: Manifest) -> None:
        """Go on from a checkpoint."""
        self.best.set_state(saved["best"])
        self._evaluated, self._evaluation = saved["evaluated"], manifest.evaluation
        self.weights.nonfinite_step = saved["nonfinite_step"]
        self._saved = manifest.step
        self._plan(manifest.step)

    def reached(self, step: int, metrics: MutableMapping[str, float]) -> str:
        """Do what is due at this step; why training should stop, or an empty string."""
        self.weights.finite_at(step)
        evaluation: Mapping[str, float] = {}
        better, stop_reason = False, ""
        if step >= self._evaluate_at:
            evaluation, better = self._evaluate(step, metrics)
            self.learner.optimizers.metrics_reported(evaluation)
            stop_reason = self.best.stop_reason(self._scored(step, evaluation))
        if better or step >= self._save_at or self._is_overdue():
            self._save(step, evaluation)
        self._plan(step)
        return stop_reason

    def finish(self, step: int, metrics: MutableMapping[str, float]) -> None:
        """Evaluate and save at the end of the run."""
        if self.evaluator is not None and self._evaluated != step:
            self._evaluate(step, metrics)
        self._save(step, self._evaluation if self._evaluated == step else {})

    def interrupted(self, step: int) -> None:
        """Save when the run was interrupted between two updates."""
        if step:
            self._save(step, {})

    def close(self) -> None:
        """Close the evaluation environments."""
        if self.evaluator is not None:
            self.evaluator.close()

    def _evaluate(
        self, step: int, metrics: MutableMapping[str, float]
    ) -> tuple[Mapping[str, float], bool]:
        """The metrics of an evaluation, and whether it is the best so far."""
        assert self.evaluator is not None
        normalization = self.environments.normalization
        normalize = None if normalization is None else normalization.observations
        trained = self.learner.modules[DEFAULT_MODULE]
        module = self.calls.inference_module(DEFAULT_MODULE, trained, self.learner)
        found = self.evaluator.evaluate(module, step, normalize)
        self._evaluated, self._evaluation = step, found
        metrics.update(found)
        self.calls.evaluation_finished(step, found)
        better = self.best.update(step, self._scored(step, found))
        if better and self.make_video_env is not None:
            self._record(self.make_video_env, module, step, normalize)
        return found, better

    def _scored(self, step: int, evaluation: Mapping[str, float]) -> Mapping[str, float]:
        """The evaluation as it counts: what weights that are not finite return is an accident."""
        if self.weights.finite_at(step):
            return evaluation
        return {**evaluation, "eval/return_mean": math.nan}

    def _record(
        self,
        make: Callable[[], Environments],
        module: Module,
        step: int,
        normalize: Normalize | None,
    ) -> None:
        file = self.tracking.folder / "videos" / f"step-{step:012d}.mp4"
        seed = self.config.run.seed
        try:
            with evaluating(module):
                record(module, make, file, seed=seed, timestep=step, normalize=normalize)
        except (OSError, RequestError) as error:
            # Recording was tried at the start of the run: most likely the disk is full.
            _LOG.warning("rlplug: no video at step %s: %s", f"{step:,}", error)
        else:
            self.tracking.artifact(file, "videos")

    def _save(self, step: int, evaluation: Mapping[str, float]) -> None:
        if self._saved == step:
            return
        try:
            path = self._write(step, evaluation)
        except OSError as error:
            # With a full disk, training goes on without checkpoints.
            if not self._disk_failed:
                self._disk_failed = True
                _LOG.warning(
                    "rlplug: no checkpoint at step %s (%s); the run continues, and earlier ones "
                    "are kept in %s.",
                    f"{step:,}",
                    error.strerror or error,
                    self.checkpoints.folder,
                )
            return
        self._saved, self._saved_at = step, time.monotonic()
        self._disk_failed = False
        self.calls.checkpoint_saved(step, path)
        self.tracking.artifacts(path, f"checkpoints/{path.name}", last=MANIFEST)
        for name in self.checkpoints.prune():
            self.tracking.forget_artifacts(f"checkpoints/{name}")

    def _write(self, step: int, evaluation: Mapping[str, float]) -> Path:
        policy, training = split_state(self.learner, self.environments, has_id=self.has_id)
        manifest = Manifest(
            run_id=self.tracking.run_id,
            step=step,
            updates=self.learner.updates,
            plugins={one.name: one.found.package for one in self.calls.participants},
            evaluation=evaluation,
            finite=self.weights.finite_at(step),
        )
        training["periodic"] = {
            "best": self.best.get_state(),
            "evaluated": self._evaluated,
            "nonfinite_step": self.weights.nonfinite_step,
        }
        training["run"] = self.run_state()
        return self.checkpoints.write(
            manifest, without_secrets(to_toml(self.config)), policy, training
        )

    def _is_overdue(self) -> bool:
        minutes = self.config.checkpoint.minutes
        return bool(minutes) and time.monotonic() - self._saved_at > 60 * minutes

    def _plan(self, step: int) -> None:
        """Set the next steps at which something is due: multiples, the same for all seeds."""
        evaluation = self.config.evaluation.every if self.evaluator is not None else 0
        self._evaluate_at = _next_multiple(step, evaluation)
        self._save_at = _next_multiple(step, self.config.checkpoint.every)
        check_at = _next_multiple(step, max(self.config.run.steps // _CHECKS, 1))
        self.due = min(self._evaluate_at, self._save_at, check_at)


def _next_multiple(step: int, every: int) -> int:
    """The next multiple of `every` after `step`; beyond all steps for 0."""
    return (step // every + 1) * every if every else sys.maxsize
