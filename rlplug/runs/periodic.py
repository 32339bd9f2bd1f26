"""Evaluations, checkpoints and videos at regular intervals of a run, and whether it diverged."""

from __future__ import annotations

import copy
import logging
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from rlplug.checkpoint import Manifest, checkpoints_in
from rlplug.checkpoint.checkpoints import Checkpoints, Committed, Snapshot
from rlplug.checkpoint.state import split_state
from rlplug.config.secrets import masked_toml
from rlplug.config.sections import RunConfig
from rlplug.envs.agents import AgentEnvironments
from rlplug.errors import RequestError, RunFailedError
from rlplug.evaluation import BestTracker, Evaluator
from rlplug.learner import Learner
from rlplug.nn.layers import evaluating
from rlplug.plugin import DEFAULT_MODULE, Module
from rlplug.registry import packages
from rlplug.review.record import BEST_RETURN, BEST_STEP
from rlplug.runs.components import Components
from rlplug.runs.weights import WeightCheck
from rlplug.tracking import Tracking
from rlplug.tracking.console import Activities

__all__ = ["Divergence", "PeriodicTasks"]

Kind: TypeAlias = Literal["best", "last"]

_LOG = logging.getLogger("rlplug")

_AT_ONCE = -1
"""Due after each collection: only to look whether something has become due."""

_CLOSING_SECONDS = 2.0

_CHECKS = 320
"""How often in a run clock and weights are read: rarely enough to cost nothing."""


