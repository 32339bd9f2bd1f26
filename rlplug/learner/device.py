"""Settle where numbers are computed, and apply the rest of `[compute]` to this process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import attrs
import threadpoolctl
import torch
from torch import nn

from rlplug.config.sections import ComputeSection
from rlplug.errors import RequestError

__all__ = ["Chosen", "apply_compute", "choose_device", "settings_kept"]

SMALL = 1_000_000
"""Parameters below which a network without convolutions is faster on one CPU thread."""


@attrs.frozen
class Chosen:
    """A device, and why it is this one."""

    device: torch.device
    reason: str


def choose_device(section: ComputeSection, modules: Iterable[nn.Module] = ()) -> Chosen:
    """The device that `compute.device` names; `auto` weighs what there is and what is to train."""
    wanted = section.device
    if wanted != "auto":
        device = torch.device(wanted)
        _refuse_absent(device, section)
        return Chosen(device, "as asked for")
    small = is_small(modules)
    if not torch.cuda.is_available():
        return Chosen(torch.device("cpu"), "CUDA is not available")
    if small:
        return Chosen(torch.device("cpu"), "small networks are faster here than over CUDA")
    return Chosen(torch.device("cuda", torch.cuda.current_device()), "CUDA is available")


def apply_compute(section: ComputeSection, device: torch.device, *, small: bool) -> None:
    """Threads, TF32 and determinism: settings of the whole process."""
    threads = section.num_threads
    if not threads and small and device.type == "cpu":
        # Two threads gain nothing on small networks and stall where the machine is busy.
        threads = 1
    if threads:
        torch.set_num_threads(threads)
        threadpoolctl.threadpool_limits(threads, user_api="blas")
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = section.tf32
        torch.backends.cudnn.allow_tf32 = section.tf32
    if section.deterministic != "off":
        # cuBLAS reads it when it is first used, and refuses strict mode without it.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=section.deterministic == "warn")
        torch.backends.cudnn.benchmark = False


@contextmanager
def settings_kept() -> Iterator[None]:
    """What `apply_compute` changes is put back at the end: a run leaves the process as it was."""
    threads = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    flags = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    with threadpoolctl.threadpool_limits(None, user_api="blas"):
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
            matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = flags


def is_small(modules: Iterable[nn.Module]) -> bool:
    """Whether networks are too small for a GPU or a second thread to help."""
    total = 0
    for module in modules:
        if any(isinstance(part, nn.modules.conv._ConvNd) for part in module.modules()):
            return False
        total += sum(param.numel() for param in module.parameters())
    return total < SMALL


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
