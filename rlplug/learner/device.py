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
    "beside",
    "choose_device",
    "device_for_environments",
    "has_convolutions",
    "is_small",
    "limit_threads",
    "settings_kept",
    "without_compiler",
]

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}

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
    wanted = section.device
    if wanted != "auto":
        device = torch.device(wanted)
        _refuse_absent(device, section)
        return ChosenDevice(device, "as asked for")
    small = is_small(modules)
    if not torch.cuda.is_available():
        return ChosenDevice(torch.device("cpu"), "CUDA is not available")
    if small:
        return ChosenDevice(torch.device("cpu"), "small networks are faster here than over CUDA")
    return ChosenDevice(torch.device("cuda", torch.cuda.current_device()), "CUDA is available")


def device_for_environments(section: ComputeSection) -> str:
    """Where to make environments of tensors that can be on several devices."""
    if section.device != "auto":
        return section.device
    return "cuda" if torch.cuda.is_available() else "cpu"


def beside(section: ComputeSection, device: torch.device | None, name: str) -> ComputeSection:
    """`[compute]` on the device that environments of tensors are on; None: they are of arrays."""
    if device is None:
        return section
    wanted = section.device
    if wanted != "auto" and (
        torch.device(wanted).type != device.type
        or torch.device(wanted).index not in (None, device.index)
    ):
        raise RequestError(
            f"environment {name!r} gives tensors on {device}, but compute.device is {wanted!r}.",
            f"try: --set compute.device={device}",
        )
    return attrs.evolve(section, device=str(device))


def apply_compute(section: ComputeSection, device: torch.device, *, small: bool) -> None:
    """Threads, TF32 and determinism: settings of the whole process."""
    threads = section.num_threads
    if not threads and small and device.type == "cpu":
        # Two threads gain nothing on small networks and stall where the machine is busy.
        threads = 1
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
    threads = torch.get_num_threads()
    deterministic = _determinism()
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
        methods = (getattr(Optimizer, name) for name in _NEVER_COMPILED)
        wrapped = (one.__wrapped__ for one in methods if hasattr(one, "__wrapped__"))
        # Another run in progress may have answered already, and takes its answer back.
        functions = [one for one in wrapped if not hasattr(one, _ANSWER)]
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
    total = 0
    for module in modules:
        if has_convolutions(module):
            return False
        total += sum(param.numel() for param in module.parameters())
    return total < SMALL


def has_convolutions(module: nn.Module) -> bool:
    """Whether any part of a network is a convolution."""
    return any(isinstance(part, nn.modules.conv._ConvNd) for part in module.modules())


def _refuse_absent(device: torch.device, section: ComputeSection) -> None:
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise RequestError(
                f"compute.device is {section.device!r}, but CUDA is not available: this torch is "
                f"{torch.__version__}.",
                "try: --set compute.device=cpu",
            )
        if device.index is not None and device.index >= torch.cuda.device_count():
            raise RequestError(
                f"compute.device is {section.device!r}, but there are "
                f"{torch.cuda.device_count()} CUDA devices, counted from 0.",
                "try: --set compute.device=cuda:0",
            )
    if device.type == "mps":
        if not torch.backends.mps.is_available():
            raise RequestError(
                "compute.device is 'mps', but Metal is not available.",
                "try: --set compute.device=cpu",
            )
        if section.dtype == "float64":
            raise RequestError(
                "compute.dtype 'float64' is not to be had on MPS.",
                "try: --set compute.device=cpu",
            )


class Precision:
    """Autocast around forward and loss; for fp16 a scaler that all optimizers share."""

    def __init__(self, section: ComputeSection, device: torch.device) -> None:
        self.device = device
        self.reads = device.type == "cpu"
        """Whether a number is read for free; elsewhere the device keeps what it found."""
        self.format = _AUTOCAST.get(section.precision)
        self.scaler: torch.amp.GradScaler | None = None
        self._lowest = section.scaler_min_scale
        self._unread = 0
        """Updates since the scale was read."""
        _refuse_unfit(section, device)
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
        if self.scaler is None:
            return
        self._unread += 1
        if self.device.type != "cpu" and self._unread < _UPDATES_UNREAD:
            return
        self._unread = 0
        scale = self.scaler.get_scale()
        if scale < self._lowest:
            raise RunFailedError(
                f"the fp16 scale fell to {scale:g}, below compute.scaler_min_scale.",
                "the loss itself is not finite: try --set compute.precision=fp32",
            )


_PLAIN = nullcontext()

_UPDATES_UNREAD = 100


def _refuse_unfit(section: ComputeSection, device: torch.device) -> None:
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
