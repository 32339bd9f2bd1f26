"""One module's part in an update: minibatches, metrics, clipping and optimizer steps."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Protocol, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import LBFGS

from rlplug.batch import Batch, minibatches
from rlplug.config.sections import LearnerSection
from rlplug.errors import RunFailedError
from rlplug.learner.device import Precision
from rlplug.learner.losses import LossHooks, MinibatchLoss, acting_on, average, nonfinite_terms
from rlplug.learner.member import Member
from rlplug.learner.optimizers import OptimizerCycle, RegisteredOptimizer, labelled
from rlplug.nn.targets import TargetNetwork
from rlplug.optim.clipping import (
    clip,
    coalesce_gradients,
    measure,
    numbers_of,
    zero_nonfinite,
)

__all__ = [
    "Engine",
    "ModuleUpdate",
    "Prepare",
]

Prepare: TypeAlias = Callable[[Batch], Batch]
"""Runs every plugin's `prepare_batch`."""


class Engine(Protocol):
    """Computes losses and gradients; after an error of its own, torch does it instead."""

    @property
    def name(self) -> str:
        """The name shown to users."""

    def prepare(self, prepare: Prepare, batch: Batch) -> Batch:
        """Run `prepare_batch` on a batch as this engine's loss hooks will see it."""

    def gradients(self, group: Sequence[ModuleUpdate]) -> None:
        """Leave the gradients of the modules' minibatches in their parameters."""


