"""One run with several learners, each in a process of its own: the first one, and the others."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from rlplug.envs import EnvMaker
from rlplug.errors import RequestError, RunFailedError, described
from rlplug.runs.components import Components, make_components
from rlplug.runs.in_step import refuse_unfit, shared
from rlplug.runs.kinds import setup_for
from rlplug.runs.prepare import Prepared
from rlplug.runs.rebuilding import job_of, rebuilt
from rlplug.runs.result import RunInterrupted
from rlplug.runs.signals import Interrupted, Interrupts
from rlplug.scale.cluster import connected
from rlplug.scale.launcher import Place, place_of_torchrun
from rlplug.scale.learner_actors import LearnerActors
from rlplug.scale.ranks import Ranks, differences, is_broken_connection, join, lead
from rlplug.seeding import derive, forked

__all__ = ["FirstLearner", "LearnerActor", "first_of_several", "follow"]


class FirstLearner:
    """What the first learner does for the others, besides its own share."""

    def __init__(self, ranks: Ranks, prepared: Prepared, maker: EnvMaker) -> None:
        self.ranks = ranks
        self._digests: Callable[[], dict[str, str]] = dict
        # They make their parts while this process makes its own.
        ranks.tell(job_of(prepared, maker))

    def begin(self, components: Components, saved: Mapping[str, Any], seed: int) -> None:
        """Give all the same state to start from, or raise what is wrong with any of them.

        `saved` is what `gather` gave for a checkpoint; `seed` that of episodes that start anew.
        """
        problems = enumerate(self.ranks.gather(""))
        told = [f"learner {index}: {one}" for index, one in problems if one]
        if told:
            raise RequestError("\n".join(told))
        self._digests = components.learner.weight_digests
        normalization = components.environments.normalization
        common = {
            "learner": components.learner.get_state(),
            "normalization": {} if normalization is None else normalization.get_state(),
            "counts": components.get_counts(),
            "seed": seed,
        }
        own: list[Any] = [None] * self.ranks.size
        if saved.get("size") == self.ranks.size:
            own[1:] = saved["states"]
        self.ranks.give([{**common, "own": one} for one in own])

    def gather(self) -> dict[str, Any]:
        """What each of the other learners needs to go on, for a checkpoint."""
        self.ranks.tell(("state", None))
        digests = self._digests()
        others = self.ranks.collect(None)[1:]
        different = differences([digests, *(one.pop("digests") for one in others)])
        if different is not None:
            index, name = different
            raise RunFailedError(
                f"the weights of learner {index} are no longer those of learner 0: {name}.",
                "a plugin changes them by what each learner sees alone: it must combine that with "
                "learner.all_reduce (see docs/scale.md)",
            )
        return {"size": self.ranks.size, "states": others}


@contextmanager
def first_of_several(
    prepared: Prepared, maker: EnvMaker, *, rerunnable: bool
) -> Iterator[FirstLearner | None]:
    """The first learner, with the others started; None where there is one alone."""
    place, scale = place_of_torchrun(), prepared.config.scale
    if place is not None and place.size != scale.learners:
        raise RequestError(
            f"torchrun started {place.size} processes, but scale.learners = {scale.learners}.",
            f"try: --set scale.learners={place.size}, with --allow-drift for a run that goes on",
        )
    if scale.learners > 1 or scale.engine == "ray":
        refuse_unfit(prepared, maker, rerunnable=rerunnable)
    if scale.learners == 1:
        yield None
        return
    if place is not None and scale.engine == "ray":
        raise RequestError(
            "torchrun and Ray would both start learners.",
            f"try: rlplug run --scale ray --learners {scale.learners}, without torchrun",
        )
    with ExitStack() as stack:
        actors = None
        if scale.engine == "ray":
            ray = stack.enter_context(connected(scale))
            actors = LearnerActors(ray, scale, LearnerActor, [] if scale.address else sys.path)
        ranks, in_order = lead(scale.learners, place, actors), False
        try:
            yield FirstLearner(ranks, prepared, maker)
            in_order = True
        except RunInterrupted as error:
            in_order = not error.at_once
            raise
        finally:
            if in_order:
                # One that died meanwhile takes nothing from a run that is saved.
                with suppress(RuntimeError):
                    ranks.tell(("end", None))
            ranks.close(in_order=in_order)


class LearnerActor:
    """Takes part in a run as any other learner but the first does, in the process of an actor."""

    def follow(self, place: Mapping[str, Any], path: Sequence[str]) -> int:
        """Take part until the first learner ends the run; returns the exit code."""
        # On the machine of the run, what its process finds is found in the same place.
        sys.path.extend(one for one in path if one not in sys.path)
        return follow(Place(**place))


def follow(place: Place) -> int:
    """Take part in a run until the first learner ends it; returns the exit code."""
    # They end a run by way of the first learner, and may have been sent to all.
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    ranks = join(place)
    try:
        _take_part(ranks)
    except _RunEndedError:
        ranks.close(in_order=True)
    except BaseException as error:
        broken = is_broken_connection(error)
        ranks.failed("" if broken else described(error))
        if "--debug" in sys.argv and not broken:
            raise
        return 0 if broken and place.by_torchrun else 1
    return 0


def _take_part(ranks: Ranks) -> None:
    job = ranks.tell()
    with ExitStack() as stack:
        try:
            prepared = shared(rebuilt(job), ranks.size)
            seed, index = prepared.config.run.seed, ranks.index
            stack.enter_context(forked(derive(seed, "global", index)))
            setup = setup_for(prepared, job["env"], index=index, several=True)
            with _quiet():
                # The state comes from the first one, also where a run begins from other weights.
                components = make_components(setup, Interrupts(), stack, resumed=True, ranks=ranks)
            components.calls.mute()
        except Exception as error:
            ranks.gather(described(error))
            raise
        ranks.gather("")
        trainer = components.trainer
        trainer.periodic = tasks = _Tasks(ranks, components)
        tasks.start(ranks.give())
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

    def __init__(self, ranks: Ranks, components: Components) -> None:
        self._ranks, self._components = ranks, components

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
        made, section = self._components, self._components.setup.config.checkpoint
        whole = made.feed.rows is None or section.save_replay
        normalization = made.environments.normalization
        return {
            "digests": made.learner.weight_digests(),
            "generators": made.learner.get_generators(),
            "sampler": made.sampler.get_state(environments=section.save_environments),
            "feed": made.feed.get_state() if whole else made.feed.get_state_without_rows(),
            "whole": whole,
            "normalization": {} if normalization is None else normalization.get_state(),
        }

    def start(self, told: Mapping[str, Any]) -> None:
        """Start where the first learner does, with what was saved of this one."""
        made, own = self._components, told["own"]
        learner, normalization = made.learner, made.environments.normalization
        generators = learner.get_generators()
        made.set_common(told["learner"], told["normalization"], told["counts"])
        learner.set_generators({**learner.get_generators(), "random": generators["random"]})
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
        learner.set_generators(own["generators"])


@contextmanager
def _quiet() -> Iterator[None]:
    """What all learners would say alike, the first one says."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
