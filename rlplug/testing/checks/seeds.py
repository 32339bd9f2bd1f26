"""Checks of randomness: the same seed gives the same numbers, and another one others."""

from __future__ import annotations

import torch

from rlplug.testing.bench import bench_of
from rlplug.testing.child import fingerprint, report_of
from rlplug.testing.comparing import first_difference
from rlplug.testing.draws import moved_generators
from rlplug.testing.report import CheckFailed, place
from rlplug.testing.subject import Subject

__all__ = [
    "check_another_process_gives_the_same_numbers",
    "check_generators_of_others_stay",
    "check_instances_do_not_meet",
    "check_same_seed_same_numbers",
    "check_seed_is_used",
]

UPDATES = 50
_MANY = 8
"""Different values from which on initial weights are taken for drawn at random."""


def check_same_seed_same_numbers(subject: Subject) -> None:
    """Fifty updates from the same seed leave the same weights, bit for bit."""
    states = []
    for _ in range(2):
        bench = bench_of(subject, seed=5)
        bench.live(UPDATES, steps=2)
        states.append(bench.weights())
    difference = first_difference(*states)
    if difference is not None:
        raise CheckFailed(
            f"the same weights after {UPDATES} updates from the same seed",
            difference,
            place(subject.kind, "build", "additional_update")
            + ": look for time, hashes, sets, and generators that nobody seeds",
        )


def check_seed_is_used(subject: Subject) -> None:
    """Weights that are drawn at random are others for another seed."""
    one, other = (bench_of(subject, seed=seed) for seed in (5, 6))
    others = other.parameters()
    for name, param in one.parameters().items():
        drawn = len(torch.unique(param.detach())) >= _MANY
        if drawn and torch.equal(param, others[name]):
            raise CheckFailed(
                "other initial weights for another seed",
                f"{name!r} is the same for two seeds, with {param.numel()} values",
                place(subject.kind, "build", "build_extra")
                + ": do not seed generators in it; the core has seeded them, or use `seed`",
            )


def check_instances_do_not_meet(subject: Subject) -> None:
    """Two instances that learn in turns learn what each would have learned alone."""
    alone = bench_of(subject, seed=5)
    alone.live(10)
    one, other = bench_of(subject, seed=5), bench_of(subject, seed=6)
    for _ in range(10):
        one.live(1)
        other.live(1)
    difference = first_difference(alone.weights(), one.weights())
    if difference is not None:
        raise CheckFailed(
            "the same weights whether or not a second instance learns beside it",
            difference,
            place(subject.kind) + ": look for class attributes and globals that it writes to",
        )


def check_generators_of_others_stay(subject: Subject) -> None:
    """Making and updating seed no global generator, and draw from torch's alone."""
    with moved_generators() as moved:
        plugin = subject.participant().plugin
        if not subject.is_addon:
            plugin.feed()
            case = subject.case()
            plugin.supports(case.observation_space, case.action_space)
    if moved:
        raise CheckFailed(
            "options and descriptions that draw nothing",
            f"moved: {', '.join(moved)}",
            place(subject.kind, "__init__", "feed", "supports"),
        )
    bench = bench_of(subject)
    batches = [bench.play() for _ in range(3)]
    with bench.draws():
        for batch in batches:
            bench.timestep += sum(part.rows for part in batch.values())
            with moved_generators() as moved:
                bench.learner.update(batch, timestep=bench.timestep)
            # Dropout and sampled actions draw from torch's generator, which checkpoints hold.
            if foreign := [name for name in moved if name != "torch"]:
                raise CheckFailed(
                    "updates that leave global generators alone",
                    f"moved: {', '.join(foreign)}",
                    place(subject.kind, "compute_loss_for_module", "additional_update"),
                )


def check_another_process_gives_the_same_numbers(subject: Subject) -> None:
    """A spawned process that is told the plugin's name and options learns the same weights."""
    there = report_of(subject)["fingerprint"]
    here = fingerprint(subject)
    if here != there:
        raise CheckFailed(
            "the same weights in a spawned process",
            f"digests {here[:12]} and {there[:12]}",
            place(subject.kind, "build") + ": look for the order of sets, hash(), ids, time",
        )
