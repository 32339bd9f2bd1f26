"""Updates compiled by torch.compile: the whole step, or the forward pass alone."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlplug.batch import SIDE_TABLES, Batch
from rlplug.batch.nested import first_leaf
from rlplug.config.sections import ComputeSection
from rlplug.errors import RequestError, did_you_mean
from rlplug.learner.device import Precision, is_small
from rlplug.learner.losses import LossHooks, MinibatchLoss
from rlplug.learner.member import Member
from rlplug.learner.optimizers import RegisteredOptimizer
from rlplug.learner.step import Names, add_gradients

__all__ = ["CompiledStep", "compiled", "compiled_forward", "compiled_step", "warn_uncompiled"]

_DYNAMIC = {"auto": None, "on": True, "off": False}
_WITH_GRAPHS = ("reduce-overhead", "max-autotune")


def compiled(
    function: Callable[..., Any], section: ComputeSection, member: Member, device: torch.device
) -> tuple[Callable[..., Any], bool]:
    """The function compiled with the options of `[compute]`; whether CUDA graphs may run it.

    The mode `auto` is `reduce-overhead`, which captures CUDA graphs, for small networks on CUDA.
    """
    mode = section.compile_mode
    if mode == "auto":
        pays = device.type == "cuda" and is_small(member.parts())
        mode = "reduce-overhead" if pays and section.compile_backend == "inductor" else "default"
    # All modules have the same code, of which torch compiles only so many graphs: newer versions
    # count those of each by itself.
    known = inspect.signature(torch.compile).parameters
    own: Any = {"isolate_recompiles": True} if "isolate_recompiles" in known else {}
    region = torch.compile(
        function,
        fullgraph=section.compile_fullgraph,
        dynamic=_DYNAMIC[section.compile_dynamic],
        backend=section.compile_backend,
        mode=None if mode == "default" else mode,
        **own,
    )
    uses_graphs = mode in _WITH_GRAPHS or section.compile_backend == "cudagraphs"

    def run(*arguments: Any) -> Any:
        if not uses_graphs:
            return region(*arguments)
        # A graph writes its next results into the same memory: they are copied.
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call] # untyped in torch
        return _cloned(region(*arguments))

    return run, uses_graphs


def compiled_forward(
    member: Member, section: ComputeSection, device: torch.device
) -> Callable[[Batch], Any]:
    """`forward_train` of a module, compiled."""

    def forward(columns: Mapping[str, Any]) -> Any:
        return member.module.forward_train(Batch(columns))

    run, _ = compiled(forward, section, member, device)
    return lambda batch: run(_columns(batch, sequences=member.sequences))


def compiled_step(
    member: Member, losses: LossHooks, precision: Precision, section: ComputeSection
) -> CompiledStep | None:
    """Losses and gradients, compiled; None, with a warning, where torch cannot trace gradients."""
    import torch._dynamo as dynamo

    known = dynamo.list_backends(exclude_tags=())
    if section.compile_backend not in known:
        guess = did_you_mean(section.compile_backend, known, sentence=True)
        raise RequestError(
            f"compute.compile_backend: torch has no backend {section.compile_backend!r}. "
            f"{guess}".rstrip(),
            f"there are: {', '.join(sorted(dynamo.list_backends()))}; and others for debugging",
        )
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
    """Losses and gradients of a minibatch in one graph: several optimizers cost one dispatch."""

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
        self._run, _ = compiled(self._trace, section, member, precision.device)

    def loss(self, batch: Batch, names: Names) -> MinibatchLoss | None:
        """The losses of all plugins; the gradients are computed with them."""
        config_of, module_id = self._losses.calls.config_of, self._member.module_id
        configs = {hook.name: config_of(hook.name, module_id) for hook in self._hooks}
        columns = _columns(batch, sequences=self._member.sequences)
        scaler = self._precision.scaler
        device = first_leaf(columns).device
        scale = None if scaler is None else scaler.scale(torch.ones((), device=device))
        loss: MinibatchLoss | None
        loss, self._gradients = self._run(columns, names, configs, scale)
        return loss

    def backward(
        self, loss: MinibatchLoss, moved: Sequence[RegisteredOptimizer], weight: float
    ) -> None:
        """Add the gradients of a loss to those of earlier minibatches."""
        for name, gradients in self._gradients.items():
            params = self._optimizers[name].params if name else self._member.shared_params
            add_gradients(params, gradients, weight)

    def _trace(
        self, columns: dict[str, Any], names: Names, configs: dict[str, Any], scale: Tensor | None
    ) -> Any:
        """What torch compiles: the loss, of which numbers leave the graph, and its gradients."""
        with self._precision.autocast():
            loss = self._losses.traced(self._member, Batch(columns), names, configs)
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


def _columns(batch: Batch, *, sequences: bool) -> dict[str, Any]:
    """The columns that a loss gets; tables of fragments only for recurrent modules."""
    return {name: batch[name] for name in batch if name not in SIDE_TABLES or sequences}


def _cloned(value: Any) -> Any:
    """Tensors in containers, copied: lists of them by one call."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, MinibatchLoss):
        value.metrics, value.rows = _cloned(value.metrics), _cloned(value.rows)
        value.stop = _cloned(value.stop)
    if isinstance(value, Mapping):
        return dict(zip(value, _cloned(list(value.values())), strict=True))
    if not isinstance(value, list | tuple):
        return value
    if value and all(isinstance(part, Tensor) and part.is_floating_point() for part in value):
        return type(value)(torch._foreach_mul(list(value), 1.0))
    return type(value)(map(_cloned, value))
