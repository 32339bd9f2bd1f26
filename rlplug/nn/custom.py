"""Encoders that a person names by import path."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

from rlplug.errors import RequestError, did_you_mean
from rlplug.nn.tensors import to_tensors
from rlplug.spaces import AnySpace, describe, placeholder

__all__ = ["load_encoder"]

_CONTRACT = "try: an nn.Module made from the observation space, that gives rows of out_features"
_ROWS = 2


def load_encoder(path: str, space: AnySpace) -> nn.Module:
    """The encoder `module:Class` for a space, tried out on two observations."""
    kind = _class_at(path)
    try:
        encoder = kind(space)
        with torch.no_grad():
            seen = to_tensors(placeholder(space, _ROWS), torch.device("cpu"))
            features = encoder.eval()(seen)
        encoder.train()
        shape = tuple(features.shape)
    except Exception as error:
        raise RequestError(
            f"encoder {path!r} fails for {describe(space)}: {type(error).__name__}: {error}",
            _CONTRACT,
        ) from error
    if shape != (_ROWS, getattr(encoder, "out_features", None)):
        raise RequestError(
            f"encoder {path!r} gave {shape} for {_ROWS} observations, and has out_features "
            f"{getattr(encoder, 'out_features', None)!r}.",
            _CONTRACT,
        )
    return encoder  # type: ignore[no-any-return] # what acts like a module is one


def _class_at(path: str) -> Any:
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise RequestError(
            f"encoder {path!r} cannot be imported: {type(error).__name__}: {error}",
            "try: encoder=module:Class, of a module in the folder where the run starts",
        ) from error
    if not hasattr(module, name):
        raise RequestError(
            f"encoder {path!r}: module {module_name!r} has no {name!r}.",
            did_you_mean(name, vars(module)) or "try: encoder=module:Class",
        )
    return getattr(module, name)
