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
    fragments = batch["fragments"].cpu()
    order = torch.randperm(len(fragments), generator=generator)
    taken: list[int] = []
    rows = 0
    left = batch.rows
    for index in order.tolist():
        start, stop = fragments[index].tolist()
        taken.append(index)
        rows += stop - start
        left -= stop - start
        # A rest smaller than half a minibatch is not worth a step of its own.
        if rows >= size and left * 2 >= size:
            yield _of_fragments(batch, fragments[taken], torch.tensor(taken))
            taken, rows = [], 0
    if taken:
        yield _of_fragments(batch, fragments[taken], torch.tensor(taken))


def _of_fragments(batch: Batch, spans: Tensor, which: Tensor) -> Batch:
    rows = torch.cat([torch.arange(start, stop) for start, stop in spans.tolist()])
    lengths = spans[:, 1] - spans[:, 0]
    stops = lengths.cumsum(0)
    fragments = torch.stack((stops - lengths, stops), dim=1).to(batch["fragments"].device)
    tables: dict[str, Any] = {"fragments": fragments}
    for name in ("final_observations", "state"):
        if name in batch:
            tables[name] = tree_map(
                lambda leaf: leaf.index_select(0, which.to(leaf.device)), batch[name]
            )
    return batch.select(rows).with_columns(tables)
