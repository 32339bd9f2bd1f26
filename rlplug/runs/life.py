"""The life of a run: from the first check to the last file, whatever ends it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import attrs

from rlplug.checkpoint import checkpoints_in, lasting_name
from rlplug.checkpoint.trust import sign_options
from rlplug.checkpoint.weights import save_module
from rlplug.envs import EnvMaker
from rlplug.errors import FAILURES, RequestError, RunFailedError
from rlplug.hooks.events import RunInfo
from rlplug.learner import Learner
from rlplug.review.record import Trial
from rlplug.runs.components import Components, make_components
from rlplug.runs.kinds import setup_for
from rlplug.runs.periodic import PeriodicTasks
from rlplug.runs.prepare import Prepared
from rlplug.runs.result import RunInterrupted, RunResult
from rlplug.runs.signals import ANSWER_SECONDS, Interrupted, Interrupts
from rlplug.sampling.watchdog import Watchdog
from rlplug.scale.launcher import place_of_torchrun
from rlplug.seeding import derive, forked
from rlplug.serving.description import write_signature
from rlplug.tracking import Status, Tracking, open_tracking
from rlplug.tracking.console import Console
from rlplug.tracking.journal import read_journal
from rlplug.tracking.provenance import Likeness

if TYPE_CHECKING:
    from rlplug.runs.learners import FirstLearner
    from rlplug.runs.profiler import Profile, Profiler
    from rlplug.runs.resume import Resumed

__all__ = ["Run", "check"]

_LOG = logging.getLogger("rlplug")


def _or_silent(console: Console | None) -> Console:
    return console or Console()


@attrs.define(kw_only=True, eq=False)
class Run:
    """One run, or the rest of one.

    `console` shows how far it is, `listeners` hear its events, and `interrupts` takes the signals
    that end it. `judge` is asked after evaluations why the run is to end, if it is; `trial` is its
    place in a study.
    """

    prepared: Prepared
    env: EnvMaker | None = None
    """None: that of the options."""
    rerunnable: bool = True
    """Whether the recorded options can be run again: all parts are installed."""
    console: Console = attrs.field(converter=_or_silent, default=None)
    resumed: Resumed | None = None
    listeners: Sequence[object] = ()
    interrupts: Interrupts = attrs.field()
    like: Likeness | None = None
    trial: Trial | None = None
    judge: Callable[[Mapping[str, float]], str] | None = None
    _components: Components = attrs.field(init=False)
    _tracking: Tracking | None = attrs.field(init=False, default=None)
    _periodic: PeriodicTasks | None = attrs.field(init=False, default=None)
    _profiler: Profiler | None = attrs.field(init=False, default=None)
    _profile: Profile | None = attrs.field(init=False, default=None)
    _status: Status = attrs.field(init=False, default="KILLED")
    _error: BaseException | None = attrs.field(init=False, default=None)
    """What made the run fail."""
    _told: bool = attrs.field(init=False, default=False)
    """Whether listeners know that it has ended."""

    @interrupts.default
    def _own_interrupts(self) -> Interrupts:
        return Interrupts(notice=not self.console.is_silent)

    def carry_out(self) -> RunResult:
        """Train from the first step to the last file; raises what ended it early."""
        interrupts = self.interrupts
        with interrupts:
            try:
                with ExitStack() as stack:
                    stack.callback(self.console.close)
                    if self.resumed is not None:
                        stack.callback(self.resumed.lock.release)
                    self._make(stack)
                    return self._end_of(stack)
            except KeyboardInterrupt as error:
                # While the run started, or while its environments were closed. Ray makes a plain
                # one of what a handler raises in its calls.
                if type(error) is KeyboardInterrupt and interrupts.at_once:
                    error = interrupts.received()
                if self._tracking is None or not isinstance(error, Interrupted):
                    raise error
                raise self._at_once(error) from self._error

    def _make(self, stack: ExitStack) -> None:
        """Make and check all parts, then record the run: nothing is of one that cannot run."""
        prepared, activities, resumed = self.prepared, self.console.activities, self.resumed
        if resumed is None and prepared.config.run.init_from:
            initial = lasting_name(prepared.config.run.init_from)
            prepared = prepared.with_options(run={"init_from": initial})
        maker = _default_env(prepared) if self.env is None else self.env
        if prepared.config.sampling.backend == "auto":
            from rlplug.runs.backend import with_backend

            with activities.doing("timing the environment"):
                prepared, found = with_backend(prepared, maker)
            self.console.say(found)
        self.prepared, config = prepared, prepared.config
        stack.enter_context(Watchdog(config.sampling.step_timeout))
        # For environments and plugins that draw from them.
        stack.enter_context(forked(derive(config.run.seed, "global")))
        with activities.doing("making environments and modules"):
            first = self._first_of_several(maker, stack)
            more: dict[str, Any] = {}
            if first is not None:
                from rlplug.runs.share import shared

                prepared = shared(prepared, first.ranks.size)
                more = {"ranks": first.ranks, "others": first.gather}
            setup = setup_for(prepared, maker, index=0, several=first is not None)
            self._components = components = make_components(
                setup, self.interrupts, stack, resumed=resumed is not None, **more
            )
            if self.judge is not None:
                components.limits.judge = self.judge
            if resumed is not None:
                resumed.restore(components)
            if first is not None:
                if resumed is None or not resumed.step:
                    first.begin(components, {}, config.run.seed)
                else:
                    first.begin(components, resumed.learners, resumed.seed)
        with activities.doing("opening MLflow"):
            self._tracking = open_tracking(
                config,
                environment=components.environments.name,
                chosen=self.prepared.chosen,
                provenance=self.prepared.provenance(components.calls),
                like=self.like,
                before_creation=self.interrupts.hold,
                trial=self.trial,
                sign=sign_options,
                **({} if resumed is None else resumed.of_tracking()),
            )

    def _first_of_several(self, maker: EnvMaker, stack: ExitStack) -> FirstLearner | None:
        scale = self.prepared.config.scale
        if scale.learners == 1 and scale.engine != "ray" and place_of_torchrun() is None:
            return None
        from rlplug.runs.learners import first_of_several

        several = first_of_several(self.prepared, maker, rerunnable=self.rerunnable)
        return stack.enter_context(several)

    def _end_of(self, stack: ExitStack) -> RunResult:
        """Train, and end the run."""
        interrupts = self.interrupts
        try:
            try:
                self._train(stack)
            except BaseException as error:
                if interrupts.at_once:
                    # Also where other code has made another exception of it.
                    raise interrupts.received() from error
                if isinstance(error, KeyboardInterrupt):
                    raise self._interrupted(error) from None
                self._failed(error)
                raise
            self._status = "FINISHED"
            return self._close()
        except Interrupted as error:
            raise self._at_once(error) from self._error

    def _train(self, stack: ExitStack) -> None:
        """Train, and save what was trained."""
        components, tracking, interrupts = self._components, self._opened, self.interrupts
        calls, trainer, sampler = components.calls, components.trainer, components.sampler
        interrupts.release()
        leagues = components.setup.listeners(sampler)
        calls.listen([tracking.listener, self.console, *leagues, *self.listeners])
        activities = self.console.activities
        self._periodic = periodic = PeriodicTasks(
            self.prepared.config, components, tracking, activities, interrupts.check
        )
        stack.callback(periodic.close)
        interrupts.checkpoint = periodic.save_soon
        if components.ranks is None:
            trainer.periodic = periodic
        else:
            from rlplug.runs.in_step import FirstTasks

            trainer.periodic = FirstTasks(periodic, components.ranks)
        section = self.prepared.config.profiler
        if section.enabled:
            from rlplug.runs.profiler import Profiler

            device = components.learner.device
            self._profiler = trainer.profiler = Profiler(section, tracking.folder, device=device)
        try:
            _write_signature(components, tracking)
            calls.tell("run_started", self._info())
            if self.resumed is None:
                sampler.start()
            else:
                self.resumed.start(components, periodic)
            periodic.weights.finite_at(trainer.step)
            trainer.run()
            tracking.listener.limit = trainer.stopped
            trainer.finish()
            calls.tell("run_finished", trainer.step, trainer.metrics)
        except SystemExit as error:
            failed = RunFailedError(f"the run ended by itself: SystemExit: {error}.")
            for note in getattr(error, "__notes__", ()):
                failed.add_note(note)
            raise failed from error

    def _info(self) -> RunInfo:
        components, tracking, config = self._components, self._opened, self.prepared.config
        trainer = components.trainer
        return RunInfo(
            run_id=tracking.run_id,
            folder=tracking.folder,
            config=config,
            participants=components.calls.participants,
            hook_order=components.calls.order(),
            environment=components.environments.name,
            feed=components.describe_feed(),
            device=str(components.learner.device),
            steps=config.run.steps,
            unit="rows" if config.data.is_used else "steps",
            progress=lambda: trainer.step,
            step=0 if self.resumed is None else self.resumed.step,
            resumed=self.resumed is not None,
            rerunnable=self.rerunnable,
        )

    # -- the end: each thing is tried, and what fails keeps nothing else from being done. A second
    #    signal may cut it short; then `_at_once` does the least.

    def _interrupted(self, error: KeyboardInterrupt) -> RunInterrupted:
        """A signal ended the run between two updates, or other code raised KeyboardInterrupt."""
        # Before the report, which empties the window of metrics.
        if self._periodic is not None and isinstance(error, Interrupted):
            with _tried("no checkpoint could be written"):
                self._periodic.interrupted(self._components.trainer.step)
        self._tell(error)
        return RunInterrupted(self._close(), Interrupted.of(error))

    def _failed(self, error: BaseException) -> None:
        """An exception ended the run; its notes say what is kept."""
        self._status, self._error = "FAILED", error
        self._tell(error)
        result = self._close()
        recorded = None
        with suppress(OSError):
            journal = read_journal(result.folder / "metrics.jsonl")
            recorded = max((report.step for report in journal), default=None)
        kept = "nothing is recorded" if recorded is None else f"recorded up to step {recorded:,}"
        how = [f"resume it: rlplug resume {result.run_id}"] if result.checkpoints else []
        for line in (f"{kept}; {result.saved}:", *result.where, *how):
            error.add_note(line)

    def _at_once(self, error: Interrupted) -> RunInterrupted:
        """A second signal came, or the first one before there was anything to save."""
        tracking, step = self._opened, self._components.trainer.step
        # The status first, for the rest may hang.
        if self._status != "FINISHED":
            tracking.listener.run_failed(step, self._error or error)
        tracking.close(self._status, seconds=ANSWER_SECONDS)
        if not self._told and self._status != "FINISHED":
            self._told = True
            with _tried("a plugin failed at the end of the run"):
                self._components.calls.tell("run_failed", step, error)
        return RunInterrupted(self._result((tracking.where,)), error, at_once=True)

    def _tell(self, error: BaseException) -> None:
        """Report what happened since the last report, and tell the listeners of the end."""
        trainer = self._components.trainer
        with _tried("the last metrics could not be reported"):
            trainer.report()
        self._told = True
        with _tried("a plugin failed at the end of the run"):
            self._components.calls.tell("run_failed", trainer.step, error)

    def _close(self) -> RunResult:
        tracking, periodic = self._opened, self._periodic
        if periodic is not None:
            with _tried("the weights could not be checked"):
                periodic.weights.finite_at(self._components.trainer.step)
            with _tried("the last checkpoint could not be written"):
                periodic.settle()
        if self._profiler is not None:
            with _tried("the profile could not be written"):
                self._profile = self._profiler.close()
        with _tried(f"no module.safetensors in {tracking.folder}"):
            save_module(self._components.module, tracking.folder)
        with self.console.activities.doing("closing", lambda: tracking.left):
            tracking.close(self._status)
        return self._result(tracking.describe())

    def _result(self, where: tuple[str, ...]) -> RunResult:
        components, tracking, periodic = self._components, self._opened, self._periodic
        trainer = components.trainer
        found = checkpoints_in(tracking.folder / "checkpoints")
        return RunResult(
            run_id=tracking.run_id,
            status=self._status,
            step=trainer.step,
            metrics=trainer.metrics,
            module=components.module,
            folder=tracking.folder,
            checkpoints=tuple(int(one.name.removeprefix("step-")) for one in found),
            stopped=trainer.stopped,
            best=None if periodic is None else periodic.best.best_evaluation,
            nonfinite_step=None if periodic is None else periodic.weights.nonfinite_step,
            nonfinite_updates=trainer.nonfinite_updates,
            engine=_engine(components.learner),
            where=where,
            lost=tracking.lost,
            time_split=trainer.time_split,
            profile=self._profile,
        )

    @property
    def _opened(self) -> Tracking:
        assert self._tracking is not None
        return self._tracking


def check(prepared: Prepared) -> str:
    """Check all that can fail before the first step; returns a description of the feed."""
    with Interrupts() as interrupts, ExitStack() as stack:
        setup = setup_for(prepared, _default_env(prepared))
        return make_components(setup, interrupts, stack).feed.describe()


def _default_env(prepared: Prepared) -> str:
    config = prepared.config
    # Without one, a log has the spaces.
    if not (config.run.env or config.data.is_used):
        raise RequestError(
            f"{prepared.algorithm.label} has no default environment.", "try: --env ID"
        )
    return config.run.env


def _write_signature(components: Components, tracking: Tracking) -> None:
    """Write what the models of the run have in common; without it, they are not in MLflow."""
    environments = components.environments
    # The disk is full, or the folder was deleted: what follows says so.
    with suppress(OSError):
        write_signature(
            tracking.folder,
            environments.vector.single_observation_space,
            environments.action_space,
            frame_stack=environments.frame_stack,
            distributions=[one.found.distribution for one in components.calls.participants],
        )


def _engine(learner: Learner) -> str:
    """What computed gradients, and why; of several modules that differ, with their names."""
    modules: dict[str, list[str]] = {}
    for module_id, (name, reason) in learner.engines.items():
        trained = learner.can_module_be_updated(module_id)
        modules.setdefault(f"{name} ({reason})" if trained else "not trained", []).append(module_id)
    if len(modules) < 2:
        return "".join(modules)
    return "; ".join(f"{', '.join(ids)}: {said}" for said, ids in modules.items())


@contextmanager
def _tried(failure: str) -> Iterator[None]:
    """Warn of what fails, and go on."""
    try:
        yield
    except FAILURES as error:
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        _LOG.warning("rlplug: %s (%s).", failure, reason)
