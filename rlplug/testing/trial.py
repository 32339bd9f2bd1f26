"""One update of a learner in the midst of training, tried with other batches, each undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from rlplug.batch import Batch
from rlplug.batch.nested import to_tensors, tree_map
from rlplug.testing.cases import Case, stack
from rlplug.testing.comparison import first_difference, tensors_of
from rlplug.testing.harness import make_harness
from rlplug.testing.report import CheckFailed, DoesNotApply
from rlplug.testing.subject import Subject, named

__all__ = ["Trial", "Update", "each_trial", "normalizes"]

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
        for name, gradient in self.gradients.items():
            error = _relative(gradient, other.gradients[name], torch.zeros_like(gradient))
            if error > ROUNDING:
                return f"the gradient of {name!r} differs by {error:.2g} of its size"
        return None

    def difference(self, other: Update) -> str | None:
        """Where they differ by more than rounding; None if nowhere.

        Gradients are compared where there are any: Adam makes much of rounding.
        """
        if found := self.difference_of_gradients(other):
            return found
        starts, others = tensors_of(self.start), tensors_of(other.weights)
        for path, value in tensors_of(self.weights).items():
            if path.partition(".")[2] in self.gradients:
                continue
            if value.shape != others[path].shape:
                return f"{path} is {tuple(value.shape)} and {tuple(others[path].shape)}"
            error = _relative(value, others[path], starts[path])
            if error > ROUNDING:
                return f"{path} differs by {error:.2g} of its change"
        return None


def _relative(left: Tensor, right: Tensor, start: Tensor) -> float:
    """The distance of two tensors relative to how far they are from where they started."""
    left, right, start = left.double(), right.double(), start.double()
    size = max(float((left - start).norm()), float((right - start).norm()))
    distance = float((left - right).norm())
    return distance / size if distance > 1e-9 else 0.0


class Trial:
    """A learner after a few updates, and the next batch of its feed."""

    def __init__(self, subject: Subject, setting: Mapping[str, Any], case: Case) -> None:
        self.subject, self.setting, self.case = subject, setting, case
        self.harness = make_harness(subject, case, config=subject.changed(setting), steps=6)
        self.harness.train(UPDATES)
        for part in self.harness.module.modules():
            if normalizes(part):
                # Through statistics of a batch, each row would depend on all others.
                part.register_forward_pre_hook(_without_statistics)
        self.batch = self.harness.batch()

    def failure(self, looked_for: str, found: str, hint: str = "", *methods: str) -> CheckFailed:
        """The failure of a check with the setting that it was found in."""
        return self.subject.failure(looked_for + named(self.setting), found, hint, *methods)

    def option(self, name: str, otherwise: Any = None) -> Any:
        """The value of an option."""
        return getattr(self.harness.config, name, otherwise)

    @property
    def num_actions(self) -> int:
        """The number of Discrete actions; 0 for other actions."""
        return int(getattr(self.case.action_space, "n", 0))

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
        with self.harness.undone() as harness:
            before, gradients = harness.weights(), self.gradients(batch)
            harness.update(batch)
            rows = harness.learner.rows.get("default", {})
            rows = {name: part.clone() for name, part in rows.items()}
            return Update(harness.weights(), before, gradients, rows)

    def gradients(self, batch: Batch, *, prepared: bool = False) -> dict[str, Tensor]:
        """The gradient of each parameter by its name; none if no plugin returns a loss."""
        with self.harness.undone() as harness:
            found = harness.gradients(batch if prepared else harness.prepare(batch)) or {}
            names = {param: name for name, param in harness.parameters().items()}
            return {names[param]: part.clone() for param, part in found.items()}

    def prepare(self, batch: Batch) -> Batch:
        """The batch as `prepare_batch` returns it; what that changes is undone."""
        with self.harness.undone() as harness:
            return harness.prepare(batch)

    def gradients_of_outputs(self, batch: Batch) -> dict[str, Tensor]:
        """The gradient of each output of `forward_train` of a shape (rows, actions, …)."""
        shape = (batch.rows, self.num_actions)
        return self.outputs(batch, lambda part: part.shape[:2] == shape)[1]

    def outputs(
        self, batch: Batch, fits: Callable[[Tensor], bool]
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What `forward_train` gives, and the gradients of those of its tensors that fit."""
        found: dict[str, Tensor] = {}
        with self.harness.undone() as harness:
            prepared = harness.prepare(batch)
            outputs = harness.outputs(prepared)
            for name, part in outputs.items():
                if isinstance(part, Tensor) and part.requires_grad and fits(part):
                    # Of several losses, each has a gradient.
                    def add(grad: Tensor, name: str = name) -> None:
                        found[name] = found.get(name, 0) + grad

                    part.register_hook(add)  # type: ignore[no-untyped-call] # in torch
            harness.gradients(prepared, outputs)
        return outputs, found

    def expect_repeatable(self, batch: Batch) -> Update:
        """The update, which must be the same for the same state and batch."""
        first, second = self.after(batch), self.after(batch)
        if difference := first_difference(first.weights, second.weights):
            raise self.subject.failure(
                "the same update from the same state, restored with set_state",
                f"two differ: {difference}",
                "something that the update reads and changes is not saved; keep it in a buffer, "
                "or in save_state and load_state",
                *("save_state", "build", "build_extra", "__init__"),
            )
        return first

    def ends(self) -> Tensor:
        """Rows whose end of episode may be set: the last of each fragment, or every other one."""
        marked = torch.zeros(self.batch.rows, dtype=torch.bool)
        if self.of_fragments:
            marked[self.batch["fragments"][:, 1] - 1] = True
        else:
            marked[::2] = True
        return marked

    def with_ends(self, *, terminated: bool = False, truncated: bool = False) -> Batch:
        """The batch with those rows marked like this, and no others."""
        marked = self.ends()
        columns = {"terminated": marked & terminated, "truncated": marked & truncated}
        if "continued" in self.batch:
            columns["continued"] = torch.zeros_like(self.batch["continued"])
        return self.batch.with_columns(columns)

    def with_other_next(self, batch: Batch) -> Batch:
        """The batch with other observations after the rows of `ends`."""
        rows = self.ends().nonzero()[:, 0]
        space = self.case.observation_space
        space.seed(11)
        samples = to_tensors(stack(space, [space.sample() for _ in rows]))
        name = "final_observations" if self.of_fragments else "next_observations"
        at = slice(None) if self.of_fragments else rows

        def put(old: Tensor, new: Tensor) -> Tensor:
            column = old.clone()
            column[at] = new.to(old.dtype)
            return column

        return batch.with_columns({name: tree_map(put, batch[name], samples)})


def normalizes(part: nn.Module) -> bool:
    """Whether a layer keeps running means, as batch norm does: it may mix the rows of a batch."""
    names = [name for name, _ in part.named_buffers(recurse=False)]
    return not [*part.children()] and any("mean" in name for name in names)


def _without_statistics(layer: nn.Module, arguments: Any) -> None:
    layer.training = False


def each_trial(
    subject: Subject,
    applies: Callable[[Trial], Any] = lambda trial: True,
    reason: str = "",
    *,
    cases: Sequence[Case] | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Iterator[Trial]:
    """One trial per setting, in the first case that it supports, of those to which a check applies.

    Raises `DoesNotApply` for the reason after the last one if there was none. `changes` are made to
    all settings.
    """
    known: dict[Any, Trial] = subject.__dict__.setdefault("_trials", {})
    applied = False
    for setting in ({}, *subject.worth_training):
        setting = {**setting, **(changes or {})}
        case = subject.case_for(setting, cases)
        if case is None:
            continue
        # Whatever is tried is undone: a trial serves all checks.
        key = repr(setting), case
        trial = known[key] = known.get(key) or Trial(subject, setting, case)
        if applies(trial):
            applied = True
            yield trial
    if not applied:
        raise DoesNotApply(reason)
