"""Updates compiled by torch.compile: the whole step, or the forward pass alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlplug.batch import SIDE_TABLES, Batch
from rlplug.batch.nested import first_leaf
from rlplug.config.sections import ComputeSection
from rlplug.errors import RequestError, did_you_mean
from rlplug.learner.device import Precision, is_small
from rlplug.learner.gradients import add_gradients
from rlplug.learner.losses import LossHooks, MinibatchLoss, acting_on
from rlplug.learner.module_update import ModuleUpdate, Prepare

__all__ = ["CompiledEngine", "can_trace_gradients", "check_backend", "compiled", "compiled_forward"]

_DYNAMIC = {"auto": None, "on": True, "off": False}
_WITH_GRAPHS = ("reduce-overhead", "max-autotune")


def compiled(
    function: Callable[..., Any],
    section: ComputeSection,
    update: ModuleUpdate,
    device: torch.device,
) -> tuple[Callable[..., Any], bool]:
    """The function compiled with the options of `[compute]`; whether CUDA graphs may run it.

    The mode `auto` is `reduce-overhead`, which captures CUDA graphs, for small networks on CUDA.
    """
    mode = section.compile_mode
    if mode == "auto":
        pays = device.type == "cuda" and is_small(update.member.parts())
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
    update: ModuleUpdate, section: ComputeSection, device: torch.device
) -> Callable[[Batch], Any]:
    """`forward_train` of a module, compiled."""
    member = update.member

    def forward(columns: Mapping[str, Any]) -> Any:
        return member.module.forward_train(Batch(columns))

    region, uses_graphs = compiled(forward, section, update, device)

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


class CompiledEngine:
    """Losses and gradients of a minibatch in one graph: several optimizers cost one dispatch."""

    name = "compiled"

    def __init__(
        self,
        update: ModuleUpdate,
        losses: LossHooks,
        precision: Precision,
        config_of: Callable[[str, str], Any],
        plugins: Sequence[str],
        section: ComputeSection,
    ) -> None:
        self._member = update.member
        self._losses = losses
        self._precision = precision
        self._config_of = config_of
        self._plugins = plugins
        self._optimizers = {one.name: one for one in update.member.optimizers}
        self._shared = update.member.shared_params
        self._region, self._uses_graphs = compiled(self._trace, section, update, precision.device)

    def prepare(self, prepare: Prepare, batch: Batch) -> Batch:
        """Run `prepare_batch` on tensors, uncompiled."""
        return prepare(batch)

    def gradients(self, group: Sequence[ModuleUpdate]) -> None:
        """Leave the gradients of the module's minibatches in its parameters."""
        (update,) = group
        module_id = update.member.module_id
        configs = {name: self._config_of(name, module_id) for name in self._plugins}
        for batch, weight in zip(update.minibatches, update.weights, strict=True):
            names = update.ready_names
            columns = _columns(batch, sequences=self._member.sequences)
            if self._uses_graphs:
                _begin_step()
            loss, found = self._region(columns, names, configs, self._scale(columns))
            if self._uses_graphs:
                # A graph writes its next results into the same memory.
                loss = _cloned(loss)
            unpacked = None if loss is None else _unpacked(loss)
            total = None if unpacked is None else unpacked.total
            if update.note(unpacked, total, batch, weight):
                for name, gradients in found.items():
                    params = self._optimizers[name].params if name else self._shared
                    add_gradients(params, gradients, weight)
                    if self._uses_graphs:
                        _handed_out.extend((one, one.grad) for one in params)
            if update.stopped:
                break

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
        for one in acting_on(ready, loss):
            own = loss.for_optimizer(one.name)
            if own is not None:
                gradients[one.name] = _traced_gradients(own, one.params, scale)
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
        len(loss.common),
        loss.rows,
        loss.stop,
        loss.plugins,
        loss.mapped,
    )


def _unpacked(packed: tuple[Any, ...]) -> MinibatchLoss:
    loss = MinibatchLoss()
    loss.total, loss.metrics, named, common, loss.rows, loss.stop, *whose = packed
    loss.plugins, loss.mapped = whose
    loss.named = dict.fromkeys(named, loss.total)
    loss.common = [loss.total] * common
    return loss
