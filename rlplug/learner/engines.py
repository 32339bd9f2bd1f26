"""Which engine computes the gradients of a module: arrays, torch or compiled."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from rlplug.batch import Batch
from rlplug.config.sections import ComputeSection
from rlplug.hooks.calls import HookCalls
from rlplug.hooks.outside import OutsideNames
from rlplug.learner.arrays import ArraysEngine, ArraysTrial
from rlplug.learner.compiled import (
    CompiledEngine,
    can_trace_gradients,
    check_backend,
    compiled_forward,
)
from rlplug.learner.device import Precision, has_convolutions
from rlplug.learner.gradients import GradientHooks, TermGradients, TorchEngine
from rlplug.learner.losses import LossHooks
from rlplug.learner.module_update import ModuleUpdate, Prepare
from rlplug.learner.snapshot import Snapshot
from rlplug.nn.arrays import UnsupportedError

__all__ = ["Engines"]

_HOOK = "compute_loss_for_module"


class Engines:
    """Chooses an engine for each module; where one fails, torch does its work from then on."""

    def __init__(
        self,
        calls: HookCalls,
        losses: LossHooks,
        *,
        compute: ComputeSection,
        precision: Precision,
        terms: TermGradients,
        hooks: GradientHooks,
        generators: dict[str, torch.Generator],
        registered_metrics: dict[str, dict[str, Any]],
    ) -> None:
        self._calls = calls
        self._losses = losses
        self._compute = compute
        self._precision = precision
        self._terms = terms
        self._hooks = hooks
        self._generators = generators
        self._registered_metrics = registered_metrics
        self._torch = TorchEngine(losses, precision, terms)
        if compute.compile:
            check_backend(compute)

    def choose(self, update: ModuleUpdate) -> None:
        """Give a module its first engine."""
        reason = self._why_torch(update)
        if reason:
            update.engine, update.engine_reason = self._torch, reason
        elif not self._compute.compile:
            update.engine = self._trial(update)
            update.engine_reason = "not decided before the first minibatch"
        elif self._compute.compile_part == "model":
            update.engine = self._compiled_model(update)
            update.engine_reason = "compute.compile is on"
        elif can_trace_gradients():
            update.engine, update.engine_reason = self._compiled(update), "compute.compile is on"
        else:
            reason = f"torch {torch.__version__} does not trace autograd.grad"
            update.engine, update.engine_reason = self._torch, reason
            _warn_uncompiled(update, reason)

    def resume(self, update: ModuleUpdate, name: str, reason: str) -> None:
        """Go on with the engine of a saved state, where that is possible here."""
        if self._compute.compile or self._why_torch(update):
            return
        if name == "torch":
            update.engine, update.engine_reason = self._torch, reason
        if name == "arrays":
            try:
                update.engine = ArraysEngine(update, self._losses, copies=self._hooks.used)
                update.engine_reason = reason
            except UnsupportedError as error:
                update.engine, update.engine_reason = self._torch, error.reason

    def prepare(self, update: ModuleUpdate, prepare: Prepare, batch: Batch) -> Batch:
        """Run `prepare_batch` on the module's engine."""
        before = GeneratorStates(self._generators)
        try:
            return update.engine.prepare(prepare, batch)
        except Exception as error:
            if update.engine.name != "arrays":
                raise
            before.restore()
            # If the plugin itself is wrong, torch raises what it raises.
            self._leave(update, error)
            return prepare(batch)

    def gradients(self, window: list[ModuleUpdate]) -> None:
        """Leave the gradients of all modules' minibatches in their parameters."""
        for update in window:
            before = GeneratorStates(self._generators)
            try:
                update.engine.gradients([update])
            except Exception as error:
                if update.engine.name in ("torch", "trial", "sharded"):
                    raise
                before.restore()
                update.discard()
                # If the plugin itself is wrong, torch raises what it raises.
                self._torch.gradients([update])
                self._leave(update, error)

    def _leave(self, update: ModuleUpdate, error: Exception) -> None:
        text = error.reason if isinstance(error, UnsupportedError) else str(error)
        # Of what torch cannot trace the first line is a title.
        title, _, rest = text.strip().partition("\n")
        explained = rest.strip().partition("\n")[0].partition("Explanation: ")[2]
        reason = ": ".join(filter(None, (title, explained))) or type(error).__name__
        if update.engine.name.startswith("compiled"):
            _warn_uncompiled(update, reason)
        update.engine, update.engine_reason = self._torch, reason

    def _why_torch(self, update: ModuleUpdate) -> str:
        """Why neither arrays nor a compiled graph can do; empty if one of them can."""
        if self._terms.wanted and not (
            self._compute.compile and self._compute.compile_part == "model"
        ):
            return "gradients per term are wanted"
        if self._compute.compile:
            return ""
        if self._compute.arrays == "off":
            return "compute.arrays is off"
        if self._precision.device.type != "cpu":
            return f"the device is {self._precision.device.type}"
        if self._compute.precision != "fp32":
            return f"compute.precision is {self._compute.precision}"
        if self._compute.detect_anomaly:
            return "compute.detect_anomaly is on"
        if update.member.sequences:
            return "the network is recurrent"
        if any(has_convolutions(part) for part in update.member.parts()):
            return "the network is convolutional"
        return "parameters are shared with other modules" if update.member.shared else ""

    def _trial(self, update: ModuleUpdate) -> ArraysTrial:
        snapshot = partial(self._snapshot, list(update.member.parts()))
        copies = self._hooks.used
        return ArraysTrial(update, self._torch, self._losses, snapshot, copies=copies)

    def _snapshot(self, parts: Sequence[nn.Module]) -> Snapshot:
        """What a trial of an engine may change: parts of modules, and all that plugins keep."""
        apart = [self._calls, self._losses.learner]
        roots = [*parts, *(one.plugin for one in self._calls.participants)]
        generators = GeneratorStates(self._generators)
        names = self._outside_names(parts)
        return Snapshot(roots, apart, self._registered_metrics, names, generators.restore)

    def _outside_names(self, parts: Sequence[nn.Module]) -> OutsideNames:
        return self._calls.outside_names([one for part in parts for one in part.modules()])

    def _compiled(self, update: ModuleUpdate) -> CompiledEngine:
        plugins = [one.name for one in self._calls.implementations(_HOOK)]
        return CompiledEngine(
            update,
            self._losses,
            self._precision,
            self._calls.config_of,
            plugins,
            self._compute,
        )

    def _compiled_model(self, update: ModuleUpdate) -> TorchEngine:
        forward = compiled_forward(update, self._compute, self._precision.device)
        return TorchEngine(self._losses, self._precision, self._terms, forward)


class GeneratorStates:
    """The states of generators by module id, to be put back; one made since then is forgotten."""

    def __init__(self, generators: dict[str, torch.Generator]) -> None:
        self._generators = generators
        states = map(torch.Generator.get_state, generators.values())
        self._states = dict(zip(generators, states, strict=True))

    def restore(self) -> None:
        """Put everything back."""
        for name in list(self._generators):
            if name in self._states:
                self._generators[name].set_state(self._states[name])
            else:
                del self._generators[name]


def _warn_uncompiled(update: ModuleUpdate, reason: str) -> None:
    warnings.warn(
        f"compute.compile: the update of module {update.member.module_id!r} runs uncompiled: "
        f"{reason}",
        stacklevel=5,
    )
