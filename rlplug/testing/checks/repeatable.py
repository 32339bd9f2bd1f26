"""Checks of seeds, saved state, processes, several modules and several learners."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from rlplug.batch import Batch
from rlplug.batch.nested import tree_map
from rlplug.testing.cases import RUN_STEPS, act_input
from rlplug.testing.check import check as define
from rlplug.testing.checks.acting import METHODS, actions
from rlplug.testing.checks.closed_forms import known_of
from rlplug.testing.checks.updates import is_sequential
from rlplug.testing.child_process import run_in_child_process, weights_digest
from rlplug.testing.comparison import (
    first_difference,
    largest_difference,
    plain_attributes,
    tensors_of,
)
from rlplug.testing.report import DoesNotApply
from rlplug.testing.subject import Subject
from rlplug.testing.trial import Draws, LockstepGroup, Trial, changed_generators, normalizes

_TABLE = 100
"""A buffer with so many entries along its first axis is a table of rows."""
check = partial(define, tier="silver")


@check()
def state_is_complete(subject: Subject) -> None:
    """Training that continues in a new learner, from a state in files, is the same bit for bit.

    So are attributes of modules and extras that updates change.
    """
    for setting, case in subject.places():
        saved = Trial(subject, case, setting, updates=7)
        loaded = Trial(subject, case, setting, seed=1, updates=3)
        attributes = saved.attributes()
        with tempfile.TemporaryDirectory(prefix="rlplug-check-") as folder:
            saved.learner.save_state(Path(folder))
            loaded.learner.load_state(Path(folder))
        # Both continue from the same global generators: those are part of the saved state.
        loaded.timestep, loaded.random = saved.timestep, saved.random
        found = ""
        for update in range(13):
            if update:
                batches = saved.collect()
                saved.update(batches)
                loaded.update(batches)
            if not found and (difference := first_difference(*map(_all_of, (saved, loaded)))):
                found = f"{update} updates after loading: {difference}"
        now, others = saved.attributes(), loaded.attributes()
        for name in now.keys() & attributes.keys() & others.keys():
            changed = first_difference(attributes[name], now[name])
            if changed and (difference := first_difference(now[name], others[name])):
                found = found or f"the attribute {name}{difference}"
        if found:
            raise saved.failure(
                "two learners that are the same after save_state and load_state",
                found,
                "keep it in buffers, or in save_state and load_state",
                *("save_state", "build", "build_extra"),
            )


def _all_of(trial: Trial) -> list[object]:
    """The state, the explored and the best actions, now and late in a run."""
    with trial.generators():
        chosen = [
            actions(trial, act_input(trial.module, trial.case, 8, at=at), method)
            for method in METHODS
            for at in (trial.timestep, RUN_STEPS)
        ]
    return [trial.state(), chosen]


@check()
def same_seed_same_numbers(subject: Subject) -> None:
    """Fifty updates from a seed give the same weights, beside those of a seed that gives others."""
    first, second, other = (Trial(subject, seed=seed, steps=2) for seed in (5, 5, 6))
    for name, param in first.parameters().items():
        # Eight distinct values count as drawn at random.
        is_drawn = len(torch.unique(param.detach())) >= 8
        if is_drawn and torch.equal(param, other.parameters()[name]):
            raise first.failure(
                "other initial weights for another seed",
                f"{name!r} is the same for two seeds, with {param.numel()} values",
                "do not seed generators in it; the core has seeded them, or use `seed`",
                *("build", "build_extra"),
            )
    first.train(50)
    for _ in range(50):
        second.train(1)
        other.train(1)
    if found := first_difference(first.weights(), second.weights()):
        raise first.failure(
            "the same weights after 50 updates from the same seed, beside another instance",
            found,
            "look for time, hashes, sets, generators without a seed, class attributes and globals",
            *("build", "additional_update"),
        )


@check()
def generators_of_others_stay(subject: Subject) -> None:
    """Construction and updates seed no global generator, and draw from torch's alone."""
    with changed_generators() as changed:
        plugin = subject.participant().plugin
        if not subject.is_addon:
            plugin.feed()
            subject.supports(subject.case())
    if changed:
        looked_for = "no random numbers drawn in the constructor, feed() and supports()"
        methods = ("__init__", "feed", "supports")
        raise subject.failure(looked_for, f"drawn or seeded: {', '.join(changed)}", "", *methods)
    for setting, case in subject.places():
        trial = Trial(subject, case, setting)
        for timestep in (100, 200, 300, 400):
            batches = trial.collect()
            with trial.generators(), changed_generators() as changed:
                trial.learner.update(batches, timestep=timestep)
            # Dropout draws from torch's generator, which checkpoints hold.
            if foreign := [name for name in changed if name != "torch"]:
                looked_for = "updates that draw from no other generator"
                raise trial.failure(looked_for, f"drawn or seeded: {', '.join(foreign)}")


