"""The last part of a step: clip, answer non-finite numbers, move parameters and schedulers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.optim import LBFGS

from rlplug.errors import RunFailedError
from rlplug.learner.results import labelled
from rlplug.learner.turns import note_gradients
from rlplug.nn.activations import Array
from rlplug.nn.closed import Gradients
from rlplug.optim.clipping import clip, measure, zero_nonfinite
from rlplug.optim.flushing import Flushed
from rlplug.optim.guard import guarded_step
from rlplug.optim.together import FusedAdams, can_step_together

if TYPE_CHECKING:
    from rlplug.learner.member import Member
    from rlplug.learner.optimizers import Registered
    from rlplug.learner.owned import Owned

__all__ = ["Stepping"]


class Again(Protocol):
    """Computes loss and gradients of the same step, for the first time or once more."""

    def __call__(self, total_weight: float, *, first: bool) -> Tensor: ...


class _SkippedError(Exception):
    """Leaves an optimizer in the middle of a step that is not to be made."""


class Stepping:
    """Moves the parameters of one module by the gradients that its optimizers find."""

    def __init__(
        self, member: Member, learner: Owned, name_culprit: Callable[[], list[str]]
    ) -> None:
        self._member = member
        self._section = learner.learning
        self._precision = learner.precision
        self._name_culprit = name_culprit
        self.closure_wanted = any(isinstance(one.optimizer, LBFGS) for one in member.optimizers)
        self.keeps_window = self.closure_wanted or self._section.nonfinite == "stop"
        # Only on the CPU is a number read for free; elsewhere the device keeps what it found.
        self._reads = learner.device.type == "cpu" or self._section.nonfinite == "stop"
        self._adams = {
            one.name: FusedAdams([one.optimizer])
            for one in member.optimizers
            if can_step_together([one.optimizer])
        }
        self._flushed = Flushed()
        self._nonfinite: list[Any] = []
        self._overflows: list[Tensor] = []

    def unscale(self, acting: Sequence[Registered]) -> None:
        """Bring fp16 gradients back to their true size, once per optimizer and step."""
        scaler = self._precision.scaler
        if scaler is not None:
            for one in acting:
                if any(param.grad is not None for param in one.params):
                    scaler.unscale_(one.optimizer)

    def unscaling(self) -> float:
        """The factor that unscaled the gradients of this step."""
        scaler = self._precision.scaler
        return 1.0 if scaler is None else 1.0 / scaler.get_scale()

    def step(
        self,
        acting: Sequence[Registered],
        metrics: dict[str, Any],
        together: Gradients | None = None,
    ) -> None:
        """Clip and step every optimizer that acts and got gradients.

        `together` are all of the gradients, where they lie side by side.
        """
        parts: list[tuple[Registered, list[Tensor]]] = []
        for one in acting:
            gradients = [param.grad for param in one.params if param.grad is not None]
            if gradients:
                parts.append((one, gradients))
                one.unanswered = -1
            elif one.unanswered >= 0:
                note_gradients(one, gradients)
        if self._section.clip_over == "module" and len(parts) > 1:
            everything = [gradient for _, gradients in parts for gradient in gradients]
            verdict = self._clip("default", everything, metrics, _flat(everything, together))
            for one, gradients in parts:
                self._move(one, gradients, verdict, metrics)
            return
        for one, gradients in parts:
            verdict = self._clip(one.name, gradients, metrics, _flat(gradients, together))
            self._move(one, gradients, verdict, metrics)

    def step_one(
        self,
        one: Registered,
        metrics: dict[str, Any],
        gradients: list[Tensor],
        flat: Array,
    ) -> None:
        """`step` for an optimizer that acts alone, by gradients in the order of its parameters."""
        one.unanswered = -1
        self._move(one, gradients, self._clip(one.name, gradients, metrics, flat), metrics)

    def step_with_closure(
        self,
        acting: Sequence[Registered],
        again: Again,
        metrics: dict[str, Any],
        total_weight: float,
    ) -> None:
        """Step an optimizer that evaluates the loss several times; metrics are of the first.

        A step in which any evaluation is to be skipped leaves everything as it was.
        """
        (one,) = acting
        params = [param.detach().clone() for param in one.params]
        state = {param: copy.deepcopy(kept) for param, kept in one.optimizer.state.items()}
        first = True

        def closure() -> float:
            nonlocal first
            loss = again(total_weight, first=first)
            gradients = [param.grad for param in one.params if param.grad is not None]
            bad = self._clip(one.name, gradients, metrics if first else {}, None)
            first = False
            if bool(bad):
                raise _SkippedError
            return float(loss)

        one.unanswered = -1
        try:
            one.optimizer.step(closure)
        except _SkippedError:
            with torch.no_grad():
                for param, before in zip(one.params, params, strict=True):
                    param.copy_(before)
            one.optimizer.state.clear()
            one.optimizer.state.update(state)
            return
        self._passed(one, metrics)

    def note_left_out(self, resting: Sequence[Registered]) -> None:
        """Count what a loss left out, for those that never got one."""
        for one in resting:
            if one.unanswered >= 0:
                note_gradients(one, ())

    def counts(self) -> dict[str, Any]:
        """Steps that were not made since the last call, where there are any to tell of."""
        counts: dict[str, Any] = {}
        if not self._nonfinite and not self._overflows:
            return counts
        for name, found in (("nonfinite", self._nonfinite), ("overflow", self._overflows)):
            if found:
                tensors = any(isinstance(one, Tensor) for one in found)
                counts[name] = torch.stack(found).sum() if tensors else sum(found)
                found.clear()
        return counts

    def _clip(
        self,
        name: str,
        gradients: list[Tensor],
        metrics: dict[str, Any],
        flat: Array | None,
    ) -> bool | Tensor:
        """Measure, answer what is not finite, clip; whether the step is bad."""
        section = self._section
        if section.nonfinite == "zero" and not self._reads:
            zero_nonfinite(gradients)
        norms = measure(gradients, section.norm_type, flat)
        verdict: bool | Tensor = False
        if self._precision.scaler is None:
            if not self._reads:
                verdict = ~torch.isfinite(torch.as_tensor(norms.total))
                self._nonfinite.append(verdict.to(torch.float32))
            elif not math.isfinite(float(norms.total)):
                self._nonfinite.append(1)
                verdict = self._answer(gradients)
                norms = measure(gradients, section.norm_type, flat)
        metrics[labelled("grad_norm", name)] = norms.total
        if section.max_grad_norm and verdict is not True:
            after = clip(gradients, norms, section.max_grad_norm, section.clip_by)
            metrics[labelled("grad_norm_clipped", name)] = after
        return verdict

    def _answer(self, gradients: list[Tensor]) -> bool:
        policy = self._section.nonfinite
        if policy == "zero":
            zero_nonfinite(gradients)
            return False
        if policy == "skip":
            return True
        names = [
            name
            for name, param in self._member.named.items()
            if param.grad is not None and not bool(torch.isfinite(param.grad).all())
        ]
        raise RunFailedError(
            f"gradients of module {self._member.module_id!r} are not finite: {', '.join(names)}.",
            *(self._name_culprit() or ["no loss term alone explains it: look at the hooks"]),
            "learner.nonfinite=skip would leave such steps out",
        )

    def _move(
        self,
        one: Registered,
        gradients: list[Tensor],
        bad: bool | Tensor,
        metrics: dict[str, Any],
    ) -> None:
        if bad is True:
            return
        scaler = self._precision.scaler
        if scaler is not None:
            overflow = self._precision.overflowed(one.optimizer)
            if overflow is not None:
                self._overflows.append(overflow)
            scaler.step(one.optimizer)
        elif bad is False:
            adam = self._adams.get(one.name)
            # What is wrapped around an optimizer's step since then must be called.
            with self._flushed:
                if adam is None or len(gradients) != len(one.params) or not adam.is_plain():
                    one.optimizer.step()
                else:
                    adam.step(gradients)
        else:
            guarded_step(one.optimizer, bad)
        self._passed(one, metrics)

    def _passed(self, one: Registered, metrics: dict[str, Any]) -> None:
        one.acted = True
        if one.scheduler is not None:
            one.scheduler.stepped(metrics)


def _flat(gradients: Sequence[Tensor], together: Gradients | None) -> Array | None:
    """All their numbers in one array, where they lie so."""
    return together.flat if together is not None and together.are(gradients) else None
