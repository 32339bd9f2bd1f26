"""Modules of the same architecture in one vectorized pass: torch.func.vmap over their losses."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch._C import _functorch
from torch._functorch.vmap import lazy_load_decompositions  # type: ignore[attr-defined]
from torch.optim import LBFGS

from rlplug.batch import Batch
from rlplug.batch.nested import to_tensors
from rlplug.hooks.outside import OutsideNames
from rlplug.learner.alike import Watched, has_global_hooks, structure
from rlplug.learner.losses import LossHooks, MinibatchLoss
from rlplug.learner.module_update import Engine, ModuleUpdate, Prepare
from rlplug.learner.vmap_layers import forwards_together

__all__ = ["VmapEngine", "VmapGroups"]

_MOST_TRIALS = 10
"""Modules that change more often, so that they are compared again, are updated one by one."""

LEAST_ON_ARRAYS = 5
"""Modules that run on arrays from which one vmap pass is faster, by benchmarks/learner.py."""


class VmapEngine:
    """Computes the gradients of modules of the same architecture over their stacked tensors."""

    name = "vmap"

    def __init__(
        self, updates: Sequence[ModuleUpdate], losses: LossHooks, key: Hashable, *, tried: bool
    ) -> None:
        self.updates = list(updates)
        self.works = True
        self.key = key
        """What the modules have in common."""
        self.tried = tried
        """Whether they were computed together before, and found equal to torch."""
        self.first_parts = list(updates[0].member.module.modules())
        """The parts whose code runs for all modules."""
        self.outside: OutsideNames | None = None
        """The names outside of plugins that this code can bind."""
        self._losses = losses
        self._member = updates[0].member
        self._flat = torch.zeros(0)
        """The gradients of one module in each row."""
        self._rows: list[NDArray[Any]] = []
        """Those rows as arrays; none on other devices."""
        self._stacked: list[Tensor] = []
        """By parameter: where its gradients of all modules lie in it."""
        self._views: list[tuple[nn.Parameter, Tensor]] = []
        """Every parameter with the place of its gradient."""
        self._constants: dict[str, Any] = {}
        """Metrics that are plain numbers."""
        self._places = {n: (table, key) for n, _, table, key in _tensors(self._member.module)}
        self._forwards = list(forwards_together(self._member.module))
        self._params: dict[str, list[Any]] = {}
        self._fixed: dict[str, list[Tensor]] = {}
        for update in updates:
            trained = {id(param) for param in update.member.optimizers[0].params}
            for name, tensor, *_ in _tensors(update.member.module):
                where: dict[str, list[Any]] = self._params if id(tensor) in trained else self._fixed
                where.setdefault(name, []).append(tensor)

    def fits(self) -> bool:
        """Whether the minibatches have the same columns of the same shapes."""
        if not self.works or any(len(update.minibatches) != 1 for update in self.updates):
            return False
        first, *others = [update.minibatches[0].columns for update in self.updates]
        kinds = [(name, _kind_of(column)) for name, column in first.items()]
        return all(kind is not None for _, kind in kinds) and all(
            len(columns) == len(kinds)
            and all(name in columns and _kind_of(columns[name]) == kind for name, kind in kinds)
            for columns in others
        )

    def prepare(self, prepare: Prepare, batch: Batch) -> Batch:
        """Run `prepare_batch` on the tensors of one module."""
        return prepare(batch)

    def gradients(self, group: Sequence[ModuleUpdate]) -> None:
        """Leave the gradients of the modules' minibatches in their parameters."""
        batches = [update.minibatches[0] for update in group]
        with torch.no_grad():
            stacked = {name: torch.stack(held) for name, held in self._params.items()}
        for tensor in stacked.values():
            tensor.requires_grad_()
        fixed = {name: torch.stack(held) for name, held in self._fixed.items()}
        columns = {name: _column(batches, name) for name in batches[0]}
        totals, metrics, rows, stops = self._losses_of_all({**stacked, **fixed}, columns)
        found = torch.autograd.grad(totals, list(stacked.values()), torch.ones_like(totals))
        _refuse_written((*fixed.values(), *columns.values()))
        self._deliver(group, dict(zip(stacked, found, strict=True)))
        # Taken apart once for all modules: an index into a tensor costs as much as an operation.
        each = totals.detach().unbind()
        metrics = {name: value.detach().unbind() for name, value in metrics.items()}
        rows = {name: value.unbind() for name, value in rows.items()}
        for index, update in enumerate(group):
            loss = MinibatchLoss()
            loss.total = each[index]
            loss.common = [each[index]]
            loss.metrics = {name: values[index] for name, values in metrics.items()}
            loss.metrics.update(self._constants)
            loss.rows = {name: values[index] for name, values in rows.items()}
            loss.stop = stops["stop"][index] if stops else None
            update.note(loss, each[index], batches[index], 1.0)

    def _losses_of_all(self, tensors: Mapping[str, Tensor], columns: Mapping[str, Tensor]) -> Any:
        """The losses of all modules in one pass, with metrics and rows: `torch.func.vmap`.

        It spends as much as a small network on the nesting of arguments and results.
        """
        lazy_load_decompositions()
        count = len(self.updates)
        level = _functorch._vmap_increment_nesting(count, "different")

        def inside(of_all: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: _functorch._add_batch_dim(t, 0, level) for name, t in of_all.items()}

        def outside(of_one: Tensor) -> Tensor:
            return _functorch._remove_batch_dim(of_one, level, count, 0)

        try:
            total, *named = self._loss(inside(tensors), Batch(inside(columns)))
            return outside(total), *({n: outside(t) for n, t in one.items()} for one in named)
        finally:
            _functorch._vmap_decrement_nesting()

    def _deliver(self, group: Sequence[ModuleUpdate], gradients: Mapping[str, Tensor]) -> None:
        """Copy the gradients to where those of one module lie side by side."""
        if not self._stacked:
            self._lay_out(gradients)
        torch._foreach_copy_(self._stacked, list(gradients.values()))
        for param, view in self._views:
            if param.grad is not view:
                param.grad = view
        for update, row in zip(group, self._rows, strict=False):
            update.flat_gradients = row

    def _lay_out(self, gradients: Mapping[str, Tensor]) -> None:
        # In the order of the optimizers' parameters, which is that of the flat gradients.
        order = {id(param): n for n, param in enumerate(self._member.optimizers[0].params)}
        names = sorted(gradients, key=lambda name: order[id(self._params[name][0])])
        sizes = [gradients[name][0].numel() for name in names]
        self._flat = next(iter(gradients.values())).new_empty((len(self.updates), sum(sizes)))
        parts = dict(zip(names, torch.split(self._flat, sizes, 1), strict=True))
        for name, gradient in gradients.items():
            self._stacked.append(parts[name].view(gradient.shape))
            self._views += zip(self._params[name], self._stacked[-1].unbind(), strict=True)
        if self._flat.is_cpu:
            self._rows = list(self._flat.numpy())

    def _loss(self, tensors: Mapping[str, Tensor], batch: Batch) -> Any:
        """The loss of one module with these tensors in place of its own."""
        own = [(table, key, table[key]) for table, key in self._places.values()]
        try:
            for name, (table, key) in self._places.items():
                table[key] = tensors[name]
            for part, forward in self._forwards:
                vars(part)["forward"] = forward
            names = tuple(one.name for one in self._member.optimizers)
            loss = self._losses(self._member, batch, names, connected=False)
            if any(table[key] is not tensors[n] for n, (table, key) in self._places.items()):
                raise ValueError("a buffer was replaced, which each module must do by itself")
        finally:
            for table, key, tensor in own:
                table[key] = tensor
            for part, _ in self._forwards:
                vars(part).pop("forward", None)
        if loss is None or loss.mapped:
            raise ValueError("no loss and named losses are for one module at a time")
        metrics = {n: value for n, value in loss.metrics.items() if isinstance(value, Tensor)}
        self._constants = {n: value for n, value in loss.metrics.items() if n not in metrics}
        stops = {} if loss.stop is None else {"stop": loss.stop}
        return loss.total, metrics, loss.rows, stops


