"""Shuffled minibatches: every row once per epoch, one gather per epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from rlplug.batch.batch import SIDE_TABLES, Batch
from rlplug.batch.nested import mapped

__all__ = ["minibatches"]


def minibatches(
    batch: Batch, size: int, generator: torch.Generator, *, whole_fragments: bool = False
) -> Iterator[Batch]:
    """Cut an epoch: `size` rows each, the last one what is left; 0 takes all rows at once.

    With `whole_fragments` no fragment is cut apart: a minibatch has at least `size` rows then.
    """
    rows = batch.rows
    if not 0 < size < rows:
        return iter((batch,))
    if whole_fragments and "fragments" in batch:
        return _by_fragments(batch, size, generator)
    return _by_rows(batch, rows, size, generator)


def _by_rows(batch: Batch, rows: int, size: int, generator: torch.Generator) -> Iterator[Batch]:
    order = torch.randperm(rows, generator=generator)
    names = [name for name in batch if name not in SIDE_TABLES]
    parts = [mapped(batch[name], _Gather(order, size)) for name in names]
    for index in range(-(-rows // size)):
        yield Batch({name: _piece(part, index) for name, part in zip(names, parts, strict=True)})


class _Gather:
    """Shuffles a tensor once and cuts it into views."""

    __slots__ = ("order", "size")

    def __init__(self, order: Tensor, size: int) -> None:
        self.order = order
        self.size = size

    def __call__(self, leaf: Tensor) -> _Pieces:
        return _Pieces(torch.split(leaf.index_select(0, self.order.to(leaf.device)), self.size))


class _Pieces:
    """The views of one shuffled tensor."""

    __slots__ = ("views",)

    def __init__(self, views: tuple[Tensor, ...]) -> None:
        self.views = views


def _piece(part: Any, index: int) -> Any:
    if isinstance(part, _Pieces):
        return part.views[index]
    if isinstance(part, dict):
        return {name: _piece(one, index) for name, one in part.items()}
    return tuple(_piece(one, index) for one in part)


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
    device = batch["fragments"].device
    part = batch.select(rows.to(device))
    tables: dict[str, Any] = {"fragments": torch.stack((stops - lengths, stops), dim=1).to(device)}
    for name in ("final_observations", "state"):
        if name in batch:
            tables[name] = mapped(batch[name], _Rows(which))
    return part.with_columns(tables)


class _Rows:
    """Takes these rows of a table."""

    __slots__ = ("which",)

    def __init__(self, which: Tensor) -> None:
        self.which = which

    def __call__(self, leaf: Tensor) -> Tensor:
        return leaf.index_select(0, self.which.to(leaf.device))
