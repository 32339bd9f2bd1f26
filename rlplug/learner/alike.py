"""Find modules that are alike, so that one vectorised pass can update all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import LBFGS

from rlplug.learner.joined import Joined
from rlplug.learner.witness import feed

if TYPE_CHECKING:
    from rlplug.batch import Batch
    from rlplug.learner.owned import Owned
    from rlplug.learner.stage import Stage

__all__ = ["Alike"]

Share: TypeAlias = "tuple[Stage, list[Batch]]"

_TENSORS = ("_parameters", "_buffers", "_modules")
_INTERNAL = frozenset(nn.Module().__dict__) - {"training"}


class Alike:
    """Groups the modules of a learner by their structure; asked once per minibatch."""

    def __init__(self, learner: Owned) -> None:
        self._learner = learner
        self._from = learner.learning.join_from
        self._groups: list[Joined] | None = None
        self._watched: list[tuple[dict[str, Any], int, str, Any]] = []

    @property
    def groups(self) -> list[Joined]:
        """Those found so far."""
        return self._groups or []

    def of(self, window: list[Share]) -> list[tuple[Joined, list[Share]]]:
        """The groups that are complete in these minibatches, with their shares."""
        if not self._from or len(window) < max(self._from, 2):
            return []
        if self._groups is None or self._changed():
            self._groups = self._find()
        if not self._groups:
            return []
        shares = {stage: (stage, parts) for stage, parts in window}
        found = []
        for group in self._groups:
            mine = [shares[stage] for stage in group.stages if stage in shares]
            if len(mine) == len(group.stages) and group.fits(mine):
                found.append((group, mine))
        return found

    def _find(self) -> list[Joined]:
        learner = self._learner
        self._watched = []
        if not _allowed(learner):
            return []
        groups: dict[Hashable, list[Stage]] = {}
        for stage in learner.stages.values():
            if _simple(stage):
                groups.setdefault(self._structure(stage), []).append(stage)
        return [Joined(stages, learner) for stages in groups.values() if len(stages) >= self._from]

    def _structure(self, stage: Stage) -> Hashable:
        """What must agree: types, shapes, settings of all parts, and the plugins' options."""
        module = stage.member.module
        places = {id(part): name for name, part in module.named_modules()}
        digest = hashlib.blake2b(digest_size=16)
        for name, part in module.named_modules():
            digest.update(f"{name}:{type(part).__qualname__}".encode())
            state = part.__getstate__()
            for key, value in state.items():
                if key in _TENSORS:
                    digest.update(_shapes(value).encode())
                    continue
                if key in _INTERNAL:
                    # Hooks on parts may do anything: such modules stay by themselves.
                    digest.update(f"{id(part)}".encode() if value else b"")
                    continue
                digest.update(key.encode())
                feed(digest, _placed(value, places), 8)
                self._watched.append((vars(part), len(vars(part)), key, vars(part).get(key)))
        configs = tuple(
            repr(self._learner.calls.config_of(one.name, stage.member.module_id))
            for one in self._learner.calls.implementations("compute_loss_for_module")
        )
        return digest.hexdigest(), configs, type(stage.member.optimizers[0].optimizer)

    def _changed(self) -> bool:
        """Whether any plain attribute of a grouped module was replaced since."""
        return any(
            table.get(key) is not value or len(table) != count
            for table, count, key, value in self._watched
        )


def _allowed(learner: Owned) -> bool:
    calls = learner.calls
    return (
        learner.learning.accumulate == 1
        and not learner.learning.balance_grad_norms
        and learner.learning.nonfinite != "stop"
        and learner.precision.scaler is None
        and not learner.compute.compile
        and learner.peers.size == 1
        and not calls.implements("postprocess_gradients")
        and not calls.wants("compute_loss_for_module", "module_id")
        and not calls.wants("compute_loss_for_module", "learner")
    )


def _simple(stage: Stage) -> bool:
    member = stage.member
    return (
        len(member.optimizers) == 1
        and not isinstance(member.optimizers[0].optimizer, LBFGS)
        and not member.optimizers[0].burst
        and not member.extras
        and not member.shared
        and not member.sequences
        and all(param.is_contiguous() for param in member.module.parameters())
        and not _ties(member.module)
    )


def _ties(module: nn.Module) -> bool:
    """Whether one parameter stands in two places, where its gradients would have to meet."""
    twice = list(module.named_parameters(remove_duplicate=False))
    return len(twice) != len(list(module.parameters()))


def _shapes(tensors: dict[str, Tensor | nn.Module | None]) -> str:
    return repr(
        [
            (name, tuple(one.shape), one.dtype, one.requires_grad)
            if isinstance(one, torch.Tensor)
            else (name, one is None)
            for name, one in tensors.items()
        ]
    )


def _placed(value: Any, places: dict[int, str]) -> Any:
    """References to parts of the same module by their place, whatever numbers they hold."""
    if isinstance(value, nn.Module):
        return places.get(id(value), value)
    if isinstance(value, tuple | list):
        return [_placed(part, places) for part in value]
    return value
