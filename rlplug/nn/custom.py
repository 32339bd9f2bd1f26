"""Encoders that a person names by import path."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from rlplug.errors import RequestError, did_you_mean
from rlplug.nn.tensors import to_tensors
from rlplug.spaces import AnySpace, describe, placeholder

__all__ = ["load_encoder"]

_CONTRACT = "try: an nn.Module made from the observation space, with out_features"
_ROWS = 2


def load_encoder(path: str, space: AnySpace) -> nn.Module:
    """The encoder `module:Class` for a space, tried out on two observations."""
    kind = _find(path)
    try:
        encoder = kind(space)
    except Exception as error:
        raise RequestError(
            f"encoder {path!r} cannot be made for {describe(space)}: "
            f"{type(error).__name__}: {error}",
            _CONTRACT,
        ) from error
    if not isinstance(encoder, nn.Module):
        raise RequestError(
            f"encoder {path!r} is no nn.Module, but {type(encoder).__name__}.", _CONTRACT
        )
    width = getattr(encoder, "out_features", None)
    if not isinstance(width, int) or width < 1:
        raise RequestError(f"encoder {path!r} has out_features {width!r}.", _CONTRACT)
    _try_out(encoder, path, space, width)
    return encoder


def _find(path: str) -> Any:
    module_name, colon, name = path.partition(":")
    if not (colon and module_name and name):
        raise RequestError(f"encoder {path!r} is no import path.", "try: encoder=module:Class")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise RequestError(
            f"encoder {path!r} cannot be imported: {type(error).__name__}: {error}",
            f"try: python -c 'import {module_name}', in the folder where the run starts",
        ) from error
    kind = getattr(module, name, None)
    if kind is None:
        guess = did_you_mean(name, vars(module))
        raise RequestError(
            f"encoder {path!r}: module {module_name!r} has no {name!r}.",
            guess or "try: the name of a class in that module",
        )
    return kind


def _try_out(encoder: nn.Module, path: str, space: AnySpace, width: int) -> None:
    training = encoder.training
    try:
        with torch.no_grad():
            features = encoder.eval()(to_tensors(placeholder(space, _ROWS), torch.device("cpu")))
    except Exception as error:
        raise RequestError(
            f"encoder {path!r} fails on observations of {describe(space)}: "
            f"{type(error).__name__}: {error}",
            f"try: forward(observations) for {_ROWS} rows of them",
        ) from error
    finally:
        encoder.train(training)
    wanted = (_ROWS, width)
    if not isinstance(features, Tensor) or features.shape != wanted:
        found = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise RequestError(
            f"encoder {path!r} gave {found} for {_ROWS} observations, not {wanted}.",
            "try: one row of out_features numbers for each observation",
        )
