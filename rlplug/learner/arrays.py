"""Small networks on NumPy: the same hooks on arrays, once they were found equal to torch."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook

from rlplug.batch import Batch
from rlplug.batch.nested import first_leaf, leaves
from rlplug.errors import RlplugError
from rlplug.learner.losses import LossHooks, MinibatchLoss
from rlplug.learner.member import Member
from rlplug.learner.optimizers import RegisteredOptimizer
from rlplug.learner.step import Engine, Evaluation, Names, evaluated
from rlplug.nn.arrays import (
    LARGEST_MINIBATCH,
    Array,
    ArrayBatch,
    FrozenWeights,
    Tape,
    UnsupportedError,
    unwrap,
)
from rlplug.seeding import derive, random_state, set_random_state

__all__ = ["ArraysEngine"]

_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}

_MOST_COPIES = 100
"""Trials that wait for a loss to come again, which came once."""

_CPU = torch.device("cpu")


class ArraysEngine:
    """Runs hooks on arrays where they were found equal to torch.

    Each named loss is compared when it first comes: torch does the work, and arrays the same on a
    deep copy of module, extras and plugins, with the same random numbers. Until all optimizers have
    had a loss that was compared, and wherever another loss comes later, torch does the work.
    """

    def __init__(
        self,
        member: Member,
        losses: LossHooks,
        in_torch: Callable[[Member, LossHooks], Engine],
        *,
        copies: bool,
        kept: Mapping[str, Any] | None,
    ) -> None:
        kept = kept or {}
        self.name: str = kept.get("name", "undecided")
        self.reason: str = kept.get("reason", "not decided before the first minibatch")
        self._member = member
        self._losses = losses
        self._in_torch = in_torch
        self._torch = in_torch(member, losses)
        self._keeps_gradients = copies
        """Whether hooks see the gradients, and may keep them."""
        self._compared: set[str] = set(kept.get("compared", ()))
        """The losses that were found equal."""
        self._moved: set[str] = set(kept.get("moved", ()))
        """The optimizers that these moved."""
        self._copies = int(kept.get("copies", _MOST_COPIES))
        """How many more minibatches may be tried."""
        self._tries = bool(kept.get("tries", True))
        """Whether the next minibatch may have a loss that was not compared."""
        self._trial: tuple[Member, LossHooks] | None = None
        """The copy on which `prepare_batch` was tried, for the first minibatch."""
        self._arrays: ArraysPass | None = None
        if self.name != "torch":
            try:
                self._arrays = ArraysPass(member, losses, copies=copies)
            except UnsupportedError as error:
                self._leave(error.reason)

    def prepare(self, batch: Batch, batches: Mapping[str, Batch]) -> Batch:
        """Run `prepare_batch` on arrays; before they are decided on, both ways."""
        if self.name == "arrays" and self._arrays is not None:
            generators = _generators_of(self._losses)
            states = {name: generator.get_state() for name, generator in generators.items()}
            try:
                return self._arrays.prepare(batch, batches)
            except RlplugError:
                raise
            except Exception as error:
                self._leave(_told(error))
                for name, state in states.items():
                    generators[name].set_state(state)
        is_first = self.name == "undecided" and not self._compared
        if is_first and self._is_large(batch.rows):
            self._leave("the batch is large")
        trial = self._copied() if is_first and self.name == "undecided" else None
        before = random_state(_CPU)
        prepared = self._torch.prepare(batch, batches)
        if trial is not None:
            after = random_state(_CPU)
            set_random_state(before)
            try:
                tried = ArraysPass(*trial, copies=False).prepare(batch, batches)
                columns = _new_columns(tried, batch), _new_columns(prepared, batch)
                if reason := _difference(*columns, self._member):
                    self._leave(reason)
            except Exception as error:
                self._leave(_told(error))
            finally:
                set_random_state(after)
            self._trial = trial
        return prepared

    def gradients(
        self, minibatches: Sequence[Batch], ready: Sequence[RegisteredOptimizer], names: Names
    ) -> Evaluation:
        """Evaluate minibatches, and leave the gradients in the parameters of the module."""
        if self.name == "arrays" and self._arrays is not None:
            try:
                self._arrays.current_tape()
            except UnsupportedError as error:
                self._leave(error.reason)
        if self.name == "arrays" and self._arrays is not None:
            try:
                result = self._arrays.gradients(minibatches, ready, names)
            except RlplugError:
                raise
            except Exception as error:
                self._leave(_told(error))
            else:
                if self._compared.issuperset(result.parts):
                    return result
                self.name, self.reason, self._tries = "undecided", "a loss came later", True
            return self._torch_on_copy(minibatches, ready, names)
        if self.name == "torch" or not minibatches:
            return self._torch.gradients(minibatches, ready, names)
        return self._tried(minibatches, ready, names)

    def get_state(self) -> dict[str, Any]:
        """What it has decided."""
        return {
            "name": self.name,
            "reason": self.reason,
            "compared": sorted(self._compared),
            "moved": sorted(self._moved),
            "copies": self._copies,
            "tries": self._tries,
        }

    def _tried(
        self, minibatches: Sequence[Batch], ready: Sequence[RegisteredOptimizer], names: Names
    ) -> Evaluation:
        """Torch's evaluation; arrays make the same on a copy if there is something to compare."""
        if self._is_large(max(batch.rows for batch in minibatches)):
            self._leave("the network is large")
        trial, self._trial = self._trial, None
        if self.name == "undecided" and self._tries and trial is None:
            trial = self._copied()
        before = random_state(_CPU) if trial is not None else {}
        result = self._torch.gradients(minibatches, ready, names)
        if not result.weight:
            # Nobody knows when a loss comes: when it has come, the next one is compared.
            self._tries = self._tries and bool(result.parts)
            return result
        acting = [optimizer.name for optimizer in result.acting]
        known = self._compared.issuperset(result.parts) and self._moved.issuperset(acting)
        if self.name != "undecided" or known:
            return result
        if trial is None:
            self._tries = True
            return result
        after = random_state(_CPU)
        set_random_state(before)
        try:
            reason = self._compare(trial, result, minibatches, ready, names)
        finally:
            set_random_state(after)
        if reason:
            self._leave(reason)
            return result
        self._compared.update(result.parts)
        self._moved.update(acting)
        # In turn, another one acts next.
        self._tries = len(ready) < len(self._member.optimizers)
        if len(self._moved) == len(self._member.optimizers):
            self.name, self.reason = "arrays", "equal to torch on the first minibatch"
        return result

    def _torch_on_copy(
        self, minibatches: Sequence[Batch], ready: Sequence[RegisteredOptimizer], names: Names
    ) -> Evaluation:
        """Torch's evaluation where hooks have been called: what they keep changes in copies."""
        try:
            member, losses = _copy(self._member, self._losses)
        except Exception:
            return self._torch.gradients(minibatches, ready, names)
        copied = [optimizer for optimizer in member.optimizers if optimizer.name in names]
        result = self._in_torch(member, losses).gradients(
            minibatches, copied if ready else (), names
        )
        for name, param in self._member.named.items():
            param.grad = member.named[name].grad
        acting = {optimizer.name for optimizer in result.acting}
        return result._replace(acting=[one for one in ready if one.name in acting])

    def _compare(
        self,
        trial: tuple[Member, LossHooks],
        result: Evaluation,
        minibatches: Sequence[Batch],
        ready: Sequence[RegisteredOptimizer],
        names: Names,
    ) -> str:
        """Why arrays will not do; empty if they give what torch gave."""
        member, losses = trial
        acting = {optimizer.name for optimizer in ready}
        copied = [optimizer for optimizer in member.optimizers if optimizer.name in acting]
        try:
            found = ArraysPass(member, losses, copies=False).gradients(minibatches, copied, names)
        except Exception as error:
            # If the plugin itself is wrong, torch has raised.
            return _told(error)
        if _holds_arrays(member, losses):
            return "its hooks keep what they compute"
        return _difference(_values(found, member), _values(result, self._member), self._member)

    def _copied(self) -> tuple[Member, LossHooks] | None:
        """Copies of the module with its extras, and of the plugins, for one trial."""
        self._copies -= 1
        if not self._copies:
            self._leave("a loss that came once did not come again to be compared")
            return None
        try:
            return _copy(self._member, self._losses)
        except Exception as error:
            self._leave(f"module or plugins cannot be copied: {error}".partition("\n")[0])
            return None

    def _is_large(self, rows: int) -> bool:
        params = self._member.named.values()
        return rows * sum(param.numel() for param in params) > LARGEST_MINIBATCH

    def _leave(self, reason: str) -> None:
        self.name, self.reason = "torch", reason
        self._arrays = self._trial = None


