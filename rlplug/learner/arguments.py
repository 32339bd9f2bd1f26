"""What a learner is given by hand: ids, batches, losses, gradients and folders, checked by kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from inspect import signature
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rlplug.batch import Batch
from rlplug.config.schedule import Schedule, points
from rlplug.durable import absolute_path
from rlplug.errors import PluginError, RequestError
from rlplug.plugin import DEFAULT_MODULE
from rlplug.quantities import is_number

__all__ = [
    "check_batches",
    "check_bool",
    "check_by_module",
    "check_choice",
    "check_gradients",
    "check_ids",
    "check_losses",
    "check_metrics",
    "check_module_id",
    "check_optimizer",
    "check_params",
    "check_settings",
    "is_gradient_of",
    "rate_of",
    "state_folder",
    "weight_of",
]


def check_module_id(module_id: Any) -> None:
    """Refuse what no module can be called."""
    if not isinstance(module_id, str) or not module_id:
        raise RequestError(
            f"the id of a module is a text that is not empty, got {module_id!r}.",
            f"try: {str(module_id)!r}" if module_id else f"try: {DEFAULT_MODULE!r}",
        )


def check_bool(name: str, value: Any) -> None:
    """Refuse what is neither True nor False: `"no"` would count as True."""
    if not isinstance(value, bool | numpy.bool_):
        raise RequestError(f"{name} is {value!r}.", "give True or False")


def check_choice(wanted: Callable[..., Any]) -> None:
    """Refuse a function that cannot be asked whether to train a module."""
    try:
        signature(wanted).bind(DEFAULT_MODULE, None)
    except TypeError as error:
        raise RequestError(
            "modules_to_train is a function that cannot be called with a module id and a batch: "
            f"{error}.",
            "try: lambda module_id, batch: module_id == 'default'",
        ) from error
    except ValueError:
        # Functions of C may not tell their arguments.
        return


def check_ids(name: str, wanted: Any, or_else: str) -> None:
    """Refuse what are no ids of modules: a text would be taken for the ids of its letters."""
    if isinstance(wanted, str):
        raise RequestError(f"{name} is the text {wanted!r}.", f"try: {name} = {{{wanted!r}}}")
    if not isinstance(wanted, Collection):
        raise RequestError(
            f"{name} is a {type(wanted).__name__}.", f"give the ids of modules, {or_else}"
        )


def check_batches(batches: Any) -> None:
    """Refuse what are no batches by module id."""
    if isinstance(batches, Batch):
        raise RequestError(
            "batches must be a mapping from module ids to Batches, got one Batch.",
            f"try: {{{DEFAULT_MODULE!r}: batch}}, or update_from_batch",
        )
    if not isinstance(batches, Mapping):
        raise RequestError(
            "batches must be a mapping from module ids to Batches, got a "
            f"{type(batches).__name__}.",
            f"try: {{{DEFAULT_MODULE!r}: batch}}",
        )
    for name, one in batches.items():
        if not isinstance(one, Batch):
            raise RequestError(
                f"batches must be a mapping from module ids to Batches; {name!r} is a "
                f"{type(one).__name__}.",
                "try: Batch(columns)",
            )
        _check_numbers(name, one.columns)


def _check_numbers(module_id: str, columns: Mapping[str, Any]) -> None:
    """Refuse more than one number per row: with (n, 1), losses would broadcast to (n, n)."""
    for name in _ONE_PER_ROW:
        column = columns.get(name)
        if column is not None and getattr(column, "ndim", 1) > 1:
            shape = tuple(column.shape)
            raise RequestError(
                f"{name!r} of the batch for module {module_id!r} has shape {shape}, expected "
                f"({shape[0]},).",
                f"try: {name}[:, 0]" if shape[1:] == (1,) else "give one number per row",
            )


def check_by_module(saved: Any, what: str, source: str) -> None:
    """Refuse what is no mapping; `source` is the method that gives such."""
    if not isinstance(saved, Mapping):
        raise RequestError(
            f"the {what} are a {type(saved).__name__}, not a mapping.", f"give what {source} gave"
        )


def check_optimizer(optimizer: Any, who: str) -> None:
    """Refuse what is no optimizer."""
    if not isinstance(optimizer, Optimizer):
        raise PluginError(
            f"{who} is a {type(optimizer).__name__}, not a torch optimizer.",
            "give an instance of torch.optim.Optimizer",
        )


def check_params(params: Any, held: Sequence[nn.Parameter], who: str) -> None:
    """Refuse other parameters than those that an optimizer holds."""
    found = params if isinstance(params, Iterable) else [params]
    if {id(param) for param in found} != {id(param) for param in held}:
        raise PluginError(
            f"{who} was made from other parameters than it is registered with.",
            "give register_optimizer the list that the optimizer was made from",
        )


def rate_of(value: Any, who: str) -> float | Schedule:
    """A learning rate or the schedule of one, out of a number, a Schedule or its pairs."""
    try:
        known = is_number(value) or isinstance(value, Schedule)
        found: float | Schedule = value if known else _schedule(value)
        if all(map(_is_rate, points(found) if isinstance(found, Schedule) else [found])):
            return found
    except (TypeError, ValueError):
        # No pairs of numbers, or steps that do not increase from 0.
        pass
    raise RequestError(
        f"the learning rate of {who} is {value!r}.",
        "give a number from 0 on, or a schedule: [[0, 0.1], [1000, 0.0]]",
    )


def _schedule(pairs: Any) -> Schedule:
    if not all(is_number(part) for pair in pairs for part in pair):
        raise TypeError("pairs of numbers")
    return Schedule(pairs)


def _is_rate(value: Any) -> bool:
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    return is_number(value) and math.isfinite(value) and value >= 0


def check_settings(
    settings: Mapping[Any, Any], held: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
) -> None:
    """Refuse settings that the optimizers do not have, before any is changed."""
    for key, groups in settings.items():
        if key not in held:
            known = ", ".join(map(repr, held)) or "none"
            raise RequestError(
                f"settings are by module id and name of the optimizer, found {key!r}.",
                f"there are: {known}",
            )
        who = f"optimizer {key[1]!r} of module {key[0]!r}"
        count = len(held[key])
        are_groups = isinstance(groups, list | tuple) and all(
            isinstance(one, Mapping) for one in groups
        )
        if not are_groups or len(groups) != count:
            raise RequestError(
                f"the settings of {who} must be a list of {count} mappings, one for each group "
                "of parameters.",
                "give what optimizer_settings() gave",
            )
        for own, values in zip(held[key], groups, strict=True):
            for name in values:
                if name not in own and name != "lr":
                    raise RequestError(
                        f"{who} has no setting {name!r}.", f"it has: {', '.join(own)}"
                    )
            if "lr" in values and not _is_rate(values["lr"]):
                raise RequestError(
                    f"the learning rate of {who} is {values['lr']!r}.", "give a number from 0 on"
                )


def check_metrics(metrics: Any) -> None:
    """Refuse to report what are no metrics by name."""
    if not isinstance(metrics, Mapping):
        raise PluginError(
            f"the metrics are a {type(metrics).__name__}, not a mapping.", "give {name: value}"
        )
    for name, value in metrics.items():
        is_value = isinstance(value, Real | numpy.bool_) or (
            isinstance(value, Tensor | numpy.ndarray) and not value.ndim
        )
        if not isinstance(name, str) or not is_value:
            raise PluginError(
                f"metric {name!r} is {value!r}.", "give a name, and a number or a 0-d tensor"
            )


def check_losses(losses: Any) -> None:
    """Refuse what are no losses by module id, or none at all."""
    check_by_module(losses, "losses", "compute_loss")
    if not losses:
        raise RequestError(
            "there is no loss to compute gradients of.",
            "compute_loss leaves out modules without one: look whether it gave any",
        )
    for module_id, loss in losses.items():
        if not isinstance(loss, Tensor):
            raise RequestError(
                f"the loss of module {module_id!r} is a {type(loss).__name__}, not a tensor.",
                "give what compute_loss gave",
            )
        if loss.dim() or not loss.requires_grad:
            found = f"has shape {tuple(loss.shape)}" if loss.dim() else "has no gradient"
            raise RequestError(
                f"the loss of module {module_id!r} {found}.", "give what compute_loss gave"
            )


def check_gradients(gradients: Any) -> None:
    """Refuse what are no gradients by parameter."""
    check_by_module(gradients, "gradients", "compute_gradients")
    for param, gradient in gradients.items():
        if not isinstance(param, Tensor) or not isinstance(gradient, Tensor | None):
            raise RequestError(
                f"gradients are tensors by parameter, found a {type(gradient).__name__} of a "
                f"{type(param).__name__}.",
                "give what compute_gradients gave",
            )
        if gradient is not None and not is_gradient_of(gradient, param):
            raise RequestError(
                f"the gradient of a parameter of shape {tuple(param.shape)} and {param.dtype} has "
                f"shape {tuple(gradient.shape)} and {gradient.dtype}.",
                "give what compute_gradients gave",
            )


def is_gradient_of(value: Any, param: Tensor) -> bool:
    """Whether it could be the gradient of a parameter."""
    return isinstance(value, Tensor) and value.shape == param.shape and value.dtype == param.dtype


def weight_of(value: Any, who: str) -> Tensor:
    """A weight out of an array, a tensor or nested lists."""
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        # RuntimeError: of None, and of whatever else torch finds no dtype for.
        raise RequestError(
            f"{who} cannot be loaded: {error}", "give an array or a tensor of numbers"
        ) from error


def state_folder(folder: Any) -> Path:
    """The folder of a state, with `~` replaced by a home folder."""
    if not isinstance(folder, str | PathLike):
        raise RequestError(f"the folder of a state is a {type(folder).__name__}.", "give its path")
    return absolute_path(Path(folder), "the folder of a state")


_ONE_PER_ROW = ("rewards", "terminated", "truncated", "weights", "discounts", "indices")
"""Columns that hold one number per row, whatever the spaces are."""
