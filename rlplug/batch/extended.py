"""Fragments with their final observations appended: values and next values in one pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlplug.batch.batch import Batch
from rlplug.batch.nested import mapped
from rlplug.errors import RequestError

__all__ = ["Extended", "extend"]


class Extended(Batch):
    """A batch of observations only, each fragment one row longer than it was.

    `fragments` and `state` are there for recurrent modules; `split` leads back to the rows.
    """

    __slots__ = ("_places",)

    def __init__(self, columns: dict[str, Any], places: Tensor) -> None:
        super().__init__(columns)
        self._places = places

    def split(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Of one value per extended row: those at each row, and those one row later."""
        return values.index_select(0, self._places), values.index_select(0, self._places + 1)


def extend(batch: Batch) -> Extended:
    """Append to each fragment its final observation."""
    for name in ("observations", "fragments", "final_observations"):
        if name not in batch:
            raise RequestError(
                f"a batch without {name!r} cannot be extended.",
                f"it has: {', '.join(batch)}",
            )
    fragments = batch["fragments"]
    starts, stops = fragments.unbind(1)
    order = torch.arange(len(fragments), device=fragments.device)
    lengths = stops - starts
    rows = torch.arange(batch.rows, device=fragments.device)
    places = rows + order.repeat_interleave(lengths)
    ends = stops + order
    total = batch.rows + len(fragments)

    def joined(column: Any, final: Any) -> Any:
        if isinstance(column, Tensor):
            whole = column.new_empty((total, *column.shape[1:]))
            whole[places] = column
            whole[ends] = final.to(column.dtype)
            return whole
        if isinstance(column, dict):
            return {name: joined(part, final[name]) for name, part in column.items()}
        return tuple(joined(part, other) for part, other in zip(column, final, strict=True))

    columns = {
        "observations": joined(batch["observations"], batch["final_observations"]),
        "fragments": torch.stack((starts + order, ends + 1), dim=1),
    }
    if "state" in batch:
        columns["state"] = mapped(batch["state"], lambda leaf: leaf)
    return Extended(columns, places)
