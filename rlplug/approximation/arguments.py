"""What an approximation may be made of: each argument checked as it was given, all at once."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

import torch
from torch import nn

from rlplug.errors import RequestError
from rlplug.nn.targets import TargetNetwork

__all__ = ["arguments_of", "count", "limits", "refuse_unfit"]

_WRITER = ("log_dir", "add_loss", "add_schedule")
_NAMED = 4
"""Arguments of a class that a hint names, from the first on."""


class Argument(NamedTuple):
    """An argument that was given, whether it will do, and what would."""

    part: str
    value: Any
    fits: bool
    wanted: str
    numeric: bool = False
    """Whether it is a number: one that will not do is in its place all the same."""


def arguments_of(given: Mapping[str, Any]) -> Iterator[Argument]:
    """The arguments that all approximations have."""

    def one(part: str, fits: bool, wanted: str) -> Argument:
        return Argument(part, given[part], given[part] is None or fits, wanted)

    model, name, optimizer = given["model"], given["name"], given["optimizer"]
    yield Argument("model", model, isinstance(model, nn.Module), "an nn.Module")
    yield Argument("name", name, isinstance(name, str), "a str")
    yield one("optimizer", isinstance(optimizer, torch.optim.Optimizer), "a torch.optim.Optimizer")
    yield one("checkpointer", _is_checkpointer(given["checkpointer"]), "a Checkpointer")
    yield one("target", isinstance(given["target"], TargetNetwork), "a TargetNetwork")
    yield one("writer", _is_writer(given["writer"]), f"a Writer with {', '.join(_WRITER)}")
    yield one("device", _is_device(given["device"]), "a device such as 'cpu' or 'cuda'")
    limit, scaling = given["clip_grad"], given["loss_scaling"]
    # Infinity clips nothing, and stops where a gradient is not finite.
    yield Argument("clip_grad", limit, _is_number(limit) and limit >= 0, "a number from 0 on", True)
    yield Argument("loss_scaling", scaling, _is_finite(scaling), "a finite number", True)


def count(part: str, value: Any, least: int) -> Argument:
    """A number of things."""
    # Spaces count in NumPy's integers.
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    return Argument(
        part, value, whole and int(value) >= least, f"a whole number from {least} on", True
    )


def limits(least: Any, most: Any) -> Iterator[Argument]:
    """The least and the largest return of a distribution."""
    yield Argument("v_min", least, _is_finite(least), "a finite number", True)
    above = _is_finite(most) and not (_is_finite(least) and most <= least)
    yield Argument("v_max", most, above, "a finite number above v_min", True)


def refuse_unfit(kind: type, name: Any, arguments: Iterable[Argument]) -> None:
    """Refuse all arguments that will not do."""
    unfit = [one for one in arguments if not one.fits]
    if not unfit:
        return
    told = [
        f"the {one.part} of {_who(kind, name)} must be {one.wanted}, found {_shown(one.value)}."
        for one in unfit
    ]
    if len(told) > 1:
        told.insert(0, f"{_who(kind, name)} cannot be made: {len(told)} problems.")
    if not all(one.numeric and _is_number(one.value) for one in unfit):
        told.append(f"the order is: {_order(kind)}; or give them by name")
    raise RequestError(*told)


def _order(kind: type) -> str:
    """The first arguments of a class."""
    parameters = inspect.signature(kind).parameters.values()
    names = [one.name for one in parameters if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    return ", ".join(names[:_NAMED])


def _who(kind: type, name: Any) -> str:
    """What errors call an approximation: its name, or its class where that is no name."""
    return f"approximation {name!r}" if isinstance(name, str) else kind.__name__


def _is_checkpointer(value: Any) -> bool:
    return not isinstance(value, type) and hasattr(value, "init") and callable(value)


def _is_writer(value: Any) -> bool:
    return not isinstance(value, type) and all(hasattr(value, name) for name in _WRITER)


def _is_device(value: Any) -> bool:
    try:
        torch.device(value)
    except (RuntimeError, TypeError):
        return False
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value)


def _shown(value: Any) -> str:
    """A value that is short, or what it is."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, str | Real):
        return repr(value)
    return type(value).__name__
