"""The section `[compute]` in force: device, mixed precision, threads, determinism."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import attrs
import threadpoolctl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rlplug.config.sections import ComputeSection
from rlplug.errors import RequestError, RunFailedError

_NEVER_COMPILED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
_ANSWER = "__dynamo_disable"
"""Where `torch._compile` keeps the compiler's answer."""

_CPU = torch.device("cpu")
SMALL = 1_000_000
"""Parameters below which a network without convolutions is faster on one CPU thread."""


def choose_device(section: ComputeSection, modules: Iterable[nn.Module] = ()) -> torch.device:
    """The device that `compute.device` names; `auto` weighs what there is and what is to train."""
    has_cuda = torch.cuda.is_available()
    if section.device == "auto":
        on_cuda = has_cuda and not is_small(modules)
        return torch.device("cuda", torch.cuda.current_device()) if on_cuda else _CPU
    device = torch.device(section.device)
    count = torch.cuda.device_count() if has_cuda else 0
    problem = ""
    if device.type == "cuda" and (device.index or 0) >= count:
        problem = f"there are {count} CUDA devices, counted from 0, for torch {torch.__version__}"
    elif device.type == "mps" and not torch.backends.mps.is_available():
        problem = "Metal is not available"
    elif device.type == "mps" and section.dtype == "float64":
        problem = "it has no compute.dtype 'float64'"
    if problem:
        raise RequestError(
            f"compute.device is {section.device!r}, but {problem}.", "try: --set compute.device=cpu"
        )
    return device


def device_for_environments(section: ComputeSection) -> str:
    """Where to make environments of tensors that can be on several devices."""
    if section.device != "auto":
        return section.device
    return "cuda" if torch.cuda.is_available() else "cpu"


def match_environment_device(
    section: ComputeSection, device: torch.device | None, name: str
) -> ComputeSection:
    """`[compute]` on the device that environments of tensors are on; None: they are of arrays."""
    if device is None:
        return section
    wanted = torch.device(str(device) if section.device == "auto" else section.device)
    if wanted.type != device.type or wanted.index not in (None, device.index):
        raise RequestError(
            f"environment {name!r} gives tensors on {device}, but compute.device is "
            f"{section.device!r}.",
            f"try: --set compute.device={device}",
        )
    return attrs.evolve(section, device=str(device))


def apply_compute(section: ComputeSection, device: torch.device, *, small: bool) -> None:
    """Threads, TF32 and determinism: settings of the whole process."""
    # Two threads gain nothing on small networks and stall where the machine is busy.
    threads = section.num_threads or (1 if small and device.type == "cpu" else 0)
    if threads:
        limit_threads(threads)
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = section.tf32
        torch.backends.cudnn.allow_tf32 = section.tf32
    if section.deterministic != "off":
        # cuBLAS reads it when it is first used, and refuses strict mode without it.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=section.deterministic == "warn")
        torch.backends.cudnn.benchmark = False


@functools.lru_cache(maxsize=1)
def _libraries(modules: int) -> threadpoolctl.ThreadpoolController:
    """The libraries that compute in threads: looked for again where modules have been imported."""
    return threadpoolctl.ThreadpoolController()


def limit_threads(count: int) -> Callable[[], None]:
    """Compute with so many threads, in torch and in NumPy's BLAS; returns what puts both back."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    limits = _libraries(len(sys.modules)).limit(limits=count, user_api="blas")

    def restore() -> None:
        # First: it also puts back the threads of OpenMP, which are torch's.
        limits.restore_original_limits()
        torch.set_num_threads(before)

    return restore


@contextmanager
def settings_kept() -> Iterator[None]:
    """What `apply_compute` changes is put back at the end: a run leaves the process as it was."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    flags = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    with _libraries(len(sys.modules)).limit(user_api="blas"):
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            # The call imports the compiler, which takes seconds.
            if deterministic or torch.are_deterministic_algorithms_enabled():
                torch.use_deterministic_algorithms(deterministic, warn_only=warns)
            matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = flags


