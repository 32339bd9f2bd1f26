"""A network together with its optimizer, target, clipping, schedule and checkpoints."""

from __future__ import annotations

import copy
import math
import os
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor, nn

from rlplug.approximation.arguments import (
    arguments_of,
    output_of,
    refuse_incomplete,
    refuse_no_loss,
    refuse_unfit,
    shown,
)
from rlplug.approximation.checkpointer import Checkpointer, PeriodicCheckpointer
from rlplug.approximation.schedule import every_update
from rlplug.approximation.states import is_state, observation_of, with_observation
from rlplug.durable import absolute_path
from rlplug.errors import RequestError, RunFailedError
from rlplug.nn.modes import evaluating
from rlplug.nn.targets import TargetNetwork, TrivialTarget
from rlplug.nn.tensors import device_of
from rlplug.optim.clipping import clip, measure
from rlplug.optim.sparse import coalesce_gradients

__all__ = ["Approximation", "DummyWriter", "FeatureNetwork", "Writer"]

ApproximationT = TypeVar("ApproximationT", bound="Approximation")
FeatureNetworkT = TypeVar("FeatureNetworkT", bound="FeatureNetwork")

_UPDATES_BETWEEN_CHECKPOINTS = 200


class Approximation:
    """A network that `reinforce` trains: loss, gradients, clipping, optimizer step, target update.

    By default it saves its weights every 200 updates to `<name>.safetensors` in the writer's
    folder, `runs` without a writer; `DummyCheckpointer()` saves nothing.
    """

    _metrics: ClassVar[tuple[str, ...]] = ("loss",)
    """What a scheduler can watch."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        checkpointer: Checkpointer | None = None,
        clip_grad: float = 0.0,
        device: torch.device | str | None = None,
        loss_scaling: float = 1.0,
        name: str = "approximation",
        scheduler: Any = None,
        target: TargetNetwork | None = None,
        writer: Writer | None = None,
    ) -> None:
        given = {
            "model": model,
            "optimizer": optimizer,
            "checkpointer": checkpointer,
            "clip_grad": clip_grad,
            "device": device,
            "loss_scaling": loss_scaling,
            "name": name,
            "target": target,
            "writer": writer,
        }
        refuse_unfit(type(self), name, arguments_of(given))
        self.name = name
        self.model = self._network(model)
        self.device = torch.device(device) if device is not None else device_of(self.model)
        self._optimizer = optimizer
        self._clip_grad = clip_grad
        self._loss_scaling = loss_scaling
        self._scheduler = every_update(scheduler, optimizer, name, self._metrics)
        self._target = (TrivialTarget() if target is None else target).init(self.model)
        self._writer: Writer = DummyWriter() if writer is None else writer
        if checkpointer is None:
            checkpointer = PeriodicCheckpointer(_UPDATES_BETWEEN_CHECKPOINTS)
        self._checkpointer = checkpointer
        file = Path(self._writer.log_dir) / f"{name}.safetensors"
        # Not the network around it, whose parts have other names.
        self._checkpointer.init(model, file)

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """The output of the network."""
        return self._forward(self.model, *inputs, **options)

    def no_grad(self, *inputs: Any, **options: Any) -> Any:
        """The output without gradients."""
        with torch.no_grad():
            return self._forward(self.model, *inputs, **options)

    def eval(self, *inputs: Any, **options: Any) -> Any:
        """The output in eval mode without gradients; the mode is restored afterwards."""
        with torch.no_grad(), evaluating(self.model):
            return self._forward(self.model, *inputs, **options)

    def target(self, *inputs: Any, **options: Any) -> Any:
        """The output of the target network, without gradients."""
        return self._forward(self._target, *inputs, **options)

    def reinforce(self: ApproximationT, loss: Tensor) -> ApproximationT:
        """Backpropagate a loss and take one step."""
        refuse_no_loss(loss, self.name, graph=True)
        scaled = loss * self._loss_scaling
        torch.autograd.backward(scaled)
        return self.step(scaled)

    def step(self: ApproximationT, loss: Tensor | None = None) -> ApproximationT:
        """Take one step with the accumulated gradients.

        In this order: report the loss, clip, step the optimizer, zero the gradients, step the
        scheduler, update the target, save a checkpoint.
        """
        if loss is not None:
            refuse_no_loss(loss, self.name, graph=False)
            self._writer.add_loss(self.name, loss.detach())
        elif self._scheduler is not None and self._scheduler.plan.monitor:
            raise RequestError(
                f"the scheduler of approximation {self.name!r} watches the loss: none given.",
                "try: step(loss)",
            )
        if self._optimizer is not None:
            if self._clip_grad:
                self._clip_gradients()
            self._optimizer.step()
        self.zero_grad()
        self._step_scheduler(loss)
        self._target.update()
        self._checkpointer()
        return self

    def zero_grad(self: ApproximationT) -> ApproximationT:
        """Clear the accumulated gradients of the model, and of all that the optimizer holds."""
        self.model.zero_grad(set_to_none=True)
        if self._optimizer is not None:
            self._optimizer.zero_grad(set_to_none=True)
        return self

    def state_dict(self) -> dict[str, Any]:
        """The state of the model, target, optimizer and scheduler."""
        return {name: part.state_dict() for name, part in self._parts().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the model, target, optimizer and scheduler.

        A state that does not fit changes nothing.
        """
        parts = self._parts()
        refuse_incomplete(state, parts, self.name)
        before = copy.deepcopy(self.state_dict())
        for name in parts:
            try:
                parts[name].load_state_dict(state[name])
            except Exception as error:
                for part, saved in before.items():
                    parts[part].load_state_dict(saved)
                reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
                raise RequestError(
                    f"the {name} in the state for approximation {self.name!r} does not fit: "
                    f"{reason}",
                    "load what state_dict() of one that is made alike has given",
                ) from error

    def _parts(self) -> dict[str, Any]:
        """All that has a state."""
        parts = {
            "model": self.model,
            "target": self._target,
            "optimizer": self._optimizer,
            "scheduler": self._scheduler,
        }
        return {name: part for name, part in parts.items() if part is not None}

    def _network(self, model: nn.Module) -> nn.Module:
        """What is trained: the model that was given, or a network around it."""
        return model

    def _forward(self, network: nn.Module, *inputs: Any, **options: Any) -> Any:
        return network(*inputs, **options)

    def _clip_gradients(self) -> None:
        coalesce_gradients(self.model.parameters())
        gradients = [one.grad for one in self.model.parameters() if one.grad is not None]
        if not gradients:
            return
        norms = measure(gradients)
        if not math.isfinite(norms.total):
            # They would stay in the sum that the next loss adds to.
            self.zero_grad()
            raise RunFailedError(
                f"the gradients of {self.name!r} have the norm {float(norms.total)}.",
                "try: a smaller learning rate, or look for NaN in its inputs",
            )
        clip(gradients, norms, self._clip_grad, "global_norm")

    def _step_scheduler(self, loss: Tensor | None) -> None:
        if self._scheduler is None or self._optimizer is None:
            return
        for index, group in enumerate(self._optimizer.param_groups):
            suffix = f"/{index}" if index else ""
            self._writer.add_schedule(f"{self.name}/learning_rate{suffix}", float(group["lr"]))
        self._scheduler.stepped({} if loss is None else {"loss": loss.detach()})


