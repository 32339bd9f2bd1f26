"""Updates compiled by torch.compile: the whole step, or the forward pass alone."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlplug.batch import SIDE_TABLES, Batch
from rlplug.batch.nested import first_leaf
from rlplug.config.sections import ComputeSection
from rlplug.errors import RequestError, did_you_mean
from rlplug.learner.device import Precision, is_small
from rlplug.learner.losses import LossHooks, MinibatchLoss, acting_on
from rlplug.learner.member import Member
from rlplug.learner.optimizers import RegisteredOptimizer
from rlplug.learner.step import Engine, Evaluation, Names, add_gradients, evaluated

__all__ = ["compile_update", "compiled_forward"]

_DYNAMIC = {"auto": None, "on": True, "off": False}
_WITH_GRAPHS = ("reduce-overhead", "max-autotune")


def compiled(
    function: Callable[..., Any],
    section: ComputeSection,
    member: Member,
    device: torch.device,
) -> tuple[Callable[..., Any], bool]:
    """The function compiled with the options of `[compute]`; whether CUDA graphs may run it.

    The mode `auto` is `reduce-overhead`, which captures CUDA graphs, for small networks on CUDA.
    """
    mode = section.compile_mode
    if mode == "auto":
        pays = device.type == "cuda" and is_small(member.parts())
        mode = "reduce-overhead" if pays and section.compile_backend == "inductor" else "default"
    region = torch.compile(
        function,
        fullgraph=section.compile_fullgraph,
        dynamic=_DYNAMIC[section.compile_dynamic],
        backend=section.compile_backend,
        mode=None if mode == "default" else mode,
        **_of_its_own(),
    )
    return region, mode in _WITH_GRAPHS or section.compile_backend == "cudagraphs"


def _of_its_own() -> dict[str, Any]:
    """What keeps the graphs of one module from counting for others, in a torch that can do so.

    All modules have the same code, of which torch compiles only so many graphs.
    """
    known = inspect.signature(torch.compile).parameters
    return {"isolate_recompiles": True} if "isolate_recompiles" in known else {}


def compiled_forward(
    member: Member, section: ComputeSection, device: torch.device
) -> Callable[[Batch], Any]:
    """`forward_train` of a module, compiled."""

    def forward(columns: Mapping[str, Any]) -> Any:
        return member.module.forward_train(Batch(columns))

    region, uses_graphs = compiled(forward, section, member, device)

    def run(batch: Batch) -> Any:
        if uses_graphs:
            _begin_step()
        found = region(_columns(batch, sequences=member.sequences))
        return _cloned(found) if uses_graphs else found

    return run


def check_backend(section: ComputeSection) -> None:
    """Refuse a backend that torch does not know."""
    import torch._dynamo as dynamo

    known = dynamo.list_backends(exclude_tags=())
    if section.compile_backend not in known:
        guess = did_you_mean(section.compile_backend, known, sentence=True)
        raise RequestError(
            f"compute.compile_backend: torch has no backend {section.compile_backend!r}. "
            f"{guess}".rstrip(),
            f"there are: {', '.join(sorted(dynamo.list_backends()))}; and others for debugging",
        )


_handed_out: list[tuple[nn.Parameter, Tensor | None]] = []
"""Parameters with gradients that lie where a CUDA graph writes them again."""


def _begin_step() -> None:
    """Tell CUDA graphs that what they wrote may be written over, and copy what is still needed."""
    # Rarely any: gradients of one minibatch and one module are used before the next graph runs.
    for param, gradient in _handed_out:
        if gradient is not None and param.grad is gradient:
            param.grad = gradient.clone()
    _handed_out.clear()
    begin: Callable[[], None] = torch.compiler.cudagraph_mark_step_begin
    begin()


def _columns(batch: Batch, *, sequences: bool) -> dict[str, Any]:
    """The columns that a loss gets; tables of fragments only for recurrent modules."""
    return {name: batch[name] for name in batch if name not in SIDE_TABLES or sequences}


def _cloned(value: Any) -> Any:
    """Tensors in containers, copied."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, Mapping):
        kinds = {
            part.dtype if isinstance(part, Tensor) and not part.dim() else None
            for part in value.values()
        }
        if len(kinds) == 1 and None not in kinds:
            # All metrics by one call.
            return dict(zip(value, torch.stack(list(value.values())).unbind(), strict=True))
        return {name: _cloned(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_cloned, value))
    return value


def compile_update(
    member: Member,
    losses: LossHooks,
    precision: Precision,
    section: ComputeSection,
    in_torch: Engine,
) -> Engine:
    """The engine of `compute.compile`, or torch where it cannot trace gradients."""
    check_backend(section)
    if can_trace_gradients():
        return CompiledEngine(member, losses, precision, section, in_torch)
    _warn_uncompiled(member, f"torch {torch.__version__} does not trace autograd.grad")
    return in_torch


def _warn_uncompiled(member: Member, reason: str) -> None:
    warnings.warn(
        f"compute.compile: the update of module {member.module_id!r} runs uncompiled: {reason}",
        stacklevel=5,
    )


