"""Orthogonal initial weights, with a gain for each kind of layer."""

from __future__ import annotations

import math

import torch
from torch import nn

__all__ = ["GAINS", "orthogonal"]

GAINS: dict[str, float] = {
    "hidden": math.sqrt(2),
    "memory": 1.0,
    "policy": 0.01,
    "value": 1.0,
    "action_value": 1.0,
}
"""The gain of each kind of layer; a small one for policies makes all first actions alike."""


@torch.no_grad()
def orthogonal(module: nn.Module, kind: str) -> nn.Module:
    """Give every matrix in a module orthogonal weights with the gain of its kind, zero biases."""
    for name, parameter in module.named_parameters():
        leaf = name.rpartition(".")[2]
        if leaf.startswith("bias"):
            parameter.zero_()
        elif leaf.startswith("weight") and parameter.ndim >= 2:
            nn.init.orthogonal_(parameter, GAINS[kind])
    return module
