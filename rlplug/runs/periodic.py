"""Evaluations and checkpoints at regular intervals of a run."""

from __future__ import annotations

import copy
import logging
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

import attrs

from rlplug.checkpoint import Manifest, checkpoints_in
from rlplug.checkpoint.checkpoints import Checkpoints, Committed, Snapshot
from rlplug.checkpoint.state import split_state
from rlplug.config.secrets import masked_toml
from rlplug.config.sections import RunConfig
from rlplug.envs import Environments
from rlplug.envs.agents import AgentEnvironments
from rlplug.evaluation import BestTracker, Evaluator
from rlplug.evaluation.agents import AgentModules
from rlplug.feeds import OpenFeed
from rlplug.hooks.calls import HookCalls
from rlplug.learner import Learner
from rlplug.plugin import DEFAULT_MODULE, Module
from rlplug.registry import packages
from rlplug.review.record import BEST_RETURN, BEST_STEP
from rlplug.runs.divergence import Divergence
from rlplug.runs.limits import Limits
from rlplug.runs.videos import Videos
from rlplug.runs.weights import WeightCheck
from rlplug.tracking import Tracking
from rlplug.tracking.activity import Activities

__all__ = ["PeriodicTasks"]

_LOG = logging.getLogger("rlplug")

_AT_ONCE = -1
"""Due after each collection: only to look whether something has become due."""

_CLOSING_SECONDS = 2.0

_CHECKS = 320
"""How often in a run clock and weights are read: rarely enough to cost nothing."""


