"""What a policy remembers of its episodes: the state of a module, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy
import torch

__all__ = ["begun_anew"]


def begun_anew(state: Mapping[str, Any] | None, fresh: Any, rows: Any) -> Any:
    """The state in which these rows remember nothing; the one given is left as it is."""
    if state is None or not rows.any():
        return state
    return {name: _with_rows(part, fresh[name], rows) for name, part in state.items()}


def _with_rows(part: Any, fresh: Any, rows: Any) -> Any:
    if isinstance(part, torch.Tensor):
        tensor = part.clone()
        index = torch.as_tensor(rows)
        tensor[index] = torch.as_tensor(fresh, device=part.device)[index]
        return tensor
    array = numpy.array(part)
    array[rows] = numpy.asarray(fresh)[rows]
    return array
