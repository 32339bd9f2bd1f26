"""A network together with its optimizer, target, clipping, schedule and checkpoints."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from rlplug.approximation.arguments import arguments_of, refuse_unfit
from rlplug.approximation.checkpointer import Checkpointer, PeriodicCheckpointer
from rlplug.approximation.states import is_state, observation_of, with_observation
from rlplug.errors import RequestError, RunFailedError
from rlplug.nn.modes import evaluating
from rlplug.nn.targets import TargetNetwork, TrivialTarget
from rlplug.nn.tensors import device_of
from rlplug.optim.clipping import clip, measure
from rlplug.optim.forms import read_scheduler
from rlplug.optim.schedulers import SchedulerRun
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
        self._scheduler = _every_update(scheduler, optimizer, name)
        self._target = (TrivialTarget() if target is None else target).init(self.model)
        self._writer: Writer = DummyWriter() if writer is None else writer
        if checkpointer is None:
            checkpointer = PeriodicCheckpointer(_UPDATES_BETWEEN_CHECKPOINTS)
        self._checkpointer = checkpointer
        file = Path(self._writer.log_dir) / f"{name}.safetensors"
        self._checkpointer.init(self.model, file)

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
        scaled = loss * self._loss_scaling
        torch.autograd.backward(scaled)
        return self.step(scaled)

    def step(self: ApproximationT, loss: Tensor | None = None) -> ApproximationT:
        """Take one step with the accumulated gradients.

        In this order: report the loss, clip, step the optimizer, zero the gradients, step the
        scheduler, update the target, save a checkpoint.
        """
        if loss is not None:
            self._writer.add_loss(self.name, loss.detach())
        if self._optimizer is not None:
            if self._clip_grad:
                _clip_gradients(self.model, self._clip_grad, self.name)
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
        state: dict[str, Any] = {
            "model": self.model.state_dict(),
            "target": self._target.state_dict(),
        }
        if self._optimizer is not None:
            state["optimizer"] = self._optimizer.state_dict()
        if self._scheduler is not None:
            state["scheduler"] = self._scheduler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the model, target, optimizer and scheduler."""
        self.model.load_state_dict(state["model"])
        self._target.load_state_dict(state["target"])
        if self._optimizer is not None:
            self._optimizer.load_state_dict(state["optimizer"])
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state["scheduler"])

    def _network(self, model: nn.Module) -> nn.Module:
        """What is trained: the model that was given, or a network around it."""
        return model

    def _forward(self, network: nn.Module, *inputs: Any, **options: Any) -> Any:
        return network(*inputs, **options)

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
        features: Tensor = observation_of(output)
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
        self.log_dir = Path(log_dir)

    def add_loss(self, name: str, value: Tensor) -> None:
        """Ignore it."""

    def add_schedule(self, name: str, value: float) -> None:
        """Ignore it."""


def _every_update(
    scheduler: Any, optimizer: torch.optim.Optimizer | None, name: str
) -> SchedulerRun | None:
    """The scheduler, stepped after every update by default."""
    if scheduler is None:
        return None
    config = scheduler if isinstance(scheduler, dict) else {"scheduler": scheduler}
    monitor = {"monitor": "loss"} if isinstance(config.get("scheduler"), ReduceLROnPlateau) else {}
    who = f"approximation {name!r}"
    plan = read_scheduler({"interval": "step", **monitor, **config}, who)
    if optimizer is None:
        raise RequestError(
            f"{who} has a scheduler and no optimizer.", "give it the optimizer of the scheduler"
        )
    if getattr(plan.scheduler, "optimizer", optimizer) is not optimizer:
        raise RequestError(
            f"the scheduler of {who} was made from another optimizer.",
            "make it from the optimizer that stands beside it",
        )
    return SchedulerRun(plan)


def _clip_gradients(model: nn.Module, limit: float, name: str) -> None:
    coalesce_gradients(model.parameters())
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    if not gradients:
        return
    norms = measure(gradients)
    if not math.isfinite(norms.total):
        raise RunFailedError(
            f"the gradients of {name!r} have the norm {float(norms.total)}.",
            "try: a smaller learning rate, or look for NaN in its inputs",
        )
    clip(gradients, norms, limit, "global_norm")
