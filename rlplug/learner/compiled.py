"""Updates compiled by torch.compile: forward pass, loss and gradients in one graph."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlplug.batch import SIDE_TABLES, Batch
from rlplug.batch.nested import first_leaf
from rlplug.config.sections import ComputeSection
from rlplug.learner.device import Precision, is_small
from rlplug.learner.losses import LossHooks, MinibatchLoss
from rlplug.learner.member import Member
from rlplug.learner.step import Names, add_gradients

_DYNAMIC = {"auto": None, "on": True, "off": False}
_WITH_GRAPHS = ("reduce-overhead", "max-autotune")


def compiled_step(
    member: Member, losses: LossHooks, precision: Precision, section: ComputeSection
) -> CompiledStep | None:
    """Losses and gradients, compiled; None, with a warning, where torch cannot trace gradients."""
    import torch._dynamo as dynamo

    if not hasattr(dynamo.config, "trace_autograd_ops"):
        warn_uncompiled(member, f"torch {torch.__version__} does not trace autograd.grad")
        return None
    dynamo.config.trace_autograd_ops = True
    return CompiledStep(member, losses, precision, section)


def warn_uncompiled(member: Member, error: object) -> str:
    """Warn of what could not be compiled; the reason, in short."""
    # Of what torch cannot trace the first line is a title.
    title, _, rest = str(error).strip().partition("\n")
    explained = rest.strip().partition("\n")[0].partition("Explanation: ")[2]
    reason = ": ".join(filter(None, (title, explained))) or type(error).__name__
    warnings.warn(
        f"compute.compile: the update of module {member.module_id!r} runs uncompiled: {reason}",
        stacklevel=5,
    )
    return reason


class CompiledStep:
    """Losses and gradients of a minibatch in one graph: several optimizers cost one dispatch.

    The mode `auto` is `reduce-overhead`, which captures CUDA graphs, for small networks on CUDA.
    """

    def __init__(
        self, member: Member, losses: LossHooks, precision: Precision, section: ComputeSection
    ) -> None:
        self._member = member
        self._losses = losses
        self._precision = precision
        self._hooks = losses.calls.implementations("compute_loss_for_module")
        self._optimizers = {optimizer.name: optimizer for optimizer in member.optimizers}
        self._gradients: Mapping[str, Any] = {}
        """The gradients of the minibatch, by optimizer."""
        mode: str = section.compile_mode
        if mode == "auto":
            pays = precision.device.type == "cuda" and is_small(member.parts())
            mode = "reduce-overhead" if pays and section.compile_backend == "inductor" else ""
        self._uses_graphs = mode in _WITH_GRAPHS or section.compile_backend == "cudagraphs"
        # All modules have the same code, of which torch compiles only so many graphs: newer
        # versions count those of each by itself.
        known = inspect.signature(torch.compile).parameters
        own: Any = {"isolate_recompiles": True} if "isolate_recompiles" in known else {}
        self._region = torch.compile(
            self._trace,
            fullgraph=section.compile_fullgraph,
            dynamic=_DYNAMIC[section.compile_dynamic],
            backend=section.compile_backend,
            mode=None if mode in ("", "default") else mode,
            **own,
        )

    def loss(self, batch: Batch, names: Names) -> MinibatchLoss | None:
        """The losses of all plugins; the gradients are computed with them."""
        member, options = self._member, self._losses.calls.configs
        configs = {hook.name: options[hook.name, member.module_id] for hook in self._hooks}
        # Tables of fragments are for recurrent modules.
        given = [name for name in batch if name not in SIDE_TABLES or member.sequences]
        columns, scaler = {name: batch[name] for name in given}, self._precision.scaler
        scale = None
        if scaler is not None:
            scale = scaler.scale(torch.ones((), device=first_leaf(columns).device))
        if self._uses_graphs:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call] # untyped in torch
        loss: MinibatchLoss | None
        loss, self._gradients = self._region(columns, names, configs, scale)
        if self._uses_graphs and loss is not None:
            # A graph writes its next results into the same memory: they are copied.
            loss.metrics, loss.rows = _cloned(loss.metrics), _cloned(loss.rows)
            loss.stop = loss.stop.clone() if isinstance(loss.stop, Tensor) else loss.stop
            self._gradients = {name: _cloned(own) for name, own in self._gradients.items()}
        return loss

    def backward(self, loss: MinibatchLoss, moved: Names, weight: float) -> None:
        """Add the gradients of a loss to those of earlier minibatches."""
        for name, gradients in self._gradients.items():
            params = self._optimizers[name].params if name else self._member.shared_params
            add_gradients(params, gradients, weight)

    def _trace(
        self, columns: dict[str, Any], names: Names, configs: dict[str, Any], scale: Tensor | None
    ) -> Any:
        """What torch compiles: the loss, of which numbers leave the graph, and its gradients."""
        with self._precision.autocast():
            loss = self._losses(self._member, Batch(columns), names, configs=configs)
        gradients: dict[str, Any] = {}
        if loss is None:
            return None, gradients

        def gradients_of(value: Any, params: Sequence[Any]) -> Any:
            scaled = value if scale is None else value * scale
            return torch.autograd.grad(scaled, params, allow_unused=True, retain_graph=True)

        losses = dict.fromkeys(names, loss.total) if loss.own is None else loss.own
        for name, own in losses.items():
            gradients[name] = gradients_of(own, self._optimizers[name].params)
        if shared := self._member.shared_params:
            gradients[""] = gradients_of(loss.total, shared)
        loss.total = None
        loss.named, loss.terms = dict.fromkeys(loss.named), dict.fromkeys(loss.terms)
        loss.own = None if loss.own is None else dict.fromkeys(loss.own)
        return loss, gradients


def _cloned(values: Any) -> Any:
    """The tensors of a mapping or a tuple, copied: lists of them by one call."""
    if isinstance(values, Mapping):
        return dict(zip(values, _cloned(tuple(values.values())), strict=True))
    if all(isinstance(value, Tensor) and value.is_floating_point() for value in values):
        return tuple(torch._foreach_mul(list(values), 1.0)) if values else values
    return tuple(value.clone() if isinstance(value, Tensor) else value for value in values)
