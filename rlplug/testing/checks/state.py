"""Checks that what is saved is all there is."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path

from rlplug.testing.bench import Bench, bench_of
from rlplug.testing.comparing import first_difference
from rlplug.testing.report import CheckFailed, place
from rlplug.testing.subject import Subject

__all__ = ["check_state_is_complete", "check_state_survives_a_file"]

_KEPT = ("save_state", "build", "build_extra")


def check_state_is_complete(subject: Subject) -> None:
    """To go on after loading into a fresh learner is to go on, bit for bit."""
    here, there = _halfway(subject)
    there.learner.set_state(here.learner.get_state())
    _check_goes_on(subject, here, there, "get_state and set_state")


def check_state_survives_a_file(subject: Subject) -> None:
    """The same through files, which take tensors, numbers and texts only."""
    here, there = _halfway(subject)
    with tempfile.TemporaryDirectory(prefix="rlplug-check-") as folder:
        here.learner.save_state(Path(folder))
        there.learner.load_state(Path(folder))
    _check_goes_on(subject, here, there, "save_state and load_state")


def _halfway(subject: Subject) -> tuple[Bench, Bench]:
    """A learner in mid-life, and another of another seed that has had a life of its own."""
    here, there = bench_of(subject, seed=0), bench_of(subject, seed=1)
    here.live(7)
    there.live(3)
    there.timestep = here.timestep
    return here, there


def _check_goes_on(subject: Subject, here: Bench, there: Bench, how: str) -> None:
    looked_for = f"two learners that are the same after {how}"
    where = place(subject.kind, *_KEPT) + ": keep it in buffers, or in save_state and load_state"
    difference = first_difference(here.state(), there.state())
    if difference is not None:
        raise CheckFailed(looked_for, f"at once: {difference}", where)
    # Both go on from the same global generators: those are part of the saved state.
    there.draws = copy.deepcopy(here.draws)
    there.players = {
        name: player.twin(there.learner.modules[name]) for name, player in here.players.items()
    }
    for update in range(1, 13):
        here.live(1)
        there.live(1)
        difference = first_difference(here.state(), there.state())
        if difference is not None:
            raise CheckFailed(looked_for, f"{update} updates later: {difference}", where)
