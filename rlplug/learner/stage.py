"""The gradient stage of one module: minibatches in, steps of its optimizers out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlplug.learner.backward import EVENLY, Backward
from rlplug.learner.chain import added, answers_of
from rlplug.learner.culprits import culprits
from rlplug.learner.results import average
from rlplug.learner.stepping import Stepping
from rlplug.learner.turns import Turns, moved
from rlplug.losses import KnownLoss
from rlplug.nn.targets import TargetNetwork
from rlplug.seeding import derive

if TYPE_CHECKING:
    from rlplug.batch import Batch
    from rlplug.learner.compiled import Found
    from rlplug.learner.losses import Combined
    from rlplug.learner.member import Member
    from rlplug.learner.optimizers import Registered
    from rlplug.learner.owned import Owned

__all__ = ["Stage"]


class Stage:
    """What happens to one module between a minibatch and a step, and what was seen there."""

    def __init__(self, member: Member, learner: Owned) -> None:
        self.member = member
        self._learner = learner
        self._calls = learner.calls
        self.shuffler = torch.Generator().manual_seed(
            derive(learner.seed, "minibatches", member.module_id)
        )
        self._precision = learner.precision
        self.turns = Turns(member.optimizers)
        self._stepping = Stepping(member, learner, self._name_culprit)
        self._backward = Backward(member, learner, keeps_window=self._stepping.keeps_window)
        self._names = tuple([one.name for one in member.optimizers])
        self._is_plain = (
            self._backward.is_plain
            and not self.turns.places
            and member.optimizers[0].scheduler is None
        )
        """Whether there is nothing between gradients that a plugin knows and a step."""
        parts = [part for held in member.parts() for part in held.modules()]
        self._targets = [part for part in parts if isinstance(part, TargetNetwork)]
        self._window: list[tuple[Batch, float, Tensor]] = []
        self.acting: list[Registered] = []
        self.metrics: dict[str, Any] = {}
        self.history: list[dict[str, Any]] = []
        self.outside: dict[str, Any] = {}
        """What `additional_update` reported last, for schedulers that monitor it."""
        self._epoch = 0
        self.rows: dict[str, list[Tensor]] = {}
        self.skipped = 0

    @property
    def is_compiled(self) -> bool:
        """Whether forward pass and gradients run as one compiled graph."""
        return self._backward.is_compiled

    def start(self) -> None:
        """Forget the gradients of the last step."""
        self._backward.start()
        if self._window:
            self._window.clear()

    def alone(self, batch: Batch) -> bool:
        """All of a minibatch with which nothing else takes part in a step; False to stop."""
        answer: bool | None
        if self._is_plain and self._backward.known.in_order:
            answers = answers_of(self.member, self._calls, self._learner, batch, self._names)
            if len(answers) == 1 and self._step_by(answers[0][1], batch):
                self.update_targets()
                return True
            self.start()
            combined = added(answers, self.member, self._names, direct=True)
            answer = self._received(combined, None, batch, 1.0, self.turns.ready())
        else:
            self.start()
            answer = self.take(batch)
        if answer:
            self.step()
            self.update_targets()
        self._precision.stepped()
        return answer is not False

    def take(self, batch: Batch, weight: float = 1.0) -> bool | None:
        """Losses and gradients of one minibatch; None if nobody has a loss, False to stop."""
        ready = self.turns.ready()
        combined, gradients = self._backward.losses(batch, tuple([one.name for one in ready]))
        return self._received(combined, gradients, batch, weight, ready)

    def _received(
        self,
        combined: Combined | None,
        gradients: Found | None,
        batch: Batch,
        weight: float,
        ready: list[Registered],
    ) -> bool | None:
        """What `take` does once the losses are there."""
        if combined is None:
            self.skipped += 1
            return None
        known = combined.known
        if known is None:
            self._note(combined.metrics, combined.total.detach(), combined.rows, batch)
        else:
            self._backward.leave_graphs()
            self._note(combined.metrics, known.number, combined.rows, batch)
        if combined.stop is not None and bool(combined.stop):
            return False
        self.acting = self._acting(ready, combined)
        if self._stepping.keeps_window:
            self._window.append((batch, weight, self.metrics["loss"]))
        whole = len(ready) == len(self.turns.all)
        self._backward.take(combined, gradients, self.acting, weight, whole=whole)
        return True

    def step(self, total_weight: float = 1.0) -> None:
        """Everything from gradients to moved parameters."""
        stepping = self._stepping
        if stepping.closure_wanted:
            stepping.step_with_closure(self.acting, self._again, self.metrics, total_weight)
        else:
            stepping.unscale(self.acting)
            self.finish_gradients(total_weight)
            stepping.step(self.acting, self.metrics, self._backward.known.together)
        self.turns.advance()

    def step_only(self) -> None:
        """Move parameters by the gradients as they are."""
        self.metrics = {}
        self._stepping.step(self.acting, self.metrics)

    def update_targets(self) -> None:
        """Let the target networks of the module and its extras follow what was moved."""
        for target in self._targets:
            target.update(self._learner.timestep)

    def finish_gradients(self, total_weight: float) -> None:
        """Average over the minibatches of the step and let plugins change the result."""
        self._backward.finish(self.acting, self.metrics, total_weight, self._stepping.unscaling)

    def epoch_ended(self) -> None:
        """Move the schedulers that count passes over the batch."""
        metrics: dict[str, Any] | None = None
        for one in self.member.optimizers:
            if one.scheduler is not None and one.acted:
                if metrics is None:
                    metrics = {**self.outside, **average(self.history[self._epoch :])}
                one.scheduler.epoch_ended(metrics)
            one.acted = False
        self._epoch = len(self.history)

    def finish(self) -> dict[str, Any]:
        """The averages over the minibatches since the last call, and the learning rates."""
        results = average(self.history) if self.history else {}
        self.history = []
        self._epoch = 0
        for one in self.member.optimizers:
            results[one.rate_label] = one.learning_rate
        if self.skipped:
            results["skipped"] = self.skipped
            self.skipped = 0
        results.update(self._stepping.counts())
        return results

    def take_rows(self) -> dict[str, Tensor]:
        """Per-row values of all minibatches since the last call, with their `indices`."""
        rows = {name: torch.cat(parts) for name, parts in self.rows.items()}
        self.rows = {}
        return rows

    def _step_by(self, loss: Any, batch: Batch) -> bool:
        """Step by a loss whose gradients are kept where they were; whether it is one."""
        if type(loss) is not KnownLoss or loss.stop is not None:
            return False
        known = self._backward.known
        if not known.hold(loss.find(EVENLY)) or known.together is None:
            return False
        self._note({**loss.numbers, **loss.metrics}, loss.number, loss.rows, batch)
        one = self.member.optimizers[0]
        self._stepping.step_one(one, self.metrics, known.in_order, known.together.flat)
        return True

    def _note(
        self, metrics: dict[str, Any], loss: Any, rows: Mapping[str, Tensor], batch: Batch
    ) -> None:
        """Remember what is reported of a minibatch."""
        self.metrics = metrics
        metrics["loss"] = loss
        self.history.append(metrics)
        if rows:
            self.keep_rows(rows, batch)

    def _acting(self, ready: list[Registered], combined: Combined) -> list[Registered]:
        if not combined.named:
            return ready
        pairs = [(one.name, one.plugin) for one in ready]
        chosen = moved(pairs, combined.named, common=bool(combined.common))
        self._stepping.note_left_out([one for one in ready if one.name not in chosen])
        return [one for one in ready if one.name in chosen]

    def _again(self, total_weight: float, *, first: bool) -> Tensor:
        """Loss and gradients of this step, for an optimizer that asks for them repeatedly."""
        if not first:
            kept, history, metrics, rows = list(self._window), self.history, self.metrics, self.rows
            self.history, self.rows = [], {}
            self.start()
            for batch, weight, _ in kept:
                self.take(batch, weight)
            self.history, self.metrics, self.rows = history, {}, rows
            self.finish_gradients(total_weight)
            self.metrics = metrics
        else:
            self.finish_gradients(total_weight)
        losses = [loss * (weight / total_weight) for _, weight, loss in self._window]
        return torch.stack(losses).sum()

    def _name_culprit(self) -> list[str]:
        """Run the minibatches of this step once more, term by term."""
        found = []
        for batch, _, _ in self._window:
            names = tuple(one.name for one in self.acting)
            combined = self._backward.losses_once_more(batch, names)
            if combined is not None:
                found += culprits(combined, self.member)
        return list(dict.fromkeys(found))

    def keep_rows(self, rows: Mapping[str, Tensor], batch: Batch) -> None:
        """Remember per-row values beside the indices of their rows."""
        if "indices" in batch:
            self.rows.setdefault("indices", []).append(batch["indices"])
            for name, values in rows.items():
                self.rows.setdefault(name, []).append(values)
