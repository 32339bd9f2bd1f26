"""The end of an update's passes once the policy has moved far enough."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["stop_at"]

_SLACK = 1.5
"""How many times the target the policy may move: one minibatch alone is a rough measure."""


def stop_at(target_kl: float, metrics: dict[str, Any]) -> Tensor | None:
    """Whether `approx_kl` is beyond its target; noted among the metrics. 0 never stops."""
    if not target_kl:
        return None
    stop = torch.as_tensor(metrics["approx_kl"] > _SLACK * target_kl)
    metrics["kl_stopped"] = stop.to(torch.float32)
    return stop
