"""Behaviour cloning: its hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from rlplug import Algorithm, Batch, Loss, UnsupportedSpaceError, hookimpl
from rlplug.feeds import Logged
from rlplug.nn import make_distribution, no_encoder
from rlplug.spaces import AnySpace
from rlplug_bc.config import BCConfig
from rlplug_bc.losses import bc_loss
from rlplug_bc.module import BCModule

__all__ = ["BC"]


class BC(Algorithm):
    """Imitates the actions of a log by maximum likelihood."""

    Config: ClassVar[type[BCConfig]] = BCConfig
    config: BCConfig

    def feed(self) -> Logged:
        """Each row of the log once per pass over it, in minibatches."""
        return Logged(batch_size=self.config.batch_size)

    def supports(self, observation_space: AnySpace, action_space: AnySpace) -> str | None:
        """Why these spaces cannot be handled; None if they can."""
        try:
            make_distribution(action_space)
        except UnsupportedSpaceError as error:
            return error.message
        return None if self.config.encoder else no_encoder(observation_space)

    @hookimpl
    def build(
        self, observation_space: AnySpace, action_space: AnySpace, config: BCConfig
    ) -> BCModule:
        """The policy."""
        return BCModule(observation_space, action_space, config)

    @hookimpl
    def compute_loss_for_module(
        self, module: BCModule, config: BCConfig, batch: Batch, fwd_out: Mapping[str, Tensor]
    ) -> Loss:
        """The negative log-likelihood of the logged actions."""
        l2: Any = None
        if config.l2_coef:
            l2 = config.l2_coef * sum((one**2).sum() for one in module.parameters())
        return bc_loss(module.distribution, fwd_out["parameters"], batch, config.ent_coef, l2)
