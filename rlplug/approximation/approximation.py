"""A network together with its optimizer, target, clipping, schedule and checkpoints."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from rlplug.approximation.checkpointer import Checkpointer, PeriodicCheckpointer
from rlplug.errors import RequestError, RunFailedError
from rlplug.nn.modes import evaluating
from rlplug.nn.targets import TargetNetwork, TrivialTarget
from rlplug.nn.tensors import device_of
from rlplug.optim.clipping import clip, measure
from rlplug.optim.forms import read_scheduler
from rlplug.optim.schedulers import SchedulerRun

__all__ = ["Approximation", "DummyWriter", "FeatureNetwork", "Writer"]

ApproximationT = TypeVar("ApproximationT", bound="Approximation")
FeatureNetworkT = TypeVar("FeatureNetworkT", bound="FeatureNetwork")

_UPDATES_BETWEEN_CHECKPOINTS = 200


class Approximation:
    """A function that learns: `reinforce` moves it along the gradient of a loss.

    Without a checkpointer it is saved every 200 updates to `<name>.safetensors` in the writer's
    folder, which is `runs` without a writer; `DummyCheckpointer()` saves nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        checkpointer: Checkpointer | None = None,
        clip_grad: float = 0.0,
        device: torch.device | str | None = None,
        loss_scaling: float = 1.0,
        name: str = "approximation",
        scheduler: Any = None,
        target: TargetNetwork | None = None,
        writer: Writer | None = None,
    ) -> None:
        self.model = model
        self.name = name
        self.device = torch.device(device) if device is not None else device_of(model)
        self._optimizer = optimizer
        self._clip_grad = clip_grad
        self._loss_scaling = loss_scaling
        self._target = (target or TrivialTarget()).init(model)
        self._writer: Writer = writer or DummyWriter()
        self._scheduler = _every_update(scheduler, name)
        self._checkpointer = checkpointer or PeriodicCheckpointer(_UPDATES_BETWEEN_CHECKPOINTS)
        file = Path(self._writer.log_dir) / f"{name}.safetensors"
        self._checkpointer.init(model, file)

    def __call__(self, *inputs: Any) -> Any:
        """The function's value, with gradients."""
        return self.model(*inputs)

    def no_grad(self, *inputs: Any) -> Any:
        """The function's value, without gradients."""
        with torch.no_grad():
            return self.model(*inputs)

    def eval(self, *inputs: Any) -> Any:
        """The value in eval mode, without gradients; each part keeps the mode it had."""
        with torch.no_grad(), evaluating(self.model):
            return self.model(*inputs)

    def target(self, *inputs: Any) -> Any:
        """The value of the target network, without gradients."""
        return self._target(*inputs)

    def reinforce(self: ApproximationT, loss: Tensor) -> ApproximationT:
        """Take the gradients of a loss and make one step along them."""
        scaled = loss * self._loss_scaling
        torch.autograd.backward(scaled)
        return self.step(scaled)

    def step(self: ApproximationT, loss: Tensor | None = None) -> ApproximationT:
        """One step along the gradients that have gathered.

        In this order: report the loss, clip, step, zero the gradients, move the learning rate,
        update the target, save.
        """
        if loss is not None:
            self._writer.add_loss(self.name, loss.detach())
        if self._optimizer is not None:
            if self._clip_grad:
                _clip_gradients(self.model, self._clip_grad, self.name)
            self._optimizer.step()
        self.zero_grad()
        self._move_learning_rate(loss)
        self._target.update()
        self._checkpointer()
        return self

    def zero_grad(self: ApproximationT) -> ApproximationT:
        """Forget the gradients that have gathered."""
        self.model.zero_grad(set_to_none=True)
        return self

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on as if nothing had happened."""
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
        """Go on from there."""
        self.model.load_state_dict(state["model"])
        self._target.load_state_dict(state["target"])
        if self._optimizer is not None:
            self._optimizer.load_state_dict(state["optimizer"])
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state["scheduler"])

    def _move_learning_rate(self, loss: Tensor | None) -> None:
        if self._scheduler is None or self._optimizer is None:
            return
        for index, group in enumerate(self._optimizer.param_groups):
            suffix = f"/{index}" if index else ""
            self._writer.add_schedule(f"{self.name}/learning_rate{suffix}", float(group["lr"]))
        self._scheduler.stepped({} if loss is None else {"loss": loss.detach()})


class FeatureNetwork(Approximation):
    """A network whose output is cut from its graph, so that heads learn without moving it.

    Their gradients gather at the cut; `reinforce()`, without a loss, pushes them through the
    network once and makes one step.
    """

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._cuts: list[tuple[Tensor, Tensor]] = []

    def __call__(self, *inputs: Any) -> Tensor:
        """The features, cut from their graph; gradients that reach them are kept."""
        features: Tensor = self.model(*inputs)
        cut = features.detach().requires_grad_()
        if features.requires_grad:
            self._cuts.append((features, cut))
        return cut

    def reinforce(self: FeatureNetworkT, loss: Tensor | None = None) -> FeatureNetworkT:
        """Push what the heads sent back through the network, once, and make one step."""
        if loss is not None:
            raise RequestError(
                f"feature network {self.name!r} was given a loss of its own.",
                "try: reinforce the heads with their losses, then features.reinforce()",
            )
        cuts, self._cuts = self._cuts, []
        reached = [(features, cut.grad) for features, cut in cuts if cut.grad is not None]
        if not reached:
            raise RequestError(
                f"no head sent gradients back to feature network {self.name!r}.",
                "try: reinforce a head on features(observations) before features.reinforce()",
            )
        gradients = [gradient * self._loss_scaling for _, gradient in reached]
        torch.autograd.backward([features for features, _ in reached], gradients)
        return self.step()

    def zero_grad(self: FeatureNetworkT) -> FeatureNetworkT:
        """Forget the gradients that have gathered, at the cuts too."""
        self._cuts.clear()
        return super().zero_grad()


class Writer(Protocol):
    """Takes what approximations report; checkpoints go to its folder."""

    log_dir: Path

    def add_loss(self, name: str, value: Tensor) -> None:
        """One loss, still on its device."""

    def add_schedule(self, name: str, value: float) -> None:
        """One scheduled number, such as a learning rate."""


class DummyWriter:
    """Reports to nobody."""

    def __init__(self, log_dir: str | Path = "runs") -> None:
        self.log_dir = Path(log_dir)

    def add_loss(self, name: str, value: Tensor) -> None:
        """Nothing."""

    def add_schedule(self, name: str, value: float) -> None:
        """Nothing."""


def _every_update(scheduler: Any, name: str) -> SchedulerRun | None:
    """The scheduler at work: after every update, unless it says otherwise."""
    if scheduler is None:
        return None
    config = scheduler if isinstance(scheduler, dict) else {"scheduler": scheduler}
    monitor = {"monitor": "loss"} if isinstance(config.get("scheduler"), ReduceLROnPlateau) else {}
    who = f"approximation {name!r}"
    return SchedulerRun(read_scheduler({"interval": "step", **monitor, **config}, who))


def _clip_gradients(model: nn.Module, limit: float, name: str) -> None:
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    if not gradients:
        return
    norms = measure(gradients)
    if not math.isfinite(norms.total):
        raise RunFailedError(
            f"the gradients of {name!r} have the norm {float(norms.total)}.",
            "try: a smaller learning rate, or look for NaN in what it was given",
        )
    clip(gradients, norms, limit, "global_norm")
