"""Times in which no network gets other weights, so that looking once is enough."""

from __future__ import annotations

from typing import Any

__all__ = ["Standing", "time"]


class Standing:
    """Inside, whoever looked whether a network still has its weights need not look again.

    Looking takes longer than a small layer, and acting does it at every step. What optimizers
    write into weights everybody sees; only another tensor in the place of one is not noticed
    before the end.
    """

    __slots__ = ("_before",)

    def __init__(self) -> None:
        self._before: object | None = None

    def __enter__(self) -> None:
        global time
        self._before, time = time, object()

    def __exit__(self, *_: Any) -> None:
        global time
        time = self._before


time: object | None = None
"""What tells one such time from another; None outside of them."""
