"""A module whose buffers are exact, and may be moved, loaded and copied under its feet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from torch import Tensor, nn

__all__ = ["Movable"]


class Movable(nn.Module):
    """Opens its buffers as arrays, `own`, and again whenever they have moved."""

    def reopen(self) -> None:
        """Take hold of the buffers where they are now."""
        raise TypeError(f"{type(self).__name__} must define reopen")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Sums in float32 would lose rows: `.to(dtype)` and `.half()` move, but round nothing.
        def moved(tensor: Tensor) -> Tensor:
            answer = fn(tensor)
            return answer if answer.dtype == tensor.dtype else tensor.to(answer.device)

        super()._apply(moved, recurse)  # type: ignore[no-untyped-call] # torch leaves it untyped
        self.reopen()
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.reopen()

    def __getstate__(self) -> dict[str, Any]:
        # Views that were copied would no longer be views.
        return {name: value for name, value in self.__dict__.items() if name != "own"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call] # torch leaves it untyped
        self.reopen()
