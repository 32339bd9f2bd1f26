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
from rlplug.config.secrets import MASK
from rlplug.config.toml import flat
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
from rlplug.scale.launcher import place_of_torchrun
from rlplug.seeding import derive, forked
from rlplug.serving.description import write_signature
from rlplug.tracking import Status, Tracking, open_tracking
from rlplug.tracking.console import Console
from rlplug.tracking.journal import read_journal
from rlplug.tracking.provenance import Likeness

if TYPE_CHECKING:
    from rlplug.runs.learners import FirstLearner
    from rlplug.runs.profiler import Profiler
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
        # A signal may come while parts are closed, too.
        with self.interrupts, self._ended_by_signals(), ExitStack() as stack:
            stack.callback(self.console.close)
            if self.resumed is not None:
                stack.callback(self.resumed.lock.release)
            with self._ended_by_signals():
                self._make(stack)
                return self._train_and_close(stack)

    @contextmanager
    def _ended_by_signals(self) -> Iterator[None]:
        """End the run at once by a signal that was not deferred."""
        try:
            yield
        except RunInterrupted:
            raise
        except KeyboardInterrupt as error:
            # Ray makes a plain one of what a handler raises in its calls.
            ended = self.interrupts.received() if self.interrupts.at_once else error
            if self._tracking is None or not isinstance(ended, Interrupted):
                raise ended from None
            raise self._at_once(ended) from self._error

    def _make(self, stack: ExitStack) -> None:
        """Make and check all parts, then record the run: nothing is of one that cannot run."""
        resumed, activities = self.resumed, self.console.activities
        initial = self.prepared.config.run.init_from
        if resumed is None and initial:
            self.prepared = self.prepared.with_options(run={"init_from": lasting_name(initial)})
        prepared, config = self.prepared, self.prepared.config
        maker = _maker(prepared) if self.env is None else self.env
        # For environments and plugins that draw from them.
        stack.enter_context(forked(derive(config.run.seed, "global")))
        with activities.doing("making environments and modules"):
            first = self._first_of_several(maker, stack)
            more: dict[str, Any] = {} if self.judge is None else {"judge": self.judge}
            if first is not None:
                from rlplug.runs.in_step import shared

                prepared = shared(prepared, first.ranks.size)
                more |= {"ranks": first.ranks, "others": first.gather}
            source = None if resumed is None else resumed.checkpoint
            setup = setup_for(prepared, maker, source=source, index=0, several=first is not None)
            self._components = components = make_components(
                setup, self.interrupts, stack, resumed=resumed is not None, **more
            )
            if resumed is not None:
                resumed.restore(components)
            if first is not None:
                if resumed is not None and resumed.step:
                    first.begin(components, resumed.learners, resumed.seed)
                else:
                    first.begin(components, {}, config.run.seed)
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
        if resumed is not None and resumed.is_own:
            # With the options that were changed.
            sign_options(self._tracking.folder)

    def _first_of_several(self, maker: EnvMaker, stack: ExitStack) -> FirstLearner | None:
        scale = self.prepared.config.scale
        if scale.learners == 1 and scale.engine != "ray" and place_of_torchrun() is None:
            return None
        from rlplug.runs.learners import first_of_several

        several = first_of_several(self.prepared, maker, rerunnable=self.rerunnable)
        return stack.enter_context(several)

    def _train_and_close(self, stack: ExitStack) -> RunResult:
        try:
            self._train(stack)
        except BaseException as error:
            if self.interrupts.at_once:
                # Also where other code has made another exception of it.
                raise self.interrupts.received() from error
            if isinstance(error, KeyboardInterrupt):
                raise self._interrupted(error) from None
            self._failed(error)
            raise
        self._status = "FINISHED"
        return self._close()

    def _train(self, stack: ExitStack) -> None:
        """Train, and save what was trained."""
        components, tracking, interrupts = self._components, self._opened, self.interrupts
        calls, trainer, sampler = components.calls, components.trainer, components.sampler
        interrupts.release()
        calls.listen([tracking.listener, self.console, *self.listeners])
        activities, config = self.console.activities, self.prepared.config
        self._periodic = periodic = PeriodicTasks(
            config, components, tracking, activities, interrupts.check
        )
        stack.callback(periodic.close)
        interrupts.checkpoint = periodic.save_soon
        if components.ranks is None:
            trainer.periodic = periodic
        else:
            from rlplug.runs.in_step import FirstTasks

            trainer.periodic = FirstTasks(periodic, components.ranks)
        if config.profiler.enabled:
            from rlplug.runs.profiler import Profiler

            device = components.learner.device
            self._profiler = Profiler(config.profiler, tracking.folder, device=device)
            trainer.profiler = self._profiler
        try:
            _write_signature(components, tracking)
            calls.tell("run_started", self._info())
            if self.resumed is None:
                sampler.start()
            else:
                self.resumed.start(components, periodic)
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
        result, recorded = self._close(), -1
        with suppress(OSError):
            journal = read_journal(result.folder / "metrics.jsonl")
            recorded = max((report.step for report in journal), default=-1)
        kept = "nothing is recorded" if recorded < 0 else f"recorded up to step {recorded:,}"
        how = [f"next: rlplug resume {result.run_id}"] if result.checkpoints else []
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
            self._tell_of_end(error)
        return RunInterrupted(self._result((tracking.where,)), error, at_once=True)

    def _tell(self, error: BaseException) -> None:
        """Report what happened since the last report, and tell the listeners of the end."""
        with _tried("the last metrics could not be reported"):
            self._components.trainer.report()
        self._tell_of_end(error)

    def _tell_of_end(self, error: BaseException) -> None:
        self._told = True
        with _tried("a plugin failed at the end of the run"):
            self._components.calls.tell("run_failed", self._components.trainer.step, error)

    def _close(self) -> RunResult:
        tracking, periodic = self._opened, self._periodic
        if periodic is not None:
            with _tried("the weights could not be checked"):
                periodic.divergence.finite_at(self._components.trainer.step)
            with _tried("the last checkpoint could not be written"):
                periodic.settle()
        if self._profiler is not None:
            with _tried("the profile could not be written"):
                self._profiler.close()
        with _tried(f"no module.safetensors in {tracking.folder}"):
            save_module(self._components.module, tracking.folder)
        with self.console.activities.doing("closing", lambda: tracking.left):
            tracking.close(self._status)
        return self._result(tracking.describe())

    def _result(self, where: tuple[str, ...]) -> RunResult:
        components, tracking, periodic = self._components, self._opened, self._periodic
        trainer = components.trainer
        checkpoints = checkpoints_in(tracking.folder / "checkpoints")
        return RunResult(
            run_id=tracking.run_id,
            status=self._status,
            step=trainer.step,
            metrics=trainer.metrics,
            module=components.module,
            folder=tracking.folder,
            checkpoints=tuple(int(path.name.removeprefix("step-")) for path in checkpoints),
            stopped=trainer.stopped,
            best=None if periodic is None else periodic.best.best_evaluation,
            nonfinite_step=None if periodic is None else periodic.divergence.nonfinite_step,
            nonfinite_updates=trainer.nonfinite_updates,
            engine=_engine(components.learner),
            where=where,
            lost=tracking.lost,
            time_split=trainer.time_split,
            profile=() if self._profiler is None else tuple(self._profiler.files),
        )

    @property
    def _opened(self) -> Tracking:
        assert self._tracking is not None
        return self._tracking


def check(prepared: Prepared) -> str:
    """Check all that can fail before the first step; returns a description of the feed."""
    with Interrupts() as interrupts, ExitStack() as stack:
        setup = setup_for(prepared, _maker(prepared))
        return make_components(setup, interrupts, stack).feed.describe()


def _maker(prepared: Prepared) -> str:
    """The id of the environment; options that can be used are all there is to make it."""
    config = prepared.config
    for name, value in flat(config.env.arguments).items():
        if MASK in str(value):
            raise RequestError(
                f"the secret in env.{name} was not recorded.", f"try: --set env.{name}=VALUE"
            )
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
            encoder=environments.encoder,
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