class VmapGroups:
    """Groups alike modules, again whenever something in one of them is replaced."""

    def __init__(
        self,
        losses: LossHooks,
        *,
        join_from: int,
        plugins: Sequence[str],
        config_of: Callable[[str, str], Any],
    ) -> None:
        self._losses = losses
        self._join_from = join_from
        self._plugins = plugins
        self._config_of = config_of
        self._members: list[ModuleUpdate] = []
        self.engines: list[VmapEngine] = []
        """Those found so far."""
        self._trials: WeakKeyDictionary[ModuleUpdate, int] = WeakKeyDictionary()
        """How often a module was tried together with others; many: no longer."""
        self._equal_to_torch: WeakKeyDictionary[ModuleUpdate, set[Hashable]] = WeakKeyDictionary()
        """With what in common modules were found equal to torch."""
        self._watched = Watched()
        self._options: list[list[Any]] = []
        """The options of every plugin for each module, as they were last seen."""
        self._equal: list[int] = []
        """For each module the first one with equal options."""

    def split(self, window: list[ModuleUpdate]) -> list[tuple[Engine, list[ModuleUpdate]]]:
        """The groups that are complete in these minibatches, then all others one by one."""
        candidates = [
            update
            for update in window
            if update.engine.name in ("torch", "arrays")
            and self._trials.get(update, 0) < _MOST_TRIALS
        ]
        if not self._join_from or len(candidates) < max(self._join_from, 2):
            return [(update.engine, [update]) for update in window]
        same = self._members == candidates
        # All of them are asked: each remembers what it saw.
        if self._options_changed(candidates) or not same or self._watched.changed():
            self._members = candidates
            self.engines = self._find(candidates)
        groups: list[tuple[Engine, list[ModuleUpdate]]] = []
        if self.engines and not has_global_hooks():
            groups += [(engine, engine.updates) for engine in self.engines if engine.fits()]
        grouped = {update for _, updates in groups for update in updates}
        return groups + [(one.engine, [one]) for one in window if one not in grouped]

    def leave(self, engine: object) -> None:
        """Update the modules of this engine one by one from now on."""
        for one in self.engines:
            if one is engine:
                one.works = False
                self._trials.update(dict.fromkeys(one.updates, _MOST_TRIALS))

    def keep(self, engine: VmapEngine) -> None:
        """Do not compare these modules with torch again."""
        for update in engine.updates:
            self._equal_to_torch.setdefault(update, set()).add(engine.key)

    def _find(self, updates: Sequence[ModuleUpdate]) -> list[VmapEngine]:
        self._watched = Watched()
        groups: dict[Hashable, list[ModuleUpdate]] = {}
        for update, options in zip(updates, self._equal, strict=True):
            self._watched.add(update.member.module)
            if not _can_be_stacked(update):
                continue
            found = structure(update.member.module)
            if found is not None:
                optimizer = type(update.member.optimizers[0].optimizer)
                common = found, options, optimizer, update.engine.name
                groups.setdefault(common, []).append(update)
        engines = []
        for key, group in groups.items():
            if len(group) < max(self._join_from, LEAST_ON_ARRAYS * _on_arrays(group)):
                continue
            tried = all(key in self._equal_to_torch.get(update, ()) for update in group)
            for update in group:
                self._trials[update] = self._trials.get(update, 0) + (not tried)
            engines.append(VmapEngine(group, self._losses, key, tried=tried))
        return engines

    def _options_changed(self, updates: Sequence[ModuleUpdate]) -> bool:
        """Whether other modules have equal options than before: by schedules and overrides."""
        found = [
            [self._config_of(plugin, update.member.module_id) for plugin in self._plugins]
            for update in updates
        ]
        if len(found) == len(self._options) and all(
            one is other
            for mine, known in zip(found, self._options, strict=True)
            for one, other in zip(mine, known, strict=True)
        ):
            return False
        self._options = found
        before, self._equal = self._equal, [found.index(one) for one in found]
        return before != self._equal


