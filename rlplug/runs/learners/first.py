"""The first learner of a run: starts the others, gives them their state, and gathers it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from rlplug.config.scale_section import ScaleSection
from rlplug.envs import EnvMaker
from rlplug.errors import RequestError, RunFailedError
from rlplug.runs.components import Components
from rlplug.runs.league import roster_of
from rlplug.runs.learners.actor import LearnerActor
from rlplug.runs.learners.share import refuse_unfit
from rlplug.runs.prepare import Prepared
from rlplug.runs.rebuilding import job_of
from rlplug.runs.result import RunInterrupted
from rlplug.scale.cluster import connected
from rlplug.scale.launcher import Place, place_of_torchrun
from rlplug.scale.learner_actors import LearnerActors
from rlplug.scale.ranks import Ranks, differences, lead

__all__ = ["FirstLearner", "first_of_several"]


class FirstLearner:
    """What the first learner does for the others, besides its own share."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._digests: Callable[[], dict[str, str]] = dict

    def call(self, prepared: Prepared, maker: EnvMaker) -> None:
        """Tell the others what to run; they make their parts while this process makes its own."""
        self.ranks.tell(job_of(prepared, maker))

    def begin(self, components: Components, saved: Mapping[str, Any], seed: int) -> None:
        """Give all the same state to start from, or raise what is wrong with any of them.

        `saved` is what `gather` gave for a checkpoint; `seed` that of episodes that start anew.
        """
        problems = self.ranks.gather("")
        told = [f"learner {index}: {one}" for index, one in enumerate(problems) if one]
        if told:
            raise RequestError("\n".join(told))
        self._digests = components.learner.weight_digests
        normalization = components.environments.normalization
        roster = roster_of(components.sampler)
        common = {
            "learner": components.learner.get_state(),
            "normalization": None if normalization is None else normalization.get_state(),
            "trainer": components.trainer.get_state(),
            "limits": components.limits.get_state(),
            "league": None if roster is None else roster.get_state(),
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
    prepared: Prepared,
    maker: EnvMaker,
    *,
    rerunnable: bool,
) -> Iterator[FirstLearner | None]:
    """The first learner, with the others started; None where there is one alone."""
    place = place_of_torchrun()
    learners = prepared.config.scale.learners
    if place is not None and place.size != learners:
        raise RequestError(
            f"torchrun started {place.size} processes, but scale.learners = {learners}.",
            f"try: --set scale.learners={place.size}, with --allow-drift for a run that goes on",
        )
    if learners == 1:
        yield None
        return
    refuse_unfit(prepared, maker, rerunnable=rerunnable)
    with ExitStack() as stack:
        actors = None
        if prepared.config.scale.engine == "ray":
            actors = _actors(prepared.config.scale, place, stack)
        ranks = lead(learners, place, actors)
        with _leading(ranks, prepared, maker) as first:
            yield first


def _actors(section: ScaleSection, place: Place | None, stack: ExitStack) -> LearnerActors:
    """The other learners as actors on the cluster of the run."""
    if place is not None:
        raise RequestError(
            "torchrun and Ray would both start learners.",
            f"try: rlplug run --scale ray --learners {section.learners}, without torchrun",
        )
    ray = stack.enter_context(connected(section))
    return LearnerActors(ray, section, LearnerActor, [] if section.address else sys.path)


@contextmanager
def _leading(ranks: Ranks, prepared: Prepared, maker: EnvMaker) -> Iterator[FirstLearner]:
    in_order = False
    try:
        first = FirstLearner(ranks)
        first.call(prepared, maker)
        yield first
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
