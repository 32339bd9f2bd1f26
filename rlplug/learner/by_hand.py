"""The steps of an update one by one, for notebooks and for methods that need them apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rlplug.errors import PluginError
from rlplug.learner.gradients import laid_out
from rlplug.learner.losses import combine
from rlplug.learner.owned import Owned
from rlplug.plugin import ALL_MODULES

if TYPE_CHECKING:
    from rlplug.batch import Batch

__all__ = ["ByHand"]


class ByHand(Owned):
    """Forward, losses, gradients and steps of a learner's modules, each a call of its own."""

    def forward_train(self, batches: Mapping[str, Batch]) -> dict[str, Mapping[str, Tensor]]:
        """What each module computes for its loss."""
        members = self.members
        return {
            module_id: members[module_id].module.forward_train(batch)
            for module_id, batch in batches.items()
        }

    def compute_loss(
        self, fwd_out: Mapping[str, Mapping[str, Tensor]], batches: Mapping[str, Batch]
    ) -> dict[str, Tensor]:
        """Each module's loss, and their sum under ALL_MODULES, which changes none of them."""
        losses: dict[str, Tensor] = {}
        for module_id, batch in batches.items():
            loss = self.compute_loss_for_module(module_id, fwd_out[module_id], batch)
            if loss is not None:
                losses[module_id] = loss
        if losses:
            values = list(losses.values())
            losses[ALL_MODULES] = sum(values[1:], values[0])
        return losses

    def compute_loss_for_module(
        self, module_id: str, fwd_out: Mapping[str, Tensor], batch: Batch
    ) -> Tensor | None:
        """The sum of all plugins' terms; None if nobody has one."""
        member = self.member(module_id)
        names = tuple(one.name for one in member.optimizers)
        answers = self.calls.compute_loss_for_module(
            module_id, member.module, batch, fwd_out, names, self
        )
        return combine(answers, member.algorithm, names).total if answers else None

    def compute_gradients(self, losses: Mapping[str, Tensor]) -> dict[nn.Parameter, Tensor]:
        """The gradients of the summed losses, by parameter; of parameters without one, nothing."""
        params = self._parameters()
        total = losses.get(ALL_MODULES)
        if total is None:
            values = list(losses.values())
            total = sum(values[1:], values[0])
        gradients = torch.autograd.grad(total, params, allow_unused=True)
        return {
            param: gradient
            for param, gradient in zip(params, gradients, strict=True)
            if gradient is not None
        }

    def postprocess_gradients(
        self, gradients: Mapping[nn.Parameter, Tensor]
    ) -> dict[nn.Parameter, Tensor]:
        """The hooks of all modules, and of what they share; no gradient may vanish."""
        result = dict(gradients)
        for module_id in [*self.stages, *self._shared()]:
            result.update(self.postprocess_gradients_for_module(module_id, result))
        return result

    def postprocess_gradients_for_module(
        self, module_id: str, gradients: Mapping[nn.Parameter, Tensor]
    ) -> dict[nn.Parameter, Tensor]:
        """The hooks of one module on its own part."""
        stage = self._shared().get(module_id) or self.stages[module_id]
        mine = [param for one in stage.member.optimizers for param in one.params]
        for param in mine:
            param.grad = gradients.get(param)
        stage.acting = stage.member.optimizers
        stage.finish_gradients(1.0)
        return {param: param.grad for param in mine if param.grad is not None}

    def apply_gradients(self, gradients: Mapping[nn.Parameter, Tensor]) -> None:
        """Clip, then step every optimizer that has gradients here."""
        known = {id(param) for param in self._parameters()}
        if any(id(param) not in known for param in gradients):
            raise PluginError(
                "gradients of parameters that no optimizer of the learner holds.",
                "give those of compute_gradients",
            )
        for stage in [*self.stages.values(), *self._shared().values()]:
            for one in stage.member.optimizers:
                for param in one.params:
                    found = gradients.get(param)
                    param.grad = None if found is None else laid_out(found, param)
            stage.acting = stage.member.optimizers
            stage.step_only()
        for stage in self.stages.values():
            stage.update_targets()

    def get_parameters(self, module_id: str) -> list[nn.Parameter]:
        """The parameters of a module."""
        return list(self.member(module_id).module.parameters())

    def get_param_ref(self, param: nn.Parameter) -> nn.Parameter:
        """What stands for a parameter in mappings of gradients: itself."""
        return param

    def filter_param_dict_for_optimizer(
        self, gradients: Mapping[nn.Parameter, Tensor], optimizer: torch.optim.Optimizer
    ) -> dict[nn.Parameter, Tensor]:
        """The part of a mapping that belongs to one optimizer."""
        return {
            param: gradients[param]
            for group in optimizer.param_groups
            for param in group["params"]
            if gradients.get(param) is not None
        }

    def _parameters(self) -> list[nn.Parameter]:
        return [param for one in self.optimizers for param in one.params]

    def _shared(self) -> dict[str, Any]:
        stage = self.shared_stage
        return {} if stage is None else {ALL_MODULES: stage}