class ArraysPass:
    """Losses on arrays, gradients by their tape."""

    def __init__(self, member: Member, losses: LossHooks, *, copies: bool) -> None:
        self._member = member
        self._losses = losses
        self._copies = copies
        self._params = [param for one in member.optimizers for param in one.params]
        self._parts = list(member.parts())
        self._hooks = _hooks_of(self._parts)
        self._tape = self._new_tape()
        self._checked_in: object | None = None
        """The scope in which the tape was found to be current."""
        self._several = False
        self._sum: Any = None
        """The gradients of the minibatches before this one."""
        self._reached: set[int] = set()
        """The positions of the parameters that have gradients."""
        self.current_tape()

    def prepare(self, batch: Batch, batches: Mapping[str, Batch]) -> Batch:
        """Run `prepare_batch` on arrays."""
        with self.current_tape() as tape:
            prepared = self._losses.prepare(self._member, tape.batch(batch), batches)
        return prepared.plain() if isinstance(prepared, ArrayBatch) else prepared

    def gradients(
        self, minibatches: Sequence[Batch], ready: Sequence[RegisteredOptimizer], names: Names
    ) -> Evaluation:
        """Evaluate minibatches, and leave the gradients in the parameters of the module."""
        self._several, self._sum, self._reached = len(minibatches) > 1, None, set()
        with self.current_tape() as tape:
            result = evaluated(self, minibatches, ready, names)
            if not result.weight:
                return result
            if self._sum is not None:
                tape.flat[:] = self._sum
            if len(self._reached) == len(tape.gradients) and not self._copies:
                for param, gradient in zip(self._params, tape.gradients, strict=True):
                    if param.grad is not gradient:
                        param.grad = gradient
                return result._replace(flat=tape.flat)
            for index, param in enumerate(self._params):
                # Copies: hooks may keep what they see, and the array is written again.
                reached = index in self._reached
                param.grad = tape.gradients[index].clone() if reached else None
            return result

    def loss(self, batch: Batch, names: Names) -> MinibatchLoss | None:
        """The losses of all plugins; metrics become numbers and rows tensors."""
        loss = self._losses(self._member, self._tape.batch(batch), names)
        if loss is not None:
            metrics = loss.metrics
            for name, value in metrics.items():
                if isinstance(value, Array):
                    metrics[name] = value.value if value.dim() == 0 else unwrap(value).clone()
            for name, rows in loss.rows.items():
                loss.rows[name] = unwrap(rows)
        return loss

    def backward(
        self, loss: MinibatchLoss, moved: Sequence[RegisteredOptimizer], weight: float
    ) -> None:
        """Write gradients into the tape's array; those of several minibatches are summed."""
        tape = self._tape
        optimizers = self._member.optimizers
        if not loss.mapped and len(moved) == len(optimizers):
            self._reached.update(tape.backward(loss.total, weight=weight))
        else:
            tape.flat.fill(0)
            start = 0
            for optimizer in optimizers:
                span = range(start, start + len(optimizer.params))
                start += len(optimizer.params)
                own = loss.for_optimizer(optimizer.name) if optimizer in moved else None
                if own is not None and own.requires_grad:
                    self._reached.update(tape.backward(own, weight=weight, wanted=span))
        if self._several:
            self._sum = tape.flat.copy() if self._sum is None else self._sum + tape.flat
            tape.clear()

    def current_tape(self) -> Tape:
        """The tape, made anew where a parameter was replaced; refused where it will not do."""
        scope = FrozenWeights.scope.now
        if scope is not None and scope is self._checked_in:
            return self._tape
        hooked = any(self._hooks) or _has_any_global_hook()  # type: ignore[no-untyped-call] # untyped in torch
        for param in self._params:
            hooked = hooked or param._backward_hooks or param._post_accumulate_grad_hooks
        if hooked:
            raise UnsupportedError("hooks on modules or tensors")
        if torch._C._is_any_autocast_enabled():
            raise UnsupportedError("autocast is on")
        if not self._tape.current():
            self._tape = self._new_tape()
        self._checked_in = scope
        return self._tape

    def _new_tape(self) -> Tape:
        if not all(param.requires_grad for param in self._params):
            raise UnsupportedError("a parameter of an optimizer is frozen")
        return Tape(self._params, self._parts)


