"""The steps of an update one by one, for notebooks and for methods that need them apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rlplug.batch import Batch
from rlplug.errors import PluginError
from rlplug.learner.gradients import like_parameter
from rlplug.learner.module_update import ModuleUpdate
from rlplug.learner.modules import LearnerModules
from rlplug.plugin import ALL_MODULES, DEFAULT_MODULE

__all__ = ["ByHand"]


class ByHand(LearnerModules):
    """Forward, losses, gradients and steps of a learner's modules, each a call of its own."""

    def forward_train(self, batches: Mapping[str, Batch]) -> dict[str, Mapping[str, Tensor]]:
        """What each module computes for its loss."""
        return {
            module_id: self.member(module_id).module.forward_train(batch)
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
        loss = self._losses.combined(member, fwd_out, batch, names)
        total: Tensor | None = None if loss is None else loss.total
        return total

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
        for module_id in self._all_updates():
            result.update(self.postprocess_gradients_for_module(module_id, result))
        return result

    def postprocess_gradients_for_module(
        self, module_id: str, gradients: Mapping[nn.Parameter, Tensor]
    ) -> dict[nn.Parameter, Tensor]:
        """The hooks of one module on its own part."""
        update = self._all_updates()[module_id]
        params = self._set_gradients(update, gradients)
        if self._gradient_hooks.used:
            self._gradient_hooks(update, self._terms.of(module_id))
        return {param: param.grad for param in params if param.grad is not None}

    def apply_gradients(self, gradients: Mapping[nn.Parameter, Tensor]) -> None:
        """Clip, then step every optimizer that has gradients here."""
        known = {id(param) for param in self._parameters()}
        if any(id(param) not in known for param in gradients):
            raise PluginError(
                "gradients of parameters that no optimizer of the learner holds.",
                "give those of compute_gradients",
            )
        updates = self._all_updates()
        for update in updates.values():
            self._set_gradients(update, gradients)
            update.clip()
            update.step(lambda: None)
        for update in self.module_updates.values():
            update.update_targets(self.timestep)

    def get_optimizers_for_module(
        self, module_id: str = DEFAULT_MODULE
    ) -> list[tuple[str, torch.optim.Optimizer]]:
        """All optimizers of a module with their names."""
        return [(one.name, one.optimizer) for one in self.optimizers.of(module_id)]

    def get_parameters(self, module_id: str) -> list[nn.Parameter]:
        """The parameters of a module."""
        return list(self.member(module_id).module.parameters())

    def get_param_ref(self, param: nn.Parameter) -> nn.Parameter:
        """The key of a parameter in mappings of gradients: itself."""
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

    def register_metric(self, module_id: str, name: str, value: Any) -> None:
        """Report a number or a 0-d tensor with the module's next results."""
        self.registered_metrics.setdefault(module_id, {})[name] = value

    def register_metrics(self, module_id: str, metrics: Mapping[str, Any]) -> None:
        """Report several."""
        self.registered_metrics.setdefault(module_id, {}).update(metrics)

    def _set_gradients(
        self, update: ModuleUpdate, gradients: Mapping[nn.Parameter, Any]
    ) -> list[nn.Parameter]:
        update.start(update.member.optimizers)
        params = [param for one in update.member.optimizers for param in one.params]
        for param in params:
            gradient = gradients.get(param)
            param.grad = None if gradient is None else like_parameter(gradient, param)
        update.metrics = {}
        return params

    def _parameters(self) -> list[nn.Parameter]:
        return [param for one in self.optimizers for param in one.params]
