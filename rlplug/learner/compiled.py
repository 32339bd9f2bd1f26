"""The region from forward pass to gradients as one compiled graph."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rlplug.batch import SIDE_TABLES, Batch
from rlplug.hooks.binding import HOOKS
from rlplug.learner.chain import losses_of
from rlplug.learner.losses import Combined, combine
from rlplug.learner.turns import moved

if TYPE_CHECKING:
    from rlplug.learner.member import Member
    from rlplug.learner.owned import Owned

__all__ = ["CompiledChain"]

Found = list[tuple[Sequence[nn.Parameter], Sequence[Tensor | None]]]

_HOOK = "compute_loss_for_module"


class CompiledChain:
    """Losses and gradients of a minibatch in one graph: several optimizers cost one dispatch.

    What cannot be compiled runs as before, after one warning that says why.
    """

    def __init__(self, member: Member, learner: Owned) -> None:
        self._member = member
        self._learner = learner
        self._calls = learner.calls
        self._precision = learner.precision
        self._optimizers = {one.name: one for one in member.optimizers}
        self._shared = [p for p in member.named.values() if id(p) in member.shared]
        self._hooks = [
            (one.name, one.function, [HOOKS[_HOOK].index(argument) for argument in one.arguments])
            for one in learner.calls.implementations(_HOOK)
        ]
        self.works = _traces_gradients()
        if not self.works:
            _warn(member.module_id, f"torch {torch.__version__} does not trace autograd.grad")
        self._region = torch.compile(self._trace, fullgraph=True)

    def __call__(
        self, batch: Batch, names: tuple[str, ...]
    ) -> tuple[Combined | None, Found | None]:
        """What `losses_of` gives, and the gradients of each optimizer's parameters."""
        module_id = self._member.module_id
        configs = {name: self._calls.config_of(name, module_id) for name, _, _ in self._hooks}
        columns = {name: batch[name] for name in batch if name not in SIDE_TABLES or _used(self)}
        scaler = self._precision.scaler
        scale = (
            None if scaler is None else scaler.scale(torch.ones((), device=batch_device(columns)))
        )
        try:
            combined, gradients = self._region(columns, names, configs, scale)
        except Exception as error:
            return self._fall_back(batch, names, error)
        if combined is None:
            return None, None
        return _unpacked(combined), self._matched(gradients)

    def leave(self, reason: str) -> None:
        """Run as before from now on, after one warning that says why."""
        self.works = False
        _warn(self._member.module_id, reason)

    def _fall_back(
        self, batch: Batch, names: tuple[str, ...], error: Exception
    ) -> tuple[Combined | None, None]:
        # If the plugin itself is wrong, this raises what it raises: its own error, not a tracer's.
        combined = losses_of(
            self._member, self._calls, self._learner, self._precision, batch, names
        )
        self.leave(str(error).strip().partition("\n")[0])
        return combined, None

    def _trace(
        self,
        columns: dict[str, Any],
        names: tuple[str, ...],
        configs: dict[str, Any],
        scale: Tensor | None,
    ) -> Any:
        member = self._member
        batch = Batch(columns)
        with self._precision.around_forward():
            fwd_out = member.module.forward_train(batch)
            answers = []
            for name, function, indices in self._hooks:
                offered = (
                    member.module_id,
                    member.module,
                    member.extras.get(name),
                    configs[name],
                    batch,
                    fwd_out,
                    names,
                    self._learner,
                )
                answer = function(*[offered[index] for index in indices])
                if answer is not None:
                    answers.append((name, answer))
        if not answers:
            return None, None
        combined = combine(answers, member.algorithm, names)
        return _packed(combined), self._gradients(combined, names, scale)

    def _gradients(
        self, combined: Combined, names: tuple[str, ...], scale: Tensor | None
    ) -> dict[str, Any]:
        pairs = [(name, self._optimizers[name].plugin) for name in names]
        gradients = {}
        for name in moved(pairs, combined.named, common=bool(combined.common)):
            loss = combined.for_optimizer(name)
            if loss is not None:
                scaled = loss if scale is None else loss * scale
                gradients[name] = _of(scaled, self._optimizers[name].params)
        if self._shared:
            total = combined.total if scale is None else combined.total * scale
            gradients[""] = _of(total, self._shared)
        return gradients

    def _matched(self, gradients: dict[str, Any]) -> Found:
        return [
            (self._optimizers[name].params if name else self._shared, found)
            for name, found in gradients.items()
        ]


def _of(loss: Tensor, params: Sequence[nn.Parameter]) -> tuple[Tensor | None, ...]:
    return torch.autograd.grad(loss, params, allow_unused=True, retain_graph=True)


def _used(chain: CompiledChain) -> bool:
    return chain._member.sequences


def batch_device(columns: dict[str, Any]) -> torch.device:
    """Where a batch is."""
    from rlplug.batch.nested import first_leaf

    device: torch.device = first_leaf(columns).device
    return device


def _packed(combined: Combined) -> tuple[Any, ...]:
    """What may leave a compiled region: tensors and containers of them."""
    return (
        combined.total.detach(),
        combined.metrics,
        list(combined.named),
        len(combined.common),
        combined.rows,
        combined.stop,
    )


def _unpacked(packed: tuple[Any, ...]) -> Combined:
    combined = Combined()
    combined.total, combined.metrics, named, common, combined.rows, combined.stop = packed
    combined.named = dict.fromkeys(named, combined.total)
    combined.common = [combined.total] * common
    return combined


def _traces_gradients() -> bool:
    import torch._dynamo.config as settings

    if not hasattr(settings, "trace_autograd_ops"):
        return False
    settings.trace_autograd_ops = True
    return True


def _warn(module_id: str, reason: str) -> None:
    warnings.warn(
        f"compute.compile: the update of module {module_id!r} runs uncompiled: {reason}",
        stacklevel=4,
    )