# -- the copy for a trial --------------------------------------------------------------------------


class LearnerCopy:
    """The learner as hooks see it in a trial: with copies of one module, and generators apart."""

    def __init__(self, learner: Any, member: Member) -> None:
        self._learner = learner
        self.modules: Mapping[str, Any] = {**learner.modules, member.module_id: member.module}
        self.extra: Mapping[str, Any] = {**learner.extra, member.module_id: member.extras}
        self._generators = {
            name: torch.Generator(learner.device).set_state(generator.get_state())
            for name, generator in learner.generators.items()
        }

    def generator(self, module_id: str = "default") -> torch.Generator:
        """The same random numbers as in the learner, without taking them from it."""
        if module_id not in self._generators:
            seed = derive(self._learner.seed, "training", module_id)
            self._generators[module_id] = torch.Generator(self._learner.device).manual_seed(seed)
        return self._generators[module_id]

    def register_metrics(self, module_id: str, metrics: Mapping[str, Any]) -> None:
        """Nothing: what torch does registers them."""

    def register_metric(self, module_id: str, name: str, value: Any) -> None:
        """Nothing: what torch does registers it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)


def _copy(member: Member, losses: LossHooks) -> tuple[Member, LossHooks]:
    """The module, its extras and the plugins, copied with all that they hold."""
    learner: Any = losses.learner
    made = copy.copy(member)
    view: Any = LearnerCopy.__new__(LearnerCopy)
    others = [module for module in learner.modules.values() if module is not member.module]
    memo: dict[int, Any] = {id(learner): view, **{id(module): module for module in others}}
    made.module, made.extras = copy.deepcopy((member.module, member.extras), memo)
    view.__init__(learner, made)
    made.named = {name: memo.get(id(param), param) for name, param in member.named.items()}
    made.optimizers = []
    for optimizer in member.optimizers:
        other = copy.copy(optimizer)
        other.params = [memo[id(param)] for param in optimizer.params]
        made.optimizers.append(other)
    return made, LossHooks(losses.calls.copied(memo), view)


def _generators_of(losses: LossHooks) -> dict[str, torch.Generator]:
    learner: Any = losses.learner
    generators: dict[str, torch.Generator] = learner.generators
    return generators


def _holds_arrays(member: Member, losses: LossHooks) -> bool:
    """Whether hooks kept arrays that they computed, where torch would have left tensors."""
    reached: dict[int, Any] = {}
    learner: Any = losses.learner
    reached[id(learner)] = learner
    plugins = [participant.plugin for participant in losses.calls.participants]
    try:
        copy.deepcopy((member.module, member.extras, plugins), reached)
    except Exception:
        # They have been copied before: what cannot be copied is an array's.
        return True
    return any(type(value) is Array for value in reached.values())


# -- comparison ------------------------------------------------------------------------------------


def _values(result: Evaluation, member: Member) -> dict[str, Any]:
    """All that an evaluation gave, by name."""
    values: dict[str, Any] = {"stop": result.stop}
    if result.weight:
        for name, param in member.named.items():
            if param.grad is not None:
                values[f"gradient of {name}"] = param.grad.detach()
    for kind in ("metrics", "rows"):
        for index, told in enumerate(getattr(result, kind)):
            for name, value in told.items():
                values[f"{name} of the {kind} of minibatch {index}"] = value
    return values


def _difference(found: Mapping[str, Any], expected: Mapping[str, Any], member: Member) -> str:
    """What differs from torch beyond the tolerance, as a reason; empty if nothing does."""
    dtypes = [param.dtype for param in member.named.values()]
    tolerance = max((_TOLERANCE.get(dtype, 0.0) for dtype in dtypes), default=0.0)
    if found.keys() != expected.keys():
        return f"arrays and torch differ in {min(found.keys() ^ expected.keys())!r}"
    gradients = [value for name, value in expected.items() if name.startswith("gradient of ")]
    largest = max((float(value.abs().max()) for value in gradients if value.numel()), default=0.0)
    for name, value in expected.items():
        for mine, torchs in zip(leaves(found[name]), leaves(value), strict=True):
            a = numpy.asarray(mine, dtype=numpy.float64)
            b = numpy.asarray(torchs, dtype=numpy.float64)
            scale = largest if name.startswith("gradient of ") else _size(b)
            # Where it is not finite no tolerance is known; NumPy would warn of this one.
            atol = tolerance * scale if math.isfinite(scale) else 0.0
            if a.shape != b.shape or not numpy.allclose(a, b, rtol=0.0, atol=atol, equal_nan=True):
                return f"arrays and torch differ in {name!r}"
    return ""


def _size(values: Any) -> float:
    finite = values[numpy.isfinite(values)]
    return max(1.0, float(numpy.abs(finite).max())) if finite.size else 1.0


def _new_columns(prepared: Batch, batch: Batch) -> dict[str, Any]:
    """The columns that `prepare_batch` added or replaced, as NumPy."""
    columns = {name: prepared.array(name) for name in prepared}
    return {
        name: column
        for name, column in columns.items()
        if name not in batch or _address(column) != _address(batch.array(name))
    }


def _address(column: Any) -> int:
    return first_leaf(column).ctypes.data  # type: ignore[no-any-return] # of any column


def _hooks_of(parts: Iterable[nn.Module]) -> list[Any]:
    """The tables of hooks that need autograd, of all modules."""
    tables: list[Any] = []
    for part in parts:
        for module in part.modules():
            tables += (module._backward_hooks, module._backward_pre_hooks)
    return tables


def _told(error: Exception) -> str:
    if isinstance(error, UnsupportedError):
        return error.reason
    return f"its hooks need tensors: {error}".partition("\n")[0]