@check()
def another_process_gives_the_same_numbers(subject: Subject) -> None:
    """A child process that gets the plugin's name and options learns the same weights."""
    here, there = weights_digest(subject), run_in_child_process(subject)["digest"]
    if here != there:
        raise subject.failure(
            "the same weights in a spawned process",
            f"digests {here[:12]} and {there[:12]}",
            "look for the order of sets, hash(), ids, time",
            "build",
        )


@check()
def tensors_are_parameters_or_buffers(subject: Subject) -> None:
    """No module keeps a plain tensor: it would be neither saved nor moved to another device."""
    trial = Trial(subject, updates=3)
    for root in trial.parts().values():
        known = {_address(one) for one in (*root.parameters(), *root.buffers())}
        for owner in root.modules():
            for path, value in tensors_of(plain_attributes(owner, copied=False)).items():
                if _address(value) not in known:
                    raise trial.failure(
                        "tensors of modules that are parameters or buffers",
                        f"{type(owner).__name__}.{path} is a plain tensor, neither moved nor saved",
                        "self.register_buffer(name, …)",
                        "__init__",
                    )


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@define(tier="gold")
def modules_of_several_spaces(subject: Subject) -> None:
    """A module learns the same beside a module of other spaces as alone."""
    names = ("box, discrete", "box of another size, discrete")
    chosen = [case for case in subject.cases if case.name in names] or list(subject.cases[:2])
    if not chosen:
        raise DoesNotApply("it supports none of the kit's spaces")
    alone = Trial(subject, {"left": chosen[0]})
    both = Trial(subject, {"left": chosen[0], "right": chosen[-1]})
    draws = Draws(subject.kind)
    for _ in range(12):
        batch, batches = alone.collect(), both.collect()
        # Schedules count the steps of all modules.
        alone.timestep += batches["right"].rows
        with draws:
            alone.update(batch)
        both.update(batches)
    path, error = largest_difference(alone.weights()["left"], both.weights()["left"])
    if not error <= 1e-5 and draws.lines:
        # As dropout does: nothing can be compared.
        raise DoesNotApply(f"{draws.lines[0]} draws from torch's global generator, which all share")
    if not error <= 1e-5:
        raise both.failure(
            "a module that learns the same beside another one as alone",
            f"{path} differs by {error:.1%} of its size",
            "what is kept on `self` is shared by modules; key it by module_id, or keep it in them",
        )


@define(tier="gold")
def two_learners_stay_the_same(subject: Subject) -> None:
    """Two learners with different experience keep the same weights, and learn from both."""
    for setting, case in subject.places():
        groups = [first := LockstepGroup(), LockstepGroup(first)]
        pair = [
            Trial(subject, case, setting, process_group=group, sampling_seed=7 * rank)
            for rank, group in enumerate(groups)
        ]
        seen: list[list[Batch]] = [[], []]
        tasks = [partial(_train, *both) for both in zip(pair, seen, strict=True)]
        for thread in [group.run(task) for group, task in zip(groups, tasks, strict=True)]:
            thread.join()
        for raised in [raised for group in groups for raised in group.errors]:
            raise raised
        path, error = largest_difference(*map(_shared, pair))
        if not error <= 1e-5:
            raise pair[0].failure(
                "the same weights in two learners after six updates",
                f"{path} is another one in each",
                "statistics of a batch must be combined with learner.all_reduce",
            )
        is_additive = not pair[0].has_optimizers and pair[0].option("discount", 1.0) == 1.0
        if is_additive and not is_sequential(Trial(subject, case, setting, updates=3)):
            _require_both_are_learned(pair[0], seen)


def _shared(trial: Trial) -> dict[str, Tensor]:
    """What all learners hold alike: no tables of rows, and no statistics of batches."""
    apart = {
        f"{root}.{name}.{buffer}"
        for root, part in trial.parts().items()
        for name, layer in part.named_modules()
        if normalizes(layer)
        for buffer, _ in layer.named_buffers()
    }
    return {
        path: value.double()
        for path, value in tensors_of(trial.weights()).items()
        if path not in apart and (value.dim() == 0 or len(value) < _TABLE)
    }


def _train(trial: Trial, seen: list[Batch]) -> None:
    for _ in range(6):
        seen.append(trial.next_batch())
        trial.update(seen[-1])


def _require_both_are_learned(learned: Trial, batches: list[list[Batch]]) -> None:
    """A closed form learns what one learner would that sees all rows."""
    alone = Trial(learned.subject, learned.case, learned.setting)
    for pair in zip(*batches, strict=True):
        names = set.intersection(*map(set, pair))
        columns = {
            name: tree_map(lambda *parts: torch.cat(parts), *(batch[name] for batch in pair))
            for name in names
        }
        alone.update(Batch(columns))
    path, error = largest_difference(known_of(learned), known_of(alone))
    if not error <= 1e-4:
        raise learned.failure(
            "two learners that learn what one would that sees all rows",
            f"{path} differs",
            "learner.all_reduce of sums, and of all that the update reads",
        )
