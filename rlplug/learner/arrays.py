"""Small networks on NumPy: the same hooks on arrays, once they were found equal to torch."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy
import torch
from torch.nn.modules.module import _has_any_global_hook

from rlplug.batch import Batch
from rlplug.batch.nested import leaves
from rlplug.errors import RlplugError
from rlplug.learner.losses import LossHooks, MinibatchLoss
from rlplug.learner.member import Member
from rlplug.learner.step import Engine, Evaluation, Names, evaluate_minibatches
from rlplug.nn.arrays import (
    LARGEST_MINIBATCH,
    Array,
    ArrayBatch,
    FrozenWeights,
    Tape,
    UnsupportedError,
)
from rlplug.seeding import random_state, set_random_state

_Work: TypeAlias = Callable[[Any], Any]
"""What an engine does, of a module or of a copy of it."""

_PREPARE, _GRADIENTS = "prepare_batch", "gradients"
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}
_MOST_TRIALS = 100
_CPU = torch.device("cpu")


class ArraysEngine:
    """Runs hooks on arrays where they were found equal to torch.

    Losses are compared by name: torch does the work, and arrays do the same on a deep copy of
    module, extras and plugins, with the same random numbers. Until every optimizer has had a loss
    that was compared, and from a loss that was not until it was, torch does the work.
    """

    def __init__(
        self,
        member: Member,
        losses: LossHooks,
        in_torch: Callable[[Member, LossHooks], Engine],
        kept: Mapping[str, Any] | None,
    ) -> None:
        kept = kept or {}
        self.name: str = kept.get("name", "undecided")
        self.reason: str = kept.get("reason", "not decided before the first minibatch")
        self._compared: set[str] = set(kept.get("compared", ()))
        """The losses for which arrays were found equal, and `prepare_batch`."""
        optimizers = {f"optimizer {optimizer.name}" for optimizer in member.optimizers}
        self._awaited: set[str] = set(kept.get("awaited", optimizers))
        """What is to be compared before arrays do the work: optimizers, then losses."""
        self._trials = int(kept.get("trials", _MOST_TRIALS))
        """How many more trials there may be."""
        self._member = member
        self._losses = losses
        self._in_torch = in_torch
        self._torch = in_torch(member, losses)
        self._arrays = ArraysPass(member, losses)
        if self.name != "torch":
            self._leave(self._arrays.unfit())

    def prepare(self, batch: Batch, batches: Mapping[str, Batch]) -> Batch:
        """Run `prepare_batch` on arrays; the first time, both ways."""

        def work(engine: Any) -> Any:
            return engine.prepare(batch, batches)

        tried = () if _PREPARE in self._compared else (batch,)
        prepared: Batch = self._carried_out(work, tried, "batch")
        return prepared

    def gradients(self, minibatches: Sequence[Batch], names: Names) -> Evaluation:
        """Evaluate minibatches, and leave the gradients in the parameters of the module."""

        def work(engine: Any) -> Any:
            return engine.gradients(minibatches, names)

        result: Evaluation = self._carried_out(work, minibatches, "network")
        return result

    def get_state(self) -> dict[str, Any]:
        """What it has decided, and what the next decision depends on."""
        return {
            "name": self.name,
            "reason": self.reason,
            "compared": sorted(self._compared),
            "awaited": sorted(self._awaited),
            "trials": self._trials,
        }

    def _leave(self, reason: str) -> None:
        """Torch does the work from now on, for this reason; without one nothing changes."""
        if reason:
            self.name, self.reason = "torch", reason

    def _carried_out(self, work: _Work, tried: Sequence[Batch], what: str) -> Any:
        """The result of some work on arrays or in torch; without a decision, both if `tried`."""
        arrays = self._arrays
        if self.name == "arrays" and (reason := arrays.unfit()):
            self._leave(reason)
        if self.name == "arrays":
            try:
                result = work(arrays)
            except RlplugError:
                raise
            except Exception as error:
                self._leave(_told(error))
            else:
                if self._compared.issuperset(arrays.parts):
                    return result
                self.name, self.reason = "undecided", "a loss came later"
                self._awaited = arrays.parts - self._compared
            return self._on_copy(work)
        trial = None
        if tried and self.name == "undecided":
            trial = self._copied(max(batch.rows for batch in tried), what)
        before = random_state(_CPU) if trial else {}
        result = work(self._torch)
        if trial:
            after = random_state(_CPU)
            set_random_state(before)
            try:
                self._compare(work, result, *trial)
            except Exception as error:
                # If the plugin itself is wrong, torch has raised.
                self._leave(_told(error))
            finally:
                set_random_state(after)
        return result

    def _compare(self, work: _Work, result: Any, member: Member, losses: LossHooks) -> None:
        """Do on arrays and copies what torch did, and decide."""
        arrays, expected = ArraysPass(member, losses), _values(result, self._member)
        if not expected:
            return
        reason = arrays.unfit()
        if not reason:
            mine = _values(work(arrays), member)
            reason = _kept_arrays(member, losses) or _difference(mine, expected, member)
        self._leave(reason)
        if not reason:
            self._compared |= arrays.parts
            self._awaited -= self._compared | expected.keys()
            if not self._awaited:
                self.name, self.reason = "arrays", "equal to torch on the first minibatch"

    def _copied(self, rows: int, what: str) -> tuple[Member, LossHooks] | None:
        """What a trial of so many rows runs on; None where there can be none."""
        if rows * sum(param.numel() for param in self._member.named.values()) > LARGEST_MINIBATCH:
            self._leave(f"the {what} is large")
        elif not self._trials:
            self._leave("a loss that came once did not come again to be compared")
        else:
            self._trials -= 1
            try:
                return _copy(self._member, self._losses)
            except Exception as error:
                self._leave(f"module or plugins cannot be copied: {error}".partition("\n")[0])
        return None

    def _on_copy(self, work: _Work) -> Any:
        """Work in torch after hooks were called on arrays: what they keep changes in copies."""
        try:
            member, losses = _copy(self._member, self._losses)
        except Exception:
            return work(self._torch)
        result = work(self._in_torch(member, losses))
        for name, param in self._member.named.items():
            param.grad = member.named[name].grad
        return result


class ArraysPass:
    """Losses on arrays, gradients by their tape; to be used where it is not `unfit`."""

    def __init__(self, member: Member, losses: LossHooks) -> None:
        self.parts: set[str] = set()
        """What the last work was: the names of losses, of terms and optimizers, or of a hook."""
        self._member = member
        self._losses = losses
        self._copies = losses.calls.implements("postprocess_gradients")
        """Whether hooks see the gradients, and may keep them."""
        self._params = [param for one in member.optimizers for param in one.params]
        self._hooks = [
            table
            for part in member.parts()
            for module in part.modules()
            for table in (module._backward_hooks, module._backward_pre_hooks)
        ]
        """The tables of hooks that need autograd."""
        self._tape: Any = None
        self._fit_in: object | None = None
        """The scope in which the tape was found to be fit."""
        self._several = False
        self._sum: Any = None
        """The gradients of the minibatches before this one."""
        self._reached: set[int] = set()
        """The positions of the parameters that have gradients."""

    def unfit(self) -> str:
        """Why arrays will not do; empty if they will."""
        scope = FrozenWeights.scope.now
        if scope is not None and scope is self._fit_in:
            return ""
        hooked = any(self._hooks) or _has_any_global_hook()  # type: ignore[no-untyped-call] # untyped in torch
        for param in self._params:
            hooked = hooked or param._backward_hooks or param._post_accumulate_grad_hooks
        if hooked:
            return "not on arrays: hooks on modules or tensors"
        if torch._C._is_any_autocast_enabled():
            return "not on arrays: autocast is on"
        if self._tape is None or not self._tape.current():
            if not all(param.requires_grad for param in self._params):
                return "not on arrays: a parameter of an optimizer is frozen"
            try:
                self._tape = Tape(self._params, self._member.parts())
            except UnsupportedError as error:
                return error.reason
        self._fit_in = scope
        return ""

    def prepare(self, batch: Batch, batches: Mapping[str, Batch]) -> Batch:
        """Run `prepare_batch` on arrays."""
        self.parts = {_PREPARE}
        with self._tape as tape:
            prepared = self._losses.prepare(self._member, tape.batch(batch), batches)
        return prepared.plain() if isinstance(prepared, ArrayBatch) else prepared

    def gradients(self, minibatches: Sequence[Batch], names: Names) -> Evaluation:
        """Evaluate minibatches, and leave the gradients in the parameters of the module."""
        self._several, self._sum = len(minibatches) > 1, None
        self.parts, self._reached = set(), set()
        with self._tape as tape:
            passes = self._loss, self._backward
            result = evaluate_minibatches(*passes, minibatches, names, flat=tape.flat)
        if not result.weight:
            return result
        if self._sum is not None:
            tape.flat[:] = self._sum
        whole = len(self._reached) == len(self._params) and not self._copies
        for index, (param, gradient) in enumerate(zip(self._params, tape.gradients, strict=True)):
            if not whole:
                # Copies: hooks may keep what they see, and the array is written again.
                param.grad = gradient.clone() if index in self._reached else None
            elif param.grad is not gradient:
                param.grad = gradient
        return result if whole else result._replace(flat=None)

    def _loss(self, batch: Batch, names: Names) -> MinibatchLoss | None:
        loss = self._losses(self._member, self._tape.batch(batch), names)
        if loss is not None:
            self.parts.update(loss.terms, loss.named)
        return loss

    def _backward(self, loss: MinibatchLoss, moved: Names, weight: float) -> None:
        """Write gradients into the tape's array; those of several minibatches are summed."""
        tape, optimizers = self._tape, self._member.optimizers
        if loss.own is None and len(moved) == len(optimizers):
            self._reached.update(tape.backward(loss.total, weight=weight))
        else:
            tape.flat.fill(0)
            start = 0
            for optimizer in optimizers:
                span = range(start, start + len(optimizer.params))
                start += len(optimizer.params)
                own: Any = loss.total if loss.own is None else loss.own.get(optimizer.name)
                if optimizer.name in moved and own.requires_grad:
                    self._reached.update(tape.backward(own, weight=weight, wanted=span))
        if self._several:
            self._sum = tape.flat.copy() if self._sum is None else self._sum + tape.flat
            tape.clear()


