"""What an approximation may be made of, all at once, and what losses and outputs it works with."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rlplug.approximation.checkpointer import PeriodicCheckpointer
from rlplug.errors import RequestError
from rlplug.nn.targets import TargetNetwork, TrivialTarget
from rlplug.quantities import is_number, is_whole_number

__all__ = [
    "arguments_of",
    "count",
    "limits",
    "output_of",
    "refuse_incomplete",
    "refuse_no_loss",
    "refuse_unfit",
    "refuse_unprojectable",
    "shown",
]

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
    hint: str = ""
    """What to do about one that is in its place."""


def arguments_of(given: Mapping[str, Any]) -> Iterator[Argument]:
    """The arguments that all approximations have."""

    def one(part: str, fits: bool, wanted: str) -> Argument:
        return Argument(part, given[part], given[part] is None or fits, wanted)

    model, name = given["model"], given["name"]
    yield _model(model, given["target"])
    yield Argument("name", name, isinstance(name, str), "a str")
    yield _optimizer(given["optimizer"], model)
    yield _checkpointer(given["checkpointer"], model)
    yield _target(given["target"])
    yield one("writer", _is_writer(given["writer"]), f"a Writer with {', '.join(_WRITER)}")
    yield one("device", _is_device(given["device"]), "a device such as 'cpu' or 'cuda'")
    limit, scaling = given["clip_grad"], given["loss_scaling"]
    # Infinity clips nothing, and stops where a gradient is not finite.
    yield Argument("clip_grad", limit, is_number(limit) and limit >= 0, "a number from 0 on", True)
    yield Argument("loss_scaling", scaling, _is_finite(scaling), "a finite number", True)


def _model(model: Any, target: Any) -> Argument:
    if not isinstance(model, nn.Module):
        return Argument("model", model, False, "an nn.Module")
    copied = target is not None and not isinstance(target, TrivialTarget)
    lazy = any(map(is_lazy, chain(model.parameters(), model.buffers())))
    wanted, hint = "one of known sizes, for its target is a copy", "run one forward pass first"
    return Argument("model", model, not (copied and lazy), wanted, hint=f"{hint}: model(…)")


def _optimizer(optimizer: Any, model: Any) -> Argument:
    if not isinstance(optimizer, torch.optim.Optimizer):
        fits = optimizer is None
        return Argument("optimizer", optimizer, fits, "a torch.optim.Optimizer")
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        wanted = "one that steps without a closure"
        return Argument("optimizer", optimizer, False, wanted, hint="try: Adam")
    moved = {id(one) for group in optimizer.param_groups for one in group["params"]}
    own = not isinstance(model, nn.Module) or any(id(one) in moved for one in model.parameters())
    wanted, hint = "one of the parameters of its model", "make it from model.parameters()"
    return Argument("optimizer", optimizer, own, wanted, hint=hint)


def _checkpointer(checkpointer: Any, model: Any) -> Argument:
    if not isinstance(checkpointer, PeriodicCheckpointer):
        fits = checkpointer is None or _is_checkpointer(checkpointer)
        return Argument("checkpointer", checkpointer, fits, "a Checkpointer")
    fits = checkpointer.model is None or checkpointer.model is model
    wanted, hint = "one that saves no other model", "give each approximation one of its own"
    return Argument("checkpointer", checkpointer, fits, wanted, hint=hint)


def _target(target: Any) -> Argument:
    if not isinstance(target, TargetNetwork):
        return Argument("target", target, target is None, "a TargetNetwork")
    # An approximation knows nothing of environment steps.
    wanted, hint = "one that counts updates", "try: FixedTarget(update_frequency)"
    if getattr(target, "unit", "update") != "update":
        return Argument("target", target, False, wanted, hint=hint)
    wanted, hint = "one that follows no other network", "give each approximation one of its own"
    return Argument("target", target, not target.follows, wanted, hint=hint)


def count(part: str, value: Any, least: int) -> Argument:
    """A number of things."""
    # Spaces count in NumPy's integers.
    fits = is_whole_number(value) and int(value) >= least
    return Argument(part, value, fits, f"a whole number from {least} on", True)


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
        f"the {one.part} of {_who(kind, name)} must be {one.wanted}, found {shown(one.value)}."
        for one in unfit
    ]
    if len(told) > 1:
        told.insert(0, f"{_who(kind, name)} cannot be made: {len(told)} problems.")
    told.extend(dict.fromkeys(one.hint for one in unfit if one.hint))
    if not all(one.hint or (one.numeric and is_number(one.value)) for one in unfit):
        told.append(f"the order is: {_order(kind)}; or give them by name")
    raise RequestError(*told)


def refuse_no_loss(loss: Any, name: str, *, graph: bool) -> None:
    """Refuse what is no loss; with `graph`, also one that nothing can be learned from."""
    who = f"a loss of approximation {name!r}"
    if not isinstance(loss, Tensor):
        raise RequestError(
            f"{who} is a tensor, found {shown(loss)}.", "compute it from what the network gives"
        )
    if loss.numel() != 1:
        raise RequestError(
            f"{who} is one real number, found the shape {tuple(loss.shape)}.", "try: loss.mean()"
        )
    if loss.is_complex():
        raise RequestError(f"{who} is one real number, found {loss.dtype}.", "try: loss.real")
    if graph and not loss.requires_grad:
        raise RequestError(
            f"{who} has no gradient.",
            "compute it from what a call gives, not from no_grad, eval or target",
        )


def refuse_incomplete(state: Any, parts: Iterable[str], name: str) -> None:
    """Refuse a state that lacks parts."""
    held = state if isinstance(state, Mapping) else {}
    if missing := [part for part in parts if part not in held]:
        raise RequestError(
            f"the state for approximation {name!r} has no {', '.join(missing)}.",
            "load what state_dict() of one that is made alike has given",
        )


def output_of(name: str, output: Any) -> Tensor:
    """The output of the model of an approximation, which is a tensor."""
    if not isinstance(output, Tensor):
        kind = type(output).__name__
        raise RequestError(
            f"the model of approximation {name!r} gives tensors, found a {kind}.",
            "wrap it in an nn.Module that gives one of its parts",
        )
    return output


def refuse_unprojectable(name: str, probabilities: Any, positions: Any) -> None:
    """Refuse distributions and positions that do not belong together, or have NaN."""
    given = {"probabilities": probabilities, "positions": positions}
    for one in given.values():
        if not isinstance(one, Tensor):
            raise RequestError(
                f"distributions that approximation {name!r} projects are tensors, "
                f"found {shown(one)}.",
                "try: torch.tensor(…)",
            )
    shapes = tuple(probabilities.shape), tuple(positions.shape)
    if len(shapes[0]) != 2 or shapes[0] != shapes[1]:
        raise RequestError(
            f"approximation {name!r} projects probabilities and positions of one shape (n, m), "
            f"found {shapes[0]} and {shapes[1]}.",
            "try: a position for each probability",
        )
    for part, one in given.items():
        # To look at them on a GPU would wait for it.
        if one.is_cpu and bool(one.isnan().any()):
            raise RequestError(
                f"the {part} that approximation {name!r} projects have NaN.",
                "look for NaN in rewards and in the model's inputs",
            )


def _order(kind: type) -> str:
    """The first arguments of a class."""
    parameters = inspect.signature(kind).parameters.values()
    names = [one.name for one in parameters if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    return ", ".join(names[:_NAMED])


def _who(kind: type, name: Any) -> str:
    """What errors call an approximation: its name, or its class where that is no name."""
    return f"approximation {name!r}" if isinstance(name, str) else kind.__name__


def _is_checkpointer(value: Any) -> bool:
    if isinstance(value, type):
        return False
    return callable(getattr(value, "init", None)) and callable(value)


def _is_writer(value: Any) -> bool:
    if isinstance(value, type):
        return False
    folder, *told = (getattr(value, name, None) for name in _WRITER)
    return isinstance(folder, str | os.PathLike) and all(map(callable, told))


def _is_device(value: Any) -> bool:
    try:
        torch.device(value)
    except (RuntimeError, TypeError):
        return False
    return True


def _is_finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


def shown(value: Any) -> str:
    """A value that is short, or what it is."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, str | Real):
        return repr(value)
    return type(value).__name__
