"""The gradient stage of one module: from a minibatch to a step of its optimizers."""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlplug.config.learning import LearnerSection
from rlplug.errors import PluginError, RunFailedError
from rlplug.learner.losses import Combined, combine
from rlplug.learner.member import Member
from rlplug.learner.optimizers import Registered
from rlplug.optim.clipping import clip_each_norm, clip_global_norm, clip_values, global_norm

if TYPE_CHECKING:
    from rlplug.batch import Batch
    from rlplug.hooks.calls import HookCalls
    from rlplug.plugin import LearnerView

__all__ = ["Stage"]

_CLIPS = {"global_norm": clip_global_norm, "norm": clip_each_norm, "value": clip_values}
_IDLE_LIMIT = 1000


class Stage:
    """Takes gradients and steps; what it saw is in `metrics` and `records`."""

    def __init__(
        self, member: Member, calls: HookCalls, learner: LearnerView, section: LearnerSection
    ) -> None:
        self.member = member
        self._calls = calls
        self._learner = learner
        self._section = section
        self._clip = _CLIPS[section.clip_by]
        self._postprocessed = calls.implements("postprocess_gradients")
        self._cycles: dict[str, int] = {}
        self.records: dict[str, list[Any]] = {}
        self.rows: dict[str, list[Tensor]] = {}
        self.metrics: dict[str, Any] = {}
        self.acting: list[Registered] = []
        self.skipped = 0
        self.nonfinite = 0

    def take(self, batch: Batch) -> bool | None:
        """Loss and gradients of one minibatch; None if nobody has a loss, False to stop."""
        member = self.member
        ready = self._ready()
        names = tuple([one.name for one in ready])
        for param in member.named.values():
            param.grad = None
        fwd_out = member.module.forward_train(batch)
        answers = self._calls.compute_loss_for_module(
            member.module_id, member.module, batch, fwd_out, names, self._learner
        )
        if not answers:
            self.skipped += 1
            return None
        combined = combine(answers, member.algorithm, names)
        self.metrics = combined.metrics
        self.metrics["loss"] = combined.total.detach()
        self._keep_rows(combined, batch)
        if combined.stop is not None and bool(combined.stop):
            self._record()
            return False
        self.acting = self._chosen(ready, combined)
        if not combined.named and len(ready) == len(member.optimizers):
            combined.total.backward()
        else:
            self._separate(combined)
        return True

    def step(self) -> None:
        """Hooks, clipping and steps of the optimizers that act."""
        if self._postprocessed:
            self._postprocess()
        for one in self.acting:
            gradients = [param.grad for param in one.params if param.grad is not None]
            if gradients:
                one.unanswered = -1
                self._step_one(one, gradients)
            elif one.unanswered >= 0:
                self._unanswered(one)
        for plugin in self._cycles:
            self._cycles[plugin] += 1
        self._record()

    def epoch_ended(self) -> None:
        """Move the schedulers that count passes over the batch."""
        for one in self.member.optimizers:
            if one.scheduler is not None:
                one.scheduler.epoch_ended(self.metrics)

    def finish(self) -> dict[str, Any]:
        """The averages over the minibatches since the last call, and the learning rates."""
        results = {name: average(values) for name, values in self.records.items()}
        self.records = {}
        for one in self.member.optimizers:
            results[labelled("learning_rate", one.name)] = one.learning_rate
        if self.skipped:
            results["skipped"] = self.skipped
            self.skipped = 0
        if self.nonfinite:
            results["nonfinite"] = self.nonfinite
            self.nonfinite = 0
        return results

    def _ready(self) -> list[Registered]:
        """The optimizers whose turn it is."""
        optimizers = self.member.optimizers
        cycles: dict[str, list[Registered]] = {}
        for one in optimizers:
            if one.burst:
                cycles.setdefault(one.plugin, []).append(one)
        if not cycles:
            return optimizers
        chosen = set()
        for plugin, ring in cycles.items():
            place = self._cycles.setdefault(plugin, 0) % sum(one.burst for one in ring)
            for one in ring:
                if place < one.burst:
                    chosen.add(one.name)
                    break
                place -= one.burst
        return [one for one in optimizers if not one.burst or one.name in chosen]

    def _chosen(self, ready: list[Registered], combined: Combined) -> list[Registered]:
        """Those that a loss moves: leaving an optimizer out of a mapping lets it rest."""
        named = combined.named
        if not named:
            return ready
        strict = {one.plugin for one in ready if one.name in named}
        chosen = [
            one
            for one in ready
            if one.name in named or (combined.common and one.plugin not in strict)
        ]
        for one in ready:
            if one.unanswered >= 0 and one not in chosen:
                self._unanswered(one)
        return chosen

    def _unanswered(self, one: Registered) -> None:
        one.unanswered += 1
        if one.unanswered >= _IDLE_LIMIT:
            raise PluginError(
                f"optimizer {one.name!r} of plugin {one.plugin!r} for module {one.module_id!r} "
                f"got no loss in {_IDLE_LIMIT} minibatches.",
                "compute a loss from its parameters, or do not make it",
            )

    def _separate(self, combined: Combined) -> None:
        """One pass per optimizer over its own parameters, all before any of them steps."""
        last = len(self.acting) - 1
        for index, one in enumerate(self.acting):
            loss = combined.for_optimizer(one.name)
            if loss is None:
                continue
            gradients = torch.autograd.grad(
                loss, one.params, allow_unused=True, retain_graph=index < last
            )
            for param, gradient in zip(one.params, gradients, strict=True):
                param.grad = gradient

    def _postprocess(self) -> None:
        member = self.member
        given = {name: param.grad for name, param in member.named.items() if param.grad is not None}

        def seen(plugin: str) -> MutableMapping[str, Tensor]:
            return given

        self._calls.postprocess_gradients(
            member.module_id, member.module, seen, {}, self.metrics, self._learner
        )
        for name, gradient in given.items():
            member.named[name].grad = gradient

    def _step_one(self, one: Registered, gradients: list[Tensor]) -> None:
        limit = self._section.max_grad_norm
        if limit:
            norm, after = self._clip(gradients, limit, self._section.norm_type)
            self.metrics[labelled("grad_norm_clipped", one.name)] = after
        else:
            norm = global_norm(gradients, self._section.norm_type)
        self.metrics[labelled("grad_norm", one.name)] = norm
        if not math.isfinite(norm.item()):
            self.nonfinite += 1
            if self._section.nonfinite == "stop":
                raise RunFailedError("gradients are not finite")
            return
        one.optimizer.step()
        if one.scheduler is not None:
            one.scheduler.stepped(self.metrics)

    def _keep_rows(self, combined: Combined, batch: Batch) -> None:
        if combined.rows and "indices" in batch:
            self.rows.setdefault("indices", []).append(batch["indices"])
            for name, rows in combined.rows.items():
                self.rows.setdefault(name, []).append(rows)

    def _record(self) -> None:
        for name, value in self.metrics.items():
            values = self.records.get(name)
            if values is None:
                self.records[name] = [value]
            else:
                values.append(value)


def labelled(what: str, name: str) -> str:
    """`learning_rate`, or `learning_rate/actor` where the optimizer has a name."""
    return what if name == "default" else f"{what}/{name}"


def average(values: list[Any]) -> Any:
    """The mean of numbers or of 0-d tensors, which stay on their device."""
    if len(values) == 1:
        return values[0]
    if isinstance(values[0], Tensor):
        return torch.stack(values).mean()
    return sum(values) / len(values)
