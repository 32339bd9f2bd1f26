"""Alike modules as one: their losses and gradients in one vectorised pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import vmap

from rlplug.batch import Batch
from rlplug.learner.losses import combine
from rlplug.learner.results import labelled
from rlplug.losses import KnownLoss
from rlplug.optim.together import FusedAdams, can_step_together

if TYPE_CHECKING:
    from rlplug.learner.owned import Owned
    from rlplug.learner.stage import Stage

__all__ = ["Joined"]

Share: TypeAlias = "tuple[Stage, list[Batch]]"


class Joined:
    """Takes the minibatches of all its modules at once and steps their optimizers together.

    If a plugin's code does not bear that, the modules are updated one by one from then on.
    """

    def __init__(self, stages: Sequence[Stage], learner: Owned) -> None:
        self.stages = list(stages)
        self._learner = learner
        self._works = True
        self._chain = _Chain(stages[0], learner)
        self._plain: dict[str, Any] = {}
        ids = [{id(param) for param in stage.member.optimizers[0].params} for stage in stages]
        self._params: dict[str, list[Any]] = {}
        self._fixed: dict[str, list[Tensor]] = {}
        for index, stage in enumerate(stages):
            for name, tensor, *_ in _tensors(stage.member.module):
                trained = id(tensor) in ids[index]
                where: dict[str, list[Any]] = self._params if trained else self._fixed
                where.setdefault(name, []).append(tensor)
        optimizers = [stage.member.optimizers[0].optimizer for stage in stages]
        self._optimizers = optimizers
        self._adams = FusedAdams(optimizers) if can_step_together(optimizers) else None
        names = {id(p): n for n, held in self._params.items() for p in held}
        self._order = [names[id(p)] for p in stages[0].member.optimizers[0].params]
        self._gradients = {
            n: held[0].new_empty((len(held), *held[0].shape)) for n, held in self._params.items()
        }
        parts = {name: one.unbind() for name, one in self._gradients.items()}
        self._parts = [
            (p, g) for n, h in self._params.items() for p, g in zip(h, parts[n], strict=True)
        ]
        self._by_module = [parts[name][n] for n in range(len(stages)) for name in self._order]

    def fits(self, shares: Sequence[Share]) -> bool:
        """Whether the minibatches have the same columns of the same shapes."""
        if not self._works or any(len(parts) != 1 for _, parts in shares):
            return False
        first = shares[0][1][0]
        shapes = [(name, getattr(first[name], "shape", None)) for name in first]
        return all(shape is not None for _, shape in shapes) and all(
            len(parts[0]) == len(shapes)
            and all(
                name in parts[0] and getattr(parts[0][name], "shape", None) == shape
                for name, shape in shapes
            )
            for _, parts in shares[1:]
        )

    def update(self, shares: Sequence[Share], stopped: set[Stage]) -> bool:
        """Losses, gradients and steps of one minibatch each; False if it cannot be done so."""
        batches = [parts[0] for _, parts in shares]
        with torch.no_grad():
            stacked = {name: torch.stack(held) for name, held in self._params.items()}
        for tensor in stacked.values():
            tensor.requires_grad_()
        fixed = {name: torch.stack(held) for name, held in self._fixed.items()}
        columns = {name: torch.stack([batch[name] for batch in batches]) for name in batches[0]}
        try:
            losses, metrics, rows, stops = self._pass(stacked, fixed, columns)
            found = torch.autograd.grad(losses.sum(), list(stacked.values()))
            _refuse_written(fixed.values())
        except Exception:
            # One by one, the plugin's own code works, or raises what is wrong with it.
            self._works = False
            return False
        self._report(shares, losses.detach(), metrics, rows)
        if stops is not None and bool(stops.any()):
            for (stage, _), stop in zip(shares, stops.tolist(), strict=True):
                if stop:
                    stopped.add(stage)
        self._deliver(dict(zip(stacked, found, strict=True)), stopped)
        return True

    def _pass(
        self,
        stacked: Mapping[str, Tensor],
        fixed: Mapping[str, Tensor],
        columns: Mapping[str, Tensor],
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor], Tensor | None]:
        names = [*stacked, *fixed]
        columns_of = list(columns)

        def one(tensors: tuple[Tensor, ...], its: tuple[Tensor, ...]) -> Any:
            rows = dict(zip(columns_of, its, strict=True))
            return self._chain.run(dict(zip(names, tensors, strict=True)), rows)

        tensors = (*stacked.values(), *fixed.values())
        over = vmap(one, randomness="different")
        losses, metrics, rows, stops = over(tensors, tuple(columns.values()))
        return losses, metrics, rows, stops.get("stop")

    def _report(
        self,
        shares: Sequence[Share],
        losses: Tensor,
        metrics: Mapping[str, Tensor],
        rows: Mapping[str, Tensor],
    ) -> None:
        columns = {name: value.detach().unbind() for name, value in metrics.items()}
        columns["loss"] = losses.unbind()
        plain = self._chain.plain
        for index, (stage, parts) in enumerate(shares):
            stage.metrics = {name: values[index] for name, values in columns.items()}
            stage.metrics.update(plain)
            stage.history.append(stage.metrics)
            stage.acting = stage.turns.all
            if rows:
                stage.keep_rows({name: value[index] for name, value in rows.items()}, parts[0])

    def _deliver(self, gradients: dict[str, Tensor], stopped: set[Stage]) -> None:
        """Clip all of them at once where all is well; else each stage steps by itself."""
        section = self._learner.learning
        norms = _norms(list(gradients.values()), section.norm_type)
        common = section.clip_by == "global_norm" and not stopped
        calm = common and self._learner.device.type == "cpu" and bool(torch.isfinite(norms).all())
        factors = _factors(norms, section.max_grad_norm if calm else 0.0)
        for name, one in gradients.items():
            spread = factors.view(-1, *[1] * (one.dim() - 1))
            # Into the modules' own gradients, which are views of one tensor per name.
            torch.mul(one, spread, out=self._gradients[name])
        for param, part in self._parts:
            if param.grad is not part:
                param.grad = part
        if not calm:
            for stage in self.stages:
                if stage not in stopped:
                    stage.step()
            return
        self._step(norms, norms * factors if section.max_grad_norm else None)

    def _step(self, norms: Tensor, after: Tensor | None) -> None:
        if self._adams is not None and self._adams.rates_agree():
            self._adams.step(self._by_module)
        else:
            for optimizer in self._optimizers:
                optimizer.step()
        befores = norms.unbind()
        afters = None if after is None else after.unbind()
        for index, stage in enumerate(self.stages):
            one = stage.member.optimizers[0]
            stage.metrics[labelled("grad_norm", one.name)] = befores[index]
            if afters is not None:
                stage.metrics[labelled("grad_norm_clipped", one.name)] = afters[index]
            one.unanswered = -1
            one.acted = True
            if one.scheduler is not None:
                one.scheduler.stepped(stage.metrics)


class _Chain:
    """Forward pass and losses of one module, whose tensors others take the place of."""

    def __init__(self, stage: Stage, learner: Owned) -> None:
        self._member = stage.member
        self._learner = learner
        self.plain: dict[str, Any] = {}
        self._places = {n: (table, key) for n, _, table, key in _tensors(stage.member.module)}

    def run(self, tensors: Mapping[str, Tensor], columns: Mapping[str, Tensor]) -> Any:
        """The module's loss with these tensors as its own."""
        own = [(table, key, table[key]) for table, key in self._places.values()]
        try:
            for name, (table, key) in self._places.items():
                table[key] = tensors[name]
            found = self._losses(Batch(columns))
            if any(table[key] is not tensors[n] for n, (table, key) in self._places.items()):
                raise ValueError("a buffer was replaced, which each module must do by itself")
            return found
        finally:
            for table, key, tensor in own:
                table[key] = tensor

    def _losses(self, batch: Batch) -> Any:
        member = self._member
        learner = self._learner
        names = tuple(one.name for one in member.optimizers)
        answers = learner.calls.compute_loss_for_module(
            member.module_id,
            member.module,
            batch,
            member.module.forward_train(batch),
            names,
            learner,
        )
        if any(isinstance(loss, KnownLoss) for _, loss in answers):
            raise ValueError("gradients that are known already are taken one by one")
        combined = combine(answers, member.algorithm, names, connected=False)
        if combined.named:
            raise ValueError("named losses are taken one by one")
        metrics = {n: value for n, value in combined.metrics.items() if isinstance(value, Tensor)}
        self.plain = {n: value for n, value in combined.metrics.items() if n not in metrics}
        stops = {} if combined.stop is None else {"stop": combined.stop}
        return combined.total, metrics, combined.rows, stops


def _tensors(module: nn.Module) -> list[tuple[str, Tensor, dict[str, Any], str]]:
    """Every parameter and buffer: its name, itself, and the place where its module keeps it."""
    return [
        (f"{prefix}.{key}", tensor, table, key)
        for prefix, part in module.named_modules()
        for table in (part._parameters, part._buffers)
        for key, tensor in table.items()
        if tensor is not None
    ]


def _norms(gradients: Sequence[Tensor], norm_type: float) -> Tensor:
    """One norm per module, over all of its gradients."""
    each = [
        torch.linalg.vector_norm(one, norm_type, dim=tuple(range(1, one.dim())))
        if one.dim() > 1
        else one.abs()
        for one in gradients
    ]
    norms: Tensor = torch.linalg.vector_norm(torch.stack(each), norm_type, dim=0)
    return norms


def _factors(norms: Tensor, limit: float) -> Tensor:
    return (limit / (norms + 1e-6)).clamp_(max=1.0) if limit else torch.ones_like(norms)


def _refuse_written(tensors: Iterable[Tensor]) -> None:
    if any(tensor._version for tensor in tensors):
        raise ValueError("a buffer was written to, which each module must do by itself")