def _kind_of(column: Any) -> tuple[Any, Any] | None:
    """Shape and dtype of a column; None if it is a nested one."""
    shape = getattr(column, "shape", None)
    return None if shape is None else (shape, column.dtype)


def _column(batches: Sequence[Batch], name: str) -> Tensor:
    """A column of all modules; arrays become one tensor, not one each."""
    columns: list[Any] = [batch.columns[name] for batch in batches]
    if all(type(column) is numpy.ndarray for column in columns):
        stacked: Tensor = to_tensors(numpy.stack(columns))
        return stacked
    return torch.stack([batch[name] for batch in batches])


def _on_arrays(group: Sequence[ModuleUpdate]) -> bool:
    """Whether the modules of a group run on arrays when they are updated one by one."""
    return group[0].engine.name == "arrays"


def _can_be_stacked(update: ModuleUpdate) -> bool:
    member = update.member
    return (
        len(member.optimizers) == 1
        and not isinstance(member.optimizers[0].optimizer, LBFGS)
        and not member.optimizers[0].frequency
        and all(param.requires_grad for param in member.optimizers[0].params)
        and not member.extras
        and not member.shared
        and not member.sequences
        and all(param.is_contiguous() for param in member.module.parameters())
        and not _has_tied_parameters(member.module)
    )


def _has_tied_parameters(module: nn.Module) -> bool:
    """Whether one parameter has two places, where its gradients would have to be summed."""
    all_places = list(module.named_parameters(remove_duplicate=False))
    return len(all_places) != len(list(module.parameters()))


def _tensors(module: nn.Module) -> list[tuple[str, Tensor, dict[str, Any], str]]:
    """Every parameter and buffer: its name, itself, and the table and key where it is kept."""
    return [
        (f"{prefix}.{key}", tensor, table, key)
        for prefix, part in module.named_modules()
        for table in (part._parameters, part._buffers)
        for key, tensor in table.items()
        if tensor is not None
    ]


def _refuse_written(tensors: Iterable[Tensor]) -> None:
    if any(tensor._version for tensor in tensors):
        raise ValueError("a tensor was written to, which each module must do by itself")
