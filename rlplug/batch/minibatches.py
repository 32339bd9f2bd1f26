"""Shuffled minibatches: every row once per epoch, one gather per epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from rlplug.batch.batch import Batch
from rlplug.batch.nested import tree_map

__all__ = ["minibatches"]


def minibatches(
    batch: Batch, size: int, generator: torch.Generator, *, whole_fragments: bool = False
) -> Iterator[Batch]:
    """Minibatches of one epoch: `size` rows each, the last one the rest; 0 takes all rows at once.

    With `whole_fragments` no fragment is split: minibatches then have at least `size` rows.
    """
    rows = batch.rows
    if not 0 < size < rows:
        yield batch
    elif whole_fragments and "fragments" in batch:
        yield from _by_fragments(batch, size, generator)
    else:
        shuffled = batch.select(torch.randperm(rows, generator=generator))
        for start in range(0, rows, size):
            yield shuffled.select(slice(start, start + size))


def _by_fragments(batch: Batch, size: int, generator: torch.Generator) -> Iterator[Batch]:
    spans = batch["fragments"].cpu()
    order = torch.randperm(len(spans), generator=generator)
    first, start = 0, 0
    stops = spans[order].diff().cumsum(0).flatten().tolist()
    for last, stop in enumerate(stops, 1):
        # A rest smaller than half a minibatch is not worth a step of its own.
        is_rest = (batch.rows - stop) * 2 < size
        if stop == stops[-1] or (stop - start >= size and not is_rest):
            yield _of_fragments(batch, spans, order[first:last])
            first, start = last, stop


def _of_fragments(batch: Batch, spans: Tensor, which: Tensor) -> Batch:
    spans = spans[which]
    rows = torch.cat([torch.arange(start, stop) for start, stop in spans.tolist()])
    lengths = spans.diff()
    stops = lengths.cumsum(0)
    fragments = torch.cat((stops - lengths, stops), dim=1)
    tables: dict[str, Any] = {"fragments": fragments.to(batch["fragments"].device)}
    for name in ("final_observations", "state"):
        if name in batch:
            tables[name] = tree_map(lambda leaf: leaf[which.to(leaf.device)], batch[name])
    return batch.select(rows).with_columns(tables)