class PeriodicTasks:
    """Evaluates the run and saves checkpoints; the trainer calls `reached` from step `due` on."""

    def __init__(
        self,
        config: RunConfig,
        components: Components,
        tracking: Tracking,
        activities: Activities,
        check: Callable[[], None],
    ) -> None:
        setup, learner = components.setup, components.learner
        self._components, self._tracking, self._activities = components, tracking, activities
        # Of the whole run, where learners have shares of it.
        self._config, self._calls, self._learner = config, components.calls, learner
        section = self._config.checkpoint
        self.checkpoints = Checkpoints(
            tracking.folder / "checkpoints",
            section.keep,
            keep_best=section.keep_best,
            keep_every=section.keep_every,
            before_commit=tracking.write_journal,
        )
        evaluation = self._config.evaluation
        self._evaluator = None
        if evaluation.episodes:
            self._evaluator = setup.evaluator(
                components.environments,
                components.sampler,
                episodes=evaluation.episodes,
                parallel=evaluation.parallel,
                seed=self._config.run.seed,
                check=check,
                max_episode_steps=evaluation.max_episode_steps,
            )
        self._films = bool(evaluation.video and evaluation.episodes)
        self.best = BestTracker(evaluation)
        self.weights = WeightCheck(learner.modules, learner.extra, lambda: nonfinite_terms(learner))
        on_divergence = self._config.learner.on_divergence
        self._divergence = Divergence(learner, self.weights, on_divergence)
        self.evaluate_seconds = 0.0
        """Seconds that evaluations and their videos took."""
        self.evaluation: Mapping[str, float] = {}
        """Metrics of the last evaluation, at step `_evaluated`."""
        self._evaluated = self._saved = 0
        self._saved_at = time.monotonic()
        self._environments_told = self._disk_failed = self._is_asked = False
        self._asked_step = -1
        """The step of the checkpoint that was asked for."""
        self._options = masked_toml(self._config)
        self._plan(0)

    def set_state(self, saved: Mapping[str, Any], manifest: Manifest) -> None:
        """Go on from a checkpoint."""
        self.best.set_state(saved["best"])
        self._evaluated, self.evaluation = saved["evaluated"], manifest.evaluation
        self.weights.set_state(saved["nonfinite_step"])
        self._divergence.set_state(saved["divergence"])
        self._saved = manifest.step
        for file in self._videos():
            if int(file.stem.rpartition("-")[2]) > manifest.step:
                with suppress(OSError):
                    file.unlink()
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
                evaluation = self.evaluation
            else:
                evaluation, better = self._evaluate(step, metrics)
                self._learner.optimizers.metrics_reported(evaluation)
            stop_reason = self._components.limits.evaluated(
                self._scored(step, evaluation), self.best
            )
        if better or step >= self._save_at or self._is_update_due() or self._is_overdue():
            self._save(step, evaluation)
        self._plan(step)
        return stop_reason

    def finish(self, step: int, metrics: MutableMapping[str, float]) -> None:
        """Evaluate and save at the end of the run."""
        self._divergence.check(step)
        if self._evaluator is not None and self._evaluated != step:
            self._evaluate(step, metrics)
        self._components.limits.finish(metrics)
        self._save(step, self.evaluation if self._evaluated == step else {})
        self._film_last(step)
        self.settle()

    def record_phases(self, record: Callable[[str, Any], Any]) -> None:
        """Make phases of a profile of evaluations."""
        if self._evaluator is not None:
            self._evaluator.record_phases(record)

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
        with self._activities.doing("saving a checkpoint"):
            finished = self.checkpoints.finished(wait=True, seconds=seconds)
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
        began = time.perf_counter()
        module, normalize = self._policy()
        evaluator = cast(Evaluator, self._evaluator)
        with self._activities.doing("evaluating", lambda: evaluator.progress):
            found = evaluator.evaluate(module, step, normalize)
        self._evaluated, self.evaluation = step, found
        better = self.best.update(step, self._scored(step, found))
        reported = {**found, **self._best_so_far()}
        metrics.update(reported)
        self._calls.tell("evaluation_finished", step, reported)
        if better and self._films:
            self._film("best", step, module, normalize)
        self.evaluate_seconds += time.perf_counter() - began
        return found, better

    def _policy(self) -> tuple[Module, Any]:
        """The module that acts in evaluations, and what normalizes its observations."""
        normalize, modules = {}, {}
        for module_id, own in self._components.environments.modules.items():
            trained = self._learner.modules[module_id]
            modules[module_id] = self._calls.inference_module(module_id, trained, self._learner)
            if own.normalization is not None:
                normalize[module_id] = own.normalization.observations
        if isinstance(self._components.environments, AgentEnvironments):
            return self._components.setup.policy(modules), normalize
        return modules[DEFAULT_MODULE], normalize.get(DEFAULT_MODULE)

    def _film_last(self, step: int) -> None:
        """Record the policy of the last step, unless it is the best, which has its video."""
        if not self._films:
            return
        if self.best.best_evaluation is not None and self.best.best_step == step:
            self._delete("last")
        elif self.weights.finite_at(step):
            began = time.perf_counter()
            self._film("last", step, *self._policy())
            self.evaluate_seconds += time.perf_counter() - began

    def _film(self, kind: Kind, step: int, module: Module, normalize: Any) -> None:
        """Record a greedy episode as `videos/KIND-step-STEP.mp4`, in place of the one before."""
        from rlplug.evaluation.video import record

        name, components = f"{kind}-step-{step:012d}.mp4", self._components

        def make() -> Any:
            return components.setup.for_evaluation(
                components.environments, 1, render_mode="rgb_array"
            )

        file, seed = self._tracking.folder / "videos" / name, self._config.run.seed
        try:
            with self._activities.doing("recording a video"), evaluating(module):
                record(module, make, file, seed=seed, timestep=step, normalize=normalize)
        except (OSError, RequestError) as error:
            # Recording was tried at the start of the run: most likely the disk is full.
            _LOG.warning("rlplug: no video at step %s: %s", f"{step:,}", error)
        else:
            self._delete(kind, but=name)

    def _delete(self, kind: Kind, *, but: str = "") -> None:
        for file in self._videos(kind):
            if file.name != but:
                with suppress(OSError):
                    file.unlink()

    def _videos(self, kind: str = "*") -> Iterable[Path]:
        return (self._tracking.folder / "videos").glob(f"{kind}-step-*.mp4")

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
        policy, training = split_state(
            self._learner,
            self._components.environments,
            has_id=isinstance(self._components.setup.maker, str),
        )
        manifest = Manifest(
            run_id=self._tracking.run_id,
            step=step,
            updates=self._learner.updates,
            plugins=packages(self._calls.participants),
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
        training["feed"] = copy.deepcopy(self._components.feed.get_state_without_rows())
        training["run"] = self._components.get_state()
        self._tell_of_environments(training["run"]["sampler"]["not_saved"])
        wanted = self._config.checkpoint.save_replay
        replay = self.checkpoints.copy_replay(self._components.feed) if wanted else None
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
            self._calls.tell("checkpoint_saved", one.step, one.path)
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
        if reason and not self._environments_told and self._config.checkpoint.save_environments:
            self._environments_told = True
            _LOG.warning(
                "rlplug: the state of the environments cannot be saved (%s): a resumed run will "
                "start new episodes.",
                reason,
            )

    def _is_update_due(self) -> bool:
        return self._learner.updates >= self._save_at_update

    def _is_overdue(self) -> bool:
        minutes = self._config.checkpoint.minutes
        return bool(minutes) and time.monotonic() - self._saved_at > 60 * minutes

    def _plan(self, step: int) -> None:
        """Set the next steps at which something is due: multiples, the same for all seeds."""
        evaluation = self._config.evaluation.every if self._evaluator is not None else 0
        self._evaluate_at = _next_multiple(step, evaluation)
        self._save_at = _next_multiple(step, self._config.checkpoint.every)
        self._save_at_update = _next_multiple(
            self._learner.updates, self._config.checkpoint.updates
        )
        check_at = _next_multiple(step, max(self._config.run.steps // _CHECKS, 1))
        self._planned = min(self._evaluate_at, self._save_at, check_at)
        self._plan_next()

    def _plan_next(self) -> None:
        often = self._config.checkpoint.updates or self.checkpoints.is_writing
        # Last: `save_soon` may be called at any moment.
        self.due = _AT_ONCE if often else min(self._planned, self._save_at)


def _next_multiple(step: int, every: int) -> int:
    """The next multiple of `every` after `step`; beyond all steps for 0."""
    return (step // every + 1) * every if every else sys.maxsize


_STILL_UPDATES = 100
"""Single minibatches may overflow; a hundred in a row are no accident. The help of
`learner.on_divergence` names it."""

_ADVICE = (
    "try: a lower learning_rate, --set learner.max_grad_norm=0.5, or other rewards; "
    "--set learner.nonfinite=stop names the loss term of the first gradient that is not finite"
)


class Divergence:
    """Carries out `learner.on_divergence`: warn once, or end the run as failed.

    Training diverged if weights are not finite, or if nothing moves them any more.
    """

    def __init__(self, learner: Learner, weights: WeightCheck, on_divergence: str) -> None:
        self._learner, self._weights = learner, weights
        self._stops = on_divergence == "stop"
        self._sums: tuple[float, ...] = ()
        self._still_since: int | None = None
        """The update since which gradients were not finite and weights did not move."""
        self._warned = False

    def check(self, step: int) -> None:
        """Look at the weights and at the last update; raise to end the run."""
        said = ""
        if not self._weights.finite_at(step):
            if not self._stops:
                return
            said = (
                f"weights are not finite from step {self._weights.nonfinite_step:,} on "
                f"({self._weights.nonfinite_name})"
            )
        elif still := self._still():
            modules = ", ".join(map(repr, still))
            said = (
                f"the gradients of {modules} were not finite and no weight moved for "
                f"{self._learner.updates - (self._still_since or 0):,} updates, up to step {step:,}"
            )
        if said and self._stops:
            terms = nonfinite_terms(self._learner)
            raise RunFailedError(f"training diverged: {said}{terms}.", _ADVICE)
        if said and not self._warned:
            self._warned = True
            _LOG.warning("rlplug: %s%s. %s.", said, nonfinite_terms(self._learner), _ADVICE)

    def _still(self) -> list[str]:
        """The modules whose gradients were not finite for long while no weight moved."""
        updates, sums = self._learner.updates, self._weights.sums
        modules = [
            module_id
            for module_id, module in self._learner.trained.items()
            if float(module.metrics.get("nonfinite", 0.0)) > 0
        ]
        if not modules:
            self._still_since = None
        elif self._still_since is None or sums != self._sums:
            self._still_since = updates - 1
        self._sums = sums
        is_long = self._still_since is not None and updates - self._still_since >= _STILL_UPDATES
        return modules if is_long else []

    def get_state(self) -> dict[str, Any]:
        """State for checkpoints."""
        return {
            "sums": list(self._sums),
            "still_since": self._still_since,
            "warned": self._warned,
        }

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        self._sums = tuple(saved["sums"])
        self._still_since, self._warned = saved["still_since"], saved["warned"]


def nonfinite_terms(learner: Learner) -> str:
    """The metrics of the last update that are not finite, the loss and its terms first."""
    found = sorted(
        (not name.startswith("loss"), name)
        for module in learner.trained.values()
        for name, value in module.metrics.items()
        if not math.isfinite(float(value))
    )
    names = dict.fromkeys(name for _, name in found)
    return f"; not finite in the last update: {', '.join(names)}" if names else ""