@contextmanager
def without_compiler() -> Iterator[None]:
    """Optimizers work without importing torch's compiler, which takes seconds.

    Their methods ask it once not to compile them; here, it is as if it had answered.
    """
    functions: list[Any] = []
    if "torch._dynamo" not in sys.modules:
        wrapped = [inspect.unwrap(getattr(Optimizer, name)) for name in _NEVER_COMPILED]
        # Another run in progress may have answered already, and takes its answer back.
        functions = [function for function in wrapped if not hasattr(function, _ANSWER)]
    for function in functions:
        setattr(function, _ANSWER, function)
    try:
        yield
    finally:
        for function in functions:
            delattr(function, _ANSWER)


def is_small(modules: Iterable[nn.Module]) -> bool:
    """Whether networks are too small for a GPU or a second thread to help."""
    parts = list(modules)
    if any(map(has_convolutions, parts)):
        return False
    return sum(param.numel() for part in parts for param in part.parameters()) < SMALL


def has_convolutions(module: nn.Module) -> bool:
    """Whether any part of a network is a convolution."""
    return any(isinstance(part, nn.modules.conv._ConvNd) for part in module.modules())


class Precision:
    """Autocast around forward and loss; for fp16 a scaler that all optimizers share."""

    def __init__(self, section: ComputeSection, device: torch.device) -> None:
        problem, precision = "", section.precision
        if precision == "fp16" and device.type == "cpu":
            problem, other = "needs CUDA or MPS, the device is the CPU", "bf16"
        if precision != "fp32" and section.dtype == "float64":
            problem, other = "and compute.dtype 'float64' exclude each other", "fp32"
        if problem:
            raise RequestError(
                f"compute.precision {precision!r} {problem}.",
                f"try: --set compute.precision={other}",
            )
        self.device = device
        self.reads = device.type == "cpu"
        """Whether a number is read for free; elsewhere the device keeps what it computed."""
        self.format = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
        self.scaler: torch.amp.GradScaler | None = None
        self._lowest = section.scaler_min_scale
        self._unscaled = False
        if precision == "fp16":
            self.scaler = torch.amp.GradScaler(
                device.type,
                init_scale=section.scaler_init_scale,
                growth_factor=section.scaler_growth_factor,
                backoff_factor=section.scaler_backoff_factor,
                growth_interval=section.scaler_growth_interval,
            )

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of forward pass and loss."""
        if self.format is None:
            return _PLAIN
        return torch.autocast(self.device.type, dtype=self.format)

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss as backward gets it."""
        return loss if self.scaler is None else self.scaler.scale(loss)

    @property
    def unscaling(self) -> float | Tensor:
        """The factor by which gradients of this step are unscaled; with fp16 it is not read."""
        scale = None if self.scaler is None else self.scaler._scale
        return 1.0 if scale is None else scale.reciprocal()

    def unscale(self, optimizers: Iterable[Any]) -> None:
        """Unscale the gradients of these registered optimizers, those that have some."""
        for optimizer in optimizers:
            if any(param.grad is not None for param in optimizer.params):
                assert self.scaler is not None
                self.scaler.unscale_(optimizer.optimizer)
                self._unscaled = True

    def update_scale(self) -> None:
        """Update the scale, once all optimizers of the minibatch have stepped."""
        if self._unscaled and self.scaler is not None:
            self.scaler.update()
        self._unscaled = False

    def refuse_lost_scale(self, updates: int) -> None:
        """Raise if the scale fell so low that the loss itself cannot be finite.

        On a GPU it is read once in a while: a scale that fell so low does not rise again.
        """
        if self.scaler is None or (not self.reads and updates % 100):
            return
        scale = self.scaler.get_scale()
        if scale < self._lowest:
            raise RunFailedError(
                f"the fp16 scale fell to {scale:g}, below compute.scaler_min_scale.",
                "the loss itself is not finite: try --set compute.precision=fp32",
            )


_PLAIN = nullcontext()
