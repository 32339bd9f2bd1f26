"""Evaluations, checkpoints and videos at regular intervals of a run."""

from __future__ import annotations

import copy
import logging
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from rlplug.checkpoint import Manifest
from rlplug.checkpoint.checkpoints import Checkpoints, Committed, Snapshot
from rlplug.checkpoint.state import split_state
from rlplug.config.secrets import masked_toml
from rlplug.config.sections import RunConfig
from rlplug.errors import RequestError
from rlplug.evaluation import BestTracker, Evaluator
from rlplug.nn.layers import evaluating
from rlplug.plugin import Module
from rlplug.registry import packages
from rlplug.review.record import BEST_RETURN, BEST_STEP
from rlplug.runs.components import Components
from rlplug.runs.weights import Divergence
from rlplug.tracking import Tracking
from rlplug.tracking.console import Activities

__all__ = ["PeriodicTasks"]

Kind: TypeAlias = Literal["best", "last"]

_LOG = logging.getLogger("rlplug")

_CLOSING_SECONDS = 2.0

_CHECKS = 320
"""How often in a run clock and weights are read: rarely enough to cost nothing."""


class PeriodicTasks:
    """Evaluates the run and saves checkpoints; the trainer calls `reached` from step `due` on.

    `config` is that of the whole run, where several learners have shares of it.
    """

    def __init__(
        self,
        config: RunConfig,
        components: Components,
        tracking: Tracking,
        activities: Activities,
        check: Callable[[], None],
    ) -> None:
        self._config, self._components, self._tracking = config, components, tracking
        self._activities, self._learner = activities, components.learner
        section, evaluation = config.checkpoint, config.evaluation
        self.checkpoints = Checkpoints(
            tracking.folder / "checkpoints",
            section.keep,
            keep_best=section.keep_best,
            keep_every=section.keep_every,
            before_commit=tracking.write_journal,
        )
        self._evaluator: Evaluator | None = None
        if evaluation.episodes:
            self._evaluator = components.setup.evaluator(
                components.environments,
                components.sampler,
                episodes=evaluation.episodes,
                parallel=evaluation.parallel,
                seed=config.run.seed,
                check=check,
                max_episode_steps=evaluation.max_episode_steps,
            )
        self.best = BestTracker(evaluation)
        self.divergence = Divergence(self._learner, config.learner.on_divergence)
        self.evaluate_seconds = 0.0
        """Seconds that evaluations and their videos took."""
        self.evaluation: Mapping[str, float] = {}
        """Metrics of the last evaluation, at step `_evaluated`."""
        self._evaluated = self._saved = 0
        self._saved_at = time.monotonic()
        self._is_asked = self._environments_told = self._disk_failed = False
        self._options = masked_toml(config)
        self._plan(0)

    def set_state(self, saved: Mapping[str, Any], manifest: Manifest) -> None:
        """Go on from a checkpoint."""
        self.best.set_state(saved["best"])
        self._evaluated, self.evaluation = saved["evaluated"], manifest.evaluation
        self.divergence.set_state(saved["divergence"])
        self._saved = manifest.step
        self._delete_videos("*", lambda step: step > manifest.step)
        self._plan(manifest.step)
        if saved["evaluate_at"] <= manifest.step:
            # It was cut short, or the end of the run that followed from it was.
            self._evaluate_at = self.due = manifest.step

    def reached(self, step: int, metrics: MutableMapping[str, float]) -> str:
        """Do what is due at this step; why training should stop, or an empty string."""
        self._tell(self.checkpoints.finished())
        self.divergence.check(step)
        asked, self._is_asked = self._is_asked, False
        evaluation: Mapping[str, float] = {}
        better, stop_reason = False, ""
        if step >= self._evaluate_at:
            if self._evaluated == step:
                evaluation = self.evaluation
            else:
                evaluation, better = self._evaluate(step, metrics)
                self._learner.optimizers.metrics_reported(evaluation)
            scored = self._scored(step, evaluation)
            stop_reason = self._components.limits.evaluated(scored, self.best)
        section = self._config.checkpoint
        overdue = section.minutes and time.monotonic() - self._saved_at > 60 * section.minutes
        updated = self._learner.updates >= self._save_at_update
        if asked or better or overdue or updated or step >= self._save_at:
            self._save(step, evaluation)
        if asked:
            self.settle()
            if self._saved == step:
                said = "rlplug: checkpoint of step %s saved, as SIGUSR1 asked for; the run goes on."
                _LOG.warning(said, f"{step:,}")
        self._plan(step)
        return stop_reason

    def finish(self, step: int, metrics: MutableMapping[str, float]) -> None:
        """Evaluate and save at the end of the run."""
        self.divergence.check(step)
        if self._evaluator is not None and self._evaluated != step:
            self._evaluate(step, metrics)
        self._components.limits.finish(metrics)
        self._save(step, self.evaluation if self._evaluated == step else {})
        if self._config.evaluation.video:
            self._delete_videos("last", lambda step: True)
            # The best one has its video.
            if self.best.best_step != step and self.divergence.finite_at(step):
                began = time.perf_counter()
                self._film("last", step, *self._policy())
                self.evaluate_seconds += time.perf_counter() - began
        self.settle()

    def save_soon(self) -> None:
        """Save after the update in progress, and say when that is done: somebody asked for it."""
        self._is_asked = True
        self.due = 0

    def interrupted(self, step: int) -> None:
        """Save when the run was interrupted between two updates."""
        if step:
            self._save(step, {})
        self.settle()

    def settle(self) -> None:
        """Wait until the checkpoint being written is on the disk, and tell of it."""
        with self._activities.doing("saving a checkpoint"):
            finished = self.checkpoints.finished(wait=True)
        self._tell(finished)

    def close(self) -> None:
        """Close the evaluation environments; a checkpoint being written is waited for briefly.

        However a run ends in order, `settle` was called before.
        """
        self.checkpoints.finished(wait=True, seconds=_CLOSING_SECONDS)
        if self._evaluator is not None:
            self._evaluator.close()

    def _evaluate(
        self, step: int, metrics: MutableMapping[str, float]
    ) -> tuple[Mapping[str, float], bool]:
        """The metrics of an evaluation, and whether it is the best so far."""
        assert self._evaluator is not None
        evaluator, began = self._evaluator, time.perf_counter()
        module, normalize = self._policy()
        with self._activities.doing("evaluating", lambda: evaluator.progress):
            evaluation = evaluator.evaluate(module, step, normalize)
        self._evaluated, self.evaluation = step, evaluation
        better = self.best.update(step, self._scored(step, evaluation))
        reported = dict(evaluation)
        if self.best.best_evaluation is not None:
            reported[BEST_STEP], reported[BEST_RETURN] = self.best.best_evaluation
        metrics.update(reported)
        self._components.calls.tell("evaluation_finished", step, reported)
        if better and self._config.evaluation.video:
            self._film("best", step, module, normalize)
        self.evaluate_seconds += time.perf_counter() - began
        return evaluation, better

    def _scored(self, step: int, evaluation: Mapping[str, float]) -> Mapping[str, float]:
        """The evaluation as it counts: what weights that are not finite return is an accident."""
        if self.divergence.finite_at(step):
            return evaluation
        return {**evaluation, "eval/return_mean": math.nan}

    def _policy(self) -> tuple[Module, Any]:
        """The module that acts in evaluations, and what normalizes its observations."""
        calls, learner = self._components.calls, self._learner
        modules = {
            module_id: calls.inference_module(module_id, module, learner)
            for module_id, module in learner.modules.items()
        }
        setup = self._components.setup
        return setup.policy(modules), setup.normalize(self._components.environments)

    def _film(self, kind: Kind, step: int, module: Module, normalize: Any) -> None:
        """Record a greedy episode as `videos/KIND-step-STEP.mp4`, in place of the one before."""
        from rlplug.evaluation.video import record

        setup, training = self._components.setup, self._components.environments
        make = partial(setup.for_evaluation, training, 1, render_mode="rgb_array")
        file, seed = self._videos / f"{kind}-step-{step:012d}.mp4", self._config.run.seed
        try:
            with self._activities.doing("recording a video"), evaluating(module):
                record(module, make, file, seed=seed, timestep=step, normalize=normalize)
        except (OSError, RequestError) as error:
            # Recording was tried at the start of the run: most likely the disk is full.
            _LOG.warning("rlplug: no video at step %s: %s", f"{step:,}", error)
        else:
            self._delete_videos(kind, lambda other: other != step)

    @property
    def _videos(self) -> Path:
        return self._tracking.folder / "videos"

    def _delete_videos(self, kind: str, of_step: Callable[[int], bool]) -> None:
        for file in self._videos.glob(f"{kind}-step-*.mp4"):
            if of_step(int(file.stem.rpartition("-")[2])):
                with suppress(OSError):
                    file.unlink()

    def _save(self, step: int, evaluation: Mapping[str, float]) -> None:
        """Save in the background; one that is still being written is waited for."""
        self.settle()
        if self._saved != step:
            self._saved, self._saved_at = step, time.monotonic()
            # Whether the disk can be written shows only there: the folder may have vanished.
            self.checkpoints.start(self._snapshot(step, evaluation))

    def _snapshot(self, step: int, evaluation: Mapping[str, float]) -> Snapshot:
        components, learner = self._components, self._learner
        has_id = isinstance(components.setup.maker, str)
        policy, training = split_state(learner, components.environments, has_id=has_id)
        training["periodic"] = {
            "best": self.best.get_state(),
            "evaluated": self._evaluated,
            "evaluate_at": self._evaluate_at,
            "divergence": self.divergence.get_state(),
        }
        training["feed"] = copy.deepcopy(components.feed.get_state_without_rows())
        training["run"] = components.get_state()
        section = self._config.checkpoint
        lost = training["run"]["sampler"]["not_saved"]
        if lost and section.save_environments and not self._environments_told:
            self._environments_told = True
            _LOG.warning(
                "rlplug: the state of the environments cannot be saved (%s): a resumed run will "
                "start new episodes.",
                lost,
            )
        return Snapshot(
            manifest=Manifest(
                run_id=self._tracking.run_id,
                step=step,
                updates=learner.updates,
                plugins=packages(components.calls.participants),
                evaluation=evaluation,
                finite=self.divergence.finite_at(step),
            ),
            config=self._options,
            policy=policy,
            training=training,
            replay=self.checkpoints.copy_replay(components.feed) if section.save_replay else None,
        )

    def _tell(self, finished: Iterable[Committed]) -> None:
        """Tell what became of checkpoints; with a full disk, training goes on without them."""
        for checkpoint in finished:
            if checkpoint.path is not None:
                self._disk_failed = False
                self._components.calls.tell("checkpoint_saved", checkpoint.step, checkpoint.path)
                if checkpoint.error is not None:
                    raise checkpoint.error
                continue
            # So that the same step can be tried again.
            self._saved = -1
            if not isinstance(checkpoint.error, OSError):
                assert checkpoint.error is not None
                raise checkpoint.error
            if not self._disk_failed:
                self._disk_failed = True
                _LOG.warning(
                    "rlplug: no checkpoint at step %s (%s); the run continues without it.",
                    f"{checkpoint.step:,}",
                    checkpoint.error.strerror or checkpoint.error,
                )

    def _plan(self, step: int) -> None:
        """Set the next steps at which something is due: multiples, the same for all seeds."""
        section, every = self._config.checkpoint, self._config.evaluation.every
        self._evaluate_at = _next_multiple(step, 0 if self._evaluator is None else every)
        self._save_at = _next_multiple(step, section.every)
        self._save_at_update = _next_multiple(self._learner.updates, section.updates)
        check_at = _next_multiple(step, max(self._config.run.steps // _CHECKS, 1))
        # Updates are counted after each collection.
        self.due = 0 if section.updates else min(self._evaluate_at, self._save_at, check_at)


def _next_multiple(step: int, every: int) -> int:
    """The next multiple of `every` after `step`; beyond all steps for 0."""
    return (step // every + 1) * every if every else sys.maxsize