class FeatureNetwork(Approximation):
    """A network shared by several heads: its output is detached from the graph.

    The gradients of the heads accumulate at the detached output; `reinforce()`, without a loss,
    backpropagates them through the network once and takes one step; for a network without
    parameters to train it does nothing. The features of a State are a State.
    """

    _metrics = ()

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        name: str = "feature",
        **options: Any,
    ) -> None:
        super().__init__(model, optimizer, name=name, **options)
        self._outputs: list[tuple[Tensor, Tensor]] = []

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """The features, detached; their gradients accumulate until `reinforce`."""
        output = super().__call__(*inputs, **options)
        features = output_of(self.name, observation_of(output))
        if not (features.is_floating_point() or features.is_complex()):
            raise RequestError(
                f"the model of approximation {self.name!r} gives real numbers, "
                f"found {features.dtype}.",
                "try: observations.float()",
            )
        detached = features.detach().requires_grad_()
        if features.requires_grad:
            self._outputs.append((features, detached))
        return with_observation(output, detached) if is_state(output) else detached

    def reinforce(self: FeatureNetworkT, loss: Tensor | None = None) -> FeatureNetworkT:
        """Backpropagate the gradients of the heads and take one step."""
        if loss is not None:
            raise RequestError(
                f"feature network {self.name!r} was given a loss of its own.",
                "try: reinforce the heads with their losses, then features.reinforce()",
            )
        outputs, self._outputs = self._outputs, []
        if not any(parameter.requires_grad for parameter in self.model.parameters()):
            return self
        reached = [
            (features, detached.grad) for features, detached in outputs if detached.grad is not None
        ]
        if not reached:
            raise RequestError(
                f"no head sent gradients back to feature network {self.name!r}.",
                "try: reinforce a head on features(observations) before features.reinforce()",
            )
        gradients = [gradient * self._loss_scaling for _, gradient in reached]
        torch.autograd.backward([features for features, _ in reached], gradients)
        return self.step()

    def zero_grad(self: FeatureNetworkT) -> FeatureNetworkT:
        """Clear the accumulated gradients, those of the features too."""
        self._outputs.clear()
        return super().zero_grad()

    def _forward(self, network: nn.Module, *inputs: Any, **options: Any) -> Any:
        if not inputs or not is_state(inputs[0]):
            return network(*inputs, **options)
        state, *others = inputs
        return with_observation(state, network(state.observation, *others, **options))


class Writer(Protocol):
    """Receives losses and learning rates; checkpoints go to its `log_dir`."""

    log_dir: Path

    def add_loss(self, name: str, value: Tensor) -> None:
        """Report a loss, a tensor on its device."""

    def add_schedule(self, name: str, value: float) -> None:
        """Report a scheduled value, such as a learning rate."""


class DummyWriter:
    """Ignores what is reported."""

    def __init__(self, log_dir: str | Path = "runs") -> None:
        if not isinstance(log_dir, str | os.PathLike):
            raise RequestError(
                f"the log_dir of a DummyWriter is a path, found {shown(log_dir)}.",
                "try: DummyWriter('runs')",
            )
        self.log_dir = absolute_path(log_dir, "the log_dir of a DummyWriter")

    def add_loss(self, name: str, value: Tensor) -> None:
        """Ignore it."""

    def add_schedule(self, name: str, value: float) -> None:
        """Ignore it."""
