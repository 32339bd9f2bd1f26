"""The end of a run: whatever ended it, its status is set and what it has is kept."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rlplug.checkpoint import checkpoints_in
from rlplug.checkpoint.weights import save_module
from rlplug.envs.agents import AgentEnvironments
from rlplug.errors import FAILURES
from rlplug.evaluation.agents import AgentModules
from rlplug.learner import Learner
from rlplug.plugin import DEFAULT_MODULE, Module
from rlplug.runs.components import Components
from rlplug.runs.periodic import PeriodicTasks
from rlplug.runs.profiler import Profile, Profiler
from rlplug.runs.result import RunInterrupted, RunResult
from rlplug.runs.signals import ANSWER_SECONDS, Interrupted, Interrupts
from rlplug.tracking import Status, Tracking
from rlplug.tracking.activity import Activities
from rlplug.tracking.journal import read_journal

__all__ = ["Ending"]

_LOG = logging.getLogger("rlplug")


class Ending:
    """Ends one run. Each thing to do is tried, and what fails keeps nothing else from being done.

    All methods may be cut short by a second signal; then `at_once` does the least.
    """

    def __init__(self, components: Components, tracking: Tracking, activities: Activities) -> None:
        self.periodic: PeriodicTasks | None = None
        self.profiler: Profiler | None = None
        self.error: BaseException | None = None
        """What made the run fail."""
        self._components = components
        self._trainer = components.trainer
        self._tracking = tracking
        self._activities = activities
        self._status: Status = "KILLED"
        self._told = False
        self._profile: Profile | None = None

    def of(self, train: Callable[[], None], interrupts: Interrupts) -> RunResult:
        """Train, and end the run; raises what ended it early."""
        try:
            try:
                train()
            except BaseException as error:
                if interrupts.at_once:
                    # Also where other code has made another exception of it.
                    raise interrupts.received() from error
                if isinstance(error, KeyboardInterrupt):
                    raise self.interrupted(error) from None
                self.failed(error)
                raise
            return self.finished()
        except Interrupted as error:
            raise self.at_once(error) from self.error

    def finished(self) -> RunResult:
        """The run has taken all its steps and has been saved."""
        self._status = "FINISHED"
        return self._close()

    def interrupted(self, error: KeyboardInterrupt) -> RunInterrupted:
        """A signal ended the run between two updates, or other code raised KeyboardInterrupt."""
        # Before the report, which empties the window of metrics.
        if self.periodic is not None and isinstance(error, Interrupted):
            with _tried("no checkpoint could be written"):
                self.periodic.interrupted(self._trainer.step)
        self._tell(error)
        return RunInterrupted(self._close(), Interrupted.of(error))

    def failed(self, error: BaseException) -> None:
        """An exception ended the run; its notes say what is kept."""
        self._status, self.error = "FAILED", error
        self._tell(error)
        result = self._close()
        recorded = _recorded(result.folder)
        kept = "nothing is recorded" if recorded is None else f"recorded up to step {recorded:,}"
        how = [f"resume it: rlplug resume {result.run_id}"] if result.checkpoints else []
        for line in (f"{kept}; {result.saved}:", *result.where, *how):
            error.add_note(line)

    def at_once(self, error: Interrupted) -> RunInterrupted:
        """A second signal came, or the first one before there was anything to save."""
        # The status first, for the rest may hang.
        if self._status != "FINISHED":
            self._tracking.listener.run_failed(self._trainer.step, self.error or error)
        self._tracking.close(self._status, seconds=ANSWER_SECONDS)
        if not self._told and self._status != "FINISHED":
            self._told = True
            with _tried("a plugin failed at the end of the run"):
                self._components.calls.tell("run_failed", self._trainer.step, error)
        result = self._result((self._tracking.where,))
        return RunInterrupted(result, error, at_once=True)

    def _module(self) -> Module:
        """The module of the run; with several agents, those of all of them."""
        modules = self._components.learner.modules
        if isinstance(self._components.environments, AgentEnvironments):
            return AgentModules(modules)
        return modules[DEFAULT_MODULE]

    def _tell(self, error: BaseException) -> None:
        """Report what happened since the last report, and tell the listeners of the end."""
        with _tried("the last metrics could not be reported"):
            self._trainer.report()
        self._told = True
        with _tried("a plugin failed at the end of the run"):
            self._components.calls.tell("run_failed", self._trainer.step, error)

    def _close(self) -> RunResult:
        if self.periodic is not None:
            with _tried("the weights could not be checked"):
                self.periodic.weights.finite_at(self._trainer.step)
            with _tried("the last checkpoint could not be written"):
                self.periodic.settle()
        if self.profiler is not None:
            with _tried("the profile could not be written"):
                self._profile = self.profiler.close()
        folder = self._tracking.folder
        with _tried(f"no module.safetensors in {folder}"):
            module = self._module()
            save_module(module, folder)
        with self._activities.doing("closing", lambda: self._tracking.left):
            self._tracking.close(self._status)
        return self._result(self._tracking.describe())

    def _result(self, where: tuple[str, ...]) -> RunResult:
        trainer, learner, periodic = self._trainer, self._components.learner, self.periodic
        return RunResult(
            run_id=self._tracking.run_id,
            status=self._status,
            step=trainer.step,
            metrics=trainer.metrics,
            module=self._module(),
            folder=self._tracking.folder,
            checkpoints=_checkpoints(self._tracking.folder),
            stopped=trainer.stopped,
            best=None if periodic is None else periodic.best.best_evaluation,
            nonfinite_step=None if periodic is None else periodic.weights.nonfinite_step,
            engine=_engine(learner),
            where=where,
            lost=self._tracking.lost,
            time_split=trainer.time_split,
            profile=self._profile,
        )


def _engine(learner: Learner) -> str:
    """What computed gradients, and why; of several modules that differ, with their names."""
    told: dict[str, list[str]] = {}
    for module_id, (name, reason) in learner.engines.items():
        trained = learner.can_module_be_updated(module_id)
        told.setdefault(f"{name} ({reason})" if trained else "not trained", []).append(module_id)
    if len(told) < 2:
        return "".join(told)
    return "; ".join(f"{', '.join(ids)}: {said}" for said, ids in told.items())


@contextmanager
def _tried(failure: str) -> Iterator[None]:
    """Warn of what fails, and go on."""
    try:
        yield
    except FAILURES as error:
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        _LOG.warning("rlplug: %s (%s).", failure, reason)


def _checkpoints(folder: Path) -> tuple[int, ...]:
    """The steps of the checkpoints that are on disk."""
    found = checkpoints_in(folder / "checkpoints")
    return tuple(int(one.name.removeprefix("step-")) for one in found)


def _recorded(folder: Path) -> int | None:
    """The last step of which the journal on disk has metrics."""
    try:
        return max((report.step for report in read_journal(folder / "metrics.jsonl")), default=None)
    except OSError:
        return None