# -- copies ----------------------------------------------------------------------------------------


def _copy(member: Member, losses: LossHooks) -> tuple[Member, LossHooks]:
    """The module, its extras and the plugins, copied with all that they hold."""
    learner: Any = losses.learner
    made, view = copy.copy(member), copy.copy(learner)
    others = [module for module in learner.modules.values() if module is not member.module]
    memo: dict[int, Any] = {id(learner): view, **{id(module): module for module in others}}
    made.module, made.extras = copy.deepcopy((member.module, member.extras), memo)
    # As hooks see it: the same random numbers, and metrics that torch's pass reports.
    view.modules = {**learner.modules, member.module_id: made.module}
    view.extra = {**learner.extra, member.module_id: made.extras}
    view.registered = {}
    generators = learner.generators.items()
    view.generators = {name: generator.clone_state() for name, generator in generators}
    made.named = {name: memo.get(id(param), param) for name, param in member.named.items()}
    made.optimizers = []
    for optimizer in member.optimizers:
        other = copy.copy(optimizer)
        other.params = [memo[id(param)] for param in optimizer.params]
        made.optimizers.append(other)
    return made, LossHooks(losses.calls.copied(memo), view)


def _kept_arrays(member: Member, losses: LossHooks) -> str:
    """A reason if hooks kept arrays that they computed, where torch would have left tensors."""
    learner: Any = losses.learner
    reached: dict[int, Any] = {id(learner): learner}
    plugins = [participant.plugin for participant in losses.calls.participants]
    try:
        copy.deepcopy((member.module, member.extras, plugins), reached)
        keeps = any(type(value) is Array for value in reached.values())
    except Exception:
        # They have been copied before: what cannot be copied is an array's.
        keeps = True
    return "its hooks keep what they compute" if keeps else ""


