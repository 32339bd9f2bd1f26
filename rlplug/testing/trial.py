"""One update of a learner in the midst of training, tried with other batches, each undone."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from rlplug.batch import Batch
from rlplug.batch.nested import to_tensors, tree_map
from rlplug.testing.cases import Case
from rlplug.testing.collector import stacked
from rlplug.testing.comparison import first_difference, leaves_of
from rlplug.testing.harness import Harness, make_harness
from rlplug.testing.report import CheckFailed, location
from rlplug.testing.subject import Subject

__all__ = ["Trial", "Update", "named", "trials"]

UPDATES = 3
"""Updates before the one that is tried."""
ROUNDING = 1e-3
"""Differences up to this fraction count as rounding."""


@attrs.frozen
class Update:
    """What came of one update."""

    weights: Mapping[str, Any]
    """Parameters and buffers of modules and extras afterwards."""
    start: Mapping[str, Any]
    """The same before it."""
    gradients: Mapping[str, Tensor]
    """The gradient of each parameter, where a plugin returns a loss."""
    rows: Mapping[str, Tensor]
    """Per-row values of the loss."""

    def equals(self, other: Update) -> bool:
        """Whether both are the same up to rounding."""
        return self.difference(other) is None

    def difference_of_gradients(self, other: Update) -> str | None:
        """Which gradient differs by more than rounding; None if none does."""
        for name, one in self.gradients.items():
            error = _relative(one, other.gradients[name], torch.zeros_like(one))
            if error > ROUNDING:
                return f"the gradient of {name!r} differs by {error:.2g} of its size"
        return None

    def keeps_rows(self, other: Update) -> bool:
        """Whether a table holds the same numbers in both, in another order: rows of batches."""
        others = dict(leaves_of(other.weights))
        pairs = [
            (value.double(), others[path].double())
            for path, value in leaves_of(self.weights)
            if isinstance(value, Tensor)
        ]
        return any(
            one.shape == two.shape
            and not torch.equal(one, two)
            and torch.equal(one.reshape(-1).sort().values, two.reshape(-1).sort().values)
            for one, two in pairs
        )

    def difference(self, other: Update) -> str | None:
        """Where they differ by more than rounding; None if nowhere.

        Gradients are compared where there are any: Adam makes much of rounding.
        """
        found = self.difference_of_gradients(other)
        if found is not None:
            return found
        starts, others = dict(leaves_of(self.start)), dict(leaves_of(other.weights))
        for path, value in leaves_of(self.weights):
            if path.partition(".")[2] in self.gradients or not isinstance(value, Tensor):
                continue
            one, two = value.double(), others[path].double()
            if one.shape != two.shape:
                return f"{path} is {tuple(one.shape)} and {tuple(two.shape)}"
            error = _relative(one, two, starts[path].double())
            if error > ROUNDING:
                return f"{path} differs by {error:.2g} of its change"
        return None


def _relative(one: Tensor, other: Tensor, start: Tensor) -> float:
    """The distance of two tensors relative to how far they are from where they started."""
    size = max(float((one - start).norm()), float((other - start).norm()))
    distance = float((one - other).norm())
    return distance / size if distance > 1e-9 else 0.0


class Trial:
    """A learner after a few updates, and the next batch of its feed."""

    def __init__(self, subject: Subject, setting: Mapping[str, Any], case: Case) -> None:
        self.subject, self.setting, self.case = subject, setting, case
        config = subject.changed(setting)
        self.harness: Harness = make_harness(subject, case, config=config)
        self.harness.train(UPDATES, steps=4)
        self.harness.collect(steps=2)
        self.batch = self.harness.collect(steps=6)["default"]

    @property
    def is_prioritized(self) -> bool:
        """Whether the feed draws by priority."""
        return "weights" in self.batch and "indices" in self.batch

    @property
    def of_fragments(self) -> bool:
        """Whether rows are ordered in fragments of episodes."""
        return "fragments" in self.batch

    @property
    def has_next(self) -> bool:
        """Whether the feed gives what was observed next."""
        return self.of_fragments or "next_observations" in self.batch

    def after(self, batch: Batch) -> Update:
        """The weights after one update, which is then undone."""
        harness = self.harness
        learner = harness.learner
        start, timestep = learner.get_state(), harness.timestep
        generators = copy.deepcopy(harness.generators)
        try:
            before, gradients = harness.weights(), self.gradients(batch)
            harness.update(batch)
            rows = {name: part.clone() for name, part in learner.rows.get("default", {}).items()}
            return Update(harness.weights(), before, gradients, rows)
        finally:
            learner.set_state(start)
            # Target networks go by steps, dropout by chance: both are the same in the next update.
            harness.timestep, harness.generators = timestep, generators

    def gradients(self, batch: Batch, *, prepared: bool = False) -> dict[str, Tensor]:
        """The gradient of each parameter by its name; none if no plugin returns a loss."""
        harness = self.harness
        start, generators = harness.learner.get_state(), copy.deepcopy(harness.generators)
        try:
            found = harness.gradients_of(batch) if prepared else harness.gradients(batch)
        finally:
            harness.learner.set_state(start)
            harness.generators = generators
        names = {param: name for name, param in harness.parameters().items()}
        return {names[param]: part.clone() for param, part in (found or {}).items()}

    def expect_repeatable(self, batch: Batch) -> Update:
        """The update, which must be the same for the same state and batch."""
        first, second = self.after(batch), self.after(batch)
        difference = first_difference(first.weights, second.weights)
        if difference is not None:
            kind = self.subject.kind
            raise CheckFailed(
                "the same update from the same state, restored with set_state",
                f"two differ: {difference}",
                location(kind, "save_state", "build", "build_extra", "__init__")
                + ": something that the update reads and changes is not saved; keep it in a "
                "buffer, or in save_state and load_state",
            )
        return first

    def prepare(self, batch: Batch) -> Batch:
        """The batch as `prepare_batch` returns it; what that changes is undone."""
        start = self.harness.learner.get_state()
        generators = copy.deepcopy(self.harness.generators)
        try:
            return self.harness.prepare(batch)
        finally:
            self.harness.learner.set_state(start)
            self.harness.generators = generators

    def ends(self) -> Tensor:
        """Rows whose end of episode may be set: the last of each fragment, or every other one."""
        marked = torch.zeros(self.batch.rows, dtype=torch.bool)
        if self.of_fragments:
            marked[self.batch["fragments"][:, 1] - 1] = True
        else:
            marked[::2] = True
        return marked

    def with_ends(self, *, terminated: bool, truncated: bool) -> Batch:
        """The batch with those rows marked like this, and no others."""
        marked = self.ends()
        columns = {"terminated": marked & terminated, "truncated": marked & truncated}
        if "continued" in self.batch:
            columns["continued"] = torch.zeros_like(self.batch["continued"])
        return self.batch.with_columns(columns)

    def with_other_next(self, batch: Batch) -> Batch:
        """The batch with other observations after the rows of `ends`."""
        rows = self.ends().nonzero()[:, 0]
        space = self.harness.cases["default"].observation_space
        space.seed(11)
        samples = to_tensors(stacked([space.sample() for _ in rows]))
        if self.of_fragments:
            finals = tree_map(
                lambda old, new: new.to(old.dtype), batch["final_observations"], samples
            )
            return batch.with_columns({"final_observations": finals})

        def put(old: Tensor, new: Tensor) -> Tensor:
            column = old.clone()
            column[rows] = new.to(old.dtype)
            return column

        return batch.with_columns(
            {"next_observations": tree_map(put, batch["next_observations"], samples)}
        )


def named(setting: Mapping[str, Any]) -> str:
    """Changed options for messages; nothing for none."""
    if not setting:
        return ""
    return " with " + ", ".join(f"{name} = {value!r}" for name, value in setting.items())


def trials(subject: Subject, cases: Sequence[Case] | None = None) -> Iterator[Trial]:
    """One trial per setting in the first of the cases that it supports."""
    for setting in ({}, *subject.worth_training):
        case = subject.case_for(setting, cases)
        if case is not None:
            yield Trial(subject, setting, case)
