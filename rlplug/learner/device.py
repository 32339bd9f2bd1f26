"""The section `[compute]` in force: device, mixed precision, threads, determinism."""

from __future__ import annotations

import functools
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

__all__ = [
    "ChosenDevice",
    "Precision",
    "apply_compute",
    "choose_device",
    "device_for_environments",
    "has_convolutions",
    "is_small",
    "limit_threads",
    "match_environment_device",
    "settings_kept",
    "without_compiler",
]

_NEVER_COMPILED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
_ANSWER = "__dynamo_disable"
"""Where `torch._compile` keeps the compiler's answer."""

SMALL = 1_000_000
"""Parameters below which a network without convolutions is faster on one CPU thread."""


@attrs.frozen
class ChosenDevice:
    """A device, and why it is this one."""

    device: torch.device
    reason: str


def choose_device(section: ComputeSection, modules: Iterable[nn.Module] = ()) -> ChosenDevice:
    """The device that `compute.device` names; `auto` weighs what there is and what is to train."""
    if section.device != "auto":
        device = torch.device(section.device)
        _refuse_absent(section, device)
        return ChosenDevice(device, "as asked for")
    if not torch.cuda.is_available():
        return ChosenDevice(torch.device("cpu"), "CUDA is not available")
    if is_small(modules):
        return ChosenDevice(torch.device("cpu"), "small networks are faster here than over CUDA")
    return ChosenDevice(torch.device("cuda", torch.cuda.current_device()), "CUDA is available")


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
    threads, deterministic = torch.get_num_threads(), _determinism()
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    flags = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    with _libraries(len(sys.modules)).limit(user_api="blas"):
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            # The call imports the compiler, which takes seconds.
            if _determinism() != deterministic:
                torch.use_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])
            matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = flags


@contextmanager
def without_compiler() -> Iterator[None]:
    """Optimizers work without importing torch's compiler, which takes seconds.

    Their methods ask it once not to compile them; here, it is as if it had answered.
    """
    functions: list[Any] = []
    if "torch._dynamo" not in sys.modules:
        wrapped = (
            getattr(getattr(Optimizer, name), "__wrapped__", None) for name in _NEVER_COMPILED
        )
        # Another run in progress may have answered already, and takes its answer back.
        functions = [one for one in wrapped if one is not None and not hasattr(one, _ANSWER)]
    for function in functions:
        setattr(function, _ANSWER, function)
    try:
        yield
    finally:
        for function in functions:
            delattr(function, _ANSWER)


def _determinism() -> tuple[bool, bool]:
    """Whether torch is deterministic, and whether it only warns where it cannot be."""
    enabled = torch.are_deterministic_algorithms_enabled()
    return enabled, torch.is_deterministic_algorithms_warn_only_enabled()


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
        self.device = device
        self.reads = device.type == "cpu"
        """Whether a number is read for free; elsewhere the device keeps what it found."""
        formats = {"bf16": torch.bfloat16, "fp16": torch.float16}
        self.format = formats.get(section.precision)
        self.scaler: torch.amp.GradScaler | None = None
        self._lowest = section.scaler_min_scale
        self._updates = 0
        _refuse_precision(section, device)
        if section.precision == "fp16":
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

    def overflow_of(self, optimizer: torch.optim.Optimizer) -> Tensor:
        """1 on the device where unscaling found gradients that fp16 could not hold."""
        assert self.scaler is not None
        found = self.scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        return torch.stack([one.to(self.device) for one in found.values()]).amax()

    def stepped(self) -> None:
        """Update the scale, once all optimizers of the minibatch have stepped."""
        scaler = self.scaler
        if scaler is not None and any(
            state["found_inf_per_device"] for state in scaler._per_optimizer_states.values()
        ):
            scaler.update()

    def update_finished(self) -> None:
        """Raise if the scale fell so low that the loss itself cannot be finite.

        On a GPU it is read once in a while: a scale that fell so low does not rise again.
        """
        self._updates += 1
        if self.scaler is None or (not self.reads and self._updates % 100):
            return
        scale = self.scaler.get_scale()
        if scale < self._lowest:
            raise RunFailedError(
                f"the fp16 scale fell to {scale:g}, below compute.scaler_min_scale.",
                "the loss itself is not finite: try --set compute.precision=fp32",
            )


_PLAIN = nullcontext()


def _refuse_absent(section: ComputeSection, device: torch.device) -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        found = f"there are {count} CUDA devices, counted from 0, for torch {torch.__version__}"
    elif device.type == "mps" and not torch.backends.mps.is_available():
        found = "Metal is not available"
    elif device.type == "mps" and section.dtype == "float64":
        found = "it has no compute.dtype 'float64'"
    else:
        return
    raise RequestError(
        f"compute.device is {section.device!r}, but {found}.", "try: --set compute.device=cpu"
    )


def _refuse_precision(section: ComputeSection, device: torch.device) -> None:
    if section.precision == "fp16" and device.type == "cpu":
        raise RequestError(
            "compute.precision 'fp16' needs CUDA or MPS, the device is the CPU.",
            "try: --set compute.precision=bf16",
        )
    if section.precision != "fp32" and section.dtype == "float64":
        raise RequestError(
            f"compute.precision {section.precision!r} and compute.dtype 'float64' exclude each "
            "other: mixed precision lowers float32.",
            "try: --set compute.precision=fp32",
        )
