"""Arms that come and go: which regression belongs to which arm, by ids in the observations."""

from __future__ import annotations

from typing import Any

import numpy
import torch
from torch import Tensor

from rlplug_linucb.arrays import BufferViews

__all__ = ["ArmIds"]

_FREE = -1


class ArmIds(BufferViews):
    """Regressions of the arms learned most recently, `size` of them, and one more without data.

    An arm gets a regression when it is first learned. If none is free, it takes that of the arm
    learned least recently. The tensors keep their shapes: the state can be saved and loaded.
    """

    ids: Tensor
    """The id of the arm that has each regression; -1 where none has it."""
    learned: Tensor
    """The row, counted from 1, that each regression learned last; 0 for a free one."""
    _groups: dict[int, int]
    rows: Tensor
    """Number of rows learned."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("ids", torch.full((size,), _FREE, dtype=torch.int64))
        self.register_buffer("learned", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("rows", torch.zeros((), dtype=torch.int64))
        self.renew_views()

    def make_views(self) -> dict[str, Any]:
        """The regression of each id."""
        places = enumerate(self.ids.tolist())
        return {"_groups": {arm: group for group, arm in places if arm != _FREE}}

    def groups(self, ids: Any) -> Any:
        """The regression of each arm; for those never learned, the one without data."""
        ids = ids.cpu().numpy() if isinstance(ids, Tensor) else numpy.asarray(ids)
        known, size = self._groups, self.size
        found = [known.get(arm, size) for arm in ids.ravel().tolist()]
        return numpy.array(found, numpy.int64).reshape(ids.shape)

    def learn(self, arm: int) -> tuple[int, bool]:
        """The regression that learns a row of this arm, and whether another arm had it before."""
        group = self._groups.get(arm)
        taken = False
        if group is None:
            group = int(self.learned.argmin())
            taken = self.forget(int(self.ids[group])) is not None
            self.ids[group] = arm
            self._groups[arm] = group
        self.rows += 1
        self.learned[group] = self.rows
        return group, taken

    def forget(self, arm: int) -> int | None:
        """Free the regression of an arm; returns it, or None if the arm has none."""
        group = self._groups.pop(arm, None)
        if group is not None:
            self.ids[group], self.learned[group] = _FREE, 0
        return group
