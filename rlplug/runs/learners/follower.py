"""Every learner of a run but the first: samples, learns, and does what the first one says."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from typing import Any

from rlplug.errors import RlplugError
from rlplug.runs.components import Components, make_components
from rlplug.runs.league import roster_of
from rlplug.runs.prepare import Prepared
from rlplug.runs.rebuilding import rebuilt
from rlplug.runs.signals import Interrupted, Interrupts
from rlplug.sampling.watchdog import Watchdog
from rlplug.scale.launcher import Place
from rlplug.scale.ranks import Ranks, is_broken_connection, join
from rlplug.seeding import derive, forked

__all__ = ["follow"]

_FIRST_ONES_ENDS = ("SIGINT", "SIGTERM", "SIGHUP")
"""Signals that end a run by way of the first learner, which may have been sent to all."""


def follow(place: Place) -> int:
    """Take part in a run until the first learner ends it; returns the exit code."""
    for name in (*_FIRST_ONES_ENDS, "SIGUSR1"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    ranks = join(place)
    try:
        _take_part(ranks)
    except _RunEndedError:
        ranks.close(in_order=True)
        return 0
    except BaseException as error:
        broken = is_broken_connection(error)
        ranks.failed("" if broken else _described(error))
        if "--debug" in sys.argv and not broken:
            raise
        return 0 if broken and place.by_torchrun else 1
    return 0


def _take_part(ranks: Ranks) -> None:
    job = ranks.tell()
    with ExitStack() as stack:
        try:
            prepared = rebuilt(job)
            seed, index = prepared.config.run.seed, ranks.index
            stack.enter_context(Watchdog(prepared.config.sampling.step_timeout))
            stack.enter_context(forked(derive(seed, "global", index)))
            with _quiet():
                # The state comes from the first one, also where a run begins from other weights.
                components = make_components(
                    prepared, job["env"], Interrupts(), stack, resumed=True, ranks=ranks
                )
            components.calls.mute()
        except Exception as error:
            ranks.gather(_described(error))
            raise
        ranks.gather("")
        tasks = _Tasks(ranks, prepared, components)
        tasks.start(ranks.give())
        trainer = components.trainer
        trainer.periodic = tasks
        try:
            trainer.run()
            trainer.finish()
        except Interrupted:
            ranks.in_step = False
        while True:
            tasks.serve()


class _RunEndedError(Exception):
    """The first learner has ended the run."""


class _Tasks:
    """What is due at certain steps: all that the first learner wants to know."""

    evaluate_seconds = 0.0

    def __init__(self, ranks: Ranks, prepared: Prepared, components: Components) -> None:
        self._ranks = ranks
        self._config = prepared.config
        self._components = components

    @property
    def due(self) -> int:
        """The step from which on the first learner has something to do."""
        return self._ranks.due

    @due.setter
    def due(self, step: int) -> None:
        """Only the first learner's counts."""

    def reached(self, step: int, metrics: MutableMapping[str, float]) -> str:
        """Wait until the first learner has done what is due."""
        return self.serve()

    def finish(self, step: int, metrics: MutableMapping[str, float]) -> None:
        """The same at the end."""
        self.serve()

    def record_phases(self, record: Callable[[str, Any], Any]) -> None:
        """There is nothing to profile."""

    def serve(self) -> str:
        """Answer the first learner until it is done; returns why the run stops, if it does."""
        while True:
            wanted, told = self._ranks.tell()
            if wanted == "end":
                raise _RunEndedError
            if wanted == "done":
                reason, evaluation = told
                if evaluation:
                    self._components.learner.optimizers.metrics_reported(evaluation)
                return str(reason)
            self._ranks.collect(self._state())

    def _state(self) -> dict[str, Any]:
        section, made = self._config.checkpoint, self._components
        feed = made.feed
        whole = feed.rows is None or section.save_replay
        return {
            "digests": made.learner.weight_digests(),
            "generators": made.learner.get_generators(),
            "sampler": made.sampler.get_state(environments=section.save_environments),
            "feed": feed.get_state() if whole else feed.get_state_without_rows(),
            "whole": whole,
            "normalization": self._normalization(),
        }

    def _normalization(self) -> dict[str, Any]:
        normalization = self._components.environments.normalization
        return {} if normalization is None else normalization.get_state()

    def start(self, told: Mapping[str, Any]) -> None:
        """Start where the first learner does, with what was saved of this one."""
        made, own = self._components, told["own"]
        generators = made.learner.get_generators()
        made.learner.set_state(told["learner"])
        made.learner.set_generators(
            {**made.learner.get_generators(), "random": generators["random"]}
        )
        made.trainer.set_state(told["trainer"])
        made.limits.set_state(told["limits"])
        normalization = made.environments.normalization
        if normalization is not None:
            normalization.set_state(told["normalization"])
        roster = roster_of(made.sampler)
        if roster is not None:
            roster.set_state(told["league"])
        if own is None:
            made.sampler.start(told["seed"])
            return
        if normalization is not None:
            # The running returns of its own environments; the rest is the same for all.
            normalization.set_state(own["normalization"])
        made.sampler.set_state(own["sampler"], seed=told["seed"])
        if own["whole"]:
            made.feed.set_state(own["feed"])
        else:
            made.feed.set_state_without_rows(own["feed"], empty=True)
        made.learner.set_generators(own["generators"])


def _described(error: BaseException) -> str:
    if isinstance(error, RlplugError):
        return str(error)
    return f"{type(error).__name__}: {error}"


@contextmanager
def _quiet() -> Iterator[None]:
    """What all learners would say alike, the first one says."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