class ModuleUpdate:
    """What happens to one module between its minibatches and the steps of its optimizers."""

    def __init__(
        self,
        member: Member,
        losses: LossHooks,
        *,
        section: LearnerSection,
        precision: Precision,
        seed: int,
    ) -> None:
        self.member = member
        self.cycle = OptimizerCycle(member.optimizers)
        self.engine: Engine
        self.engine_reason = ""
        """Why it is this engine."""
        self.shuffler = torch.Generator().manual_seed(seed)
        self._losses = losses
        self._section = section
        self._precision = precision
        # Only on the CPU is a number read for free; elsewhere the device keeps what it found.
        self._reads = precision.device.type == "cpu" or section.nonfinite == "stop"
        self.needs_closure = any(isinstance(one.optimizer, LBFGS) for one in member.optimizers)
        modules = [part for held in member.parts() for part in held.modules()]
        self.targets = [part for part in modules if isinstance(part, TargetNetwork)]
        """Target networks, which follow after each step."""
        self._params = [p for p in member.named.values() if id(p) not in member.shared]
        # The current step:
        self.minibatches: list[Batch] = []
        self.weights: list[float] = []
        """Their shares of the step's rows."""
        self.ready: list[RegisteredOptimizer] = []
        """The optimizers that are scheduled to act in this step."""
        self.ready_names: tuple[str, ...] = ()
        """Of which losses are asked for."""
        self._scheduled: tuple[str, ...] = ()
        self.acting: list[RegisteredOptimizer] = []
        """Those of them that the losses move."""
        self.weight = 0.0
        """The share of the step's rows that had a loss; 0: nothing moves in this step."""
        self.stopped = False
        self.losses: list[tuple[Any, float]] = []
        """The loss of each minibatch with its weight."""
        self.metrics: dict[str, Any] = {}
        self.flat_gradients: NDArray[Any] | None = None
        """All gradients of the step in one array, in the order of the optimizers' parameters."""
        self.nonfinite: dict[str, bool | Tensor] = {}
        """Optimizer name → whether its gradients are not finite."""
        self._gradients: dict[str, list[Tensor]] = {}
        """Optimizer name → the gradients that were clipped for it."""
        self.stepped = False
        """Whether any of the step's evaluations moved something."""
        self._of_step: dict[int, dict[str, Any]] = {}
        """The metrics of the step's minibatches, by their places in it."""
        self._rows_of_step: dict[int, dict[str, Tensor]] = {}
        """What they tell of single rows."""
        self._moved: set[str] = set()
        """Plugins that gave a loss in this step, or whose optimizers had gradients."""
        self._shares: dict[str, float] = {}
        """Optimizer name → the share of the rows with a loss that moves it, where they differ."""
        self._noted = 0
        self._first_evaluation = True
        self._recorded = 0
        """Minibatches in the history before this evaluation."""
        self._rows_recorded: dict[int, dict[str, Tensor]] = {}
        """What was told of the rows of this step before this evaluation."""
        # Since the last results:
        self.history: list[dict[str, Any]] = []
        """The metrics of each minibatch."""
        self.last_history: list[dict[str, Any]] = []
        """Those of the last update."""
        self._rows: list[dict[str, Tensor]] = []
        self._epoch_start = 0
        self._skipped = 0
        self._nonfinite_steps: list[Any] = []
        self._overflows: list[Tensor] = []
        self.update_metrics: dict[str, Any] = {}
        """The results of the last update, for schedulers that monitor them."""

    # -- the minibatches of a step ---------------------------------------------------------------

    def cut(self, batch: Batch, size: int) -> list[Batch]:
        """The minibatches of one epoch."""
        whole = self.member.sequences
        return list(minibatches(batch, size, self.shuffler, whole_fragments=whole))

    def begin(self, minibatches: list[Batch]) -> None:
        """Begin a step with these minibatches, of one evaluation or of several."""
        self.minibatches = minibatches
        self.weights = [1.0]
        if len(minibatches) != 1:
            rows = sum(batch.rows for batch in minibatches)
            self.weights = [batch.rows / rows for batch in minibatches]
        self._end()
        self.stepped = False
        self._moved = set()

    def _end(self) -> None:
        """Count and keep what the minibatches of a step have told."""
        self._skipped += sum("loss" not in metrics for metrics in self._of_step.values())
        self._rows += filter(None, self._rows_of_step.values())
        self._of_step, self._rows_of_step = {}, {}

    def scheduled(self) -> list[RegisteredOptimizer]:
        """The optimizers that act in this step."""
        acting = self.cycle.acting()
        self._scheduled = tuple(map(_NAME, acting))
        return acting

    def start(self, ready: list[RegisteredOptimizer], *, again: bool = False) -> None:
        """Begin an evaluation, or repeat it for a closure.

        In the turn of what modules share none is ready: the losses are those of all that act in
        this step.
        """
        self.ready = self.acting = ready
        self.ready_names = tuple(map(_NAME, ready)) or self._scheduled
        self.weight = 0.0
        self.losses = []
        self._first_evaluation = not again
        self._noted = 0
        self._shares = {}
        self._recorded = len(self.history)
        self._rows_recorded = {n: dict(rows) for n, rows in self._rows_of_step.items()}
        # Those that lie in one array are written over, by engines that do not add to them.
        if self.flat_gradients is None:
            self.clear_gradients()
        self._gradients = {}

    def clear_gradients(self) -> None:
        """Leave no gradients, to which others would be added."""
        self.flat_gradients = None
        for param in self._params:
            param.grad = None

    def discard(self) -> None:
        """Discard this evaluation; another engine repeats it."""
        del self.history[self._recorded :]
        kept = set(map(id, self.history))
        self._of_step = {n: one for n, one in self._of_step.items() if id(one) in kept}
        self._rows_of_step = self._rows_recorded
        self.stopped = False
        self.flat_gradients = None
        self.start(self.ready, again=not self._first_evaluation)

    def evaluation(self) -> dict[str, Any]:
        """All that an evaluation gave, by name: gradients, metrics, rows, and who acts."""
        found: dict[str, Any] = {
            f"gradient of {name}": param.grad.detach().clone()
            for name, param in self.member.named.items()
            if param.grad is not None
        }
        for index, metrics in enumerate(self.history[self._recorded :]):
            for name, value in metrics.items():
                found[f"{name} of minibatch {index}"] = value
        for index, rows in self._rows_of_step.items():
            for name, values in rows.items():
                found[f"rows of {name} of minibatch {index}"] = values
        found["stop"] = self.stopped
        return found

    def note(self, loss: MinibatchLoss | None, total: Any, batch: Batch, weight: float) -> bool:
        """Record the losses of a minibatch and their sum; False if no gradient is wanted."""
        index, self._noted = self._noted, self._noted + 1
        if self._first_evaluation and index not in self._of_step:
            # One for each minibatch, also where it has no loss.
            self._of_step[index] = {}
            self.history.append(self._of_step[index])
        if loss is None:
            return False
        self._moved.update(loss.plugins)
        known = self._of_step.get(index, {})
        if self._first_evaluation and known:
            # Of an optimizer that acts after others: what it adds to the same minibatch.
            self.metrics = known
            known.update({name: one for name, one in loss.metrics.items() if name not in known})
        elif self._first_evaluation:
            self.metrics = known
            known.update(loss.metrics)
            known["loss"] = total
        if self._first_evaluation and loss.rows and "indices" in batch:
            told = self._rows_of_step.setdefault(index, {"indices": batch["indices"]})
            told.update({name: rows for name, rows in loss.rows.items() if name not in told})
        if self.stopped or (loss.stop is not None and bool(loss.stop)):
            self.stopped = True
            self.weight = 0.0
            return False
        if loss.mapped or len(self.minibatches) > 1:
            moved = acting_on(self.ready, loss)
            for one in self.ready:
                if one in moved:
                    self._shares[one.name] = self._shares.get(one.name, 0.0) + weight
                else:
                    one.note_idle()
            # Of accumulated minibatches each may move others.
            self.acting = [one for one in self.ready if one.name in self._shares]
            if not moved and not self.member.shared:
                return False
        self.losses.append((total, weight))
        self.weight += weight
        return True

    def take_part(self) -> None:
        """Step by gradients that others left: of parameters that modules share."""
        self.weight = 1.0
        self.stopped = False
        if self._first_evaluation:
            self.metrics = {}
            self.history.append(self.metrics)

    def normalize(self) -> None:
        """Average the gradients of each optimizer over the minibatches that had a loss for it."""
        if not self.weight or (self.weight == 1.0 and not self._shares):
            return
        for one in self.acting:
            share = self._shares.get(one.name, self.weight)
            gradients = [param.grad for param in one.params if param.grad is not None]
            if gradients and share != 1.0:
                torch._foreach_mul_(gradients, 1.0 / share)
        self.losses = [(loss, weight / self.weight) for loss, weight in self.losses]

    # -- clipping and steps ----------------------------------------------------------------------

    def clip(self) -> None:
        """Measure the gradients, apply the non-finite policy, clip."""
        everything: list[Tensor] = []
        if self.flat_gradients is None:
            coalesce_gradients(param for one in self.acting for param in one.params)
        for one in self.acting:
            found = [grad for grad in map(_GRADIENT, one.params) if grad is not None]
            self._gradients[one.name] = found
            everything += found
        self.nonfinite = {}
        flat = self.flat_gradients
        if len(self.acting) > 1 and self._section.clip_over == "module":
            if everything:
                verdict = self._clip("default", everything, flat)
                self.nonfinite = dict.fromkeys(self._gradients, verdict)
        else:
            start = 0
            for name, gradients in self._gradients.items():
                # Those of one optimizer lie side by side in the array of all.
                stop = start + sum(map(Tensor.numel, gradients))
                own = None if flat is None else flat[start:stop]
                if gradients:
                    self.nonfinite[name] = self._clip(name, gradients, own)
                start = stop
        self._first_evaluation = False

    def step(self, evaluate: Callable[[], object]) -> None:
        """Step every optimizer that acts and has gradients."""
        self.stepped = True
        scaler = self._precision.scaler
        for one in self.acting:
            gradients = self._gradients[one.name]
            if self.needs_closure:
                stepped = self._step_with_closure(one, evaluate)
            elif gradients:
                self._moved.add(one.plugin)
                if scaler is not None:
                    self._overflows.append(self._precision.overflow_of(one.optimizer))
                stepped = one.step(gradients, self.nonfinite[one.name], scaler)
            else:
                one.note_idle()
                continue
            if stepped:
                one.stepped_in_epoch = True
                if one.scheduler is not None:
                    one.scheduler.stepped(self._metrics_of_step())

    def go_on_from(self, other: ModuleUpdate) -> None:
        """Shuffle, and count in cycles, where that of the same module with other optimizers is."""
        self.shuffler.set_state(other.shuffler.get_state())
        known = self.cycle.positions.keys()
        self.cycle.positions |= {n: one for n, one in other.cycle.positions.items() if n in known}

    def advance(self) -> None:
        """Count the step in the cycles of those that it moved."""
        self.cycle.advance(self._moved)

    def _metrics_of_step(self) -> dict[str, Any]:
        """The averages over the minibatches that were accumulated."""
        if len(self._of_step) < 2:
            return self.metrics
        return average(list(self._of_step.values()))

    def update_targets(self, timestep: int) -> None:
        """Let target networks follow."""
        for target in self.targets:
            target.update(timestep)

    def finish_epoch(self) -> None:
        """Move the schedulers that count passes over the batch."""
        metrics: dict[str, Any] | None = None
        for one in self.member.optimizers:
            if one.scheduler is not None and one.stepped_in_epoch:
                if metrics is None:
                    metrics = {**self.update_metrics, **average(self.history[self._epoch_start :])}
                one.scheduler.epoch_ended(metrics)
            one.stepped_in_epoch = False
        self._epoch_start = len(self.history)

    # -- results ---------------------------------------------------------------------------------

    def take_results(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The averages over the minibatches since the last call, and their per-row values.

        Among the averages are the learning rates, among the per-row values the `indices`.
        """
        self._end()
        results = average(self.history) if self.history else {}
        self.last_history, self.history = self.history, []
        self._epoch_start = 0
        for one in self.member.optimizers:
            results[one.rate_label] = float(one.optimizer.param_groups[0]["lr"])
        if self._skipped:
            results["skipped"] = self._skipped
            self._skipped = 0
        for name, found in (("nonfinite", self._nonfinite_steps), ("overflow", self._overflows)):
            if found:
                tensors = any(isinstance(one, Tensor) for one in found)
                results[name] = torch.stack(found).sum() if tensors else sum(found)
                found.clear()
        rows: dict[str, list[Tensor]] = {}
        for told in self._rows:
            for name, values in told.items():
                rows.setdefault(name, []).append(values)
        self._rows = []
        return results, dict(zip(rows, map(torch.cat, rows.values()), strict=True))

    def forget_results(self) -> None:
        """Leave nothing of an update that failed to the results of the next one."""
        self._end()
        self.history, self._rows = [], []
        self._epoch_start = self._skipped = 0
        self._nonfinite_steps.clear()
        self._overflows.clear()
        for one in self.member.optimizers:
            one.stepped_in_epoch = False

    # -- state -----------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Cycle, generators and schedulers: what is neither in module nor in optimizers."""
        return {
            "turns": dict(self.cycle.positions),
            "shuffler": self.shuffler.get_state(),
            "unanswered": {one.name: one.idle_minibatches for one in self.member.optimizers},
            "schedulers": {
                one.name: one.scheduler.state_dict()
                for one in self.member.optimizers
                if one.scheduler is not None
            },
        }

    def set_state(self, saved: Mapping[str, Any], optimizers: Mapping[str, Any]) -> None:
        """Continue from there, with these states of the optimizers."""
        self.cycle.positions.update(saved["turns"])
        self.shuffler.set_state(saved["shuffler"])
        for one in self.member.optimizers:
            one.optimizer.load_state_dict(copy.deepcopy(optimizers[one.name]))
            one.idle_minibatches = saved["unanswered"][one.name]
            if one.scheduler is not None:
                one.scheduler.load_state_dict(saved["schedulers"][one.name])

    # -- inside ----------------------------------------------------------------------------------

    def _clip(self, name: str, gradients: list[Tensor], flat: NDArray[Any] | None) -> bool | Tensor:
        section = self._section
        if section.nonfinite == "zero" and not self._reads:
            zero_nonfinite(gradients)
        norms = measure(gradients, section.norm_type, flat)
        verdict: bool | Tensor = False
        if self._precision.scaler is None:
            if not self._reads:
                verdict = ~torch.isfinite(torch.as_tensor(norms.total))
                self._nonfinite_steps.append(verdict.to(torch.float32))
            elif not math.isfinite(float(norms.total)):
                self._nonfinite_steps.append(1)
                verdict = self._on_nonfinite(gradients)
                norms = measure(gradients, section.norm_type, flat)
        metrics = self.metrics if self._first_evaluation else {}
        metrics[labelled("grad_norm", name)] = norms.total
        if section.max_grad_norm and verdict is not True:
            after = clip(norms, section.max_grad_norm, section.clip_by)
            metrics[labelled("grad_norm_clipped", name)] = after
        return verdict

    def _on_nonfinite(self, gradients: list[Tensor]) -> bool:
        """Whether to skip the step."""
        policy = self._section.nonfinite
        if policy == "zero":
            zero_nonfinite(gradients)
            return False
        if policy == "skip":
            return True
        names = [
            name
            for name, param in self.member.named.items()
            if param.grad is not None and not bool(torch.isfinite(*numbers_of([param.grad])).all())
        ]
        raise RunFailedError(
            f"gradients of module {self.member.module_id!r} are not finite: {', '.join(names)}.",
            *(self._nonfinite_terms() or ["no loss term alone explains it: look at the hooks"]),
            "learner.nonfinite=skip would leave such steps out",
        )

    def _nonfinite_terms(self) -> list[str]:
        """Run the minibatches of this step once more, term by term."""
        names = tuple(one.name for one in self.acting)
        found = []
        for batch in self.minibatches:
            loss = self._losses(self.member, batch, names)
            if loss is not None:
                found += nonfinite_terms(loss, self.member)
        return list(dict.fromkeys(found))

    def _step_with_closure(self, one: RegisteredOptimizer, evaluate: Callable[[], object]) -> bool:
        """Step an optimizer that evaluates the loss several times; metrics are of the first."""
        evaluated = True

        def closure() -> float | None:
            nonlocal evaluated
            if not evaluated:
                evaluate()
            evaluated = False
            if bool(self.nonfinite.get(one.name, False)):
                return None
            return float(sum(loss * weight for loss, weight in self.losses))

        return one.step_with_closure(closure)


_NAME, _GRADIENT = attrgetter("name"), attrgetter("grad")
