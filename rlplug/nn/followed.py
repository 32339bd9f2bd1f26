"""Whether torch may be gone past."""

from __future__ import annotations

import torch
from torch.nn.modules.module import _has_any_global_hook

__all__ = ["is_followed"]


def is_followed() -> bool:
    """Whether somebody follows what torch does here, or wants it to do more than NumPy can."""
    # Asked first: what follows cannot be compiled itself.
    return torch.compiler.is_compiling() or (
        torch.get_num_threads() != 1
        # The first question is a fourth of the second.
        or (torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled("cpu"))
        or torch._C._functorch.peek_interpreter_stack() is not None
        or _has_any_global_hook()  # type: ignore[no-untyped-call] # untyped in torch
    )
