"""What a learner is given by hand: ids, batches, losses, gradients and folders, checked by kind."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from rlplug.batch import Batch
from rlplug.durable import absolute_path
from rlplug.errors import PluginError, RequestError
from rlplug.plugin import DEFAULT_MODULE

__all__ = [
    "check_batches",
    "check_by_module",
    "check_gradients",
    "check_ids",
    "check_losses",
    "check_metrics",
    "check_module_id",
    "check_optimizer",
    "state_folder",
]


def check_module_id(module_id: Any) -> None:
    """Refuse what no module can be called."""
    if not isinstance(module_id, str) or not module_id:
        raise RequestError(
            f"the id of a module is a text that is not empty, got {module_id!r}.",
            f"try: {str(module_id)!r}" if module_id else f"try: {DEFAULT_MODULE!r}",
        )


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


def check_by_module(saved: Any, what: str, source: str) -> None:
    """Refuse what is no mapping; `source` is the method that gives such."""
    if not isinstance(saved, Mapping):
        raise RequestError(
            f"the {what} are a {type(saved).__name__}, not a mapping.", f"give what {source} gave"
        )


def check_optimizer(optimizer: Any, name: str) -> None:
    """Refuse to register what is no optimizer."""
    if not isinstance(optimizer, Optimizer):
        raise PluginError(
            f"optimizer {name!r} is a {type(optimizer).__name__}, not a torch optimizer.",
            "give an instance of torch.optim.Optimizer",
        )


def check_metrics(metrics: Any) -> None:
    """Refuse to report what are no metrics by name."""
    if not isinstance(metrics, Mapping):
        raise PluginError(
            f"the metrics are a {type(metrics).__name__}, not a mapping.", "give {name: value}"
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


def state_folder(folder: Any) -> Path:
    """The folder of a state, with `~` replaced by a home folder."""
    if not isinstance(folder, str | PathLike):
        raise RequestError(f"the folder of a state is a {type(folder).__name__}.", "give its path")
    return absolute_path(Path(folder), "the folder of a state")
