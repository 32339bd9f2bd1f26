"""Small add-ons: one that watches and changes nothing, one that doubles gradients."""

from __future__ import annotations

from collections.abc import Generator, Mapping, MutableMapping
from typing import Any

from torch import Tensor, nn

from rlplug.hooks import hookimpl
from rlplug.plugin import AddOn, Module

__all__ = ["Bystander", "Doubler"]


class Bystander(AddOn):
    """Takes part in every hook and changes nothing."""

    @hookimpl(wrapper=True)
    def build(self) -> Generator[None, Module, Module]:
        """The module as it is."""
        return (yield)

    def build_extra(self) -> None:
        """Nothing."""

    def prepare_batch(self) -> Mapping[str, Tensor]:
        """No columns."""
        return {}

    def compute_loss_for_module(self) -> None:
        """No term."""

    def postprocess_gradients(self, gradients: MutableMapping[str, Tensor]) -> None:
        """The same gradients, put in anew."""
        for name, gradient in list(gradients.items()):
            gradients[name] = gradient

    def additional_update(self, extra: nn.Module | None) -> Mapping[str, Any]:
        """No metrics."""
        return {}

    def save_state(self) -> Mapping[str, Any]:
        """Nothing."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Nothing."""

    def update_finished(self) -> None:
        """Nothing."""


class Doubler(AddOn):
    """Doubles every gradient."""

    def postprocess_gradients(self, gradients: MutableMapping[str, Tensor]) -> None:
        """Twice as long."""
        for name, gradient in list(gradients.items()):
            gradients[name] = gradient * 2.0
