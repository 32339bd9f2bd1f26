"""Forward pass, losses and gradients as one graph of torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rlplug.batch import SIDE_TABLES, Batch
from rlplug.batch.nested import first_leaf
from rlplug.learner.device import Precision
from rlplug.learner.gradients import add_gradients
from rlplug.learner.losses import LossHooks, MinibatchLoss, acting_on
from rlplug.learner.module_update import ModuleUpdate, Prepare

__all__ = ["CompiledEngine", "can_trace_gradients"]


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
    ) -> None:
        self._member = update.member
        self._losses = losses
        self._precision = precision
        self._config_of = config_of
        self._plugins = plugins
        self._optimizers = {one.name: one for one in update.member.optimizers}
        self._shared = update.member.shared_params
        self._region = torch.compile(self._trace, fullgraph=True)

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
            columns = {
                name: batch[name]
                for name in batch
                if name not in SIDE_TABLES or self._member.sequences
            }
            loss, found = self._region(columns, names, configs, self._scale(columns))
            unpacked = None if loss is None else _unpacked(loss)
            total = None if unpacked is None else unpacked.total
            if update.note(unpacked, total, batch, weight):
                for name, gradients in found.items():
                    params = self._optimizers[name].params if name else self._shared
                    add_gradients(params, gradients, weight)
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
        for one in acting_on(ready, loss.named, common=bool(loss.common)):
            own = loss.for_optimizer(one.name)
            if own is not None:
                gradients[one.name] = _autograd(own, one.params, scale)
        if self._shared:
            gradients[""] = _autograd(loss.total, self._shared, scale)
        return _packed(loss), gradients


def can_trace_gradients() -> bool:
    """Whether this torch traces `autograd.grad`; if so, let it."""
    import torch._dynamo.config as settings

    if not hasattr(settings, "trace_autograd_ops"):
        return False
    settings.trace_autograd_ops = True
    return True


def _autograd(loss: Tensor, params: Sequence[Any], scale: Tensor | None) -> Any:
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
    )


def _unpacked(packed: tuple[Any, ...]) -> MinibatchLoss:
    loss = MinibatchLoss()
    loss.total, loss.metrics, named, common, loss.rows, loss.stop = packed
    loss.named = dict.fromkeys(named, loss.total)
    loss.common = [loss.total] * common
    return loss