# -- comparison ------------------------------------------------------------------------------------


def _values(result: Evaluation | Batch, member: Member) -> dict[str, Any]:
    """All that some work gave, by name; nothing where nothing moves."""
    if isinstance(result, Batch):
        return {name: result.array(name) for name in result}
    if not result.weight:
        return {}
    values: dict[str, Any] = {f"optimizer {name}": True for name in result.acting}
    for kind, parts in (("metrics", result.metrics), ("rows", result.rows)):
        for index, told in enumerate(parts):
            for name, value in told.items():
                values[f"{name} of the {kind} of minibatch {index}"] = value
    gradients = [
        torch.full_like(param, math.nan) if param.grad is None else param.grad
        for param in member.named.values()
    ]
    values[_GRADIENTS] = torch.cat([gradient.flatten() for gradient in gradients])
    return values


def _difference(values: Mapping[str, Any], expected: Mapping[str, Any], member: Member) -> str:
    """What differs from torch beyond the tolerance, as a reason; empty if nothing does."""
    tolerance = max((_TOLERANCE.get(p.dtype, 0.0) for p in member.named.values()), default=0.0)
    differing = sorted(values.keys() ^ expected.keys())
    for name, value in () if differing else expected.items():
        for mine, other in zip(leaves(values[name]), leaves(value), strict=True):
            a = numpy.asarray(mine, dtype=numpy.float64)
            b = numpy.asarray(other, dtype=numpy.float64)
            # Gradients may all be small.
            least = 0.0 if name == _GRADIENTS else 1.0
            atol = tolerance * numpy.abs(b[numpy.isfinite(b)]).max(initial=least)
            if a.shape != b.shape or not numpy.allclose(a, b, rtol=0.0, atol=atol, equal_nan=True):
                differing.append(name)
    return f"arrays and torch differ in {differing[0]!r}" if differing else ""


def _told(error: Exception) -> str:
    if isinstance(error, UnsupportedError):
        return error.reason
    return f"its hooks need tensors: {error}".partition("\n")[0]