class CompiledEngine:
    """Losses and gradients of a minibatch in one graph: several optimizers cost one dispatch."""

    def __init__(
        self,
        member: Member,
        losses: LossHooks,
        precision: Precision,
        section: ComputeSection,
        in_torch: Engine,
    ) -> None:
        self.name = "compiled"
        self.reason = "compute.compile is on"
        self._member = member
        self._losses = losses
        self._precision = precision
        self._torch = in_torch
        self._optimizers = {optimizer.name: optimizer for optimizer in member.optimizers}
        self._params = list(member.named.values())
        self._shared = member.shared_params
        self._found: Mapping[str, Any] = {}
        """The gradients of the minibatch, by optimizer."""
        self._region, self._uses_graphs = compiled(self._trace, section, member, precision.device)

    def prepare(self, batch: Batch, batches: Mapping[str, Batch]) -> Batch:
        """Run `prepare_batch` on tensors, uncompiled."""
        return self._torch.prepare(batch, batches)

    def get_state(self) -> dict[str, Any]:
        """Nothing but what it is, and why."""
        return {"name": self.name, "reason": self.reason}

    def gradients(
        self, minibatches: Sequence[Batch], ready: Sequence[RegisteredOptimizer], names: Names
    ) -> Evaluation:
        """Evaluate minibatches, and leave the gradients in the parameters of the module."""
        if self.name == "compiled":
            for param in self._params:
                if id(param) not in self._member.shared:
                    param.grad = None
            try:
                return evaluated(
                    self, minibatches, ready, names, has_shared=bool(self._member.shared)
                )
            except Exception as error:
                text = str(error).strip()
                # Of what torch cannot trace the first line is a title.
                title, _, rest = text.partition("\n")
                explained = rest.strip().partition("\n")[0].partition("Explanation: ")[2]
                reason = ": ".join(filter(None, (title, explained))) or type(error).__name__
                # If the plugin itself is wrong, torch raises what it raises.
                result = self._torch.gradients(minibatches, ready, names)
                self.name, self.reason = "torch", reason
                _warn_uncompiled(self._member, reason)
                return result
        return self._torch.gradients(minibatches, ready, names)

    def loss(self, batch: Batch, names: Names) -> MinibatchLoss | None:
        """The losses of all plugins; the gradients were computed with them."""
        module_id = self._member.module_id
        calls = self._losses.calls
        hooks = calls.implementations("compute_loss_for_module")
        configs = {hook.name: calls.config_of(hook.name, module_id) for hook in hooks}
        columns = _columns(batch, sequences=self._member.sequences)
        if self._uses_graphs:
            _begin_step()
        packed, self._found = self._region(columns, names, configs, self._scale(columns))
        if packed is None:
            return None
        # A graph writes its next results into the same memory.
        return _unpacked(_cloned(packed) if self._uses_graphs else packed)

    def backward(
        self, loss: MinibatchLoss, moved: Sequence[RegisteredOptimizer], weight: float
    ) -> None:
        """Add the gradients of a loss to those of earlier minibatches."""
        for name, gradients in self._found.items():
            params = self._optimizers[name].params if name else self._shared
            add_gradients(params, gradients, weight)
            if self._uses_graphs:
                _handed_out.extend((param, param.grad) for param in params)

    def _scale(self, columns: dict[str, Any]) -> Tensor | None:
        scaler = self._precision.scaler
        if scaler is None:
            return None
        scale: Tensor = scaler.scale(torch.ones((), device=first_leaf(columns).device))
        return scale

    def _trace(
        self,
        columns: dict[str, Any],
        names: tuple[str, ...],
        configs: dict[str, Any],
        scale: Tensor | None,
    ) -> Any:
        with self._precision.autocast():
            loss = self._losses.traced(self._member, Batch(columns), names, configs)
        if loss is None:
            return None, {}
        ready = [self._optimizers[name] for name in names]
        gradients = {}
        for optimizer in acting_on(ready, loss):
            own = loss.for_optimizer(optimizer.name)
            if own is not None:
                gradients[optimizer.name] = _traced_gradients(own, optimizer.params, scale)
        if self._shared:
            gradients[""] = _traced_gradients(loss.total, self._shared, scale)
        return _packed(loss), gradients


def can_trace_gradients() -> bool:
    """Whether this torch traces `autograd.grad`; if so, let it."""
    import torch._dynamo.config as settings

    if not hasattr(settings, "trace_autograd_ops"):
        return False
    settings.trace_autograd_ops = True
    return True


def _traced_gradients(loss: Tensor, params: Sequence[Any], scale: Tensor | None) -> Any:
    scaled = loss if scale is None else loss * scale
    return torch.autograd.grad(scaled, params, allow_unused=True, retain_graph=True)


def _packed(loss: MinibatchLoss) -> tuple[Any, ...]:
    """What may leave a compiled region: tensors and containers of them."""
    return (
        loss.total.detach(),
        loss.metrics,
        list(loss.named),
        list(loss.terms),
        len(loss.common),
        loss.rows,
        loss.stop,
        loss.plugins,
        loss.mapped,
    )


def _unpacked(packed: tuple[Any, ...]) -> MinibatchLoss:
    loss = MinibatchLoss()
    loss.total, loss.metrics, named, terms, common, loss.rows, loss.stop, *whose = packed
    loss.plugins, loss.mapped = whose
    loss.named = dict.fromkeys(named, loss.total)
    loss.terms = dict.fromkeys(terms, loss.total)
    loss.common = [loss.total] * common
    return loss
