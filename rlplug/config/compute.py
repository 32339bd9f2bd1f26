"""The section `[compute]`: where and how exactly numbers are computed."""

from __future__ import annotations

import re

import attrs

from rlplug.config.option import above, at_least, between, one_of, option

__all__ = ["ComputeSection"]

_DEVICE = re.compile(r"(auto|cpu|mps|cuda(:\d+)?)\Z")


def _device(value: str) -> str | None:
    if _DEVICE.match(value):
        return None
    return f"must be 'auto', 'cpu', 'mps', 'cuda' or 'cuda:N', got {value!r}"


@attrs.frozen(kw_only=True)
class ComputeSection:
    """Device, number formats, compilation, threads and determinism."""

    device: str = option("auto", "auto, cpu, mps, cuda or cuda:N; auto says what it took.", _device)
    dtype: str = option("float32", "Format of weights.", one_of(("float32", "float64")))
    precision: str = option(
        "fp32",
        "Format of the forward pass: bf16 and fp16 are mixed precision.",
        one_of(("fp32", "bf16", "fp16")),
    )
    scaler_init_scale: float = option(65536.0, "fp16: first factor of the loss.", above(0))
    scaler_growth_factor: float = option(2.0, "fp16: growth after calm steps.", above(1))
    scaler_backoff_factor: float = option(0.5, "fp16: shrinkage on overflow.", between(1e-6, 1.0))
    scaler_growth_interval: int = option(2000, "fp16: calm steps before growth.", at_least(1))
    scaler_min_scale: float = option(
        1e-4, "fp16: a factor below this ends the run: the loss itself is not finite.", at_least(0)
    )
    tf32: bool = option(True, "Let CUDA multiply float32 matrices in TF32.")
    arrays: str = option(
        "auto",
        "Run small networks' losses on NumPy arrays where they match torch: auto or off.",
        one_of(("auto", "off")),
    )
    compile: bool = option(
        False, "Compile the update from forward to gradients: slow to start, faster for long runs."
    )
    deterministic: str = option(
        "off",
        "Only deterministic kernels: warn where there is none, or be strict and fail.",
        one_of(("off", "warn", "strict")),
    )
    detect_anomaly: bool = option(
        False, "Let autograd name the operation that made a NaN: several times slower."
    )
    num_threads: int = option(
        0, "Threads of torch on the CPU; 0 chooses: one for small networks.", at_least(0)
    )
