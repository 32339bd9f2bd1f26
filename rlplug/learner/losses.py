"""Every plugin's loss of one minibatch, checked and added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from rlplug.errors import PluginError, did_you_mean
from rlplug.losses import KnownLoss
from rlplug.plugin import Loss

__all__ = ["Combined", "combine", "taken_as_known"]


class Combined:
    """What all plugins said about one minibatch."""

    __slots__ = ("common", "known", "metrics", "named", "parts", "rows", "stop", "total")

    def __init__(self) -> None:
        self.total: Tensor
        """The sum of everything, for the report; not there where the only loss is `known`."""
        self.common: list[Tensor] = []
        """Losses that move every acting optimizer."""
        self.named: dict[str, Tensor] = {}
        """Losses that move one optimizer each."""
        self.parts: dict[str, Tensor] = {}
        """The common losses taken apart by term."""
        self.metrics: dict[str, Any] = {}
        self.rows: dict[str, Tensor] = {}
        self.stop: Tensor | None = None
        self.known: KnownLoss | None = None
        """The only loss, where its gradients can be taken as they are."""

    def for_optimizer(self, name: str) -> Tensor | None:
        """The loss that moves one optimizer: its own and the common ones."""
        terms = [*self.common, self.named[name]] if name in self.named else self.common
        return _sum(terms) if terms else None


def combine(
    answers: Sequence[tuple[str, Any]],
    algorithm: str,
    known: Sequence[str],
    *,
    connected: bool = True,
) -> Combined:
    """Add up the answers of `compute_loss_for_module`; add-ons' metrics bear their name.

    Inside of vmap tensors do not tell whether they are `connected` to parameters.
    """
    combined = Combined()
    values: list[Tensor] = []
    for plugin, answer in answers:
        prefix = "" if plugin == algorithm else f"{plugin}/"
        loss = answer if isinstance(answer, Loss) else _as_loss(answer, plugin)
        value = loss.value
        if isinstance(value, Tensor):
            _check(value, "loss", plugin, connected=connected)
            combined.common.append(value)
            own = value
            if loss.terms:
                combined.parts.update((prefix + name, term) for name, term in loss.terms.items())
            else:
                combined.parts[plugin] = value
        else:
            own = _take_named(combined, value, plugin, known)
        values.append(own)
        _report(combined, loss, own, plugin, prefix, alone=len(answers) == 1)
    combined.total = _sum(values)
    return combined


def taken_as_known(loss: KnownLoss) -> Combined:
    """The only loss of a minibatch, without a graph."""
    combined = Combined()
    combined.known = loss
    combined.metrics = {**loss.numbers, **loss.metrics}
    combined.rows = dict(loss.rows)
    combined.stop = loss.stop
    return combined


def _report(
    combined: Combined, loss: Loss, own: Tensor, plugin: str, prefix: str, *, alone: bool
) -> None:
    metrics = combined.metrics
    if not alone:
        metrics[f"loss/{plugin}"] = own.detach()
    for name, term in loss.terms.items():
        metrics[prefix + name] = term.detach()
    for name, value in loss.metrics.items():
        metrics[prefix + name] = value.detach() if isinstance(value, Tensor) else value
    for name, rows in loss.rows.items():
        combined.rows[name] = rows.detach()
    if loss.stop is not None:
        combined.stop = loss.stop if combined.stop is None else combined.stop | loss.stop


def _take_named(combined: Combined, value: Any, plugin: str, known: Sequence[str]) -> Tensor:
    if not isinstance(value, Mapping):
        _check(value, "loss", plugin)
    if not value:
        raise PluginError(
            f"plugin {plugin!r} gave a loss without any value.", "return None instead"
        )
    for name, part in value.items():
        if name not in known:
            raise PluginError(
                f"plugin {plugin!r} gave a loss to optimizer {name!r}, which does not exist. "
                f"{did_you_mean(name, known, sentence=True)}".rstrip(),
                f"there are: {', '.join(known)}",
            )
        _check(part, f"loss of optimizer {name!r}", plugin)
        earlier = combined.named.get(name)
        combined.named[name] = part if earlier is None else earlier + part
        combined.metrics[f"loss/{name}"] = combined.named[name].detach()
    return _sum(list(value.values()))


def _as_loss(answer: Any, plugin: str) -> Loss:
    if isinstance(answer, Tensor):
        return Loss(answer)
    if isinstance(answer, Mapping) and "loss" in answer:
        return Loss(
            answer["loss"],
            metrics={name: value for name, value in answer.items() if name != "loss"},
        )
    raise PluginError(
        f"plugin {plugin!r} gave {type(answer).__name__} as its loss.",
        "return a 0-d tensor, a Loss, a dict with 'loss', or None",
    )


def _check(value: Any, what: str, plugin: str, *, connected: bool = True) -> None:
    if not isinstance(value, Tensor):
        raise PluginError(
            f"the {what} of plugin {plugin!r} is {type(value).__name__}.", "give a 0-d tensor"
        )
    if value.dim():
        raise PluginError(
            f"the {what} of plugin {plugin!r} has shape {tuple(value.shape)}, not one number.",
            "try: .mean()",
        )
    if connected and not value.requires_grad:
        raise PluginError(
            f"the {what} of plugin {plugin!r} is connected to no parameter.",
            "compute it from what forward_train returned, without detach() or no_grad()",
        )


def _sum(values: Sequence[Tensor]) -> Tensor:
    # Out of place: what each module and plugin reports must stay what it was.
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total