@attrs.define(kw_only=True, eq=False)
class PeriodicTasks:
    """Evaluates the run and saves checkpoints; the trainer calls `reached` from step `due` on."""

    config: RunConfig
    calls: HookCalls
    learner: Learner
    feed: OpenFeed
    environments: Environments
    tracking: Tracking
    limits: Limits
    checkpoints: Checkpoints
    evaluator: Evaluator | None
    videos: Videos | None
    has_id: bool
    """Whether the environment can be made again from its id."""
    run_state: Callable[[], Mapping[str, Any]]
    """Returns the state of the trainer, the sampler and the environments."""
    activities: Activities
    best: BestTracker = attrs.field(init=False)
    weights: WeightCheck = attrs.field(init=False)
    _divergence: Divergence = attrs.field(init=False)
    evaluate_seconds: float = attrs.field(init=False, default=0.0)
    """Seconds that evaluations and their videos took."""
    _evaluate_at: int = attrs.field(init=False)
    _save_at: int = attrs.field(init=False)
    _evaluated: int = attrs.field(init=False, default=0)
    _evaluation: Mapping[str, float] = attrs.field(init=False, factory=dict)
    """Metrics of the evaluation at step `_evaluated`."""
    _options: str = attrs.field(init=False)
    _saved: int = attrs.field(init=False, default=0)
    _saved_at: float = attrs.field(init=False, factory=time.monotonic)
    _environments_told: bool = attrs.field(init=False, default=False)
    _disk_failed: bool = attrs.field(init=False, default=False)
    _is_asked: bool = attrs.field(init=False, default=False)
    _asked_step: int = attrs.field(init=False, default=-1)
    """The step of the checkpoint that was asked for."""
    _save_at_update: int = attrs.field(init=False)
    _planned: int = attrs.field(init=False)
    due: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.best = BestTracker(self.config.evaluation)
        self.weights = WeightCheck(
            self.learner.modules, self.learner.extra, lambda: self._divergence.terms()
        )
        on_divergence = self.config.learner.on_divergence
        self._divergence = Divergence(self.learner, self.weights, on_divergence)
        self._options = masked_toml(self.config)
        self._plan(0)

    def set_state(self, saved: Mapping[str, Any], manifest: Manifest) -> None:
        """Go on from a checkpoint."""
        self.best.set_state(saved["best"])
        self._evaluated, self._evaluation = saved["evaluated"], manifest.evaluation
        self.weights.set_state(saved["nonfinite_step"])
        self._divergence.set_state(saved["divergence"])
        self._saved = manifest.step
        if self.videos is not None:
            self.videos.delete_after(manifest.step)
        self._plan(manifest.step)
        if saved["evaluate_at"] <= manifest.step:
            # It was cut short, or the end of the run that followed from it was.
            self._evaluate_at = self.due = manifest.step

    def reached(self, step: int, metrics: MutableMapping[str, float]) -> str:
        """Do what is due at this step; why training should stop, or an empty string."""
        self._tell(self.checkpoints.finished())
        planned = min(self._planned, self._save_at)
        if self.due == _AT_ONCE and step < planned and not self._is_update_due():
            self._plan_next()
            return ""
        self._divergence.check(step)
        evaluation: Mapping[str, float] = {}
        better, stop_reason = False, ""
        if step >= self._evaluate_at:
            if self._evaluated == step:
                evaluation = self._evaluation
            else:
                evaluation, better = self._evaluate(step, metrics)
                self.learner.optimizers.metrics_reported(evaluation)
            stop_reason = self.limits.evaluated(self._scored(step, evaluation), self.best)
        if better or step >= self._save_at or self._is_update_due() or self._is_overdue():
            self._save(step, evaluation)
        self._plan(step)
        return stop_reason

    @property
    def evaluation(self) -> Mapping[str, float]:
        """Metrics of the last evaluation."""
        return self._evaluation

    def finish(self, step: int, metrics: MutableMapping[str, float]) -> None:
        """Evaluate and save at the end of the run."""
        self._divergence.check(step)
        if self.evaluator is not None and self._evaluated != step:
            self._evaluate(step, metrics)
        self.limits.finish(metrics)
        self._save(step, self._evaluation if self._evaluated == step else {})
        self._record_last(step)
        self.settle()

    def record_phases(self, record: Callable[[str, Any], Any]) -> None:
        """Make phases of a profile of evaluations."""
        if self.evaluator is not None:
            self.evaluator.record_phases(record)

    def save_soon(self) -> None:
        """Save after the update in progress, and say when that is done: somebody asked for it."""
        self._is_asked = True
        self._save_at = self.due = 0

    def interrupted(self, step: int) -> None:
        """Save when the run was interrupted between two updates."""
        if step:
            self._save(step, {})
        self.settle()

    def settle(self, seconds: float | None = None) -> None:
        """Wait until the checkpoint being written is on the disk, and tell of it."""
        with self.activities.doing("saving a checkpoint"):
            finished = self.checkpoints.finished(wait=True, seconds=seconds)
        self._tell(finished)

    def close(self) -> None:
        """Close the evaluation environments; a checkpoint being written is waited for briefly.

        However a run ends in order, `settle` was called before.
        """
        self.checkpoints.finished(wait=True, seconds=_CLOSING_SECONDS)
        if self.evaluator is not None:
            self.evaluator.close()

    def _evaluate(
        self, step: int, metrics: MutableMapping[str, float]
    ) -> tuple[Mapping[str, float], bool]:
        """The metrics of an evaluation, and whether it is the best so far."""
        assert self.evaluator is not None
        began = time.perf_counter()
        module, normalize = self._policy()
        evaluator = self.evaluator
        with self.activities.doing("evaluating", lambda: evaluator.progress):
            found = evaluator.evaluate(module, step, normalize)
        self._evaluated, self._evaluation = step, found
        better = self.best.update(step, self._scored(step, found))
        reported = {**found, **self._best_so_far()}
        metrics.update(reported)
        self.calls.tell("evaluation_finished", step, reported)
        if better and self.videos is not None:
            self.videos.record("best", step, module, normalize)
        self.evaluate_seconds += time.perf_counter() - began
        return found, better

    def _policy(self) -> tuple[Module, Any]:
        """The module that acts in evaluations, and what normalizes its observations."""
        normalize, modules = {}, {}
        for module_id, own in self.environments.modules.items():
            trained = self.learner.modules[module_id]
            modules[module_id] = self.calls.inference_module(module_id, trained, self.learner)
            if own.normalization is not None:
                normalize[module_id] = own.normalization.observations
        if isinstance(self.environments, AgentEnvironments):
            return AgentModules(modules), normalize
        return modules[DEFAULT_MODULE], normalize.get(DEFAULT_MODULE)

    def _record_last(self, step: int) -> None:
        """Record the policy of the last step, unless it is the best, which has its video."""
        if self.videos is None:
            return
        if self.best.best_evaluation is not None and self.best.best_step == step:
            self.videos.delete("last")
        elif self.weights.finite_at(step):
            began = time.perf_counter()
            self.videos.record("last", step, *self._policy())
            self.evaluate_seconds += time.perf_counter() - began

    def _best_so_far(self) -> dict[str, float]:
        best = self.best.best_evaluation
        return {} if best is None else {BEST_STEP: best[0], BEST_RETURN: best[1]}

    def _scored(self, step: int, evaluation: Mapping[str, float]) -> Mapping[str, float]:
        """The evaluation as it counts: what weights that are not finite return is an accident."""
        if self.weights.finite_at(step):
            return evaluation
        return {**evaluation, "eval/return_mean": math.nan}

    def _save(self, step: int, evaluation: Mapping[str, float]) -> None:
        """Save in the background; one that is still being written is waited for."""
        self.settle()
        if self._is_asked:
            self._is_asked, self._asked_step = False, step
        if self._saved == step:
            self._answer(step)
            return
        self._saved, self._saved_at = step, time.monotonic()
        # Whether the disk can be written shows only there: the folder may have vanished.
        self.checkpoints.start(self._snapshot(step, evaluation))

    def _snapshot(self, step: int, evaluation: Mapping[str, float]) -> Snapshot:
        policy, training = split_state(self.learner, self.environments, has_id=self.has_id)
        manifest = Manifest(
            run_id=self.tracking.run_id,
            step=step,
            updates=self.learner.updates,
            plugins=packages(self.calls.participants),
            evaluation=evaluation,
            finite=self.weights.finite_at(step),
        )
        training["periodic"] = {
            "best": self.best.get_state(),
            "evaluated": self._evaluated,
            "evaluate_at": self._evaluate_at,
            "nonfinite_step": self.weights.nonfinite_step,
            "divergence": self._divergence.get_state(),
        }
        training["feed"] = copy.deepcopy(self.feed.get_state_without_rows())
        training["run"] = self.run_state()
        self._tell_of_environments(training["run"]["sampler"]["not_saved"])
        wanted = self.config.checkpoint.save_replay
        replay = self.checkpoints.copy_replay(self.feed) if wanted else None
        return Snapshot(
            manifest=manifest,
            config=self._options,
            policy=policy,
            training=training,
            replay=replay,
        )

    def _tell(self, finished: Iterable[Committed]) -> None:
        """Tell what became of checkpoints; with a full disk, training goes on without them."""
        for one in finished:
            if one.path is None:
                # So that the same step can be tried again.
                self._saved = -1
                if not isinstance(one.error, OSError):
                    assert one.error is not None
                    raise one.error
                self._warn(one.step, one.error)
                continue
            self._disk_failed = False
            self._answer(one.step)
            self.calls.tell("checkpoint_saved", one.step, one.path)
            if one.error is not None:
                raise one.error

    def _answer(self, step: int) -> None:
        """Tell who asked for a checkpoint that it is on the disk."""
        if step == self._asked_step:
            self._asked_step = -1
            _LOG.warning(
                "rlplug: checkpoint of step %s saved, as SIGUSR1 asked for; the run goes on.",
                f"{step:,}",
            )

    def _warn(self, step: int, error: OSError) -> None:
        if not self._disk_failed:
            self._disk_failed = True
            _LOG.warning(
                "rlplug: no checkpoint at step %s (%s); the run continues, and %s.",
                f"{step:,}",
                error.strerror or error,
                self._kept(),
            )

    def _kept(self) -> str:
        """Which checkpoints there are: the folder may have vanished."""
        folder = self.checkpoints.folder
        if checkpoints_in(folder):
            return f"earlier ones are kept in {folder}"
        return f"there is none in {folder}"

    def _tell_of_environments(self, reason: str) -> None:
        """Say once why a resumed run will start new episodes, unless it was asked for."""
        if reason and not self._environments_told and self.config.checkpoint.save_environments:
            self._environments_told = True
            _LOG.warning(
                "rlplug: the state of the environments cannot be saved (%s): a resumed run will "
                "start new episodes.",
                reason,
            )

    def _is_update_due(self) -> bool:
        return self.learner.updates >= self._save_at_update

    def _is_overdue(self) -> bool:
        minutes = self.config.checkpoint.minutes
        return bool(minutes) and time.monotonic() - self._saved_at > 60 * minutes

    def _plan(self, step: int) -> None:
        """Set the next steps at which something is due: multiples, the same for all seeds."""
        evaluation = self.config.evaluation.every if self.evaluator is not None else 0
        self._evaluate_at = _next_multiple(step, evaluation)
        self._save_at = _next_multiple(step, self.config.checkpoint.every)
        self._save_at_update = _next_multiple(self.learner.updates, self.config.checkpoint.updates)
        check_at = _next_multiple(step, max(self.config.run.steps // _CHECKS, 1))
        self._planned = min(self._evaluate_at, self._save_at, check_at)
        self._plan_next()

    def _plan_next(self) -> None:
        often = self.config.checkpoint.updates or self.checkpoints.is_writing
        # Last: `save_soon` may be called at any moment.
        self.due = _AT_ONCE if often else min(self._planned, self._save_at)


def _next_multiple(step: int, every: int) -> int:
    """The next multiple of `every` after `step`; beyond all steps for 0."""
    return (step // every + 1) * every if every else sys.maxsize
