"""A network together with its optimizer, target, clipping, schedule and checkpoints."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Never, Protocol, Self

import torch
from safetensors.torch import save_model
from torch import Tensor, nn

from rlplug.durable import absolute_path, unfinished
from rlplug.errors import RequestError, RunFailedError
from rlplug.nn.layers import device_of, evaluating
from rlplug.nn.targets import TargetNetwork, TrivialTarget
from rlplug.optim.clipping import clip, coalesce_gradients, measure
from rlplug.optim.forms import read_scheduler
from rlplug.optim.schedulers import SchedulerRun

__all__ = [
    "Approximation",
    "Checkpointer",
    "DummyCheckpointer",
    "DummyWriter",
    "Identity",
    "PeriodicCheckpointer",
    "Writer",
]


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
        self.name = name
        self.model = model
        self.device = torch.device(device) if device is not None else device_of(model)
        self._optimizer = optimizer
        self._clip_grad = clip_grad
        self._loss_scaling = loss_scaling
        if optimizer is not None and not _moves(optimizer, model):
            self._refuse("optimizer")
        if target is not None and target.follows:
            self._refuse("target")
        if getattr(checkpointer, "model", None) not in (None, model):
            self._refuse("checkpointer")
        self._scheduler = None if scheduler is None else self._schedule(scheduler)
        self._target = (TrivialTarget() if target is None else target).init(model)
        self._parts: dict[str, Any] = {"model": model, "target": self._target}
        if optimizer is not None:
            self._parts["optimizer"] = optimizer
        if self._scheduler is not None:
            self._parts["scheduler"] = self._scheduler
        self._writer: Writer = DummyWriter() if writer is None else writer
        if checkpointer is None:
            checkpointer = PeriodicCheckpointer(200)
        self._checkpointer = checkpointer
        checkpointer.init(model, Path(self._writer.log_dir) / f"{name}.safetensors")

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
        with torch.no_grad():
            return self._forward(self._target, *inputs, **options)

    def reinforce(self, loss: Tensor) -> Self:
        """Backpropagate a loss and take one step."""
        scaled = loss * self._loss_scaling
        torch.autograd.backward(scaled)
        return self.step(scaled)

    def step(self, loss: Tensor | None = None) -> Self:
        """Take one step with the accumulated gradients.

        In this order: report the loss, clip, step the optimizer, zero the gradients, step the
        scheduler, update the target, save a checkpoint.
        """
        if loss is not None:
            self._writer.add_loss(self.name, loss.detach())
        if self._optimizer is not None:
            if self._clip_grad:
                self._clip_gradients()
            self._optimizer.step()
        self.zero_grad()
        if self._scheduler is not None and self._optimizer is not None:
            for index, group in enumerate(self._optimizer.param_groups):
                suffix = f"/{index}" if index else ""
                self._writer.add_schedule(f"{self.name}/learning_rate{suffix}", float(group["lr"]))
            self._scheduler.stepped({} if loss is None else {"loss": loss.detach()})
        self._target.update()
        self._checkpointer()
        return self

    def zero_grad(self) -> Self:
        """Clear the accumulated gradients of the model, and of all that the optimizer holds."""
        self.model.zero_grad()
        if self._optimizer is not None:
            self._optimizer.zero_grad()
        return self

    def state_dict(self) -> dict[str, Any]:
        """The state of the model, target, optimizer and scheduler."""
        return {name: part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of the model, target, optimizer and scheduler.

        A state that does not fit changes nothing.
        """
        before = copy.deepcopy(self.state_dict())
        try:
            for name, part in self._parts.items():
                part.load_state_dict(state[name])
        except Exception:
            for name, part in self._parts.items():
                part.load_state_dict(before[name])
            raise

    def _forward(self, network: nn.Module, *inputs: Any, **options: Any) -> Any:
        """The output of the model or of its target."""
        return network(*inputs, **options)

    def _clip_gradients(self) -> None:
        coalesce_gradients(self.model.parameters())
        gradients = [param.grad for param in self.model.parameters() if param.grad is not None]
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
        clip(norms, self._clip_grad, "global_norm")

    def _refuse(self, part: str) -> Never:
        raise RequestError(
            f"the {part} of approximation {self.name!r} serves another model.",
            "give each approximation its own",
        )

    def _schedule(self, scheduler: Any) -> SchedulerRun:
        """The scheduler, which moves after every update; it can watch the loss."""
        config = scheduler if isinstance(scheduler, dict) else {"scheduler": scheduler}
        plan = read_scheduler({"interval": "step", "monitor": "loss", **config}, self.name)
        own = getattr(plan.scheduler, "optimizer", self._optimizer) is self._optimizer
        if not own or plan.interval != "step" or plan.monitor not in ("", "loss"):
            raise RequestError(
                f"the scheduler of approximation {self.name!r} would not move its learning rate.",
                "make it from the same optimizer, for 'step', and to watch 'loss' or nothing",
            )
        return SchedulerRun(plan)


class Identity(Approximation):
    """Returns its input; learns nothing, and has nothing to save."""

    def __init__(
        self, device: torch.device | str | None = None, name: str = "identity", **options: Any
    ) -> None:
        super().__init__(nn.Identity(), device=device, name=name, **options)

    def reinforce(self, loss: Tensor | None = None) -> Self:
        """Do nothing: it has no parameters."""
        return self

    def step(self, loss: Tensor | None = None) -> Self:
        """Do nothing."""
        return self


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
        self.log_dir = absolute_path(log_dir, "the log_dir of a DummyWriter")

    def add_loss(self, name: str, value: Tensor) -> None:
        """Ignore it."""

    def add_schedule(self, name: str, value: float) -> None:
        """Ignore it."""


class Checkpointer(Protocol):
    """Called after each update of a model."""

    def init(self, model: nn.Module, filename: str | Path, /) -> None:
        """Set the model and its file."""

    def __call__(self) -> None:
        """Count an update, and save the model if it is due."""


class DummyCheckpointer:
    """Saves nothing."""

    def init(self, *inputs: Any) -> None:
        """Do nothing."""

    def __call__(self) -> None:
        """Do nothing."""


class PeriodicCheckpointer:
    """Saves the weights every `frequency` updates to one safetensors file, atomically.

    `safetensors.torch.load_model(model, filename)` reads them into the model that an approximation
    was given. It saves one model alone.
    """

    def __init__(self, frequency: int) -> None:
        self.frequency = frequency
        self._updates = 0
        self.model: nn.Module | None = None
        self._file = Path()

    def init(self, model: nn.Module, filename: str | Path) -> None:
        """Set the model and its file."""
        self.model, self._file = model, Path(filename)

    def __call__(self) -> None:
        """Count an update, and save the model if it is due."""
        self._updates += 1
        if self.model is None or self._updates % self.frequency:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        partial = unfinished(self._file)
        save_model(self.model, str(partial))
        partial.replace(self._file)


def _moves(optimizer: torch.optim.Optimizer, model: nn.Module) -> bool:
    """Whether the optimizer has a parameter of the model."""
    own = {*model.parameters()}
    return any(own & {*group["params"]} for group in optimizer.param_groups)
