"""Checks of seeds and saved state: the same start gives the same numbers."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path

import torch

from rlplug.testing.child_process import run_in_child_process, weights_digest
from rlplug.testing.comparison import require_equal
from rlplug.testing.harness import Harness, changed_generators, make_harness
from rlplug.testing.report import CheckFailed, location
from rlplug.testing.subject import Subject

__all__ = [
    "check_another_process_gives_the_same_numbers",
    "check_generators_of_others_stay",
    "check_instances_do_not_meet",
    "check_same_seed_same_numbers",
    "check_seed_is_used",
    "check_state_is_complete",
    "check_state_survives_a_file",
]

UPDATES = 50
_RANDOM_IF_DISTINCT = 8
"""Initial weights with at least this many distinct values count as drawn at random."""


def check_state_is_complete(subject: Subject) -> None:
    """Training that continues in a new learner, from the loaded state, is the same bit for bit."""
    saved, loaded = _two_learners(subject)
    loaded.learner.set_state(saved.learner.get_state())
    _check_continues(subject, saved, loaded, "get_state and set_state")


def check_state_survives_a_file(subject: Subject) -> None:
    """The same through files, which hold tensors, numbers and texts only."""
    saved, loaded = _two_learners(subject)
    with tempfile.TemporaryDirectory(prefix="rlplug-check-") as folder:
        saved.learner.save_state(Path(folder))
        loaded.learner.load_state(Path(folder))
    _check_continues(subject, saved, loaded, "save_state and load_state")


def check_same_seed_same_numbers(subject: Subject) -> None:
    """Fifty updates from the same seed give the same weights, bit for bit."""
    first, second = make_harness(subject, seed=5), make_harness(subject, seed=5)
    for harness in (first, second):
        harness.train(UPDATES, steps=2)
    require_equal(
        first.weights(),
        second.weights(),
        f"the same weights after {UPDATES} updates from the same seed",
        location(subject.kind, "build", "additional_update")
        + ": look for time, hashes, sets, and generators without a seed",
    )


def check_seed_is_used(subject: Subject) -> None:
    """Another seed gives other initial weights, where they are drawn at random."""
    one, other = (make_harness(subject, seed=seed) for seed in (5, 6))
    others = other.parameters()
    for name, param in one.parameters().items():
        random = len(torch.unique(param.detach())) >= _RANDOM_IF_DISTINCT
        if random and torch.equal(param, others[name]):
            raise CheckFailed(
                "other initial weights for another seed",
                f"{name!r} is the same for two seeds, with {param.numel()} values",
                location(subject.kind, "build", "build_extra")
                + ": do not seed generators in it; the core has seeded them, or use `seed`",
            )


def check_instances_do_not_meet(subject: Subject) -> None:
    """Two instances that learn in turns learn the same weights as each would alone."""
    alone = make_harness(subject, seed=5)
    alone.train(10)
    one, other = make_harness(subject, seed=5), make_harness(subject, seed=6)
    for _ in range(10):
        one.train(1)
        other.train(1)
    require_equal(
        alone.weights(),
        one.weights(),
        "the same weights with and without a second instance",
        location(subject.kind) + ": look for class attributes and globals that it writes to",
    )


def check_generators_of_others_stay(subject: Subject) -> None:
    """Construction and updates seed no global generator, and draw from torch's alone."""
    with changed_generators() as changed:
        plugin = subject.participant().plugin
        if not subject.is_addon:
            plugin.feed()
            case = subject.case()
            plugin.supports(case.observation_space, case.action_space)
    if changed:
        raise CheckFailed(
            "no random numbers drawn in the constructor, feed() and supports()",
            f"drawn from or seeded: {', '.join(changed)}",
            location(subject.kind, "__init__", "feed", "supports"),
        )
    harness = make_harness(subject)
    batches = [harness.collect() for _ in range(3)]
    with harness.generators():
        for batch in batches:
            harness.timestep += sum(part.rows for part in batch.values())
            with changed_generators() as changed:
                harness.learner.update(batch, timestep=harness.timestep)
            # Dropout and sampled actions draw from torch's generator, which checkpoints hold.
            if foreign := [name for name in changed if name != "torch"]:
                raise CheckFailed(
                    "updates that draw from torch's global generator alone",
                    f"drawn from or seeded: {', '.join(foreign)}",
                    location(subject.kind, "compute_loss_for_module", "additional_update"),
                )


def check_another_process_gives_the_same_numbers(subject: Subject) -> None:
    """A child process that gets the plugin's name and options learns the same weights."""
    there = run_in_child_process(subject)["digest"]
    here = weights_digest(subject)
    if here != there:
        raise CheckFailed(
            "the same weights in a spawned process",
            f"digests {here[:12]} and {there[:12]}",
            location(subject.kind, "build") + ": look for the order of sets, hash(), ids, time",
        )


def _two_learners(subject: Subject) -> tuple[Harness, Harness]:
    """Two learners of different seeds, after different numbers of updates."""
    saved, loaded = make_harness(subject, seed=0), make_harness(subject, seed=1)
    saved.train(7)
    loaded.train(3)
    loaded.timestep = saved.timestep
    return saved, loaded


def _check_continues(subject: Subject, saved: Harness, loaded: Harness, how: str) -> None:
    looked_for = f"two learners that are the same after {how}"
    where = location(subject.kind, "save_state", "build", "build_extra")
    where += ": keep it in buffers, or in save_state and load_state"
    require_equal(saved.state(), loaded.state(), looked_for, where, found="at once: ")
    # Both continue from the same global generators: those are part of the saved state.
    loaded.generators = copy.deepcopy(saved.generators)
    loaded.collectors = {
        name: collector.copy_for(loaded.learner.modules[name])
        for name, collector in saved.collectors.items()
    }
    for update in range(1, 13):
        saved.train(1)
        loaded.train(1)
        found = f"{update} updates later: "
        require_equal(saved.state(), loaded.state(), looked_for, where, found=found)
